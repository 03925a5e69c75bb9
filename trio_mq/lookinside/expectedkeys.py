"""What index entries of some records have to say: hash, log offset and seconds, as they stand in a file.

In: records in log order. Out: bytes to be compared with those of entries, many at a time; with numpy where it is
installed, else one by one, the same bytes. The link at the end of an entry is not part of it:
:mod:`trio_mq.lookinside.chains`. Called by :mod:`trio_mq.lookinside.verify_index`.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol, TypeAlias

from trio_mq.protocol.layout import INDEX_ENTRY_SIZE
from trio_mq.store.keys import KeyHasher

#: Bytes of an entry before its link.
HEAD_BYTES = 16
_HEAD = Struct(">iqi")
_INT_MAX = 2**31 - 1

#: Topic, properties, log offset and store time (ms) of records.
Rows: TypeAlias = list[tuple[str, bytes, int, int]]


def seconds_between(begin_ms: int, ms: int) -> int:
    """What an entry says of a record's time, in a file that begins with a record of `begin_ms`."""
    return min(max(0, (ms - begin_ms) // 1000), _INT_MAX) if begin_ms > 0 else 0


class Expected(Protocol):
    """The keys of some records."""

    @property
    def total(self) -> int:
        """How many keys there are."""
        ...

    def wanted(self, begin: int, count: int, begin_ms: int) -> bytes:
        """The heads of entries for keys from the `begin`-th on, in a file that begins at a time."""
        ...

    def heads(self, entries: bytes) -> bytes:
        """The heads of entries as found."""
        ...


class ExpectedKeys(Protocol):
    """Makes :class:`Expected`."""

    def of(self, rows: Rows) -> Expected:
        """The keys of some records, in the order that 5.4.0 puts them."""
        ...


class Plain:
    """Without numpy."""

    def __init__(self, hasher: KeyHasher) -> None:
        self._hasher = hasher

    def of(self, rows: Rows) -> Expected:
        """See :class:`ExpectedKeys`."""
        keys = self._hasher.keys
        return PlainExpected(
            [(h, offset, ms) for topic, data, offset, ms in rows for h in keys(topic, data)]
        )


class PlainExpected:
    """See :class:`Expected`."""

    def __init__(self, keys: list[tuple[int, int, int]]) -> None:
        self._keys = keys

    @property
    def total(self) -> int:
        """See :class:`Expected`."""
        return len(self._keys)

    def wanted(self, begin: int, count: int, begin_ms: int) -> bytes:
        """See :class:`Expected`."""
        pack = _HEAD.pack
        return b"".join(
            [
                pack(key_hash, log_offset, seconds_between(begin_ms, ms))
                for key_hash, log_offset, ms in self._keys[begin : begin + count]
            ]
        )

    def heads(self, entries: bytes) -> bytes:
        """See :class:`Expected`."""
        out = bytearray(len(entries) // INDEX_ENTRY_SIZE * HEAD_BYTES)
        for byte in range(HEAD_BYTES):
            out[byte::HEAD_BYTES] = entries[byte::INDEX_ENTRY_SIZE]
        return bytes(out)


def expected_keys(hasher: KeyHasher) -> ExpectedKeys:
    """The faster way where numpy is installed."""
    try:
        from trio_mq.lookinside.bulkkeys import Bulk
    except ImportError:
        return Plain(hasher)
    return Bulk(hasher)
