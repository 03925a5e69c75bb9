"""A broker in another process: what is asked of it, and how it ends."""

from __future__ import annotations

import os
import signal

import pytest

from trio_mq import blocking
from trio_mq.client.messages import Message
from trio_mq.errors import ConfigError, PeerUnavailable
from trio_mq.testing import process as processes
from trio_mq.testing.process import BrokerPool, BrokerProcess


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        yield broker


@pytest.fixture
def process(running):
    process = running.faults._rules._process
    yield process
    running.faults.clear()


@pytest.fixture
def producer(running):
    with blocking.Producer(running.nameserver, retry_times_when_send_failed=0) as producer:
        yield producer


def test_it_serves_clients(process, producer):
    process.create_topic("Orders", 3)
    assert [queue.queue_id for queue in producer.queues("Orders")] == [0, 1, 2]
    assert producer.send(Message("Orders", b"x")).queue_offset == 0


def test_what_the_broker_refuses_is_told(process):
    with pytest.raises(PeerUnavailable, match=r"could not do 'topic'.*topic 4 2"):
        process.create_topic("4 2")
    with pytest.raises(PeerUnavailable, match="queues: 0 is below 1"):
        process.create_topic("Nothing", 0)


def test_faults_reach_the_other_process(process, producer):
    faults = process.broker.faults
    process.create_topic("Faults", 1)
    producer.send(Message("Faults", b"1"))
    fault = faults.error("SEND_MESSAGE", code=16, remark="not today")
    with pytest.raises(Exception, match="not today"):
        producer.send(Message("Faults", b"2"))
    assert fault.hits == 1
    fault = faults.drop_reply("SEND_MESSAGE")
    with pytest.raises(Exception, match="no answer"):
        producer.send(Message("Faults", b"3"), timeout_s=0.2)
    assert fault.hits == 1
    faults.close("SEND_MESSAGE")
    with pytest.raises(Exception, match=r"clos|lost|reset"):
        producer.send(Message("Faults", b"4"))
    faults.delay("SEND_MESSAGE", 0.1)
    receipt = producer.send(Message("Faults", b"5"))
    assert receipt.queue_offset == 2, "1 and 3 were stored before it"
    endless = faults.error("SEND_MESSAGE", times=None)
    endless.remove()
    producer.send(Message("Faults", b"6"))


def test_it_ends_with_its_store_and_leaves_its_log(tmp_path):
    process = BrokerProcess(tmp_path / "home")
    assert (tmp_path / "home" / "store").is_dir()
    process.close()
    process.close()
    assert not process.runs
    assert os.listdir(tmp_path / "home") == ["broker.log"]
    with pytest.raises(PeerUnavailable, match="cannot be asked"):
        process.create_topic("Late")
    with pytest.raises(
        PeerUnavailable, match=r"ended by itself with exit code 0; its log, [\s\S]*registered"
    ):
        process.check()


def test_settings_that_no_broker_takes_are_told(tmp_path):
    with pytest.raises(ConfigError, match=r"exit code 2; its log.*[\s\S]*brokerNam\b"):
        BrokerProcess(tmp_path, {"brokerNam": "b"})


def test_one_that_hangs_is_killed(tmp_path, monkeypatch):
    process = BrokerProcess(tmp_path)
    monkeypatch.setattr(processes, "ANSWER_LIMIT_S", 0.1)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(PeerUnavailable, match=r"no answer within 0\.1 s"):
        process.create_topic("Orders")
    process.close()
    assert not process.runs


class FakeProcess:
    """Stands in for a process in a pool."""

    made: list[FakeProcess]

    def __init__(self, folder, settings):
        self.folder, self.settings, self.runs = folder, settings, True
        FakeProcess.made.append(self)

    def close(self):
        self.runs = False


@pytest.fixture
def pool(monkeypatch):
    FakeProcess.made = []
    monkeypatch.setattr(processes, "BrokerProcess", FakeProcess)
    numbers = iter(range(100))
    return BrokerPool(lambda: next(numbers))


def test_a_pool_has_one_process_for_the_same_settings(pool):
    one = pool.get({"a": "1", "b": "2"})
    assert pool.get({"b": "2", "a": "1"}) is one
    other = pool.get({"a": "1"})
    assert other is not one
    assert (one.folder, other.folder) == (0, 1)
    pool.close()
    assert [process.runs for process in FakeProcess.made] == [False, False]


def test_a_pool_makes_a_new_one_for_one_that_has_ended(pool):
    one = pool.get({})
    one.runs = False
    assert pool.get({}) is not one


def test_a_pool_ends_the_one_that_was_not_used_for_the_longest(pool):
    for number in range(processes.MOST_PROCESSES):
        pool.get({"n": str(number)})
    first, second = FakeProcess.made[:2]
    assert pool.get({"n": "0"}) is first
    pool.get({"n": "new"})
    assert (first.runs, second.runs) == (True, False)
    assert sum(process.runs for process in FakeProcess.made) == processes.MOST_PROCESSES
