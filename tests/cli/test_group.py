"""``trio-mq group``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cluster
from tests.cli.running import run


def test_a_group_from_its_creation_to_its_end(cluster: Cluster) -> None:
    made = cluster.json("group", "create", "billing", "--retry-max-times", "3", "--orderly", "yes")
    assert (made["groupName"], made["retryMaxTimes"], made["consumeMessageOrderly"]) == (
        "billing",
        3,
        True,
    )
    assert "billing" in cluster.run("group", "list").out.splitlines()
    assert "TOOLS_CONSUMER" not in cluster.json("group", "list")["groups"]
    assert "TOOLS_CONSUMER" in cluster.json("group", "list", "--all")["groups"]
    changed = cluster.json("group", "update", "billing", "--consume", "no")["brokers"]["b1"]
    assert (changed["consumeEnable"], changed["retryMaxTimes"]) == (False, 3)
    shown = cluster.json("group", "show", "billing")
    assert shown["brokers"]["b1"]["consumeEnable"] is False
    assert (shown["connectionSet"], shown["topics"], shown["failures"]) == ([], [], [])
    assert cluster.run("group", "show", "billing").out.splitlines() == [
        "broker  retry max times  retry queues  consume  broadcast  orderly  attributes",
        "b1                    3             1  no       yes        yes      -",
        "online  no",
        "topics  -",
    ]
    assert cluster.run("group", "delete", "billing").out == ""
    gone = run("group", "show", "billing")
    assert gone.code == 1
    assert gone.err == (
        f"error: group billing is not at {cluster.broker}; check its name, or create it (trio-mq group create)\n"
    )


def test_moves_and_how_far_a_group_is(cluster: Cluster) -> None:
    topic, group, other = cluster.topic(2), cluster.group(), cluster.group()
    for number in range(5):
        cluster.run("send", topic, f"m{number}", "--queue", f"b1:{number % 2}")
    moved = cluster.json("group", "reset", group, "--topic", topic, "--to", "end")
    assert [(q["queueId"], q["offset"]) for q in moved["queues"]] == [(0, 3), (1, 2)]
    assert cluster.json("group", "progress", group)["lag"] == 0
    cluster.run("group", "reset", group, "--topic", topic, "--to", "1", "--queue", "b1:0")
    found = cluster.json("group", "progress", group, "--topic", topic)
    assert (found["group"], found["lag"], found["failures"]) == (group, 2, [])
    assert [(q["brokerOffset"], q["consumerOffset"], q["lag"]) for q in found["queues"]] == [
        (3, 1, 2),
        (2, 2, 0),
    ]
    assert cluster.run(
        "group", "reset", group, "--topic", topic, "--to", "1h"
    ).out.splitlines() == [
        "broker  queue  offset",
        "b1          0       0",
        "b1          1       0",
    ]
    cloned = cluster.json("group", "clone", group, other, "--topic", topic)
    assert [q["offset"] for q in cloned["queues"]] == [0, 0]
    lines = cluster.run("group", "progress", other).out.splitlines()
    assert lines[1].split() == [topic, "b1", "0", "3", "0", "3", "-"]
    assert lines[-2].split() == ["lag", "5"]
    assert cluster.json("topic", "show", topic)["groups"] == sorted([group, other])
    assert cluster.json("group", "show", group)["topics"] == [topic]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("reset", "G", "--to", "end"), "--topic is missing"),
        (("reset", "G", "--topic", "T"), "--to is missing; write begin, end, a time"),
        (("reset", "G", "--topic", "T", "--to", "soon"), "--to 'soon' is no place"),
        (("reset", "G", "--topic", "T", "--to", "5"), "say which with --queue BROKER:ID"),
        (
            ("reset", "G", "--topic", "T", "--to", "5", "--queue", "b1"),
            "'b1' is no queue; write BROKER:ID",
        ),
        (("update", "G", "--consume", "maybe"), "--consume 'maybe': legal: yes, no"),
        (("clone", "G", "H"), "--topic is missing"),
    ],
)
def test_mistakes_end_with_code_2(cluster: Cluster, arguments: tuple[str, ...], text: str) -> None:
    result = run("group", *arguments)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
