"""The table of consumer groups: their settings, and which topics a group may not read.

In: names and settings from requests, the settings of the broker, and the content of
``subscriptionGroup.json``. Out: :class:`SubscriptionGroupConfig` values, refusals with the peers'
codes, and news of each change, so that the owner saves the table. Called by processors and by
:mod:`trio_mq.broker.tables`. No IO; the clock only dates changes. Format of the file:
``docs/reference/state-files.md``. Rules: Apache SubscriptionGroupManager of 5.4.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from trio_mq.broker import attributes, names
from trio_mq.broker.statejson import named_table, next_version
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.errors import BodyError, RequestRefused
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroupWrapper
from trio_mq.protocol.codes import Perm, ResponseCode

log = logging.getLogger("trio_mq.broker.groups")

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
"""Groups of the peers' own services, which are created on first use whatever the settings say."""

PREDEFINED_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
"""Groups that a broker has at its start."""

_READ: Final = int(Perm.READ)
_FIELDS_OF_FILE: Final = ("dataVersion", "subscriptionGroupTable", "forbiddenTable")


class GroupTable:
    """All consumer groups of a broker.

    `changed` is called with the name of each group that was created, changed or deleted, after the
    table has changed; not while a file is read.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        *,
        changed: Callable[[str], None] | None = None,
    ) -> None:
        self.version = DataVersion()
        self.changed = changed
        #: Whether names of light queues (LMQ) are taken for groups; the broker sets it.
        self.lmq = False
        #: Whether this is the copy of a master's table. Then only what that says has a version.
        self.following = False
        self._settings = settings
        self._clock = clock
        self._groups = {name: SubscriptionGroupConfig(name) for name in PREDEFINED_GROUPS}
        self._forbidden: dict[str, dict[str, int]] = {}
        self._revision = 0
        self._unknown: dict[str, dict[str, Any]] = {}
        self._unknown_of_file: dict[str, Any] = {}

    # -- looking up

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """The settings of a group that is known."""
        config = self._groups.get(group)
        if config is None and self.lmq and group.startswith(names.LMQ_PREFIX):
            return SubscriptionGroupConfig(group)  # the one reader of a light queue, in no table
        return config

    def obtain(self, group: str) -> SubscriptionGroupConfig | None:
        """The settings of a group; an unknown one is created if the settings and its name allow.

        Apache: SubscriptionGroupManager.findSubscriptionGroupConfig.
        """
        config = self.get(group)
        if config is not None:
            return config
        automatic = self._settings.auto_create_subscription_group
        if not automatic and not group.startswith(SYSTEM_GROUP_PREFIX):
            return None
        try:
            names.check_group(group)
        except RequestRefused:
            return None
        config = SubscriptionGroupConfig(group)
        self._put(config)
        return config

    def require(self, group: str) -> SubscriptionGroupConfig:
        """As :meth:`obtain`, or a refusal with SUBSCRIPTION_GROUP_NOT_EXIST (26)."""
        config = self.obtain(group)
        if config is None:
            raise self.missing(group)
        return config

    def missing(self, group: str) -> RequestRefused:
        """The refusal for a group that is not there, with what to do about it."""
        settings = self._settings
        try:
            names.check_group(group)
        except RequestRefused as refusal:
            remedy = f"it cannot be created: {refusal.remark}"
        else:
            remedy = (
                f"create it: mqadmin updateSubGroup -n <name server> -c {settings.cluster} "
                f"-g {group}; or set autoCreateSubscriptionGroup=true"
            )
        return RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"consumer group {group} does not exist on broker {settings.broker_name}; {remedy}",
        )

    def __contains__(self, group: str) -> bool:
        return self.get(group) is not None

    def __iter__(self) -> Iterator[SubscriptionGroupConfig]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def page(self, start: int, count: int) -> dict[str, SubscriptionGroupConfig]:
        """Groups from number `start` on, in the order of their names."""
        return {name: self._groups[name] for name in sorted(self._groups)[start : start + count]}

    def wrapper(self, start: int = 0, count: int | None = None) -> SubscriptionGroupWrapper:
        """The table, or a page of it, as peers get it."""
        groups = self.page(start, len(self._groups) if count is None else count)
        forbidden = {name: dict(t) for name, t in self._forbidden.items() if name in groups}
        return SubscriptionGroupWrapper(groups, self.version, forbidden)

    # -- changing

    def update(self, wanted: SubscriptionGroupConfig) -> bool:
        """Create a group or change its settings; whether that changed anything.

        The attributes of `wanted` are changes: ``+name`` to a value, ``-name`` to an empty text.
        Refuses illegal names with INVALID_PARAMETER (29).
        """
        group = wanted.group_name
        names.check_group(group)
        old = self._groups.get(group)
        after = attributes.change(
            attributes.GROUP_ATTRIBUTES,
            None if old is None else old.attributes,
            wanted.attributes,
        )
        config = attrs.evolve(wanted, attributes=after)
        if config == old:
            return False
        self._put(config)
        return True

    def delete(self, group: str) -> bool:
        """Forget a group and what it may not read; whether it was there."""
        self._forbidden.pop(group, None)
        self._unknown.pop(group, None)
        if self._groups.pop(group, None) is None:
            return False
        self._note_change(group)
        return True

    def _put(self, config: SubscriptionGroupConfig) -> None:
        old = self._groups.get(config.group_name)
        self._groups[config.group_name] = config
        log.info("group %s %s: %s", config.group_name, "changed" if old else "created", config)
        self._note_change(config.group_name)

    def _note_change(self, group: str) -> None:
        if not self.following:
            self.version = next_version(self.version, self._clock.now_ms())
        self._revision += 1
        if self.changed is not None:
            self.changed(group)

    # -- what a group may not do

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether somebody has forbidden the group to read the topic."""
        return bool(self._forbidden.get(group, {}).get(topic, 0) & _READ)

    def set_readable(self, group: str, topic: str, *, readable: bool) -> None:
        """Forbid a group to read a topic, or allow it again."""
        bits = self._forbidden.get(group, {}).get(topic, 0)
        after = bits & ~_READ if readable else bits | _READ
        if after == bits:
            return
        table = self._forbidden.setdefault(group, {})
        if after:
            table[topic] = after
        else:
            del table[topic]
            if not table:
                del self._forbidden[group]
        self._note_change(group)

    # -- the master's table, and the file subscriptionGroup.json

    def take_over(self, value: Any) -> int:
        """Become the master's table, given as its answer says it; how many groups that changed.

        What the master does not have goes, but for groups that every broker has. The version is the master's.
        :class:`BodyError`, and no change, if it is no such table.
        """
        groups, unknown, forbidden, version = _parsed(value)
        own = {name: self._groups[name] for name in PREDEFINED_GROUPS if name in self._groups}
        before, self._groups = self._groups, own | groups
        names_of_both = before.keys() | self._groups.keys()
        changed = [name for name in names_of_both if before.get(name) != self._groups.get(name)]
        if changed or version != self.version or forbidden != self._forbidden:
            self._revision += 1
        self._unknown, self._forbidden, self.version = unknown, forbidden, version
        if self.changed is not None:
            for name in changed:
                self.changed(name)
        return len(changed)

    @property
    def revision(self) -> int:
        """Grows with each change that has to be saved."""
        return self._revision

    def read_json(self, value: Any) -> None:
        """Add the groups of a file to the predefined ones; those of the file win."""
        groups, unknown, forbidden, version = _parsed(value)
        self._groups |= groups
        self._unknown |= unknown
        self._forbidden |= forbidden
        self._unknown_of_file |= {
            key: item for key, item in value.items() if key not in _FIELDS_OF_FILE
        }
        self.version = version

    def to_json(self) -> Any:
        """The content of the file; fields that we do not know stay as they were read."""
        return {
            **self._unknown_of_file,
            "dataVersion": bodies.unstructure(self.version),
            "forbiddenTable": {name: dict(bits) for name, bits in self._forbidden.items()},
            "subscriptionGroupTable": {
                name: {**self._unknown.get(name, {}), **bodies.unstructure(config)}
                for name, config in self._groups.items()
            },
        }


def _parsed(
    value: Any,
) -> tuple[
    dict[str, SubscriptionGroupConfig],
    dict[str, dict[str, Any]],
    dict[str, dict[str, int]],
    DataVersion,
]:
    """Groups, what is not known of each, what they may not read, and the version of a file or of a master's answer."""
    if not isinstance(value, dict):
        raise BodyError("subscriptionGroup.json is not an object")
    groups, unknown = named_table(
        value, "subscriptionGroupTable", SubscriptionGroupConfig, "group", "group_name"
    )
    rest_of_file = {"forbiddenTable": value.get("forbiddenTable") or {}}
    forbidden = bodies.structure(SubscriptionGroupWrapper, rest_of_file).forbidden_table
    version = bodies.structure(DataVersion, value.get("dataVersion") or {})
    return groups, unknown, {name: dict(bits) for name, bits in forbidden.items()}, version
