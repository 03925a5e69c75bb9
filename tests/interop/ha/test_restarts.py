"""Each side is stopped and killed under load: both go on by themselves, and in the end have the same."""

from __future__ import annotations

import time
from typing import Literal

import pytest

from tests.interop.java_client import Java
from tests.interop.polling import sleep, wait_for

from .conftest import MakeTopic
from .loads import check, everything, load
from .pairs import BACKOFF_S, MasterStatus, Pair, status_of

End = Literal["kill", "stop"]
#: That pairs come back from a clean stop is seen by other tests, too.
ENDS = ["kill", pytest.param("stop", marks=pytest.mark.repeats)]


@pytest.mark.parametrize("end", ENDS)
def test_the_slave_comes_back(pair: Pair, java: Java, topic: MakeTopic, end: End) -> None:
    name = topic(pair)
    running = load(java, pair.ns, name)
    if end == "kill":
        pair.slave.kill()
    else:
        assert pair.slave.stop()[0] in (0, 143), "a JVM that ends at SIGTERM says 143"
    running.wait_more(50)
    pair.start_slave()
    running.wait_more(50)
    acked, failed = running.stop()
    assert not failed, "a lost slave of an asynchronous master disturbs nobody"
    pair.check_same()
    check(acked, failed, everything(java, pair.ns, name, pair.name))


@pytest.mark.parametrize("end", ENDS)
def test_the_master_comes_back(pair: Pair, java: Java, topic: MakeTopic, end: End) -> None:
    """Sends fail meanwhile; the slave connects again by itself, at the latest after its back-off."""
    name = topic(pair)
    running = load(java, pair.ns, name)
    if end == "kill":
        pair.master.kill()
    else:
        pair.master.stop()
    sleep(1.0)
    pair.master.start()
    up = time.monotonic()

    def followed() -> bool:
        told = status_of(pair.master.address)
        return isinstance(told, MasterStatus) and any(s.in_sync for s in told.slaves)

    wait_for(followed, "the slave is back", timeout_s=30, every_s=0.02)
    took_s = time.monotonic() - up
    assert took_s < BACKOFF_S + 3, f"the slave was back after {took_s:.1f} s"
    running.wait_more(50)
    acked, failed = running.stop()
    pair.check_same()
    check(acked, failed, everything(java, pair.ns, name, pair.name))
