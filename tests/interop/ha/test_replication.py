"""A pair at peace: the same log, the same queues and keys, what both tell, and an idle link that stays."""

from __future__ import annotations

import pytest

from tests.interop.drivers import Driver
from tests.interop.java_client import Java, Pull, Queue, Received, text, texts
from tests.interop.mqadmin import Mqadmin
from tests.interop.polling import holds_for, sleep, wait_for
from tests.interop.raw import records

from .conftest import MakeTopic
from .pairs import HOUSEKEEPING_S, SEGMENT, Pair, by_key, knows_topic, log_end

QUEUES = 4


def test_logs_and_queues_are_equal(pair: Pair, java: Java, topic: MakeTopic) -> None:
    """Small and large bodies, batches, delayed ones, over the borders of several files of the log."""
    name = topic(pair)
    producer = java.producer(pair.ns)
    before = log_end(pair.master.address)
    producer.send_ok(texts(name, 200, tags="A", keys="order"))
    producer.batch(texts(name, 100, prefix="batch"), to=Queue(name, pair.name, 1))
    producer.send_ok(texts(name, 5, prefix="later", delayLevel=1))
    producer.send_ok([{"topic": name, "random": 200_000, "seed": i} for i in range(50)])
    pair.wait_caught_up()
    assert log_end(pair.slave.address) > before + 2 * SEGMENT, "the test crosses borders of files"
    assert pair.check_same() > 2 * SEGMENT


def test_keys_are_found_at_the_slave(pair: Pair, java: Java, topic: MakeTopic) -> None:
    name = topic(pair)
    messages = [text(name, f"m-{i}", keys=f"key-{i % 3}") for i in range(9)]
    (first, *_) = java.producer(pair.ns).send_ok(messages)
    pair.wait_caught_up()
    for key in ("key-0", "key-1", "key-2"):
        wait_for(
            lambda k=key: len(records(by_key(pair.slave.address, name, k))) == 3,
            f"{key} at the slave", timeout_s=10,
        )  # fmt: skip
        assert by_key(pair.slave.address, name, key) == by_key(pair.master.address, name, key)
    unique = records(by_key(pair.slave.address, name, first.msg_id))
    assert [r.body for r in unique] == [b"m-0"], "the client's own id is a key, too"


def test_mqadmin_shows_both_ends(pair: Pair, java_driver: Driver) -> None:
    pair.wait_caught_up()
    end = log_end(pair.master.address)
    master = Mqadmin(java_driver, pair.master).run("haStatus", "-b", pair.master.address)
    head = dict(line.split("\t") for line in master.splitlines() if "\t" in line)
    assert head["#MasterAddr"] == pair.master.address
    assert int(head["#MasterCommitLogMaxOffset"]) == end
    assert head["#SlaveNum"] == "1"
    assert head["#InSyncSlaveNum"] == "1"
    (row,) = [line.split() for line in master.splitlines() if line.startswith("127.0.0.1:")]
    address, ack, behind, _speed, state, _transfer_from = row
    assert (int(ack), int(behind), state) == (end, 0, "OK"), address
    slave = Mqadmin(java_driver, pair.slave).run("haStatus", "-b", pair.slave.address)
    head = dict(line.split("\t") for line in slave.splitlines() if "\t" in line)
    assert head["#MasterAddr"] == pair.wire.address, "where its log comes from"
    assert int(head["#CommitLogMaxOffset"]) == end


def test_c064_an_idle_link_stays(pair: Pair) -> None:
    """Twice as long as either side waits for a sign of life; both ends go on hearing of each other."""
    pair.wait_caught_up()
    before, seen = pair.master_sees(), pair.wire.seen()
    read_before = pair.slave_sees().last_read_ms
    holds_for(
        lambda: pair.wire.seen().made == seen.made, "no new connection",
        seconds=2 * HOUSEKEEPING_S + 1,
    )  # fmt: skip
    after, wire = pair.master_sees(), pair.wire.seen()
    assert [s.address for s in after.slaves] == [s.address for s in before.slaves]
    assert wire.up >= seen.up + 8 * 4, "the slave reports"
    assert wire.down >= seen.down + 12 * 4, "the master's heartbeats"
    assert pair.slave_sees().last_read_ms > read_before


def test_java_reads_all_queues_at_the_slave(pair: Pair, java: Java, topic: MakeTopic) -> None:
    """The topic, too, has come from the master: Apache's slaves take tables over every minute."""
    name = topic(pair)
    sent = java.producer(pair.ns).send_ok(texts(name, 100, tags="A"))
    pair.wait_caught_up()
    queues = [Queue(name, pair.name, q) for q in range(QUEUES)]
    at_master = java.pull(pair.ns, "ReadMaster").drain(queues)[0]
    wait_for(lambda: knows_topic(pair.slave.address, name), "the slave has the topic", timeout_s=80)
    slave = java.pull(pair.ns, "ReadSlave", broker_id=1)
    ends = {q: sum(m.queue == q.queue for m in at_master) for q in queues}
    found = [m for q in queues for m in read(slave, q, ends[q])]
    assert found == at_master, "offsets, times and bodies are the master's"
    assert len(found) == len(sent)


def read(consumer: Pull, queue: Queue, count: int) -> list[Received]:
    """The first messages of a queue. At its end a slave may tell a consumer to ask again at once, so that is not asked
    for; its queues follow its log by a moment.
    """
    found: list[Received] = []

    def enough() -> bool:
        found.extend(consumer.pull(queue, len(found)).messages)
        return len(found) >= count

    wait_for(enough, f"{count} messages in {queue}", timeout_s=10)
    return found


@pytest.mark.repeats
def test_c064_an_idle_link_stays_for_ninety_seconds(pair: Pair) -> None:
    """As the row has it."""
    pair.wait_caught_up()
    made = pair.wire.seen().made
    sleep(90)
    assert pair.wire.seen().made == made
    assert pair.is_caught_up()
