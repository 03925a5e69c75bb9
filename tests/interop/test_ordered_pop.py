"""Behaviours section 13 and the ordered rows of section 14: ordered pops by hand (B089 to B098, B110 to B113).

Numbers beside bodies are how often a message was handed out before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from . import servers
from .conftest import STANDARD, Workshop
from .java_client import unique
from .ordered_pops import (
    ILLEGAL,
    NOTIFICATION,
    OrderedPops,
    Turn,
    connect,
    fifo,
    first_answer,
    has_msg,
    told,
)
from .polling import sleep, wait_for
from .pops import NOTHING_FOUND, POP, Pops, create_group, create_topic, send
from .raw import json_frame
from .servers import Kind, Server

#: The standard set-up of these rows.
POPPING = {**STANDARD, "popCkStayBufferTimeOut": "3000"}


@pytest.fixture(scope="module")
def brokers(
    kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[bool], Server]]:
    """One broker, with or without the merging of check points in memory."""
    made: dict[bool, Server] = {}
    processes: list[Server | servers.ApacheNameServer] = []

    def running(merge: bool) -> Server:
        if merge not in made:
            settings = {**POPPING, "enablePopBufferMerge": str(merge).lower()}
            server, nameservers = servers.alone(
                kind, tmp_path_factory.mktemp("pop"), settings=settings
            )
            processes.extend([server, *nameservers])
            server.start()
            made[merge] = server
        return made[merge]

    yield running
    for process in processes:
        process.discard()


@pytest.fixture
def broker(brokers: Callable[[bool], Server]) -> Server:
    """As it is by default."""
    return brokers(False)


@pytest.fixture(params=[False, True], ids=["plain", "merge"])
def either(request: pytest.FixtureRequest, brokers: Callable[[bool], Server]) -> Server:
    """Both ways: resets do not depend on it."""
    return brokers(request.param)


def normal(broker: Server) -> OrderedPops:
    """A consumer of a topic of eight queues, empty."""
    made = OrderedPops(connect(broker.address), unique("T"), unique("G"))
    create_topic(made.client, made.topic)
    create_group(made.client, made.group)
    return made


def test_b089_an_acknowledgement_wakes_the_waiting_pop(broker: Server) -> None:
    consumer = fifo(broker.address, 10)
    with connect(broker.address) as other:
        acks = OrderedPops(other, consumer.topic, consumer.group)
        start = time.monotonic()
        (turn,) = consumer.turns()
        found = [turn]
        while len(found) < 10:
            # The next pop waits already when the message is acknowledged.
            fields = consumer.fields(1, 3, pollTime="30000")
            consumer.client.send(json_frame(POP, fields, opaque=len(found)))
            sleep(0.1)
            acks.ack_ok(found[-1])
            reply = consumer.client.reply(len(found))
            (popped,) = consumer.taken(reply)
            found.append(Turn(popped, 0))
        assert time.monotonic() - start < 10
    assert [int(turn.body) for turn in found] == list(range(10))


def test_b090_what_is_not_acknowledged_comes_again_in_order(broker: Server) -> None:
    consumer = fifo(broker.address, 10)
    start = time.monotonic()
    found = consumer.turns(5) + consumer.turns(5)
    assert time.monotonic() - start < 5
    assert told(found) == [(str(n), times) for times in (0, 1) for n in range(5)]


def test_b091_a_message_can_stay_away_longer(broker: Server) -> None:
    consumer = fifo(broker.address, 1)
    start = time.monotonic()
    (first,) = consumer.turns()
    reply = consumer.change(first.popped, 5)
    assert reply.code == 0
    assert reply.ext["popTime"] == first.popped.receipt.split(" ")[1]
    seen = time.monotonic()
    (second,) = consumer.turns()
    assert 4.5 < time.monotonic() - seen < 6.5
    assert (first.times, second.times) == (0, 1)
    consumer.ack_ok(second)
    assert consumer.is_blocked()
    assert time.monotonic() - start < 15


def test_b092_behind_a_gap_everything_comes_again(broker: Server) -> None:
    consumer = fifo(broker.address, 4)
    start = time.monotonic()
    first = consumer.turns(3, 5)
    consumer.ack_ok(first[0])
    assert consumer.change(first[1].popped, 3).code == 0
    consumer.ack_ok(first[2])
    second = consumer.turns(3, 5)
    assert time.monotonic() - start < 5
    assert told(first + second) == [("0", 0), ("1", 0), ("2", 0), ("1", 1), ("2", 1), ("3", 0)]
    consumer.ack_ok(*second)
    assert consumer.is_blocked()


def test_b093_b094_an_attempt_passes_its_own_block_and_does_not_count(broker: Server) -> None:
    consumer = fifo(broker.address, 1)

    def turn(attempt: str | None) -> tuple[int, float]:
        asked = time.monotonic()
        (found,) = consumer.turns(3, 10, attempt=attempt)
        return found.times, time.monotonic() - asked

    times, waited = [], []
    for attempt in (None, "x", "x", "y", "y", None):
        count, waited_s = turn(attempt)
        times.append(count)
        waited.append(waited_s)
    assert times == [0, 1, 1, 2, 2, 3]
    blocked = [5 < waited_s < 15 for waited_s in waited]
    assert blocked == [False, True, False, True, False, True]
    assert all(waited_s < 2 for waited_s in waited[::2])


def notify(consumer: OrderedPops, attempt: str, poll_s: float = 0.5) -> int:
    """Ask without waiting for the answer; the number of the request."""
    number = 1_000_000 + time.monotonic_ns() % 1_000_000
    fields = consumer.notification(poll_s=poll_s, attempt=attempt)
    consumer.client.send(json_frame(NOTIFICATION, fields, opaque=number))
    return number


@pytest.mark.parametrize(("attempt", "expected"), [("x", True), ("y", False)])
def test_b095_b096_a_blocked_queue_has_something_for_its_own_attempt(
    broker: Server, attempt: str, expected: bool
) -> None:
    consumer = normal(broker)
    with connect(broker.address) as other:
        late = OrderedPops(other, consumer.topic, consumer.group)
        first, second = notify(consumer, "x"), notify(late, "x")
        sleep(0.1)
        send(connect(broker.address), consumer.topic, b"m")
        if expected:
            answers = [has_msg(consumer.client.reply(first)), has_msg(other.reply(second))]
            assert answers == [True, True]
        (turn,) = consumer.turns(1, 10, attempt="x")
        assert turn.body == b"m"
        asked = time.monotonic()
        number = notify(consumer, attempt)
        assert has_msg(consumer.client.reply(number)) is expected
        waited = time.monotonic() - asked
        assert waited < 0.3 if expected else 0.3 < waited < 1


def test_b097_eight_queues_in_order(broker: Server) -> None:
    consumer = normal(broker)
    bodies = [b"%d" % number for number in range(30)]
    for number, body in enumerate(bodies[:10]):
        send(consumer.client, consumer.topic, body, queue_id=number % 8)
    first = gather(consumer, 10)
    assert sorted(int(turn.body) for turn in first) == list(range(10))
    sleep(6)
    for number, body in enumerate(bodies[10:]):
        send(consumer.client, consumer.topic, body, queue_id=number % 8)
    again = gather(consumer, 30)
    assert sorted(int(turn.body) for turn in again) == list(range(30))
    assert sorted(turn.times for turn in again) == [0] * 20 + [1] * 10
    assert consumer.batch_ack([turn.popped for turn in again]).code == 0
    sleep(6)
    assert consumer.ask(30, 3).code == NOTHING_FOUND


def gather(consumer: OrderedPops, count: int) -> list[Turn]:
    """Messages of pops that do not wait, within 3 s."""
    found: list[Turn] = []
    until = time.monotonic() + 3
    while len(found) < count and time.monotonic() < until:
        found += consumer.turns(30, 3, wait_s=0)
    assert len(found) == count
    return found


def test_b098_old_receipts_change_nothing_and_foreign_offsets_are_refused(broker: Server) -> None:
    consumer = fifo(broker.address, 4)
    old = consumer.turns(2, 1)
    new = consumer.turns(2, 10)
    assert told(new) == [("0", 1), ("1", 1)]
    assert consumer.ack(old[0].popped).code == 0
    assert consumer.is_blocked()
    refused = consumer.ack(new[0].popped, offset="3")
    assert (refused.code, "offset" in (refused.remark or "")) == (ILLEGAL, True)
    assert consumer.is_blocked()
    consumer.ack_ok(*new)
    assert told(consumer.turns(2, 10)) == [("2", 0), ("3", 0)]


def test_b110_a_reset_forward_skips(either: Server) -> None:
    for resets in ([5], [3, 5]):
        consumer = fifo(either.address, 10)
        assert one_by_one(consumer, {1: resets}) == [0, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(("resets", "receipts"), [([3], 12), ([3, 1], 14)])
def test_b111_a_reset_back_repeats(either: Server, resets: list[int], receipts: int) -> None:
    consumer = fifo(either.address, 10)
    found = one_by_one(consumer, {5: resets})
    assert found == [*range(5), *range(resets[-1], 10)]
    assert (len(found), set(found)) == (receipts, set(range(10)))


def one_by_one(consumer: OrderedPops, resets: dict[int, list[int]]) -> list[int]:
    """All messages, each acknowledged; after so many receipts the group is set to these offsets."""
    found: list[int] = []
    while turns := consumer.turns(1, 30, wait_s=1):
        (turn,) = turns
        found.append(int(turn.body))
        consumer.ack_ok(turn)
        for offset in resets.get(len(found), ()):
            consumer.reset(offset)
        assert len(found) < 20
    return found


def test_b112_a_reset_frees_the_queue_and_voids_the_receipts(either: Server) -> None:
    consumer = fifo(either.address, 10)
    old = consumer.turns(16, 30)
    assert len(old) == 10
    consumer.reset(2)
    assert consumer.progress() == [2]
    new = consumer.turns(16, 30)
    assert [int(turn.body) for turn in new] == list(range(2, 10))
    consumer.ack_ok(*old)
    send(consumer.client, consumer.topic, b"10")
    assert consumer.is_blocked()
    consumer.ack_ok(*new)
    wait_for(lambda: not consumer.is_blocked(), "free", timeout_s=2)


def test_b113_a_reset_before_the_first_pop(broker: Server) -> None:
    consumer = fifo(broker.address, 10)
    consumer.reset(4)
    found = consumer.turns(16, 30)
    assert [int(turn.body) for turn in found] == list(range(4, 10))
    send(consumer.client, consumer.topic, b"10")
    assert consumer.is_blocked()
    consumer.ack_ok(*found)
    sleep(1)
    assert told(consumer.turns(16, 30, wait_s=0)) == [("10", 0)]


def test_b084_a_message_answers_one_notification(broker: Server) -> None:
    topic, group = unique("T"), unique("G")
    clients = [connect(broker.address) for _ in range(2)]
    create_topic(clients[0], topic, 1)
    consumers = [OrderedPops(client, topic, group) for client in clients]
    for consumer in consumers:
        fields = consumer.notification(order=False)
        consumer.client.send(json_frame(NOTIFICATION, fields, opaque=1))
    sleep(0.1)
    with connect(broker.address) as sender:
        send(sender, topic, b"m")
        first, reply = first_answer(*clients)
        assert has_msg(reply)
        other = next(client for client in clients if client is not first)
        assert [p.body for p in Pops(sender, topic, group).pop(1, 10)] == [b"m"]
    assert not has_msg(other.reply(1))


def test_b088_polling_info_tells_who_waits(broker: Server) -> None:
    topic, group = unique("T"), unique("G")
    with connect(broker.address) as asking:
        counting = OrderedPops(asking, topic, group)
        create_topic(asking, topic, 1)
        for number in range(3):
            pops = Pops(connect(broker.address), topic, group)
            fields = pops.fields(pollTime="20000", queueId=str(min(number, 1) - 1))
            pops.client.send(json_frame(POP, fields, opaque=1))
        wait_for(lambda: counting.polling(-1) == 1, "one for any queue", timeout_s=3)
        wait_for(lambda: counting.polling(0) == 2, "two for queue 0", timeout_s=3)
        send(asking, topic, b"m")
        wait_for(
            lambda: counting.polling(-1) + counting.polling(0) == 2, "one is gone", timeout_s=3
        )


# -- stores that move, and processes that are killed -------------------------------------------------------


@pytest.mark.parametrize("first", ["trio", "apache"])
def test_an_open_batch_moves_with_the_store(workshop: Workshop, first: Kind) -> None:
    """The queue is still blocked at the other kind of broker, for all but its own attempt."""
    second: Kind = "apache" if first == "trio" else "trio"
    server = workshop.alone("b1", kind=first, settings=POPPING)
    server.start()
    consumer = fifo(server.address, 4)
    taken = consumer.turns(3, 300, attempt="x")
    consumer.ack_ok(taken[0])
    consumer.client.close()
    server.stop()
    other = workshop.alone("b1", kind=second, settings=POPPING)
    other.home.mkdir(parents=True, exist_ok=True)
    server.store.rename(other.store)
    other.start()
    consumer.client = connect(other.address)
    assert consumer.is_blocked()
    again = consumer.turns(2, 1, attempt="x", wait_s=5)
    assert told(again) == [("1", 0), ("2", 0)]
    late = consumer.turns(2, 60, wait_s=10)
    assert told(late) == [("1", 1), ("2", 1)]
    consumer.ack_ok(*late)
    assert told(consumer.turns(2, 60, wait_s=5)) == [("3", 0)]


def test_a_kill_loses_no_ordered_message(workshop: Workshop) -> None:
    """Killed three times: every message is acknowledged in the end, and none overtakes another."""
    server = workshop.alone("b1", settings=POPPING)
    server.start()
    consumer = fifo(server.address, 300)
    seen: list[int] = []
    for part in range(4):
        while turns := consumer.turns(10, 2, wait_s=4):
            seen += [int(turn.body) for turn in turns]
            consumer.ack_ok(*turns)
            if len(set(seen)) >= 75 * (part + 1):
                break
        if part < 3:
            consumer.client.close()
            server.kill()
            server.start()
            consumer.client = connect(server.address)
    assert sorted(set(seen)) == list(range(300))
    firsts = list(dict.fromkeys(seen))
    assert firsts == sorted(firsts), "in order"
