"""The table of Apache's settings, held against our own."""

from __future__ import annotations

import pytest

from trio_mq.config.known import OBSOLETE, REFUSED, KnownKey, apache_keys
from trio_mq.config.settings import catalogue

OWN = {
    "enableFastPort",
    "advertisePort",
    "haBindAddress",
    "haCutWhenAhead",
    "haReplicateFromStart",
    "nameserverEnable",
    "nameserverListen",
    "quarantineMaxBytes",
    "rocketmq.broker.rebalance.lockMaxLiveTime",  # a property of the JVM there
    "useOptimizedRecovery",
}
OTHER_DEFAULT = {
    # another default on purpose: the text of the setting says so
    "bindAddress",
    "listenPort",
    "storePathRootDir",
    "kvConfigPath",
    "recoverConcurrently",
    "haListenPort",
    "slaveTimeout",
    "registerBrokerTimeoutMills",
}
OF_THE_MACHINE = {"brokerName", "brokerIP1", "brokerIP2"}


def test_the_table_is_whole() -> None:
    keys = apache_keys()
    assert len(keys) > 500
    assert keys["flushDiskType"] == KnownKey(
        "MessageStoreConfig", "flushDiskType", "FlushDiskType", "ASYNC_FLUSH"
    )
    assert keys["messageDelayLevel"].default.endswith("1h 2h")
    assert keys["dLegerGroup"].default == ""
    assert keys["authenticationEnabled"].owner == "AuthConfig"


def test_our_keys_are_apaches_or_known_to_be_ours() -> None:
    ours = {info.meta.key for info in catalogue()}
    assert ours - apache_keys().keys() == OWN
    assert not ours & REFUSED.keys()
    assert not ours & OBSOLETE
    assert not apache_keys().keys() & OBSOLETE


def test_no_two_settings_share_a_key() -> None:
    keys = [key for info in catalogue() for key in (info.meta.key, *info.meta.aliases)]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    "info",
    [info for info in catalogue() if info.meta.key not in OWN | OTHER_DEFAULT | OF_THE_MACHINE],
    ids=lambda info: info.meta.key,
)
def test_our_defaults_are_apaches(info: object) -> None:
    from trio_mq.config.settings import SettingInfo

    assert isinstance(info, SettingInfo)
    known = apache_keys()[info.meta.key]
    shown = info.meta.kind.show(info.default)
    assert shown == known.default
    assert info.meta.kind.parse(shown) == info.default


def test_a_double_is_checked() -> None:
    key = apache_keys()["logicalDiskSpaceCleanForciblyThreshold"]
    assert key.problem("0.8") is None
    assert key.problem("8e-1") is None
    assert key.problem("nan") is not None
    assert key.is_default("0.8")
