"""Faults instead of power cuts: one operation of the workload, or of a start, fails or is short.

In: which operation, and how. Out: nothing, or AssertionError. The rule: a broker refuses messages or stops, and a
start ends with an error of ours; and when the disk works again, all that was acknowledged is there.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Final

from tests.sweep.workload import Recording, deterministically
from trio_mq.errors import TrioMQError
from trio_mq.testing.disk import MemoryDisk, Operation

#: Operations for which a disk without room has none.
_TAKES_ROOM: Final = ("create", "write", "truncate", "make_dirs")
#: How many operations a full disk lasts.
_FULL_OPERATIONS: Final = 25


def error_once(disk: MemoryDisk, number: int) -> None:
    """An operation fails once with EIO."""
    disk.fail_when(lambda op: op.number == number, errno.EIO)


def no_room_once(disk: MemoryDisk, number: int) -> None:
    """An operation fails once for want of room."""
    disk.fail_when(lambda op: op.number == number, errno.ENOSPC)


def full_for_a_while(disk: MemoryDisk, number: int) -> None:
    """Nothing can be written for some operations."""

    def matches(op: Operation) -> bool:
        return number <= op.number < number + _FULL_OPERATIONS and op.kind in _TAKES_ROOM

    disk.fail_when(matches, errno.ENOSPC)


def short(disk: MemoryDisk, number: int) -> None:
    """A write takes a part of its data; the rest is taken when it is tried."""
    disk.short_when(lambda op: op.number == number)


def short_then_full(disk: MemoryDisk, number: int) -> None:
    """A write takes a part of its data, and there is no room for the rest."""
    disk.short_when(lambda op: op.number == number)
    disk.fail_when(lambda op: op.number == number + 1 and op.kind == "write", errno.ENOSPC)


Fault = Callable[[MemoryDisk, int], None]
FAULTS: Final[dict[str, Fault]] = {
    fault.__name__: fault
    for fault in (error_once, no_room_once, full_for_a_while, short, short_then_full)
}


def worth_trying(operations: list[Operation]) -> Iterator[tuple[str, int]]:
    """The faults that can happen, by name and number of the operation."""
    for operation in operations:
        for name in FAULTS:
            if not name.startswith("short") or operation.kind == "write":
                yield name, operation.number


def run_with(seed: int, percent: int, name: str, number: int) -> Recording:
    """Run the workload with a fault. Its only moment is the last one, when the disk works again.

    Raises what is no error of the disk and none of ours.
    """
    recording = Recording(
        seed, lambda _: False, lambda disk: FAULTS[name](disk, number), percent=percent
    )
    try:
        deterministically(seed, recording.run)
    except (OSError, TrioMQError):
        pass
    except BaseExceptionGroup as group:
        _, others = group.split((OSError, TrioMQError))
        if others is not None:
            raise others from group
    return recording
