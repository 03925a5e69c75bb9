"""Settings that may change while a broker runs: which, what is refused, and the one place that changes them.

In: the lines of an administrator's request. Out: checked changes, or a refusal that says why; and the settings of the
process with a change in force. A section of the settings is frozen for everybody else; whoever reads one of
:data:`LIVE` reads it each time that it matters. Called by the broker's table of updates. Rules: Apache Configuration.

Apache takes any value of any of its keys here and most of them have no effect until a restart, or never. Here a change
that would have no effect is refused, and nothing of a refused request is changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import attrs

from trio_mq.config import properties
from trio_mq.config.known import apache_keys
from trio_mq.config.loading import info_of, nearest
from trio_mq.config.settings import SettingInfo, Settings
from trio_mq.errors import ConfigError

LIVE: Final = frozenset(
    {
        "allowRecallWhenBrokerNotWriteable",
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "cleanFileForciblyEnable",
        "cleanResourceInterval",
        "defaultQueryMaxNum",
        "deleteFileBatchMax",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "enableMixedMessageType",
        "enablePropertyFilter",
        "fileReservedTime",
        "filterSupportRetry",
        "flushIntervalCommitLog",
        "flushIntervalConsumeQueue",
        "longPollingEnable",
        "maxMsgsNumBatch",
        "notifyConsumerIdsChangedEnable",
        "rejectPullConsumerEnable",
        "shortPollingTimeMills",
        "startAcceptSendRequestTimeStamp",
        "transactionCheckMax",
        "transactionTimeOut",
        "validateSystemTopicWhenUpdateTopic",
    }
)
"""Keys of settings that are looked at whenever they matter, so that a change is in force at once."""

NEVER: Final = ("brokerConfigPath", "rocketmqHome", "configBlackList")
"""Keys that nobody may change over the network, whatever the setting `configBlackList` says."""


class Forbidden(ConfigError):
    """A key that may not be changed over the network."""


@attrs.frozen
class Change:
    """A checked change of one setting: the text is as the setting shows its value."""

    info: SettingInfo
    value: Any

    @property
    def key(self) -> str:
        """Apache's name of the setting."""
        return self.info.meta.key

    @property
    def text(self) -> str:
        """The value as text."""
        return self.info.meta.kind.show(self.value)


def read_changes(settings: Settings, body: bytes, black_list: str) -> list[Change]:
    """The changes that a request (``key=value`` lines) makes to `settings`, without those that change nothing.

    :class:`Forbidden` when one of its keys is in :data:`NEVER` or in `black_list` (separated by ``;``), ConfigError for
    all else that is wrong.
    """
    entries = properties.parse(body, "request")
    black = {*NEVER, *black_list.split(";")}
    for entry in entries:
        if entry.key in black:
            raise Forbidden(f"{entry.key} may not be changed over the network (configBlackList)")
    changes: dict[str, Change] = {}
    for entry in entries:
        info = info_of(entry.key)
        if info is None:
            _check_without_effect(entry.key, entry.value)
            continue
        change = Change(info, _parsed(info, entry.key, entry.value))
        if change.text == shown(settings, info):
            changes.pop(info.meta.key, None)
        elif info.meta.key not in LIVE:
            raise ConfigError(
                f"{entry.key} takes effect at a start only: set it in the broker's file of settings and restart it"
            )
        else:
            changes[info.meta.key] = change
    return list(changes.values())


def change_of(key: str, text: str) -> Change | None:
    """A change that was made before and is made again after a start; None when that is no longer possible."""
    info = info_of(key)
    if info is None or info.meta.key not in LIVE:
        return None
    try:
        return Change(info, _parsed(info, key, text))
    except ConfigError:
        return None


def shown(settings: Settings, info: SettingInfo) -> str:
    """The text of a setting's value."""
    return info.meta.kind.show(getattr(getattr(settings, info.section), info.name))


def put_in_force(settings: Settings, changes: Sequence[Change]) -> None:
    """Change the settings of the process. The only place that does."""
    for change in changes:
        assert change.key in LIVE, f"{change.key} is read once, at the start"
        object.__setattr__(getattr(settings, change.info.section), change.info.name, change.value)


def _parsed(info: SettingInfo, key: str, text: str) -> Any:
    kind = info.meta.kind
    try:
        value = kind.parse(text)
    except ValueError as error:
        raise ConfigError(f"{key} = {text!r}: {error}; legal: {kind.legal}") from error
    if kind.clamp is not None:
        low, high = kind.clamp
        if not low <= value <= high:
            raise ConfigError(f"{key} = {text!r}: legal: {low} to {high}")
    return value


def _check_without_effect(key: str, text: str) -> None:
    known = apache_keys().get(key)
    if known is None:
        near = nearest(key)
        raise ConfigError(f"unknown key {key}" + (f"; did you mean {near}?" if near else ""))
    problem = known.problem(text)
    if problem is not None:
        raise ConfigError(f"{key} = {text!r}: {problem}")
    if not known.is_default(text):
        raise ConfigError(f"{key} is known to Apache, not used here: the change would do nothing")
