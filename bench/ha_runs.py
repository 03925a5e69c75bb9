"""Runs of one pair each: a slave that catches up, a master that comes back, a slave that is stopped.

In: stores, a side. Out: :class:`Catch` and seconds. Both kinds are watched in the same way, by requests to the master
(907, Apache: HARuntimeInfo) and the slave (28), from outside of their processes.
"""

from __future__ import annotations

import shutil
import socket
import time
from pathlib import Path

import attrs

from bench import recovery_store as stores
from bench.ha_store import Behind
from bench.recovery_runs import cpu_s, max_offset
from bench.recovery_store import Origin, State
from tests.interop import servers
from tests.interop.ha.pairs import (
    MASTER,
    SLAVE,
    MasterStatus,
    log_end,
    same_logs,
    set_role,
    status_of,
)
from tests.interop.polling import sleep
from tests.interop.raw import ConnectionGone, RawClient
from tests.interop.servers import Kind
from tests.ports import free_port

LIMIT_S = 600.0
JVM = ("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g")
#: With the heartbeat of the peers' default (5 s), Apache's slave waits for up to so long before its first report.
SETTINGS = {"diskMaxUsedSpaceRatio": "95"}


@attrs.define
class Catch:
    """One slave that caught up. Seconds from the start of its process, from its connection, and from the first bytes
    that it has taken, until the master knows that it has all; `queues_s`: from the first bytes until its queues have.
    """

    side: str
    bytes: int
    from_start_s: float = 0.0
    from_connection_s: float = 0.0
    transfer_s: float = 0.0
    queues_s: float = 0.0
    slave_cpu_s: float = 0.0
    master_cpu_s: float = 0.0
    wrong: list[str] = attrs.field(factory=list)

    @property
    def mb_s(self) -> float:
        """Of the transfer."""
        return self.bytes / self.transfer_s / 1e6


@attrs.define
class Pair:
    """Master and slave of one kind; with Apache's a name server, while ours is in the master's process."""

    home: Path
    nameservers: list[servers.ApacheNameServer]
    master: servers.Server
    slave: servers.Server

    def discard(self) -> None:
        """End all, and remove the stores."""
        for server in (self.slave, self.master, *self.nameservers):
            server.discard()
        shutil.rmtree(self.home, ignore_errors=True)


def pair(kind: Kind, home: Path, **settings: str) -> Pair:
    """Brokers that do not run yet. Their stores are `master.store` and `slave.store`."""
    shutil.rmtree(home, ignore_errors=True)
    nameservers: list[servers.ApacheNameServer] = []
    common = {"name": "bench", "settings": {**SETTINGS, **settings}}
    if kind == "trio":
        port = free_port()
        common["nameservers"] = [f"127.0.0.1:{port}"]
        master: servers.Server = servers.TrioServer(
            home=home / "master", nameserver_port=port, **common
        )
        slave: servers.Server = servers.TrioServer(home=home / "slave", **common)
    else:
        nameservers.append(servers.ApacheNameServer(home=home / "namesrv", jvm=("-Xmx128m",)))
        nameservers[0].start()
        common |= {"nameservers": [nameservers[0].address], "jvm": JVM}
        master = servers.ApacheBroker(home=home / "master", **common)
        slave = servers.ApacheBroker(home=home / "slave", **common)
    set_role(master, MASTER)
    set_role(slave, SLAVE)
    return Pair(home, nameservers, master, slave)


def catch_up(kind: Kind, behind: Behind, home: Path, *, empty: bool = False) -> Catch:
    """Start a master on its store, then a slave that lacks most of it, or all of it (`empty`)."""
    missing = behind.master.log_end if empty else behind.missing_bytes
    result = Catch(f"{kind}{', empty slave' if empty else ''}", missing)
    brokers = pair(kind, home, **({"haReplicateFromStart": "true"} if empty else {}))
    try:
        stores.copy(behind.master, brokers.master.store, State())
        if not empty:
            stores.copy(behind.slave, brokers.slave.store, State())
        stores.load_pages(brokers.master.store)
        brokers.master.start()
        began = time.monotonic()
        slave = brokers.slave
        slave.process = servers.Process(slave.command(), slave.home, "slave", slave.environment())
        connected, first, done = watch(brokers, 0 if empty else behind.slave.log_end)
        result.from_start_s = round(done - began, 3)
        result.from_connection_s = round(done - connected, 3)
        result.transfer_s = round(done - first, 3)
        result.slave_cpu_s = cpu_s(slave.process.pid)
        assert brokers.master.process is not None
        result.master_cpu_s = cpu_s(brokers.master.process.pid)
        result.wrong += whole(brokers, behind.master)
        result.queues_s = round(time.monotonic() - first, 3)
        end = log_end(slave.address)
        same_logs(brokers.master.store, slave.store, end, stores.SEGMENT)
    finally:
        brokers.discard()
    return result


def watch(brokers: Pair, begin: int) -> tuple[float, float, float]:
    """When the master first had a slave, when that had its first new bytes, and when it had all."""
    limit = time.monotonic() + LIMIT_S
    # A broker that has only just begun may refuse to tell.
    while (end := log_end(brokers.master.address)) < 0 and time.monotonic() < limit:
        sleep(0.02)
    connected = first = 0.0
    while time.monotonic() < limit:
        now = time.monotonic()
        assert brokers.slave.process is not None
        if not brokers.slave.process.alive():
            raise RuntimeError(f"the slave ended:\n{brokers.slave.process.tail()}")
        told = status_of(brokers.master.address)
        if isinstance(told, MasterStatus) and told.slaves:
            connected = connected or now
            ack = told.slaves[0].ack
            if ack > begin:
                # What came between two looks began in the middle of them.
                first = first or now - 0.01
            if ack >= end:
                return connected, first, now
        sleep(0.02)
    raise TimeoutError(f"the slave has not caught up within {LIMIT_S} s")


def whole(brokers: Pair, origin: Origin) -> list[str]:
    """Wait until all queues of the slave have their entries; what is missing after a minute of no progress."""
    last, since = -1, time.monotonic()
    while True:
        try:
            with RawClient(brokers.slave.address) as client:
                have = sum(max(0, max_offset(client, queue)) for queue in origin.ends)
        except (OSError, ConnectionGone):
            have = -1
        if have == origin.records:
            return []
        if have != last:
            last, since = have, time.monotonic()
        elif time.monotonic() - since > 60:
            return [f"queues of the slave have {have:,} of {origin.records:,} entries"]
        sleep(0.05)


def comes_back(brokers: Pair, pause_s: float) -> float:
    """Kill the master of a pair that runs, start it after a pause: seconds until it says that its slave has all."""
    brokers.master.kill()
    sleep(pause_s)
    brokers.master.start()
    up = time.monotonic()
    while time.monotonic() < up + 60:
        told = status_of(brokers.master.address)
        if isinstance(told, MasterStatus) and any(
            s.ack == told.log_end and s.in_sync for s in told.slaves
        ):
            return round(time.monotonic() - up, 3)
        sleep(0.02)
    raise TimeoutError("the slave did not come back within 60 s")


def stop_without_master(kind: Kind, home: Path, *, silent: bool) -> float:
    """Stop a slave whose master refuses connections, or (`silent`) takes them and never says a word: seconds."""
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
        if not silent:
            nobody.close()
        brokers = pair(kind, home)
        brokers.slave.nameservers = []
        set_role(brokers.slave, SLAVE, haMasterAddress=f"127.0.0.1:{port}")
        try:
            brokers.slave.start()
            sleep(1.5)
            return round(brokers.slave.stop()[1], 3)
        finally:
            brokers.discard()
