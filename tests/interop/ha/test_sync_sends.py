"""Sends that wait for a slave, seen by Apache's own clients with their defaults: it answers, is silent, comes back."""

from __future__ import annotations

import time

import pytest

from tests.interop.go_client import Go
from tests.interop.java_client import Java, text, texts
from tests.interop.polling import wait_for

from .conftest import Bench, MakeTopic
from .pairs import BACKOFF_S, HOUSEKEEPING_S, Pair, log_end, set_role

#: Of both clients; the broker's own default has to be shorter.
CLIENT_TIMEOUT_S = 3.0
#: Go: primitive.SendFlushSlaveTimeout.
GO_FLUSH_SLAVE_TIMEOUT = 2


@pytest.fixture
def sync_pair(bench: Bench, request: pytest.FixtureRequest) -> Pair:
    """A pair of the kind under test. Ours has its default `slaveTimeout`; Apache's is as long as its clients wait."""
    kind = request.config.getoption("--broker")
    pair = bench.pair(f"{kind}-{kind}")
    more = {} if kind == "trio" else {"slaveTimeout": "2500"}
    set_role(
        pair.master, {"brokerId": "0", "brokerRole": "SYNC_MASTER", "inSyncReplicas": "2"}, **more
    )
    pair.start()
    return pair


def recovered(pair: Pair) -> None:
    """The slave is heard again, and has all."""
    pair.wire.flow()
    pair.wait_caught_up(HOUSEKEEPING_S + BACKOFF_S + 10)


def test_c067_java_sees_the_status_and_no_time_out(
    sync_pair: Pair, java: Java, topic: MakeTopic
) -> None:
    name = topic(sync_pair)
    producer = java.producer(sync_pair.ns)
    producer.send_ok(texts(name, 50, prefix="heard"))
    sync_pair.wire.hold()
    before, began_s = log_end(sync_pair.master.address), time.monotonic()
    sent = producer.send(text(name, "late"))
    took_s = time.monotonic() - began_s
    assert sent.status == "FLUSH_SLAVE_TIMEOUT"
    assert 2 < took_s < CLIENT_TIMEOUT_S
    once = log_end(sync_pair.master.address) - before
    assert 0 < once < 1000, "stored once"
    began_s = time.monotonic()
    hasty = producer.send(text(name, "hasty", wait=False))
    assert (hasty.status, time.monotonic() - began_s < 1) == ("SEND_OK", True)
    recovered(sync_pair)
    producer.send_ok(texts(name, 50, prefix="again"))
    sync_pair.check_same()


def test_c067_go_sees_the_status_and_no_time_out(sync_pair: Pair, go: Go, topic: MakeTopic) -> None:
    name = topic(sync_pair)
    producer = go.producer(sync_pair.ns)
    producer.send([{"topic": name, "body": "heard"}])
    sync_pair.wire.hold()
    before, began_s = log_end(sync_pair.master.address), time.monotonic()
    messages = [{"topic": name, "body": "late"}]
    (sent,) = producer.driver.call(
        "producer.send", name=producer.name, mode="sync", messages=messages
    )
    took_s = time.monotonic() - began_s
    assert sent["status"] == GO_FLUSH_SLAVE_TIMEOUT
    assert 2 < took_s < CLIENT_TIMEOUT_S
    assert 0 < log_end(sync_pair.master.address) - before < 1000, "stored once"
    recovered(sync_pair)
    producer.send([{"topic": name, "body": "again"}])


def test_a_slave_that_stops_and_comes_back(sync_pair: Pair, java: Java, topic: MakeTopic) -> None:
    """Without a slave each send has the status; with it again all is as before."""
    name = topic(sync_pair)
    producer = java.producer(sync_pair.ns)
    sync_pair.slave.stop()
    assert producer.send(text(name, "alone")).status == "FLUSH_SLAVE_TIMEOUT"
    sync_pair.start_slave()
    sync_pair.wait_caught_up(BACKOFF_S + 20)
    producer.send_ok(texts(name, 50))
    wait_for(
        lambda: log_end(sync_pair.slave.address) == log_end(sync_pair.master.address),
        "the same end", timeout_s=10,
    )  # fmt: skip
    sync_pair.check_same()
