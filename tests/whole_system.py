"""A whole system for tests: real sockets of this machine, a disk in memory, real time; and clients of it."""

from __future__ import annotations

import socket
import time
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from tests.broker.support import request
from trio_mq import system
from trio_mq.broker import starting
from trio_mq.clock import SystemClock
from trio_mq.config import Address, BrokerSettings, Settings, StoreSettings
from trio_mq.config.nameserver import NameServerSettings
from trio_mq.protocol import bodies
from trio_mq.protocol import command as commands
from trio_mq.protocol.bodies import TopicRouteData
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.frames import FrameReader, encode_frame
from trio_mq.system import run_system
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


def parsed(address):
    host, _, port = address.rpartition(":")
    return Address(host, int(port))
