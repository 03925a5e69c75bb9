"""Keys of many records at once, with numpy: the same entries as :class:`trio_mq.store.keys.KeyHasher` and
:meth:`trio_mq.store.indexfile.IndexFile.insert` give, byte for byte, at a third of the time.

In: stored records, or their property texts. Out: keys that can be put into index files. Imported by the dispatcher when
there is much to do, and by recovery, only where numpy is installed; nothing depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from trio_mq.protocol import properties
from trio_mq.protocol.layout import (
    INDEX_ENTRY_SIZE,
    INDEX_HEADER_SIZE,
    INDEX_SLOT_SIZE,
    IndexHeader,
)
from trio_mq.store.indexfile import IndexFile, Keys
from trio_mq.store.keys import KeyHasher

Longs: TypeAlias = NDArray[np.int64]

_ENTRY = np.dtype([("hash", ">i4"), ("log_offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_SLOT = np.dtype(">i4")
_INT_MAX = 2**31 - 1
_MASK = 0xFFFF_FFFF
#: Longest key that is hashed in a matrix; longer ones are rare, and hashed one by one.
_MATRIX_BYTES = 256
_NAMES = tuple((name, name + b"\x01") for name in (b"UNIQ_KEY", b"KEYS", b"TAGS"))


KeyTexts: TypeAlias = tuple[bytes | None, bytes | None, bytes | None]
"""Unique id, keys and tags of one record, as far as it has them."""


def key_texts(data: bytes) -> KeyTexts:
    """What of a record's property text goes into the index."""
    found: list[bytes | None] = []
    for name, needle in _NAMES:
        # As properties.get, without a call for the usual case.
        at = data.rfind(needle)
        if at < 0:
            found.append(None)
            continue
        start = at + len(needle)
        end = data.find(b"\x02", start)
        usual = end > start and (at == 0 or data[at - 1] == 2)
        found.append(data[start:end] if usual else properties.get(data, name))
    return found[0], found[1], found[2]


class BulkHasher:
    """Gathers keys of records, and hashes those of equal length together."""

    def __init__(self, hasher: KeyHasher) -> None:
        self._hasher = hasher
        self._powers: dict[int, NDArray[np.uint32]] = {}

    def keys(self, records: Iterable[tuple[str, bytes, int, int]]) -> BulkKeys:
        """Keys of records given as (topic, properties, log offset, store time ms), in the order of 5.4.0."""
        rows = list(records)
        topics, data, log_offsets, times_ms = zip(*rows, strict=True) if rows else ((), (), (), ())
        return self.keys_of(
            topics,
            [key_texts(properties) for properties in data],
            np.array(log_offsets, np.int64),
            np.array(times_ms, np.int64),
        )

    def keys_of(
        self,
        topics: Sequence[str],
        found: Iterable[KeyTexts],
        log_offsets: Longs,
        times_ms: Longs,
    ) -> BulkKeys:
        """Keys of records of which all is known: the texts from :func:`key_texts`."""
        texts: list[bytes] = []
        counts: list[int] = []  # keys of each record, and so on
        hashes: list[int] = []
        last_topic, topic_hash = "", 0
        for topic, (unique, keys, tags) in zip(topics, found, strict=True):
            before = len(texts)
            if unique:
                texts.append(unique)
            if keys:
                if b" " in keys:
                    texts += [key for key in keys.split(b" ") if key]
                else:
                    texts.append(keys)
            if tags:
                texts.append(b"T#" + tags)
            if topic != last_topic:
                last_topic, topic_hash = topic, self._hasher.topic_hash(topic) & _MASK
            counts.append(len(texts) - before)
            hashes.append(topic_hash)
        return BulkKeys(
            self._hash(np.repeat(np.array(hashes, np.uint32), counts), texts),
            np.repeat(log_offsets, counts),
            np.repeat(times_ms, counts),
        )

    def _hash(self, topics: NDArray[np.uint32], texts: list[bytes]) -> Longs:
        """Index hashes of keys, given with the hash of ``topic#`` of each."""
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        hashes = np.empty(len(texts), np.int64)
        for length in np.unique(lengths).tolist():
            places = np.flatnonzero(lengths == length)
            some = [texts[place] for place in places.tolist()]
            joined = b"".join(some)
            if length > _MATRIX_BYTES or not joined.isascii():
                pairs = zip(topics[places].tolist(), some, strict=True)
                hashes[places] = [self._hasher.joined(topic, text) for topic, text in pairs]
                continue
            powers = self._powers.get(length)
            if powers is None:
                powers = np.array([pow(31, n, 1 << 32) for n in range(length, -1, -1)], np.uint32)
                self._powers[length] = powers
            matrix = np.frombuffer(joined, np.uint8).reshape(len(some), length)
            values = topics[places] * powers[0] + matrix.astype(np.uint32) @ powers[1:]
            hashes[places] = values
        return np.where(hashes < 1 << 31, hashes, ((1 << 32) - hashes) & _INT_MAX)


@attrs.frozen
class BulkKeys:
    """As :class:`trio_mq.store.indexfile.Keys`, in arrays."""

    hashes: Longs
    log_offsets: Longs
    times_ms: Longs

    @property
    def total(self) -> int:
        """How many keys there are."""
        return len(self.hashes)

    def insert_into(self, index_file: IndexFile, begin: int) -> int:
        """Add keys from the `begin`-th on, as many as fit; returns how many. An OSError changes nothing."""
        total = min(self.total - begin, index_file.entries - index_file.header.index_count)
        if total <= 0:
            return 0
        done = 0
        if index_file.header.index_count <= 1:
            # The first entry sets the begin that the times of all others count from.
            rows = (self.hashes, self.log_offsets, self.times_ms)
            first = Keys(*[[int(row[begin])] for row in rows])
            done = first.insert_into(index_file, 0)
        if done < total:
            self._insert(index_file, slice(begin + done, begin + total))
        return total

    def _insert(self, index_file: IndexFile, rows: slice) -> None:
        header = index_file.header
        count, total = header.index_count, rows.stop - rows.start
        slots = self.hashes[rows] % index_file.slots
        at = index_file.entries_at + INDEX_ENTRY_SIZE * count
        index_file.make_room(at, at + INDEX_ENTRY_SIZE * total)
        index_file.make_slot_pages(
            np.unique((INDEX_HEADER_SIZE + INDEX_SLOT_SIZE * slots) >> 12).tolist()
        )
        # The newest entry of each slot, and for all others of this lot the one before in the same slot.
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        first = np.empty(total, np.bool_)
        first[0] = True
        np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
        numbers = order + count
        previous = np.empty(total, np.int64)
        previous[1:] = numbers[:-1]
        table = np.frombuffer(index_file.memory, _SLOT, index_file.slots, INDEX_HEADER_SIZE)
        tips = table[ordered[first]].astype(np.int64)
        tips[(tips <= 0) | (tips >= numbers[first])] = 0
        previous[first] = tips
        seconds = np.zeros(total, np.int64)
        if header.begin_timestamp_ms > 0:
            seconds = (self.times_ms[rows] - header.begin_timestamp_ms) // 1000
            np.clip(seconds, 0, _INT_MAX, out=seconds)
        entries = np.frombuffer(index_file.memory, _ENTRY, total, at)
        entries["hash"] = self.hashes[rows]
        entries["log_offset"] = self.log_offsets[rows]
        entries["seconds"] = seconds
        entries["previous"][order] = previous
        last = np.empty(total, np.bool_)
        last[-1] = True
        last[:-1] = first[1:]
        table[ordered[last]] = numbers[last]
        index_file.header = IndexHeader(
            header.begin_timestamp_ms,
            int(self.times_ms[rows.stop - 1]),
            header.begin_log_offset,
            int(self.log_offsets[rows.stop - 1]),
            header.hash_slot_count + int(np.count_nonzero(tips == 0)),
            count + total,
        )
        index_file.store_header()


def is_sound(index_file: IndexFile, log_offset: int) -> bool:
    """Whether no page was lost of what a file has for records from `log_offset` on: its entries and their slots.

    A page that never reached the disk holds zeros, or slots as they were before.
    """
    at_once = 1 << 20
    count = index_file.header.index_count
    newest = 0
    slots = index_file.file.read(INDEX_SLOT_SIZE * index_file.slots, INDEX_HEADER_SIZE)
    table = np.frombuffer(slots, _SLOT)
    for first in range(index_file.count_before(log_offset), count, at_once):
        total = min(at_once, count - first)
        at = index_file.entries_at + INDEX_ENTRY_SIZE * first
        entries = np.frombuffer(index_file.file.read(INDEX_ENTRY_SIZE * total, at), _ENTRY)
        offsets = entries["log_offset"].astype(np.int64)
        if offsets[0] < newest or (offsets[1:] < offsets[:-1]).any() or (entries["hash"] < 0).any():
            return False
        newest = int(offsets[-1])
        numbers = np.arange(first, first + total)
        if (entries["previous"] >= numbers).any():
            return False
        if (table[entries["hash"].astype(np.int64) % index_file.slots] < numbers).any():
            return False
    return newest == index_file.header.end_log_offset or newest == 0
