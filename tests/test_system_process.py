"""The process itself: its lines, its signals, and what a killed one leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from trio_mq.protocol import command as commands
from trio_mq.protocol.codes import FLAG_RESPONSE, RequestCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader

pytestmark = pytest.mark.slow  # whole processes

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
