"""``trio-mq status``, against somebody who answers like a broker."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from tests.cli.running import run
from trio_mq.cli import status
from trio_mq.protocol import bodies, command
from trio_mq.protocol.bodies import KVTable
from trio_mq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader

ADDRESS = "127.0.0.1:31011"
SERVING = {
    "brokerVersionDesc": "trio-mq 1",
    "commitLogMaxOffset": "4711",
    "cleaning": "next time 2026-11-30T04:00+00:00 (UTC)",
    "appendTimes": "writing to the commit log: 3 times",
}
FULL = {**SERVING, "notWritable": "disk full: /s is 95 % used, the limit is 90 %"}
RECOVERING = {"brokerActive": "false", "recovering": "recovering 41 % (phase log)"}


def answer_of(table: dict[str, str]) -> bytes:
    body = bodies.encode(KVTable(table))
    return command.encode(Command(ResponseCode.SUCCESS, {}, body, FLAG_RESPONSE, 1))


@contextmanager
def broker(answer: bytes) -> Iterator[None]:
    """Somebody who has an answer for one connection, in small pieces; checks what was asked."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        with (
            mock.patch.object(status.socket, "create_connection", return_value=ours) as connect,
            mock.patch.object(status, "_RECEIVE_BYTES", 7),
        ):
            yield
        connect.assert_called_once_with(("127.0.0.1", 31011), status.LIMIT_S)
        (asked,) = map(command.decode, FrameReader().feed(theirs.recv(10_000)))
        assert asked.code == RequestCode.GET_BROKER_RUNTIME_INFO


@pytest.mark.parametrize(
    ("table", "code", "state"),
    [
        (SERVING, 0, "serving"),
        (FULL, 3, "not writable: disk full: /s is 95 % used, the limit is 90 %"),
        (RECOVERING, 4, "recovering 41 % (phase log)"),
    ],
)
def test_c019_c055_state_and_code(table: dict[str, str], code: int, state: str) -> None:
    """C019, C055: what a health check and an operator see."""
    with broker(answer_of(table)):
        result = run("status", "--broker", ADDRESS)
    assert (result.code, result.err) == (code, "")
    lines = [line.split(maxsplit=1) for line in result.out.splitlines()]
    assert lines[0] == ["state", state]
    for name in ("cleaning", "appends"):
        assert [row[1] for row in lines if row[0] == name] == [
            table[key] for shown, key in status._ROWS if shown == name and key in table
        ]
    with broker(answer_of(table)):
        result = run("status", "--broker", ADDRESS, "--json")
    assert result.code == code
    assert json.loads(result.out) == {"state": state, **table}


def test_replication_is_shown() -> None:
    """C068: without a slave that says so, nobody finds out why sends wait."""
    told = {
        "brokerRole": "SYNC_MASTER",
        "haSlaves": "none",
        "haMaster": "10.0.0.1:10912",
        "haState": "READY: cannot reach 10.0.0.1:10912, next try in 5 s",
        "haTransfer": "0 B/s, 0 reconnects",
        "haLag": "4096 bytes",
        "haTables": "7 of 7 copied, the oldest 3.2 s ago",
    }
    with broker(answer_of({**SERVING, **told})):
        result = run("status", "--broker", ADDRESS)
    lines = [line.split(maxsplit=1) for line in result.out.splitlines()]
    for name, key in (
        ("role", "brokerRole"),
        ("slaves", "haSlaves"),
        ("master", "haMaster"),
        ("replication", "haState"),
        ("transfer", "haTransfer"),
        ("lag", "haLag"),
        ("tables", "haTables"),
    ):
        assert [name, told[key]] in lines


def test_nobody_there() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        result = run("status", "--broker", address)
    assert result.code == 30
    assert f"no broker answers at {address}: Connection refused" in result.err


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_somebody_else(says: bytes) -> None:
    with broker(says):
        result = run("status", "--broker", ADDRESS)
    assert result.code == 30
    assert ADDRESS in result.err


def test_a_name_server_says_what_it_is() -> None:
    reply = Command(3, {}, b"", FLAG_RESPONSE, 1, remark="not supported by this name server")
    with broker(command.encode(reply)):
        result = run("status", "--broker", ADDRESS)
    assert result.code == 1
    assert "not supported by this name server" in result.err


def test_an_address_that_is_none() -> None:
    result = run("status", "--broker", "nowhere")
    assert result.code == 2
    assert result.err.startswith("error: --broker: ")
