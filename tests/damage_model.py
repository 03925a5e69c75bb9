"""A naive model of what is left of a damaged golden store.

In: a :class:`tests.damages.Damage`. Out: :class:`Expected`, from the lists of records that Apache's decoder wrote: a
record is there if its bytes are what they were, and the log ends at the first one that is not. Nothing of trio_mq is
used, and no record is decoded.
"""

from __future__ import annotations

from collections import defaultdict

import attrs

from tests.damages import (
    BEFORE_LAST,
    BLANK_MAGIC,
    Damage,
    Files,
    Queue,
    Row,
    golden,
    read_log,
    rows,
)
from tests.golden_stores import SEGMENT_SIZE


@attrs.frozen
class Expected:
    """Bounds of the log; of each queue the bounds, and the log offsets of all messages that can be read, in order."""

    log_start: int
    log_end: int
    queues: dict[Queue, tuple[int, int]]
    messages: dict[Queue, list[int]]

    @classmethod
    def of(cls, damage: Damage) -> Expected:
        """What a start has to make of a damaged store."""
        files = damage.files()
        starts = _segments(files)
        if not starts:
            return cls._without_log(damage)
        whole, end = _whole(damage, files, starts)
        kept = [row for row in rows(damage.store) if row["offset"] < end]
        queues = {key: _bounds(starts[0], mine) for key, mine in _by_queue(kept).items()}
        messages = {
            key: [row["offset"] for row in mine if row["offset"] in whole]
            for key, mine in _by_queue(kept).items()
        }
        if damage.moves:
            offset = BEFORE_LAST["queueOffset"]
            queues[damage.moves] = (offset, offset + 1)
            messages[damage.moves] = [BEFORE_LAST["offset"]]
        return cls(starts[0], end, queues, messages)

    @classmethod
    def _without_log(cls, damage: Damage) -> Expected:
        """No offset is given twice: log and queues go on behind all that was."""
        last = rows(damage.store)[-1]
        end = -(-(last["offset"] + last["size"]) // SEGMENT_SIZE) * SEGMENT_SIZE
        ends = {key: _bounds(0, mine)[1] for key, mine in _by_queue(rows(damage.store)).items()}
        return cls(end, end, {key: (n, n) for key, n in ends.items()}, {key: [] for key in ends})


def _segments(files: Files) -> list[int]:
    """Starts of the log files; one of zero bytes at the end does not count."""
    found = sorted(p for p in files if p.startswith("commitlog/"))
    while found and not files[found[-1]]:
        found.pop()
    return [int(path.rpartition("/")[2]) for path in found]


def _whole(damage: Damage, files: Files, starts: list[int]) -> tuple[set[int], int]:
    """Log offsets of all records that are there before the log ends, and where that is."""
    original, whole, end = golden(damage.store), set[int](), starts[0]
    for row in rows(damage.store):
        offset, size = row["offset"], row["size"]
        if offset - offset % SEGMENT_SIZE not in starts:
            continue  # gone with its file, which does not end the log
        if not damage.unseen and read_log(files, offset, size) != read_log(original, offset, size):
            return whole, offset
        whole.add(offset)
        end = offset + size
    if read_log(files, end + 4, 4) == BLANK_MAGIC and starts[-1] > end:
        end += SEGMENT_SIZE - end % SEGMENT_SIZE  # the log goes on in the next file
    return whole, end


def _by_queue(kept: list[Row] | tuple[Row, ...]) -> dict[Queue, list[Row]]:
    found: dict[Queue, list[Row]] = defaultdict(list)
    for row in kept:
        found[row["topic"], row["queueId"]].append(row)
    return dict(found)


def _bounds(log_start: int, mine: list[Row]) -> tuple[int, int]:
    """First queue offset whose record has not gone with the log's first files, and the one behind the last."""
    end = max(row["queueOffset"] + int(row["properties"].get("INNER_NUM", 1)) for row in mine)
    left = [row["queueOffset"] for row in mine if row["offset"] >= log_start]
    return min(left, default=end), end
