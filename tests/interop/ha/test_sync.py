"""Sends that wait for a slave of the other kind: acknowledged means that both have it."""

from __future__ import annotations

import pytest

from tests.interop.java_client import Java, text, texts
from tests.interop.polling import wait_for

from .conftest import MakeTopic
from .loads import load
from .pairs import BACKOFF_S, MASTER, SYNC_MASTER, Pair, log_bytes, log_end, set_role

pytestmark = pytest.mark.mixed


def test_sends_wait_for_the_slave(pair: Pair, java: Java, topic: MakeTopic) -> None:
    """`inSyncReplicas=2`: SEND_OK while the slave answers, FLUSH_SLAVE_TIMEOUT while it is away, and SEND_OK again; a
    kill of the master loses nothing that the slave has not.
    """
    pair.master.stop()
    set_role(pair.master, SYNC_MASTER)
    pair.master.start()
    try:
        pair.wait_caught_up()
        waits(pair, java, topic(pair))
        killed(pair, java, topic(pair))
    finally:
        pair.master.stop()
        set_role(pair.master, MASTER)
        pair.master.start()
        pair.wait_caught_up()


def waits(pair: Pair, java: Java, name: str) -> None:
    """With the link up, down, and up again."""
    producer = java.producer(pair.ns, timeoutMs=6000, retries=0)
    producer.send_ok(texts(name, 50))
    pair.wire.refuse()
    pair.wire.break_all()
    wait_for(lambda: not pair.master_sees().slaves, "the master has no slave", timeout_s=10)
    alone = producer.send(text(name, "alone"))
    assert alone.status == "FLUSH_SLAVE_TIMEOUT"
    assert producer.send(text(name, "does not wait", wait=False)).ok
    pair.wire.accept()
    pair.wait_caught_up(timeout_s=BACKOFF_S + 10)
    producer.send_ok(texts(name, 10, prefix="again"))


def killed(pair: Pair, java: Java, name: str) -> None:
    """Every acknowledged message is in the slave's log at the moment when its master dies."""
    running = load(java, pair.ns, name)
    running.wait_more(100)
    pair.master.kill()
    acked, failed = running.stop()
    end = log_end(pair.slave.address)
    held = log_bytes(pair.slave.store, 0, end)
    missing = [a.body for a in acked if f"{a.body}x".encode() not in held]
    assert not missing, f"{len(missing)} of {len(acked)} are not in the slave's log"
    assert len(acked) > 100
    pair.master.start()
    pair.check_same()
    assert failed, "the load ended because its master did"
