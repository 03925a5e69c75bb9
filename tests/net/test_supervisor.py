"""What a service manager is told, on a socket of this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from trio_mq.net.supervisor import Supervisor


@pytest.fixture(params=["file", "abstract"])
def manager(request, tmp_path) -> Iterator[tuple[socket.socket, str]]:
    """The socket of a manager, and its name in the environment."""
    name = str(tmp_path / "notify") if request.param == "file" else f"@trio-mq-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(name.replace("@", "\0", 1) if request.param == "abstract" else name)
        made.setblocking(False)
        yield made, name


def test_c019_progress_asks_for_more_time(manager):
    """C019: without it, systemd kills a start that takes longer than TimeoutStartSec."""
    listening, name = manager
    supervisor = Supervisor.of({"NOTIFY_SOCKET": name})
    supervisor.starting("recovering 41 %")
    assert listening.recv(1000) == b"STATUS=recovering 41 %\nEXTEND_TIMEOUT_USEC=60000000"
    supervisor.ready("ready in 1 s")
    assert listening.recv(1000) == b"READY=1\nSTATUS=ready in 1 s"
    supervisor.stopping()
    assert listening.recv(1000).startswith(b"STOPPING=1\n")


@pytest.mark.parametrize("environment", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/no/where"}])
def test_without_a_manager_nothing_happens(environment):
    supervisor = Supervisor.of(environment)
    supervisor.starting("x")
    supervisor.ready("x")
    supervisor.stopping()
