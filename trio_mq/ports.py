"""The ports of a process: which it listens at, bound before anything else happens.

In: the settings and a network. Out: listening sockets by purpose, or an error that names the port and the setting.
Called by :mod:`trio_mq.system`.
"""

from __future__ import annotations

import attrs

from trio_mq.config import Settings
from trio_mq.errors import AddressInUse, TrioMQError
from trio_mq.net.network import Listening, Network
from trio_mq.store.checkpoint import take_lock
from trio_mq.store.disk import Disk


@attrs.frozen
class Ports:
    """All of them: the name server's (none without one), the broker's one or two, and the one for slaves."""

    network: Network
    nameserver: list[Listening]
    broker: list[Listening]
    ha: Listening

    def close(self) -> None:
        """Give them back."""
        for listener in (*self.nameserver, *self.broker, self.ha):
            listener.close()


def bind(settings: Settings, disk: Disk, network: Network) -> Ports:
    """Take all ports. AddressInUse or ConfigError for one that cannot be had."""
    try:
        return _bind(settings, network)
    except AddressInUse:
        # Most likely the same command runs already. Then the store says more: the id of that process.
        if disk.exists(f"{settings.store.path}/lock"):
            take_lock(disk, settings.store.path).release()
        raise


def _bind(settings: Settings, network: Network) -> Ports:
    mine = settings.broker
    bound: list[Listening] = []

    def take(host: str, port: int, purpose: str) -> None:
        bound.append(network.listen(host, port, purpose=purpose))

    try:
        if settings.nameserver.enabled:
            at = settings.nameserver.listen
            take(at.host, at.port, "name server (--nameserver-listen)")
        names = len(bound)
        take(mine.listen_host, mine.listen_port, "broker (--listen)")
        if mine.fast_listen_port is not None:
            purpose = "fast port, listen port - 2 (--no-fast-port leaves it out)"
            take(mine.listen_host, mine.fast_listen_port, purpose)
        purpose = "port for slaves, listen port + 1 unless given (haListenPort)"
        take(settings.ha.bind_address or mine.listen_host, settings.ha_port, purpose)
    except TrioMQError:
        for listener in bound:
            listener.close()
        raise
    return Ports(network, bound[:names], bound[names:-1], bound[-1])
