"""What networks and machines do, between a broker of each kind: silence, one-way silence, cuts, hanging processes.

The pair's link goes through a proxy (``wire.py``). After each fault both ends agree again without anybody's help.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.interop.java_client import Java
from tests.interop.polling import holds_for, sleep, wait_for
from tests.interop.servers import Server

from .conftest import MakeTopic
from .loads import Load, check, everything, load
from .pairs import BACKOFF_S, HOUSEKEEPING_S, Pair, log_end
from .proxy import Way

pytestmark = pytest.mark.mixed


def agree(pair: Pair, java: Java, running: Load) -> None:
    """End the load; nothing is lost, and the slave has the same log and queues."""
    acked, failed = running.stop()
    pair.check_same()
    check(acked, failed, everything(java, pair.ns, running.topic, pair.name))


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param(("up", "down"), id="both"),
        pytest.param(("down",), id="down"),
        pytest.param(("up",), id="up", marks=pytest.mark.repeats),
    ],
)
def test_a_partition_heals(pair: Pair, java: Java, topic: MakeTopic, ways: tuple[Way, ...]) -> None:
    """Longer than house-keeping: whoever hears nothing gives the link up, and a new one is made after the heal."""
    running = load(java, pair.ns, topic(pair))
    before = pair.wire.seen()
    pair.wire.hold(*ways)
    sleep(HOUSEKEEPING_S + 2)
    running.wait_more(20)
    pair.wire.flow()
    pair.wait_caught_up(timeout_s=HOUSEKEEPING_S + BACKOFF_S + 10)
    assert pair.wire.seen().made > before.made, "somebody has given up"
    agree(pair, java, running)


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(5, id="header"),
        pytest.param(12, id="no body", marks=pytest.mark.repeats),
        pytest.param(40_000, id="body"),
    ],
)
def test_a_stream_that_is_cut(pair: Pair, java: Java, topic: MakeTopic, after: int) -> None:
    """Inside a header, behind it, and inside of what follows; the slave asks for what it lacks."""
    running = load(java, pair.ns, topic(pair))
    cuts = pair.wire.seen().cuts
    pair.wire.cut("down", after)
    wait_for(lambda: pair.wire.seen().cuts == cuts + 1, "the cut", timeout_s=10)
    pair.wait_caught_up(timeout_s=BACKOFF_S + 10)
    agree(pair, java, running)


def test_a_report_that_is_cut(pair: Pair, java: Java, topic: MakeTopic) -> None:
    """Three bytes of eight."""
    running = load(java, pair.ns, topic(pair))
    cuts = pair.wire.seen().cuts
    pair.wire.cut("up", 3)
    wait_for(lambda: pair.wire.seen().cuts == cuts + 1, "the cut", timeout_s=10)
    pair.wait_caught_up(timeout_s=BACKOFF_S + 10)
    agree(pair, java, running)


def test_c068_a_master_that_cannot_be_reached(pair: Pair, java: Java, topic: MakeTopic) -> None:
    """Refused again and again; once the port is open it goes on, with no restart of anything."""
    running = load(java, pair.ns, topic(pair))
    pair.wire.refuse()
    pair.wire.break_all()
    wait_for(lambda: not pair.master_sees().slaves, "the master has no slave", timeout_s=10)
    end = log_end(pair.slave.address)
    running.wait_more(50)
    assert log_end(pair.slave.address) == end
    pair.wire.accept()
    pair.wait_caught_up(timeout_s=BACKOFF_S + 5)
    agree(pair, java, running)


@pytest.mark.parametrize("side", ["slave", pytest.param("master", marks=pytest.mark.repeats)])
def test_a_process_that_hangs(pair: Pair, java: Java, topic: MakeTopic, side: str) -> None:
    """Its kernel still takes connections and bytes; the other end gives the link up all the same."""
    running = load(java, pair.ns, topic(pair))
    server: Server = getattr(pair, side)
    assert server.process is not None
    os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        sleep(HOUSEKEEPING_S + 2)
    finally:
        os.killpg(server.process.pid, signal.SIGCONT)
    pair.wait_caught_up(timeout_s=HOUSEKEEPING_S + BACKOFF_S + 10)
    agree(pair, java, running)


def test_c073_catching_up_under_load(pair: Pair, java: Java, topic: MakeTopic) -> None:
    """The slave is cut off for some seconds of full load; it gets all while the load goes on."""
    name = topic(pair)
    running = load(java, pair.ns, name, gap_ms=0, filler=3000)
    pair.wire.hold()
    running.wait_more(500)
    pair.wire.flow()
    pair.wait_caught_up(timeout_s=HOUSEKEEPING_S + BACKOFF_S + 10)
    holds_for(
        lambda: log_end(pair.master.address) - log_end(pair.slave.address) < 1 << 20,
        "the slave stays close", seconds=1,
    )  # fmt: skip
    running.wait_more(50)
    agree(pair, java, running)
