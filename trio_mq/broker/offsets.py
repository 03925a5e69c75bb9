"""How far each consumer group is in each queue, and resets that wait for their next pull.

In: commits, pulls and resets from processors, the bounds of queues, and the content of
``consumerOffset.json``. Out: offsets (positions in a queue, counted in messages). Called by
processors and by :mod:`trio_mq.broker.tables`. No IO; the clock only dates changes. Only committed
offsets are saved; pull offsets and pending resets are gone after a restart, as with the peers.
Format of the file: ``docs/reference/state-files.md``. Rules: Apache ConsumerOffsetManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final

import attrs
import msgspec

from trio_mq.broker.names import LMQ_PREFIX
from trio_mq.broker.statejson import is_older, json_object, next_version
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.config.kinds import LONG_MAX
from trio_mq.errors import BodyError
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import ConsumerOffsetWrapper, DataVersion

log = logging.getLogger("trio_mq.broker.offsets")

SEPARATOR: Final = "@"
"""Between topic and group in the keys of the table; neither name may have it."""

_KEPT: Final = "keptOffsets"
_FIELDS_OF_FILE: Final = ("dataVersion", "offsetTable", "groupTopicMap", "lmqOffsetTable", _KEPT)


class Commit(Enum):
    """What became of a commit."""

    STORED = "stored"
    WENT_BACK = "went back"
    """Stored, though it is less than what was stored before."""
    IGNORED = "ignored"
    """Not stored: a reset waits for the next pull of the queue."""


@attrs.frozen
class Clamped:
    """A stored offset that lay behind the end of its queue and was set to that end."""

    group: str
    topic: str
    queue_id: int
    before: int
    after: int


def split_key(key: str) -> tuple[str, str] | None:
    """Topic and group of a key, or None if it does not have exactly these two parts."""
    topic, _, group = key.partition(SEPARATOR)
    return (topic, group) if topic and group and SEPARATOR not in group else None


class ConsumerOffsets:
    """Committed offsets, pull offsets and pending resets by topic, group and queue."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self.version = DataVersion()
        #: Whether the file is the one for light queues (LMQ), as Apache has it with enableLmq.
        self.lmq = False
        #: Whether this is the copy of a master's table. Then only what that says has a version.
        self.following = False
        self._clock = clock
        self._use_resets = settings.use_server_side_reset_offset
        self._version_step = settings.consumer_offset_update_version_step
        self._committed: dict[str, dict[int, int]] = {}
        self._pulled: dict[str, dict[int, int]] = {}
        self._resets: dict[str, dict[int, int]] = {}
        #: Of a copy: where offsets of ours stay though the master has less, and what it last had.
        self._kept: dict[str, dict[int, int]] = {}
        self._commits = 0
        self._revision = 0
        self._unknown_of_file: dict[str, Any] = {}

    # -- commits and queries

    def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, client: str = ""
    ) -> Commit:
        """Store how far a group is; `client` is named in the log if that is less than before."""
        if self.pending_reset(group, topic, queue_id) is not None:
            return Commit.IGNORED
        key = f"{topic}@{group}"
        table = self._committed.setdefault(key, {})
        before = table.get(queue_id)
        if before != offset:  # clients commit every 5 s whether they have moved or not
            table[queue_id] = offset
            self._revision += 1
            if self.following:
                self._kept.setdefault(key, {}).setdefault(
                    queue_id, -1 if before is None else before
                )
        self._commits += 1
        if self._commits % self._version_step == 0 and not self.following:
            self.version = next_version(self.version, self._clock.now_ms())
        if before is None or before <= offset:
            return Commit.STORED
        log.warning(
            "group %s went back on %s queue %d: %d to %d, committed by %s",
            *(group, topic, queue_id, before, offset, client or "the broker"),
        )
        return Commit.WENT_BACK

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The stored offset, or the pending reset, or None if there is neither."""
        reset = self.pending_reset(group, topic, queue_id)
        if reset is not None:
            return reset
        return self._committed.get(f"{topic}@{group}", {}).get(queue_id)

    def of(self, group: str, topic: str) -> Mapping[int, int]:
        """Stored offsets of a group in a topic, by queue."""
        return self._committed.get(f"{topic}@{group}", {})

    def read_queues(self) -> set[tuple[str, int]]:
        """Topic and queue id of each queue that a group has read something from: such a queue had messages."""
        found: set[tuple[str, int]] = set()
        for key, table in self._committed.items():
            parts = split_key(key)
            if parts is not None:
                found.update(
                    (parts[0], queue_id) for queue_id, offset in table.items() if offset > 0
                )
        return found

    def pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Remember where the next pull of a group will be, for statistics."""
        self._pulled.setdefault(f"{topic}@{group}", {})[queue_id] = offset

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the next pull of a group will be; the stored offset if it has not pulled yet."""
        offset = self._pulled.get(f"{topic}@{group}", {}).get(queue_id)
        return self.query(group, topic, queue_id) if offset is None else offset

    # -- resets by the broker

    def assign_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Store an offset, and let the next pull of the queue hear of it."""
        key = f"{topic}@{group}"
        self._resets.setdefault(key, {})[queue_id] = offset
        self._committed.setdefault(key, {})[queue_id] = offset
        self._revision += 1

    def pending_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The reset that waits for the next pull of a queue."""
        if not self._resets or not self._use_resets:
            return None
        return self._resets.get(f"{topic}@{group}", {}).get(queue_id)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The reset that waits for this pull, which then is over.

        That pull's own commit must not be stored: it is from before the reset.
        """
        offset = self.pending_reset(group, topic, queue_id)
        if offset is not None:
            key = f"{topic}@{group}"
            del self._resets[key][queue_id]
            if not self._resets[key]:
                del self._resets[key]
        return offset

    # -- after damage to the log

    def clamp(self, group: str, topic: str, queue_id: int, max_offset: int) -> Clamped | None:
        """Take a stored offset that lies behind the end of its queue back to that end.

        After a power cut the log can be shorter than what was consumed of it. Left alone, the
        group would not see new messages until the queue has grown up to its offset.
        """
        table = self._committed.get(f"{topic}@{group}", {})
        before = table.get(queue_id)
        if before is None or before <= max_offset:
            return None
        table[queue_id] = max_offset
        self._revision += 1
        log.warning(
            "group %s had consumed %s queue %d up to %d, but the queue ends at %d after recovery; "
            "it goes on from there",
            *(group, topic, queue_id, before, max_offset),
        )
        return Clamped(group, topic, queue_id, before, max_offset)

    def clamp_all(self, max_offset: Callable[[str, int], int | None]) -> list[Clamped]:
        """Apply :meth:`clamp` to all; `max_offset` answers None for a queue it knows nothing of."""
        found: list[Clamped] = []
        for key, table in self._committed.items():
            names = split_key(key)
            if names is None:
                continue
            topic, group = names
            for queue_id in list(table):
                end = max_offset(topic, queue_id)
                clamped = None if end is None else self.clamp(group, topic, queue_id, end)
                if clamped is not None:
                    found.append(clamped)
        return found

    # -- topics and groups

    def topics_of(self, group: str) -> list[str]:
        """Sorted topics that a group has offsets in."""
        return sorted(names[0] for names in self._names() if names[1] == group)

    def groups_of(self, topic: str) -> list[str]:
        """Sorted groups that have offsets in a topic."""
        return sorted(names[1] for names in self._names() if names[0] == topic)

    def clone(self, source_group: str, target_group: str, topic: str) -> None:
        """Let one group be where another one is in a topic."""
        table = self._committed.get(f"{topic}@{source_group}")
        if table is not None:
            self._committed[f"{topic}@{target_group}"] = dict(table)
            self._revision += 1

    def remove_topic(self, topic: str) -> bool:
        """Forget all offsets in a topic; whether there were any stored."""
        return self._remove(lambda names: names[0] == topic)

    def remove_group(self, group: str) -> bool:
        """Forget all offsets of a group; whether there were any stored."""
        return self._remove(lambda names: names[1] == group)

    def _names(self) -> list[tuple[str, str]]:
        return [names for key in self._committed if (names := split_key(key))]

    def _remove(self, matches: Callable[[tuple[str, str]], bool]) -> bool:
        def drop(table: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
            keys = [key for key in table if (names := split_key(key)) and matches(names)]
            return {key: table.pop(key) for key in keys}

        drop(self._pulled)
        drop(self._resets)
        drop(self._kept)
        removed = drop(self._committed)
        for key, offsets in removed.items():
            log.info("offsets of %s removed: %s", key, offsets)
        self._revision += len(removed)
        return bool(removed)

    def wrapper(self) -> ConsumerOffsetWrapper:
        """The table as peers get it."""
        return ConsumerOffsetWrapper(_copy(self._committed), self.version)

    def encoded(self) -> bytes:
        """The bytes of :meth:`wrapper`, made in a hurry: it may have many thousands of queues, and slaves ask often."""
        pairs = []
        for key in sorted(self._committed):
            queues = sorted(self._committed[key].items())
            text = ",".join([f"{queue_id}:{offset}" for queue_id, offset in queues])
            pairs.append(b"%b:{%b}" % (msgspec.json.encode(key), text.encode()))
        version = bodies.encode(self.version)
        return b'{"dataVersion":%b,"offsetTable":{%b}}' % (version, b",".join(pairs))

    # -- following a master

    def take_over(self, value: Any, *, returned: bool) -> bool:
        """Follow the master, given its answer; False if that is of a state before ours, and nothing went back.

        Each queue is where the master says, forward or back. What the master does not have stays. What consumers
        committed here, while they could not reach the master, stays where the master has less, until it has as much:
        the consumers tell it themselves. Only when it goes back while it is there, somebody wants that, and it goes
        back here, too. `returned` says that this is the first answer since the connection to the master was made: it
        may have lost its last commits, and less than before means nothing. :class:`BodyError`, and no change, if it
        is no such table.
        """
        table, version = _parsed(value)
        older = is_older(version, self.version)
        for key, offsets in table.items():
            mine = self._committed.setdefault(key, {})
            for queue_id, offset in offsets.items():
                before = mine.get(queue_id)
                if before == offset and key not in self._kept:
                    continue
                if before is None or not self._stays(
                    key, queue_id, before, offset, older=older, returned=returned
                ):
                    mine[queue_id] = offset
                    self._revision += before != offset
        if older:
            return False
        self._revision += version != self.version
        self.version = version
        return True

    def follow_anew(self) -> None:
        """The end of our log was given up, and what consumers read there: next, groups are where the master says."""
        self.version = DataVersion()
        self._kept.clear()
        self._revision += 1

    def _stays(
        self, key: str, queue_id: int, mine: int, theirs: int, *, older: bool, returned: bool
    ) -> bool:
        """Whether our offset of a queue stays, given that of the master."""
        kept = self._kept.get(key, {})
        heard = kept.get(queue_id)
        if theirs < mine and (older or (heard is not None and (returned or theirs >= heard))):
            if heard != theirs:
                self._kept.setdefault(key, {})[queue_id] = theirs
                self._revision += 1
            return True
        if heard is not None:
            del kept[queue_id]
            if not kept:
                del self._kept[key]
            self._revision += 1
        return False

    # -- the file consumerOffset.json

    @property
    def revision(self) -> int:
        """Grows with each change that has to be saved."""
        return self._revision

    def read_json(self, value: Any) -> None:
        """Take the offsets of a file.

        A key that is not ``topic@group`` says nothing to anybody; it is reported and kept. The
        file's ``groupTopicMap`` is made from the same keys and is not read.
        """
        table, version = _parsed(value)
        kept = _by_key(value, _KEPT)
        for key in table:
            if split_key(key) is None:
                log.warning("consumerOffset.json: %r is not topic@group; kept as it is", key)
        self._committed = table
        self._kept = kept
        self._unknown_of_file = {
            key: item for key, item in value.items() if key not in _FIELDS_OF_FILE
        }
        self.version = version

    def to_json(self) -> Any:
        """The content of the file; fields that we do not know stay as they were read."""
        table = _copy(self._committed)
        known: dict[str, Any] = {
            "dataVersion": bodies.unstructure(self.version),
            "offsetTable": table,
        }
        if self.lmq:
            # Groups of light queues read one queue only, and have a table of their own.
            light = {
                key: table.pop(key) for key in list(table) if f"{SEPARATOR}{LMQ_PREFIX}" in key
            }
            known["lmqOffsetTable"] = {key: of[0] for key, of in light.items() if 0 in of}
        if self.following and self._kept:
            known[_KEPT] = _copy(self._kept)
        return {**self._unknown_of_file, **known}


def _copy(table: dict[str, dict[int, int]]) -> dict[str, dict[int, int]]:
    return {key: dict(offsets) for key, offsets in table.items()}


def _parsed(value: Any) -> tuple[dict[str, dict[int, int]], DataVersion]:
    """Offsets by key and queue, and the version, of a file or of a master's answer."""
    if not isinstance(value, dict):
        raise BodyError("consumerOffset.json is not an object")
    version = bodies.structure(DataVersion, value.get("dataVersion") or {})
    table = _by_key(value, "offsetTable")
    light = json_object(value.get("lmqOffsetTable"), "lmqOffsetTable")
    table.update({key: {0: offset} for key, offset in light.items() if isinstance(offset, int)})
    return table, version


def _by_key(value: dict[str, Any], name: str) -> dict[str, dict[int, int]]:
    """The offsets of an object `value[name]`. By hand: there may be many thousands."""
    table: dict[str, dict[int, int]] = {}
    for key, queues in json_object(value.get(name), name).items():
        if not isinstance(queues, dict):
            raise BodyError(f"{name}: {key!r} has no object of offsets")
        try:
            found = {int(queue_id): int(offset) for queue_id, offset in queues.items()}
        except (TypeError, ValueError, OverflowError):
            raise BodyError(f"{name}: {key!r} has offsets that are no numbers") from None
        if found and max(found.values()) > LONG_MAX:
            raise BodyError(f"{name}: {key!r} has an offset of {max(found.values())}")
        table[key] = found
    return table
