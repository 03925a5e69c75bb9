"""Brokers and name servers as child processes: Apache's and ours behind one face.

In: a folder, settings in Apache's names. Out: addresses, and control over the processes (stop, kill -9, start again
on the same store and the same port). Every process is the leader of its own group, so nothing outlives a test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

import attrs

from tests.ports import free_port

from . import peers
from .polling import sleep, wait_for
from .raw import ConnectionGone, RawClient

Kind = Literal["apache", "trio"]
GET_BROKER_CLUSTER_INFO = 106


class Process:
    """One child process with its log file."""

    def __init__(
        self, command: list[str], home: Path, name: str, env: dict[str, str] | None = None
    ) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / f"{name}.log"
        self.name = name
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, **(env or {})}, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Of the leader of the group."""
        return self.popen.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.popen.poll() is None

    def stop(self, timeout_s: float = 40.0) -> tuple[int, float]:
        """SIGTERM; exit code and seconds that it took. A process that does not end is killed and reported."""
        began = time.monotonic()
        if self.alive():
            self.popen.send_signal(signal.SIGTERM)
        try:
            code = self.popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop within {timeout_s} s") from None
        return code, time.monotonic() - began

    def kill(self) -> None:
        """kill -9 to the whole group, while its leader runs: afterwards the number may be another process's."""
        if not self.alive():
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait(10)

    def tail(self, chars: int = 4000) -> str:
        """End of the log."""
        return self.log.read_text(errors="replace")[-chars:]


def registered(nameserver: str, broker_id: int = 0) -> dict[str, str]:
    """Broker name to the address of its master, or of the broker with that id, as a name server tells it; empty when it
    does not answer yet.
    """
    try:
        with RawClient(nameserver, 2.0) as client:
            reply = client.call(GET_BROKER_CLUSTER_INFO)
    except (OSError, ConnectionGone, TimeoutError):
        return {}
    table = reply.json()["brokerAddrTable"] if reply.code == 0 and reply.body else {}
    found = {}
    for name, broker in table.items():
        addresses = broker["brokerAddrs"]
        address = addresses.get(broker_id) or addresses.get(str(broker_id))
        if address:
            host, port = address.rsplit(":", 1)
            bare = host.strip("[]")
            found[name] = f"[{bare}]:{port}" if ":" in bare else address
    return found


def answers(address: str) -> bool:
    """True when a remoting peer answers there at all."""
    try:
        with RawClient(address, 2.0) as client:
            client.call(GET_BROKER_CLUSTER_INFO)
    except (OSError, ConnectionGone, TimeoutError):
        return False
    return True


@attrs.define(kw_only=True)
class Server(ABC):
    """One broker, with a name server in it or not."""

    name: str
    home: Path
    nameservers: list[str]
    settings: dict[str, str] = attrs.field(factory=dict)
    flush: str = "async"
    cluster: str = "DefaultCluster"
    host: str = "127.0.0.1"
    port: int = attrs.field(factory=free_port)
    process: Process | None = None
    ready_s: float = 0.0

    @property
    def address(self) -> str:
        """Where clients find the broker."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def broker_id(self) -> int:
        """0: a master."""
        return int(self.settings.get("brokerId", 0))

    @property
    def store(self) -> Path:
        """The folder that a kill leaves behind."""
        return self.home / "store"

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it."""

    def start(self) -> None:
        """Start, and wait until the broker answers and its name servers know it."""
        began = time.monotonic()
        self.process = Process(self.command(), self.home, self.name, self.environment())
        self.wait_ready()
        self.ready_s = time.monotonic() - began

    def environment(self) -> dict[str, str]:
        """Extra variables of the process."""
        return {}

    def wait_ready(self) -> None:
        """Raises with the end of the log when the process ends instead."""

        def ready() -> bool:
            assert self.process is not None
            if not self.process.alive():
                raise AssertionError(
                    f"{self.name} ended with code {self.process.popen.returncode}:\n{self.process.tail()}"
                )
            return answers(self.address) and all(
                registered(ns, self.broker_id).get(self.name) == self.address
                for ns in self.nameservers
            )

        wait_for(ready, f"{self.name} is ready", timeout_s=90, every_s=0.01)

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()

    def stop(self) -> tuple[int, float]:
        """A clean stop: exit code and seconds."""
        assert self.process is not None
        return self.process.stop()

    def discard(self) -> None:
        """End it whatever state it is in."""
        if self.process is not None:
            self.process.kill()


@attrs.define(kw_only=True)
class ApacheNameServer:
    """Apache's name server in its own JVM."""

    home: Path
    port: int = attrs.field(factory=free_port)
    process: Process | None = None
    settings: dict[str, str] = attrs.field(factory=dict)
    jvm: tuple[str, ...] = (*peers.FAST_JVM, "-Xmx128m")
    version: str = peers.VERSION

    @property
    def address(self) -> str:
        """Where clients and brokers find it."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, and wait until it answers."""
        peers.prepare_home(self.home)
        conf = self.home / "namesrv.conf"
        values = {"listenPort": self.port, "needWaitForService": "false", **self.settings}
        conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        command = peers.java(
            self.home, peers.libraries(self.version), "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf),
            jvm=self.jvm,
        )  # fmt: skip
        self.process = Process(command, self.home, "namesrv", {"ROCKETMQ_HOME": str(self.home)})
        wait_for(lambda: answers(self.address), "the name server answers", timeout_s=60)

    def discard(self) -> None:
        """End it."""
        if self.process is not None:
            self.process.kill()


@attrs.define(kw_only=True)
class ApacheBroker(Server):
    """Apache's broker in its own JVM."""

    jvm: tuple[str, ...] = (
        *peers.FAST_JVM, "-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=1g",
    )  # fmt: skip
    version: str = peers.VERSION

    def environment(self) -> dict[str, str]:
        """Apache looks for its home there."""
        return {"ROCKETMQ_HOME": str(self.home)}

    def command(self) -> list[str]:
        """Writes broker.conf too."""
        values = {
            "brokerClusterName": self.cluster,
            "brokerName": self.name,
            "brokerId": "0",
            "brokerIP1": self.host,
            "bindAddress": "::" if ":" in self.host else "0.0.0.0",
            "listenPort": str(self.port),
            "namesrvAddr": ";".join(self.nameservers),
            "storePathRootDir": str(self.store),
            "storePathCommitLog": str(self.store / "commitlog"),
            "flushDiskType": "SYNC_FLUSH" if self.flush == "sync" else "ASYNC_FLUSH",
            # The machine's disk may be nearly full; a test must not depend on that.
            "diskMaxUsedSpaceRatio": "99",
            **self.settings,
        }
        peers.prepare_home(self.home)
        conf = self.home / "broker.conf"
        conf.write_text("".join(f"{k}={v}\n" for k, v in values.items()))
        return peers.java(
            self.home, peers.libraries(self.version), "org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf),
            jvm=self.jvm,
        )  # fmt: skip


@attrs.define(kw_only=True)
class TrioServer(Server):
    """`trio-mq serve`; with a name server of its own when ``nameserver_port`` is set."""

    nameserver_port: int | None = None
    arguments: list[str] = attrs.field(factory=list)

    @property
    def nameserver(self) -> str:
        """Address of its own name server."""
        assert self.nameserver_port is not None
        return f"127.0.0.1:{self.nameserver_port}"

    def command(self) -> list[str]:
        """Ports are given, so that a restart gets the same ones."""
        command = [
            sys.executable, "-m", "trio_mq", "serve", "--store", str(self.store), "--listen", self.address,
            "--broker-name", self.name, "--cluster", self.cluster, "--flush", self.flush, "--ready-json",
        ]  # fmt: skip
        if self.nameserver_port is None:
            command.append("--no-nameserver")
        else:
            command += ["--nameserver-listen", self.nameserver]
        for address in self.nameservers:
            if self.nameserver_port is None or address != self.nameserver:
                command += ["--nameserver", address]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        return command + self.arguments

    def ready_line(self) -> dict[str, object]:
        """What `--ready-json` printed at the last start."""
        assert self.process is not None
        lines = [x for x in self.process.log.read_text().splitlines() if x.startswith('{"')]
        return json.loads(lines[-1])


def alone(
    kind: Kind, home: Path, name: str = "b1", **options: object
) -> tuple[Server, list[ApacheNameServer]]:
    """One broker with a name server of its own kind, not started; name servers are."""
    if kind == "trio":
        port = free_port()
        server = TrioServer(
            name=name,
            home=home / name,
            nameservers=[f"127.0.0.1:{port}"],
            nameserver_port=port,
            **options,
        )
        return server, []
    # Keys of the name server stand among the others in one file of ours; Apache's broker passes them over.
    nameserver = ApacheNameServer(home=home / "namesrv", settings=dict(options.get("settings", {})))
    nameserver.start()
    return ApacheBroker(name=name, home=home / name, nameservers=[nameserver.address], **options), [
        nameserver
    ]


def joining(kind: Kind, home: Path, name: str, nameserver: str, **options: object) -> Server:
    """One broker that registers with the name server given; not started."""
    server = TrioServer if kind == "trio" else ApacheBroker
    return server(name=name, home=home / name, nameservers=[nameserver], **options)


def expect_failure(server: Server, timeout_s: float = 30.0) -> tuple[int, str]:
    """Start a server that must refuse to run: its exit code and what it said."""
    log = server.home / "refused"
    process = Process(server.command(), server.home, log.name, server.environment())
    try:
        code = process.popen.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(
            f"{server.name} runs, although it must not:\n{process.tail()}"
        ) from None
    return code, process.tail()


def settle() -> None:
    """A moment for another process to act on what it was just told, where no condition can be seen."""
    sleep(0.2)
