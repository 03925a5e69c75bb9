"""Ports for child processes that want fixed ones.

A port that was handed out is taken only when its server starts, and given back for a while when it is killed. So each
test process has a range of its own, which a lock keeps for it, and goes round in it.
"""

import fcntl
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import IO

FIRST, RANGES, WIDTH = 12_000, 64, 280


def free_port() -> int:
    """A port with free neighbours: brokers also take port - 2 (fast) and port + 1 (replication)."""
    ports = _ports()
    for _ in range(WIDTH // 4):
        port = next(ports)
        if all(_is_free(p) for p in (port - 2, port, port + 1)):
            return port
    raise RuntimeError("no free port found")


@cache
def _ports() -> Iterator[int]:
    """Of the first range that no other process has."""
    folder = Path(tempfile.gettempdir()) / "trio-mq-test-ports"
    folder.mkdir(exist_ok=True)
    for number in range(RANGES):
        lock = (folder / str(number)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return _round(FIRST + number * WIDTH, lock)
    raise RuntimeError(f"{RANGES} other processes hold all ranges of ports; end some of them")


def _round(first: int, lock: IO[str]) -> Iterator[int]:
    """Every fourth port of a range, again and again; `lock` lives as long."""
    while not lock.closed:
        yield from range(first + 2, first + WIDTH, 4)


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
