"""Progress of delay levels that follows a master's."""

from __future__ import annotations

import pytest

from trio_mq.broker.delayoffsets import DelayOffsets
from trio_mq.errors import BodyError
from trio_mq.testing.clock import ManualClock


def says(levels, counter=1, timestamp=1_000):
    version = {"counter": counter, "stateVersion": 0, "timestamp": timestamp}
    return {"dataVersion": version, "offsetTable": levels}


@pytest.fixture
def copy():
    made = DelayOffsets(ManualClock(9_000))
    assert made.take_over(says({1: 100, 3: 20}))
    return made


def test_a_copy_is_where_the_master_is(copy):
    assert dict(copy.levels) == {1: 100, 3: 20}
    revision = copy.revision
    assert copy.take_over(says({"1": 110, 3: 20}))  # integer keys, quoted or not
    assert dict(copy.levels) == {1: 110, 3: 20}
    assert copy.revision > revision
    revision = copy.revision
    assert copy.take_over(says({1: 110}))
    assert (dict(copy.levels), copy.revision) == ({1: 110, 3: 20}, revision)


def test_at_one_version_no_level_goes_back(copy):
    """A version stands for many steps: a master that crashed may have lost the last of them."""
    assert copy.take_over(says({1: 95, 3: 21}))
    assert dict(copy.levels) == {1: 100, 3: 21}


def test_at_a_later_version_a_level_may_go_back(copy):
    assert copy.take_over(says({1: 0}, counter=2, timestamp=2_000))
    assert copy.levels[1] == 0
    assert copy.version.counter == 2


def test_a_state_before_ours_is_not_taken(copy):
    copy.take_over(says({1: 500}, counter=3, timestamp=3_000))
    assert not copy.take_over(says({1: 400, 3: 30}, counter=2, timestamp=2_000))
    assert dict(copy.levels) == {1: 500, 3: 20}


def test_an_answer_that_is_no_table_changes_nothing(copy):
    for bad in (None, {"offsetTable": {"x": 1}}, {"offsetTable": {1: -1}}):
        with pytest.raises(BodyError):
            copy.take_over(bad)
    assert dict(copy.levels) == {1: 100, 3: 20}
