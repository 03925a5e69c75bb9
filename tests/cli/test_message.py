"""``trio-mq message``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cluster
from tests.cli.running import run


@pytest.fixture(scope="module")
def sent(serving: Cluster) -> tuple[str, list[dict[str, object]]]:
    """A topic with a few messages, and their receipts."""
    patch = pytest.MonkeyPatch()
    patch.setenv("NAMESRV_ADDR", serving.nameserver)
    topic = serving.topic()
    receipts = [
        serving.lines("send", topic, f"m{number}", "--key", f"k{number % 2}", "--tags", "t")[0]
        for number in range(4)
    ]
    patch.undo()
    return topic, receipts


Sent = tuple[str, list[dict[str, object]]]


def test_a_message_by_either_id(cluster: Cluster, sent: Sent) -> None:
    topic, receipts = sent
    for arguments in (
        (str(receipts[1]["offsetMessageId"]),),
        (str(receipts[1]["messageId"]), "--topic", topic),
    ):
        (found,) = cluster.lines("message", "get", *arguments)
        assert (found["topic"], found["queueOffset"], found["bodyText"]) == (topic, 1, "m1")
        assert found["messageId"] == receipts[1]["offsetMessageId"]
    text = cluster.run("message", "get", str(receipts[1]["offsetMessageId"])).out
    assert f"{topic}/0@1" in text
    assert "  body (2 bytes, text):\n    m1\n" in text
    body = cluster.run("message", "get", str(receipts[1]["offsetMessageId"]), "--format", "body")
    assert body.out == "m1\n"


def test_what_is_not_there(cluster: Cluster, sent: Sent) -> None:
    topic, receipts = sent
    away = str(receipts[0]["messageId"])[:-1] + "G"
    result = run("message", "get", away, "--topic", topic)
    assert (result.code, result.out) == (1, "")
    assert result.err == f"note: no message has the id {away}, or it is gone\n"
    for arguments in (("--key", "nope"), ("--queue", "b1:0", "--offset", "77"), ("--until", "1d")):
        result = run("message", "find", topic, *arguments)
        assert (result.code, result.out) == (1, "")
        assert result.err == "note: no message is there that was asked for\n"


@pytest.mark.parametrize(
    ("arguments", "bodies"),
    [
        (("--key", "k1"), "m1\nm3\n"),
        (("--key", "k1", "--count", "1"), "m3\n"),
        (("--key", "k1", "--since", "1h"), "m1\nm3\n"),
        (("--queue", "b1:0", "--offset", "2"), "m2\n"),
        (("--since", "1h"), "m0\nm1\nm2\nm3\n"),
        (("--since", "1h", "--count", "2"), "m0\nm1\n"),
        (("--queue", "b1:0"), "m0\nm1\nm2\nm3\n"),
    ],
)
def test_messages_by_key_place_and_time(
    cluster: Cluster, sent: Sent, arguments: tuple[str, ...], bodies: str
) -> None:
    assert cluster.run("message", "find", sent[0], *arguments, "--format", "body").out == bodies


def test_every_time_a_message_was_stored(cluster: Cluster, sent: Sent) -> None:
    topic, receipts = sent
    found = cluster.lines("message", "find", topic, "--unique-id", str(receipts[2]["messageId"]))
    assert [line["bodyText"] for line in found] == ["m2"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("find", "T"), "what shall be found?"),
        (
            ("find", "T", "--key", "a", "--unique-id", "b"),
            "--key and --unique-id: give one of them",
        ),
        (("find", "T", "--offset", "5"), "say which with --queue BROKER:ID"),
        (("find", "T", "--key", "a", "--queue", "b1:0"), "--queue does not go with --key"),
        (("find", "T", "--key", "a", "--json", "--format", "body"), "--json and --format body"),
        (("find", "T", "--since", "begin"), "--since 'begin' is no time"),
        (("get", "0" * 32), "say its topic"),
    ],
)
def test_mistakes_end_with_code_2(cluster: Cluster, arguments: tuple[str, ...], text: str) -> None:
    result = run("message", *arguments)
    assert (result.code, result.out) == (2, "")
    assert text in result.err
