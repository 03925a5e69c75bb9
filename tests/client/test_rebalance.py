"""Sharing out: members, routes, notices, and what fails without hurting the rest."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager

import attrs
import trio

from tests.client.admin.scripted import B1, B2, NS, cluster, no, ok
from trio_mq.client.instance import open_instance
from trio_mq.client.options import ClientOptions
from trio_mq.client.rebalance import Rebalancer
from trio_mq.client.strategies import average
from trio_mq.client.subscription import Subscriptions, parse
from trio_mq.protocol.bodies import ConsumerData, ConsumerIdList, MessageQueue
from trio_mq.protocol.codes import FLAG_ONEWAY, RequestCode
from trio_mq.protocol.command import Command

MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP


class Holder:
    """Queues that come and go, and the story of that."""

    def __init__(self):
        self.held, self.story = set(), []

    @property
    def queues(self):
        return frozenset(self.held)

    def take(self, queues):
        queues = list(queues)
        self.held.update(queues)
        self.story += [("+", queue.topic, queue.queue_id) for queue in queues]

    def give_up(self, queues):
        queues = list(queues)
        self.held.difference_update(queues)
        self.story += [("-", queue.topic, queue.queue_id) for queue in queues]

    def ids(self, topic="T"):
        return sorted(queue.queue_id for queue in self.held if queue.topic == topic)


@attrs.define(eq=False)
class Sharing:
    made: object
    instance: object
    holder: Holder
    rebalancer: Rebalancer
    subscriptions: Subscriptions
    #: Other members than this one, by what any broker says.
    others: list[str] = attrs.field(factory=list)
    knows_us: bool = True

    def members(self, _):
        own = [self.instance.client_id] if self.knows_us else []
        return ok(ConsumerIdList((*self.others, *own)))


@asynccontextmanager
async def sharing(*topics, queues=4, strategy=average, broadcasting=False, down=(), brokers=(B1,)):
    async with (
        cluster(*brokers, down=down) as made,
        open_instance(ClientOptions.of(NS)) as instance,
    ):
        for topic in topics:
            made.topic(topic, queues)
        holder, subscriptions = Holder(), Subscriptions()
        for topic in topics:
            subscriptions.put(parse(topic, "*"), 1)
        rebalancer = Rebalancer(
            instance, "G", subscriptions, holder, strategy, broadcasting=broadcasting
        )
        it = Sharing(made, instance, holder, rebalancer, subscriptions)
        for peer in made.brokers.values():
            peer.answers |= {MEMBERS: it.members, RequestCode.HEART_BEAT: ok(),
                             RequestCode.UNREGISTER_CLIENT: ok()}  # fmt: skip
        instance.consumers["G"] = lambda: ConsumerData("G")
        yield it


async def test_alone_all_queues_are_ours(autojump_clock):
    async with sharing("T") as it:
        assert await it.rebalancer.round()
        assert it.holder.ids() == [0, 1, 2, 3]


async def test_with_another_member_half_are_ours_and_the_rest_goes_first(autojump_clock):
    async with sharing("T") as it:
        await it.rebalancer.round()
        it.others = ["0.0.0.0@first"]
        await it.rebalancer.round()
        assert it.holder.ids() == [2, 3]
        it.others = ["255.0.0.0@last"]
        it.holder.story.clear()
        await it.rebalancer.round()
        assert it.holder.ids() == [0, 1]
        assert [change for change, *_ in it.holder.story] == ["-", "-", "+", "+"]


async def test_broadcasting_takes_all_and_asks_nobody(autojump_clock):
    async with sharing("T", broadcasting=True) as it:
        it.others = ["0.0.0.0@first"]
        await it.rebalancer.round()
        assert it.holder.ids() == [0, 1, 2, 3]
        assert it.made.brokers[B1].requests(MEMBERS) == []


async def test_an_own_strategy_decides(autojump_clock):
    def mine(group, client_id, queues, members):
        assert group == "G"
        assert client_id in members
        return queues[1:2]

    async with sharing("T", strategy=mine) as it:
        await it.rebalancer.round()
        assert it.holder.ids() == [1]


async def test_a_strategy_that_fails_leaves_queues_as_they_are(autojump_clock, caplog):
    def mine(group, client_id, queues, members):
        if len(members) > 1:
            raise ZeroDivisionError("in the strategy")
        return queues

    async with sharing("T", strategy=mine) as it:
        assert await it.rebalancer.round()
        it.others = ["other"]
        with caplog.at_level(logging.ERROR):
            assert not await it.rebalancer.round()
        assert it.holder.ids() == [0, 1, 2, 3]
        assert "the strategy failed for topic T" in caplog.text


async def test_c100_a_topic_without_a_route_hurts_no_other_and_comes_soon(autojump_clock, caplog):
    async with sharing("T", "U") as it:
        route = it.made.routes.pop("U")
        with caplog.at_level(logging.WARNING):
            assert not await it.rebalancer.round()
            assert not await it.rebalancer.round()
        assert it.holder.ids("T") == [0, 1, 2, 3]
        assert caplog.text.count("topic U") >= 1
        assert sum("stay as they are" in line for line in caplog.messages) == 1
        it.instance.tasks.start_soon(it.rebalancer.run)
        it.made.routes["U"] = route
        await trio.sleep(0.5)
        assert it.holder.ids("U") == [0, 1, 2, 3]


async def test_c100_members_are_told_by_another_broker_when_one_is_down(autojump_clock):
    async with sharing("T", brokers=(B1, B2), down=(B1,)) as it:
        assert await it.rebalancer.round()
        assert len(it.holder.held) == 8
        # It is asked last from now on: no round waits for it again.
        it.holder.held.clear()
        began = trio.current_time()
        assert await it.rebalancer.round()
        assert trio.current_time() - began < 0.1


async def test_when_no_broker_tells_members_queues_stay(autojump_clock):
    async with sharing("T") as it:
        await it.rebalancer.round()
        it.made.brokers[B1].answers[MEMBERS] = no(206, "not now")
        assert not await it.rebalancer.round()
        assert it.holder.ids() == [0, 1, 2, 3]


async def test_a_broker_that_does_not_know_us_hears_of_us_and_is_asked_again(autojump_clock):
    async with sharing("T") as it:
        it.knows_us = False

        def beat(_):
            it.knows_us = True
            return ok()

        it.made.brokers[B1].answers[RequestCode.HEART_BEAT] = beat
        assert await it.rebalancer.round()
        assert it.holder.ids() == [0, 1, 2, 3]


async def test_a_broker_that_knows_no_member_answers_with_an_error_and_that_is_meant(
    autojump_clock,
):
    async with sharing("T") as it:
        answers = [no(1, "no consumer for this group"), it.members]
        it.made.brokers[B1].answers[MEMBERS] = lambda asked: (
            answers.pop(0) if not callable(answers[0]) else answers[0](asked)
        )
        assert await it.rebalancer.round()
        assert it.holder.ids() == [0, 1, 2, 3]


async def notify(it, group):
    command = Command(
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group}, flag=FLAG_ONEWAY
    )
    assert it.instance._requested(None, command) is None


async def test_a_notice_of_a_broker_is_followed_at_once(autojump_clock):
    async with sharing("T") as it:
        it.rebalancer.listen()
        it.instance.tasks.start_soon(it.rebalancer.run, await it.rebalancer.round())
        await trio.sleep(1)
        it.others = ["0.0.0.0@first"]
        await notify(it, "H")
        await trio.sleep(0.5)
        assert it.holder.ids() == [0, 1, 2, 3], "that was of another group"
        await notify(it, "G")
        await trio.sleep(0.05)
        assert it.holder.ids() == [2, 3]


async def test_many_notices_make_few_rounds(autojump_clock):
    async with sharing("T") as it:
        it.rebalancer.listen()
        it.instance.tasks.start_soon(it.rebalancer.run, await it.rebalancer.round())
        for _ in range(50):
            await notify(it, "G")
            await trio.sleep(0.01)
        assert len(it.made.brokers[B1].requests(MEMBERS)) <= 5


async def test_without_notices_members_are_looked_at_every_20_s(autojump_clock):
    async with sharing("T") as it:
        it.instance.tasks.start_soon(it.rebalancer.run, await it.rebalancer.round())
        it.others = ["0.0.0.0@first"]
        await trio.sleep(19)
        assert it.holder.ids() == [0, 1, 2, 3]
        await trio.sleep(2)
        assert it.holder.ids() == [2, 3]


async def test_a_route_that_changes_is_followed(autojump_clock):
    async with sharing("T") as it:
        it.rebalancer.listen()
        it.instance.tasks.start_soon(it.rebalancer.run, await it.rebalancer.round())
        it.made.topic("T", 6)
        await it.instance.refresh_route("T")
        await trio.sleep(0.5)
        assert it.holder.ids() == [0, 1, 2, 3, 4, 5]


async def test_queues_of_a_topic_that_is_not_wanted_any_more_go(autojump_clock):
    async with sharing("T", "U") as it:
        await it.rebalancer.round()
        it.subscriptions.drop("U")
        await it.rebalancer.round()
        assert it.holder.ids("U") == []
        assert it.holder.ids("T") == [0, 1, 2, 3]


async def test_a_topic_that_is_dropped_while_members_are_asked_is_not_taken(autojump_clock):
    async with sharing("T") as it:

        def members(asked):
            it.subscriptions.drop("T")
            return it.members(asked)

        it.made.brokers[B1].answers[MEMBERS] = members
        await it.rebalancer.round()
        assert it.holder.queues == frozenset()


async def test_a_missing_retry_topic_is_no_warning(autojump_clock, caplog):
    async with sharing("T") as it:
        it.subscriptions.put(parse("%RETRY%G", "*"), 1)
        with caplog.at_level(logging.INFO):
            assert not await it.rebalancer.round()
        assert "%RETRY%G" not in caplog.text
        it.made.topic("%RETRY%G")
        assert await it.rebalancer.round()
        assert MessageQueue("%RETRY%G", "b1", 0) in it.holder.queues
