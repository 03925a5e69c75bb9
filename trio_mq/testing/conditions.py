"""What is wrong between hosts of a network in memory: silence, deafness, delay, slow receivers, and cuts to come.

In: what a test wants to happen between two hosts, or between one and all others. Out: the same on their wires, those
that are there and those to come. Used by :class:`trio_mq.testing.links.MemoryNetwork` only.
"""

from __future__ import annotations

from typing import Final

import attrs

from trio_mq.testing.wires import Ending, Wire

#: Stands for all hosts.
ANY: Final = ""


@attrs.frozen
class CutToCome:
    """The next connection between two hosts ends after so many bytes of one of them. `port` 0 stands for all."""

    sender: str
    receiver: str
    count: int
    ending: Ending
    port: int

    def meets(self, wire: Wire) -> bool:
        """Whether a connection is meant."""
        is_between = sorted(wire.hosts) == sorted((self.sender, self.receiver))
        return is_between and self.port in (0, wire.port)


class Conditions:
    """See the module; hosts hear themselves whatever happens."""

    def __init__(self) -> None:
        #: Receivers and senders of which nothing passes.
        self._deaf: set[tuple[str, str]] = set()
        #: Hosts, and pairs of them, and what a message to or from them takes.
        self._delays: dict[frozenset[str], float] = {}
        #: Receivers and senders, and how many bytes a second pass.
        self._rates: dict[tuple[str, str], float] = {}
        self._cuts: list[CutToCome] = []

    def deafen(self, host: str, other: str = ANY) -> None:
        """Nothing of `other` arrives at `host`."""
        self._deaf.add((host, other))

    def sever(self, host: str, other: str = ANY) -> None:
        """Nothing passes between the two."""
        self._deaf |= {(host, other), (other, host)}

    def mend(self, host: str, other: str = ANY) -> None:
        """Take one :meth:`sever` or :meth:`deafen` back."""
        self._deaf -= {(host, other), (other, host)}

    def mend_all(self) -> None:
        """Everybody hears everybody."""
        self._deaf.clear()

    def slow(self, host: str, delay_s: float, other: str = ANY) -> None:
        """What passes between the two takes longer; 0 ends that."""
        self._delays[frozenset({host, other})] = delay_s

    def throttle(self, host: str, bytes_per_s: float | None, other: str = ANY) -> None:
        """`host` takes no more than that from `other`; None ends that."""
        self._rates.pop((host, other), None)
        if bytes_per_s is not None:
            self._rates[host, other] = bytes_per_s

    def cut_next(self, cut: CutToCome) -> None:
        """Cut a connection that is not made yet."""
        self._cuts.append(cut)

    def hears(self, host: str, other: str) -> bool:
        """Whether what `other` sends arrives at `host`."""
        return host == other or self._deaf.isdisjoint(_ways(host, other))

    def is_severed(self, host: str) -> bool:
        """Whether a host is parted from everybody."""
        return {(host, ANY), (ANY, host)} <= self._deaf

    def delay_s(self, one: str, other: str) -> float:
        """What a message between the two takes."""
        pairs = (frozenset({one, ANY}), frozenset({other, ANY}), frozenset({one, other}))
        return sum(self._delays.get(pair, 0.0) for pair in pairs)

    def apply(self, wire: Wire) -> None:
        """Let a wire be as its hosts have it."""
        client, server = wire.hosts
        for sender, receiver in ((client, server), (server, client)):
            direction = wire.direction(sender)
            direction.bytes_per_s = self._rate(receiver, sender)
            held = not self.hears(receiver, sender)
            if held != direction.is_held:
                wire.hold(held, direction)

    def begin(self, wire: Wire) -> None:
        """The same for a new one, which may be the one that a cut waits for."""
        self.apply(wire)
        for cut in [cut for cut in self._cuts if cut.meets(wire)]:
            self._cuts.remove(cut)
            wire.direction(cut.sender).stop_after(cut.count, cut.ending)

    def _rate(self, receiver: str, sender: str) -> float | None:
        rates = [self._rates[way] for way in _ways(receiver, sender) if way in self._rates]
        return min(rates, default=None)


def _ways(receiver: str, sender: str) -> tuple[tuple[str, str], ...]:
    return (receiver, sender), (receiver, ANY), (ANY, sender)
