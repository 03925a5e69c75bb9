"""The table of topics: their settings, how they come to be, and which of them are the broker's own.

In: names and settings from requests, the settings of the broker, and the content of
``topics.json``. Out: :class:`TopicConfig` values, refusals with the peers' codes, and news of each
change, so that the owner saves the table and tells the name servers. Called by processors, by the
registration at name servers and by :mod:`trio_mq.broker.tables`. No IO; the clock only dates changes.
Format of the file: ``docs/reference/state-files.md``. Rules: Apache TopicConfigManager,
TopicValidator and TopicAttributes of 5.4.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import attrs

from trio_mq.broker import attributes, names
from trio_mq.broker.statejson import named_table, next_version
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.errors import BodyError, RequestRefused
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from trio_mq.protocol.codes import Perm, ResponseCode, TopicSysFlag
from trio_mq.store.queuetable import fits_folder

log = logging.getLogger("trio_mq.broker.topics")

MAX_QUEUES: Final = 65_536
"""Most queues of a topic: each costs files and memory, and the peers' own largest has 1,024."""

SCHEDULE_QUEUES: Final = 18
BENCHMARK_QUEUES: Final = 1024

_READ_WRITE: Final = int(Perm.READ | Perm.WRITE)
_TEMPLATE: Final = int(Perm.READ | Perm.WRITE | Perm.INHERIT)
_ALL_PERM: Final = int(Perm.READ | Perm.WRITE | Perm.INHERIT | Perm.PRIORITY)
_FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")


def system_topics(settings: BrokerSettings, *, timer: bool = True) -> list[TopicConfig]:
    """The topics that a broker has at its start."""

    def topic(name: str, queues: int = 1, perm: int = _READ_WRITE) -> TopicConfig:
        return TopicConfig(name, queues, queues, perm)

    cluster, broker = settings.cluster, settings.broker_name
    cluster_perm = _TEMPLATE if settings.cluster_topic_enable else int(Perm.INHERIT)
    broker_perm = _TEMPLATE if settings.broker_topic_enable else int(Perm.INHERIT)
    found = [
        topic(names.SELF_TEST_TOPIC),
        topic(names.BENCHMARK_TOPIC, BENCHMARK_QUEUES),
        topic(cluster, 16, cluster_perm),
        topic(broker, 1, broker_perm),
        topic(names.OFFSET_MOVED_TOPIC),
        topic(names.SCHEDULE_TOPIC, SCHEDULE_QUEUES),
        topic(f"{cluster}_REPLY_TOPIC"),
        topic(f"{names.SYSTEM_PREFIX}REVIVE_LOG_{cluster}", settings.revive_queue_num),
        topic(f"{names.SYSTEM_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, int(Perm.INHERIT)),
        topic(names.HALF_TOPIC),
        topic(names.OP_HALF_TOPIC),
        topic(names.ROCKSDB_HALF_TOPIC),
        topic(names.ROCKSDB_OP_HALF_TOPIC),
    ]
    if settings.auto_create_topic_enable:
        queues = settings.default_topic_queue_nums
        found.append(topic(names.DEFAULT_TEMPLATE, queues, _TEMPLATE))
    if settings.trace_topic_enable:
        found.append(topic(settings.msg_trace_topic_name))
    if timer:
        found.append(topic(names.TIMER_TOPIC))
    return found


class TopicTable:
    """All topics of a broker.

    `changed` is called with the name of each topic that was created, changed or deleted (then it
    is no longer in the table), after the table has changed; not while a file is read.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        *,
        timer: bool = True,
        changed: Callable[[str], None] | None = None,
    ) -> None:
        own = system_topics(settings, timer=timer)
        self.version = DataVersion()
        self.changed = changed
        #: Whether names of light queues (LMQ) are taken for topics; the broker sets it.
        self.lmq = False
        #: Whether this is the copy of a master's table. Then only what that says has a version.
        self.following = False
        self._settings = settings
        self._clock = clock
        self._topics = {config.topic_name: config for config in own}
        self._own_names = names.SYSTEM_TOPICS | self._topics.keys()
        self._revision = 0
        self._unknown: dict[str, dict[str, Any]] = {}
        self._unknown_of_file: dict[str, Any] = {}

    # -- looking up

    def get(self, topic: str) -> TopicConfig | None:
        """The settings of a topic. A light queue (LMQ) looks like a topic with one queue, and is in no table."""
        config = self._topics.get(topic)
        return TopicConfig(topic, 1, 1) if config is None and self._is_light(topic) else config

    def _is_light(self, topic: str) -> bool:
        return self.lmq and topic.startswith(names.LMQ_PREFIX) and fits_folder(topic)

    def require(self, topic: str) -> TopicConfig:
        """The settings of a topic, or a refusal with TOPIC_NOT_EXIST (17)."""
        config = self.get(topic)
        if config is None:
            raise _missing(f"topic {topic} does not exist on broker {self._settings.broker_name}")
        return config

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics or self._is_light(topic)

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self._topics.values()))

    def __len__(self) -> int:
        return len(self._topics)

    def is_system(self, topic: str) -> bool:
        """Whether a topic is the broker's own."""
        return topic in self._own_names or topic.startswith(names.SYSTEM_PREFIX)

    def is_ordered(self, topic: str) -> bool:
        """Whether a topic is there and marked as an ordered one."""
        config = self._topics.get(topic)
        return config is not None and config.order

    @property
    def system_names(self) -> list[str]:
        """Sorted names of the broker's own topics that are there."""
        return sorted(name for name in self._topics if self.is_system(name))

    def page(self, start: int, count: int) -> dict[str, TopicConfig]:
        """Topics from number `start` on, in the order of their names."""
        return {name: self._topics[name] for name in sorted(self._topics)[start : start + count]}

    def wrapper(self, only: Mapping[str, TopicConfig] | None = None) -> TopicConfigSerializeWrapper:
        """The table, or only some of it, as peers get it."""
        table = dict(self._topics) if only is None else dict(only)
        return TopicConfigSerializeWrapper(topic_config_table=table, data_version=self.version)

    # -- creating

    def for_send(
        self,
        topic: str,
        default_topic: str,
        default_topic_queue_nums: int,
        *,
        unit_mode: bool = False,
    ) -> TopicConfig:
        """The settings of a topic that a client sends to; creates it if that is allowed.

        `default_topic` is the template that the client names (normally TBW102), and
        `default_topic_queue_nums` how many queues it would like. Refusals: INVALID_PARAMETER (29)
        for the name, NO_PERMISSION (16) for topics of the broker's own, TOPIC_NOT_EXIST (17) if
        there is no such template or nothing may be made after it.
        """
        names.check_topic(topic)
        names.check_sendable(topic)
        config = self.get(topic)
        if config is not None:
            return config
        retry = topic.startswith(names.RETRY_PREFIX)
        model = self._topics.get(default_topic)
        off = default_topic == names.DEFAULT_TEMPLATE and (
            not self._settings.auto_create_topic_enable
        )
        if model is None or off or not model.perm & Perm.INHERIT:
            if retry:
                return self.create_retry(topic, 1, unit_sub=unit_mode)
            raise self._not_created(topic, default_topic, model, off=off)
        queues = max(0, min(default_topic_queue_nums, model.write_queue_nums))
        flag = TopicSysFlag.UNIT_SUB if retry else TopicSysFlag.UNIT
        config = TopicConfig(
            topic,
            queues,
            queues,
            int(model.perm & ~Perm.INHERIT),
            model.topic_filter_type,
            int(flag) if unit_mode else 0,
        )
        self._put(config)
        return config

    def _not_created(
        self, topic: str, template: str, model: TopicConfig | None, *, off: bool
    ) -> RequestRefused:
        settings = self._settings
        if off or (model is None and template == names.DEFAULT_TEMPLATE):
            why = "the setting autoCreateTopicEnable is false"
            remedy = "set autoCreateTopicEnable=true"
        elif model is None:
            why = f"the template topic {template} does not exist"
            remedy = f"let the producer name {names.DEFAULT_TEMPLATE} as its template"
        else:
            why = f"the template topic {template} has permission {model.perm} without 1 (inherit)"
            remedy = f"give {template} permission {model.perm | Perm.INHERIT}"
        return _missing(
            f"topic {topic} does not exist on broker {settings.broker_name} and is not created by "
            f"a send: {why}. Create it: mqadmin updateTopic -n <name server> "
            f"-c {settings.cluster} -t {topic}; or {remedy}"
        )

    def create_retry(
        self,
        topic: str,
        queue_nums: int,
        *,
        order: bool | None = None,
        unit_sub: bool = False,
    ) -> TopicConfig:
        """The settings of a retry or dead letter topic, which is created if need be.

        A known topic gets the mark `order`, unless that is None.
        """
        config = self._topics.get(topic)
        if config is None:
            flag = int(TopicSysFlag.UNIT_SUB) if unit_sub else 0
            config = TopicConfig(topic, queue_nums, queue_nums, _READ_WRITE, topic_sys_flag=flag)
            self._put(attrs.evolve(config, order=bool(order)))
        elif order is not None and config.order is not order:
            self._put(attrs.evolve(config, order=order))
        return self._topics[topic]

    def create_if_absent(self, config: TopicConfig) -> TopicConfig:
        """The settings of a topic of the broker's own, created as given if need be."""
        if config.topic_name not in self._topics:
            self._put(config)
        return self._topics[config.topic_name]

    # -- changing

    def update(self, wanted: TopicConfig, changes: str | None) -> bool:
        """Create a topic or change its settings, as an administrator wants; whether that changed it.

        `wanted` gives all but the attributes, `changes` is the text that changes those (see
        :mod:`trio_mq.broker.attributes`). Refuses illegal names and numbers, and system topics,
        with INVALID_PARAMETER (29).
        """
        topic = wanted.topic_name
        names.check_topic(topic)
        self._check_not_system(topic)
        _check_numbers(wanted)
        old = self._topics.get(topic)
        asked = attributes.parse(changes)
        if asked.get(f"+{attributes.MESSAGE_TYPE}") == "MIXED" and not (
            self._settings.enable_mixed_message_type
        ):
            raise _invalid("message.type=MIXED needs the setting enableMixedMessageType=true")
        after = attributes.change(
            attributes.TOPIC_ATTRIBUTES, None if old is None else old.attributes, asked
        )
        config = attrs.evolve(wanted, attributes=after)
        if config == old:
            return False
        self._put(config)
        return True

    def delete(self, topic: str) -> bool:
        """Forget a topic; whether it was there. Refuses system topics."""
        if not topic.strip():
            raise _invalid("the topic name is blank")
        if not fits_folder(topic):  # not the check of new names: old stores have others
            raise _invalid(f"{topic[:64]!r} cannot be the name of a topic")
        self._check_not_system(topic)
        if self._topics.pop(topic, None) is None:
            return False
        self._unknown.pop(topic, None)
        self._note_change(topic)
        return True

    def _check_not_system(self, topic: str) -> None:
        if self._settings.validate_system_topic and self.is_system(topic):
            raise _invalid(f"topic {topic} belongs to the broker and cannot be changed or deleted")

    def _put(self, config: TopicConfig) -> None:
        old = self._topics.get(config.topic_name)
        self._topics[config.topic_name] = config
        log.info("topic %s %s: %s", config.topic_name, "changed" if old else "created", config)
        self._note_change(config.topic_name)

    def _note_change(self, topic: str) -> None:
        self._note_version()
        if self.changed is not None:
            self.changed(topic)

    def settings_changed(self) -> None:
        """The broker's settings have changed under the topics: whoever keeps what they allow looks anew.

        A template that the settings want now is made.
        """
        if self._settings.auto_create_topic_enable and names.DEFAULT_TEMPLATE not in self._topics:
            queues = self._settings.default_topic_queue_nums
            self._put(TopicConfig(names.DEFAULT_TEMPLATE, queues, queues, _TEMPLATE))
        self._note_version()

    def _note_version(self) -> None:
        if not self.following:
            self.version = next_version(self.version, self._clock.now_ms())
        self._revision += 1

    # -- the master's table, and the file topics.json

    def take_over(self, value: Any) -> int:
        """Become the master's table, given as its answer says it; how many topics that changed.

        What the master does not have goes, but for topics that a broker makes at its start. The version is the
        master's. :class:`BodyError`, and no change, if it is no such table.
        """
        topics, unknown, version = _parsed(value)
        own = {name: config for name, config in self._topics.items() if name in self._own_names}
        before, self._topics = self._topics, own | topics
        self._unknown = unknown
        names_of_both = before.keys() | self._topics.keys()
        changed = [name for name in names_of_both if before.get(name) != self._topics.get(name)]
        if changed or version != self.version:
            self._revision += 1
        self.version = version
        if self.changed is not None:
            for name in changed:
                self.changed(name)
        return len(changed)

    @property
    def revision(self) -> int:
        """Grows with each change that has to be saved."""
        return self._revision

    def read_json(self, value: Any) -> None:
        """Add the topics of a file to those of the start; those of the file win."""
        topics, unknown, version = _parsed(value)
        self._topics |= topics
        self._unknown |= unknown
        self._unknown_of_file |= {
            key: item for key, item in value.items() if key not in _FIELDS_OF_FILE
        }
        self.version = version

    def to_json(self) -> Any:
        """The content of the file; fields that we do not know stay as they were read."""
        return {
            **self._unknown_of_file,
            "dataVersion": bodies.unstructure(self.version),
            "topicConfigTable": {
                name: {**self._unknown.get(name, {}), **bodies.unstructure(config)}
                for name, config in self._topics.items()
            },
        }


_FIELDS_OF_FILE: Final = ("dataVersion", "topicConfigTable")


def _parsed(value: Any) -> tuple[dict[str, TopicConfig], dict[str, dict[str, Any]], DataVersion]:
    """Topics, what is not known of each, and the version of a file or of a master's answer."""
    if not isinstance(value, dict):
        raise BodyError("topics.json is not an object")
    topics, unknown = named_table(value, "topicConfigTable", TopicConfig, "topic", "topic_name")
    return topics, unknown, bodies.structure(DataVersion, value.get("dataVersion") or {})


def _check_numbers(config: TopicConfig) -> None:
    for what, number in (
        ("readQueueNums", config.read_queue_nums),
        ("writeQueueNums", config.write_queue_nums),
    ):
        if not 0 <= number <= MAX_QUEUES:
            raise _invalid(f"{what} is {number}, allowed are 0 to {MAX_QUEUES}")
    if not 0 <= config.perm <= _ALL_PERM:
        raise _invalid(
            f"perm is {config.perm}; add up 4 (read), 2 (write), 1 (inherit) and 8 (priority)"
        )
    if config.topic_filter_type not in _FILTER_TYPES:
        raise _invalid(
            f"topicFilterType is {config.topic_filter_type}; use {' or '.join(_FILTER_TYPES)}"
        )


def _missing(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.TOPIC_NOT_EXIST, text)


def _invalid(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.INVALID_PARAMETER, text)
