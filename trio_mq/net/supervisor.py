"""Tells a service manager how this process is: ready, stopping, or recovering and still alive (case C019).

In: what :mod:`trio_mq.system` knows. Out: datagrams to the socket that the environment names; none without one, as
outside of systemd. A long recovery asks for more time each time it tells its progress, so that nobody takes it for
one that hangs and kills it. Source: the page sd_notify(3) of systemd.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Final

#: Time that a process which has just told its progress may take until it tells it again.
PATIENCE_S: Final = 60


class Supervisor:
    """The service manager, if there is one; a message that does not reach it is lost and no error."""

    def __init__(self, path: str | None) -> None:
        self._path = path

    @classmethod
    def of(cls, environment: Mapping[str, str] = os.environ) -> Supervisor:
        """The one that the variable NOTIFY_SOCKET names."""
        return cls(environment.get("NOTIFY_SOCKET") or None)

    def starting(self, status: str) -> None:
        """Not ready yet, and busy with something."""
        self._tell(f"STATUS={status}", f"EXTEND_TIMEOUT_USEC={PATIENCE_S * 1_000_000}")

    def ready(self, status: str) -> None:
        """Everything serves."""
        self._tell("READY=1", f"STATUS={status}")

    def stopping(self) -> None:
        """A stop was asked for."""
        self._tell("STOPPING=1", "STATUS=stopping")

    def _tell(self, *lines: str) -> None:
        if self._path is None:
            return
        # A name that begins with @ is not one of a file.
        path = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
                out.setblocking(False)
                out.sendto("\n".join(lines).encode(), path)
        except OSError:  # it has gone, or does not listen
            return
