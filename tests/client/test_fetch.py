"""Pulling one queue, against a scripted broker: what is asked, and what follows each answer."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager

import anyio
import attrs
import trio
from trio.testing import wait_all_tasks_blocked

from tests.client.admin.scripted import B1, B2, NS, cluster, no, ok
from tests.client.received import stored
from trio_mq.client.decoding import Source
from trio_mq.client.fetch import Fetcher, PullSettings
from trio_mq.client.instance import open_instance
from trio_mq.client.options import ClientOptions
from trio_mq.client.processqueue import CAUSES_MOST, FlowLimits, ProcessQueue
from trio_mq.client.subscription import Subscriptions, parse
from trio_mq.protocol import headers, record
from trio_mq.protocol.bodies import BrokerData, ConsumerData, MessageQueue
from trio_mq.protocol.codes import PullFlag, RequestCode, ResponseCode
from trio_mq.protocol.command import Command

QUEUE = MessageQueue("T", "b1", 0)


def told(code, next_offset, *, suggest=0, body=b"", **more):
    header = headers.PullMessageReply(suggest, next_offset, 0, 1000, **more)
    return Command(code, headers.encode(header), body, remark="said the broker")


def found(*offsets):
    body = b"".join(record.encode(stored(offset)) for offset in offsets)
    return told(0, offsets[-1] + 1, body=body)


class Script:
    """Answers of a broker, one after another; then it holds what is asked, as a broker without news."""

    def __init__(self, *answers):
        self.answers = list(answers)

    def __call__(self, asked):
        answer = self.answers.pop(0) if self.answers else None
        return answer() if callable(answer) else answer


@attrs.define(eq=False)
class Pulling:
    made: object
    queue: ProcessQueue
    delivered: list
    moved: list
    subscriptions: Subscriptions

    def asked(self, address=B1):
        return [
            headers.decode(headers.PullMessageRequest, one.ext)
            for one in self.made.brokers[address].requests(RequestCode.PULL_MESSAGE)
        ]


@asynccontextmanager
async def pulling(
    *answers,
    queue=None,
    commit=lambda queue: None,
    settings=None,
    routes=None,
    slave=None,
    for_s=1.0,
):
    """Pull a queue for a while; then the block looks at what happened."""  # fmt: skip
    async with cluster(B1, B2) as made:
        made.topic("T")
        made.brokers[B1].answers[RequestCode.PULL_MESSAGE] = Script(*answers)
        made.brokers[B2].answers[RequestCode.PULL_MESSAGE] = slave or Script()
        for peer in made.brokers.values():
            peer.answers[RequestCode.HEART_BEAT] = ok()
            peer.answers[RequestCode.UNREGISTER_CLIENT] = ok()
        if routes is not None:
            made.routes["T"] = attrs.evolve(made.routes["T"], broker_datas=routes)
        async with open_instance(ClientOptions.of(NS)) as instance:
            await instance.route("T")
            instance.consumers["G"] = lambda: ConsumerData("G")
            it = Pulling(made, queue or ProcessQueue(QUEUE, 7), [], [], Subscriptions())
            it.subscriptions.put(parse("T", "a || b"), 77)
            fetcher = Fetcher(
                instance, "G", settings or PullSettings(), wanted=it.subscriptions.get, commit=commit,
                source=lambda queue: Source(queue.queue), delivered=it.delivered.append,
            )  # fmt: skip

            async def run():
                it.moved.append(await fetcher.run(it.queue))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                await trio.sleep(for_s)
                yield it
                nursery.cancel_scope.cancel()


async def test_a_pull_asks_as_java_does(autojump_clock):
    async with pulling() as it:
        (asked,) = it.asked()
        assert asked == headers.PullMessageRequest(
            consumer_group="G", topic="T", queue_id=0, queue_offset=7, max_msg_nums=32,
            sys_flag=PullFlag.SUSPEND, commit_offset=0, suspend_timeout_millis=15_000, sub_version=77,
            subscription=None, expression_type="TAG", max_msg_bytes=2**31 - 1,
        )  # fmt: skip


async def test_found_messages_are_held_and_the_next_pull_goes_on_behind_them(autojump_clock):
    async with pulling(found(7, 8), told(0, 40), found(40)) as it:
        assert [asked.queue_offset for asked in it.asked()] == [7, 9, 40, 41]
        assert it.queue.count == 3
        assert it.delivered == [it.queue, it.queue]
        assert it.queue.max_offset == 1000


async def test_a_position_travels_with_a_pull_to_the_master(autojump_clock):
    queue = ProcessQueue(QUEUE, 7)
    async with pulling(found(7), queue=queue, commit=lambda queue: queue.position) as it:
        first, second = it.asked()
        assert first.sys_flag == second.sys_flag == PullFlag.SUSPEND | PullFlag.COMMIT_OFFSET
        assert (first.commit_offset, second.commit_offset) == (7, 7)


async def test_a_position_of_0_does_not_travel(autojump_clock):
    queue = ProcessQueue(QUEUE, 0)
    async with pulling(queue=queue, commit=lambda queue: queue.position) as it:
        assert it.asked()[0].sys_flag == PullFlag.SUSPEND


async def test_an_answer_without_messages_moves_on(autojump_clock):
    answers = told(ResponseCode.PULL_RETRY_IMMEDIATELY, 100), told(ResponseCode.PULL_NOT_FOUND, 100)
    async with pulling(*answers) as it:
        assert [asked.queue_offset for asked in it.asked()] == [7, 100, 100]
        assert it.queue.position == 100
        assert it.delivered == []


async def test_a_broker_that_does_not_hold_requests_is_not_hammered(autojump_clock):
    answers = [told(ResponseCode.PULL_NOT_FOUND, 7)] * 1000
    async with pulling(*answers, for_s=1.0) as it:
        assert 15 <= len(it.asked()) <= 21


async def test_an_offset_that_is_not_there_ends_the_run_with_the_right_one(autojump_clock, caplog):
    with caplog.at_level(logging.WARNING):
        async with pulling(told(ResponseCode.PULL_OFFSET_MOVED, 500)) as it:
            assert it.moved == [500]
    assert "offset 7" in caplog.text
    assert "goes on at 500" in caplog.text


async def test_flow_control_of_the_broker_costs_20_ms(autojump_clock):
    began = anyio.current_time()
    async with pulling(*[no(ResponseCode.FLOW_CONTROL)] * 5, found(7), for_s=0.12) as it:
        assert it.queue.count == 1
        assert anyio.current_time() - began < 0.5


async def test_a_refusal_is_told_once_and_tried_again_each_second(autojump_clock, caplog):
    refusals = [no(ResponseCode.NO_PERMISSION, "not you")] * 3
    with caplog.at_level(logging.INFO):
        async with pulling(*refusals, found(7), for_s=3.5) as it:
            assert it.queue.count == 1
    assert caplog.text.count("not you") == 1
    assert "PULL_MESSAGE (11) for T" in caplog.text
    assert "is pulled again" in caplog.text


async def test_refusals_in_turn_are_told_once_each_and_of_many_only_the_last_are_kept(
    autojump_clock, caplog
):
    causes = [f"cause {number}." for number in range(30)]
    refusals = [no(ResponseCode.SYSTEM_ERROR, text) for text in ("in turn a", "in turn b") * 2]
    refusals += [no(ResponseCode.SYSTEM_ERROR, text) for text in causes]
    queue = ProcessQueue(QUEUE, 7)
    with caplog.at_level(logging.INFO):
        async with pulling(*refusals, queue=queue, for_s=40):
            assert [text.rpartition("cause ")[2] for text in queue.failures][-1].startswith("29.")
            assert len(queue.failures) == CAUSES_MOST
    for text in ("in turn a", "in turn b", *causes):
        assert caplog.text.count(text) == 1, text


async def test_a_broker_that_does_not_know_the_group_is_told_of_it(autojump_clock):
    async with pulling(no(ResponseCode.SUBSCRIPTION_NOT_EXIST), found(7), for_s=2) as it:
        broker = it.made.brokers[B1]
        pulls = [i for i, one in enumerate(broker.asked) if one.code == RequestCode.PULL_MESSAGE]
        between = [one.code for one in broker.asked[pulls[0] : pulls[1]]]
        assert RequestCode.HEART_BEAT in between
        assert it.queue.count == 1


async def test_an_answer_that_breaks_the_format_is_a_failure_like_any_other(autojump_clock, caplog):
    with caplog.at_level(logging.WARNING):
        async with pulling(Command(0, {"nextBeginOffset": "x"}), found(7), for_s=2) as it:
            assert it.queue.count == 1
    assert "PullMessageReply" in caplog.text


async def test_the_next_pull_goes_to_the_broker_that_the_answer_names(autojump_clock):
    routes = (BrokerData("c1", "b1", {0: B1, 1: B2}),)
    queue = ProcessQueue(QUEUE, 7)
    slave = told(ResponseCode.PULL_RETRY_IMMEDIATELY, 8, suggest=1)
    async with pulling(
        slave, queue=queue, commit=lambda queue: queue.position, routes=routes
    ) as it:
        assert len(it.asked(B1)) == 1
        (asked,) = it.asked(B2)
        assert asked.sys_flag == PullFlag.SUSPEND, "a slave keeps no positions"


async def test_nothing_is_pulled_without_room(autojump_clock):
    queue = ProcessQueue(QUEUE, 7, FlowLimits(messages=1))
    async with pulling(found(7, 8), found(9), queue=queue) as it:
        assert len(it.asked()) == 1
        queue.settle(queue.take())
        await wait_all_tasks_blocked()
        assert len(it.asked()) == 2


async def test_a_paused_queue_is_not_pulled(autojump_clock):
    queue = ProcessQueue(QUEUE, 7)
    queue.pause()
    async with pulling(found(7), queue=queue, for_s=40) as it:
        assert it.asked() == []
        queue.resume()
        await trio.sleep(0.1)
        assert queue.count == 1


async def test_a_pull_task_ends_with_its_queue(autojump_clock):
    queue = ProcessQueue(QUEUE, 7)
    async with pulling(queue=queue) as it:
        queue.pause()
        await trio.sleep(35)  # the held request runs out of time; then it waits for room
        queue.drop()
        await wait_all_tasks_blocked()
        assert it.moved == [None]


async def test_what_comes_for_a_dropped_queue_is_forgotten(autojump_clock):
    queue = ProcessQueue(QUEUE, 7)

    def lost_meanwhile():
        queue.drop()
        return found(7, 8)

    async with pulling(lost_meanwhile, queue=queue) as it:
        assert it.moved == [None]
        assert (it.delivered, queue.count, queue.position) == ([], 0, 7)


async def test_a_broker_that_moved_is_found_over_a_fresh_route(autojump_clock):
    queue = ProcessQueue(QUEUE, 7)
    async with pulling(queue=queue, for_s=0.1) as it:
        it.made.brokers[B2].answers[RequestCode.PULL_MESSAGE] = Script(found(7))
        it.made.routes["T"] = attrs.evolve(
            it.made.routes["T"], broker_datas=(BrokerData("c1", "b1", {0: B2}),)
        )
        await trio.sleep(35)  # no answer for 30 s, a pause of one
        assert queue.count == 1


async def test_an_assigned_queue_sends_its_expression_along(autojump_clock):
    settings = PullSettings(code=RequestCode.PULL_MESSAGE, with_expression=True)
    async with pulling(settings=settings) as it:
        (asked,) = it.asked()
        assert asked.subscription == "a || b"
        assert asked.sys_flag == PullFlag.SUSPEND | PullFlag.SUBSCRIPTION


# -- brokers of one name

WITH_SLAVE = (BrokerData("c1", "b1", {0: B1, 1: B2}),)
ONLY_SLAVE = (BrokerData("c1", "b1", {1: B2}),)


async def test_a_broker_id_that_no_route_names_is_replaced_by_the_next_or_any(autojump_clock):
    for suggested, expected in ((0, B1), (1, B2), (5, B1)):
        async with pulling(told(20, 8, suggest=suggested), routes=WITH_SLAVE) as it:
            assert it.asked(expected)[-1].queue_offset == 8
    three = (BrokerData("c1", "b1", {0: B1, 3: B2}),)
    async with pulling(told(20, 8, suggest=2), routes=three) as it:
        (asked,) = it.asked(B2)
        assert asked.queue_offset == 8


async def test_a_slave_that_refuses_is_left_for_the_master(autojump_clock):
    answers = [told(20, 8, suggest=1), found(8)]
    async with pulling(*answers, routes=WITH_SLAVE, slave=Script(no(2, "not read")), for_s=2) as it:
        assert len(it.asked(B2)) == 1
        assert [asked.queue_offset for asked in it.asked()] == [7, 8, 9]


async def test_a_master_that_does_not_answer_is_left_for_a_slave_and_comes_back(autojump_clock):
    queue = ProcessQueue(QUEUE, 7)
    slave = Script(found(7), told(20, 8, suggest=0))
    settings = PullSettings(timeout_s=1.0)
    async with pulling(
        lambda: None, found(8), queue=queue, routes=WITH_SLAVE, slave=slave, settings=settings,
        commit=lambda queue: queue.position, for_s=3.5,
    ) as it:  # fmt: skip
        at_slave = it.asked(B2)
        assert at_slave[0].queue_offset == 7
        assert not at_slave[0].sys_flag & PullFlag.COMMIT_OFFSET
        assert it.asked()[-1].queue_offset == 9
        assert it.queue.count == 2


async def test_causes_of_two_brokers_that_fail_in_turn_are_told_once(autojump_clock, caplog):
    settings = PullSettings(timeout_s=1.0)
    slave = Script(*[no(2, "not I")] * 100)
    with caplog.at_level(logging.WARNING):
        async with pulling(routes=WITH_SLAVE, slave=slave, settings=settings, for_s=20) as it:
            assert len(it.asked(B2)) > 5
            assert len(it.asked(B1)) > 5
    assert caplog.text.count("not I") == caplog.text.count("within 1 s") == 1


async def test_a_master_that_is_back_is_looked_for(autojump_clock):
    """A slave sends its readers to id 0, which the client's route does not have yet."""
    slave = Script(told(20, 7, suggest=0))
    async with pulling(found(7), routes=ONLY_SLAVE, slave=slave, for_s=0) as it:
        await trio.sleep(0.01)
        it.made.routes["T"] = attrs.evolve(it.made.routes["T"], broker_datas=WITH_SLAVE)
        it.made.brokers[B2].answers[RequestCode.PULL_MESSAGE] = told(20, 7, suggest=0)
        await trio.sleep(2)
        assert it.queue.count == 1
        assert [asked.queue_offset for asked in it.asked()] == [7, 8]
