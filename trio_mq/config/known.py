"""What Apache RocketMQ 5.4.0 has settings for, beyond those that we act on.

Called by :mod:`trio_mq.config.loading` for keys that are not ours: to say "known, not used" instead of
"unknown", to check the type of the value all the same, and to refuse the few that change what a
broker promises. The table ``apache-5.4.0.txt`` was read off the released jars (BrokerConfig,
MessageStoreConfig, NamesrvConfig, NettyServerConfig, NettyClientConfig, AuthConfig).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final

import attrs

from trio_mq.config.kinds import FLAG, INT_MAX, LONG_MAX, integer

TABLE: Final = "apache-5.4.0.txt"


@attrs.frozen
class KnownKey:
    """A setting of Apache's: the class that has it, its Java type, its default as text."""

    owner: str
    key: str
    type: str
    default: str

    def problem(self, value: str) -> str | None:
        """What is wrong with a value, with the legal ones, or None."""
        if self.type in _INTEGERS:
            try:
                _INTEGERS[self.type].parse(value)
            except ValueError as error:
                return f"{error}; legal: {_INTEGERS[self.type].legal}"
        elif self.type == "boolean":
            try:
                FLAG.parse(value)
            except ValueError as error:
                return f"{error}; legal: {FLAG.legal}"
        elif self.type == "double" and not _DOUBLE.fullmatch(value):
            return "not a number; legal: a number such as 0.8"
        return None

    def is_default(self, value: str) -> bool:
        """Whether a value is what Apache takes anyway."""
        return value.lower() == self.default.lower()


_INTEGERS: Final = {"int": integer(-INT_MAX - 1, INT_MAX), "long": integer(-LONG_MAX - 1, LONG_MAX)}
_DOUBLE: Final = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", re.ASCII)

OBSOLETE: Final = frozenset(
    {
        "abortFile",
        "enableBatchConsumeQueue",
        "mapedFileSizeConsumeQueueExt",
        "storeCheckpoint",
        "storePathConsumeQueue",
        "storePathIndex",
    }
)
"""Keys that many files in the field have although Apache 5.4.0 does not read them either."""


@attrs.frozen
class Refusal:
    """A key whose value (any but those `allowed`) asks for something that serving without would
    betray.
    """

    allowed: frozenset[str]
    reason: str


_NO_ACCESS_CONTROL: Final = Refusal(
    frozenset({"false"}),
    "asks for access control, which this release does not have; anybody could read and write",
)
_NO_OTHER_LOG: Final = Refusal(
    frozenset({"false"}), "asks for a replicated log, which this release does not have"
)

REFUSED: Final[Mapping[str, Refusal]] = {
    "aclEnable": _NO_ACCESS_CONTROL,
    "authenticationEnabled": _NO_ACCESS_CONTROL,
    "authorizationEnabled": _NO_ACCESS_CONTROL,
    "enableDLegerCommitLog": _NO_OTHER_LOG,
    "enableControllerMode": _NO_OTHER_LOG,
    "lockInStrictMode": Refusal(
        frozenset({"false"}),
        "asks for queue locks that a quorum of replicas agrees on, which this release does not have; "
        "a master alone grants them by itself",
    ),
    "storeType": Refusal(
        frozenset({"default", ""}),
        "asks for consume queues in RocksDB; trio-mq reads and writes them as files",
    ),
    "configManagerVersion": Refusal(
        frozenset({"v1", ""}),
        "asks for state files in RocksDB; trio-mq reads and writes them as JSON",
    ),
    "readOnlyCommitLogStorePaths": Refusal(
        frozenset({""}),
        "asks for a commit log in several directories, which this release does not have",
    ),
    "useTLS": Refusal(
        frozenset({"false"}), "asks for encrypted connections, which this release does not have"
    ),
}


@functools.cache
def apache_keys() -> Mapping[str, KnownKey]:
    """Apache's settings by key; of keys that several classes have, the broker's."""
    from importlib import resources  # only needed for keys that are not ours

    table = (resources.files(__package__) / TABLE).read_text("utf-8")
    keys: dict[str, KnownKey] = {}
    for line in table.splitlines():
        if line and not line.startswith("#"):
            owner, key, java_type, *default = line.split(" ", 3)
            keys.setdefault(key, KnownKey(owner, key, java_type, default[0] if default else ""))
    return keys
