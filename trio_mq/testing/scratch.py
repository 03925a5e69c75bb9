"""A real disk that waits for no disk: stores of tests end with their test, and need not outlive the machine.

In: the calls of a store. Out: files of the operating system that are never synced. Called by :mod:`.serve`.
"""

from __future__ import annotations

import os

from trio_mq.store.disk import File, RealDisk, RealFile


class ScratchFile(RealFile):
    """A file whose content may be lost with the power, and not with the process."""

    def sync(self) -> None:
        """Nothing has to be durable."""


class ScratchDisk(RealDisk):
    """See the module."""

    def open(self, path: str, *, create: bool = False, readonly: bool = False) -> File:
        """See :class:`trio_mq.store.disk.Disk`."""
        flags = os.O_RDONLY if readonly else os.O_RDWR
        return ScratchFile(path, flags | (os.O_CREAT if create else 0))

    def sync_dir(self, path: str) -> None:
        """Nothing has to be durable."""
