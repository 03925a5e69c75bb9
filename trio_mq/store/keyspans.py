"""Unique ids, keys and tags of thousands of records, found and hashed where they lie, with numpy.

In: property texts. Out: tags codes for queue entries and hashes for the index, the same that
:func:`trio_mq.protocol.message.tags_code_of` and :class:`trio_mq.store.keys.KeyHasher` give; or None where one needs a
closer look (several keys in one property, letters beyond ASCII, very long keys). Called by recovery, which has many
records at once. Formats: Apache MessageDecoder.string2messageProperties, IndexService.buildIndex.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

Longs: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]

#: Keys longer than this are left to others.
LONGEST: Final = 256
_NAME_ENDS, _PAIR_ENDS, _SPACE = 1, 2, 0x20
_UNIQUE: Final = (b"UNIQ_KEY", "<u8")
_KEYS: Final = (b"KEYS", "<u4")
_TAGS: Final = (b"TAGS", "<u4")
#: The Java hash of what stands before tags in the index.
_TAGS_PREFIX: Final = ord("T") * 31 + ord("#")
_POWERS: Final = np.array([pow(31, n, 1 << 32) for n in range(LONGEST + 3)], np.uint32)


@attrs.frozen
class KeySpans:
    """For each record and kind (unique id, keys, tags): length of the text, 0 without one, and its Java hash."""

    lengths: NDArray[np.int64]
    hashes: NDArray[np.uint32]

    def tags_codes(self) -> Longs:
        """What a queue entry keeps of the tags of each record."""
        return self.hashes[:, 2].astype(np.int32).astype(np.int64)

    def index_hashes(self, topic_hashes: NDArray[np.uint32]) -> tuple[Longs, Longs]:
        """Numbers for the index in the order of 5.4.0, and how many each record has.

        `topic_hashes` is the hash of ``topic#`` for each record.
        """
        lengths = self.lengths.copy()
        values = self.hashes.copy()
        has_tags = lengths[:, 2] > 0
        values[:, 2] += np.uint32(_TAGS_PREFIX) * _POWERS[lengths[:, 2]]
        lengths[:, 2] += 2
        values += topic_hashes[:, None] * _POWERS[lengths]
        wanted = self.lengths > 0
        wanted[:, 2] = has_tags
        found = values[wanted].astype(np.int64)
        # As trio_mq.store.keys.absolute.
        found = np.where(found < 1 << 31, found, ((1 << 32) - found) & 0x7FFF_FFFF)
        return found, wanted.sum(axis=1)


def find(texts: Sequence[bytes], *, tags_only: bool = False) -> KeySpans | None:
    """Look at the property texts of records; None where one is unusual. With `tags_only` no other kind is found."""
    joined = b"".join(texts)
    data = np.frombuffer(joined, np.uint8)
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(sizes)
    pairs = _pairs(data, ends - sizes, ends)
    none = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    spans = [
        none
        if tags_only and name is not _TAGS[0]
        else _last_of(joined, pairs, len(texts), name, form)
        for name, form in (_UNIQUE, _KEYS, _TAGS)
    ]
    begins = np.stack([begin for begin, _ in spans], axis=1)
    lengths = np.stack([length for _, length in spans], axis=1)
    if lengths.max(initial=0) > LONGEST or _any_inside(data == _SPACE, *spans[1]):
        return None
    hashes = _java_hashes(data, begins.ravel(), lengths.ravel())
    return None if hashes is None else KeySpans(lengths, hashes.reshape(-1, 3))


@attrs.frozen
class _Pairs:
    """Pairs of a name and a value that is not empty: record, where the name begins and ends, where the value ends."""

    record: Longs
    name: Longs
    name_end: Longs
    end: Longs


def _pairs(data: Bytes, begins: Longs, ends: Longs) -> _Pairs:
    at = np.flatnonzero(data == _NAME_ENDS)
    borders = np.flatnonzero(data == _PAIR_ENDS)
    record = np.searchsorted(ends, at, "right")
    following = np.searchsorted(borders, at)
    before = np.concatenate([[-1], borders])[following] + 1
    behind = np.concatenate([borders, [len(data)]])[following]
    name = np.maximum(before, begins[record])
    end = np.minimum(behind, ends[record])
    filled = end > at + 1
    return _Pairs(record[filled], name[filled], at[filled], end[filled])


def _last_of(
    joined: bytes, pairs: _Pairs, records: int, name: bytes, form: str
) -> tuple[Longs, Longs]:
    """Begin and length of the last value of a name in each record, length 0 without one."""
    begins, lengths = np.zeros(records, np.int64), np.zeros(records, np.int64)
    rows = np.flatnonzero(pairs.name_end - pairs.name == len(name))
    if len(rows):
        room = len(joined) - len(name) + 1
        words = np.ndarray((room,), form, joined, strides=(1,))[pairs.name[rows]]
        rows = rows[words == int.from_bytes(name, "little")]
        # Rows ascend, and of equal indices numpy assigns the last.
        begins[pairs.record[rows]] = pairs.name_end[rows] + 1
        lengths[pairs.record[rows]] = pairs.end[rows] - pairs.name_end[rows] - 1
    return begins, lengths


def _any_inside(marked: NDArray[np.bool_], begins: Longs, lengths: Longs) -> bool:
    places = np.flatnonzero(marked)
    first = np.searchsorted(places, begins)
    return bool((np.searchsorted(places, begins + lengths) > first).any())


def _java_hashes(data: Bytes, begins: Longs, lengths: Longs) -> NDArray[np.uint32] | None:
    """The Java hash of each span; None when one is not ASCII."""
    hashes = np.zeros(len(begins), np.uint32)
    for length in np.unique(lengths).tolist():
        if not length:
            continue
        rows = np.flatnonzero(lengths == length)
        matrix = data[begins[rows][:, None] + np.arange(length)]
        if (matrix >= 0x80).any():
            return None
        hashes[rows] = matrix.astype(np.uint32) @ _POWERS[length - 1 :: -1]
    return hashes
