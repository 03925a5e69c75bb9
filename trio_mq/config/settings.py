"""All settings of a process in one frozen value, and the catalogue of them.

Out: :class:`Settings`, of which each subsystem gets its own part at the start; only
:mod:`trio_mq.config.live` changes some of it later. Made by :func:`trio_mq.config.loading.load`, or directly in tests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

from trio_mq.config.broker import BrokerSettings
from trio_mq.config.declare import MARK, SettingMeta
from trio_mq.config.ha import HASettings
from trio_mq.config.nameserver import NameServerSettings
from trio_mq.config.store import StoreSettings


@attrs.frozen
class Notice:
    """Something about the given settings that people should know; the start goes on.

    `kind` is ``unknown`` (no such key), ``unused`` (Apache knows the key, we do nothing with it;
    `lost` tells whether the value differs from Apache's default, so that an effect is missing), or
    ``note``.
    """

    kind: str
    key: str
    origin: str
    text: str
    lost: bool = True


@attrs.frozen(kw_only=True)
class Settings:
    """All settings of a process, and where each value comes from (`origins`, by key; absent means
    the default).
    """

    broker: BrokerSettings = attrs.field(factory=BrokerSettings)
    store: StoreSettings = attrs.field(factory=StoreSettings)
    ha: HASettings = attrs.field(factory=HASettings)
    nameserver: NameServerSettings = attrs.field(factory=NameServerSettings)
    origins: Mapping[str, str] = attrs.field(factory=dict)
    notices: tuple[Notice, ...] = ()

    @property
    def ha_port(self) -> int:
        """Port to listen on for slaves; 0 takes a free one, as the broker does."""
        port = self.broker.listen_port
        return self.ha.listen_port or (port + 1 if port else 0)

    def origin(self, key: str) -> str:
        """``default``, ``FILE:LINE``, ``--set`` or the flag that gave the value of `key`."""
        return self.origins.get(key, "default")


@attrs.frozen
class SettingInfo:
    """A setting as the catalogue lists it: `section` names the attribute of :class:`Settings`,
    `name` the field.
    """

    section: str
    name: str
    default: object
    meta: SettingMeta


SECTIONS: Final[Mapping[str, type[Any]]] = {
    "broker": BrokerSettings,
    "store": StoreSettings,
    "ha": HASettings,
    "nameserver": NameServerSettings,
}


def catalogue() -> Iterator[SettingInfo]:
    """Every setting that we act on, in the order of the reference page."""
    for section, cls in SECTIONS.items():
        for field in attrs.fields(cls):
            yield SettingInfo(section, field.name, field.default, field.metadata[MARK])
