"""How far each delay level has been delivered: the table behind ``delayOffset.json``.

In: progress from the delivery of delayed messages (:mod:`trio_mq.broker.delays`), and the content of the file. Out:
offsets in the queues of the schedule topic, by level from 1. Called by the delivery, by
:mod:`trio_mq.broker.tables` and by the processor of GET_ALL_DELAY_OFFSET. No IO; the clock only dates changes. Format
of the file: ``docs/reference/state-files.md``. Rules: Apache ScheduleMessageService, DelayOffsetSerializeWrapper.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trio_mq.broker.statejson import is_older, json_object, next_version
from trio_mq.clock import Clock
from trio_mq.errors import BodyError
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import DataVersion

#: Updates between two changes of the version (Apache: delayOffsetUpdateVersionStep).
VERSION_STEP: Final = 200
_FIELDS_OF_FILE: Final = ("dataVersion", "offsetTable")


class DelayOffsets:
    """For each delay level the queue offset behind the last message that is delivered for good."""

    def __init__(self, clock: Clock, version_step: int = VERSION_STEP) -> None:
        self.version = DataVersion()
        self._clock = clock
        self._version_step = version_step
        self._offsets: dict[int, int] = {}
        self._updates = 0
        self._revision = 0
        self._unknown_of_file: dict[str, Any] = {}

    def get(self, level: int) -> int | None:
        """The offset of a level; None when nothing is known of it."""
        return self._offsets.get(level)

    @property
    def levels(self) -> Mapping[int, int]:
        """Offsets by level."""
        return self._offsets

    def update(self, level: int, offset: int) -> None:
        """A level has come to `offset`. It may go back: after damage, or when its queue begins anew."""
        if self._offsets.get(level) == offset:
            return
        self._offsets[level] = offset
        self._revision += 1
        self._updates += 1
        if self._updates % self._version_step == 0:
            self.version = next_version(self.version, self._clock.now_ms())

    # -- the master's table, and the file delayOffset.json

    def take_over(self, value: Any) -> bool:
        """Follow the master, given its answer; False, and no change, if that is of a state before ours.

        At the same version no level goes back: the version counts only every so many steps, and what a master that
        went down had not saved is no reason to deliver it again. At a later version levels are where the master says,
        since it may have had to begin a queue anew. :class:`BodyError`, and no change, if it is no such table.
        """
        offsets, version = _parsed(value)
        if is_older(version, self.version):
            return False
        for level, offset in offsets.items():
            before = self._offsets.get(level)
            if version == self.version != DataVersion() and before is not None:
                offset = max(before, offset)
            if offset != before:
                self._offsets[level] = offset
                self._revision += 1
        self._revision += version != self.version
        self.version = version
        return True

    def follow_anew(self) -> None:
        """The end of our log was given up, and what was delivered there: next, levels are where the master says."""
        self.version = DataVersion()

    @property
    def revision(self) -> int:
        """Grows with each change that has to be saved."""
        return self._revision

    def read_json(self, value: Any) -> None:
        """Take the offsets of a file; keys are numbers of levels, quoted or not."""
        offsets, version = _parsed(value)
        self._offsets = offsets
        self._unknown_of_file = {
            key: item for key, item in value.items() if key not in _FIELDS_OF_FILE
        }
        self.version = version

    def to_json(self) -> Any:
        """The content of the file, and of the answer to peers."""
        return {
            **self._unknown_of_file,
            "dataVersion": bodies.unstructure(self.version),
            "offsetTable": dict(sorted(self._offsets.items())),
        }


def _parsed(value: Any) -> tuple[dict[int, int], DataVersion]:
    """Offsets by level, and the version, of a file or of a master's answer."""
    if not isinstance(value, dict):
        raise BodyError("delayOffset.json is not an object")
    offsets: dict[int, int] = {}
    for key, offset in json_object(value.get("offsetTable"), "offsetTable").items():
        if not key.isascii() or not key.isdigit() or type(offset) is not int or offset < 0:
            raise BodyError(f"delayOffset.json: level {key!r} has offset {offset!r}")
        offsets[int(key)] = offset
    return offsets, bodies.structure(DataVersion, value.get("dataVersion") or {})
