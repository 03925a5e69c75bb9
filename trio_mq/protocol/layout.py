"""Sizes, magic numbers and packing of everything a store keeps outside the record bodies.

In: raw bytes of a queue file, an index file or the checkpoint file. Out: small tuples and values,
and back. Called by the record codec, by ``store`` and by ``recovery``. All numbers are big-endian
and signed.

Format: the Apache classes ConsumeQueue, BatchConsumeQueue, IndexHeader, IndexFile, StoreCheckpoint,
CommitLog.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import attrs

from trio_mq.errors import LocalProtocolError, StoreDamaged
from trio_mq.protocol.message import java_hash

# --- commit log record ----------------------------------------------------------------------------

MAGIC_V1: Final = -626843481
"""Record with a topic length of one byte (0xDAA320A7)."""
MAGIC_V2: Final = -626843477
"""Record with a topic length of two bytes (0xDAA320AB)."""
MAGIC_BLANK: Final = -875286124
BLANK_MAGIC: Final = MAGIC_BLANK.to_bytes(4, "big", signed=True)
"""Padding that ends a segment file (0xCBD43194)."""

MAX_PROPERTIES_BYTES: Final = 32_767
"""The properties length is a signed 16-bit number."""
MAX_TOPIC_V1_BYTES: Final = 127
"""The topic length of a V1 record is a signed byte."""
MAX_TOPIC_V2_BYTES: Final = 32_767
BLANK_HEADER_SIZE: Final = 8
"""Smallest room that has to stay behind a record in its segment."""
FIXED_RECORD_SIZE: Final = 90
"""A record with two IPv4 hosts, less body, topic and its length word, and properties."""
IPV6_HOST_EXTRA: Final = 12

BLANK: Final = struct.Struct(">ii")

# --- consume queue --------------------------------------------------------------------------------


class QueueEntry(NamedTuple):
    """One entry of a simple consume queue: 20 bytes. A NamedTuple, since millions are read in a
    row."""

    log_offset: int
    size: int
    tags_code: int


QUEUE_ENTRY: Final = struct.Struct(">qiq")
QUEUE_ENTRY_SIZE: Final = 20
PRE_BLANK_SIZE: Final = 0x7FFF_FFFF
PRE_BLANK: Final = QUEUE_ENTRY.pack(0, PRE_BLANK_SIZE, 0)
"""Fills a queue file up to the first message of a queue that does not begin at offset 0."""


def pack_queue_entry(log_offset: int, size: int, tags_code: int) -> bytes:
    """The 20 bytes of one consume queue entry: log offset, record size in bytes, tags code."""
    return QUEUE_ENTRY.pack(log_offset, size, tags_code)


def unpack_queue_entry(data: bytes, pos: int = 0) -> QueueEntry:
    """The consume queue entry at ``pos``; ``data`` must hold 20 bytes from there."""
    return QueueEntry._make(QUEUE_ENTRY.unpack_from(data, pos))


class BatchQueueEntry(NamedTuple):
    """One entry of a batch consume queue: 46 bytes (Apache: BatchConsumeQueue)."""

    log_offset: int
    size: int
    tags_code: int
    store_timestamp_ms: int
    base_offset: int
    batch_size: int
    compacted_offset: int = -1
    reserved: int = 0

    @property
    def is_valid(self) -> bool:
        """Whether a reader may use the entry; a zero area and a torn entry are not."""
        return (
            self.log_offset >= 0 and self.size > 0 and self.base_offset >= 0 and self.batch_size > 0
        )


BATCH_QUEUE_ENTRY: Final = struct.Struct(">qiqqqhii")
BATCH_QUEUE_ENTRY_SIZE: Final = 46


def pack_batch_queue_entry(entry: BatchQueueEntry) -> bytes:
    """The 46 bytes of one batch consume queue entry."""
    return BATCH_QUEUE_ENTRY.pack(*entry)


def unpack_batch_queue_entry(data: bytes, pos: int = 0) -> BatchQueueEntry:
    """The batch consume queue entry at ``pos``; ``data`` must hold 46 bytes from there."""
    return BatchQueueEntry._make(BATCH_QUEUE_ENTRY.unpack_from(data, pos))


# --- key index ------------------------------------------------------------------------------------


class IndexHeader(NamedTuple):
    """The first 40 bytes of an index file (Apache: IndexHeader). ``index_count`` starts at 1."""

    begin_timestamp_ms: int
    end_timestamp_ms: int
    begin_log_offset: int
    end_log_offset: int
    hash_slot_count: int
    index_count: int


class IndexEntry(NamedTuple):
    """One entry of an index file: 20 bytes. ``previous`` is the next older entry of the chain, 0
    ends it."""

    key_hash: int
    log_offset: int
    seconds: int
    previous: int


INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_HEADER_SIZE: Final = 40
INDEX_SLOT: Final = struct.Struct(">i")
INDEX_SLOT_SIZE: Final = 4
INDEX_ENTRY: Final = struct.Struct(">iqii")
INDEX_ENTRY_SIZE: Final = 20


def pack_index_header(header: IndexHeader) -> bytes:
    """The 40 bytes of an index file's header."""
    return INDEX_HEADER.pack(*header)


def unpack_index_header(data: bytes, pos: int = 0) -> IndexHeader:
    """The header at ``pos``; a stored count below 1 is read as 1, which is what an unwritten file
    means."""
    header = IndexHeader._make(INDEX_HEADER.unpack_from(data, pos))
    return header if header.index_count > 0 else header._replace(index_count=1)


def pack_index_entry(entry: IndexEntry) -> bytes:
    """The 20 bytes of one index entry."""
    return INDEX_ENTRY.pack(*entry)


def unpack_index_entry(data: bytes, pos: int = 0) -> IndexEntry:
    """The index entry at ``pos``."""
    return IndexEntry._make(INDEX_ENTRY.unpack_from(data, pos))


def index_file_size(slots: int, entries: int) -> int:
    """Bytes of an index file with ``slots`` hash slots and room for ``entries`` (entry 0 stays
    unused)."""
    return INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slots + INDEX_ENTRY_SIZE * entries


def index_slot_position(slot: int) -> int:
    """Byte position of a hash slot in an index file."""
    return INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slot


def index_entry_position(number: int, slots: int) -> int:
    """Byte position of entry ``number`` (1 is the first that is used) in a file with ``slots``
    slots."""
    return INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slots + INDEX_ENTRY_SIZE * number


def index_key_hash(key: str) -> int:
    """The hash that an index file keeps of a key text ``topic#key`` (Apache:
    IndexFile.indexKeyHashMethod).

    The absolute value of the Java hash; the one value that has none (-2147483648) becomes 0.
    """
    value = java_hash(key)
    return 0 if value == -0x8000_0000 else abs(value)


# --- checkpoint -----------------------------------------------------------------------------------

CHECKPOINT_SIZE: Final = 4096
_CHECKPOINT: Final = struct.Struct(">qqqqq")
_SAFETY_MS: Final = 3000  # timestamps run ahead of the flush by less than this


@attrs.frozen
class Checkpoint:
    """The file ``checkpoint`` of a store (Apache: StoreCheckpoint). Timestamps are of stored
    messages, in ms.

    ``rest`` holds bytes 40..4095, which other programs may use; they are written back as they were
    read.
    """

    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_log_offset: int = 0
    rest: bytes = attrs.field(default=bytes(CHECKPOINT_SIZE - _CHECKPOINT.size), repr=False)

    @property
    def min_timestamp_ms(self) -> int:
        """Everything stored up to here is in the log and in the queues on disk, with 3 s of
        safety."""
        return max(0, min(self.physic_timestamp_ms, self.logics_timestamp_ms) - _SAFETY_MS)

    @property
    def min_timestamp_index_ms(self) -> int:
        """As :attr:`min_timestamp_ms`, and in the key index too."""
        return min(self.min_timestamp_ms, self.index_timestamp_ms)


def pack_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The 4096 bytes of a checkpoint file."""
    head = _CHECKPOINT.pack(
        checkpoint.physic_timestamp_ms,
        checkpoint.logics_timestamp_ms,
        checkpoint.index_timestamp_ms,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_log_offset,
    )
    data = head + checkpoint.rest
    if len(data) != CHECKPOINT_SIZE:
        raise LocalProtocolError(
            f"a checkpoint has {CHECKPOINT_SIZE} bytes, this one would have {len(data)}; "
            f"'rest' must keep its {CHECKPOINT_SIZE - _CHECKPOINT.size} bytes"
        )
    return data


def unpack_checkpoint(data: bytes) -> Checkpoint | None:
    """The values of a checkpoint file, or None if they are unknown.

    An empty or short file is what a power loss leaves behind; it says nothing, so the caller has to
    take the careful path. A longer file is not a checkpoint at all and raises
    :class:`StoreDamaged`.
    """
    if len(data) > CHECKPOINT_SIZE:
        raise StoreDamaged(f"checkpoint has {len(data)} bytes instead of {CHECKPOINT_SIZE}")
    if len(data) < CHECKPOINT_SIZE:
        return None
    physic, logics, index, master, confirm = _CHECKPOINT.unpack_from(data)
    return Checkpoint(physic, logics, index, master, confirm, bytes(data[_CHECKPOINT.size :]))
