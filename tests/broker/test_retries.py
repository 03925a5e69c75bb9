"""Messages that a consumer failed on: another try after a while, and the dead letters of its group in the end."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.support import (
    BROKER,
    GROUP,
    HOST,
    STORE,
    Bench,
    props,
    request,
    send,
    serving,
)
from trio_mq.broker.retries import NO_RETRY, retry_level
from trio_mq.config import FlushDiskType
from trio_mq.protocol.bodies import (
    LockBatchBody,
    MessageQueue,
    SubscriptionGroupConfig,
    TopicConfig,
)
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.send import ConsumerSendMsgBackRequest
from trio_mq.protocol.message import offset_message_id, parse_offset_message_id
from trio_mq.protocol.record import StoredMessage

RETRY, DEAD, SCHEDULE = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", "SCHEDULE_TOPIC_XXXX"


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        made.create()
        yield made


def put(bench: Bench, body: bytes = b"m", **more: str) -> StoredMessage:
    """One message in the topic, and its record."""
    bench.put(body, properties=props(UNIQ_KEY="u", TAGS="TagA", **more))
    return bench.stored()[-1]


def back(
    bench: Bench, record: StoredMessage, level: int = 0, *, version: int | None = None, **fields
) -> Command:
    """The reply to CONSUMER_SEND_MSG_BACK."""
    header = ConsumerSendMsgBackRequest(
        **{"offset": record.log_offset, "group": GROUP, "delay_level": level} | fields
    )
    frame = request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    if version is not None:
        frame = (frame[0], frame[1].replace(b'"version":493', b'"version":%d' % version), frame[2])
    return bench.ask(frame)


def of(bench: Bench, topic: str) -> list[StoredMessage]:
    return [record for record in bench.stored() if record.topic == topic]


@pytest.mark.parametrize(
    ("times", "most", "asked", "level"),
    [
        (0, 16, 0, 3),
        (1, 16, 0, 4),
        (15, 16, 0, 18),
        (16, 16, 0, NO_RETRY),
        (17, 16, 0, NO_RETRY),
        (0, 16, 5, 5),
        (15, 16, 1, 1),
        (16, 16, 1, NO_RETRY),
        (0, 16, -1, NO_RETRY),
        (0, 0, 0, NO_RETRY),
        (20, 30, 0, 23),  # the schedule topic takes it for the last level
    ],
)
def test_levels_of_retries(times, most, asked, level):
    assert retry_level(times, most, asked) == level


async def test_b076_a_message_comes_back_after_its_level(autojump_clock, bench):
    record = put(bench, KEYS="k")
    reply = back(bench, record)
    assert (reply.code, reply.remark) == (0, None)
    (waiting,) = of(bench, SCHEDULE)
    assert waiting.queue_id == 2
    await trio.sleep(9.9)
    assert of(bench, RETRY) == []
    await trio.sleep(0.2)
    (again,) = of(bench, RETRY)
    assert (again.queue_id, again.reconsume_times, again.body) == (0, 1, b"m")
    assert again.born_timestamp_ms == record.born_timestamp_ms
    assert again.born_host == record.born_host
    found = again.property_map
    assert found["RETRY_TOPIC"] == "T"
    assert found["ORIGIN_MESSAGE_ID"] == offset_message_id(HOST, record.log_offset)
    assert (found["WAIT"], found["DELAY"], found["UNIQ_KEY"]) == ("false", "3", "u")
    assert (found["TAGS"], found["KEYS"]) == ("TagA", "k")
    assert bench.topics.get(RETRY) == TopicConfig(RETRY, 1, 1, 6)


async def test_each_try_waits_a_level_longer_and_keeps_the_first_ids(autojump_clock):
    levels = " ".join(f"{level}s" for level in range(1, 19))
    async with serving(store=attrs.evolve(STORE, message_delay_level=levels)) as bench:
        bench.create()
        first = record = put(bench)
        for times in range(16):
            assert back(bench, record).code == 0
            waiting = of(bench, SCHEDULE)[-1]
            assert waiting.queue_id == times + 2
            await trio.sleep(times + 3 + 0.1)
            record = of(bench, RETRY)[-1]
            assert record.reconsume_times == times + 1
            assert record.property_map["RETRY_TOPIC"] == "T"
            host, offset = parse_offset_message_id(record.property_map["ORIGIN_MESSAGE_ID"])
            assert (host, offset) == (HOST, first.log_offset)
        assert back(bench, record).code == 0
        (dead,) = of(bench, DEAD)
        assert dead.reconsume_times == 17
        assert "DELAY" not in dead.property_map


@pytest.mark.parametrize("sync", [False, True])
async def test_an_answer_means_that_it_is_stored_for_good(autojump_clock, sync):
    kind = FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH
    async with serving(store=attrs.evolve(STORE, flush_disk_type=kind)) as bench:
        bench.create()
        assert (await bench.answer(send())).code == 0
        header = ConsumerSendMsgBackRequest(0, GROUP, 0)
        reply = await bench.answer(request(RequestCode.CONSUMER_SEND_MSG_BACK, header))
        assert reply.code == 0
        if sync:
            (waiting,) = of(bench, SCHEDULE)
            assert bench.store.log.durable.value >= waiting.log_offset + waiting.size


@pytest.mark.parametrize(
    ("fields", "most", "dead"),
    [
        ({"level": -1}, 16, True),
        ({"level": -7}, 16, True),
        ({}, 0, True),
        ({"max_reconsume_times": 0}, 16, True),
        ({"max_reconsume_times": 16}, 0, False),
        ({"max_reconsume_times": 0, "version": 120}, 16, False),
        ({"max_reconsume_times": 0, "version": 121}, 16, True),
    ],
)
async def test_b077_c145_whose_limit_counts(autojump_clock, bench, fields, most, dead):
    bench.groups.update(SubscriptionGroupConfig(GROUP, retry_max_times=most))
    record = put(bench)
    assert back(bench, record, **fields).code == 0
    assert len(of(bench, DEAD)) == dead
    assert len(of(bench, SCHEDULE)) == (not dead)
    if dead:
        assert bench.topics.get(DEAD) == TopicConfig(DEAD, 1, 1, 6)
        assert of(bench, DEAD)[0].queue_id == 0


async def test_b077_what_is_refused(autojump_clock):
    broker = attrs.evolve(BROKER, auto_create_subscription_group=False)
    async with serving(broker=broker) as bench:
        bench.create()
        record = put(bench)
        assert back(bench, record).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        bench.groups.update(SubscriptionGroupConfig(GROUP, retry_queue_nums=0))
        assert back(bench, record).code == 0
        assert bench.topics.get(RETRY) is None
        assert len(bench.stored()) == 1, "forgotten"
        bench.groups.update(SubscriptionGroupConfig(GROUP))
        for offset in (record.log_offset + 1, 1 << 40, -1):
            reply = back(bench, record, offset=offset)
            assert reply.code == ResponseCode.SYSTEM_ERROR
            assert str(offset) in reply.remark
        bench.topics.update(TopicConfig(RETRY, 1, 1, 4), None)
        reply = back(bench, record)
        assert reply.code == ResponseCode.NO_PERMISSION
        assert RETRY in reply.remark
        assert len(bench.stored()) == 1


async def test_a_broker_that_takes_no_messages_takes_none_back(autojump_clock):
    async with serving(broker=attrs.evolve(BROKER, broker_permission=4)) as bench:
        bench.create()
        record = put(bench)
        assert back(bench, record).code == ResponseCode.NO_PERMISSION


async def test_retries_are_spread_over_the_queues_of_the_group(autojump_clock, bench):
    bench.groups.update(SubscriptionGroupConfig(GROUP, retry_queue_nums=3))
    record = put(bench)
    for _ in range(60):
        assert back(bench, record, 1).code == 0
    await trio.sleep(2)
    assert {again.queue_id for again in of(bench, RETRY)} == {0, 1, 2}
    assert bench.topics.get(RETRY).write_queue_nums == 3


async def test_c131_a_body_of_full_size_is_not_refused_on_its_way(autojump_clock):
    store = attrs.evolve(STORE, max_message_size=20_000)
    async with serving(store=store) as bench:
        bench.create()
        record = put(bench, b"x" * 20_000)
        assert back(bench, record, 1).code == 0
        await trio.sleep(1.1)
        (again,) = of(bench, RETRY)
        assert back(bench, again, -1).code == 0
        (dead,) = of(bench, DEAD)
        assert len(dead.body) == len(again.body) == 20_000


async def test_properties_without_room_for_more_are_told(autojump_clock, bench):
    """The client then sends an ordinary message, or keeps it."""
    record = put(bench, x="y" * 32_600)
    reply = back(bench, record)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "properties" in reply.remark
    assert len(bench.stored()) == 1


async def test_a_store_that_takes_nothing_is_told(autojump_clock, bench):
    record = put(bench)
    bench.store.cleaner.refusal = "the disk is full"
    reply = back(bench, record)
    assert (reply.code, "the disk is full" in reply.remark) == (ResponseCode.SYSTEM_ERROR, True)


async def test_an_inner_batch_is_not_sent_back_as_one_message(autojump_clock, bench):
    from tests.broker.test_send import batch

    bench.create("B", queue_type="BatchCQ")
    items = [(0, b"a", b""), (0, b"b", b"")]
    assert batch(bench, items, topic="B", properties=props(UNIQ_KEY="u")).code == 0
    (record,) = of(bench, "B")
    reply = back(bench, record)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "batch" in reply.remark


async def test_the_policy_of_a_group_changes_nothing_as_with_apache(autojump_clock, bench):
    """Only Apache's gRPC proxy reads it; it is kept for whoever asks."""
    policy = {
        "type": "EXPONENTIAL",
        "exponentialRetryPolicy": {"initial": 1, "max": 9, "multiplier": 2},
    }
    bench.groups.update(SubscriptionGroupConfig(GROUP, group_retry_policy=policy))
    assert back(bench, put(bench)).code == 0
    assert of(bench, SCHEDULE)[0].queue_id == 2
    assert bench.groups.get(GROUP).group_retry_policy == policy


# -- what clients send to retry topics by themselves


def sent(
    bench: Bench, times: int | None, most: int | None = None, delay: str = "3", **fields
) -> Command:
    text = props(RETRY_TOPIC="T", ORIGIN_MESSAGE_ID="O", DELAY=delay, UNIQ_KEY="u")
    return bench.ask(
        send(RETRY, properties=text, reconsume_times=times, max_reconsume_times=most, **fields)
    )


@pytest.mark.parametrize(
    ("times", "most", "of_group", "dead"),
    [
        (1, None, 16, False),
        (16, None, 16, False),
        (17, None, 16, True),
        (3, 2, 16, True),
        (2, 2, 16, False),
        (17, 20, 16, False),
        (None, 0, 16, False),
        (1, 0, 16, True),
        (5, None, 4, True),
    ],
)
@pytest.mark.parametrize("long_way", [False, True])
async def test_c146_the_limit_counts_for_plain_sends_too(
    autojump_clock, bench, times, most, of_group, dead, long_way
):
    """`times` counts the try that the message is sent for."""
    bench.groups.update(SubscriptionGroupConfig(GROUP, retry_max_times=of_group))
    bench.topics.create_retry(RETRY, 1)
    bench.topics.create_retry(DEAD, 1)
    reply = sent(bench, times, most, long_way=long_way)
    assert reply.code == 0
    if not dead:
        assert of(bench, SCHEDULE)[0].property_map["REAL_TOPIC"] == RETRY
        await trio.sleep(10.1)
    (found,) = of(bench, DEAD if dead else RETRY)
    assert found.property_map["ORIGIN_MESSAGE_ID"] == "O"
    assert found.property_map["RETRY_TOPIC"] == "T"
    assert found.reconsume_times == (times or 0)
    assert ("DELAY" in found.property_map) is not dead


async def test_b078_an_ordered_group_gives_up_at_once_while_it_holds_a_queue(autojump_clock, bench):
    bench.groups.update(SubscriptionGroupConfig(GROUP))
    bench.topics.create_retry(RETRY, 1)
    bench.topics.create_retry(DEAD, 1)
    lock = LockBatchBody(GROUP, "c", frozenset({MessageQueue("T", "b-a", 0)}))
    assert bench.ask(request(RequestCode.LOCK_BATCH_MQ, body=lock)).code == 0
    assert sent(bench, 1).code == 0
    (dead,) = of(bench, DEAD)
    assert dead.reconsume_times == 1
    assert "DELAY" not in dead.property_map
    await trio.sleep(61)
    assert sent(bench, 1).code == 0
    assert len(of(bench, DEAD)) == 1, "the lock is over"


async def test_a_dead_letter_has_one_queue_whatever_was_asked_for(autojump_clock, bench):
    bench.groups.update(SubscriptionGroupConfig(GROUP))
    bench.topics.update(TopicConfig(RETRY, 4, 4, 6), None)
    reply = await bench.answer(
        send(RETRY, queue_id=3, reconsume_times=99, properties=props(UNIQ_KEY="u"))
    )
    assert (reply.code, reply.ext["queueId"]) == (0, "0")
    (dead,) = of(bench, DEAD)
    assert dead.queue_id == 0
