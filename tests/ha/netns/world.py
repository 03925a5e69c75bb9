"""Network namespaces: hosts with an address of their own, and a router between them that drops packets on demand.

In: names of hosts. Out: :class:`World`. All of it is made of ``ip`` and rules of routing tables, no firewall: a rule of
the kind `blackhole` drops what goes from one address to another and tells nobody, as a cut cable does. Nothing of
the machine's own network is touched. It takes root and iproute2. :func:`missing` says what a machine lacks.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """What keeps this machine from having namespaces; None if nothing does."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None:
        return "there is no `ip`: install iproute2"
    name = f"tmq{os.getpid()}-try"
    tried = _ip("netns", "add", name, check=False)
    if tried.returncode:
        return f"ip netns add: {tried.stderr.strip()}"
    try:
        for words in (
            ("link", "add", "one", "type", "veth", "peer", "name", "two"),
            ("rule", "add", "from", "10.77.0.1", "to", "10.77.0.2", "blackhole"),
        ):
            made = _ip("-n", name, *words, check=False)
            if made.returncode:
                return f"ip {' '.join(words)}: {made.stderr.strip()}"
    finally:
        _ip("netns", "del", name, check=False)
    return None


def needs_namespaces() -> pytest.MarkDecorator:
    """Skip a test on a machine without them.

    CI installs what it needs, so there only a kernel that refuses is a reason to skip: nothing that CI installs can
    change that.
    """
    lacks = missing()
    if lacks is not None and os.environ.get("CI") and not lacks.startswith("ip "):
        raise RuntimeError(f"CI has to run these tests: {lacks}")
    return pytest.mark.skipif(lacks is not None, reason=lacks or "namespaces")


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], check=check, capture_output=True, text=True, timeout=20)


class World:
    """Hosts around one router; closes all with its ``with`` block."""

    def __init__(self, *hosts: str) -> None:
        self._prefix = f"tmq{os.getpid()}-"
        self._names: list[str] = []
        #: The address of each host.
        self.address = {host: f"10.77.{number}.2" for number, host in enumerate(hosts, 1)}
        try:
            self._build(hosts)
        except BaseException:
            self.close()
            raise

    def _build(self, hosts: tuple[str, ...]) -> None:
        router = self._namespace("router")
        self._run(router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for number, host in enumerate(hosts, 1):
            inside = self._namespace(host)
            there = ("type", "veth", "peer", "name", "eth0", "netns", inside)
            _ip("-n", router, "link", "add", f"to-{host}", *there)
            _ip("-n", router, "addr", "add", f"10.77.{number}.1/24", "dev", f"to-{host}")
            _ip("-n", router, "link", "set", f"to-{host}", "up")
            _ip("-n", inside, "addr", "add", f"{self.address[host]}/24", "dev", "eth0")
            _ip("-n", inside, "link", "set", "eth0", "up")
            _ip("-n", inside, "route", "add", "default", "via", f"10.77.{number}.1")

    def _namespace(self, host: str) -> str:
        name = self._prefix + host
        _ip("netns", "add", name)
        self._names.append(name)
        _ip("-n", name, "link", "set", "lo", "up")
        return name

    def _run(self, name: str, *command: str) -> None:
        subprocess.run(
            ["ip", "netns", "exec", name, *command], check=True, capture_output=True, timeout=20
        )

    @contextmanager
    def inside(self, host: str) -> Iterator[str]:
        """What this thread starts in the block, and the sockets that it makes, are on that host; gives its address."""
        with Path("/proc/thread-self/ns/net").open() as here:
            with Path(f"/run/netns/{self._prefix}{host}").open() as there:
                _enter(there.fileno())
            try:
                yield self.address[host]
            finally:
                _enter(here.fileno())

    def drop(self, sender: str, receiver: str) -> None:
        """Let nothing that one host sends arrive at the other."""
        _ip("-n", f"{self._prefix}router", "rule", "add", *self._rule(sender, receiver))

    def deliver(self, sender: str, receiver: str) -> None:
        """End :meth:`drop`."""
        _ip("-n", f"{self._prefix}router", "rule", "del", *self._rule(sender, receiver))

    def _rule(self, sender: str, receiver: str) -> tuple[str, ...]:
        return "from", self.address[sender], "to", self.address[receiver], "blackhole"

    @contextmanager
    def partition(self, one: str, other: str, *, both: bool = True) -> Iterator[None]:
        """Drop what `one` sends to the other in this block, and what the other sends if `both`."""
        self.drop(one, other)
        if both:
            self.drop(other, one)
        try:
            yield
        finally:
            self.deliver(one, other)
            if both:
                self.deliver(other, one)

    def close(self) -> None:
        """Remove the namespaces; what still runs in them keeps them until it ends."""
        for name in self._names:
            _ip("netns", "del", name, check=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")
