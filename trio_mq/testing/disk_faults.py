"""Faults of the disk in memory: operations and reads that fail, writes that are short, and power that is cut.

In: what a test asks for. Out: :meth:`Faults.step` and :meth:`Faults.check_read`, which the disk calls before each
operation and each read, raise what was asked for. Base of :class:`trio_mq.testing.disk.MemoryDisk`; called by tests.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import Literal

import attrs

OperationKind = Literal[
    "create",
    "write",
    "truncate",
    "sync",
    "make_dirs",
    "remove",
    "remove_tree",
    "rename",
    "sync_dir",
    "lock",
]


class PowerCut(BaseException):
    """The machine went off; not an Exception, so that no handler under test swallows it."""


@attrs.frozen
class Operation:
    """One call that changes the disk; `number` counts them from 1."""

    number: int
    kind: OperationKind
    path: str


class Faults:
    """What goes wrong on a disk, and the operations so far."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        #: Numbers of those that failed.
        self.failed: set[int] = set()
        #: Called with each changing operation before it has any effect.
        self.before: Callable[[Operation], None] | None = None
        self._faults: list[tuple[Callable[[Operation], bool], int | None]] = []
        self._short: list[Callable[[Operation], bool]] = []
        self._bad_reads: list[tuple[Callable[[str, int, int], bool], int]] = []
        self._off = False

    def fail_at(self, count: int, error: int = errno.ENOSPC) -> None:
        """Let the `count`-th changing operation from now (1 = the next) fail once with `error`."""
        number = len(self.operations) + count
        self.fail_when(lambda operation: operation.number == number, error)

    def fail_when(self, matches: Callable[[Operation], bool], error: int = errno.EIO) -> None:
        """Let each operation that `matches` fail with the errno `error`, until :meth:`heal`."""
        self._faults.append((matches, error))

    def kill_at(self, count: int) -> None:
        """Cut the power at the `count`-th changing operation from now: it raises :class:`PowerCut`.

        From then on every call raises it, until :meth:`crash` starts the machine again.
        """
        number = len(self.operations) + count
        self._faults.append((lambda operation: operation.number == number, None))

    def short_when(self, matches: Callable[[Operation], bool]) -> None:
        """Let each write that `matches` take only half of its data; the rest is the next operation."""
        self._short.append(matches)

    def fail_reads(self, matches: Callable[[str, int, int], bool], error: int = errno.EIO) -> None:
        """Let reads fail whose path, offset and size `matches`. (Not those through mapped memory.)"""
        self._bad_reads.append((matches, error))

    def heal(self) -> None:
        """Forget all faults that were asked for."""
        self._faults.clear()
        self._short.clear()
        self._bad_reads.clear()

    def step(self, kind: OperationKind, path: str) -> bool:
        """Count a changing operation, and let it fail if a fault was asked for; whether it is short."""
        self.check_power()
        operation = Operation(len(self.operations) + 1, kind, path)
        self.operations.append(operation)
        if self.before is not None:
            self.before(operation)
        for matches, error in self._faults:
            if not matches(operation):
                continue
            if error is None:
                self._off = True
                raise PowerCut(f"power cut at operation {operation.number}: {kind} {path}")
            self.failed.add(operation.number)
            raise os_error(error, path)
        return any(matches(operation) for matches in self._short)

    def check_read(self, path: str, offset: int, size: int) -> None:
        """Let a read fail if a fault was asked for."""
        for matches, error in self._bad_reads:
            if matches(path, offset, size):
                raise os_error(error, path)

    def check_power(self) -> None:
        """Raise :class:`PowerCut` while the machine is off."""
        if self._off:
            raise PowerCut("the machine is off")


def os_error(code: int, path: str) -> OSError:
    """An error as the operating system gives it."""
    return OSError(code, os.strerror(code), path)
