"""The whole system: what starts in which order, what is told, and how everything ends.

Real sockets of this machine and a disk in memory, in real time. A few tests at the end run the process itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio

from tests.broker.support import SUSPEND, messages, props, pull, request, send, texts
from trio_mq import system
from trio_mq.broker import starting
from trio_mq.broker.register import Registrar
from trio_mq.clock import SystemClock
from trio_mq.config import Address, BrokerSettings, Settings, StoreSettings
from trio_mq.config.nameserver import NameServerSettings
from trio_mq.errors import (
    AddressInUse,
    ConfigError,
    ForeignFormat,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreLocked,
)
from trio_mq.protocol import bodies
from trio_mq.protocol import command as commands
from trio_mq.protocol.bodies import TopicRouteData
from trio_mq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader, encode_frame
from trio_mq.protocol.headers.offset import QueryConsumerOffsetRequest, UpdateConsumerOffsetRequest
from trio_mq.protocol.message import Host, parse_offset_message_id
from trio_mq.store.store import Store
from trio_mq.system import run_system
from trio_mq.testing.clock import ManualClock
from trio_mq.testing.disk import MemoryDisk

STORE = StoreSettings(
    path="/store",
    mapped_file_size_commit_log=1 << 20,
    mapped_file_size_consume_queue=1_200,
    max_hash_slot_num=50,
    max_index_num=2_000,
)
BROKER = BrokerSettings(broker_name="b-a", listen_port=0)
NAMES = NameServerSettings(
    listen=Address("127.0.0.1", 0), kv_config_path="/store/namesrv/kvConfig.json"
)
LIMIT_S = 20


def settings_of(broker=None, store=None, **names):
    return Settings(
        broker=attrs.evolve(BROKER, **(broker or {})),
        store=attrs.evolve(STORE, **(store or {})),
        nameserver=attrs.evolve(NAMES, **names),
    )


@attrs.define
class Running:
    """A system that serves; leaving its block stops it."""

    ready: system.Ready
    stop: trio.Event
    stopped_s: float = 0.0

    @property
    def broker(self):
        return self.ready.broker


@asynccontextmanager
async def running(disk=None, settings=None, clock=None):
    """A system from ready to its orderly end."""
    stop, told = trio.Event(), []
    is_ready = trio.Event()

    def ready(found):
        told.append(found)
        is_ready.set()

    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:

            async def main():
                await run_system(
                    settings or settings_of(),
                    disk or MemoryDisk(),
                    clock or SystemClock(),
                    stop,
                    began_s=time.perf_counter(),
                    ready=ready,
                )
                is_ready.set()

            nursery.start_soon(main)
            await is_ready.wait()
            (found,) = told
            made = Running(found, stop)
            yield made
            stop.set()
            began = trio.current_time()
        made.stopped_s = trio.current_time() - began


async def fails(expected, disk=None, settings=None, stop=None):
    """The error that a system ends with, as the process would report it."""
    with trio.fail_after(LIMIT_S), pytest.raises(BaseException) as caught:
        async with trio.open_nursery():
            await run_system(
                settings or settings_of(),
                disk or MemoryDisk(),
                SystemClock(),
                stop or trio.Event(),
                began_s=time.perf_counter(),
                ready=lambda _: None,
            )
    error = system._first_of(caught.value)
    assert type(error) is expected, repr(error)
    return error


class Client:
    """A connection by hand."""

    def __init__(self, stream):
        self._stream = stream
        self._reader = FrameReader()
        self._waiting = []

    async def send(self, *frames):
        await self._stream.send_all(b"".join(encode_frame(*frame) for frame in frames))

    async def next(self):
        while not self._waiting:
            data = await self._stream.receive_some()
            assert data, "the connection was closed"
            self._waiting += [commands.decode(frame) for frame in self._reader.feed(data)]
        return self._waiting.pop(0)

    async def ask(self, frame):
        await self.send(frame)
        return await self.next()


@asynccontextmanager
async def client(address, port=None):
    host, _, at = address.rpartition(":")
    stream = await trio.open_tcp_stream(host.strip("[]"), port or int(at))
    async with stream:
        yield Client(stream)


async def route(nameserver, topic):
    async with client(nameserver) as names:
        reply = await names.ask(
            request(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                ext={"topic": topic, "acceptStandardJsonOnly": "true"},
            )
        )
    assert reply.code == 0, reply.remark
    return bodies.decode(TopicRouteData, reply.body)


# -- a start and a stop


async def test_c082_ports_of_0_are_told_and_are_in_the_route():
    disk = MemoryDisk()
    async with running(disk) as made:
        assert made.ready.ready_s < 5
        for address in (made.ready.nameserver, made.ready.broker):
            host, _, port = address.rpartition(":")
            assert (host, int(port) > 0) == ("127.0.0.1", True)
        assert disk.exists("/store/abort")
        data = await route(made.ready.nameserver, "TBW102")
        assert [b.broker_addrs for b in data.broker_datas] == [{0: made.broker}]
        async with client(made.broker) as peer:
            reply = await peer.ask(send("New", properties=props(KEYS="k")))
            assert reply.code == 0, reply.remark
            assert (await peer.ask(pull(0, "New"))).code == 0
        # the answer to the first send of a topic comes when clients find its route (C103)
        assert (await route(made.ready.nameserver, "New")).queue_datas[0].write_queue_nums == 4
    assert made.stopped_s < 1
    assert not disk.exists("/store/abort")
    async with running(disk) as again:
        assert again.ready.recovery.clean
        async with client(again.broker) as peer:
            assert texts(await peer.ask(pull(0, "New"))) == [b"hello"]


async def test_the_ready_line():
    async with running() as made:
        found = json.loads(made.ready.as_json())
        assert found.keys() == {"nameserver", "broker", "store", "recovery", "ready_s"}
        assert found["broker"] == made.broker
        assert found["recovery"]["clean"] is True
        text = made.ready.as_text()
    assert "\n" not in text
    for part in ("ready in", made.ready.nameserver, made.broker, "/store"):
        assert part in text
    async with running(settings=settings_of(enabled=False)) as alone:
        assert json.loads(alone.ready.as_json())["nameserver"] is None
        assert "name server" not in alone.ready.as_text()


def free_pair():
    """A port whose port - 2 is free as well."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port - 2))
            except OSError:
                continue
            return port


async def test_the_fast_port_is_the_same_broker_two_below():
    port = free_pair()
    async with running(settings=settings_of({"listen_port": port})) as made:
        assert made.broker == f"127.0.0.1:{port}"
        async with client(made.broker, port - 2) as peer:
            assert (await peer.ask(send("T"))).code == 0
        async with client(made.broker) as peer:
            assert texts(await peer.ask(pull(0, "T"))) == [b"hello"]
    async with running(settings=settings_of({"listen_port": port, "fast_port": False})):
        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", port - 2)


async def test_c086_a_name_is_in_the_route_and_its_address_in_message_ids():
    settings = settings_of({"advertise_host": "localhost", "advertise_port": 12_345})
    async with running(settings=settings) as made:
        assert made.broker == "localhost:12345"
        data = await route(made.ready.nameserver, "TBW102")
        assert data.broker_datas[0].broker_addrs == {0: "localhost:12345"}
        listening = [
            p for p in listening_ports() if p != int(made.ready.nameserver.rpartition(":")[2])
        ]
        async with client("127.0.0.1:0", listening[0]) as peer:
            reply = await peer.ask(send("T"))
            host, offset = parse_offset_message_id(reply.ext["msgId"])
            assert host == Host("127.0.0.1", 12_345)
            view = request(RequestCode.VIEW_MESSAGE_BY_ID, ext={"offset": str(offset)})
            assert texts(await peer.ask(view)) == [b"hello"]


def listening_ports():
    """Ports that this process listens on."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.append(int(fields[1].rpartition(":")[2], 16))
    return ports


async def test_ipv6():
    settings = settings_of({"listen_host": "::1"}, listen=Address("::1", 0))
    async with running(settings=settings) as made:
        assert made.broker.startswith("[::1]:")
        data = await route(made.ready.nameserver, "TBW102")
        assert data.broker_datas[0].broker_addrs == {0: made.broker}
        async with client(made.broker) as peer:
            reply = await peer.ask(send("T"))
            assert parse_offset_message_id(reply.ext["msgId"])[0].ip == "::1"


async def test_registration_at_other_name_servers():
    async with running() as other:
        more = {"nameservers": (parsed(other.ready.nameserver),), "broker_name": "b-b"}
        async with running(MemoryDisk(), settings_of(more)) as made:
            await trio.sleep(0.3)
            names = {
                b.broker_name for b in (await route(other.ready.nameserver, "TBW102")).broker_datas
            }
            assert names == {"b-a", "b-b"}
            assert len((await route(made.ready.nameserver, "TBW102")).broker_datas) == 1
        names = {
            b.broker_name for b in (await route(other.ready.nameserver, "TBW102")).broker_datas
        }
        assert names == {"b-a"}, "whoever leaves says goodbye"


def parsed(address):
    host, _, port = address.rpartition(":")
    return Address(host, int(port))


async def test_sockets_are_free_after_a_stop():
    before = listening_ports()
    async with running() as made:
        ports = set(listening_ports()) - set(before)
        assert len(ports) == 2
        idle = await trio.open_tcp_stream("127.0.0.1", parsed(made.broker).port)
    assert await idle.receive_some() == b""
    await idle.aclose()
    assert set(listening_ports()) <= set(before)


async def test_offsets_and_topics_are_saved_by_a_stop():
    disk = MemoryDisk()
    async with running(disk) as made, client(made.broker) as peer:
        assert (await peer.ask(send("T"))).code == 0
        await peer.ask(pull(1, "T", sys_flag=5, commit_offset=1))
    saved = json.loads(
        disk.open("/store/config/consumerOffset.json").read(9_999, 0).replace(b"{0:1}", b"1")
    )
    assert saved["offsetTable"] == {"T@CG": 1}


async def test_c052_progress_ahead_of_the_log_is_taken_back_and_new_messages_come(caplog):
    """C052: a group was at 20, the log lost all from 15 on; the ten that are sent then are delivered."""
    disk = MemoryDisk()
    async with running(disk) as made, client(made.broker) as peer:
        ids = [(await peer.ask(send("T", b"%d" % n))).ext["msgId"] for n in range(20)]
        await peer.ask(pull(0, "T"))  # the group comes to be
        commit = UpdateConsumerOffsetRequest("CG", "T", 0, 20)
        assert (await peer.ask(request(RequestCode.UPDATE_CONSUMER_OFFSET, commit))).code == 0
    log_offset = parse_offset_message_id(ids[15])[1]
    put(disk, "/store/abort", b"1")
    disk.remove("/store/checkpoint")
    file = disk.open("/store/commitlog/" + "0" * 20)
    file.write(b"\xff" * 8, log_offset)
    file.close()
    async with running(disk) as made, client(made.broker) as peer:
        assert made.ready.recovery.log_end == log_offset
        (warning,) = [m for m in caplog.messages if "group CG" in m and "T" in m]
        assert "20" in warning
        assert "15" in warning
        asked = request(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetRequest("CG", "T", 0))
        offset = int((await peer.ask(asked)).ext["offset"])
        assert offset == 15
        for n in range(10):
            assert (await peer.ask(send("T", b"new %d" % n))).code == 0
        assert texts(await peer.ask(pull(offset, "T"))) == [b"new %d" % n for n in range(10)]
    saved = disk.open("/store/config/consumerOffset.json").read(9_999, 0)
    assert b'"T@CG":{0:15}' in saved


async def test_c052_progress_in_a_queue_that_lost_everything_begins_at_0():
    """C052: the power went before anything of the queue was on the disk, but the offsets were; topics stay as told."""
    disk = MemoryDisk()
    disk.make_dirs("/store/config")
    content = {
        "topics.json": b'{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":2,"writeQueueNums":2,"perm":6}}}',
        "consumerOffset.json": b'{"offsetTable":{"T@CG":{0:500,1:0,9:7},"Unknown@CG":{0:500}}}',
    }
    for name, data in content.items():
        put(disk, f"/store/config/{name}", data)
    async with running(disk) as made, client(made.broker) as peer:
        await peer.ask(pull(0, "T"))
        for topic, queue_id, expected in (("T", 0, 0), ("T", 1, 0), ("T", 9, 7)):
            header = QueryConsumerOffsetRequest("CG", topic, queue_id)
            reply = await peer.ask(request(RequestCode.QUERY_CONSUMER_OFFSET, header))
            assert reply.ext == {"offset": str(expected)}
        assert (await peer.ask(send("T", b"first"))).code == 0
        assert texts(await peer.ask(pull(0, "T"))) == [b"first"]
    assert b'"Unknown@CG":{0:500}' in disk.open("/store/config/consumerOffset.json").read(9_999, 0)


async def test_c074_a_clock_that_was_25_years_ahead():
    """C074: started in the future, then set right: topics are registered, messages taken, and after a restart, too."""
    disk, clock = MemoryDisk(), ManualClock()
    present_ms = clock.now_ms()
    clock.set(present_ms + 25 * 365 * 86_400_000)
    async with running(disk, clock=clock) as made, client(made.broker) as peer:
        assert (await peer.ask(send("Future"))).code == 0
        clock.set(present_ms)
        assert (await peer.ask(send("Present"))).code == 0
        for topic in ("Future", "Present"):
            data = await route(made.ready.nameserver, topic)
            assert [b.broker_addrs for b in data.broker_datas] == [{0: made.broker}]
        assert (await peer.ask(send("Future", b"later"))).code == 0
        got = messages(await peer.ask(pull(0, "Future")))
        assert [m.body for m in got] == [b"hello", b"later"]
        assert got[0].store_timestamp_ms <= got[1].store_timestamp_ms  # case C076
    clock.advance(1000)
    async with running(disk, clock=clock) as made, client(made.broker) as peer:
        assert (await peer.ask(send("Again"))).code == 0
        for topic in ("Future", "Present", "Again"):
            assert (await route(made.ready.nameserver, topic)).broker_datas


# -- stopping


async def test_c163_5000_waiting_pulls_do_not_delay_a_stop():
    disk = MemoryDisk()
    async with running(disk) as made:
        async with client(made.broker) as peer:
            assert (await peer.ask(send("T"))).code == 0
        streams = [
            await trio.open_tcp_stream("127.0.0.1", parsed(made.broker).port) for _ in range(100)
        ]
        polls = b"".join(
            encode_frame(*pull(n % 1, "T", queue_id=1, sys_flag=SUSPEND)) for n in range(50)
        )
        for stream in streams:
            await stream.send_all(polls)
        await trio.sleep(0.3)
    assert made.stopped_s < 1.5
    assert not disk.exists("/store/abort"), "the next start takes the clean path"
    for stream in streams:
        await stream.aclose()


async def test_a_stop_with_many_members_of_one_group():
    """Each of them leaves; nobody is told about the others."""
    async with running() as made:
        peers = []
        for number in range(150):
            stream = await trio.open_tcp_stream("127.0.0.1", parsed(made.broker).port)
            peers.append(stream)
            await Client(stream).send(heartbeat(f"c{number}"))
        await trio.sleep(0.3)
    assert made.stopped_s < 1
    for stream in peers:
        await stream.aclose()


def heartbeat(client_id):
    consumer = {
        "groupName": "CG",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [],
    }
    body = {"clientID": client_id, "consumerDataSet": [consumer], "producerDataSet": []}
    return request(RequestCode.HEART_BEAT, body=json.dumps(body).encode())


async def test_c164_a_name_server_that_never_answers_costs_a_second():
    with socket.socket() as hole:
        hole.bind(("127.0.0.1", 0))
        hole.listen()
        settings = settings_of({"nameservers": (Address("127.0.0.1", hole.getsockname()[1]),)})
        async with running(settings=settings) as made:
            assert made.ready.ready_s < 3
        assert made.stopped_s < 1.5


async def test_a_stop_during_a_recovery_keeps_the_marker():
    disk = MemoryDisk()
    async with running(disk):
        pass
    put(disk, "/store/abort", b"4711")
    disk.run_delay_s = 0.2
    before = len(disk.operations)
    stop = trio.Event()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: run_system(
                    settings_of(),
                    disk,
                    SystemClock(),
                    stop,
                    began_s=0,
                    ready=lambda _: pytest.fail("ready"),
                )
            )
            await trio.sleep(0.3)
            stop.set()
            began = trio.current_time()
        assert trio.current_time() - began < 1
    assert disk.exists("/store/abort")
    changed = {op.path for op in disk.operations[before:]} - {"/store/lock"}
    assert not any("config" in path for path in changed)
    disk.run_delay_s = 0
    async with running(disk) as made:  # the lock is free
        assert not made.ready.recovery.clean


def put(disk, path, data):
    file = disk.open(path, create=True)
    file.write(data, 0)
    file.sync()
    disk.sync_dir(path.rpartition("/")[0])


@asynccontextmanager
async def recovering(monkeypatch, disk, notify):
    """A system whose recovery goes on until it is let go; `goes_on` ends it, `told` has the ready line."""
    goes_on, told, stop = trio.Event(), [], trio.Event()
    really = system.recover

    async def slow(parts, choices):
        choices.progress("log", 0, 1000)
        choices.progress("log", 410, 1000)
        await goes_on.wait()
        return await really(parts, choices)

    monkeypatch.setattr(system, "recover", slow)
    monkeypatch.setattr(starting, "ANSWER_AFTER_S", 0.01)
    monkeypatch.setattr(starting, "PROGRESS_S", 0.05)
    monkeypatch.setenv("NOTIFY_SOCKET", notify)
    port = free_pair()
    settings = settings_of({"listen_port": port, "flush_consumer_offset_interval_ms": 20})
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: run_system(
                    settings, disk, SystemClock(), stop, began_s=0, ready=told.append
                )
            )
            yield port, goes_on, told
            stop.set()


async def test_c019_a_long_recovery_tells_how_far_it_is(monkeypatch, tmp_path):
    """C019: clients get a refusal with the progress, administrators a table, a service manager its lines.

    When the recovery has ended, the same ports serve.
    """
    notify = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(notify)
        manager.setblocking(False)
        async with recovering(monkeypatch, MemoryDisk(), notify) as (port, goes_on, told):
            for at in (port, port - 2):
                async with answering(at) as peer:
                    refused = await peer.ask(send("T"))
                    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
                    assert "recovering 41 %" in refused.remark
                    info = await peer.ask(request(RequestCode.GET_BROKER_RUNTIME_INFO))
                    table = bodies.decode(bodies.KVTable, info.body).table
                    assert table["brokerActive"] == "false"
                    assert table["recoveringPercent"] == "41"
            assert b"STATUS=recovering 41 %" in manager.recv(1000)
            assert told == []
            goes_on.set()
            while not told:  # noqa: ASYNC110 - another task does it
                await trio.sleep(0.01)
            for at in (port, port - 2):
                async with answering(at) as peer:
                    assert (await peer.ask(send("T"))).code == 0
        said = [b""]
        while b"STOPPING=1" not in said[-1]:
            said.append(manager.recv(1000))
        assert any(line.startswith(b"READY=1\nSTATUS=ready in") for line in said)


@asynccontextmanager
async def answering(port):
    """A connection to the first who listens there."""
    while True:
        try:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
        except OSError:
            await trio.sleep(0.01)
            continue
        async with stream:
            yield Client(stream)
        return


@pytest.mark.parametrize("ends", ["stop", "failure"])
async def test_c047_nothing_is_saved_before_the_recovery_has_ended(monkeypatch, ends):
    """C047: it takes many periods of saving, and ends early: state files and foreign progress stay as they were."""
    disk = MemoryDisk()
    disk.make_dirs("/store/config")
    content = {
        "consumerOffset.json": b'{"offsetTable":{"T@G":{0:500}}}',
        "delayOffset.json": b'{"offsetTable":{1:6,18:9}}',
    }
    for name, data in content.items():
        put(disk, f"/store/config/{name}", data)
    before = len(disk.operations)
    error = StoreError("the disk is gone")
    with contextlib.suppress(BaseExceptionGroup):
        async with recovering(monkeypatch, disk, "") as (port, goes_on, told):
            async with answering(port) as peer:
                assert "recovering" in (await peer.ask(send("New"))).remark
            await trio.sleep(0.2)
            if ends == "failure":
                monkeypatch.setattr(system, "Store", raising(error))
                goes_on.set()
                await trio.sleep(1)
    assert told == []
    assert not [op for op in disk.operations[before:] if "/config" in op.path]
    for name, data in content.items():
        path = f"/store/config/{name}"
        assert disk.open(path).read(disk.size(path), 0) == data


def raising(error):
    def call(*_, **__):
        raise error

    return call


async def test_a_stop_before_everything_is_ready(monkeypatch):
    async def never(*_):
        await trio.sleep_forever()

    monkeypatch.setattr(Registrar, "registered_once", never)
    disk, stop = MemoryDisk(), trio.Event()
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                lambda: run_system(
                    settings_of(),
                    disk,
                    SystemClock(),
                    stop,
                    began_s=0,
                    ready=lambda _: pytest.fail("ready"),
                )
            )
            await trio.sleep(0.3)
            stop.set()
    assert not disk.exists("/store/abort")


async def test_a_stop_that_was_asked_for_before_the_start():
    stop, disk = trio.Event(), MemoryDisk()
    stop.set()
    with trio.fail_after(LIMIT_S):
        await run_system(
            settings_of(),
            disk,
            SystemClock(),
            stop,
            began_s=0,
            ready=lambda _: pytest.fail("ready"),
        )
    assert not disk.exists("/store/abort")


# -- starts that fail


async def test_a_port_in_use_is_told_before_anything_is_touched():
    disk = MemoryDisk()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for settings, option in (
            (settings_of({"listen_port": port, "fast_port": False}), "--listen"),
            (settings_of({"listen_port": port + 2}), "--no-fast-port"),
            (settings_of(listen=Address("127.0.0.1", port)), "--nameserver-listen"),
        ):
            error = await fails(AddressInUse, disk, settings)
            assert option in str(error)
            assert f":{port}" in str(error)
            assert error.exit_code == 31
    assert disk.operations == []


async def test_c013_a_second_start_names_the_first_and_changes_nothing():
    disk = MemoryDisk()
    async with running(disk) as made:
        await trio.sleep(0.1)
        port = parsed(made.broker).port
        before = [op for op in disk.operations if op.kind != "sync"]
        began = trio.current_time()
        for settings in (
            settings_of(),
            settings_of({"listen_port": port, "fast_port": False}),  # the very same command
        ):
            error = await fails(StoreLocked, disk, settings)
            assert error.exit_code == 21
            assert f"process {os.getpid()}" in str(error)
        assert trio.current_time() - began < 1
        assert [op for op in disk.operations if op.kind != "sync"] == before
        async with client(made.broker) as peer:
            assert (await peer.ask(send("T"))).code == 0
    assert not disk.exists("/store/abort")


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.ENOSPC])
async def test_c169_a_folder_that_cannot_be_made(code):
    disk = MemoryDisk()
    disk.fail_when(lambda op: op.kind == "make_dirs", code)
    error = await fails(ConfigError, disk)
    assert "/store" in str(error)
    assert os.strerror(code) in str(error)
    assert "--store" in str(error)


async def test_damage_ends_a_start_with_its_exit_code():
    disk = MemoryDisk()
    disk.make_dirs("/store/config")
    for name in ("topics.json", "topics.json.bak"):
        put(disk, f"/store/config/{name}", b"garbage")
    error = await fails(StoreDamaged, disk)
    assert error.exit_code == 22
    assert "topics.json" in str(error)
    assert "trio-mq recover --dry-run /store" in str(error)  # case C044
    assert not disk.exists("/store/abort")


async def test_c001_a_short_log_file_is_refused_with_the_way_to_see_more():
    """C001, C044: a log file of another size that is not the last one."""
    disk = MemoryDisk()
    disk.make_dirs("/store/commitlog")
    for start, size in ((0, 1000), (1 << 20, 1 << 20)):
        disk.open(f"/store/commitlog/{start:020d}", create=True).truncate(size)
    error = await fails(ForeignFormat, disk)
    for part in ("/store/commitlog/00000000000000000000", "1000", str(1 << 20)):
        assert part in str(error)
    assert "trio-mq recover --dry-run /store" in str(error)


async def test_a_host_name_that_nobody_knows():
    error = await fails(
        ConfigError, settings=settings_of({"advertise_host": "no-such-host.invalid"})
    )
    assert "no-such-host.invalid" in str(error)


# -- stages that fail


async def test_a_disk_that_fails_ends_the_process_and_leaves_the_marker(caplog):
    disk = MemoryDisk()

    async def lose_the_disk():
        async with running(disk) as made, client(made.broker) as peer:
            assert (await peer.ask(send("T"))).code == 0
            disk.fail_when(lambda op: op.kind == "sync" and "commitlog" in op.path, errno.EIO)
            await trio.sleep_forever()

    with trio.fail_after(LIMIT_S), pytest.raises(BaseExceptionGroup) as caught:
        await lose_the_disk()
    error = system._first_of(caught.value)
    assert type(error) is StoreError
    assert "commitlog" in str(error)
    assert "Input/output error" in str(error)
    assert disk.exists("/store/abort")
    disk.heal()
    async with running(disk) as again:
        assert not again.ready.recovery.clean
        async with client(again.broker) as peer:
            assert texts(await peer.ask(pull(0, "T"))) == [b"hello"]


async def test_tables_that_cannot_be_saved_do_not_keep_the_store_from_closing():
    disk = MemoryDisk()

    async def fill_the_disk():
        async with running(disk) as made, client(made.broker) as peer:
            await peer.ask(send("T"))
            disk.fail_when(lambda op: "/config/" in op.path, errno.ENOSPC)
            await peer.ask(pull(1, "T", sys_flag=5, commit_offset=1))

    with pytest.raises(BaseExceptionGroup) as caught:
        await fill_the_disk()
    error = system._first_of(caught.value)
    assert type(error) is StoreFull
    assert "cannot save /store/config/" in str(error)
    assert not disk.exists("/store/abort"), "the store itself was closed well"


async def test_a_subsystem_that_does_not_close_in_time(monkeypatch, caplog):
    monkeypatch.setattr(system, "STOP_LIMIT_S", 0.1)

    async def hang(self):
        await trio.sleep_forever()

    monkeypatch.setattr(system.Broker, "close", hang)
    disk = MemoryDisk()
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(disk):
            pass
    error = system._first_of(caught.value)
    assert type(error) is StoreError
    assert "the broker did not close within 0.1 s" in str(error)
    assert not disk.exists("/store/abort")


async def test_a_fault_of_ours_gets_out_as_it_is(monkeypatch):
    async def fault(self, **_):
        raise KeyError("ours")

    monkeypatch.setattr(Store, "run", fault)
    disk = MemoryDisk()
    await fails(KeyError, disk)
    assert disk.exists("/store/abort")


def test_the_error_that_explains_a_group():
    ours, other = StoreFull("full"), KeyError("k")
    group = BaseExceptionGroup("", [other, BaseExceptionGroup("", [OSError("x"), ours])])
    assert system._first_of(group) is ours
    assert system._first_of(BaseExceptionGroup("", [other, OSError("x")])) is other
    for code, kind in (
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EIO, StoreError),
    ):
        failed = OSError(code, os.strerror(code), "/store/file")
        error = system._first_of(BaseExceptionGroup("", [failed]))
        assert type(error) is kind
        assert "/store/file" in str(error)
        assert os.strerror(code) in str(error)
    assert "plain" in str(system._first_of(BaseExceptionGroup("", [OSError("plain")])))


# -- the process


PORTS = ("--listen", "127.0.0.1:0", "--nameserver-listen", "127.0.0.1:0", "--ready-json")


class Process:
    """A ``trio-mq serve`` of its own."""

    def __init__(self, process):
        self._process = process
        self.pid = process.pid
        self.err = b""

    async def ready(self):
        """What its ready line says."""
        line = b""
        while not line.endswith(b"\n"):
            data = await self._process.stdout.receive_some()
            assert data, self.err
            line += data
        return json.loads(line)

    async def close_stdout(self):
        await self._process.stdout.aclose()

    async def read_err(self):
        async for data in self._process.stderr:
            self.err += data

    def send(self, number):
        self._process.send_signal(number)

    @property
    def runs(self):
        return self._process.poll() is None

    async def end(self):
        """Its exit code."""
        return await self._process.wait()


@asynccontextmanager
async def processes():
    """Starts processes; whatever still runs at the end is killed."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:

            async def begin(*options):
                command = [sys.executable, "-m", "trio_mq", "serve", *map(str, options)]
                process = await nursery.start(_run, command)
                made = Process(process)
                nursery.start_soon(made.read_err)
                return made

            yield begin
            nursery.cancel_scope.cancel()


async def _run(command, *, task_status):
    pipe = subprocess.PIPE
    process = await trio.lowlevel.open_process(command, stdout=pipe, stderr=pipe)
    try:
        task_status.started(process)
        await process.wait()
    finally:
        if process.poll() is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()


def listing(root):
    """Every file of a store with its time and content."""
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes()[:4096])
        for path in sorted(Path(root).rglob("*"))
        if path.is_file() and path.name != "checkpoint"
    }


async def test_c013_a_second_process_on_one_store(tmp_path):
    async with processes() as start:
        # what the first one saves by itself is no work of the others
        rarely = ("--set", "flushConsumerOffsetInterval=600000")
        first = await start(*PORTS, *rarely, "--store", tmp_path)
        ready = await first.ready()
        await trio.sleep(0.2)
        before = listing(tmp_path)
        began = trio.current_time()
        second = await start(*PORTS, "--store", tmp_path)
        assert await second.end() == 21
        # most of this is the start of Python on a busy machine; within one it takes milliseconds, see above
        assert trio.current_time() - began < 4
        # the same command again: the ports are taken, but the store says by whom
        third = await start(
            "--listen", ready["broker"], *PORTS[2:], "--store", tmp_path, "--no-fast-port"
        )
        assert await third.end() == 21
        await trio.sleep(0.1)
        for process in (second, third):
            assert b"process %d" % first.pid in process.err
        assert listing(tmp_path) == before
        first.send(signal.SIGTERM)
        assert await first.end() == 0


async def test_a_reader_of_the_ready_line_that_has_gone(tmp_path):
    async with processes() as start:
        process = await start(*PORTS, "--store", tmp_path)
        await process.close_stdout()
        while b"the ready line cannot be written" not in process.err:
            await trio.sleep(0.05)
            assert process.runs, process.err
        process.send(signal.SIGTERM)
        assert await process.end() == 0


async def name_server_without_goodbyes(registered, *, task_status):
    """Takes registrations, and never answers anything else."""

    async def serve_one(stream):
        reader = FrameReader()
        async for data in stream:
            for frame in reader.feed(data):
                value = commands.decode(frame)
                if value.code == RequestCode.REGISTER_BROKER:
                    reply = Command(0, {}, flag=FLAG_RESPONSE, opaque=value.opaque)
                    await stream.send_all(commands.encode(reply))
                    registered.append(value)

    await trio.serve_tcp(serve_one, 0, host="127.0.0.1", task_status=task_status)


async def test_a_second_signal_ends_at_once_and_a_first_one_within_its_second(tmp_path):
    """C164: a goodbye that nobody answers is waited for one second; whoever is in a hurry asks twice."""
    registered = []
    async with trio.open_nursery() as nursery, processes() as start:
        (listener,) = await nursery.start(
            lambda task_status: name_server_without_goodbyes(registered, task_status=task_status)
        )
        port = listener.socket.getsockname()[1]
        options = (*PORTS, "--nameserver", f"127.0.0.1:{port}", "--store", tmp_path)

        async def ready(count):
            process = await start(*options)
            await process.ready()
            while len(registered) < count:  # noqa: ASYNC110 - another process does it
                await trio.sleep(0.01)
            return process

        patient = await ready(1)
        patient.send(signal.SIGTERM)
        began = trio.current_time()
        assert await patient.end() == 0
        assert 0.5 < trio.current_time() - began < 3
        hasty = await ready(2)
        hasty.send(signal.SIGTERM)
        await trio.sleep(0.2)
        hasty.send(signal.SIGINT)
        assert await hasty.end() == 128 + signal.SIGINT
        assert (tmp_path / "abort").exists()
        nursery.cancel_scope.cancel()


async def test_kill_and_start_again(tmp_path):
    """kill -9, then a start that recovers and says so, and a stop that leaves nothing to recover."""
    async with processes() as start:
        process = await start(*PORTS, "--store", tmp_path)
        assert (await process.ready())["recovery"]["clean"]
        process.send(signal.SIGKILL)
        assert await process.end() == -signal.SIGKILL
        again = await start(*PORTS, "--store", tmp_path)
        assert not (await again.ready())["recovery"]["clean"]
        again.send(signal.SIGINT)
        assert await again.end() == 0
        assert not (tmp_path / "abort").exists()
