"""``trio-mq cluster`` and ``trio-mq broker``."""

from __future__ import annotations

from tests.cli.conftest import Cluster
from tests.cli.running import run
from trio_mq import __version__


def test_the_brokers_of_a_cluster(cluster: Cluster) -> None:
    (broker,) = cluster.json("cluster", "show")["brokers"]
    assert (broker["cluster"], broker["brokerName"], broker["brokerId"]) == (
        "DefaultCluster",
        "b1",
        0,
    )
    assert (broker["address"], broker["version"]) == (cluster.broker, f"trio-mq {__version__}")
    assert broker["bootTimestamp"] > 1_700_000_000_000
    heads, row = cluster.run("cluster", "show", "--cluster", "DefaultCluster").out.splitlines()
    assert heads.startswith("cluster         broker  id  address")
    assert row.startswith(f"DefaultCluster  b1       0  {cluster.broker}")
    other = run("cluster", "show", "--cluster", "other")
    assert (other.code, other.out) == (2, "")
    assert "knows no 'other'" in other.err


def test_one_broker(cluster: Cluster) -> None:
    for name in ("b1", cluster.broker):
        found = cluster.json("broker", "show", name)
        assert (found["brokerName"], found["address"]) == ("b1", cluster.broker)
        assert found["table"]["brokerVersionDesc"] == f"trio-mq {__version__}"
    lines = cluster.run("broker", "show", "b1").out.splitlines()
    assert lines[0].split() == ["broker", "b1"]
    assert any(line.startswith("putTps ") for line in lines)


def test_settings_of_a_running_broker(cluster: Cluster) -> None:
    assert cluster.run("broker", "config", "b1", "fileReservedTime").out.split() == [
        "fileReservedTime",
        "72",
    ]
    changed = cluster.json("broker", "config", "b1", "fileReservedTime=48", "deleteWhen")
    assert changed == {"settings": {"fileReservedTime": "48", "deleteWhen": "04"}}
    assert cluster.json("broker", "config", "b1")["settings"]["fileReservedTime"] == "48"
    unknown = run("broker", "config", "b1", "noSuchThing", "deleteWhen")
    assert (unknown.code, unknown.out) == (1, "deleteWhen  04\n")
    assert unknown.err == "note: b1 shows no setting noSuchThing\n"
    refused = run("broker", "config", "b1", "noSuchThing=1")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(
        f"error: {cluster.broker} refused UPDATE_BROKER_CONFIG (25) for noSuchThing"
    )


def test_nobody_there(cluster: Cluster) -> None:
    result = run("broker", "show", "127.0.0.1:1", "--timeout", "1")
    assert (result.code, result.out) == (30, "")
    assert "127.0.0.1:1" in result.err
