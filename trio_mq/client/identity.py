"""Who a client is: the id that brokers know it by, and the ids that it gives to messages.

In: the machine's address, the process, the wall clock. Out: client ids ``ip@instance[@unit]`` (Apache:
ClientConfig.buildMQClientId, changeInstanceNameToPID) and ``UNIQ_KEY`` values (:class:`.UniqueIds`; one source per
process, also after a fork).
"""

from __future__ import annotations

import itertools
import os
import random

from trio_mq.net.address import default_route_address
from trio_mq.protocol.message import UniqueIds

_numbers = itertools.count(1)
_source: tuple[int, UniqueIds] | None = None


def local_ip() -> str:
    """The address that this machine's connections come from, 127.0.0.1 without a network."""
    return default_route_address() or "127.0.0.1"


def client_id(
    instance_name: str | None = None, unit_name: str | None = None, *, now_ms: int
) -> str:
    """An id that no other client has; with an `instance_name`, the same after a restart.

    Broadcasting consumers need the same one: their offset file is found by it.
    """
    instance = instance_name or f"{os.getpid()}#{now_ms}{next(_numbers):06d}"
    unit = f"@{unit_name}" if unit_name else ""
    return f"{local_ip()}@{instance}{unit}"


def unique_id(now_ms: int) -> str:
    """A new ``UNIQ_KEY``. Forked processes count by themselves: the id of the process is part of it."""
    global _source  # one for the process: ids must differ between all its producers
    pid = os.getpid()
    if _source is None or _source[0] != pid:
        _source = pid, UniqueIds(local_ip(), pid, random.SystemRandom().getrandbits(32))
    return _source[1].create(now_ms)
