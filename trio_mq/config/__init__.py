"""Settings: frozen values per subsystem, read from Apache's ``broker.conf``, ``--set`` and flags.

The peers' key names live in this package only. :func:`load` makes a :class:`Settings`; every
subsystem takes its own part of it. A host and port pair is an :class:`Address` everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trio_mq import lazy

if TYPE_CHECKING:
    from trio_mq.config.addresses import (
        Address,
        parse_address,
        parse_host,
    )
    from trio_mq.config.broker import (
        BrokerSettings,
    )
    from trio_mq.config.ha import (
        BrokerRole,
        HASettings,
    )
    from trio_mq.config.loading import (
        Given,
        load,
    )
    from trio_mq.config.nameserver import (
        NameServerSettings,
    )
    from trio_mq.config.settings import (
        Notice,
        Settings,
    )
    from trio_mq.config.store import (
        FlushDiskType,
        StoreSettings,
    )

__all__ = [
    "Address",
    "BrokerRole",
    "BrokerSettings",
    "FlushDiskType",
    "Given",
    "HASettings",
    "NameServerSettings",
    "Notice",
    "Settings",
    "StoreSettings",
    "load",
    "parse_address",
    "parse_host",
]

__getattr__, __dir__ = lazy.names(
    __name__,
    {
        "addresses": "Address parse_address parse_host",
        "broker": "BrokerSettings",
        "ha": "BrokerRole HASettings",
        "loading": "Given load",
        "nameserver": "NameServerSettings",
        "settings": "Notice Settings",
        "store": "FlushDiskType StoreSettings",
    },
)
