"""How a process ends: quickly whatever waits, in order, and so that the next start has little to do."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.system.client import Client, Gone, pull_header
from tests.system.processes import Starter, wait_for
from trio_mq.protocol import command, headers
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.command import Command

pytestmark = pytest.mark.slow  # whole processes

#: A stop takes a few hundredths of a second on a quiet machine; a name server that is silent costs one more.
SOON_S = 5.0
MIB = 1 << 20


def long_poll(number: int, wait_ms: int = 60_000) -> bytes:
    """A pull that waits at the end of a queue."""
    header = pull_header("T", number % 4, 1, wait_ms=wait_ms)
    return command.encode(Command(RequestCode.PULL_MESSAGE, headers.encode(header), opaque=number))


def test_c163_a_stop_with_many_waiting_pulls_and_much_that_is_not_synced(serve: Starter) -> None:
    """C163: 5,000 long polls, 48 MiB that no sync has covered; the next start takes the clean path.

    The same command works again at once, on the same ports, while clients are still there.
    """
    running = serve("--set", "flushIntervalCommitLog=60000")
    with ExitStack() as stack:
        waiting = [stack.enter_context(running.client()) for _ in range(10)]
        with running.client() as client:
            client.create("T", queues=4)
            for queue_id in range(4):
                client.sent("T", b"first", queue_id)
            for client_number, poller in enumerate(waiting):
                polls = range(client_number * 500, client_number * 500 + 500)
                poller.write(b"".join(map(long_poll, polls)))
                # An answer to what comes last says that all before it was read.
                assert poller.call(98_765).code == 3
            body = bytes(3 * MIB)
            for _ in range(16):
                client.sent("Dirty", body)
            ended = running.stop()
        assert ended.code == 0
        assert ended.seconds < SOON_S
        assert "Traceback" not in ended.err
        ports = ("--listen", running.broker, "--nameserver-listen", running.nameserver)
        again = serve(*ports, "--no-fast-port")
        for poller in waiting:
            with suppress(Gone):
                assert not poller.next(), "a poll is not answered by a stop"
    assert again.broker == running.broker
    assert again.recovery["clean"]
    assert again.recovery["records"] <= 1
    with again.client() as client:
        assert client.max_offset("Dirty") == 16
        assert client.max_offset("T", 3) == 1


@contextmanager
def black_hole() -> Iterator[str]:
    """An address that never completes a connection: the queue of what waits to be accepted is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_c164_a_name_server_that_cannot_be_reached_delays_no_stop(serve: Starter) -> None:
    """C164: neither one that takes no connection, nor one that has us registered and is silent now.

    A second signal during that wait ends the process at once, and the next start recovers.
    """
    frozen = serve(store=serve.home / "frozen")
    silent = ("--nameserver", frozen.nameserver)
    with black_hole() as nowhere, Client(frozen.nameserver) as names:
        patient = serve("--nameserver", nowhere, *silent, "--broker-name", "patient")
        assert patient.ready["ready_s"] < 10, "the start did not wait for it either"
        hasty = serve(*silent, "--broker-name", "hasty", store=serve.home / "hasty")
        with hasty.client() as client:
            client.sent("T", b"one")
        wait_for(lambda: knows(names, "patient", "hasty"), "they are registered there")
        frozen.child.tell(signal.SIGSTOP)
        hasty.child.tell(signal.SIGTERM)
        wait_for(lambda: "stopping: SIGTERM" in hasty.log, "the first is seen", every_s=0.002)
        cut_short = hasty.stop(signal.SIGINT)
        ended = patient.stop()
        frozen.child.tell(signal.SIGCONT)
    assert cut_short.code == 128 + signal.SIGINT
    assert (serve.home / "hasty" / "abort").exists()
    assert ended.code == 0
    assert ended.seconds < SOON_S
    assert frozen.nameserver in ended.err.partition("stopping:")[2], "it says who was not reached"
    assert not (serve.store / "abort").exists()


def knows(names: Client, *brokers: str) -> bool:
    return {found.broker_name for found in names.route("TBW102").broker_datas} >= set(brokers)


def test_a_stop_before_it_is_ready(serve: Starter) -> None:
    """A signal while modules are loaded or sockets bound ends the process, and leaves nothing to recover."""
    child = serve.begin()
    wait_for(
        lambda: child.popen.poll() is not None or child.log, "it says something", every_s=0.001
    )
    ended = child.stop()
    assert ended.code == 0
    assert "Traceback" not in ended.err
    assert not (serve.store / "abort").exists()


def test_stopped_clients_and_half_sent_frames_delay_nothing(serve: Starter) -> None:
    """Connections that sent half a frame, or do not read what they asked for, are just closed."""
    running = serve()
    with running.client() as client, running.client() as half, running.client() as deaf:
        client.create("T")
        for _ in range(8):
            client.sent("T", bytes(3 * MIB))
        half.write(long_poll(1)[:50])
        ask = command.encode(
            Command(RequestCode.PULL_MESSAGE, headers.encode(pull_header("T", 0, 0)), opaque=1)
        )
        deaf.write(ask * 30)
        wait_for(lambda: pending(deaf), "replies wait in the socket")
        ended = running.stop()
    assert ended.code == 0
    assert ended.seconds < SOON_S
    assert not (serve.store / "abort").exists()


def pending(client: Client) -> bool:
    """Whether there is something to read, which stays unread."""
    try:
        return bool(client.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return False
