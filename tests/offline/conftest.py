"""Stores of recovery tests, on each kind of disk."""

from __future__ import annotations

import pytest

from tests.recovery.stores import World
from trio_mq.store.disk import RealDisk
from trio_mq.testing.disk import MemoryDisk


@pytest.fixture(params=["memory", "real"])
def world(request, tmp_path) -> World:
    """A store to be, on each kind of disk."""
    disk = RealDisk() if request.param == "real" else MemoryDisk()
    return World.make(disk, str(tmp_path / "store"))
