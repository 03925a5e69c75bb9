"""The command line against the broker under test."""

from __future__ import annotations

import json

import pytest

from tests.cli.running import run
from tests.interop.java_client import unique
from tests.interop.polling import wait_for


@pytest.fixture(autouse=True)
def environment(cluster, monkeypatch):
    """Commands find the cluster."""
    monkeypatch.setenv("NAMESRV_ADDR", cluster.ns)


def well(*arguments):
    result = run(*arguments)
    assert (result.code, result.err) == (0, ""), (arguments, result)
    return result.out


def found(*arguments):
    return json.loads(well(*arguments, "--json"))


def test_a_message_from_send_to_consume(cluster):
    topic = unique("C")
    well("topic", "create", topic, "--queues", "2")
    receipt = found("send", topic, "hello", "--tags", "t", "--key", "k")
    assert receipt["status"] == "OK"
    wait_for(lambda: run("consume", topic).code == 0, "the message is in its queue")
    line = found("consume", topic)
    assert (line["topic"], line["bodyText"], line["messageId"]) == (
        topic,
        "hello",
        receipt["offsetMessageId"],
    )
    assert line["properties"]["KEYS"] == "k"
    assert found("message", "get", receipt["offsetMessageId"])["bodyText"] == "hello"
    wait_for(lambda: run("message", "find", topic, "--key", "k").code == 0, "it is in the index")
    assert found("message", "get", receipt["messageId"], "--topic", topic)["bodyText"] == "hello"
    assert found("topic", "stats", topic)["messages"] == 1
    assert well("consume", topic, "--tags", "t", "--from", "1h", "--format", "body") == "hello\n"
    assert run("consume", topic, "--tags", "other").code == 1
    well("topic", "delete", topic)
    assert run("topic", "show", topic).code == 32


def test_a_member_of_a_group_goes_on_where_it_was(cluster):
    topic, group = cluster.topic(2), cluster.group()
    for number in range(4):
        well("send", topic, f"m{number}", "--queue", f"b1:{number % 2}")
    wait_for(lambda: found("topic", "stats", topic)["messages"] == 4, "all are in their queues")
    first = well(
        "consume", topic, "--group", group, "--count", "3", "--format", "body"
    ).splitlines()
    rest = well("consume", topic, "--group", group, "--format", "body").splitlines()
    assert (len(first), sorted(first + rest)) == (3, ["m0", "m1", "m2", "m3"])
    assert found("group", "progress", group)["lag"] == 0
    assert run("consume", topic, "--group", group).code == 1


def test_lines_and_message_lines(cluster, tmp_path):
    topic, copy, file = cluster.topic(1), cluster.topic(1), tmp_path / "lines"
    file.write_text("".join(f"line {number}\n" for number in range(200)))
    result = run("send", topic, "--lines", "--file", str(file), "--key", "k", "--queue", "b1:0")
    assert (result.code, result.err) == (0, "note: 200 messages sent\n")
    wait_for(lambda: found("topic", "stats", topic)["messages"] == 200, "all are in their queue")
    file.write_text(well("consume", topic, "--json"))
    assert run("send", copy, "--message-lines", "--file", str(file), "--queue", "b1:0").code == 0
    wait_for(lambda: found("topic", "stats", copy)["messages"] == 200, "all are in their queue")
    assert well("consume", copy, "--format", "body") == "".join(f"line {n}\n" for n in range(200))


def test_a_group_and_where_it_is(cluster):
    topic, group = cluster.topic(2), unique("C")
    well("group", "create", group)
    for number in range(3):
        well("send", topic, f"m{number}", "--queue", f"b1:{number % 2}")
    wait_for(lambda: found("topic", "stats", topic)["messages"] == 3, "all are in their queues")
    assert [
        q["offset"]
        for q in found("group", "reset", group, "--topic", topic, "--to", "end")["queues"]
    ] == [2, 1]
    assert found("group", "progress", group)["lag"] == 0
    well("group", "reset", group, "--topic", topic, "--to", "begin")
    assert found("group", "progress", group, "--topic", topic)["lag"] == 3
    shown = found("group", "show", group)
    assert (shown["topics"], shown["connectionSet"]) == ([topic], [])
    assert group in well("group", "list").splitlines()
    well("group", "delete", group)
    assert group not in well("group", "list").splitlines()


def test_the_cluster_and_its_broker(cluster):
    (broker,) = found("cluster", "show")["brokers"]
    assert (broker["brokerName"], broker["address"]) == ("b1", cluster.brokers[0].address)
    assert broker["version"]
    assert found("broker", "config", "b1", "brokerName")["settings"] == {"brokerName": "b1"}
    assert "putTps" in found("broker", "show", "b1")["table"]
    assert run("broker", "config", "b1", "brokerConfigPath=/x").code == 1
