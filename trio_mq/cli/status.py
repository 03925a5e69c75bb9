"""``trio-mq status``: one look at a running broker.

In: the address of a broker, of ours or of Apache's. Out: on stdout whether it takes messages, and if not why; how
far a recovery is; room, cleaning and the times of its disk. The exit code says the same to scripts and to health
checks. Source of the request: Apache MQAdminExt.fetchBrokerRuntimeStats (mqadmin brokerStatus).
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from typing import Final

from trio_mq.cli import options
from trio_mq.config import Address, parse_address
from trio_mq.errors import ConfigError, PeerUnavailable, RequestRefused
from trio_mq.protocol import bodies, command
from trio_mq.protocol.bodies import KVTable
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader

DEFAULT: Final = "127.0.0.1:10911"
LIMIT_S: Final = 3.0
"""Time for the connection, and again for each piece of the answer."""

SERVES, NOT_WRITABLE, RECOVERS = 0, 3, 4
_RECEIVE_BYTES: Final = 65_536
_ROWS: Final = (
    ("version", "brokerVersionDesc"),
    ("running for", "runtime"),
    ("role", "brokerRole"),
    ("slaves", "haSlaves"),
    ("slaves ahead", "haSlavesAhead"),
    ("master", "haMaster"),
    ("replication", "haState"),
    ("transfer", "haTransfer"),
    ("lag", "haLag"),
    ("tables", "haTables"),
    ("log begins at", "commitLogMinOffset"),
    ("log ends at", "commitLogMaxOffset"),
    ("disk in use", "commitLogDiskRatio"),
    ("disk", "commitLogDirCapacity"),
    ("not synced", "remainHowManyDataToFlush"),
    ("sends per s", "putTps"),
    ("delivered per s", "getTransferredTps"),
    ("cleaning", "cleaning"),
    ("appends", "appendTimes"),
    ("syncs", "flushTimes"),
    ("damaged records", "damagedRecords"),
    ("subscriptions", "subscriptionConflicts"),
    ("queue locks", "queueLocks"),
    ("lost locks", "lostLocks"),
)
"""What people are shown, by its name in the table; what a broker does not tell is left out."""


def status(values: options.Values) -> int:
    """Print how a running broker is. Code 0: it takes messages; 3: it takes none; 4: it still recovers its store."""
    text = options.last(values, "--broker") or DEFAULT
    try:
        address = parse_address(text)
    except ValueError as error:
        raise ConfigError(f"--broker: {error}") from error
    table = ask(address)
    code, state = judge(table)
    if "--json" in values:
        print(json.dumps({"state": state, **table}, indent=2))  # noqa: T201
        return code
    rows = [("state", state)]
    rows += [(name, table[key]) for name, key in _ROWS if table.get(key)]
    width = max(len(name) for name, _ in rows)
    sys.stdout.write("".join(f"{name:<{width}}  {value}\n" for name, value in rows))
    return code


def judge(table: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and a line for people."""
    if "recovering" in table:
        return RECOVERS, table["recovering"]
    if "notWritable" in table:
        return NOT_WRITABLE, f"not writable: {table['notWritable']}"
    return SERVES, "serving"


def ask(address: Address) -> Mapping[str, str]:
    """A broker's runtime information. PeerUnavailable when nobody gives it, RequestRefused when it is not given."""
    request = command.encode(Command(RequestCode.GET_BROKER_RUNTIME_INFO, {}, opaque=1))
    try:
        with socket.create_connection((address.host, address.port), LIMIT_S) as peer:
            peer.settimeout(LIMIT_S)
            peer.sendall(request)
            reply = _reply(peer, address)
    except OSError as error:
        reason = error.strerror or str(error)
        raise PeerUnavailable(
            f"no broker answers at {address}: {reason}; is it running, and is it the right --broker HOST:PORT?"
        ) from error
    if reply.code != ResponseCode.SUCCESS:
        raise RequestRefused(reply.code, f"{address} answers code {reply.code}: {reply.remark}")
    return dict(bodies.decode(KVTable, reply.body).table)


def _reply(peer: socket.socket, address: Address) -> Command:
    reader = FrameReader()
    while data := peer.recv(_RECEIVE_BYTES):
        for frame in reader.feed(data):
            return command.decode(frame)
        if reader.failure is not None:
            break
    raise PeerUnavailable(
        f"who answers at {address} is no broker, or went away; is it the right --broker HOST:PORT?"
    )
