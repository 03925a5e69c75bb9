"""Modes of groups: what was set, and the state file."""

from __future__ import annotations

import pytest

from trio_mq.broker.pop.modes import RequestModes
from trio_mq.errors import BodyError
from trio_mq.protocol import jsondialect
from trio_mq.protocol.bodies import SetMessageRequestModeBody

APACHE = (
    b'{"messageRequestModeMap":{"T":{"G":{"consumerGroup":"G","mode":"POP","popShareQueueNum":8,'
    b'"topic":"T"},"H":{"consumerGroup":"H","mode":"PULL","popShareQueueNum":0,"topic":"T"}}}}'
)


def test_a_mode_is_of_one_topic_and_group():
    modes = RequestModes()
    assert modes.get("T", "G") is None
    mode = SetMessageRequestModeBody("T", "G", "POP", 8)
    modes.set_mode(mode)
    assert modes.revision == 1
    assert modes.get("T", "G") == mode
    assert modes.get("T", "H") is None
    assert modes.get("U", "G") is None


def test_the_file_is_that_of_the_peers():
    modes = RequestModes()
    modes.read_json(jsondialect.loads(APACHE))
    assert modes.get("T", "G") == SetMessageRequestModeBody("T", "G", "POP", 8)
    assert jsondialect.loads(jsondialect.dumps(modes.to_json())) == jsondialect.loads(APACHE)
    assert modes.revision == 0


def test_what_we_do_not_know_of_the_file_stays():
    modes = RequestModes()
    modes.read_json({"messageRequestModeMap": {}, "newer": 1})
    assert modes.to_json() == {"messageRequestModeMap": {}, "newer": 1}


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"messageRequestModeMap": 5},
        {"messageRequestModeMap": {"T": []}},
        {"messageRequestModeMap": {"T": {"G": {"mode": "PUSH"}}}},
        {"messageRequestModeMap": {"T": {"G": {"popShareQueueNum": "x"}}}},
    ],
)
def test_a_spoilt_file_is_refused_and_changes_nothing(value):
    modes = RequestModes()
    modes.set_mode(SetMessageRequestModeBody("T", "G", "POP", 8))
    before = modes.to_json()
    with pytest.raises(BodyError):
        modes.read_json(value)
    assert modes.to_json() == before


def test_a_copy_has_what_the_master_has_and_nothing_else():
    master, copy = RequestModes(), RequestModes()
    master.set_mode(SetMessageRequestModeBody("T", "G", "POP", 4))
    copy.set_mode(SetMessageRequestModeBody("U", "G", "POP", 2))
    assert copy.take_over(jsondialect.loads(jsondialect.dumps(master.to_json())))
    assert copy.to_json() == master.to_json()
    revision = copy.revision
    assert not copy.take_over(master.to_json())
    assert copy.revision == revision
    with pytest.raises(BodyError):
        copy.take_over({"messageRequestModeMap": {"T": {"G": {"mode": "PUSH"}}}})
    assert copy.to_json() == master.to_json()
