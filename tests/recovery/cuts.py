"""Stores whose log is cut by the next start, and looks into the quarantine of a store."""

from __future__ import annotations

import errno

from trio_mq.protocol.layout import Checkpoint, pack_checkpoint
from trio_mq.recovery.manifest import Manifest
from trio_mq.recovery.quarantine import Kept, listed
from trio_mq.testing.disk import MemoryDisk

from .stores import SEGMENT_BYTES, World

DAMAGED = 25
"""Number of the damaged record, in the first of some segments."""


class TwoFileSystems(MemoryDisk):
    """A disk whose folders of the first level are file systems of their own: nothing moves between them."""

    def rename(self, old: str, new: str) -> None:
        """Refuse what a machine refuses."""
        if old.split("/")[0] != new.split("/")[0]:
            raise OSError(errno.EXDEV, "Invalid cross-device link", old)
        super().rename(old, new)


async def damaged(world: World, count: int = 100, at: int = DAMAGED) -> dict[int, bytes]:
    """A killed store with a flipped bit in one record; returns all records from there on by offset.

    The checkpoint has times only, and all messages are young: the next start reads the whole log.
    """
    offsets = await world.filled(count, kill=True)
    now_ms = world.clock.now_ms()
    world.write(world.path("checkpoint"), pack_checkpoint(Checkpoint(now_ms, now_ms, now_ms)))
    world.flip(offsets[at] + 88)
    sizes = {o: int.from_bytes(world.read_log(4, o), "big") for o in offsets[at:]}
    return {offset: world.read_log(size, offset) for offset, size in sizes.items()}


def only(world: World) -> Kept:
    """The one folder that there is."""
    (kept,) = listed(world.disk, world.root)
    return kept


def manifest_of(kept: Kept) -> Manifest:
    """Its manifest, which has to be readable."""
    assert kept.manifest is not None
    return kept.manifest


def held(world: World, kept: Kept, offset: int, size: int) -> bytes:
    """What a folder has of a place of the log."""
    segment_bytes = world.settings.mapped_file_size_commit_log
    segment = offset - offset % segment_bytes
    path = f"{kept.folder}/{segment:020d}"
    if not world.disk.exists(path):
        return b""
    return world.read(path)[offset - segment : offset - segment + size]


def segment_names(world: World) -> list[str]:
    """Names of the log's files."""
    names = world.disk.list_dir(world.settings.commit_log_dir)
    assert all(len(name) == 20 for name in names), "nothing else is put there"
    assert [int(name) for name in names] == [
        int(names[0]) + n * SEGMENT_BYTES for n in range(len(names))
    ], "the log has no hole"
    return names
