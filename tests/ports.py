"""Ports for child processes that want fixed ones."""

import os
import random
import socket

_RANDOM = random.Random(os.getpid())  # several test processes look for ports at the same time


def free_port() -> int:
    """A port with free neighbours: brokers also take port - 2 (fast) and port + 1 (replication)."""
    for _ in range(200):
        port = _RANDOM.randrange(12_000, 30_000)
        if all(_is_free(p) for p in (port - 2, port, port + 1)):
            return port
    raise RuntimeError("no free port found")


def _is_free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the servers do
        try:
            tried.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
