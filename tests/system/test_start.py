"""How a process comes up: ports, addresses, files of settings, what it prints, and what stops it at once."""

from __future__ import annotations

import json
import re
import resource
import signal
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.system.client import Client
from tests.system.processes import FREE, Starter, wait_for
from trio_mq.protocol.codes import ResponseCode

pytestmark = pytest.mark.slow  # whole processes


def test_c082_ports_that_are_given_are_taken(serve: Starter) -> None:
    """C082: broker, fast port and name server are where the flags say, and routes say so too."""
    broker, names = free_port(), free_port()
    running = serve("--listen", f"127.0.0.1:{broker}", "--nameserver-listen", f"127.0.0.1:{names}")
    assert running.broker == f"127.0.0.1:{broker}"
    assert running.nameserver == f"127.0.0.1:{names}"
    with running.client() as client, Client(f"127.0.0.1:{broker - 2}") as fast:
        client.sent("T", b"one")
        assert fast.sent("T", b"two") == 1, "the fast port serves the same queues"
    with Client(running.nameserver) as client:
        (found,) = client.route("T").broker_datas
        assert found.broker_addrs == {0: f"127.0.0.1:{broker}"}


def test_c082_port_0_takes_free_ports_and_says_which(serve: Starter) -> None:
    """C082: with 0 the real ports are in the ready line and in the route; there is no fast port then."""
    running = serve()
    port = int(running.broker.rpartition(":")[2])
    assert port != 0
    with running.client() as client:
        client.sent("T", b"one")
    with Client(running.nameserver) as client:
        (found,) = client.route("T").broker_datas
        assert found.broker_addrs == {0: running.broker}
    ports = running.child.listening()
    assert {port, int(running.nameserver.rpartition(":")[2])} < ports
    assert len(ports) == 3, "and one for slaves"


CONFIGURATIONS = {
    "old spelling": "brokerClusterName = C1 \nbrokerName= b-x\t\nbrokerId = 0\r\nlistenPort = {port} \n"
    "storePathRootDir = {store}\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
    "deleteWhen = 04\nfileReservedTime = 48 \nmapedFileSizeCommitLog = 131072\n",
    "new spelling": "brokerClusterName=C1\nbrokerName=b-x\nstorePathRootDir={store}\nlistenPort={port}\n"
    "mappedFileSizeCommitLog=131072\nautoCreateTopicEnable=true\n",
}


@pytest.mark.parametrize("spelling", CONFIGURATIONS)
def test_c083_an_apache_broker_conf_is_taken_as_it_is(serve: Starter, spelling: str) -> None:
    """C083, C166: the file wins over the default, a flag over the file; blanks and line ends as people write them."""
    store = serve.home / "of-the-file"
    of_file, of_flag = free_port(), free_port()
    conf = serve.home / "broker.conf"
    conf.write_text(CONFIGURATIONS[spelling].format(store=store, port=of_file), newline="")
    flag = ("--listen", f"127.0.0.1:{of_flag}") if spelling == "new spelling" else ()
    running = serve(
        "--config", str(conf), *flag, "--nameserver-listen", FREE, "--ready-json", plain=True
    )  # fmt: skip
    assert running.broker == f"127.0.0.1:{of_flag if flag else of_file}"
    assert running.ready["store"] == str(store)
    with running.client() as client:
        client.sent("T", b"one")
    with Client(running.nameserver) as client:
        (found,) = client.route("T").broker_datas
        assert (found.cluster, found.broker_name) == ("C1", "b-x")
    first = store / "commitlog" / ("0" * 20)
    assert first.stat().st_size == 131072


def test_several_name_servers_and_one_is_dead(serve: Starter) -> None:
    """``--nameserver`` counts each time, a dead one delays nothing; ``--advertise`` is what all of them are told."""
    other = serve(store=serve.home / "other")
    dead = free_port()
    running = serve(
        "--nameserver", f"127.0.0.1:{dead}", "--nameserver", other.nameserver,
        "--broker-name", "b-two", "--advertise", "localhost:31011", store=serve.home / "two",
    )  # fmt: skip
    assert running.broker == "localhost:31011"
    assert running.ready["ready_s"] < 10
    for nameserver in (running.nameserver, other.nameserver):
        with Client(nameserver) as client:

            def told(client: Client = client) -> bool:
                found = {b.broker_name: b.broker_addrs for b in client.route("TBW102").broker_datas}
                return found.get("b-two") == {0: "localhost:31011"}

            wait_for(told, f"b-two is known at {nameserver}")
    assert f"127.0.0.1:{dead}" in running.log
    assert running.stop().code == 0


def test_c104_auto_created_topics_with_two_brokers_and_one_goes_away(serve: Starter) -> None:
    """C104: a topic made on one broker is routed there only; the route of the other one stays."""
    first = serve("--broker-name", "b-one", store=serve.home / "one")
    second = serve(
        "--broker-name", "b-two", "--no-nameserver", "--nameserver", first.nameserver,
        store=serve.home / "two",
    )  # fmt: skip
    with Client(first.nameserver) as names:
        wait_for(lambda: len(names.route("TBW102").broker_datas) == 2, "both are registered")
        with second.client() as client:
            client.sent("Auto", b"one")
        assert [b.broker_name for b in names.route("Auto").broker_datas] == ["b-two"]
        with first.client() as client:
            client.sent("Auto", b"two")
        assert {b.broker_name for b in names.route("Auto").broker_datas} == {"b-one", "b-two"}
        assert {q.broker_name for q in names.route("Auto").queue_datas} == {"b-one", "b-two"}
        assert second.stop().code == 0
        assert [b.broker_name for b in names.route("Auto").broker_datas] == ["b-one"]
        assert [q.broker_name for q in names.route("Auto").queue_datas] == ["b-one"]
        with first.client() as client:
            assert [m.body for m in client.all_of("Auto")] == [b"two"]


def test_what_is_taken_is_refused_at_once(serve: Starter) -> None:
    """C013: a second process on a store (21) tells the owner's number; a port in use (31) the way out.

    Each is one line, well before a second of work, and touches nothing.
    """
    # What the first one writes by itself is no work of the others.
    first = serve("--set", "flushConsumerOffsetInterval=600000")
    listed = serve.store / "queuelist.json"
    with first.client() as client:
        client.sent("T", b"one")
        wait_for(lambda: listed.exists() and b'"T"' in listed.read_bytes(), "the queue is listed")
        before = {p: p.read_bytes() for p in _small_files(serve.store)}
        began = resource.getrusage(resource.RUSAGE_CHILDREN)
        same_store = serve.refused()
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < 0.9
        assert same_store.code == 21
        assert str(first.child.pid) in same_store.line
        assert str(serve.store) in same_store.line
        other = serve.home / "other"
        port = serve.refused("--listen", first.broker, "--no-fast-port", store=other)
        names = serve.refused("--nameserver-listen", first.nameserver, store=other)
        for refused, option, address in (
            (port, "--listen", first.broker),
            (names, "--nameserver-listen", first.nameserver),
        ):
            assert refused.code == 31
            assert option in refused.line
            assert address in refused.line
        assert {same_store.out, port.out, names.out} == {""}
        assert not other.exists()
        assert {p: p.read_bytes() for p in _small_files(serve.store)} == before
        assert client.sent("T", b"two") == 1


def _small_files(store: Path) -> list[Path]:
    return [p for p in store.rglob("*") if p.is_file() and p.stat().st_size < 4096]


def test_a_store_that_cannot_be_written_is_refused(serve: Starter) -> None:
    """C169: path and reason on one line; a file stands where the folder should be."""
    (serve.home / "file").write_bytes(b"in the way")
    for store in (serve.home / "file" / "below", Path("/proc/no-store")):
        ended = serve.refused(store=store)
        assert ended.code == 2
        assert ended.out == ""
        assert str(store) in ended.line
        assert "--store" in ended.line


def test_stdout_carries_the_ready_line_only_and_every_log_line_is_an_object(serve: Starter) -> None:
    """``--log-json`` at its most detailed, through a start, some work, bad input and a stop."""
    running = serve("--log-json", "--log-level", "debug")
    with running.client() as client:
        client.sent("T", b"one")
        client.sent("T" * 127, b"one")
        assert client.send("bad topic\n\x01", b"").code != ResponseCode.SUCCESS
    with Client(running.broker) as liar:
        liar.socket.sendall(b"\xff\xff\xff\xff\n\n" + bytes(20))
        liar.socket.recv(100)
    ended = running.stop(signal.SIGINT)
    assert ended.code == 0
    assert ended.out == json.dumps(running.ready) + "\n"
    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert len(lines) > 5
    for line in lines:
        assert {"time", "level", "subsystem", "logger", "message"} <= line.keys()
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}[+-]\d\d:\d\d", line["time"])
    assert {"recovery", "store", "system", "net"} <= {line["subsystem"] for line in lines}


def test_a_ready_line_for_people_who_go_away(serve: Starter) -> None:
    """``trio-mq serve | head -1`` goes on serving."""
    child = serve.begin(
        "--store", str(serve.store), "--listen", FREE, "--nameserver-listen", FREE, plain=True
    )  # fmt: skip
    line = child.first_line()
    found = re.fullmatch(
        r"ready in \d+\.\d\d s: name server 127\.0\.0\.1:\d+, broker (127\.0\.0\.1:\d+), store (\S+)",
        line,
    )
    assert found, line
    assert found[2] == str(serve.store)
    child.close()
    with Client(found[1]) as client:
        client.sent("T", b"one")
    child.tell(signal.SIGTERM)
    assert child.popen.wait(20) == 0
    assert not (serve.store / "abort").exists()
