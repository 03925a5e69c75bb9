"""``trio-mq send``."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import Cluster
from tests.cli.running import run

pytestmark = pytest.mark.slow  # processes, and some seconds of waiting


def trio_mq(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command as a process of its own, which has a stdin."""
    command = [sys.executable, "-m", "trio_mq", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)


def bodies(cluster: Cluster, topic: str) -> list[str]:
    return cluster.run("consume", topic, "--format", "body").out.splitlines()


def test_a_message_with_everything(cluster: Cluster) -> None:
    topic = cluster.topic(2)
    sent = cluster.run(
        "send", topic, "hello", "--tags", "new", "--key", "a", "--key", "b", "--property", "p=q=r",
        "--queue", "b1:1", "--group", "mine",
    )  # fmt: skip
    message_id, place, *rest = sent.out.split()
    assert (len(message_id), place, rest) == (32, "b1:1", ["offset", "0"])
    (found,) = cluster.lines("consume", topic)
    assert (found["bodyText"], found["queueId"]) == ("hello", 1)
    wanted = {"TAGS": "new", "KEYS": "a b", "p": "q=r", "UNIQ_KEY": message_id}
    assert wanted.items() <= found["properties"].items()


def test_a_receipt_as_json(cluster: Cluster) -> None:
    topic = cluster.topic()
    (receipt,) = cluster.lines("send", topic, "hello")
    assert receipt.keys() == {
        "messageId", "offsetMessageId", "topic", "brokerName", "queueId", "queueOffset", "status"}  # fmt: skip
    assert (receipt["topic"], receipt["brokerName"], receipt["queueId"]) == (topic, "b1", 0)
    assert (receipt["queueOffset"], receipt["status"]) == (0, "OK")


def test_messages_of_one_sharding_key_go_to_one_queue(cluster: Cluster) -> None:
    topic = cluster.topic(8)
    found = {
        cluster.lines("send", topic, "x", "--sharding-key", "one")[0]["queueId"] for _ in range(3)
    }
    assert len(found) == 1


def test_the_body_of_a_file_and_of_stdin(cluster: Cluster, tmp_path: Path) -> None:
    topic, file = cluster.topic(), tmp_path / "body"
    file.write_bytes(b"two\nlines\n")
    cluster.run("send", topic, "--file", str(file))
    result = trio_mq("send", topic, "--file", "-", stdin=b"\x00\xff")
    assert result.returncode == 0, result.stderr
    one, two = cluster.lines("consume", topic)
    assert (one["bodyText"], two["bodyBase64"]) == ("two\nlines\n", "AP8=")
    missing = run("send", topic, "--file", str(tmp_path / "nowhere"))
    assert missing.code == 1
    assert missing.err == f"error: {tmp_path / 'nowhere'}: No such file or directory\n"


def test_one_message_for_each_line(cluster: Cluster) -> None:
    topic = cluster.topic()
    lines = [f"line {number}" for number in range(3000)]
    text = "\n".join([*lines[:10], "", *lines[10:2999]]) + "\r\n" + lines[2999]
    result = trio_mq("send", topic, "--lines", "--tags", "t", stdin=text.encode())
    assert (result.returncode, result.stdout) == (0, b"")
    assert result.stderr == b"note: 3000 messages sent\n"
    assert bodies(cluster, topic) == lines
    result = trio_mq("send", topic, "--lines", "--json", stdin=b"one\ntwo\n")
    receipts = [json.loads(line) for line in result.stdout.splitlines()]
    assert [receipt["queueOffset"] for receipt in receipts] == [3000, 3001]


def test_what_was_consumed_can_be_sent_again(cluster: Cluster, tmp_path: Path) -> None:
    topic, copy, file = cluster.topic(), cluster.topic(), tmp_path / "lines"
    cluster.run(
        "send",
        topic,
        "hello",
        "--tags",
        "t",
        "--key",
        "k",
        "--property",
        "a=b",
        "--sharding-key",
        "s",
    )
    file.write_text(
        cluster.run("consume", topic, "--json").out + '{"topic":"x","bodyText":"by hand"}\n'
    )
    result = run("send", copy, "--message-lines", "--file", str(file), "--property", "copied=yes")
    assert (result.code, result.err) == (0, "note: 2 messages sent\n")
    (old,), (new, by_hand) = cluster.lines("consume", topic), cluster.lines("consume", copy)
    assert (new["topic"], new["bodyText"], by_hand["bodyText"]) == (copy, "hello", "by hand")
    for name in ("TAGS", "KEYS", "a", "__SHARDINGKEY"):
        assert new["properties"][name] == old["properties"][name]
    assert new["properties"]["copied"] == "yes"
    assert new["properties"]["UNIQ_KEY"] != old["properties"]["UNIQ_KEY"]


def test_a_line_that_is_no_message_says_which(cluster: Cluster, tmp_path: Path) -> None:
    topic, file = cluster.topic(), tmp_path / "lines"
    file.write_text(
        '{"topic":"x","bodyText":"fine"}\n\n{"topic":"x"}\n{"topic":"x","bodyText":"later"}\n'
    )
    result = run("send", topic, "--message-lines", "--file", str(file))
    assert result.code == 2
    assert "error: line 3: one of bodyBase64, bodyText, bodyHex has to be there" in result.err
    assert "later" not in bodies(cluster, topic)


def test_delays(cluster: Cluster) -> None:
    topic = cluster.topic()
    at = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    for arguments in (("--delay", "1h"), ("--at", at), ("--delay-level", "18")):
        (receipt,) = cluster.lines("send", topic, "later", *arguments)
        assert receipt["status"] == "OK"
    assert run("consume", topic).code == 1  # nothing is there yet


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("x", "--lines"), "a body on the command line does not go with --lines"),
        (("x", "--file", "f"), "a body on the command line does not go with --file"),
        (("--lines", "--message-lines"), "--lines and --message-lines: give one of them"),
        (("x", "--delay", "soon"), "--delay 'soon' is no duration"),
        (("x", "--delay", "1s", "--at", "2027-01-01"), "--delay and --at: give one of them"),
        (("x", "--property", "p"), "--property 'p': write KEY=VALUE"),
        (("x", "--queue", "b1"), "'b1' is no queue"),
    ],
)
def test_mistakes_end_with_code_2(cluster: Cluster, arguments: tuple[str, ...], text: str) -> None:
    result = run("send", "T", *arguments)
    assert (result.code, result.out) == (2, "")
    assert text in result.err


def test_a_send_that_fails(cluster: Cluster) -> None:
    topic = cluster.topic()
    cluster.run("topic", "update", topic, "--permission", "r")
    result = run("send", topic, "hello")
    assert (result.code, result.out) == (32, "")
    assert topic in result.err
    assert result.err.count("\n") == 1
    bad = run("send", topic, "hello", "--key", "a b")
    assert bad.code == 1
    assert "holds blanks" in bad.err
