"""Small marker files of a store: checkpoint, abort marker, lock.

In: what has become durable. Out: what a start may rely on. Called by the flusher, by recovery and by the store's
opening and closing. Formats: ``docs/reference/store-format.md``; sources: Apache StoreCheckpoint,
DefaultMessageStore (abort file), StorePathConfigHelper.
"""

from __future__ import annotations

import attrs

from trio_mq.errors import StoreLocked
from trio_mq.protocol.layout import Checkpoint, pack_checkpoint, unpack_checkpoint
from trio_mq.store.disk import DirectoryLock, Disk

LOCK_CONTENT = b"lock"
#: Bytes 40 to 47 of the checkpoint: log offset before which the key index on the disk is whole. Apache leaves
#: them alone, RocketMQ-Rust keeps the same value there (indexSafePhyOffset).
_INDEX_SAFE_BYTES = 8


def index_safe_offset(checkpoint: Checkpoint) -> int:
    """Log offset before which the key index on the disk is whole; 0 when nobody said so."""
    return int.from_bytes(checkpoint.rest[:_INDEX_SAFE_BYTES], "big", signed=True)


def with_index_safe_offset(checkpoint: Checkpoint, log_offset: int) -> Checkpoint:
    """A checkpoint that says how far the key index on the disk is whole."""
    rest = log_offset.to_bytes(_INDEX_SAFE_BYTES, "big", signed=True)
    return attrs.evolve(checkpoint, rest=rest + checkpoint.rest[_INDEX_SAFE_BYTES:])


class CheckpointFile:
    """The file ``checkpoint``: how far log, queues and index are durable, as times of stored messages."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.disk = disk
        self.path = path
        self.value = Checkpoint()
        #: False when the file is missing or short: then nothing is known, and a start takes the careful path.
        self.known = False

    def load(self) -> None:
        """Read the file, if there is one."""
        if not self.disk.exists(self.path):
            return
        file = self.disk.open(self.path, readonly=True)
        try:
            found = unpack_checkpoint(file.read(max(1, file.size()), 0))
        finally:
            file.close()
        if found is not None:
            self.value = found
            self.known = True

    def save(self) -> None:
        """Write and sync the file. Blocking."""
        file = self.disk.open(self.path, create=True)
        try:
            file.write(pack_checkpoint(self.value), 0)
            file.sync()
        finally:
            file.close()


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
        owner = AbortMarker(disk, f"{root}/abort").owner()
        who = f"process {owner}" if owner else "another process"
        raise StoreLocked(
            f"the store {root} is open in {who}; stop it first, or choose another folder with --store"
        ) from error
