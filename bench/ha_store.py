"""The two stores that catching up is measured on: a slave's, and the same one some gigabytes later, its master's.

In: a cache folder, sizes. Out: :class:`Behind`, made once and copied for every run. A real pair gets there when its
slave is stopped and its master loaded; both kinds of broker write the same bytes, so one pair of stores serves both.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import attrs
import trio

from bench import recovery_store as stores
from bench.recovery_store import Origin, State

#: Records that both have.
COMMON = 20_000
#: What a record has besides its filler: fixed fields, topic, properties, the number in its body.
OVERHEAD_BYTES = 250


@attrs.frozen
class Behind:
    """Stores of a master, and of a slave that lacks the rest of the master's log."""

    master: Origin
    slave: Origin

    @property
    def missing_bytes(self) -> int:
        """Of the log."""
        return self.master.log_end - self.slave.log_end


def obtain(cache: Path, megabytes: int, body_bytes: int) -> Behind:
    """From the cache folder; made there first when it is not."""
    folder = cache / f"ha-{megabytes}-{body_bytes}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        records = COMMON + megabytes * 1_000_000 // (body_bytes + OVERHEAD_BYTES - 40)
        print(f"making stores in {folder}: {records:,} records of {body_bytes} bytes", flush=True)
        began = time.monotonic()
        filler = body_bytes - 40
        trio.run(stores.make, str(folder / "master"), COMMON, 0, filler)
        stores.copy(stores.read(folder / "master"), folder / "slave", State())
        _own_last_segment(folder / "slave")
        trio.run(stores.make, str(folder / "master"), records, COMMON, filler)
        (folder / "complete").touch()
        print(f"  took {time.monotonic() - began:.0f} s", flush=True)
    found = Behind(stores.read(folder / "master"), stores.read(folder / "slave"))
    assert found.missing_bytes >= 0.9 * megabytes * 1e6, "the estimate of a record's size is wrong"
    return found


def _own_last_segment(root: Path) -> None:
    """No file of the slave's is a link to one of the master's."""
    for file in (root / "commitlog").iterdir():
        assert file.stat().st_nlink == 1, f"{file} is shared"
