"""Saving in the background: soon after a change, now and then, at the end, and with a full disk."""

from __future__ import annotations

import errno
import logging

import pytest
import trio

from tests.broker.processors.conftest import make_bench
from trio_mq.broker.saver import RETRY_S
from trio_mq.errors import StoreFull
from trio_mq.protocol.bodies import TopicConfig

TOPICS, GROUPS, OFFSETS = (
    f"/store/config/{name}.json" for name in ("topics", "subscriptionGroup", "consumerOffset")
)


def full(disk, path: str) -> None:
    disk.fail_when(lambda op: op.kind == "write" and op.path == f"{path}.tmp", errno.ENOSPC)


async def test_definitions_are_saved_soon_and_who_asked_is_told(autojump_clock, nursery):
    bench = await make_bench(saver=True)
    await nursery.start(bench.saver.run)
    told = []
    bench.topics.update(TopicConfig("T"), None)
    bench.saver.soon(told.append)
    bench.saver.soon()
    await trio.testing.wait_all_tasks_blocked()
    assert told == [None]
    assert bench.disk.exists(TOPICS)
    assert bench.disk.exists(GROUPS)
    assert not bench.disk.exists(OFFSETS)


async def test_who_asks_during_a_save_waits_for_the_next_one(autojump_clock, nursery):
    bench = await make_bench(saver=True)
    bench.disk.run_delay_s = 1.0
    await nursery.start(bench.saver.run)
    told = []
    bench.topics.update(TopicConfig("One"), None)
    bench.saver.soon(lambda error: told.append("one"))
    await trio.sleep(0.5)
    bench.topics.update(TopicConfig("Two"), None)
    bench.saver.soon(lambda error: told.append("two"))
    await trio.sleep(2)
    assert told == ["one"]
    assert bench.tables.topics.unsaved
    await trio.sleep(2)
    assert told == ["one", "two"]
    assert not bench.tables.topics.unsaved


async def test_offsets_are_saved_now_and_then(autojump_clock, nursery):
    bench = await make_bench(saver=True)
    await nursery.start(bench.saver.run)
    bench.offsets.commit("G", "T", 0, 5)
    await trio.sleep(4.9)
    assert not bench.disk.exists(OFFSETS)
    await trio.sleep(0.2)
    assert bench.disk.exists(OFFSETS)
    count = len(bench.disk.operations)
    await trio.sleep(60)  # nothing changes, nothing is written
    assert len(bench.disk.operations) == count


async def test_a_full_disk_stops_nothing_and_is_told_once(autojump_clock, nursery, caplog):
    caplog.set_level(logging.WARNING, "trio_mq.broker.saver")
    bench = await make_bench(saver=True)
    await nursery.start(bench.saver.run)
    for path in (TOPICS, OFFSETS):
        full(bench.disk, path)
    told = []
    bench.topics.update(TopicConfig("T"), None)
    bench.offsets.commit("G", "T", 0, 5)
    bench.saver.soon(told.append)
    await trio.sleep(4 * RETRY_S)
    assert [type(error) for error in told] == [StoreFull]
    assert len(caplog.records) == 2
    assert bench.disk.exists(GROUPS)  # one file that fails does not keep another from being saved
    bench.disk.heal()
    await trio.sleep(RETRY_S + 1)
    assert bench.disk.exists(TOPICS)
    assert bench.disk.exists(OFFSETS)
    assert [r.getMessage().endswith("is saved again") for r in caplog.records] == [
        False,
        False,
        True,
        True,
    ]


async def test_closing_saves_all_and_tells_those_who_wait(autojump_clock):
    bench = await make_bench(saver=True)
    told = []
    bench.topics.update(TopicConfig("T"), None)
    bench.offsets.commit("G", "T", 0, 5)
    bench.saver.soon(told.append)
    await bench.saver.close()
    assert told == [None]
    for path in (TOPICS, GROUPS, OFFSETS):
        assert bench.disk.exists(path)


async def test_closing_saves_what_it_can_and_raises_the_rest(autojump_clock):
    bench = await make_bench(saver=True)
    full(bench.disk, TOPICS)
    bench.offsets.commit("G", "T", 0, 5)
    with pytest.raises(StoreFull, match=r"topics\.json"):
        await bench.saver.close()
    assert bench.disk.exists(OFFSETS)
