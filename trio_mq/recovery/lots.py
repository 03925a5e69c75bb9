"""Whole records that follow each other in the log: what both ways of reading it hand on.

In: the verdicts of :func:`trio_mq.protocol.verdict.check`. Out: a :class:`Lot` with counts and ends, which nobody has
to look into, and the records themselves. A lot of many records may also come as columns
(:class:`trio_mq.recovery.columns.ColumnLot`), which are made into records only when somebody asks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from trio_mq.protocol.verdict import Whole


class Lot(ABC):
    """Some records in log order without anything between them; offsets are bytes of the log, times ms."""

    __slots__ = ()

    @property
    @abstractmethod
    def begin(self) -> int:
        """Offset of the first record."""

    @property
    @abstractmethod
    def end(self) -> int:
        """Offset behind the last record."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many records there are, at least one."""

    @property
    @abstractmethod
    def newest_ms(self) -> int:
        """The latest store time of a record."""

    @abstractmethod
    def records(self) -> Sequence[Whole]:
        """The records."""

    @abstractmethod
    def queue_offsets(self) -> Iterable[tuple[bytes, int, int]]:
        """Topic, queue id and queue offset of each record."""

    @abstractmethod
    def by_queue(self) -> dict[tuple[str, int], int]:
        """How many records each topic and queue id has."""


class RecordLot(Lot):
    """Records that were checked one by one."""

    __slots__ = ("_records",)

    def __init__(self, records: Sequence[Whole]) -> None:
        assert records
        self._records = records

    @property
    def begin(self) -> int:
        """See :class:`Lot`."""
        return self._records[0].log_offset

    @property
    def end(self) -> int:
        """See :class:`Lot`."""
        return self._records[-1].log_offset + self._records[-1].size

    @property
    def count(self) -> int:
        """See :class:`Lot`."""
        return len(self._records)

    @property
    def newest_ms(self) -> int:
        """See :class:`Lot`."""
        return max(record.store_timestamp_ms for record in self._records)

    def records(self) -> Sequence[Whole]:
        """See :class:`Lot`."""
        return self._records

    def queue_offsets(self) -> Iterable[tuple[bytes, int, int]]:
        """See :class:`Lot`."""
        return ((r.topic.encode(), r.queue_id, r.queue_offset) for r in self._records)

    def by_queue(self) -> dict[tuple[str, int], int]:
        """See :class:`Lot`."""
        counts: dict[tuple[str, int], int] = {}
        for record in self._records:
            key = record.topic, record.queue_id
            counts[key] = counts.get(key, 0) + 1
        return counts
