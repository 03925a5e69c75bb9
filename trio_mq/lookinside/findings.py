"""What a check found: bounded, in order, and with one line for a run of like cases.

In: findings from the checks of log, queues, index and state files. Out: a :class:`Report`. A store of millions of
records may be wrong at millions of places, so neighbours are joined and only the first of each kind are kept; all are
counted.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import Any

import attrs

#: Findings of one kind that are kept; more are only counted.
KEPT_OF_A_KIND = 1000


class Kind(Enum):
    """What is wrong. The words are stable: programs may look for them."""

    FILE_SIZE = "file-size"
    LOG_DAMAGED = "log-damaged"
    LOG_TORN = "log-torn"
    LOG_MISSING = "log-missing"
    QUEUE_LACKS = "queue-lacks-record"
    QUEUE_WRONG = "queue-entry-wrong"
    QUEUE_STRAY = "queue-entry-without-record"
    QUEUE_SHIFTED = "queue-offset-shifted"
    QUEUE_TORN = "queue-entry-torn"
    INDEX_FILE = "index-file"
    INDEX_LACKS = "index-lacks-record"
    INDEX_WRONG = "index-entry-wrong"
    INDEX_STRAY = "index-entry-without-record"
    INDEX_CHAIN = "index-chain"
    STATE_FILE = "state-file"
    CHECKPOINT = "checkpoint"


@attrs.frozen
class Finding:
    """Something that is wrong. `offset` is a position in the file, in bytes; `count` how many cases it stands for."""

    kind: Kind
    path: str
    offset: int | None
    text: str
    count: int = 1

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "kind": self.kind.value,
            "path": self.path,
            "offset": self.offset,
            "count": self.count,
            "text": self.text,
        }

    def line(self) -> str:
        """For people."""
        at = "" if self.offset is None else f":{self.offset}"
        return f"{self.kind.value}: {self.path}{at}: {self.text}"


@attrs.define
class Report:
    """All that a check found; `notes` are worth knowing and not wrong, `counted` says what was looked at."""

    findings: list[Finding] = attrs.field(factory=list)
    notes: list[str] = attrs.field(factory=list)
    counted: dict[str, int] = attrs.field(factory=dict)
    #: How often each kind was found, with those that were not kept.
    totals: Counter[Kind] = attrs.field(factory=Counter)
    _lines: Counter[Kind] = attrs.field(factory=Counter)

    def add(self, kind: Kind, path: str, offset: int | None, text: str, count: int = 1) -> None:
        """Note a finding."""
        self.totals[kind] += count
        self._lines[kind] += 1
        if self._lines[kind] <= KEPT_OF_A_KIND:
            self.findings.append(Finding(kind, path, offset, text, count))

    def sort(self) -> None:
        """Put findings in the order of kinds, and of places."""
        order = {kind: number for number, kind in enumerate(Kind)}
        self.findings.sort(
            key=lambda f: (order[f.kind], f.path, -1 if f.offset is None else f.offset)
        )

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.totals

    @property
    def left_out(self) -> dict[Kind, int]:
        """How many findings of each kind were not kept."""
        return {k: n - KEPT_OF_A_KIND for k, n in self._lines.items() if n > KEPT_OF_A_KIND}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "sound": self.sound,
            "totals": {kind.value: count for kind, count in sorted(self.totals.items(), key=_name)},
            "findings": [finding.as_dict() for finding in self.findings],
            "leftOut": {kind.value: count for kind, count in self.left_out.items()},
            "notes": self.notes,
            "counted": self.counted,
        }


def _name(item: tuple[Kind, int]) -> str:
    return item[0].value
