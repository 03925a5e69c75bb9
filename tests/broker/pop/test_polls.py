"""Waiting pops and notifications: who is woken by what, limits, deadlines."""

from __future__ import annotations

import itertools

import pytest
import trio

from tests.broker.support import BROKER, FakePeer
from trio_mq.broker.pop import polls as polling
from trio_mq.broker.pop.polls import Held, PopPolls, deadline_s
from trio_mq.broker.topics import TopicTable
from trio_mq.protocol.bodies import TopicConfig
from trio_mq.store.dispatch import Arrival
from trio_mq.store.queuetable import QueueTable
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

RETRY = "%RETRY%G_T"


class Bench:
    """Polls of one kind, without a broker."""

    def __init__(self, **settings) -> None:
        self.topics = TopicTable(BROKER, ManualClock())
        self.queues = QueueTable(
            MemoryDisk(),
            "/store",
            queue_file_bytes=1_200,
            batch_file_bytes=4_600,
            is_batch_topic=lambda _: False,
        )
        limits = {"most_per_key": 1024, "most": 100_000, "force_interval": 800, **settings}
        self.polls = PopPolls(self.queues, self.topics, **limits)
        self.topics.changed = self.polls.topic_changed
        self.create("T", 4)
        self.peer = FakePeer()
        self.answers: list[str] = []

    def create(self, topic: str, queue_nums: int) -> None:
        self.topics.update(TopicConfig(topic, queue_nums, queue_nums), None)

    def hold(
        self, name, queue_id=-1, *, topic="T", group="G", wait_s=10.0, matches=None, peer=None
    ) -> Held:
        def answer() -> None:
            self.answers.append(name)

        until_s = trio.current_time() + wait_s
        peer = peer or self.peer
        return self.polls.hold(peer, topic, group, queue_id, until_s, matches, answer)

    def arrive(self, queue_id=0, *, topic="T", tags_code=0, properties=b"", offset=1) -> None:
        queue = self.queues.obtain(topic, queue_id)
        if queue.watched:
            self.polls.arrived([Arrival(queue, tags_code, properties, offset)])

    def take(self) -> list[str]:
        """Names of those that were answered since the last call."""
        while self.polls._due:
            self.polls.answer_due()
        taken, self.answers = self.answers, []
        return taken


@pytest.fixture
async def bench(autojump_clock):
    return Bench()


async def test_one_arrival_wakes_one_of_each_key_and_group(autojump_clock, bench):
    for name, queue_id in (("any 1", -1), ("any 2", -1), ("q0", 0), ("q1", 1)):
        assert bench.hold(name, queue_id) is Held.HELD
    bench.hold("other group", group="H")
    bench.arrive(0)
    assert bench.take() == ["any 1", "q0", "other group"]
    bench.arrive(0)
    assert bench.take() == ["any 2"]
    bench.arrive(1)
    assert bench.take() == ["q1"]
    assert len(bench.polls) == 0


async def test_nobody_is_answered_from_within_an_arrival(autojump_clock, bench):
    """The dispatcher tells arrivals in the middle of a commit, and an answer may write."""
    bench.hold("a")
    bench.arrive()
    assert bench.answers == []
    assert bench.take() == ["a"]


async def test_queues_are_watched_only_while_somebody_waits(autojump_clock, bench):
    bench.hold("any")
    bench.hold("q1", 1)
    assert [bench.queues.obtain("T", number).watched for number in range(5)] == [1, 2, 1, 1, 0]
    bench.arrive(1)
    assert [bench.queues.obtain("T", number).watched for number in range(5)] == [0, 0, 0, 0, 0]


async def test_the_newest_is_woken_first_where_that_is_wanted(autojump_clock):
    bench = Bench(newest_first=True)
    bench.hold("a")
    bench.hold("b")
    bench.arrive()
    assert bench.take() == ["b"]


async def test_only_what_matches_wakes(autojump_clock, bench):
    def wants(code):
        return lambda tags_code, properties: tags_code == code and b"p" in properties

    bench.hold("five", matches=wants(5))
    bench.hold("six", matches=wants(6))
    bench.arrive(tags_code=7, properties=b"p")
    bench.arrive(tags_code=6, properties=b"-")
    assert bench.take() == []
    bench.arrive(tags_code=6, properties=b"p")
    assert bench.take() == ["six"]
    bench.arrive(tags_code=7, offset=1600)
    assert bench.take() == ["five"], "every 800th message wakes, so that the group moves on"


async def test_an_arrival_is_compared_with_a_few_only(autojump_clock, bench):
    compared = []
    for number in range(3 * polling.FILTERS_TRIED):
        bench.hold(str(number), matches=lambda *_: compared.append(1) or False)
    bench.arrive()
    assert len(compared) == polling.FILTERS_TRIED
    assert bench.take() == []


async def test_the_retry_topic_wakes_whatever_the_filter(autojump_clock, bench):
    bench.create(RETRY, 1)
    bench.hold("any", matches=lambda *_: False)
    bench.hold("q3", 3, matches=lambda *_: False)
    bench.hold("other", group="H")
    bench.arrive(topic=RETRY)
    assert bench.take() == ["any", "q3"]


async def test_a_retry_topic_that_comes_later_is_seen(autojump_clock, bench):
    bench.hold("any")
    bench.create(RETRY, 1)
    assert bench.take() == ["any"], "it looks again, and waits again with the new topic"
    bench.hold("any")
    bench.arrive(topic=RETRY)
    assert bench.take() == ["any"]


async def test_a_topic_that_goes_answers_all(autojump_clock, bench):
    bench.hold("a")
    bench.hold("b", 2, group="H")
    bench.hold("elsewhere", topic="U")
    bench.topics.delete("T")
    assert bench.take() == ["a", "b"]
    assert len(bench.polls) == 1
    bench.polls.group_changed("G")
    assert bench.take() == ["elsewhere"]


async def test_more_than_1024_of_a_key_and_100000_in_all_do_not_wait(autojump_clock):
    bench = Bench(most_per_key=2, most=5)
    assert [bench.hold("x") for _ in range(4)] == [Held.HELD] * 3 + [Held.FULL]
    assert [bench.hold("y", 1) for _ in range(3)] == [Held.HELD] * 2 + [Held.FULL]
    assert bench.polls.waiting("T", "G", -1) == 3
    assert bench.polls.waiting("T", "G", 1) == 2
    assert bench.polls.waiting("T", "H", 1) == 0
    bench.arrive(1)
    assert bench.hold("y", 1) is Held.HELD


async def test_a_queue_that_is_free_wakes_its_group(autojump_clock, bench):
    assert not bench.polls.wake("T", "G", 2)
    for name, queue_id in (("any", -1), ("q1", 1), ("q2", 2)):
        bench.hold(name, queue_id)
    bench.hold("other", group="H")
    assert bench.polls.wake("T", "G", 2)
    assert bench.take() == ["any", "q2"]
    assert bench.polls.wake("T", "H", -1)
    assert bench.take() == ["other"]


async def test_a_closed_connection_waits_for_nothing(autojump_clock, bench):
    gone = FakePeer()
    bench.hold("gone", peer=gone)
    bench.hold("stays")
    bench.polls.drop(gone)
    bench.polls.drop(gone)
    bench.arrive()
    assert bench.take() == ["stays"]


async def test_a_connection_that_closes_before_its_answer_gets_none(autojump_clock, bench):
    bench.hold("gone")
    bench.arrive()
    bench.peer.closed = True
    assert bench.take() == []


async def test_b088_deadlines_are_kept_to_the_millisecond(autojump_clock, bench):
    """B088: answered at born time + poll time - 50 ms."""
    at_s: list[float] = []
    start_s = trio.current_time()

    def answer() -> None:
        at_s.append(round(trio.current_time() - start_s, 3))

    async with trio.open_nursery() as nursery:
        await nursery.start(bench.polls.run)
        for born_ms, poll_ms in ((1_000, 60_000), (1_000, 500), (-9_000, 15_000), (7_000, 500)):
            until_s = deadline_s(born_ms, poll_ms, 1_000)
            held = bench.polls.hold(bench.peer, "T", "G", -1, until_s, None, answer)
            assert held is Held.HELD
        await trio.sleep(70)
        nursery.cancel_scope.cancel()
    assert at_s == [0.45, 0.45, 4.95, 59.95]


async def test_a_time_that_is_over_does_not_wait(autojump_clock, bench):
    assert bench.hold("x", wait_s=0) is Held.TIMEOUT
    until_s = deadline_s(1_000, 500, 1_450)
    assert bench.polls.hold(bench.peer, "T", "G", -1, until_s, None, list) is Held.TIMEOUT
    assert len(bench.polls) == 0


async def test_whoever_finds_nothing_waits_again_until_its_deadline(autojump_clock, bench):
    looks: list[float] = []
    start_s = trio.current_time()

    def look() -> None:
        looks.append(round(trio.current_time() - start_s, 2))
        bench.polls.hold(bench.peer, "T", "G", -1, start_s + 5, None, look)

    async with trio.open_nursery() as nursery:
        await nursery.start(bench.polls.run)
        look()
        await trio.sleep(2)
        bench.arrive()
        await trio.sleep(60)
        nursery.cancel_scope.cancel()
    assert looks == [0.0, 2.0, 5.0]
    assert len(bench.polls) == 0


async def test_an_answer_that_fails_ends_nothing(autojump_clock, bench, caplog):
    def fail() -> None:
        raise ValueError("spoilt")

    async with trio.open_nursery() as nursery:
        await nursery.start(bench.polls.run)
        bench.polls.hold(bench.peer, "T", "G", -1, trio.current_time() + 9, None, fail)
        bench.hold("next")
        bench.arrive()
        bench.arrive()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert bench.answers == ["next"]
    assert "spoilt" in caplog.text


async def test_many_answers_leave_the_loop_free_between(autojump_clock, bench):
    seen: list[int] = []

    async def watch() -> None:
        while len(bench.answers) < 1_000:
            seen.append(len(bench.answers))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        await nursery.start(bench.polls.run)
        for number in range(1_000):
            bench.hold(str(number))
        bench.topics.delete("T")
        await watch()
        nursery.cancel_scope.cancel()
    assert max(b - a for a, b in itertools.pairwise(seen)) <= 2 * polling.ANSWERS_AT_ONCE


async def test_deadlines_of_the_answered_do_not_pile_up(autojump_clock, bench):
    for _ in range(20_000):
        bench.hold("x", wait_s=3600)
        bench.arrive()
        bench.polls._due.clear()
    assert len(bench.polls._deadlines) < 2_000
