"""Where messages go that are not to be seen at once."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.broker.redirects import Redirects
from trio_mq.config import StoreSettings
from trio_mq.errors import RequestRefused
from trio_mq.protocol import properties
from trio_mq.protocol.recall import recall_handle

NOW_MS = 1_700_000_000_123
SETTINGS = StoreSettings(message_delay_level="1s 5s 1h")


def apply(now_ms=NOW_MS, sys_flag=0, topic="T", settings=SETTINGS, **found):
    return Redirects(settings).apply(topic, 3, properties.encode(found), sys_flag, now_ms)


@pytest.mark.parametrize(
    ("level", "kept", "delay_ms"), [("1", 1, 1000), ("3", 3, 3_600_000), ("4", 3, 3_600_000)]
)
def test_a_delay_level_is_a_queue_of_the_schedule_topic(level, kept, delay_ms):
    to = apply(DELAY=level, TIMER_DELAY_MS="5", KEYS="k")
    assert (to.topic, to.queue_id, to.delay_ms) == ("SCHEDULE_TOPIC_XXXX", kept - 1, delay_ms)
    assert properties.parse(to.properties) == {
        "DELAY": str(kept),
        "KEYS": "k",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }


@given(st.integers(1, 259_200_000))
def test_a_timer_fires_in_the_slot_before_its_time(delay_ms):
    to = apply(TIMER_DELIVER_MS=str(NOW_MS + delay_ms))
    assert (to.topic, to.queue_id, to.delay_ms) == ("rmq_sys_wheel_timer", 0, None)
    assert to.timer_out_ms % 1000 == 0
    assert 0 < NOW_MS + delay_ms - to.timer_out_ms <= 1000
    assert properties.parse(to.properties)["TIMER_OUT_MS"] == str(to.timer_out_ms)


def test_seconds_count_before_milliseconds_and_those_before_a_time():
    both = apply(TIMER_DELAY_SEC="9", TIMER_DELAY_MS="5000", TIMER_DELIVER_MS="1")
    assert both.timer_out_ms == 1_700_000_009_000
    assert apply(TIMER_DELAY_MS="5000", TIMER_DELIVER_MS="1").timer_out_ms == 1_700_000_005_000


def test_a_time_that_is_over_and_one_that_was_set_before_make_no_timer():
    for found in ({"TIMER_DELIVER_MS": str(NOW_MS)}, {"TIMER_DELAY_MS": "5", "TIMER_OUT_MS": "1"}):
        to = apply(**found)
        assert (to.topic, to.queue_id, to.properties) == ("T", 3, properties.encode(found))
    with pytest.raises(RequestRefused, match="recall"):
        apply(TIMER_DELIVER_MS="1", TIMER_DEL_UNIQKEY="k")


def test_no_timers_without_a_wheel_or_room():
    with pytest.raises(RequestRefused, match="timerWheelEnable"):
        apply(TIMER_DELAY_MS="5", settings=StoreSettings(timer_wheel_enable=False))
    full = Redirects(SETTINGS)
    full.timer_is_full = lambda ms: ms == 1_700_000_001_000
    with pytest.raises(RequestRefused, match="same time"):
        full.apply("T", 0, properties.encode({"TIMER_DELAY_SEC": "1"}), 0, NOW_MS)


@pytest.mark.parametrize("sys_flag", [0x4, 0xC])
def test_parts_of_a_transaction_do_not_wait(sys_flag):
    assert apply(DELAY="1", sys_flag=sys_flag).topic == "T"


def test_a_half_message_remembers_and_never_waits_twice():
    found = {"UNIQ_KEY": "U", "TRAN_MSG": "true", "DELAY": "2", "TIMER_DELAY_MS": "5"}
    to = Redirects(SETTINGS).half("T", 3, properties.encode(found), 0x4 | 0x1)
    assert (to.topic, to.queue_id, to.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0x1)
    assert properties.parse(to.properties) == {
        "UNIQ_KEY": "U",
        "TRAN_MSG": "true",
        "__transactionId__": "U",
        "REAL_TOPIC": "T",
        "REAL_QID": "3",
    }


def test_a_recall_handle_names_what_it_takes_back():
    text = base64.urlsafe_b64decode(recall_handle("T", "b1", 1001, "U"))
    assert text == b"v1 T b1 1001 U"
