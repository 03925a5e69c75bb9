"""``trio-mq consume``, and how commands end that are interrupted or that nobody reads any more."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.cli.conftest import Cluster
from tests.cli.running import run
from trio_mq.lookinside.lines import parse

pytestmark = pytest.mark.slow  # processes, and some seconds of waiting

LIMIT_S = 60
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def topic(serving: Cluster) -> str:
    """Two queues with three messages each; the order of storing goes from one to the other."""
    patch = pytest.MonkeyPatch()
    patch.setenv("NAMESRV_ADDR", serving.nameserver)
    name = serving.topic(2)
    for number in range(6):
        serving.run("send", name, f"m{number}", "--queue", f"b1:{number % 2}", "--tags", "abc"[number // 2],
                    "--property", f"n={number}")  # fmt: skip
    patch.undo()
    return name


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a verb as a process; whatever still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "trio_mq", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        ((), [0, 1, 2, 3, 4, 5]),
        (("--count", "4"), [0, 1, 2, 3]),
        (("--from", "2"), [4, 5]),
        (("--from", "1", "--to", "2"), [2, 3]),
        (("--from", "1h", "--to", "2100-01-01"), [0, 1, 2, 3, 4, 5]),
        (("--queue", "b1:1"), [1, 3, 5]),
        (("--queue", "b1:1", "--queue", "b1:0", "--to", "1"), [0, 1]),
        (("--tags", "a || c"), [0, 1, 4, 5]),
        (("--sql", "n > 3"), [4, 5]),
        (("--from", "end"), []),
        (("--tags", "nobody"), []),
    ],
)
def test_what_is_printed(
    cluster: Cluster, topic: str, arguments: tuple[str, ...], numbers: list[int]
) -> None:
    result = run("consume", topic, *arguments, "--format", "body")
    assert (result.code, result.err) == (0 if numbers else 1, "")
    assert result.out == "".join(f"m{number}\n" for number in numbers)


def test_lines_can_be_imported(cluster: Cluster, topic: str) -> None:
    lines = run("consume", topic, "--json", "--count", "2").out.splitlines()
    assert lines == run("consume", topic, "--format", "json", "--count", "2").out.splitlines()
    for number, line in enumerate(lines):
        fields = json.loads(line)
        assert (fields["topic"], fields["queueId"], fields["queueOffset"]) == (topic, number, 0)
        assert parse(line, now_ms=0).body == b"m%d" % number


def test_messages_for_people(cluster: Cluster, topic: str) -> None:
    out = run("consume", topic, "--count", "1").out
    assert f"  {topic}/0@0  " in out
    assert "  TAGS: a\n" in out
    assert out.endswith("  body (2 bytes, text):\n    m0\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--follow", "--to", "5"), "--follow and --to: give one of them"),
        (("--tags", "a", "--sql", "b"), "--tags and --sql: give one of them"),
        (("--tags", "a = 1"), "looks like SQL"),
        (("--queue", "b1:7"), "has no MessageQueue"),
        (("--count", "0"), "--count '0': a whole number from 1 on"),
        (("--from", "soon"), "--from 'soon' is no place"),
        (("--format", "xml"), "--format 'xml': legal: text, json, body"),
        (("--group", "g", "--queue", "b1:0"), "--queue does not go with --group"),
        (("--group", "g", "--to", "5"), "--to does not go with --group"),
        (("--group", "g", "--from", "5"), "members share the queues: give a time"),
    ],
)
def test_mistakes_end_with_code_2(
    cluster: Cluster, topic: str, arguments: tuple[str, ...], text: str
) -> None:
    result = run("consume", topic, *arguments)
    assert (result.code, result.out) == (2, "")
    assert text in result.err


def test_following_prints_what_comes(cluster: Cluster, start: Start) -> None:
    topic = cluster.topic()
    cluster.run("send", topic, "old")
    process = start(
        "consume", topic, "--follow", "--from", "begin", "--format", "body", "--count", "3"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "old\n"
    for text in ("new", "newer"):
        cluster.run("send", topic, text)
        assert process.stdout.readline() == f"{text}\n"
    assert process.wait(LIMIT_S) == 0


def test_a_member_of_a_group_goes_on_where_it_was(cluster: Cluster, topic: str) -> None:
    group = cluster.group()
    one = cluster.run("consume", topic, "--group", group, "--count", "2", "--format", "body").out
    rest = cluster.run("consume", topic, "--group", group, "--format", "body").out
    assert sorted((one + rest).splitlines()) == [f"m{number}" for number in range(6)]
    assert one.count("\n") == 2
    assert cluster.json("group", "progress", group)["lag"] == 0
    assert run("consume", topic, "--group", group).code == 1


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (("--tags", "a"), [0, 1]),
        (("--sql", "n > 3"), [4, 5]),
        (("--from", "end"), []),
        (("--from", "1h"), range(6)),
    ],
)
def test_a_new_group_begins_where_it_shall(
    cluster: Cluster, topic: str, arguments: tuple[str, ...], numbers: list[int]
) -> None:
    group = cluster.group()
    result = run("consume", topic, "--group", group, *arguments, "--format", "body")
    assert (result.code, result.err) == (0 if numbers else 1, "")
    assert sorted(result.out.splitlines()) == [f"m{number}" for number in numbers]
    assert cluster.json("group", "progress", group)["lag"] == 0


def test_a_member_that_is_interrupted_has_consumed_what_it_printed(
    cluster: Cluster, start: Start
) -> None:
    topic, group = cluster.topic(), cluster.group()
    cluster.run("send", topic, "one")
    process = start(
        "consume", topic, "--group", group, "--from", "begin", "--follow", "--format", "body"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "one\n"
    cluster.run("send", topic, "two")
    assert process.stdout.readline() == "two\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, err) == (130, "", "")
    assert cluster.json("group", "progress", group)["lag"] <= 1  # the last one may come again
    assert not cluster.json("group", "show", group)["connectionSet"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_quietly(cluster: Cluster, start: Start, number: signal.Signals) -> None:
    topic = cluster.topic()
    cluster.run("send", topic, "here")
    process = start("consume", topic, "--follow", "--from", "begin", "--format", "body")
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out, err) == (128 + number, "", "")


def test_an_interrupt_while_stdin_is_awaited(cluster: Cluster, start: Start) -> None:
    topic = cluster.topic()
    process = start("send", topic, "--lines", "--json")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("one\n")
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["queueOffset"] == 0
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 130
    assert process.stderr is not None
    assert process.stderr.read() == "note: 1 message sent\n"


def test_whoever_has_read_enough_hears_nothing_more(cluster: Cluster) -> None:
    topic = cluster.topic()
    lines = "\n".join("x" * 200 for _ in range(2000))
    consume = f"{sys.executable} -m trio_mq"
    script = f"{consume} send {topic} --lines && {consume} consume {topic} | head -n 1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", script],
        input=lines,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    first, code = result.stdout.splitlines()
    assert f"{topic}/0@0" in first
    assert (code, result.stderr) == ("0", "note: 2000 messages sent\n")
