"""A store's files looked at and filled without a broker: joins the room that does it with the broker's state files.

In: a folder, settings, a file of message lines. Out: what the state files hold, for a check; or messages stored, and
their topics in topics.json. Called by ``trio-mq store``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from trio_mq.broker import names
from trio_mq.broker.statejson import named_table, next_version
from trio_mq.broker.tables import TOPICS, CopyState, LoadedStateFile, StateFile, examine
from trio_mq.clock import Clock
from trio_mq.config import FlushDiskType, StoreSettings
from trio_mq.errors import (
    BodyError,
    ConfigError,
    ForeignFormat,
    RequestRefused,
    StoreError,
    TrioMQError,
)
from trio_mq.lookinside.transfer import Examined, ImportRules, LineSource, append
from trio_mq.lookinside.transfer import examine as examine_lines
from trio_mq.lookinside.verify import StateLook
from trio_mq.offline import Wanted
from trio_mq.offline.statefiles import Tables, examine_all
from trio_mq.protocol import bodies, jsondialect
from trio_mq.protocol.bodies import DataVersion, TopicConfig
from trio_mq.protocol.codes import Perm, ResponseCode
from trio_mq.protocol.layout import BLANK_HEADER_SIZE
from trio_mq.protocol.message import Host
from trio_mq.recovery.inspection import Effect, Size
from trio_mq.recovery.recover import Choices, recover
from trio_mq.store.disk import Disk
from trio_mq.store.queuetable import BATCH_FOLDER
from trio_mq.store.segments import read_file
from trio_mq.store.store import Store, StoreParts, open_parts

#: The address that records get which are imported: no broker stores them.
HOST: Final = Host("127.0.0.1", 10911)
_READ_WRITE: Final = int(Perm.READ | Perm.WRITE)
_QUEUE_TYPE, _BATCH, _TABLE = "queue.type", "BatchCQ", "topicConfigTable"


# -- for a check ---------------------------------------------------------------------------------------------


def look_at_state(disk: Disk, root: str, clock: Clock) -> StateLook:
    """What is wrong with the state files in ``config``, and the topics that they know. Changes nothing."""
    directory = f"{root}/config"
    table = _TopicsFile(clock)
    found = examine(disk, directory, TOPICS, table)
    readable = CopyState.GOOD in (found.main.state, found.backup.state)
    tables = Tables.make(Wanted(root).settings.broker, clock)
    problems = {
        finding.path: finding.problem
        for finding in examine_all(disk, root, tables)
        if finding.problem and finding.effect is not Effect.CAREFUL
        if finding.path.startswith(f"{directory}/")
    }
    for folder in (directory, f"{root}/namesrv"):
        for name in disk.list_dir(folder):
            path = f"{folder}/{name}"
            if name.endswith((".json", ".json.bak")) and path not in problems:
                problem = _unreadable(disk, path)
                if problem:
                    problems[path] = problem
    return StateLook(tuple(sorted(problems.items())), table.names if readable else None)


def _unreadable(disk: Disk, path: str) -> str:
    data = read_file(disk, path, disk.size(path), 0)
    if not data:
        return "it is empty"
    try:
        jsondialect.loads(data)
    except BodyError as error:
        return f"it cannot be read: {error}"
    return ""


# -- an import -----------------------------------------------------------------------------------------------


class ImportRefused(TrioMQError):
    """Lines of an import are bad; nothing was written."""


@attrs.frozen
class ImportWanted:
    """What is to be imported, and how; `progress` is told how many messages are stored."""

    source: LineSource
    topic_map: Mapping[str, str]
    skip_bad: bool
    progress: Callable[[int], None]


@attrs.frozen
class Imported:
    """What an import did."""

    messages: int
    topics: tuple[str, ...]
    skipped: int
    told: tuple[str, ...]


async def import_messages(disk: Disk, clock: Clock, wanted: Wanted, what: ImportWanted) -> Imported:
    """Append the messages of a file to a store, which is recovered first, or made.

    Raises :class:`ImportRefused`, before anything is written, when a line is bad (unless those are skipped);
    StoreLocked while another process has the store open, and StoreError for a store that no start would take.
    """
    settings, guesses = wanted.settings, []
    if _is_there(disk, wanted.root):
        detected = await disk.run(partial(wanted.detect, disk))
        if detected.commit_log_dir == detected.root:
            raise ForeignFormat(
                f"{wanted.root} is a folder of log files only: nothing can be imported"
            )
        settings = wanted.effective(detected)
        guesses = [size for size in wanted.sizes(detected) if size.is_guess]
    store_settings = attrs.evolve(
        settings.store, path=wanted.root, flush_disk_type=FlushDiskType.ASYNC_FLUSH
    )
    rules = ImportRules(
        topic_map=what.topic_map,
        check_topic=_check_topic,
        max_body_bytes=store_settings.max_message_size,
        max_record_bytes=store_settings.mapped_file_size_commit_log - BLANK_HEADER_SIZE,
    )
    now_ms = clock.now_ms()
    found = await disk.run(partial(examine_lines, what.source, rules, now_ms))
    if found.bad and not what.skip_bad:
        raise ImportRefused(_refusal(found))
    _refuse_guesses(guesses, found, store_settings)
    skipped = (found.bad, tuple(found.told))
    if not found.lines:
        return Imported(0, (), *skipped)
    table = _TopicsFile(clock)
    parts = open_parts(disk, store_settings, clock, table.is_batch)
    try:
        file = StateFile(disk, f"{wanted.root}/config", TOPICS, table, clock)
        topics = await file.load()
        _check_batches(disk, wanted.root, found, table)
        await recover(parts, attrs.evolve(Choices.of(store_settings), progress=wanted.progress))
        stored = await _fill(parts, topics, found, partial(_append, what, rules, clock), clock)
        return Imported(stored, tuple(sorted(found.queues)), *skipped)
    finally:
        parts.release()


def _is_there(disk: Disk, root: str) -> bool:
    """Whether a folder has anything of a store in it; an empty one is as good as none."""
    return any(name != "lock" for name in disk.list_dir(root))


def _refuse_guesses(guesses: Sequence[Size], found: Examined, settings: StoreSettings) -> None:
    """Refuse to make files whose size nobody knows, in a store that is not of the usual sizes.

    A broker with other settings would not take the store afterwards.
    """
    if settings.mapped_file_size_commit_log == StoreSettings().mapped_file_size_commit_log:
        return
    unknown = [size for size in guesses if found.batches or size.folder != BATCH_FOLDER]
    if unknown:
        names = " ".join(f"--set {size.name}=..." for size in unknown)
        raise ConfigError(
            f"new files would be made in this store whose size no file tells: give the broker's settings with "
            f"--config FILE, or {names}"
        )


def _refusal(found: Examined) -> str:
    more = f" (and {found.bad - len(found.told)} more)" if found.bad > len(found.told) else ""
    return (
        f"nothing is imported, {found.bad} lines are bad: {'; '.join(found.told)}{more}. "
        f"Mend them, or leave them out with --skip-bad"
    )


def _check_topic(topic: str) -> None:
    names.check_topic(topic)
    names.check_sendable(topic)
    if topic.startswith(names.SYSTEM_PREFIX):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"topic {topic} is the broker's own; give it another name"
        )


def _check_batches(disk: Disk, root: str, found: Examined, table: _TopicsFile) -> None:
    for topic, number in found.batches.items():
        simple = topic in table.names and not table.is_batch(topic)
        if simple and not disk.is_dir(f"{root}/{BATCH_FOLDER}/{topic}"):
            raise ImportRefused(
                f"nothing is imported: line {number} is a batch in one record, and topic {topic} of this store "
                f"has simple queues; import it under another name: --topic-map {topic}=NEW"
            )


async def _fill(
    parts: StoreParts,
    topics: LoadedStateFile[_TopicsFile],
    found: Examined,
    append_all: Callable[[Store], Any],
    clock: Clock,
) -> int:
    """Make topics known, store the messages, close. What goes wrong leaves the abort marker for the next start."""
    for topic, queues in found.queues.items():
        topics.table.ensure(topic, queues, batch=topic in found.batches)
    await topics.persist_if_changed()
    store = Store(parts, clock, HOST)
    await store.start()
    stored: int = await append_all(store)
    await store.close()
    if parts.abort.present:
        raise StoreError(
            f"{stored} messages are stored in {parts.root}, but it could not be closed well; the next start recovers"
        )
    return stored


async def _append(what: ImportWanted, rules: ImportRules, clock: Clock, store: Store) -> int:
    return await append(store, what.source, rules, clock, what.progress)


class _TopicsFile:
    """The content of topics.json as it is: all that is not ours to know stays. A table for a StateFile."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._content: dict[str, Any] = {}
        self._configs: dict[str, TopicConfig] = {}
        self.revision = 0

    @property
    def names(self) -> frozenset[str]:
        """All topics."""
        return frozenset(self._configs)

    def read_json(self, value: Any) -> None:
        """See :class:`trio_mq.broker.tables.Table`."""
        if not isinstance(value, dict):
            raise BodyError("topics.json is not an object")
        self._configs, _ = named_table(value, _TABLE, TopicConfig, "topic", "topic_name")
        self._content = value

    def to_json(self) -> Any:
        """See :class:`trio_mq.broker.tables.Table`."""
        return self._content

    def is_batch(self, topic: str) -> bool:
        """Whether a topic has batch queues."""
        config = self._configs.get(topic)
        return config is not None and config.attributes.get(_QUEUE_TYPE) == _BATCH

    def ensure(self, topic: str, queues: int, *, batch: bool) -> None:
        """See to it that a topic is there and has so many queues."""
        config = self._configs.get(topic)
        if config is None:
            attributes = {_QUEUE_TYPE: _BATCH} if batch else {}
            config = TopicConfig(topic, queues, queues, _READ_WRITE, attributes=attributes)
        elif min(config.read_queue_nums, config.write_queue_nums) >= queues:
            return
        config = attrs.evolve(
            config,
            read_queue_nums=max(queues, config.read_queue_nums),
            write_queue_nums=max(queues, config.write_queue_nums),
        )
        self._configs[topic] = config
        if self._content.get(_TABLE) is None:
            self._content[_TABLE] = {}
        old = self._content[_TABLE].get(topic) or {}
        self._content[_TABLE][topic] = {**old, **bodies.unstructure(config)}
        version = bodies.structure(DataVersion, self._content.get("dataVersion") or {})
        after = next_version(version, self._clock.now_ms())
        self._content["dataVersion"] = bodies.unstructure(after)
        self.revision += 1


def parse_topic_map(pairs: list[str]) -> dict[str, str]:
    """``OLD=NEW`` pairs; ConfigError for anything else."""
    found: dict[str, str] = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise ConfigError(f"--topic-map {pair!r}: give OLD=NEW")
        if found.setdefault(old, new) != new:
            raise ConfigError(f"--topic-map gives two names for {old}: {found[old]} and {new}")
    return found
