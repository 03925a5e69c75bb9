"""The network between two brokers, as a test sees it: the typed face of wire.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import attrs

from tests.interop.drivers import Driver
from tests.ports import free_port

Way = Literal["up", "down"]


@attrs.frozen
class Seen:
    """Connections made so far and open now, cuts that happened, bytes from the slave (up) and to it (down)."""

    made: int
    open: int
    cuts: int
    up: int
    down: int


@attrs.define
class Proxy:
    """Forwards ``127.0.0.1:port`` to a port of this machine. "up" is from the slave to the master."""

    driver: Driver
    port: int

    @property
    def address(self) -> str:
        """What a slave gets as the address of its master."""
        return f"127.0.0.1:{self.port}"

    def hold(self, *ways: Way) -> None:
        """Nothing passes, not even the news that an end has closed, until :meth:`flow`; both ways when none is given.

        New connections are taken, as by a machine whose process hangs, and stay silent.
        """
        self.driver.call("hold", ways=list(ways or ("up", "down")))

    def flow(self) -> None:
        """Whatever was held passes."""
        self.driver.call("flow")

    def cut(self, way: Way, after: int) -> None:
        """End the connection when so many more bytes have passed; they pass, the ones behind them are lost. Once."""
        self.driver.call("cut", way=way, after=after)

    def break_all(self) -> None:
        """End all connections."""
        self.driver.call("break")

    def refuse(self) -> None:
        """Take no new connections: they are refused."""
        self.driver.call("refuse")

    def accept(self) -> None:
        """Take new connections again."""
        self.driver.call("accept")

    def seen(self) -> Seen:
        """What has happened so far."""
        return Seen(**self.driver.call("seen"))

    def close(self) -> None:
        """End it."""
        self.driver.close()


def proxy(home: Path, target_port: int) -> Proxy:
    """Start one."""
    port = free_port()
    script = str(Path(__file__).with_name("wire.py"))
    command = [sys.executable, script, str(port), str(target_port)]
    made = Proxy(Driver(command, home / f"wire-{port}.log"), port)
    made.seen()  # it listens before it answers
    return made
