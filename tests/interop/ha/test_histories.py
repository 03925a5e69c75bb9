"""A slave of ours whose log is not a part of its master's, of whichever kind: told, kept as it is, cut if asked to.

Apache's slave goes on in silence then, and ends with another log than its master (scenario 4 of the comparison in
``docs/explanation/replication.md``); so only ours is a slave here.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.interop.polling import holds_for, wait_for
from tests.interop.raw import RawClient

from .conftest import Bench, MakeTopic
from .pairs import RUNTIME_INFO, SEGMENT, Pair, log_bytes, log_end, segments

SEND = 10
LOST = 4096


def send(pair: Pair, topic: str, count: int, text: str) -> None:
    """Messages without any client."""
    fields = {
        "producerGroup": "g", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0", "properties": "", "reconsumeTimes": "0",
        "unitMode": "false", "batch": "false", "maxReconsumeTimes": "0",
    }  # fmt: skip
    with RawClient(pair.master.address) as client:
        for number in range(count):
            assert client.call(SEND, fields, f"{text} {number:06} ".encode() * 30).code == 0


def state(pair: Pair) -> str:
    """What the slave says of its replication, as `trio-mq status` shows it."""
    with RawClient(pair.slave.address, 3.0) as client:
        return client.call(RUNTIME_INFO).json()["table"]["haState"]


def lose(store: Path, end: int) -> int:
    """Take the last records of a log of a stopped broker away; returns where it ends now."""
    begin = max(o for o in segments(store) if o < end)
    data, at, kept = log_bytes(store, begin, end), 0, 0
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        at += size
        if at <= len(data) - LOST:
            kept = at
    with segments(store)[begin].open("r+b") as file:
        file.seek(kept)
        file.write(bytes(SEGMENT - kept))
    return begin + kept


@pytest.mark.slow
@pytest.mark.parametrize("kinds", ["apache-trio", "trio-trio"])
def test_c062_a_slave_that_is_ahead(bench: Bench, topic: MakeTopic, kinds: str) -> None:
    """The master lost 4 KiB. Both offsets are told; nothing is copied; with `haCutWhenAhead` both agree again."""
    pair = bench.pair(kinds, through_proxy=False)
    pair.start()
    name = topic(pair)
    send(pair, name, 200, "first")
    pair.wait_caught_up()
    pair.master.stop()
    ahead = log_end(pair.slave.address)
    master_end = lose(pair.master.store, ahead)
    before = log_bytes(pair.slave.store, 0, ahead)
    pair.master.start()
    # An Apache broker tells of its log a moment after it serves.
    wait_for(lambda: log_end(pair.master.address) == master_end, "the master is back")
    told = f"SUSPEND: slave ahead: this log ends at {ahead}, the master's at {master_end}"
    wait_for(lambda: state(pair).startswith(told), "the slave tells", timeout_s=20)
    holds_for(lambda: log_end(pair.slave.address) == ahead, "nothing is copied", seconds=2.0)
    if kinds == "trio-trio":
        with RawClient(pair.master.address) as client:
            assert f"ahead with {ahead}" in client.call(RUNTIME_INFO).json()["table"]["haSlaves"]
    # The master goes on, and is ahead now. The slave does not put that behind what it has.
    send(pair, name, 100, "later")
    wait_for(lambda: state(pair).startswith("SUSPEND: diverged"), "it is told", timeout_s=40)
    assert log_end(pair.slave.address) == ahead
    assert log_bytes(pair.slave.store, 0, ahead) == before
    # What an operator may do.
    pair.slave.stop()
    pair.slave.settings["haCutWhenAhead"] = "true"
    pair.slave.start()
    pair.check_same()
    assert list((pair.slave.store / "quarantine").iterdir())


def test_files_of_another_size(bench: Bench) -> None:
    """An Apache master with larger files of the log: told before a byte is copied."""
    pair = bench.pair("apache-trio", through_proxy=False)
    pair.slave.settings["mappedFileSizeCommitLog"] = str(SEGMENT // 2)
    pair.master.start()
    pair.slave.start()
    told = f"log files have {SEGMENT // 2} bytes here and {SEGMENT} at the master"
    wait_for(lambda: told in state(pair), "the slave tells", timeout_s=30)
    assert log_end(pair.slave.address) == 0
