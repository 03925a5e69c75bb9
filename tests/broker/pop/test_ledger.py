"""How far groups have popped, and records that go into the timer without detours."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.pop.popping import Consumer
from tests.broker.support import BROKER, GROUP, STORE, TOPIC, request, send, serving
from trio_mq.broker.redirects import Redirects
from trio_mq.config import FlushDiskType, StoreSettings
from trio_mq.errors import RequestRefused
from trio_mq.protocol import properties
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.offset import ResetOffsetRequest

NOW_MS = 1_700_000_000_000


@given(st.integers(-5000, 4 * 24 * 3600 * 1000), st.integers(0, 7))
def test_the_short_way_into_the_timer_ends_where_the_long_one_does(
    delay_ms: int, queue_id: int
) -> None:
    redirects = Redirects(StoreSettings())
    at_ms = NOW_MS + delay_ms
    props = b"TIMER_DELIVER_MS\x01%d\x02TAGS\x01ck\x02" % at_ms
    if delay_ms > 3 * 24 * 3600 * 1000:
        for way in (
            lambda: redirects.apply("R", queue_id, props, 0, NOW_MS),
            lambda: redirects.waiting("R", queue_id, props, at_ms, NOW_MS),
        ):
            with pytest.raises(RequestRefused, match="timerMaxDelaySec"):
                way()
        return
    long = redirects.apply("R", queue_id, props, 0, NOW_MS)
    short = redirects.waiting("R", queue_id, props, at_ms, NOW_MS)
    assert properties.parse(short.properties) == properties.parse(long.properties)
    assert short._replace(properties=b"") == long._replace(properties=b"")


async def test_a_reset_counts_though_check_points_are_on_their_way_to_the_disk(
    autojump_clock,
) -> None:
    sync = attrs.evolve(STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with serving(store=sync) as bench:
        bench.create(queues=1)
        for i in range(4):
            await bench.answer(send(body=b"%d" % i))
        consumer, other = Consumer(bench), Consumer(bench)
        bench.hand(consumer.peer, consumer.frame(3))
        header = ResetOffsetRequest(
            topic=TOPIC, group=GROUP, timestamp=-1, force=True, queue_id=0, offset=1
        )
        reset = bench.ask(request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header))
        assert reset.code == ResponseCode.SUCCESS
        bench.hand(other.peer, other.frame(1))
        assert [one.body for one in consumer.taken(await bench.next(consumer.peer))] == [
            b"0",
            b"1",
            b"2",
        ]
        assert [one.body for one in other.taken(await bench.next(other.peer))] == [b"1"]
        assert bench.offsets.query(GROUP, TOPIC, 0) == 2, "not where the pop before the reset was"


async def test_what_is_out_is_counted_until_it_is_back(autojump_clock) -> None:
    async with serving(broker=attrs.evolve(BROKER, enable_pop_message_threshold=True)) as bench:
        bench.create(queues=1)
        bench.put(b"a", b"b", b"c")
        consumer, ledger = Consumer(bench), bench.broker.pops.ledger
        a, b, _ = consumer.pop()
        assert ledger.inflight(TOPIC, GROUP, 0) == 3
        consumer.ack(a)
        consumer.batch_ack([b])
        assert ledger.inflight(TOPIC, GROUP, 0) == 1
        ledger.back(TOPIC, GROUP, 0, 1, 1)  # of an earlier run of the broker
        assert ledger.inflight(TOPIC, GROUP, 0) == 1
        bench.topics.delete(TOPIC)
        assert ledger.inflight(TOPIC, GROUP, 0) == 0
