"""The log of a slave: bytes of the master's appended as they come, then taken over into queues and index.

In: pieces of the master's log. Out: the same bytes at the same offsets, and entries of all whole records among them.
Called by :mod:`trio_mq.ha.replica`; :meth:`LogCopy.run` is a task of the store's stage. The loop's thread appends;
nobody else does on a slave. Rules: Apache CommitLog.appendData, DefaultMessageStore.ReputMessageService.
"""

from __future__ import annotations

from trio_mq.errors import StoreError
from trio_mq.store.store import Store
from trio_mq.tasks import Watermark


class LogsDiffer(StoreError):
    """Bytes that do not continue this log: another offset, or other sizes of files."""


class LogCopy:
    """The log of a store, as the copy of another one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: Everything before is here: written, or with SYNC_FLUSH durable. What a slave reports.
        self.kept = Watermark(store.confirmed)

    @property
    def end(self) -> int:
        """Where the next byte goes; 0 in an empty log."""
        return self._store.log.written

    def append(self, offset: int, data: bytes | memoryview) -> None:
        """Write bytes at the end of the log, which has to be `offset`; an empty log begins there.

        LogsDiffer when they do not belong there, OSError when the disk does not take them; nothing has changed then.
        """
        raise NotImplementedError
