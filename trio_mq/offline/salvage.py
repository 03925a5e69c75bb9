"""Records that a start would cut off, written to a file that ``trio-mq store import`` reads.

In: a rehearsal. Out: a file of JSON lines, one record each, in the order of the log. Called by ``trio-mq recover
--salvage``, before anything is changed. The form of a line: ``docs/reference/message-lines.md``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TextIO

import attrs

from trio_mq.lookinside.lines import without_checksum
from trio_mq.lookinside.records import lot_records
from trio_mq.lookinside.shown import as_line
from trio_mq.offline.rehearsal import Rehearsal
from trio_mq.store.disk import Naming

LINES_AT_ONCE = 2000


async def salvage(rehearsal: Rehearsal, target: TextIO) -> int:
    """Write all records that a start would cut off, durably; returns how many. An OSError names the file."""
    lines = _lines(rehearsal)
    count = 0
    while written := await rehearsal.run_blocking(partial(_write_some, lines, target)):
        count += written
    await rehearsal.run_blocking(partial(_finish, target))
    return count


def _lines(rehearsal: Rehearsal) -> Iterator[str]:
    for lot in rehearsal.lost_lots():
        for raw in lot_records(rehearsal.segments, lot):
            message = raw.decoded()
            yield as_line(attrs.evolve(message, properties=without_checksum(message.properties)))


def _write_some(lines: Iterator[str], target: TextIO) -> int:
    count = 0
    for line in islice(lines, LINES_AT_ONCE):
        with Naming(target.name):
            target.write(line + "\n")
        count += 1
    return count


def _finish(target: TextIO) -> None:
    with Naming(target.name):
        target.flush()
        os.fsync(target.fileno())
