"""Queue, index and checkpoint layouts: fixed vectors, and Apache's own files explained to the last
byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_stores as golden
from tests import strategies as my
from trio_mq.errors import LocalProtocolError, StoreDamaged
from trio_mq.protocol import layout
from trio_mq.protocol.layout import (
    BatchQueueEntry,
    Checkpoint,
    IndexEntry,
    IndexHeader,
    QueueEntry,
    index_entry_position,
    index_file_size,
    index_key_hash,
    index_slot_position,
)
from trio_mq.protocol.record import Whole, check, keys_for_index


def test_sizes() -> None:
    assert layout.QUEUE_ENTRY.size == layout.QUEUE_ENTRY_SIZE == 20
    assert layout.BATCH_QUEUE_ENTRY.size == layout.BATCH_QUEUE_ENTRY_SIZE == 46
    assert layout.INDEX_HEADER.size == layout.INDEX_HEADER_SIZE == 40
    assert layout.INDEX_ENTRY.size == layout.INDEX_ENTRY_SIZE == 20
    assert layout.INDEX_SLOT.size == layout.INDEX_SLOT_SIZE == 4
    assert index_file_size(5_000_000, 20_000_000) == 420_000_040


def test_queue_entry_vectors() -> None:
    assert layout.PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"
    packed = bytes.fromhex("000000000000000000000068000000000027a807")
    assert layout.pack_queue_entry(0, 104, 2598919) == packed
    assert layout.unpack_queue_entry(b"x" + packed, 1) == QueueEntry(0, 104, 2598919)
    assert (
        layout.pack_queue_entry(1, 2, -1)[12:] == b"\xff" * 8
    )  # a negative hash fills all 64 bits


@given(my.INT64, my.INT32, my.INT64, my.INT64, my.INT64, my.INT16)
def test_batch_queue_entry_round_trip(
    log_offset: int, size: int, tags: int, stored: int, base: int, count: int
) -> None:
    entry = BatchQueueEntry(log_offset, size, tags, stored, base, count)
    data = layout.pack_batch_queue_entry(entry)
    assert layout.unpack_batch_queue_entry(data) == entry
    assert entry.is_valid == (log_offset >= 0 and size > 0 and base >= 0 and count > 0)
    assert data[38:] == b"\xff\xff\xff\xff\x00\x00\x00\x00"


def test_zero_area_is_no_batch_entry() -> None:
    assert not layout.unpack_batch_queue_entry(bytes(46)).is_valid


def test_batch_queue_of_apache() -> None:
    data = golden.read_file("clean", "batchconsumequeue/GoldBCQ/0/00000000000000000000")
    first, second, third = (layout.unpack_batch_queue_entry(data, at) for at in (0, 46, 92))
    assert (first.base_offset, first.batch_size, second.base_offset, second.batch_size) == (
        0,
        5,
        5,
        5,
    )
    assert first.compacted_offset == -1
    assert first.tags_code == 0
    assert first.is_valid
    assert second.is_valid
    assert not third.is_valid


@pytest.mark.parametrize("name", golden.NAMES)
def test_queues_of_apache_point_at_their_records(name: str) -> None:
    log = dict(golden.segments(name))
    seen = 0
    for path, data in golden.read_files(name, "consumequeue").items():
        topic, queue_id, start = path.split("/")
        first = int(start) // layout.QUEUE_ENTRY_SIZE
        for number in range(len(data) // layout.QUEUE_ENTRY_SIZE):
            entry = layout.unpack_queue_entry(data, number * layout.QUEUE_ENTRY_SIZE)
            if entry.size == 0:
                break
            segment = entry.log_offset - entry.log_offset % golden.SEGMENT_SIZE
            pos = entry.log_offset - segment
            found = check(log[segment], pos, pos + entry.size, expected_offset=entry.log_offset)
            assert isinstance(found, Whole)
            assert (found.size, found.topic, found.queue_id) == (entry.size, topic, int(queue_id))
            assert found.queue_offset == first + number
            if found.delay_level:
                assert entry.tags_code - found.store_timestamp_ms in (1_000, 7_200_000)
            else:
                assert entry.tags_code == found.tags_code
            seen += 1
    assert seen > 290


# --- index ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("T#ABC", 78683027),
        ("TopicTest#ORDER_1", 1111208162),
        ("polygenelubricants", 0),
        ("", 0),
    ],
)
def test_index_key_hash(key: str, expected: int) -> None:
    assert index_key_hash(key) == expected


def test_index_positions() -> None:
    assert index_key_hash("T#ABC") % 5_000_000 == 3683027
    assert index_slot_position(3683027) == 14732148
    assert index_key_hash("TopicTest#ORDER_1") % 5_000_000 == 1208162
    assert index_entry_position(1, 5_000_000) == 20_000_060


def test_unwritten_index_header_counts_from_one() -> None:
    assert layout.unpack_index_header(bytes(40)) == IndexHeader(0, 0, 0, 0, 0, 1)


@given(st.builds(IndexHeader, *[my.INT64] * 4, my.INT32, st.integers(1, 2**31 - 1)))
def test_index_header_round_trip(header: IndexHeader) -> None:
    assert layout.unpack_index_header(b"xx" + layout.pack_index_header(header), 2) == header


@given(st.builds(IndexEntry, my.INT32, my.INT64, my.INT32, my.INT32))
def test_index_entry_round_trip(entry: IndexEntry) -> None:
    assert layout.unpack_index_entry(layout.pack_index_entry(entry)) == entry


@pytest.mark.parametrize(("name", "entries"), [("clean", 1070), ("crash", 1043)])
def test_index_files_of_apache_byte_for_byte(name: str, entries: int) -> None:
    (data,) = golden.read_files(name, "index").values()
    assert len(data) == index_file_size(golden.HASH_SLOTS, golden.MAX_INDEX_NUM)
    assert data == _build_index(name, len(data))
    assert layout.unpack_index_header(data).index_count == entries + 1


def _build_index(name: str, size: int) -> bytes:
    """The index file that our keys, hashes and layouts give for the records of a store."""
    slots = golden.HASH_SLOTS
    data = bytearray(size)
    count, used_slots = 1, 0
    first: Whole | None = None
    for offset, raw in golden.raw_records(name):
        found = check(raw, 0, len(raw), expected_offset=offset)
        assert isinstance(found, Whole)
        for key in keys_for_index(found.topic, found.properties, found.sys_flag):
            first = first or found
            key_hash = index_key_hash(key)
            slot = index_slot_position(key_hash % slots)
            (previous,) = layout.INDEX_SLOT.unpack_from(data, slot)
            used_slots += not previous
            seconds = (found.store_timestamp_ms - first.store_timestamp_ms) // 1000
            entry = layout.pack_index_entry(IndexEntry(key_hash, offset, seconds, previous))
            at = index_entry_position(count, slots)
            data[at : at + len(entry)] = entry
            layout.INDEX_SLOT.pack_into(data, slot, count)
            count += 1
            last = found
    assert first is not None
    data[:40] = layout.pack_index_header(
        IndexHeader(
            begin_timestamp_ms=first.store_timestamp_ms,
            end_timestamp_ms=last.store_timestamp_ms,
            begin_log_offset=first.log_offset,
            end_log_offset=last.log_offset,
            hash_slot_count=used_slots,
            index_count=count,
        )
    )
    return bytes(data)


# --- checkpoint -----------------------------------------------------------------------------------


@given(st.lists(my.INT64, min_size=5, max_size=5), st.binary(min_size=8, max_size=8))
def test_checkpoint_round_trip_keeps_the_rest(values: list[int], extra: bytes) -> None:
    checkpoint = Checkpoint(*values, rest=extra + bytes(4048))  # type: ignore[misc]
    data = layout.pack_checkpoint(checkpoint)
    assert len(data) == 4096
    assert data[40:48] == extra
    assert layout.unpack_checkpoint(data) == checkpoint


def test_checkpoint_of_apache() -> None:
    data = golden.read_file("clean", "checkpoint")
    checkpoint = layout.unpack_checkpoint(data)
    assert checkpoint is not None
    last = golden.decoded("clean")[-1]["storeTimestamp"]
    assert checkpoint.logics_timestamp_ms == last
    # The log's own time moves only with a thorough flush, so a clean stop may leave it seconds behind.
    assert last - 10_000 < checkpoint.physic_timestamp_ms <= last
    assert checkpoint.index_timestamp_ms == 0
    assert checkpoint.min_timestamp_ms == checkpoint.physic_timestamp_ms - 3000
    assert checkpoint.min_timestamp_index_ms == 0
    assert layout.pack_checkpoint(checkpoint) == data


def test_checkpoint_times_never_go_below_zero() -> None:
    assert Checkpoint(physic_timestamp_ms=2999, logics_timestamp_ms=9999).min_timestamp_ms == 0
    assert Checkpoint(physic_timestamp_ms=9000, logics_timestamp_ms=8000).min_timestamp_ms == 5000


@pytest.mark.parametrize("length", [0, 1, 39, 40, 4095])
def test_short_checkpoint_is_unknown(length: int) -> None:
    assert layout.unpack_checkpoint(b"\x01" * length) is None


def test_long_checkpoint_is_damage() -> None:
    with pytest.raises(StoreDamaged, match="4097 bytes instead of 4096"):
        layout.unpack_checkpoint(bytes(4097))


def test_checkpoint_with_another_rest_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="would have 41"):
        layout.pack_checkpoint(Checkpoint(rest=b"x"))
