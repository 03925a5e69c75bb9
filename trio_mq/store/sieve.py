"""Which records of a queue a filter takes, where that needs a look into the records themselves.

In: queue entries, one by one, from the reader. Out: take it, pass over it, or stop here. Records are looked into for
filters by properties, and for entries whose tags code is elsewhere: Apache's brokers with ``enableConsumeQueueExt``
write an address in place of it. Rules: Apache ExpressionMessageFilter, ConsumeQueueExt.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from contextlib import suppress
from time import perf_counter
from typing import Final

from trio_mq.protocol import properties as props
from trio_mq.protocol.message import tags_code_of
from trio_mq.store.recordproperties import record_properties
from trio_mq.store.segments import ColdData

#: Time for looking into records of one read; the answer says how far that came.
BUDGET_S: Final = 0.01
#: Bytes that are fetched at once when records must be looked into that are on the disk only.
READ_AHEAD_BYTES: Final = 1024 * 1024
#: Read at once where records of a queue lie near each other: a call costs more than copying some pages.
WINDOW_BYTES: Final = 32 * 1024
NEAR_BYTES: Final = 4096
#: A tags code from here on down is an address in the extension files (Apache: ConsumeQueueExt.isExtAddr).
EXT_ADDRESS: Final = -(1 << 31) - 1


class Sieve:
    """One read's filter. `read` takes a size and a log offset, and may raise ColdData."""

    def __init__(
        self,
        read: Callable[[int, int], bytes],
        codes: Container[int] | None,
        accepts: Callable[[bytes], bool] | None,
    ) -> None:
        self._read = read
        self._codes = codes
        self._accepts = accepts
        self._until_s: float | None = None
        self._window, self._window_at = b"", 0
        self._end = -1

    def excludes(self, tags_code: int) -> bool:
        """Whether an entry's tags code is enough to pass over it."""
        codes = self._codes
        return codes is not None and tags_code not in codes and tags_code > EXT_ADDRESS

    def takes(self, tags_code: int, log_offset: int, size: int, *, first: bool) -> bool | None:
        """Whether to take a record that is not excluded; None to stop before it.

        `first` says that the read has not come anywhere yet: then the record is looked into whatever it costs, and
        ColdData gets out. Otherwise time and the disk can be reasons to stop.
        """
        by_address = self._codes is not None and tags_code <= EXT_ADDRESS
        if self._accepts is None and not by_address:
            return True
        now_s = perf_counter()
        if self._until_s is None:
            self._until_s = now_s + BUDGET_S
        elif now_s > self._until_s and not first:
            return None
        properties = self._properties(log_offset, size, wait=first)
        if properties is None:
            return None
        if by_address and not self._has_tag(properties):
            return False
        return self._accepts is None or self._accepts(properties)

    def _has_tag(self, properties: bytes) -> bool:
        tags = props.get(properties, b"TAGS")
        code = 0 if tags is None else tags_code_of(tags)
        return self._codes is None or code in self._codes

    def _properties(self, log_offset: int, size: int, *, wait: bool) -> bytes | None:
        try:
            found = record_properties(self._near, log_offset, size)
        except ColdData:
            if not wait:
                return None
            self._read(max(size, READ_AHEAD_BYTES), log_offset)
            found = record_properties(self._near, log_offset, size)
        self._end = log_offset + size
        return found

    def _near(self, size: int, log_offset: int) -> bytes:
        """As the log reads, but from a window that begins with the second of two neighbours."""
        at = log_offset - self._window_at
        if at >= 0 and at + size <= len(self._window):
            return self._window[at : at + size]
        data = b""
        if size < WINDOW_BYTES and 0 <= log_offset - self._end <= NEAR_BYTES:
            with suppress(ColdData):  # not all of it may be in memory, but the record
                data = self._read(WINDOW_BYTES, log_offset)
        if len(data) < size:
            return self._read(size, log_offset)
        self._window, self._window_at = data, log_offset
        return data[:size]
