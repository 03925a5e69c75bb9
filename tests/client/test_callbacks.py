"""What brokers ask of consumers, with a whole broker in virtual time and an administrator who asks it."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from tests.client.received import message_at, stored
from trio_mq import Admin, Consumer, Message, Outcome, PeerRefused, Producer
from trio_mq.client.callbacks import handled, queue_state
from trio_mq.client.instance import open_instance
from trio_mq.client.options import ClientOptions
from trio_mq.client.processqueue import ProcessQueue
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import ConsumeMessageDirectlyResult, ConsumerStatusBody, MessageQueue
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.testing.inprocess import open_broker

TOPIC, GROUP = "Orders", "billing"
COUNT = 40


@attrs.frozen
class Scene:
    """A broker with messages, a consumer that has not settled any, and an administrator."""

    ns: str
    consumer: Consumer
    admin: Admin
    offset_message_ids: list[str]

    @property
    def client_id(self) -> str:
        return self.consumer._member.instance.client_id

    async def ask(self, code, header, body=b"") -> Command:
        """Ask the broker, as an administrator's tool does."""
        async with open_instance(ClientOptions.of(self.ns)) as instance:
            route = await instance.route(TOPIC)
            ((address,),) = [by_id.values() for by_id in route.brokers.values()]
            return await instance.ask(address, code, header, body)


@asynccontextmanager
async def scene(**options):
    """See :class:`Scene`."""
    async with open_broker() as broker, Producer(broker.nameserver) as producer:
        sent = [await producer.send(Message(TOPIC, b"%d" % n, tags="new")) for n in range(COUNT)]
        async with (
            Consumer(
                broker.nameserver, GROUP, subscribe={TOPIC: "new"}, from_where="first", **options
            ) as consumer,
            Admin(broker.nameserver) as admin,
        ):
            await trio.sleep(1)
            yield Scene(broker.nameserver, consumer, admin, [r.offset_message_id for r in sent])


async def test_running_info_tells_what_is_subscribed_held_and_set(autojump_clock) -> None:
    async with scene() as found:
        for _ in range(3):
            async with await anext(found.consumer):
                pass
        info = await found.admin.running_info(GROUP, found.client_id, stacks=True)
    assert [(s.topic, s.sub_string) for s in info.subscriptions] == [
        (f"%RETRY%{GROUP}", "*"), (TOPIC, "new"),
    ]  # fmt: skip
    ours = {queue: state for queue, state in info.queues.items() if queue.topic == TOPIC}
    assert len(ours) == 4
    assert sum(state.cached_messages for state in ours.values()) == COUNT - 3
    assert sum(state.commit_offset for state in ours.values()) == 3
    assert {state.cached_max_offset for state in ours.values()} == {9}
    assert all(state.last_pull_at is not None for state in ours.values())
    assert info.properties["PROP_NAMESERVER_ADDR"] == f"{found.ns};"
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info.properties["PROP_CONSUMEORDERLY"] == "false"
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "0"
    assert int(info.properties["PROP_CONSUMER_START_TIMESTAMP"]) > 0
    assert "running_info" in info.stacks


async def test_the_handlers_of_runs_are_told(autojump_clock) -> None:
    async def handle(message) -> None:
        await trio.lowlevel.checkpoint()

    async with scene() as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.consumer.run, handle, 5)
        await trio.sleep(1)
        info = await found.admin.running_info(GROUP, found.client_id)
        nursery.cancel_scope.cancel()
    assert info.properties["PROP_THREADPOOL_CORE_SIZE"] == "5"
    assert info.stacks is None
    assert sum(state.cached_messages for state in info.queues.values()) == 0


async def test_the_status_of_a_client(autojump_clock) -> None:
    async with scene() as found:
        async with await anext(found.consumer):
            pass
        header = headers.GetConsumerStatusRequest(
            topic=TOPIC, group=GROUP, client_addr=found.client_id
        )
        reply = await found.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
    table = bodies.decode(ConsumerStatusBody, reply.body).consumer_table[found.client_id]
    assert {queue.topic for queue in table} == {TOPIC}
    assert sorted(table.values()) == [0, 0, 0, 1]


async def test_a_reset_moves_queues_at_once(autojump_clock) -> None:
    async with scene() as found:
        for _ in range(COUNT):
            await (await anext(found.consumer)).ack()
        moved = await found.admin.reset_offsets(GROUP, TOPIC, "begin")
        assert set(moved.values()) == {0}
        await trio.sleep(1)
        again = [(await anext(found.consumer)).body for _ in range(COUNT)]
        assert len(set(again)) == COUNT
        offsets = await found.admin.consumer_offsets(GROUP, TOPIC)
        assert set(offsets.values()) == {0}


async def test_what_is_in_hand_when_a_reset_comes_does_not_count(autojump_clock) -> None:
    async with scene() as found:
        old = [await anext(found.consumer) for _ in range(COUNT)]
        await found.admin.reset_offsets(GROUP, TOPIC, "begin")
        await trio.sleep(1)
        for message in old:
            await message.ack()
        await found.consumer.commit()
        assert set((await found.admin.consumer_offsets(GROUP, TOPIC)).values()) == {0}


async def directly(found, message_id) -> ConsumeMessageDirectlyResult:
    header = headers.ConsumeMessageDirectlyResultRequest(
        consumer_group=GROUP, client_id=found.client_id, msg_id=message_id, topic=TOPIC
    )
    reply = await found.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, header)
    return bodies.decode(ConsumeMessageDirectlyResult, reply.body)


async def test_one_message_is_given_to_the_handler_directly(autojump_clock) -> None:
    got = []

    async def handle(message) -> Outcome:
        got.append((message.topic, message.body, message.offset_message_id))
        await trio.sleep(0.5)
        return Outcome.RETRY if len(got) > COUNT else Outcome.ACK

    async with scene() as found, trio.open_nursery() as nursery:
        nursery.start_soon(found.consumer.run, handle)
        await trio.sleep(10)
        assert len(got) == COUNT
        result = await directly(found, found.offset_message_ids[7])
        nursery.cancel_scope.cancel()
    assert got[COUNT] == (TOPIC, b"7", found.offset_message_ids[7])
    assert (result.consume_result, result.order, result.remark) == ("CR_LATER", False, None)
    assert result.spent_time_mills == 500


async def test_without_a_handler_nothing_is_given_directly(autojump_clock) -> None:
    async with scene() as found:
        with pytest.raises(PeerRefused, match="handles no messages now"):
            await directly(found, found.offset_message_ids[0])


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (None, ("CR_SUCCESS", None)),
        (True, ("CR_SUCCESS", None)),
        (False, ("CR_LATER", None)),
        (ValueError("bad"), ("CR_THROW_EXCEPTION", "ValueError: bad")),
    ],
)
async def test_the_words_for_results(returned, expected) -> None:
    async def handle(message) -> object:
        if isinstance(returned, Exception):
            raise returned
        return returned

    assert await handled(handle, message_at(0)) == expected


async def test_a_result_that_means_nothing_is_told() -> None:
    async def handle(message) -> str:
        return "ok"

    result, remark = await handled(handle, message_at(0))
    assert result == "CR_THROW_EXCEPTION"
    assert "returned 'ok'" in remark


async def test_other_groups_and_broken_requests_are_refused(autojump_clock, caplog) -> None:
    async with scene() as found:
        handlers = found.consumer._member.instance._handlers

        @attrs.frozen
        class Link:
            address: str = "broker:1"

        def answer(code, header, body=b"") -> Command:
            ext = {} if header is None else headers.encode(header)
            return handlers[code](Link(), Command(code, ext, body))

        other = headers.GetConsumerRunningInfoRequest(consumer_group="other", client_id="c")
        reply = answer(RequestCode.GET_CONSUMER_RUNNING_INFO, other)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert "group other does not exist in client" in reply.remark
        direct = headers.ConsumeMessageDirectlyResultRequest(consumer_group="other")
        assert (
            answer(RequestCode.CONSUME_MESSAGE_DIRECTLY, direct).code == ResponseCode.SYSTEM_ERROR
        )
        reset = headers.ResetOffsetRequest(group="other", topic=TOPIC, timestamp=0)
        assert (
            answer(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, reset, b'{"offsetTable":{}}') is None
        )
        status = headers.GetConsumerStatusRequest(topic=TOPIC, group="other")
        reply = answer(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, status)
        assert bodies.decode(ConsumerStatusBody, reply.body).message_queue_table == {}
        assert answer(RequestCode.GET_CONSUMER_RUNNING_INFO, None).code == ResponseCode.SYSTEM_ERROR
    assert "broker:1: request 307 cannot be read" in caplog.text


async def test_the_state_of_a_queue() -> None:
    queue = ProcessQueue(MessageQueue(TOPIC, "b1", 0), 10)
    state = queue_state(queue, started_ms=500, now_s=100.0, now_ms=9_000)
    assert (state["commitOffset"], state["cachedMsgCount"]) == (10, 0)
    assert (state["lastPullTimestamp"], state["lastConsumeTimestamp"]) == (500, 500)
    first, second = message_at(10, body=b"x" * (1 << 20)), message_at(12)
    queue.put([first, second])
    queue.next_offset = 13
    queue.pulled_at_s = 98.0
    first.taken_at_s = 99.5
    assert queue.settle(first)
    state = queue_state(queue, started_ms=500, now_s=100.0, now_ms=9_000)
    assert (state["commitOffset"], state["cachedMsgCount"]) == (12, 1)
    assert (state["cachedMsgMinOffset"], state["cachedMsgMaxOffset"]) == (12, 12)
    assert (state["lastPullTimestamp"], state["lastConsumeTimestamp"]) == (7_000, 8_500)
    assert state["droped"] is False
    assert stored().size == second.size_bytes
