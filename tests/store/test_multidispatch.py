"""One message in several queues (LMQ): offsets, entries, what is refused, and what a start makes again."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.support import STORE as PLAIN
from tests.broker.support import SUSPEND, FakePeer, props, pull, request, send, serving, texts
from trio_mq.protocol import properties
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.offset import UpdateConsumerOffsetRequest
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk

LMQ = attrs.evolve(PLAIN, enable_lmq=True, enable_multi_dispatch=True)
A, B = "%LMQ%a", "%LMQ%b"
TOPIC = "T"


def to(*names: str, topic: str = TOPIC, body: bytes = b"x", **more: str):
    """A send into further queues."""
    fields = {"INNER_MULTI_DISPATCH": ",".join(names), **more}
    return send(topic, body, properties=props(**fields))


def put(bench, *frames) -> None:
    for frame in frames:
        assert bench.ask(frame).code == ResponseCode.SUCCESS


def read(bench, topic: str, offset: int = 0) -> list[bytes]:
    """What a queue holds from an offset on."""
    reply = bench.ask(pull(offset, topic, group="G"))
    return texts(reply) if reply.code == ResponseCode.SUCCESS else []


async def test_a_message_is_in_all_queues_that_it_names(autojump_clock):
    async with serving(store=LMQ) as bench:
        bench.create(TOPIC)
        put(bench, to(A, B, body=b"1"), to(B, body=b"2", WAIT="true"), to(A, body=b"3"))
        put(bench, send(TOPIC, b"4"))
        assert read(bench, TOPIC) == [b"1", b"2", b"3", b"4"]
        assert read(bench, A) == [b"1", b"3"]
        assert read(bench, B) == [b"1", b"2"]
        assert read(bench, B, 1) == [b"2"]
        offsets = [
            properties.parse(record.properties).get("INNER_MULTI_QUEUE_OFFSET")
            for record in bench.stored()
        ]
        assert offsets == ["0,0", "1", "1", None]
        assert bench.ask(pull(0, "%LMQ%new", group="G")).code == ResponseCode.PULL_NOT_FOUND
        assert A not in [config.topic_name for config in bench.topics]


async def test_a_held_pull_of_a_light_queue_is_woken(autojump_clock):
    async with serving(store=LMQ) as bench:
        bench.create(TOPIC)
        put(bench, to(A, body=b"1"))
        peer = FakePeer()
        bench.hand(peer, pull(1, A, group="G", sys_flag=SUSPEND))
        assert peer.take() == []
        put(bench, to(B, body=b"2"))
        assert peer.take() == []
        put(bench, to(A, body=b"3"))
        assert texts(peer.one()) == [b"3"]


async def test_off_it_is_a_property_like_others(autojump_clock):
    async with serving() as bench:
        bench.create(TOPIC)
        put(bench, to(A, "anything", body=b"1", INNER_MULTI_QUEUE_OFFSET="7,8"))
        (record,) = bench.stored()
        found = properties.parse(record.properties)
        assert found["INNER_MULTI_DISPATCH"] == f"{A},anything"
        assert "INNER_MULTI_QUEUE_OFFSET" not in found
        assert bench.ask(pull(0, A, group="G")).code == ResponseCode.TOPIC_NOT_EXIST
        assert bench.store.queue(A, 0) is None


async def test_without_dispatch_there_are_offsets_and_no_entries(autojump_clock):
    async with serving(store=attrs.evolve(PLAIN, enable_lmq=True)) as bench:
        bench.create(TOPIC)
        put(bench, to(A), to(A))
        found = [properties.parse(record.properties) for record in bench.stored()]
        assert [one["INNER_MULTI_QUEUE_OFFSET"] for one in found] == ["0", "1"]
        assert read(bench, A) == []


@pytest.mark.parametrize(
    ("names", "code", "says"),
    [
        (("plain",), ResponseCode.MESSAGE_ILLEGAL, "no light queue"),
        ((A, ""), ResponseCode.MESSAGE_ILLEGAL, "no light queue"),
        (("%LMQ%a/../../b",), ResponseCode.MESSAGE_ILLEGAL, "slash"),
        (("%LMQ%" + "a" * 251,), ResponseCode.MESSAGE_ILLEGAL, "255"),
        ((A, A), ResponseCode.MESSAGE_ILLEGAL, "different"),
        (tuple(f"%LMQ%{n}" for n in range(101)), ResponseCode.MESSAGE_ILLEGAL, "101"),
        ((A, B, "%LMQ%c", "%LMQ%d"), ResponseCode.SYSTEM_ERROR, "maxLmqConsumeQueueNum"),
    ],
)
async def test_names_that_cannot_be_queues(autojump_clock, names, code, says):
    store = attrs.evolve(LMQ, max_lmq_consume_queue_num=3)
    async with serving(store=store) as bench:
        bench.create(TOPIC)
        reply = bench.ask(to(*names))
        assert (reply.code, says in reply.remark) == (code, True)
        assert bench.stored() == []
        put(bench, to(A, B, body=b"good"))
        assert read(bench, A) == [b"good"]


async def test_a_write_that_fails_gives_the_offsets_back(autojump_clock):
    async with serving(store=LMQ, clean_stop=False) as bench:
        bench.create(TOPIC)
        put(bench, to(A))
        queue = bench.store.queue(A, 0)
        bench.disk.fail_when(lambda op: "/commitlog/" in op.path)
        assert bench.ask(to(A, B)).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert queue.next_offset == 1
        assert bench.store.queue(B, 0).next_offset == 0


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("count", [5, 400])
async def test_a_start_makes_the_entries_again(autojump_clock, clean, lost, count):
    disk = MemoryDisk()
    async with serving(disk, store=LMQ, clean_stop=clean) as bench:
        bench.create(TOPIC)
        for number in range(count):
            names = (A, B) if number % 2 else (A,)
            put(bench, to(*names, body=b"%d" % number), send(TOPIC, b"between"))
        await trio.sleep(1)  # the topic is saved
    if lost:
        for name in (A, B):
            disk.remove_tree(f"/store/consumequeue/{name}")
    async with serving(disk, store=LMQ) as bench:
        queue = bench.store.queue(A, 0)
        assert (queue.max_offset, queue.next_offset) == (count, count)
        assert bench.store.queue(B, 0).max_offset == count // 2
        assert read(bench, A, count - 3) == [b"%d" % n for n in range(count - 3, count)]
        put(bench, to(A, B, body=b"after"))
        assert read(bench, A, count) == [b"after"]
        assert read(bench, B, count // 2) == [b"after"]


async def test_progress_in_light_queues_survives_in_a_file_of_its_own(autojump_clock):
    disk = MemoryDisk()

    def commit(group: str, topic: str, offset: int):
        header = UpdateConsumerOffsetRequest(group, topic, 0, offset)
        return request(RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async with serving(disk) as bench:
        bench.create(TOPIC)
        put(bench, *(send(TOPIC, b"x") for _ in range(5)))
        bench.groups.obtain("G")
        assert bench.ask(commit("G", TOPIC, 3)).code == ResponseCode.SUCCESS
    async with serving(disk, store=LMQ) as bench:
        assert bench.offsets.query("G", TOPIC, 0) == 3  # from the time before the setting
        put(bench, to(A), to(A), to(A))
        for group, offset in (("%LMQ%g", 2), ("G", 1)):
            assert bench.ask(commit(group, A, offset)).code == ResponseCode.SUCCESS
    text = disk.open("/store/config/lmqConsumerOffset.json", readonly=True)
    data = text.read(text.size(), 0)
    assert f'"{A}@%LMQ%g":2'.encode() in data.replace(b" ", b"")
    async with serving(disk, store=LMQ) as bench:
        found = [bench.offsets.query(group, A, 0) for group in ("%LMQ%g", "G")]
        assert (found, bench.offsets.query("G", TOPIC, 0)) == ([2, 1], 3)


@pytest.mark.parametrize("wait", ["DELAY", "TIMER_DELAY_SEC"])
async def test_names_of_a_message_that_waits_first_are_looked_at(autojump_clock, wait):
    async with serving(store=LMQ) as bench:
        bench.create(TOPIC)
        reply = bench.ask(to("none", **{wait: "1"}))
        assert (reply.code, "no light queue" in reply.remark) == (
            ResponseCode.MESSAGE_ILLEGAL,
            True,
        )
        assert bench.stored() == []


@pytest.mark.parametrize("wait", ["DELAY", "TIMER_DELAY_SEC"])
async def test_a_due_message_whose_further_queues_cannot_be_comes_without_them(
    autojump_clock, wait, caplog
):
    """As there was room for them when it was sent, or no dispatch: neither is a reason to lose it, or to stop."""
    disk, clock = MemoryDisk(), TrioClock()
    async with serving(disk, store=PLAIN, clock=clock) as bench:
        bench.create(TOPIC)
        put(bench, to("none", body=b"first", **{wait: "1"}), to(A, body=b"second", **{wait: "1"}))
    async with serving(disk, store=LMQ, clock=clock) as bench:
        await trio.sleep(3)
        assert read(bench, TOPIC) == [b"first", b"second"]
        assert read(bench, A) == [b"second"]
    assert "no light queue" in caplog.text
