"""Blocking clients in processes of their own: forks, Ctrl-C, what is loaded; and what a thousand clients leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.blocking.brokers import broker
from tests.blocking.support import LIMIT_S, alive, client_threads
from trio_mq import Message
from trio_mq.blocking import Admin, Consumer, Producer
from trio_mq.blocking.portal import Portal
from trio_mq.client.instance import Instance

QUIET = ("-W", "ignore::DeprecationWarning")  # of forks with threads: they are what is tested


@pytest.fixture
def ns():
    with broker() as address:
        yield address


def started(script: str, ns: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *QUIET, "-c", script, ns],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


FORKS = """
import os, sys
from trio_mq import Message, NotOpen
from trio_mq.blocking import Producer

def child(inherited):
    try:
        inherited.send(Message("Forked", b"never"))
    except NotOpen as error:
        print("belongs to process" in str(error), flush=True)
    with Producer(sys.argv[1], "child") as own:
        own.send(Message("Forked", b"child"))

with Producer(sys.argv[1], "parent") as producer:
    producer.send(Message("Forked", b"before"))
    children = []
    for _ in range(2):
        pid = os.fork()
        if not pid:
            child(producer)
            break
        children.append(pid)
    if children and len(children) == 2:
        for pid in children:
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        producer.send(Message("Forked", b"after"))
"""


def test_a_server_that_forks_its_workers(ns) -> None:
    process = started(FORKS, ns)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    # Two processes write to one pipe: their lines may run into each other.
    assert (out.count("0"), out.count("True")) == (2, 2)
    with Admin(ns) as admin:
        bodies = sorted(message.body for message in admin.read("Forked"))
    assert bodies == [b"after", b"before", b"child", b"child"]


CONSUMES = """
import sys, time
from trio_mq.blocking import Consumer

def handle(message):
    print("begun", flush=True)
    time.sleep(0.3)
    print("ended", flush=True)

with Consumer(sys.argv[1], "interrupted", subscribe={"T": "*"}, from_where="first") as consumer:
    consumer.run(handle, concurrency=1)
"""


def test_ctrl_c_ends_a_consumer_in_order(ns) -> None:
    with Producer(ns) as producer:
        queue = producer.queues("T")[0]
        for _ in range(10):
            producer.send(Message("T", b"x"), queue=queue)
    process = started(CONSUMES, ns)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    done = out.count("ended")
    assert 1 <= done <= 2
    assert out.count("begun") == done - 1
    with Admin(ns) as admin:
        assert admin.consumer_offsets("interrupted", "T")[queue] == done


LOADED = """
import sys
from trio_mq import Message
from trio_mq.blocking import Consumer, Producer
with Producer(sys.argv[1]) as producer:
    producer.send(Message("T", b"x"))
with Consumer(sys.argv[1], "G", subscribe={"T": "*"}, from_where="first") as consumer:
    with next(iter(consumer)):
        pass
print("asyncio" in sys.modules)
"""


def test_asyncio_is_not_even_loaded(ns) -> None:
    process = started(LOADED, ns)
    assert process.communicate(timeout=60) == ("False\n", "")


def cycles(ns: str, count: int) -> None:
    for _ in range(count):
        with (
            Producer(ns, "P") as producer,
            Consumer(ns, "C", subscribe={"T": "*"}) as consumer,
        ):
            producer.send(Message("T", b"x"))
            assert len(consumer.assignment) > 0


def check_nothing_is_left(ns: str, count: int) -> None:
    with Admin(ns) as admin:
        admin.create_topic("T")
    del admin
    cycles(ns, 2)  # what is loaded with the first ones
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    cycles(ns, count)
    assert client_threads() == set()
    after = len(os.listdir("/proc/self/fd")), threading.active_count()
    assert after[1] == before[1]
    assert (
        after[0] <= before[0] + 2
    )  # the broker, in this process, may not have noticed the last ones' ends
    assert alive(Producer) == alive(Consumer) == alive(Portal) == alive(Instance) == 0


def test_clients_that_were_closed_leave_nothing(ns) -> None:
    check_nothing_is_left(ns, 10)


@pytest.mark.slow
def test_a_thousand_clients_leave_nothing() -> None:
    with broker() as ns:
        check_nothing_is_left(ns, 500)
