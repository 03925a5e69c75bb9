"""Disks for recovery tests: the machine's own, and the one in memory."""

from __future__ import annotations

import pytest

from trio_mq.store.disk import RealDisk
from trio_mq.testing.disk import MemoryDisk

from .stores import World


@pytest.fixture(params=["memory", "real"])
def world(request, tmp_path) -> World:
    """A store to be, on each kind of disk."""
    disk = RealDisk() if request.param == "real" else MemoryDisk()
    return World.make(disk, str(tmp_path / "store"))
