"""What a recovery found and did, for people, for the ready line and for the log.

In: facts from :mod:`trio_mq.recovery.recover`, phase by phase. Out: a line of text, or a table for JSON.
"""

from __future__ import annotations

import attrs


@attrs.define
class RecoveryReport:
    """Filled while the phases go by. Offsets and lengths in bytes, times in seconds."""

    clean: bool = True
    why_careful: str | None = None
    walked_from: int = 0
    walk_reason: str = ""
    log_start: int = 0
    log_end: int = 0
    records: int = 0
    queues: int = 0
    cut_bytes: int = 0
    cut_reason: str | None = None
    #: Folder that keeps what was cut; None when nothing is kept.
    quarantine: str | None = None
    notes: list[str] = attrs.field(factory=list)
    phase_s: dict[str, float] = attrs.field(factory=dict)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "clean": self.clean,
            "log_start": self.log_start,
            "log_end": self.log_end,
            "walked_from": self.walked_from,
            "records": self.records,
            "queues": self.queues,
            "cut_bytes": self.cut_bytes,
            "cut_reason": self.cut_reason,
            "quarantine": self.quarantine,
            "notes": list(self.notes),
            "seconds": {name: round(value, 4) for name, value in self.phase_s.items()},
        }

    def line(self) -> str:
        """For the log."""
        exit_text = "after a clean stop" if self.clean else f"carefully, since {self.why_careful}"
        text = (
            f"recovered {exit_text}: log {self.log_start} to {self.log_end}, "
            f"{self.queues} queues, {self.records} records read from {self.walked_from}"
            f"{f' ({self.walk_reason})' if self.records else ''}"
        )
        if self.cut_reason:
            text += f"; {self.cut_bytes} bytes cut, {self.cut_reason}"
        if self.quarantine:
            text += f"; kept in {self.quarantine}"
        return text
