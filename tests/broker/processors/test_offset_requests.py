"""Consumer offsets, bounds of queues and search by time over the wire."""

from __future__ import annotations

import pytest
import trio

from tests.broker.processors.conftest import make_bench
from trio_mq.protocol.bodies import TopicConfig
from trio_mq.protocol.headers.offset import (
    BoundaryType,
    GetEarliestMsgStoretimeRequest,
    GetMaxOffsetRequest,
    GetMinOffsetRequest,
    QueryConsumerOffsetRequest,
    SearchOffsetRequest,
    UpdateConsumerOffsetRequest,
)

QUERY, UPDATE, SEARCH, MAX, MIN, EARLIEST = 14, 15, 29, 30, 31, 32


@pytest.fixture
async def ready(bench):
    """Topic T with 4 queues and group G."""
    bench.topics.update(TopicConfig("T", 4, 4), None)
    bench.groups.obtain("G")
    return bench


def offset_of(reply) -> int:
    assert reply.code == 0, reply.remark
    return int(reply.ext["offset"])


async def test_update_then_query(ready):
    reply = ready.ask(UPDATE, UpdateConsumerOffsetRequest("G", "T", 1, 5))
    assert (reply.code, reply.remark) == (0, None)
    assert offset_of(ready.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 1))) == 5
    ready.send_oneway(UPDATE, UpdateConsumerOffsetRequest("G", "T", 1, 3))
    assert offset_of(ready.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 1))) == 3


async def test_what_an_update_refuses(ready):
    reply = ready.ask(UPDATE, UpdateConsumerOffsetRequest("X", "T", 0, 5))
    assert reply.code == 26
    assert "updateSubGroup" in reply.remark
    assert "X" not in ready.groups  # an offset is no use of a group
    assert ready.ask(UPDATE, UpdateConsumerOffsetRequest("G", "X", 0, 5)).code == 17
    assert ready.ask(UPDATE, UpdateConsumerOffsetRequest("G", "T", 0, -1)).code == 29
    assert ready.ask(UPDATE, UpdateConsumerOffsetRequest("G", "T", -1, 5)).code == 29
    reply = ready.ask(UPDATE, ext={"consumerGroup": "G", "topic": "T", "queueId": "0"})
    assert reply.code == 1
    assert "commitOffset" in reply.remark


async def test_b105_a_commit_while_a_reset_waits_is_ignored(ready):
    """B105."""
    ready.offsets.assign_reset("G", "T", 0, 7)
    reply = ready.ask(UPDATE, UpdateConsumerOffsetRequest("G", "T", 0, 60))
    assert (reply.code, reply.remark) == (0, "Offset has been previously reset")
    assert offset_of(ready.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 0))) == 7


async def test_b115_a_young_queue_is_consumed_from_its_start(ready):
    """B115."""
    ready.put("T", 0, 3)
    assert offset_of(ready.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 0))) == 0
    assert offset_of(ready.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 0, True))) == 0
    assert offset_of(ready.ask(QUERY, QueryConsumerOffsetRequest("New", "T", 0))) == 0


async def test_b114_a_client_may_ask_not_to_get_zero(ready):
    """B114."""
    ready.put("T", 0, 3)
    reply = ready.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 0, False))
    assert reply.code == 22
    assert "group G has no offset in T queue 0" in reply.remark


async def test_b115_an_empty_or_trimmed_queue_is_not_young(ready):
    """B115."""
    assert ready.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 3)).code == 22
    ready.put("T", 0, 3)
    ready.store.queue("T", 0).min_offset = 1
    assert ready.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 0)).code == 22


async def test_bounds(ready):
    ready.put("T", 0, 3)
    assert offset_of(ready.ask(MAX, GetMaxOffsetRequest("T", 0))) == 3
    assert offset_of(ready.ask(MIN, GetMinOffsetRequest("T", 0))) == 0
    assert offset_of(ready.ask(MAX, GetMaxOffsetRequest("T", 9))) == 0
    assert offset_of(ready.ask(MIN, GetMinOffsetRequest("X", 0))) == 0
    ready.store.queue("T", 0).min_offset = 2
    assert offset_of(ready.ask(MIN, GetMinOffsetRequest("T", 0))) == 2


async def test_b060_an_empty_batch_queue_begins_at_minus_one(ready):
    ready.topics.update(TopicConfig("B", 1, 1), "+queue.type=BatchCQ")
    assert offset_of(ready.ask(MIN, GetMinOffsetRequest("B", 0))) == -1
    assert offset_of(ready.ask(MAX, GetMaxOffsetRequest("B", 0))) == 0


async def test_search_by_time(ready, autojump_clock):
    start_ms = ready.clock.now_ms()
    for _ in range(3):
        ready.put("T", 0)
        await trio.sleep(1)

    def search(at_ms: int, boundary=BoundaryType.LOWER) -> int:
        return offset_of(ready.ask(SEARCH, SearchOffsetRequest("T", 0, at_ms, boundary)))

    assert search(start_ms - 5) == 0
    assert search(start_ms + 1000) == 1
    assert search(start_ms + 1500) == 2
    assert search(start_ms + 1500, BoundaryType.UPPER) == 1
    assert search(start_ms + 9000) == 3
    assert offset_of(ready.ask(SEARCH, SearchOffsetRequest("T", 3, start_ms))) == 0


async def test_earliest_store_time(ready, autojump_clock):
    stored_ms = ready.clock.now_ms()
    ready.put("T", 0)
    await trio.sleep(5)
    ready.put("T", 0)
    reply = ready.ask(EARLIEST, GetEarliestMsgStoretimeRequest("T", 0))
    assert reply.ext == {"timestamp": str(stored_ms)}
    reply = ready.ask(EARLIEST, GetEarliestMsgStoretimeRequest("T", 1))
    assert reply.ext == {"timestamp": "-1"}


async def test_c052_progress_ahead_of_a_recovered_queue_is_clamped():
    """C052: with the bounds that the store knows."""
    bench = await make_bench()
    bench.put("T", 0, 5)
    bench.offsets.commit("G", "T", 0, 500)

    def end(topic: str, queue_id: int) -> int | None:
        queue = bench.store.queue(topic, queue_id)
        return None if queue is None else queue.max_offset

    assert [clamped.after for clamped in bench.offsets.clamp_all(end)] == [5]
    assert offset_of(bench.ask(QUERY, QueryConsumerOffsetRequest("G", "T", 0))) == 5
