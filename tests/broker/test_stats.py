"""Rates and sums of topics, groups and the broker; times on the mock clock."""

from __future__ import annotations

import pytest
import trio

from tests.broker.pop.popping import Consumer
from tests.broker.support import GROUP, TOPIC, FakePeer, send, serving
from trio_mq.broker.stats import SAMPLE_S, BrokerStats, Snapshot
from trio_mq.store.queuetable import QueueTable
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk

DAY_S = 86_400


class Bench:
    """Queues without messages, whose totals a test moves by itself."""

    def __init__(self) -> None:
        disk = MemoryDisk()
        disk.make_dirs("/store")
        self.queues = QueueTable(
            disk,
            "/store",
            queue_file_bytes=1200,
            batch_file_bytes=460,
            is_batch_topic=lambda topic: False,
        )
        self.missed = 0
        self.stats = BrokerStats(
            self.queues,
            TrioClock(),
            "C",
            lambda topic: topic.startswith("SYS"),
            lambda: self.missed,
        )

    def put(self, topic: str, messages: int, size_bytes: int = 100) -> None:
        traffic = self.queues.obtain(topic, 0).traffic
        traffic.messages += messages
        traffic.bytes += messages * size_bytes

    def got(self, topic: str, group: str, messages: int) -> None:
        self.queues.obtain(topic, 0).traffic.got(group, messages, messages * 100)

    async def run(self, seconds: float) -> None:
        """Let time pass, with looks as the broker's task makes them."""
        for _ in range(round(seconds / SAMPLE_S)):
            trio.lowlevel.current_clock().jump(SAMPLE_S)
            await self.stats.sample()


@pytest.fixture
async def bench():
    return Bench()


async def test_a_rate_is_that_of_the_last_minute(autojump_clock, bench):
    for _ in range(12):
        bench.put("T", 50)
        await bench.run(SAMPLE_S)
    minute = bench.stats.spans("TOPIC_PUT_NUMS", "T").minute
    assert minute == Snapshot(300, 5.0, 1.0)
    assert bench.stats.put_tps("T") == 5.0
    await bench.run(60)
    spans = bench.stats.spans("TOPIC_PUT_NUMS", "T")
    assert (spans.minute.sum, spans.minute.tps) == (0, 0.0)
    assert (spans.hour.sum, spans.day.sum) == (600, 600)


async def test_what_was_just_sent_is_there_before_the_next_look(autojump_clock, bench):
    bench.put("T", 3, 200)
    spans = bench.stats.spans("TOPIC_PUT_SIZE", "T")
    assert spans.minute == Snapshot(600, 60.0, 200.0)
    assert spans.day.sum == 600


async def test_sums_of_an_hour_and_a_day_forget_what_is_older(autojump_clock, bench):
    bench.put("T", 10)
    await bench.run(3600 + 600)
    assert bench.stats.spans("TOPIC_PUT_NUMS", "T").hour.sum == 0
    assert bench.stats.spans("TOPIC_PUT_NUMS", "T").day.sum == 10
    bench.put("T", 1)
    await bench.run(DAY_S)
    assert bench.stats.spans("TOPIC_PUT_NUMS", "T").day.sum == 1


async def test_groups_of_a_topic_are_counted_apart(autojump_clock, bench):
    bench.got("T", "G1", 32)
    bench.got("T", "G1", 8)
    bench.got("T", "G2", 1)
    bench.queues.traffic["T"].sent_back("G2")
    assert bench.stats.spans("GROUP_GET_NUMS", "T@G1").minute == Snapshot(40, 4.0, 20.0)
    assert bench.stats.spans("GROUP_GET_SIZE", "T@G1").minute == Snapshot(4000, 400.0, 2000.0)
    assert bench.stats.spans("GROUP_GET_NUMS", "T@G2").minute.sum == 1
    assert bench.stats.spans("SNDBCK_PUT_NUMS", "T@G2").minute.sum == 1
    assert bench.stats.get_tps("G1", "T") == 4.0
    assert bench.stats.get_tps("G3", "T") == 0.0


async def test_latencies_are_averages_of_those_that_were_timed(autojump_clock, bench, monkeypatch):
    monkeypatch.setattr("trio_mq.store.traffic.perf_counter", lambda: 7.005)
    bench.put("T", 1)
    bench.queues.traffic["T"].took(7.0)
    bench.queues.traffic["T"].got("G", 1, 100).took(7.003)
    put = bench.stats.spans("TOPIC_PUT_LATENCY", "T").minute
    assert put.average == pytest.approx(5.0)
    assert bench.stats.spans("GROUP_GET_LATENCY", "T@G").minute.average == pytest.approx(2.0)


async def test_names_and_keys_that_are_not_there(autojump_clock, bench):
    bench.put("T", 1)
    bench.got("T", "G", 1)
    for name, key in (
        ("TOPIC_PUT_NUMS", "X"),
        ("TOPIC_PUT_NUMS", "T@G"),
        ("GROUP_GET_NUMS", "T"),
        ("GROUP_GET_NUMS", "T@X"),
        ("NO_SUCH_NAME", "T"),
        ("BROKER_PUT_NUMS", "T"),
    ):
        assert bench.stats.spans(name, key) is None, (name, key)


async def test_the_broker_counts_all_topics_also_those_that_went(autojump_clock, bench):
    bench.put("T", 5)
    bench.put("SYS", 2)
    bench.got("T", "G", 4)
    await bench.run(SAMPLE_S)
    bench.queues.drop_topic("T", 0)
    bench.put("T", 1)
    totals = bench.stats.totals()
    assert (totals.put, totals.users_put, totals.got, totals.users_got) == (8, 6, 4, 4)
    assert totals.put_bytes == 800
    assert bench.stats.spans("BROKER_PUT_NUMS", "C").minute.sum == 8
    assert bench.stats.spans("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "C").minute.sum == 6
    assert bench.stats.spans("TOPIC_PUT_NUMS", "T").day.sum == 1, "a new topic of the same name"


async def test_rates_of_the_broker_over_three_spans(autojump_clock, bench):
    for _ in range(60):
        bench.put("T", 10)
        bench.missed += 20
        await bench.run(SAMPLE_S)
    assert [bench.stats.rate("put", s) for s in (10, 60, 600)] == [1.0, 1.0, 1.0]
    assert bench.stats.rate("missed", 60) == 2.0
    await bench.run(60)
    rates = [bench.stats.rate("put", s) for s in (10, 60, 600)]
    assert rates == [0.0, 0.0, pytest.approx(0.9)]


async def test_samples_go_with_their_topics_and_groups_and_after_a_day_of_rest(
    autojump_clock, bench
):
    for number in range(20):
        bench.put(f"T{number}", 1)
        bench.got(f"T{number}", "G", 1)
    await bench.run(SAMPLE_S)
    assert len(bench.stats._series) == 40
    bench.queues.drop_topic("T0", 0)
    bench.stats.forget_group("G")
    await bench.run(SAMPLE_S)
    assert len(bench.stats._series) == 19
    bench.put("T1", 1)
    await bench.run(DAY_S)
    bench.put("T1", 1)
    await bench.run(SAMPLE_S * 400)
    assert len(bench.stats._series) == 1
    assert bench.stats.spans("TOPIC_PUT_NUMS", "T2") is None
    bench.put("T2", 7)
    assert bench.stats.spans("TOPIC_PUT_NUMS", "T2").day.sum == 7
    assert bench.stats.totals().put == 29


async def test_days_begin_at_midnight(autojump_clock, bench):
    bench.put("T", 3)
    await bench.run(DAY_S)
    assert bench.stats.today.put == 3
    bench.put("T", 4)
    await bench.run(DAY_S)
    assert (bench.stats.yesterday.put, bench.stats.today.put) == (3, 7)
    assert bench.stats.totals().put == 7


async def test_many_topics_do_not_hold_the_loop(autojump_clock, bench):
    for number in range(1200):
        bench.put(f"T{number}", 1)
    bench.stats.totals()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        await bench.stats.sample()
        nursery.cancel_scope.cancel()
    assert turns >= 2


async def test_pops_of_a_broker_are_counted(autojump_clock):
    async with serving() as broker:
        broker.create(queues=2)
        broker.put(b"a", b"b", queue_id=0)
        broker.put(b"c", queue_id=1)
        assert len(Consumer(broker).pop()) == 3
        stats = broker.broker.stats
        assert stats.spans("TOPIC_PUT_NUMS", TOPIC).minute.sum == 3
        assert stats.spans("GROUP_GET_NUMS", f"{TOPIC}@{GROUP}").minute.sum == 3
        assert stats.spans("GROUP_GET_SIZE", f"{TOPIC}@{GROUP}").minute.sum > 300


async def test_sends_are_timed_each_sixteenth_time(autojump_clock):
    async with serving() as broker:
        broker.create(queues=1)
        peer = FakePeer()
        for _ in range(32):
            broker.hand(peer, send(body=b"x"))
        traffic = broker.store.queues.traffic[TOPIC]
        assert (traffic.messages, traffic.timed) == (32, 32)
        assert traffic.timed_ms > 0
