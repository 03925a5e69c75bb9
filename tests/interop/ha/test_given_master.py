"""A slave of ours that no name server helps finds the log and the tables of Apache's master by `haMasterAddress`."""

from __future__ import annotations

from tests.interop.java_client import Java, texts
from tests.interop.polling import wait_for

from .conftest import Bench, MakeTopic
from .pairs import SLAVE, knows_topic, set_role

#: A slave of ours copies tables every 10 s.
TABLES_LIMIT_S = 25


def test_the_log_and_the_tables_of_an_apache_master_follow(
    bench: Bench, java: Java, topic: MakeTopic
) -> None:
    pair = bench.pair("apache-trio", through_proxy=False)
    pair.master.start()
    name = topic(pair)
    producer = java.producer(pair.ns)
    producer.send_ok(texts(name, 50))
    pair.slave.nameservers = []
    set_role(pair.slave, SLAVE, haMasterAddress=f"127.0.0.1:{pair.master.port + 1}")
    pair.start_slave()
    pair.wait_caught_up()
    producer.send_ok(texts(name, 50))
    assert pair.check_same() > 0
    wait_for(lambda: knows_topic(pair.slave.address, name), "the topic", timeout_s=TABLES_LIMIT_S)
    assert "without a check of the log" not in pair.slave.process.log.read_text()
