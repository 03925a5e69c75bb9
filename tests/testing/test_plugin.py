"""The pytest plugin, in pytest runs of their own: each is a project with a few tests that use its fixtures."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

PLUGIN = "trio_mq.testing.pytest"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def project(pytester, monkeypatch):
    """A project whose tests have the plugin, also where trio-mq is not installed; errors for all warnings."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def run(files, *options, ini="", **outcomes):
        if isinstance(files, str):
            files = {"test_project": files}
        pytester.makepyfile(**{name: textwrap.dedent(text) for name, text in files.items()})
        pytester.makeini(f"[pytest]\nfilterwarnings = error\n{ini}")
        if "asyncio_mode" not in ini:
            options = ("-p", "no:asyncio", *options)
        done = pytester.runpytest_subprocess("-p", PLUGIN, *options)
        done.assert_outcomes(**outcomes)
        return done

    return run


PLAIN = """
import os
import pytest
from trio_mq import Message, SendFailed
from trio_mq.testing.broker import RocketMQBroker

seen, names = set(), set()

@pytest.mark.parametrize("turn", [1, 2])
def test_a_message_is_sent(rocketmq_broker, rocketmq_topic, rocketmq_group, rocketmq_producer, turn):
    assert isinstance(rocketmq_broker, RocketMQBroker)
    assert rocketmq_broker.mode == "subprocess"
    assert str(rocketmq_broker) == rocketmq_broker.nameserver != rocketmq_broker.address
    assert len(rocketmq_producer.queues(rocketmq_topic)) == 4  # before anything is sent
    assert rocketmq_producer.send(Message(rocketmq_topic, b"x")).queue.topic == rocketmq_topic
    seen.add(rocketmq_broker.nameserver)
    names.update((rocketmq_topic, rocketmq_group))
    assert len(seen) == 1, "one broker for all tests"
    assert len(names) == 2 * turn, "and names for each of them"

def test_a_fault_is_told_and_counted(rocketmq_broker, rocketmq_topic, rocketmq_producer):
    fault = rocketmq_broker.faults.error("SEND_MESSAGE", code=13, remark="not today", times=None)
    with pytest.raises(Exception, match="not today") as caught:
        rocketmq_producer.send(Message(rocketmq_topic, b"x"))
    assert caught.value.code == 13
    assert fault.hits >= 1

def test_faults_end_with_their_test(rocketmq_topic, rocketmq_producer):
    rocketmq_producer.send(Message(rocketmq_topic, b"x"))

@pytest.mark.rocketmq(queues=1)
def test_queues_are_chosen(rocketmq_topic, rocketmq_producer):
    assert len(rocketmq_producer.queues(rocketmq_topic)) == 1

@pytest.mark.rocketmq(settings={"brokerName": "other", "autoCreateTopicEnable": False})
class TestSettings:
    def test_settings_have_a_broker_of_their_own(self, rocketmq_broker, rocketmq_topic, rocketmq_producer):
        assert rocketmq_broker.nameserver not in seen
        assert rocketmq_producer.send(Message(rocketmq_topic, b"x")).queue.broker_name == "other"

    @pytest.mark.rocketmq(settings={"brokerName": "third"})
    def test_markers_add_up(self, rocketmq_topic, rocketmq_producer):
        from trio_mq import NoRoute
        assert rocketmq_producer.send(Message(rocketmq_topic, b"x")).queue.broker_name == "third"
        with pytest.raises(NoRoute):
            rocketmq_producer.send(Message("nowhere", b"x"))
"""

TRIO = """
import pytest
import trio
from trio_mq import Message, PeerRefused

pytestmark = pytest.mark.trio

async def test_another_process(rocketmq_broker, rocketmq_topic, rocketmq_producer):
    assert rocketmq_broker.mode == "subprocess"
    receipt = await rocketmq_producer.send(Message(rocketmq_topic, b"x"))
    assert receipt.queue.topic == rocketmq_topic

@pytest.mark.rocketmq(mode="inprocess", queues=2)
async def test_this_process_with_real_sockets(rocketmq_broker, rocketmq_topic, rocketmq_producer):
    assert rocketmq_broker.mode == "inprocess"
    assert len(await rocketmq_producer.queues(rocketmq_topic)) == 2
    fault = rocketmq_broker.faults.error("SEND_MESSAGE_V2", code=13, remark="not today", times=None)
    with pytest.raises(PeerRefused, match="not today"):
        await rocketmq_producer.send(Message(rocketmq_topic, b"x"))
    assert fault.hits == 1
    rocketmq_broker.faults.clear()
    host, _, port = rocketmq_broker.address.partition(":")
    stream = await trio.open_tcp_stream(host, int(port))
    await stream.aclose()
    await rocketmq_producer.send(Message(rocketmq_topic, b"x"))

@pytest.fixture
def address(rocketmq_broker):
    return rocketmq_broker.nameserver

async def test_virtual_time(address, rocketmq_topic, rocketmq_producer, autojump_clock):
    began = trio.current_time()
    await trio.sleep(3600)
    receipt = await rocketmq_producer.send(Message(rocketmq_topic, b"x"))
    assert receipt.queue_offset == 0
    assert trio.current_time() - began < 3700
"""

ANYIO = """
import anyio
import pytest
from trio.testing import MockClock
from trio_mq import Message

pytestmark = pytest.mark.anyio

@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_another_process(rocketmq_broker, rocketmq_topic, rocketmq_producer, anyio_backend):
    assert rocketmq_broker.mode == "subprocess"
    await rocketmq_producer.send(Message(rocketmq_topic, b"x"))

@pytest.mark.rocketmq(mode="inprocess")
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_this_process(rocketmq_broker, rocketmq_topic, rocketmq_producer, anyio_backend):
    assert rocketmq_broker.mode == "inprocess"
    await rocketmq_producer.send(Message(rocketmq_topic, b"x"))

def test_a_plain_test_between_them(rocketmq_topic, rocketmq_producer):
    rocketmq_producer.send(Message(rocketmq_topic, b"x"))

class TestVirtualTime:
    @pytest.fixture
    def anyio_backend(self):
        return "trio", {"clock": MockClock(autojump_threshold=0)}

    async def test_time_jumps(self, rocketmq_broker, rocketmq_topic, rocketmq_producer):
        assert rocketmq_broker.mode == "inprocess"
        await anyio.sleep(3600)
        await rocketmq_producer.send(Message(rocketmq_topic, b"x"))
"""

ASYNCIO = """
import pytest
from trio_mq import Message

@pytest.mark.asyncio
async def test_a_message_is_sent(rocketmq_broker, rocketmq_topic, rocketmq_producer):
    assert rocketmq_broker.mode == "subprocess"
    receipt = await rocketmq_producer.send(Message(rocketmq_topic, b"x"))
    assert receipt.queue.topic == rocketmq_topic

@pytest.mark.asyncio
async def test_a_failed_test_leaves_nothing(rocketmq_producer):
    assert 0, "on purpose"

def test_a_plain_test_after_it(rocketmq_topic, rocketmq_producer):
    rocketmq_producer.send(Message(rocketmq_topic, b"x"))
"""


@pytest.mark.slow
def test_all_kinds_of_tests_live_side_by_side(project):
    """Of each file all tests but the one that fails on purpose pass, in one run that has all three plugins."""
    project(
        {"test_plain": PLAIN, "test_trio": TRIO, "test_anyio": ANYIO, "test_asyncio": ASYNCIO},
        ini="asyncio_mode = strict\nasyncio_default_fixture_loop_scope = function\n"
        "rocketmq_settings =\n  defaultTopicQueueNums = 8\n",
        passed=7 + 3 + 5 + 2,
        failed=1,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "ini", "passed", "failed"),
    [
        ({"test_trio": TRIO.replace("pytestmark", "_")}, "trio_mode = true", 3, 0),
        ({"test_anyio": ANYIO.replace("pytestmark", "_")}, "anyio_mode = auto", 5, 0),
        (
            {"test_asyncio": ASYNCIO.replace("@pytest.mark.asyncio", "")},
            "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function",
            2,
            1,
        ),
    ],
    ids=["trio", "anyio", "asyncio"],
)
def test_plugins_may_take_all_async_tests(project, files, ini, passed, failed):
    project(files, ini=f"{ini}\n", passed=passed, failed=failed)


@pytest.mark.slow
def test_a_wish_is_for_tests_that_can_fulfil_it_and_an_order_for_all(project):
    done = project(
        """
        import pytest

        def test_plain(rocketmq_broker):
            assert rocketmq_broker.mode == "subprocess"

        @pytest.mark.trio
        async def test_trio(rocketmq_broker):
            assert rocketmq_broker.mode == "inprocess"

        @pytest.mark.trio
        @pytest.mark.rocketmq(mode="subprocess")
        async def test_a_marker_wins(rocketmq_broker):
            assert rocketmq_broker.mode == "subprocess"

        @pytest.mark.rocketmq(mode="inprocess")
        def test_impossible(rocketmq_broker):
            pass

        @pytest.mark.trio
        @pytest.mark.rocketmq(mode="subprocess")
        async def test_impossible_too(rocketmq_broker, autojump_clock):
            pass

        @pytest.mark.rocketmq(setting={"brokerName": "b"})
        def test_misspelt(rocketmq_broker):
            pass

        @pytest.mark.rocketmq(settings={"brokerNme": "b"})
        def test_no_setting(rocketmq_broker):
            pass
        """,
        "--rocketmq-mode=inprocess",
        ini="rocketmq_mode = subprocess\n",
        passed=3,
        errors=4,
    )
    done.stdout.fnmatch_lines_random(
        [
            "*test_impossible: mode 'inprocess' is for tests on Trio*",
            "*test_impossible_too: a broker in another process does not live in the virtual time*",
            "*test_misspelt: Mark(name='rocketmq'*is wrong; rocketmq takes mode=*",
            "*ended with exit code 2; its log*",
        ]
    )


@pytest.mark.slow
def test_a_broker_that_ends_is_told_and_replaced(project):
    done = project(
        """
        import os, signal
        from pathlib import Path
        import pytest
        from trio_mq import Message

        def test_it_is_killed(rocketmq_broker, _rocketmq_processes):
            os.kill(_rocketmq_processes.get({}).pid, signal.SIGKILL)
            rocketmq_broker.faults._rules._process._process.wait()

        def test_the_next_one_has_a_new_one(rocketmq_topic, rocketmq_producer):
            rocketmq_producer.send(Message(rocketmq_topic, b"x"))

        def test_its_log_is_shown_when_a_test_fails(rocketmq_broker, rocketmq_topic):
            assert 0
        """,
        passed=2,
        failed=1,
        errors=1,
    )
    text = done.stdout.str()
    assert re.search(r"the broker of this test ended by itself with exit code -9; its log, ", text)
    assert re.search(r"log of rocketmq_broker -+\n.*topic topic-\d+-\d+ created", text)


def test_the_process_ends_when_pytest_dies(pytester, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makepyfile(
        """
        import time
        def test_long(rocketmq_broker, _rocketmq_processes):
            print("pid", _rocketmq_processes.get({}).pid, flush=True)
            time.sleep(60)
        """
    )
    command = [sys.executable, "-m", "pytest", "-s", "-p", PLUGIN]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = ""
        while "pid" not in line:
            line = process.stdout.readline()
            assert line, "no test began"
        pid = int(line.rpartition("pid ")[2])
        process.send_signal(signal.SIGKILL)
        process.wait()
        until = time.monotonic() + 5
        while _runs(pid):
            assert time.monotonic() < until, "the broker outlives pytest"
            time.sleep(0.01)  # noqa: TID251 - another process is waited for, in a plain test


def _runs(pid):
    """Whether a process is there and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] != b"Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_workers_of_xdist_have_a_broker_each(project, monkeypatch, tmp_path):
    monkeypatch.setenv("SEEN", str(tmp_path))
    project(
        """
        import os
        from pathlib import Path
        import pytest
        from trio_mq import Message

        @pytest.mark.parametrize("number", range(20))
        def test_a_message_is_sent(rocketmq_broker, rocketmq_topic, rocketmq_producer, number):
            receipt = rocketmq_producer.send(Message(rocketmq_topic, b"x"))
            assert receipt.queue_offset == 0, "nobody else has this topic"
            worker = Path(os.environ["SEEN"], os.environ["PYTEST_XDIST_WORKER"])
            with worker.open("a") as seen:
                print(rocketmq_broker.nameserver, file=seen)
        """,
        "-n",
        "2",
        passed=20,
    )
    seen = [worker.read_text("utf-8").split() for worker in tmp_path.glob("gw*")]
    assert sum(map(len, seen)) == 20
    brokers = [set(nameservers) for nameservers in seen]
    assert [len(some) for some in brokers] == [1, 1], "one for all tests of a worker"
    assert brokers[0] != brokers[1]


def test_loading_costs_next_to_nothing():
    """Every pytest run of a machine with trio-mq pays for it."""
    program = """
import sys, time
import pytest
before = set(sys.modules)
began = time.process_time()
import trio_mq.testing.pytest
took = time.process_time() - began
print(took, *sorted(set(sys.modules) - before))
"""
    runs = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(3)
    ]
    ours = {"trio_mq", "trio_mq.lazy", "trio_mq.testing", "trio_mq.testing.pytest"}
    assert set(runs[0][1:]) <= ours
    assert min(float(took) for took, *_ in runs) < 0.010
