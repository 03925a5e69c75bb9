"""Settings of brokers that live as long as a test.

In: what a test wants, in the keys of docs/reference/settings.md. Out: all settings of a broker with a name server, on
free ports of 127.0.0.1. Called by :mod:`.child` and :mod:`.inprocess`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_mq.config import Given, Settings, load

#: Small files: an empty store takes some kilobytes. A machine with a full disk can still run tests.
_SMALL: Final[Mapping[str, str]] = {
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": "16777216",
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    "enableFastPort": "false",
    "diskMaxUsedSpaceRatio": "99",
}
#: Where it listens, on a simulated network too.
HOST: Final = "127.0.0.1"
#: What makes it a broker of tests, whatever is wanted.
_FIXED: Final[Mapping[str, str]] = {
    "bindAddress": HOST,
    "brokerIP1": HOST,
    "listenPort": "0",
    "nameserverListen": f"{HOST}:0",
}


def settings_of(store: str, wanted: Mapping[str, str]) -> Settings:
    """Small files first, then what is wanted, then what has to be. ConfigError for what no broker takes."""
    fixed = {"storePathRootDir": store, **_FIXED}
    return load(
        overrides=[f"{key}={value}" for key, value in {**_SMALL, **wanted}.items()],
        flags=[Given(key, value, "a broker of tests") for key, value in fixed.items()],
        environment={},  # a name server of the developer's is not for tests
    )
