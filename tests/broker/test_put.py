"""Messages of the broker's own: stored as given, redirected, told when they are durable, or refused as a whole."""

from __future__ import annotations

import attrs
import pytest

from tests.broker.support import STORE, serving
from trio_mq.broker.put import Letter
from trio_mq.broker.warm import warmed
from trio_mq.config import FlushDiskType
from trio_mq.errors import StoreFull
from trio_mq.protocol import properties
from trio_mq.store.segments import ColdData
from trio_mq.testing.disk import MemoryDisk

BORN = b"\x7f\x00\x00\x01\x00\x00\x10\x00"
BORN_V6 = b"\xfd" + 15 * b"\x00" + b"\x00\x00\x10\x00"


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        yield made


def letter(body=b"m", topic="T", queue_id=0, born_host=BORN, **found):
    return Letter(topic, queue_id, body, properties.encode(found), 5, born_host, reconsume_times=2)


async def test_a_letter_is_stored_as_it_is(autojump_clock, bench):
    first = bench.broker.putter.put(letter(DELAY="3", TAGS="a"))
    second = bench.broker.putter.put(letter(b"v6", born_host=BORN_V6))
    one, two = bench.stored()
    assert (first.log_offset, first.queue_offset, first.end) == (0, 0, second.log_offset)
    assert (second.queue_offset, second.end) == (1, bench.store.log.end)
    assert (one.topic, one.property_map, one.reconsume_times) == (
        "T",
        {"DELAY": "3", "TAGS": "a"},
        2,
    )
    assert (two.sys_flag & 0x10, two.born_host.packed) == (0x10, BORN_V6)


async def test_delivering_redirects(autojump_clock, bench):
    put = bench.broker.putter.deliver(letter(DELAY="3"))
    (stored,) = bench.stored()
    assert (stored.topic, put.queue_id) == ("SCHEDULE_TOPIC_XXXX", 2)
    queue = bench.store.queue("SCHEDULE_TOPIC_XXXX", 2)
    (entry,) = bench.store.reader.entries(queue, 0, 1)
    assert entry[2] == stored.store_timestamp_ms + 10_000


async def test_a_record_goes_on_with_other_properties(autojump_clock, bench):
    bench.broker.putter.put(letter(born_host=BORN_V6, KEYS="k"))
    (record,) = bench.stored()
    again = Letter.again(record, topic="%RETRY%G", queue_id=0, properties={"A": "bc"})
    bench.broker.putter.put(attrs.evolve(again, reconsume_times=3))
    twin = bench.stored()[1]
    assert (twin.topic, twin.body, twin.born_host, twin.born_timestamp_ms) == (
        *("%RETRY%G", b"m", record.born_host, 5),
    )
    assert (twin.property_map, twin.reconsume_times) == ({"A": "bc"}, 3)


async def test_what_cannot_be_written_is_refused_as_a_whole(autojump_clock, bench, monkeypatch):
    def fail():
        raise OSError(28, "no space left")

    monkeypatch.setattr(bench.store.log, "write_staged", fail)
    with pytest.raises(StoreFull):
        bench.broker.putter.put_all([letter(b"1"), letter(b"2")])
    assert bench.store.queues.obtain("T", 0).next_offset == 0
    assert bench.store.failed == []


@pytest.mark.parametrize("flush", list(FlushDiskType))
async def test_durable_means_durable(autojump_clock, flush):
    async with serving(store=attrs.evolve(STORE, flush_disk_type=flush)) as bench:
        put = bench.broker.putter.put(letter())
        assert await bench.broker.putter.durable(put.end)
        if flush is FlushDiskType.SYNC_FLUSH:
            assert bench.store.log.durable.value >= put.end


async def test_data_from_the_disk_is_fetched_for_a_task(autojump_clock):
    missing = ["index", "log"]

    def look():
        if missing:
            raise ColdData(missing.pop)
        return "found"

    assert await warmed(MemoryDisk(), look) == "found"
