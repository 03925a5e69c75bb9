"""Queues of topics on all brokers, asked from our own name server over a network in memory."""

from __future__ import annotations

import pytest
import trio

from trio_mq.broker.routes import CALL_LIMIT_S, FORGET_AFTER_S, MOST_WAITING, TopicRoutes, queues_of
from trio_mq.broker.topics import TopicTable
from trio_mq.config import Address, BrokerSettings
from trio_mq.net.requests import Reply, RequestTable
from trio_mq.protocol import bodies, command
from trio_mq.protocol.bodies import QueueData, TopicConfig, TopicRouteData
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.headers.route import GetRouteInfoRequest
from trio_mq.protocol.jsondialect import MessageQueue
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.links import MemoryNetwork, serve_stream

NS1, NS2 = Address("ns1", 9876), Address("ns2", 9876)
SETTINGS = BrokerSettings(broker_name="b-a")


class FakeNameServer:
    """Answers routes from a table of (broker name, queues, permission); keeps what it was asked."""

    def __init__(self) -> None:
        self.routes: dict[str, list[tuple[str, int, int]]] = {}
        self.asked: list[str] = []
        self.code = 0
        self.silent = False
        self.requests = RequestTable("name server")
        self.requests.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest, self.route)

    def route(self, _, request) -> Reply:
        self.asked.append(request.topic)
        if self.code:
            return Reply(self.code, remark="no")
        rows = self.routes.get(request.topic)
        if rows is None:
            return Reply(17, remark="unknown")
        data = tuple(QueueData(name, count, count, perm) for name, count, perm in rows)
        return Reply(body=bodies.encode(TopicRouteData(data)))

    def received(self, peer, frames) -> None:
        for frame in frames:
            if not self.silent:
                self.requests.handle(peer, command.decode(frame), 0)

    def opened(self, peer) -> None: ...

    def disconnected(self, peer) -> None: ...


class Bench:
    def __init__(self, nursery, *nameservers) -> None:
        self.nursery = nursery
        self.network = MemoryNetwork()
        self.topics = TopicTable(SETTINGS, TrioClock())
        self.routes = TopicRoutes(self.topics, SETTINGS, connect=self.network.connect)
        self.routes.nameservers = nameservers

    def serve(self, address=NS1) -> FakeNameServer:
        server = FakeNameServer()
        self.nursery.start_soon(
            self.network.listen(address).serve, lambda stream: serve_stream(stream, server)
        )
        return server

    def create(self, topic="T", queues=2) -> None:
        self.topics.update(TopicConfig(topic, queues, queues), None)

    async def ask(self, topic="T") -> list[tuple[str, int]] | None:
        heard, done = [], trio.Event()

        def hear(queues) -> None:
            heard.append(queues)
            done.set()

        self.routes.ask(topic, hear)
        with trio.fail_after(60):
            await done.wait()
        (queues,) = heard
        return None if queues is None else [(q.broker_name, q.queue_id) for q in queues]


@pytest.fixture
async def bench(autojump_clock):
    async with trio.open_nursery() as nursery:
        made = Bench(nursery, NS1)
        await nursery.start(made.routes.run)
        yield made
        nursery.cancel_scope.cancel()


def test_only_what_can_be_read_counts():
    route = TopicRouteData(
        (QueueData("a", 1, 8, 6), QueueData("b", 2, 2, 2), QueueData("c", 1, 1, 4))
    )
    assert queues_of("T", route) == (MessageQueue("T", "a", 0), MessageQueue("T", "c", 0))


async def test_own_queues_are_added_as_they_are_now(autojump_clock, bench):
    server = bench.serve()
    server.routes["T"] = [("b-a", 8, 6), ("b-b", 1, 6)]
    assert await bench.ask() == [("b-b", 0)], "this broker has no such topic any more"
    bench.create()
    assert await bench.ask() == [("b-b", 0), ("b-a", 0), ("b-a", 1)]
    assert server.asked == ["T"]


async def test_a_topic_that_only_this_broker_knows_yet(autojump_clock, bench):
    bench.serve()
    assert await bench.ask() is None
    bench.create()
    assert await bench.ask() == [("b-a", 0), ("b-a", 1)]


async def test_routes_are_asked_for_again(autojump_clock, bench):
    server = bench.serve()
    server.routes["T"] = [("b-b", 1, 6)]
    assert await bench.ask() == [("b-b", 0)]
    server.routes["T"] = [("b-b", 2, 6)]
    assert await bench.ask() == [("b-b", 0)]
    await trio.sleep(31)
    assert await bench.ask() == [("b-b", 0), ("b-b", 1)]
    del server.routes["T"]
    await trio.sleep(31)
    assert await bench.ask() is None


async def test_what_nobody_wants_is_forgotten(autojump_clock, bench):
    server = bench.serve()
    server.routes["T"] = [("b-b", 1, 6)]
    await bench.ask()
    await trio.sleep(FORGET_AFTER_S + 100)
    asked = len(server.asked)
    await trio.sleep(300)
    assert len(server.asked) == asked
    assert await bench.ask() == [("b-b", 0)]
    assert len(server.asked) == asked + 1


async def test_many_who_ask_at_once_cost_one_question(autojump_clock, bench):
    server = bench.serve()
    server.routes["T"] = [("b-b", 1, 6)]
    heard = []
    for _ in range(5):
        bench.routes.ask("T", heard.append)
    await trio.sleep(1)
    assert heard == [(MessageQueue("T", "b-b", 0),)] * 5
    assert server.asked == ["T"]


async def test_an_answer_outlives_its_name_server(autojump_clock, bench):
    server = bench.serve()
    server.routes["T"] = [("b-b", 1, 6)]
    await bench.ask()
    server.code = 1
    await trio.sleep(100)
    assert await bench.ask() == [("b-b", 0)]


async def test_the_next_name_server_is_asked_when_one_does_not_answer(autojump_clock, bench):
    bench.routes.nameservers = (NS1, NS2)
    first, second = bench.serve(NS1), bench.serve(NS2)
    first.silent = True
    second.routes["T"] = [("b-b", 1, 6)]
    start_s = trio.current_time()
    assert await bench.ask() == [("b-b", 0)]
    assert trio.current_time() - start_s == pytest.approx(CALL_LIMIT_S, abs=0.1)


async def test_nothing_is_known_when_no_name_server_answers(autojump_clock, bench):
    bench.create()
    assert await bench.ask() is None, (
        "others may have queues as well: consumers keep what they have"
    )


async def test_a_broker_alone_knows_its_own_queues(autojump_clock, bench):
    bench.routes.nameservers = ()
    assert await bench.ask() is None
    bench.create()
    assert await bench.ask() == [("b-a", 0), ("b-a", 1)]


async def test_no_more_questions_wait_than_that(autojump_clock):
    async with trio.open_nursery() as nursery:
        made = Bench(nursery, NS1)  # it does not run: nobody asks
        heard = []
        for number in range(MOST_WAITING + 1):
            made.routes.ask(f"T{number % 7}", heard.append)
        assert heard == [None]


async def test_an_answer_that_fails_costs_no_other(autojump_clock, bench, caplog):
    server = bench.serve()
    server.routes["T"] = [("b-b", 1, 6)]

    def fails(_queues) -> None:
        raise ValueError("a bad client")

    bench.routes.ask("T", fails)
    assert await bench.ask() == [("b-b", 0)]
    assert "a bad client" in caplog.text
