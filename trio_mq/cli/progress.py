"""How far a long look at a store is: a bar on a terminal, a line now and then elsewhere, nothing when it is quick.

In: phase, offset and end, in bytes of the log. Out: text on stderr. Called by commands through
:data:`trio_mq.recovery.picture.Progress`. rich is loaded for a terminal only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

#: Before the first line, and between two of them.
LINE_S: Final = 2.0
_MIB: Final = 1024 * 1024
_PHASES: Final = {
    "survey": "reading the log",
    "cut": "reading what is behind the cut",
    "rehearsal": "rehearsing a start",
    "log": "recovering",
}


class Shown(Protocol):
    """Tells a phase, an offset, and the end as far as it is known."""

    def __call__(self, phase: str, offset: int, end: int) -> None:
        """Tell that."""
        ...


@contextmanager
def shown(*, quiet: bool) -> Iterator[Shown | None]:
    """Progress on stderr while the block runs; None when nobody wants it."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as bar:
            yield bar
    else:
        yield Lines()


class Lines:
    """A line every few seconds."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def __call__(self, phase: str, offset: int, end: int) -> None:
        """See :class:`Shown`."""
        now_s = time.monotonic()
        if now_s - self._told_s < LINE_S:
            return
        self._told_s = now_s
        percent = f", {100 * offset // end} %" if end else ""
        sys.stderr.write(f"{_PHASES.get(phase, phase)}: {offset // _MIB} MiB{percent}\n")
        sys.stderr.flush()


class Bar:
    """A bar of rich's for each phase."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, phase: str, offset: int, end: int) -> None:
        """See :class:`Shown`."""
        if phase not in self._tasks:
            self._tasks[phase] = self._progress.add_task(_PHASES.get(phase, phase), total=end)
        self._progress.update(self._tasks[phase], completed=offset, total=max(end, offset))


@contextmanager
def _bar() -> Iterator[Bar]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
    )
    with Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as progress:
        yield Bar(progress)
