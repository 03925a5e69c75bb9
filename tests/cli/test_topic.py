"""``trio-mq topic``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cluster
from tests.cli.running import Terminal, run
from trio_mq.cli.topic import permission_text


def test_a_topic_from_its_creation_to_its_end(cluster: Cluster) -> None:
    made = cluster.run(
        "topic", "create", "Orders", "--queues", "2", "--attribute", "message.type=FIFO"
    )
    assert made.out.splitlines() == [
        "topic         Orders",
        "read queues   2",
        "write queues  2",
        "permission    rw",
        "order         no",
        "attributes    message.type=FIFO",
    ]
    assert "Orders" in cluster.run("topic", "list").out.splitlines()
    assert "Orders" in cluster.json("topic", "list", "--cluster", "DefaultCluster")["topics"]
    assert "TBW102" not in cluster.json("topic", "list")["topics"]
    assert "TBW102" in cluster.json("topic", "list", "--all")["topics"]
    changed = cluster.json("topic", "update", "Orders", "--read-queues", "4", "--permission", "r")
    config = changed["brokers"]["b1"]
    assert (config["readQueueNums"], config["writeQueueNums"], config["perm"]) == (4, 2, 4)
    assert config["attributes"] == {"message.type": "FIFO"}
    cluster.run("topic", "update", "Orders", "--remove-attribute", "message.type", "--order")
    shown = cluster.json("topic", "show", "Orders")
    assert shown["brokers"]["b1"]["addresses"] == {"0": cluster.broker}
    assert shown["brokers"]["b1"]["config"]["attributes"] == {}
    assert shown["brokers"]["b1"]["config"]["order"] is True
    assert (shown["groups"], shown["failures"]) == ([], [])
    assert cluster.run("topic", "delete", "Orders").out == ""
    assert "Orders" not in cluster.run("topic", "list").out.splitlines()
    gone = run("topic", "show", "Orders")
    assert gone.code == 32
    assert gone.err.startswith(
        "error: topic Orders: the name server knows no broker that serves it; "
    )
    cluster.run("topic", "delete", "Orders")


def test_a_topic_is_shown_on_lines(cluster: Cluster) -> None:
    topic = cluster.topic(2)
    assert cluster.run("topic", "show", topic).out.splitlines() == [
        "broker  address          read queues  write queues  permission  order  attributes".replace(
            "address          ", "address".ljust(len(cluster.broker) + 2)
        ),
        f"b1      {cluster.broker}            2             2  rw          no     -",
        "groups  -",
    ]


def test_what_a_topic_holds(cluster: Cluster) -> None:
    topic = cluster.topic(2)
    cluster.run("send", topic, "hello", "--queue", "b1:1")
    found = cluster.json("topic", "stats", topic)
    assert (found["topic"], found["messages"], found["failures"]) == (topic, 1, [])
    empty, used = found["queues"]
    assert empty == {
        "brokerName": "b1",
        "queueId": 0,
        "minOffset": 0,
        "maxOffset": 0,
        "lastUpdateTimestamp": None,
    }
    assert (used["queueId"], used["minOffset"], used["maxOffset"]) == (1, 0, 1)
    assert used["lastUpdateTimestamp"] > 1_700_000_000_000
    lines = cluster.run("topic", "stats", topic).out.splitlines()
    assert lines[0].split() == [
        "broker",
        "queue",
        "min",
        "offset",
        "max",
        "offset",
        "messages",
        "last",
        "stored",
    ]
    assert lines[1].split() == ["b1", "0", "0", "0", "0", "-"]
    assert lines[3].split() == ["messages", "1"]


def test_a_terminal_gets_a_table_with_colours_and_programs_get_none(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    topic = cluster.topic()
    shown = run("topic", "stats", topic, out=Terminal())
    assert shown.code == 0
    assert "\x1b[1;36m" in shown.out
    assert "─" in shown.out
    for arguments, out in ((("--json",), Terminal()), ((), None)):
        plain = run("topic", "stats", topic, *arguments, out=out)
        assert "\x1b" not in plain.out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("create", "T", "--queues", "0"), "--queues '0': a whole number from 1 on is needed"),
        (("create", "T", "--permission", "x"), "--permission 'x': legal: rw, r, w"),
        (("create", "T", "--attribute", "x"), "--attribute 'x': write KEY=VALUE"),
        (("create", "a b"), "topic: 'a b' holds ' '"),
        (
            ("create", "T", "--cluster", "c", "--broker", "b"),
            "--cluster and --broker: give one of them",
        ),
        (("update", "T", "--order", "--no-order"), "--order and --no-order: give one of them"),
        (
            ("create", "T", "--cluster", "other"),
            "cluster: the name server knows no 'other'; it knows DefaultCluster",
        ),
    ],
)
def test_mistakes_end_with_code_2_and_change_nothing(
    cluster: Cluster, arguments: tuple[str, ...], text: str
) -> None:
    result = run("topic", *arguments)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
    assert "T" not in cluster.run("topic", "list").out.splitlines()


def test_a_refusal_names_the_broker(cluster: Cluster) -> None:
    result = run("topic", "create", "SCHEDULE_TOPIC_XXXX")
    assert result.code == 1
    assert result.err.startswith(f"error: {cluster.broker} refused UPDATE_AND_CREATE_TOPIC (17)")
    assert result.err.count("\n") == 1


def test_permissions_for_people() -> None:
    assert [permission_text(perm) for perm in (6, 4, 2, 0, 7)] == ["rw", "r", "w", "", "rw(7)"]
