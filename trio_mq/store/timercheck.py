"""The timer's checkpoint: up to where the timer's queue, its log and its wheel are on the disk.

In: how far the timer has come. Out: the file ``config/timercheck``, and the same bytes as the answer to code 60.
Called by :mod:`trio_mq.broker.timerstate` and by the processor of timer requests. Loading and saving block.
Format: ``docs/reference/store-format.md``; source: Apache TimerCheckpoint.
"""

from __future__ import annotations

import posixpath
from struct import Struct
from typing import Final

import attrs

from trio_mq.errors import BodyError
from trio_mq.store.disk import Disk

_FIELDS: Final = Struct(">7q")
#: The peers map a page.
_FILE_BYTES: Final = 4096
_OLD_BYTES: Final = 32


@attrs.frozen
class TimerCheckpoint:
    """All slots before `read_ms` were delivered; units before `log_end` are in log and wheel; messages before
    `queue_offset` of the timer's queue are in the log. `primary_queue_offset` is the same of the primary. The rest
    is the peers' data version: state version, time of the change (ms), number of changes."""

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    primary_queue_offset: int = 0
    state_version: int = 0
    changed_ms: int = 0
    changes: int = 0

    def pack(self) -> bytes:
        """56 bytes."""
        return _FIELDS.pack(*attrs.astuple(self))

    @classmethod
    def unpack(cls, data: bytes) -> TimerCheckpoint:
        """From the answer of a peer: 56 bytes, or 32 without a version from older ones. BodyError for less."""
        if len(data) < _OLD_BYTES:
            raise BodyError(f"a timer checkpoint has {_FIELDS.size} bytes, not {len(data)}")
        return cls(*_FIELDS.unpack(data[: _FIELDS.size].ljust(_FIELDS.size, b"\0")))


class TimerCheckFile:
    """The file ``timercheck``."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        #: What the file says.
        self.value = TimerCheckpoint()
        #: Whether there is one.
        self.known = False

    def load(self) -> None:
        """Read the file, if there is one with a checkpoint in it."""
        if not self._disk.exists(self.path):
            return
        file = self._disk.open(self.path, readonly=True)
        try:
            data = file.read(_FIELDS.size, 0)
        finally:
            file.close()
        if len(data) == _FIELDS.size and any(data):
            self.value = TimerCheckpoint(*_FIELDS.unpack(data))
            self.known = True

    def save(self, value: TimerCheckpoint) -> None:
        """Write and sync the file. All values lie in one sector: a power cut leaves the old or the new ones."""
        directory = posixpath.dirname(self.path)
        if not self.known:
            self._disk.make_dirs(directory)
        file = self._disk.open(self.path, create=True)
        try:
            if file.size() < _FILE_BYTES:
                file.truncate(_FILE_BYTES)
            file.write(value.pack(), 0)
            file.sync()
        finally:
            file.close()
        if not self.known:
            self._disk.sync_dir(directory)
            self.known = True
        self.value = value
