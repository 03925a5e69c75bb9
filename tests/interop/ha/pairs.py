"""A master and its slave, of any two kinds, with the network between them; what each tells; and what their files hold.

In: kinds, settings. Out: :class:`Pair`. States are read by request 907 (Apache: HARuntimeInfo) and the log's end by 28,
by hand, so that no code of ours judges itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from tests.interop.polling import wait_for
from tests.interop.raw import ConnectionGone, RawClient
from tests.interop.servers import ApacheBroker, Kind, Server

from .proxy import Proxy

RUNTIME_INFO, HA_STATUS, HA_INFO, QUERY_BY_KEY, TOPIC_CONFIG = 28, 907, 906, 12, 351
#: Log files are small, so that a test crosses their borders.
SEGMENT = 4 * 1024 * 1024
HEARTBEAT_S, HOUSEKEEPING_S = 1.0, 4.0
#: How long both kinds wait before they connect again.
BACKOFF_S = 5.0
SETTINGS = {
    "mappedFileSizeCommitLog": str(SEGMENT),
    "haSendHeartbeatInterval": str(int(HEARTBEAT_S * 1000)),
    "haHousekeepingInterval": str(int(HOUSEKEEPING_S * 1000)),
    "slaveReadEnable": "true",
    "registerNameServerPeriod": "10000",
}
MASTER = {"brokerId": "0", "brokerRole": "ASYNC_MASTER"}
SYNC_MASTER = {
    "brokerId": "0",
    "brokerRole": "SYNC_MASTER",
    "inSyncReplicas": "2",
    "slaveTimeout": "2500",
}
SLAVE = {"brokerId": "1", "brokerRole": "SLAVE"}
_ROLE_KEYS = {*SYNC_MASTER, *SLAVE, "haMasterAddress"}


@attrs.frozen
class SlaveSeen:
    """A slave, as its master sees it (Apache: HAConnectionRuntimeInfo)."""

    address: str
    ack: int
    behind: int
    in_sync: bool
    transfer_from: int


@attrs.frozen
class MasterStatus:
    """What 907 tells at a master."""

    log_end: int
    in_sync: int
    slaves: tuple[SlaveSeen, ...]


@attrs.frozen
class SlaveStatus:
    """What 907 tells at a slave (Apache: HAClientRuntimeInfo). Apache's does not tell whether it is active."""

    master: str | None
    log_end: int
    last_read_ms: int
    last_write_ms: int
    active: bool | None


def status_of(address: str) -> MasterStatus | SlaveStatus | None:
    """By request 907; None while nobody answers."""
    told = _ask(address, HA_STATUS)
    if told is None:
        return None
    if not told["master"]:
        client = told["haClientRuntimeInfo"]
        return SlaveStatus(
            client.get("masterAddr"), client["maxOffset"], client["lastReadTimestamp"],
            client["lastWriteTimestamp"], client.get("activated"),
        )  # fmt: skip
    slaves = tuple(
        SlaveSeen(c["addr"], c["slaveAckOffset"], c["diff"], c["inSync"], c["transferFromWhere"])
        for c in told.get("haConnectionInfo") or ()
    )
    return MasterStatus(told["masterCommitLogMaxOffset"], told["inSyncSlaveNums"], slaves)


def log_end(address: str) -> int:
    """By request 28; -1 while nobody answers."""
    told = _ask(address, RUNTIME_INFO)
    return -1 if told is None else int(told["table"]["commitLogMaxOffset"])


def _ask(address: str, code: int) -> Any:
    try:
        with RawClient(address, 3.0) as client:
            reply = client.call(code)
    except (OSError, ConnectionGone, TimeoutError):
        return None
    return reply.json() if reply.code == 0 else None


def set_role(server: Server, role: dict[str, str], **more: str) -> None:
    """For its next start."""
    kept = {k: v for k, v in server.settings.items() if k not in _ROLE_KEYS}
    server.settings = {**kept, **role, **more}


@attrs.define
class Pair:
    """Master and slave of one name. With a proxy, the log goes through it."""

    name: str
    nameservers: list[str]
    master: Server
    slave: Server
    proxy: Proxy | None = None

    @property
    def ns(self) -> str:
        """For clients."""
        return ";".join(self.nameservers)

    @property
    def wire(self) -> Proxy:
        """The network between the two."""
        assert self.proxy is not None
        return self.proxy

    def start(self) -> None:
        """Both, and wait until the slave follows."""
        self.master.start()
        self.start_slave()
        self.wait_caught_up()

    def start_slave(self) -> None:
        """Start it. With a proxy, an Apache slave has to be told where that is while it runs: `haMasterAddress` has no
        effect there, but that it does not take the address that name servers tell.
        """
        self.slave.start()
        if self.proxy is not None and isinstance(self.slave, ApacheBroker):
            with RawClient(self.slave.address) as client:
                fields = {
                    "masterHaAddress": self.proxy.address,
                    "masterAddress": self.master.address,
                }
                assert client.call(HA_INFO, fields).code == 0

    def master_sees(self) -> MasterStatus:
        """The master's 907."""
        told = status_of(self.master.address)
        assert isinstance(told, MasterStatus), f"the master says {told}"
        return told

    def slave_sees(self) -> SlaveStatus:
        """The slave's 907."""
        told = status_of(self.slave.address)
        assert isinstance(told, SlaveStatus), f"the slave says {told}"
        return told

    def is_caught_up(self) -> bool:
        """The slave has what the master had when it was asked, and the master knows. Both may have got more since."""
        end = log_end(self.master.address)
        told = status_of(self.master.address)
        if end < 0 or not isinstance(told, MasterStatus) or not told.slaves:
            return False
        slave = status_of(self.slave.address)
        return (
            any(s.ack >= end and s.in_sync for s in told.slaves)
            and isinstance(slave, SlaveStatus)
            and slave.active is not False
            and log_end(self.slave.address) >= end
        )

    def wait_caught_up(self, timeout_s: float = 30.0) -> None:
        """Until both have the same and say so."""
        wait_for(self.is_caught_up, f"the slave of {self.name} has all", timeout_s=timeout_s)

    def check_same(self) -> int:
        """Logs and queues are equal, byte for byte; returns the length of the log that both have."""
        self.wait_caught_up()
        end = log_end(self.master.address)
        wait_for(lambda: log_end(self.slave.address) == end, "both logs end together", timeout_s=10)
        compared = same_logs(self.master.store, self.slave.store, end)
        wait_for(
            lambda: not differing_queues(self.master.store, self.slave.store),
            "the queues of both are equal", timeout_s=15,
        )  # fmt: skip
        return compared

    def close(self) -> None:
        """End all of it."""
        for server in (self.slave, self.master):
            server.discard()
        if self.proxy is not None:
            self.proxy.close()


def segments(store: Path) -> dict[int, Path]:
    """Files of a log by their offsets."""
    return {int(file.name): file for file in sorted((store / "commitlog").iterdir())}


def log_bytes(store: Path, begin: int, end: int, segment: int = SEGMENT) -> bytes:
    """A part of a log."""
    data = b""
    for offset, file in segments(store).items():
        if offset + segment <= begin or offset >= end:
            continue
        with file.open("rb") as opened:
            opened.seek(max(begin - offset, 0))
            data += opened.read(min(end, offset + segment) - max(begin, offset))
    return data


def same_logs(one: Path, other: Path, end: int, segment: int = SEGMENT) -> int:
    """Fails with the first offset where two logs differ before ``end``; returns how much both have."""
    begin = max(min(segments(one)), min(segments(other)))
    for at in range(begin, end, SEGMENT):
        to = min(at + SEGMENT, end)
        mine, theirs = log_bytes(one, at, to, segment), log_bytes(other, at, to, segment)
        assert len(mine) == len(theirs) == to - at, f"both logs reach {to}"
        if mine != theirs:
            first = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
            raise AssertionError(f"the logs differ from offset {at + first}")
    return end - begin


def queue_bytes(store: Path) -> dict[str, bytes]:
    """Entries of every queue that has any, by its path."""
    found: dict[str, bytes] = {}
    for folder in sorted((store / "consumequeue").glob("*/*")):
        data = b"".join(file.read_bytes() for file in sorted(folder.iterdir())).rstrip(b"\0")
        if data:
            found[f"{folder.parent.name}/{folder.name}"] = data
    return found


def differing_queues(one: Path, other: Path) -> list[str]:
    """Names of queues that are not the same."""
    mine, theirs = queue_bytes(one), queue_bytes(other)
    return sorted(q for q in mine.keys() | theirs.keys() if mine.get(q) != theirs.get(q))


def by_key(address: str, topic: str, key: str, count: int = 32) -> bytes:
    """Records that a broker finds by a key, as it sends them."""
    with RawClient(address) as client:
        fields = {
            "topic": topic, "key": key, "maxNum": str(count), "beginTimestamp": "0",
            "endTimestamp": str(2**62),
        }  # fmt: skip
        reply = client.call(QUERY_BY_KEY, fields)
    return reply.body if reply.code == 0 else b""


def knows_topic(address: str, topic: str) -> bool:
    """Whether a broker has it in its table."""
    with RawClient(address) as client:
        return client.call(TOPIC_CONFIG, {"topic": topic}).code == 0


def kinds_of(name: str) -> tuple[Kind, Kind]:
    """Master's and slave's, of a name such as ``apache-trio``."""
    master, slave = name.split("-")
    assert master in ("apache", "trio")
    assert slave in ("apache", "trio")
    return master, slave  # type: ignore[return-value]
