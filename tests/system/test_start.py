"""How a process comes up: ports, addresses, files of settings, what it prints, and what stops it at once."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.system.client import Client
from tests.system.processes import FREE, Starter, free_ports, wait_for
from trio_mq.protocol.codes import ResponseCode


def test_c082_ports_that_are_given_are_taken(serve: Starter) -> None:
    """C082: broker, fast port and name server are where the flags say, and routes say so too."""
    broker, names = free_ports(2)
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
    assert running.child.listening() == {port, int(running.nameserver.rpartition(":")[2])}


def test_c083_a_flag_wins_over_the_file_and_the_file_over_the_default(serve: Starter) -> None:
    """C083: listenPort in a file, and in a flag as well."""
    of_file, of_flag = free_ports(2)
    conf = serve.home / "broker.conf"
    conf.write_text(f"listenPort={of_file}\nbindAddress=127.0.0.1\nenableFastPort=false\n")
    given = (
        "--config", str(conf), "--nameserver-listen", FREE, "--store", str(serve.store), "--ready-json",
    )  # fmt: skip
    by_file = serve(*given, plain=True)
    assert by_file.broker == f"127.0.0.1:{of_file}"
    by_file.stop()
    by_flag = serve(*given, "--listen", f"127.0.0.1:{of_flag}", plain=True)
    assert by_flag.broker == f"127.0.0.1:{of_flag}"


@pytest.mark.parametrize(
    "text",
    [
        "brokerClusterName = C1 \nbrokerName= b-x\t\nbrokerId = 0\r\n"
        "storePathRootDir = {store}\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
        "deleteWhen = 04\nfileReservedTime = 48 \nmapedFileSizeCommitLog = 131072\n",
        "brokerClusterName=C1\nbrokerName=b-x\nstorePathRootDir={store}\n"
        "mappedFileSizeCommitLog=131072\nautoCreateTopicEnable=true\n",
    ],
    ids=["old spelling", "new spelling"],
)
def test_an_apache_broker_conf_is_taken_as_it_is(serve: Starter, text: str) -> None:
    """Both spellings of the segment size, blanks and line ends as people write them (C166)."""
    store = serve.home / "of-the-file"
    conf = serve.home / "broker.conf"
    conf.write_text(text.format(store=store), newline="")
    running = serve(
        "--config", str(conf), "--listen", FREE, "--nameserver-listen", FREE, "--ready-json", plain=True
    )  # fmt: skip
    assert running.ready["store"] == str(store)
    with running.client() as client:
        client.sent("T", b"one")
    with Client(running.nameserver) as client:
        (found,) = client.route("T").broker_datas
        assert (found.cluster, found.broker_name) == ("C1", "b-x")
    first = store / "commitlog" / ("0" * 20)
    assert first.stat().st_size == 131072


def test_an_advertised_address_is_what_clients_are_told(serve: Starter) -> None:
    """The name goes into the route as it is, the port too; message ids carry the number."""
    running = serve("--advertise", "localhost:31011")
    assert running.broker == "localhost:31011"
    with Client(running.nameserver) as client:
        wait_for(lambda: _topics_known(client), "the broker is registered")
        (found,) = client.route("TBW102").broker_datas
        assert found.broker_addrs == {0: "localhost:31011"}


def _topics_known(client: Client) -> bool:
    try:
        client.route("TBW102")
    except AssertionError:
        return False
    return True


def test_several_name_servers_and_one_is_dead(serve: Starter) -> None:
    """``--nameserver`` counts each time; a dead one delays neither the start nor the others."""
    other = serve(store=serve.home / "other")
    (dead,) = free_ports(1)
    running = serve(
        "--nameserver", f"127.0.0.1:{dead}", "--nameserver", other.nameserver,
        "--broker-name", "b-two", store=serve.home / "two",
    )  # fmt: skip
    assert running.ready["ready_s"] < 10
    for nameserver in (running.nameserver, other.nameserver):
        with Client(nameserver) as client:

            def known(client: Client = client) -> bool:
                route = client.route("TBW102")
                return any(found.broker_name == "b-two" for found in route.broker_datas)

            wait_for(known, f"b-two is known at {nameserver}")
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


def test_a_second_process_on_a_store_is_refused_at_once(serve: Starter) -> None:
    """C013: exit code 21 with the owner's number, well before its time, and nothing is touched."""
    first = serve()
    with first.client() as client:
        client.sent("T", b"one")
        before = {p: p.read_bytes() for p in _small_files(serve.store)}
        second = serve.begin()
        ended = second.ended()
        assert ended.code == 21
        assert str(first.child.pid) in ended.line
        assert str(serve.store) in ended.line
        assert ended.out == ""
        assert {p: p.read_bytes() for p in _small_files(serve.store)} == before
        assert client.sent("T", b"two") == 1


def _small_files(store: Path) -> list[Path]:
    return [p for p in store.rglob("*") if p.is_file() and p.stat().st_size < 4096]


def test_a_port_in_use_is_one_line_with_the_way_out(serve: Starter) -> None:
    """Exit code 31 for each port, before the store is touched."""
    first = serve()
    for options, name in (
        (("--listen", first.broker, "--no-fast-port"), "--listen"),
        (("--nameserver-listen", first.nameserver), "--nameserver-listen"),
    ):
        store = serve.home / f"store-{name.strip('-')}"
        ended = serve.refused(*options, store=store)
        assert ended.code == 31
        assert ended.out == ""
        assert options[1] in ended.line
        assert name in ended.line
        assert not store.exists()
    with first.client() as client:
        client.sent("T", b"one")


def test_a_store_that_cannot_be_written_is_refused(serve: Starter) -> None:
    """C169: path and reason on one line; a file stands where the folder should be."""
    (serve.home / "file").write_bytes(b"in the way")
    for store in (serve.home / "file", serve.home / "file" / "below", Path("/proc/no-store")):
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


def test_a_ready_line_for_people(serve: Starter) -> None:
    ports = ("--listen", FREE, "--nameserver-listen", FREE)
    running = serve.begin("--store", str(serve.store), *ports, plain=True)
    line = running.first_line()
    assert re.fullmatch(
        r"ready in \d+\.\d\d s: name server 127\.0\.0\.1:\d+, broker 127\.0\.0\.1:\d+, store \S+",
        line,
    )
    ended = running.stop()
    assert (ended.code, ended.out) == (0, line + "\n")


def test_a_reader_of_the_ready_line_that_goes_away_stops_nothing(serve: Starter) -> None:
    """``trio-mq serve | head -1`` goes on serving."""
    child = serve.begin()
    ready = json.loads(child.first_line())
    assert child.popen.stdout is not None
    child.popen.stdout.close()
    with Client(ready["broker"]) as client:
        client.sent("T", b"one")
    child.tell(signal.SIGTERM)
    assert child.popen.wait(20) == 0
    assert not (serve.store / "abort").exists()
