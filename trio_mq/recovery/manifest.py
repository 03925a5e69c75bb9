"""The manifest of a folder in the quarantine: what was cut from the log, when and why, and which files hold it.

In and out: the bytes of ``manifest.json``. Used by :mod:`trio_mq.recovery.quarantine`; pure. The format is ours:
``docs/reference/store-format.md``.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime

import attrs


@attrs.frozen
class KeptFile:
    """A segment-named file: it holds the log from `begin` to `end`, each byte where it was in its segment.

    `data_bytes` leaves holes out. A file that is not there was still in the log when the start was cut short.
    """

    name: str
    begin: int
    end: int
    data_bytes: int


@attrs.frozen
class Manifest:
    """One cut. `length` bytes were written behind log offset `offset`, and the first `kept_length` are kept."""

    offset: int
    length: int
    kept_length: int
    reason: str
    time_ms: int
    segment_bytes: int
    files: tuple[KeptFile, ...]

    def encode(self) -> bytes:
        """As JSON for people and programs."""
        at = _time(self.time_ms)
        value = {
            "offset": self.offset,
            "length": self.length,
            "kept_length": self.kept_length,
            "reason": self.reason,
            "time_ms": self.time_ms,
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{self.time_ms % 1000:03d}Z",
            "segment_bytes": self.segment_bytes,
            "files": [attrs.asdict(file) for file in self.files],
        }
        return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """Read it back; raises ValueError for anything else."""
        try:
            value = json.loads(data)
            numbers = {
                name: int(value[name])
                for name in ("offset", "length", "kept_length", "time_ms", "segment_bytes")
            }
            files = tuple(
                KeptFile(
                    str(file["name"]), int(file["begin"]), int(file["end"]), int(file["data_bytes"])
                )
                for file in value["files"]
            )
            return cls(reason=str(value["reason"]), files=files, **numbers)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"it is no manifest of a cut ({error!r})") from error


def stamp(time_ms: int) -> str:
    """Time as names of folders have it, in UTC: `yyyymmddTHHMMSSmmm`."""
    return f"{_time(time_ms):%Y%m%dT%H%M%S}{time_ms % 1000:03d}"


def _time(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms // 1000, UTC)
