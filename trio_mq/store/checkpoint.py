"""Small marker files of a store: checkpoint, abort marker, lock.

In: what has become durable. Out: what a start may rely on. Called by the flusher, by recovery and by the store's
opening and closing. Formats: ``docs/reference/store-format.md``; sources: Apache StoreCheckpoint,
DefaultMessageStore (abort file), StorePathConfigHelper.
"""

from __future__ import annotations

import os
import struct
from typing import Final

import attrs

from trio_mq.errors import StoreDamaged, StoreLocked
from trio_mq.protocol.layout import Checkpoint, pack_checkpoint, unpack_checkpoint
from trio_mq.store.disk import DirectoryLock, Disk

LOCK_CONTENT: Final = b"lock"
#: Bytes 40 to 63 of the checkpoint, which Apache leaves alone: see :class:`Marks`. RocketMQ-Rust keeps the same
#: value as we do in the first eight (indexSafePhyOffset).
_MARKS: Final = struct.Struct(">qqq")


@attrs.frozen
class Marks:
    """What a checkpoint says in bytes that Apache does not use. Both are log offsets.

    `safe_offset`: queue entries and index keys of all records before are on the disk; 0 when nobody says so. It is
    kept with the queues' time in the checkpoint: when a peer has moved that since, the mark counts no more.
    `replay_from`: a recovery that began there has not ended, so the next one begins there, too; None otherwise.
    """

    safe_offset: int = 0
    replay_from: int | None = None


def read_marks(checkpoint: Checkpoint) -> Marks:
    """The marks in a checkpoint."""
    safe, logics_ms, replay = _MARKS.unpack_from(checkpoint.rest)
    if safe < 0 or logics_ms != checkpoint.logics_timestamp_ms:
        safe = 0
    return Marks(safe, replay - 1 if replay > 0 else None)


def with_marks(checkpoint: Checkpoint, marks: Marks) -> Checkpoint:
    """A checkpoint with other marks."""
    replay = 0 if marks.replay_from is None else marks.replay_from + 1
    packed = _MARKS.pack(marks.safe_offset, checkpoint.logics_timestamp_ms, replay)
    return attrs.evolve(checkpoint, rest=packed + checkpoint.rest[_MARKS.size :])


def with_index_safe_offset(checkpoint: Checkpoint, log_offset: int) -> Checkpoint:
    """A checkpoint that says how far queues and key index on the disk are whole."""
    return with_marks(checkpoint, Marks(log_offset))


class CheckpointFile:
    """The file ``checkpoint``: how far log, queues and index are durable, as times of stored messages."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path
        self.value = Checkpoint()
        #: False when the file is missing or short: then nothing is known, and a start takes the careful path.
        self.known = False

    def load(self) -> None:
        """Read the file, if there is one; :class:`StoreDamaged` with the way out when it is something else."""
        if not self.disk.exists(self.path):
            return
        file = self.disk.open(self.path, readonly=True)
        try:
            found = unpack_checkpoint(file.read(max(1, file.size()), 0))
        except StoreDamaged as error:
            raise StoreDamaged(
                f"{self.path} cannot be used: {error}. To go on without it: mv '{self.path}' '{self.path}.lost'; "
                f"then the start takes the careful path."
            ) from error
        finally:
            file.close()
        if found is not None:
            self.value = found
            self.known = True

    def save(self) -> None:
        """Write and sync the file, and its name when it may be new. Blocking.

        All values lie in one sector, so a power cut leaves the old or the new ones.
        """
        file = self.disk.open(self.path, create=True)
        try:
            file.write(pack_checkpoint(self.value), 0)
            file.sync()
        finally:
            file.close()
        if not self.known:
            self.disk.sync_dir(os.path.dirname(self.path))
            self.known = True


class AbortMarker:
    """The file ``abort``: there while a broker runs, and after one that did not stop cleanly."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path

    @property
    def present(self) -> bool:
        """Whether the last exit was not clean (or a broker runs)."""
        return self.disk.exists(self.path)

    def owner(self) -> str:
        """Process id of the broker that runs or crashed, as text; empty when unknown."""
        if not self.present:
            return ""
        file = self.disk.open(self.path, readonly=True)
        try:
            return file.read(32, 0).decode("ascii", "replace").strip("\0 \r\n")
        finally:
            file.close()

    def create(self, process_id: int, directory: str) -> None:
        """Leave the marker, durably. Blocking."""
        file = self.disk.open(self.path, create=True)
        try:
            file.truncate(0)
            file.write(str(process_id).encode(), 0)
            file.sync()
        finally:
            file.close()
        self.disk.sync_dir(directory)

    def remove(self, directory: str) -> None:
        """Take the marker away, durably: everything else must be durable before. Blocking."""
        self.disk.remove(self.path)
        self.disk.sync_dir(directory)


def take_lock(disk: Disk, root: str) -> DirectoryLock:
    """Own the store at `root`, before anything in it is read; raises :class:`StoreLocked` with the owner."""
    try:
        return disk.lock(f"{root}/lock", LOCK_CONTENT)
    except StoreLocked as error:
        # The marker may be that of an earlier crash, when the other process has just begun.
        owner = str(error.owner or "") or AbortMarker(disk, f"{root}/abort").owner()
        who = f"process {owner}" if owner else "another process"
        raise StoreLocked(
            f"the store {root} is open in {who}; stop it first, or choose another folder with --store",
            owner=error.owner,
        ) from error
