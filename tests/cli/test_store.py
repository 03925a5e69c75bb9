"""``trio-mq store`` as a user runs it: in the test's process, and as processes beside a running broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import run
from tests.golden_stores import decoded, raw_records, unpack

ROWS = decoded("clean")


@pytest.fixture
def golden(tmp_path: Path) -> str:
    return str(unpack("clean", tmp_path))


def process(*arguments: str, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run ``trio-mq`` as a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "trio_mq", *arguments], input=stdin, capture_output=True, check=False
    )


def snapshot(root: str) -> dict[str, tuple[int, int, bytes]]:
    """Times and content of all files."""
    found = {}
    for path in sorted(Path(root).rglob("*")):
        if path.is_file() and path.stat().st_size < 1 << 20:
            stat = path.stat()
            found[str(path)] = stat.st_mtime_ns, stat.st_ino, path.read_bytes()
    return found


# -- ls


def test_ls_prints_tables(golden: str) -> None:
    before = snapshot(golden)
    result = run("store", "ls", golden)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(
        f"store {golden}: log 0 to {ROWS[-1]['offset'] + ROWS[-1]['size']}\n"
    )
    for word in ("log file", "GoldNormal/0", "batch", "index file", "checkpoint", "topics.json"):
        assert word in result.out
    assert snapshot(golden) == before


def test_ls_prints_json(golden: str) -> None:
    found = json.loads(run("store", "ls", golden, "--json").out)
    assert found["logEnd"] == ROWS[-1]["offset"] + ROWS[-1]["size"]
    assert {q["maxOffset"] for q in found["queues"] if q["topic"] == "GoldNormal"} == {51, 52}
    assert found["index"][0]["entries"] == 1070


@pytest.mark.parametrize("verb", ["ls", "cat", "verify", "export"])
def test_what_is_no_store_ends_with_3(tmp_path: Path, verb: str) -> None:
    more = ("--topic", "T") if verb == "export" else ()
    for path in (tmp_path / "nothing", tmp_path, Path(__file__)):
        result = run("store", verb, str(path), *more)
        assert (result.code, result.out) == (3, "")
        assert result.err.startswith("error: ")
        assert str(path) in result.err


# -- cat


def test_cat_as_json_lines(golden: str) -> None:
    result = run("store", "cat", golden, "--format", "json")
    assert (result.code, result.err) == (0, "")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [line["logOffset"] for line in lines] == [row["offset"] for row in ROWS]
    assert [line["properties"] for line in lines] == [row["properties"] for row in ROWS]


def test_cat_as_they_are(golden: str) -> None:
    expected = b"".join(
        data for offset, data in raw_records("clean") if offset >= ROWS[5]["offset"]
    )
    result = process("store", "cat", golden, "--format", "raw", "--offset", str(ROWS[5]["offset"]))
    assert (result.returncode, result.stderr, result.stdout) == (0, b"", expected)


def test_cat_of_a_queue_a_time_and_a_key(golden: str) -> None:
    def offsets(*options: str) -> list[int]:
        result = run("store", "cat", golden, "--format", "json", *options)
        return [json.loads(line)["logOffset"] for line in result.out.splitlines()]

    queue = [r["offset"] for r in ROWS if (r["topic"], r["queueId"]) == ("GoldNormal", 1)]
    of_queue = ("--topic", "GoldNormal", "--queue", "1")
    assert offsets(*of_queue) == queue
    assert offsets(*of_queue, "--from", "3", "--to", "5") == queue[3:6]
    since, until = ROWS[100]["storeTimestamp"], ROWS[120]["storeTimestamp"]
    inside = [r["offset"] for r in ROWS if since <= r["storeTimestamp"] <= until]
    assert offsets("--since", str(since), "--until", str(until)) == inside
    row = ROWS[17]
    key = row["properties"]["UNIQ_KEY"]
    assert offsets("--topic", row["topic"], "--key", key) == [row["offset"]]


def test_cat_decompresses_on_request(golden: str) -> None:
    (row,) = [r for r in ROWS if r["sysFlag"] & 1 and r["topic"] == "GoldNormal"][:1]
    at = ("--offset", str(row["offset"]), "--count", "1", "--format", "json", "--body", "base64")
    packed = json.loads(run("store", "cat", golden, *at).out)
    plain = json.loads(run("store", "cat", golden, *at, "--decompress").out)
    assert len(plain["bodyBase64"]) > len(packed["bodyBase64"])
    assert plain["bodyDecompressed"] is True


def test_cat_of_nothing_ends_with_1(golden: str) -> None:
    result = run("store", "cat", golden, "--topic", "GoldNormal", "--key", "nobody has it")
    assert (result.code, result.out) == (1, "")
    assert "the whole log is searched" in result.err
    assert result.err.endswith("note: no record is there that was asked for\n")


@pytest.mark.parametrize(
    "wrong",
    [
        ("--offset", "x"),
        ("--queue", "1"),
        ("--since", "yesterday"),
        ("--format", "xml"),
        ("--body", "rot13"),
        ("--nonsense",),
    ],
)
def test_a_wrong_command_line_ends_with_64(golden: str, wrong: tuple[str, ...]) -> None:
    result = run("store", "cat", golden, *wrong)
    assert result.code == 64
    assert result.out == ""


def test_a_reader_that_has_seen_enough_is_no_error(golden: str) -> None:
    shell = f"{sys.executable} -m trio_mq store cat {golden} | head -n 1"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], capture_output=True, check=False
    )
    assert result.stderr == b""
    assert result.stdout.startswith(b"0  GoldNormal/2@0")


# -- verify


def test_verify_of_a_sound_store(golden: str) -> None:
    before = snapshot(golden)
    result = run("store", "verify", golden)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1] == "sound"
    assert f"looked at {len(ROWS)} records" in result.out
    assert snapshot(golden) == before


def test_verify_tells_what_is_wrong(golden: str) -> None:
    offset = ROWS[200]["offset"]
    segment = Path(golden) / f"commitlog/{offset - offset % 65536:020d}"
    with segment.open("r+b") as file:
        file.seek(offset % 65536 + 88)
        byte = file.read(1)
        file.seek(offset % 65536 + 88)
        file.write(bytes([byte[0] ^ 1]))
    (Path(golden) / "config/consumerOffset.json").write_text("{")
    result = run("store", "verify", golden)
    assert result.code == 1
    assert f"log-damaged: {segment}:{offset % 65536}: " in result.out
    assert f"state-file: {golden}/config/consumerOffset.json: " in result.out
    assert result.out.splitlines()[-1].startswith("not sound: ")
    found = json.loads(run("store", "verify", golden, "--json").out)
    assert found["sound"] is False
    assert found["totals"]["log-damaged"] == 1
    assert found["totals"]["queue-entry-without-record"] == 1


def test_a_commit_log_alone(golden: str) -> None:
    log = f"{golden}/commitlog"
    assert run("store", "verify", log).code == 0
    result = run("store", "cat", log, "--topic", "GoldOrder", "--format", "json")
    assert len(result.out.splitlines()) == 20
    assert result.err == "note: no queue of GoldOrder is there: the whole log is searched\n"
    assert run("store", "ls", log).code == 0


def test_a_commit_log_in_another_place(golden: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (Path(golden) / "commitlog").rename(elsewhere)
    result = run("store", "verify", golden, "--commit-log", str(elsewhere))
    assert (result.code, result.out.splitlines()[-1]) == (0, "sound")


# -- export and import


def test_export_and_import(golden: str, tmp_path: Path) -> None:
    lines, new = str(tmp_path / "lines"), str(tmp_path / "new")
    result = run("store", "export", golden, "--topic", "GoldOrder", "--out", lines)
    assert (result.code, result.out, result.err) == (0, "", "20 messages exported\n")
    again = run("store", "export", golden, "--topic", "GoldOrder", "--out", lines)
    assert again.code == 64
    assert "is there already" in again.err
    inside = run("store", "export", golden, "--topic", "GoldOrder", "--out", f"{golden}/x")
    assert "inside of the store" in inside.err
    small = ("--set", "mappedFileSizeCommitLog=65536", "--set", "maxIndexNum=100")
    result = run("store", "import", new, lines, "--topic-map", "GoldOrder=Mine", *small)
    assert (result.code, result.err) == (0, "")
    assert result.out == "20 messages imported into Mine\n"
    found = run("store", "cat", new, "--topic", "Mine", "--format", "json").out.splitlines()
    assert len(found) == 20


def test_an_import_from_stdin_with_bad_lines(tmp_path: Path) -> None:
    new = str(tmp_path / "new")
    text = b'{"topic":"T","bodyText":"a"}\nnonsense\n{"topic":"T","bodyText":"\xff"}\n'
    refused = process("store", "import", new, "-", stdin=text)
    assert refused.returncode == 1
    assert refused.stderr.startswith(b"error: nothing is imported, 2 lines are bad: line 2: ")
    assert not Path(new).exists()
    done = process("store", "import", new, "-", "--skip-bad", stdin=text)
    assert done.returncode == 0, done.stderr
    assert done.stdout == b"1 messages imported into T\n"
    assert done.stderr.count(b"note: left out: line") == 2


def test_export_of_an_unknown_topic_ends_with_1(golden: str) -> None:
    result = run("store", "export", golden, "--topic", "nobody")
    assert (result.code, result.out) == (1, "")
    assert run("store", "export", golden).code == 64


@pytest.mark.slow
def test_a_store_that_a_broker_has_open(tmp_path: Path) -> None:
    """Everything but the import works; the broker notices nothing, and takes what an import adds after its stop."""
    root = str(tmp_path / "store")
    line = b'{"topic":"T","queueId":1,"bodyText":"before","properties":{"KEYS":"k"}}\n'
    assert process("store", "import", root, "-", stdin=line).returncode == 0
    broker = subprocess.Popen(
        [
            *(sys.executable, "-m", "trio_mq", "serve", "--store", root, "--ready-json"),
            *("--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert broker.stdout is not None
        ready = json.loads(broker.stdout.readline())
        assert ready["recovery"]["clean"] is True
        assert ready["recovery"]["queues"] == 1
        found = json.loads(process("store", "ls", root, "--json").stdout)
        assert found["abort"] is True
        assert [(q["topic"], q["queueId"], q["maxOffset"]) for q in found["queues"]] == [
            ("T", 1, 1)
        ]
        checked = process("store", "verify", root)
        assert checked.returncode == 0, checked.stdout
        shown = process("store", "cat", root, "--topic", "T", "--key", "k")
        assert b"    before" in shown.stdout
        assert process("store", "export", root, "--topic", "T").returncode == 0
        refused = process("store", "import", root, "-", stdin=line)
        assert refused.returncode == 21
        assert str(broker.pid).encode() in refused.stderr
    finally:
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(timeout=30) == 0
        broker.stdout.close()
    assert process("store", "import", root, "-", stdin=line).returncode == 0
    assert process("store", "verify", root).returncode == 0
    shown = process("store", "cat", root, "--topic", "T", "--format", "json")
    assert [json.loads(text)["queueOffset"] for text in shown.stdout.splitlines()] == [0, 1]


def test_files_are_opened_for_reading_only(golden: str) -> None:
    """No descriptor is opened for writing, whatever the rights of the files are."""
    code = f"""
import os, sys
from trio_mq.cli.app import main
real = os.open
def watched(path, flags, *rest, **named):
    wrong = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    assert not (wrong and str(path).startswith({golden!r})), path
    return real(path, flags, *rest, **named)
os.open = watched
for verb, *more in (["ls"], ["cat"], ["verify"], ["export", "--topic", "GoldNormal"]):
    sys.argv = ["trio-mq", "store", verb, {golden!r}, *more]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == 0, verb
"""
    before = snapshot(golden)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    assert snapshot(golden) == before
