"""Pops and acknowledgements of a whole broker: what is handed out, what is stored, what is refused."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.pop.popping import MAX, Consumer, Taken, bit_set, bodies_of
from tests.broker.support import BROKER, GROUP, STORE, TOPIC, FakePeer, request, send, serving
from trio_mq.broker.pop.checkpoints import decode_ack, decode_checkpoint
from trio_mq.config import FlushDiskType
from trio_mq.protocol import command, properties
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.offset import ResetOffsetRequest
from trio_mq.protocol.headers.pop import AckMessageRequest
from trio_mq.protocol.record import StoredMessage

REVIVE = "rmq_sys_REVIVE_LOG_DefaultCluster"


def waiting(bench: object) -> list[StoredMessage]:
    """What waits in the timer for the revive topic."""
    return [one for one in bench.stored() if one.topic == "rmq_sys_wheel_timer"]


async def test_a_pop_takes_of_all_queues_and_leaves_a_check_point_of_each(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=2)
        bench.put(b"a", b"b", queue_id=0)
        bench.put(b"c", queue_id=1)
        consumer = Consumer(bench)
        taken = consumer.pop(invisible_ms=5000)
        assert bodies_of(taken) == [b"a", b"b", b"c"]
        assert consumer.pop() == [], "they are out"
        found = waiting(bench)
        cks = sorted((decode_checkpoint(one.body) for one in found), key=lambda ck: ck.queue_id)
        assert [(ck.queue_id, ck.offsets(), ck.invisible_ms) for ck in cks] == [
            (0, [0, 1], 5000),
            (1, [0], 5000),
        ]
        props = [properties.parse(one.properties) for one in found]
        assert {one["REAL_TOPIC"] for one in props} == {REVIVE}
        assert {one["TAGS"] for one in props} == {"ck"}
        assert {one["TIMER_DELIVER_MS"] for one in props} == {str(cks[0].due_ms - 1000)}
        assert [bench.offsets.query(GROUP, TOPIC, queue_id) for queue_id in (0, 1)] == [2, 1]


async def test_a_pop_takes_at_most_what_it_wants_and_says_how_much_is_left(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(*[b"%d" % i for i in range(10)])
        consumer = Consumer(bench)
        reply = consumer.ask(4)
        assert reply.ext["restNum"] == "6"
        assert reply.ext["msgOffsetInfo"] == "0 0 0,1,2,3"
        assert reply.ext["startOffsetInfo"] == "0 0 0"
        assert reply.remark == "FOUND"
        assert [one.body for one in consumer.pop(3)] == [b"4", b"5", b"6"]
        assert [one.body for one in consumer.pop(queue_id=0)] == [b"7", b"8", b"9"]


async def test_revive_queues_are_used_in_turn(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(*[b"%d" % i for i in range(9)])
        consumer = Consumer(bench)
        queues = [consumer.pop(1)[0].receipt.revive_queue_id for _ in range(9)]
        assert queues == [0, 1, 2, 3, 4, 5, 6, 7, 0]


async def test_acknowledgements_go_to_the_queue_of_their_check_point(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a", b"b", b"c")
        consumer = Consumer(bench)
        a, b, c = consumer.pop()
        assert consumer.ack(b).code == ResponseCode.SUCCESS
        assert consumer.batch_ack([a, c]).code == ResponseCode.SUCCESS
        _, *found = waiting(bench)
        assert [list(decode_ack(one.body).offsets()) for one in found] == [[1], [0], [2]]
        assert [properties.parse(one.properties)["TAGS"] for one in found] == [
            "ack",
            "bAck",
            "bAck",
        ]
        assert {properties.parse(one.properties)["REAL_QID"] for one in found} == {
            str(a.receipt.revive_queue_id)
        }
        assert {decode_ack(one.body).key for one in found} == {
            decode_checkpoint(waiting(bench)[0].body).key
        }


async def test_a_batch_acknowledgement_may_have_long_names(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a", b"b")
        receipt = Consumer(bench).pop()[0].receipt
        body = {
            "brokerName": "b-a",
            "acks": [
                {
                    "consumerGroup": GROUP,
                    "topic": TOPIC,
                    "retry": "0",
                    "startOffset": 0,
                    "queueId": 0,
                    "reviveQueueId": receipt.revive_queue_id,
                    "popTime": receipt.pop_time_ms,
                    "invisibleTime": receipt.invisible_ms,
                    "bitSet": bit_set(0, 1, 5),
                }
            ],
        }
        reply = bench.ask(request(RequestCode.BATCH_ACK_MESSAGE, body=body))
        assert reply.code == ResponseCode.SUCCESS, reply.remark
        ack = decode_ack(waiting(bench)[-1].body)
        assert ack.offsets() == [0, 1], "those that the queue does not have are passed over"


async def test_a_change_is_a_new_check_point_and_an_acknowledgement(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a", b"b")
        consumer = Consumer(bench)
        _, b = consumer.pop()
        await trio.sleep(2)
        reply = consumer.change(b, 9000)
        assert reply.code == ResponseCode.SUCCESS
        assert reply.ext == {
            "popTime": str(bench.clock.now_ms()),
            "invisibleTime": "9000",
            "reviveQid": str(b.receipt.revive_queue_id),
        }
        old, ck, ack = waiting(bench)
        new = decode_checkpoint(ck.body)
        assert (new.start_offset, new.offsets(), new.invisible_ms) == (1, [1], 9000)
        assert decode_ack(ack.body).key == decode_checkpoint(old.body).key


async def test_b087_what_a_pop_is_refused(autojump_clock) -> None:
    settings = attrs.evolve(BROKER, auto_create_subscription_group=False)
    async with serving(broker=settings) as bench:
        bench.create()
        bench.create("NoRead", perm=2)
        consumer = Consumer(bench)
        assert consumer.ask(33).code == ResponseCode.INVALID_PARAMETER
        assert consumer.ask(queue_id=4).code == ResponseCode.INVALID_PARAMETER
        assert consumer.ask(topic="Unknown").code == ResponseCode.TOPIC_NOT_EXIST
        assert consumer.ask(topic="NoRead").code == ResponseCode.NO_PERMISSION
        assert consumer.ask().code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        old = bench.clock.now_ms() - 501
        assert consumer.ask(born_time=old).code == ResponseCode.POLLING_TIMEOUT


async def test_a_pop_with_a_filter_that_does_not_parse_is_refused(autojump_clock) -> None:
    async with serving() as bench:
        bench.create()
        reply = Consumer(bench).ask(exp="a >", exp_type="SQL92")
        assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


async def test_pops_need_the_timer(autojump_clock) -> None:
    async with serving(store=attrs.evolve(STORE, timer_wheel_enable=False)) as bench:
        bench.create()
        reply = Consumer(bench).ask()
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "timerWheelEnable" in (reply.remark or "")


async def test_names_that_make_too_long_a_retry_topic_are_refused_at_once(autojump_clock) -> None:
    async with serving() as bench:
        topic = "T" * 127
        bench.create(topic)
        reply = Consumer(bench, topic, "G" * 121).ask()
        assert reply.code == ResponseCode.INVALID_PARAMETER
        assert "256 characters" in (reply.remark or "")


async def test_b087_what_an_acknowledgement_is_refused(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        (a,) = consumer.pop()
        for refused in (consumer.ack, lambda one, **more: consumer.change(one, 1000, **more)):
            assert refused(a, topic="Unknown").code == ResponseCode.TOPIC_NOT_EXIST
            assert refused(a, queue_id=1).code == ResponseCode.MESSAGE_ILLEGAL
            assert refused(a, queue_id=-1).code == ResponseCode.MESSAGE_ILLEGAL
            assert refused(a, offset=2).code == ResponseCode.NO_MESSAGE
            assert refused(a, offset=-1).code == ResponseCode.NO_MESSAGE
            assert refused(a, extra_info="no receipt").code == ResponseCode.SYSTEM_ERROR
            other = attrs.evolve(a.receipt, revive_queue_id=500).text
            assert refused(a, extra_info=other).code == ResponseCode.MESSAGE_ILLEGAL
        assert consumer.ack(a, offset=1).code == ResponseCode.SUCCESS, (
            "the end itself, as with Apache"
        )
        assert consumer.change(a, 1000, offset=1).code == ResponseCode.NO_MESSAGE
        assert consumer.batch_ack([]).code == ResponseCode.NO_MESSAGE
        empty = bench.ask(request(RequestCode.BATCH_ACK_MESSAGE))
        assert empty.code == ResponseCode.NO_MESSAGE


@pytest.mark.parametrize("bits", ["???", "A" * 20_000])
async def test_bit_sets_that_are_none_are_refused(autojump_clock, bits: str) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        entry = {"c": GROUP, "t": TOPIC, "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1}
        body = {"brokerName": "b-a", "acks": [entry | {"b": bits}]}
        reply = bench.ask(request(RequestCode.BATCH_ACK_MESSAGE, body=body))
        assert reply.code == ResponseCode.SYSTEM_ERROR


async def test_b088_a_pop_waits_for_a_message(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=2)
        consumer = Consumer(bench)
        bench.hand(consumer.peer, consumer.frame(poll_time=10_000))
        await trio.sleep(1)
        assert consumer.peer.take() == []
        bench.put(b"a", queue_id=1)
        (taken,) = consumer.taken(await bench.next(consumer.peer))
        assert taken.body == b"a"
        began = trio.current_time()
        reply = await bench.answer(consumer.frame(poll_time=10_000), consumer.peer)
        assert reply.code == ResponseCode.POLLING_TIMEOUT
        assert reply.ext["startOffsetInfo"] == reply.ext["msgOffsetInfo"] == ""
        assert trio.current_time() - began == pytest.approx(10, abs=0.1)


async def test_b088_only_so_many_wait_for_a_queue(autojump_clock) -> None:
    async with serving() as bench:
        bench.create()
        consumer = Consumer(bench)
        frames = [consumer.frame(poll_time=10_000) for _ in range(1025)]
        bench.hand(consumer.peer, *frames)
        assert consumer.peer.take() == []
        assert consumer.ask(poll_time=10_000).code == ResponseCode.POLLING_FULL


async def test_a_pop_that_wants_the_newest_gets_all_of_a_young_queue(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a", b"b")
        assert bodies_of(Consumer(bench).pop(init_mode=MAX)) == [b"a", b"b"]
    old = attrs.evolve(BROKER, init_pop_offset_by_check_msg_in_mem=False)
    async with serving(broker=old) as bench:
        bench.create(queues=1)
        bench.put(b"a", b"b")
        assert bodies_of(Consumer(bench).pop(init_mode=MAX)) == [b"b"]


async def test_only_wanted_tags_are_handed_out_and_the_others_passed(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        for body, tags in ((b"1", "A"), (b"2", "B"), (b"3", "A"), (b"4", "B")):
            bench.put(body, tags=tags)
        consumer = Consumer(bench)
        taken = consumer.pop(exp="A")
        assert [one.body for one in taken] == [b"1", b"3"]
        assert [one.receipt.start_offset for one in taken] == [0, 0]
        assert decode_checkpoint(waiting(bench)[0].body).deltas == [0, 2]
        assert consumer.pop(exp="A") == []
        assert bench.offsets.query(GROUP, TOPIC, 0) == 4


@pytest.mark.parametrize("pause_s", [0, 3])
async def test_b107_a_reset_back_gives_what_is_out_again(autojump_clock, pause_s: int) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(*[b"%d" % i for i in range(10)])
        consumer = Consumer(bench)
        assert len(consumer.pop(16)) == 10
        reset(bench, 4)
        await trio.sleep(pause_s)
        assert [one.body for one in consumer.pop(16)] == [b"%d" % i for i in range(4, 10)]
        assert consumer.pop(16) == []


async def test_b109_a_reset_forward_passes_over_messages(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(*[b"%d" % i for i in range(10)])
        consumer = Consumer(bench)
        found: list[Taken] = consumer.pop(1) + consumer.pop(1)
        reset(bench, 5)
        reset(bench, 8)
        while more := consumer.pop(1):
            found += more
        assert [one.body for one in found] == [b"0", b"1", b"8", b"9"]


def reset(bench: object, offset: int) -> None:
    """Set a group's offset, as an administrator."""
    header = ResetOffsetRequest(
        topic=TOPIC, group=GROUP, timestamp=-1, force=True, queue_id=0, offset=offset
    )
    reply = bench.ask(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header))
    assert reply.code == ResponseCode.SUCCESS, reply.remark


async def test_a_group_with_too_many_messages_of_a_queue_gets_no_more(autojump_clock) -> None:
    limits = attrs.evolve(
        BROKER, enable_pop_message_threshold=True, pop_inflight_message_threshold=2
    )
    async with serving(broker=limits) as bench:
        bench.create(queues=1)
        bench.put(*[b"%d" % i for i in range(9)])
        consumer = Consumer(bench)
        a, b, c = consumer.pop(3)
        assert consumer.pop(3) == []
        consumer.batch_ack([a, b])
        assert len(consumer.pop(3)) == 3
        consumer.ack(c)
        assert bench.broker.pops.ledger.inflight(TOPIC, GROUP, 0) == 3


async def test_a_full_disk_hands_nothing_out_and_loses_nothing(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        bench.store.cleaner.write_failed(OSError(28, "No space left on device"))
        assert consumer.ask().code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert bench.offsets.query(GROUP, TOPIC, 0) == 0


async def test_with_sync_flush_the_answer_and_the_offset_wait_for_the_disk(autojump_clock) -> None:
    async with serving(
        store=attrs.evolve(STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    ) as bench:
        bench.create(queues=1)
        reply = await bench.answer(send(body=b"a"))
        assert reply.code == ResponseCode.SUCCESS
        reply = await bench.answer(send(body=b"b"))
        consumer, peer = Consumer(bench), FakePeer()
        bench.hand(consumer.peer, consumer.frame(1))
        assert consumer.peer.take() == []
        assert bench.offsets.query(GROUP, TOPIC, 0) == 0, "a crash now must give it out again"
        bench.hand(peer, Consumer(bench).frame(1))
        (first,) = consumer.taken(await bench.next(consumer.peer))
        (second,) = consumer.taken(await bench.next(peer))
        assert (first.body, second.body) == (b"a", b"b"), (
            "the next pop starts behind it all the same"
        )
        assert bench.offsets.query(GROUP, TOPIC, 0) == 2


async def test_acknowledgements_that_come_together_are_one_record(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=2)
        bench.put(b"a", b"b", b"c", queue_id=0)
        bench.put(b"d", queue_id=1)
        consumer = Consumer(bench)
        taken = consumer.pop()
        frames = [
            request(RequestCode.ACK_MESSAGE, AckMessageRequest(**consumer.fields(one)))
            for one in [*taken, taken[0]]
        ]
        bench.hand(consumer.peer, *frames)
        replies = consumer.peer.take()
        assert [reply.code for reply in replies] == [ResponseCode.SUCCESS] * 5
        assert [reply.opaque for reply in replies] == [command.decode(f).opaque for f in frames]
        acks = [decode_ack(one.body) for one in waiting(bench)[2:]]
        assert sorted((ack.queue_id, sorted(ack.offsets())) for ack in acks) == [
            (0, [0, 1, 2]),
            (1, [0]),
        ]


async def test_acknowledgements_that_cannot_be_stored_are_refused(autojump_clock) -> None:
    async with serving() as bench:
        bench.create(queues=1)
        bench.put(b"a")
        consumer = Consumer(bench)
        (a,) = consumer.pop()
        bench.store.cleaner.write_failed(OSError(28, "No space left on device"))
        assert consumer.ack(a).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert consumer.batch_ack([a]).code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert consumer.change(a, 1000).code == ResponseCode.SERVICE_NOT_AVAILABLE
