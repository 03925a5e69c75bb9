"""The whole system: how it ends, also in the middle of a start."""

from __future__ import annotations

import contextlib
import json
import socket

import pytest
import trio

from tests.broker.support import SUSPEND, pull, request, send
from tests.whole_system import (
    LIMIT_S,
    Client,
    answering,
    client,
    parsed,
    put,
    recovering,
    running,
    settings_of,
)
from trio_mq import system
from trio_mq.broker.register import Registrar
from trio_mq.clock import SystemClock
from trio_mq.config import Address
from trio_mq.errors import (
    StoreError,
)
from trio_mq.protocol import bodies
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.frames import encode_frame
from trio_mq.system import run_system
from trio_mq.testing.disk import MemoryDisk

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


async def never_ready(disk, stop):
    """A system that is stopped before it serves."""
    await run_system(
        settings_of(),
        disk,
        SystemClock(),
        stop,
        began_s=0,
        ready=lambda _: pytest.fail("ready"),
    )


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
            nursery.start_soon(never_ready, disk, stop)
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
            nursery.start_soon(never_ready, disk, stop)
            await trio.sleep(0.3)
            stop.set()
    assert not disk.exists("/store/abort")


async def test_a_stop_that_was_asked_for_before_the_start():
    stop, disk = trio.Event(), MemoryDisk()
    stop.set()
    with trio.fail_after(LIMIT_S):
        await never_ready(disk, stop)
    assert not disk.exists("/store/abort")
