"""What happens in a run: how the brokers are set up, what goes wrong when, and how long.

In: a seed. Out: a :class:`Scenario`, the same for the same seed in every process. Pure. Events may overlap: each is
undone by itself, and at the end of a run everything is healed.
"""

from __future__ import annotations

import enum
import random
from typing import Any, Final

import attrs

#: Length of the log's files: some ten messages fill one.
SEGMENT_BYTES: Final = 12 * 1024
#: How long something may be wrong after the senders' last message.
AFTER_S: Final = 3.0
#: Longest body, of which a segment takes a few.
BODY_BYTES: Final = 3000


class Kind(enum.Enum):
    """What goes wrong. `side` of an event is the machine: 0 is the master, others are slaves."""

    PARTITION = "nothing passes between the master and a slave"
    DEAF = "a machine does not hear the other end, which hears it"
    ISLAND = "a machine is parted from everybody"
    CUT = "the replication link ends after some more bytes of a side"
    CUT_NEXT = "the next replication link ends after some bytes of a side"
    RESET = "all connections between master and slave are reset"
    DELAY = "everything between master and slave takes longer"
    SLOW = "a side takes few bytes per second from the other"
    TWIN = "the next replication link is made twice"
    RESTART = "a machine's process is stopped in order, and started again"
    KILL = "a machine's process is killed, and started again"
    CRASH = "a machine loses its power, and what was not synced with it"
    FULL = "the disk of a machine is full"
    CLOCK = "the wall clock of a machine jumps"
    NAMES = "the name server is away"


#: How often each of them happens, compared with the others.
WEIGHTS: Final = {
    Kind.PARTITION: 4,
    Kind.DEAF: 4,
    Kind.ISLAND: 2,
    Kind.CUT: 6,
    Kind.CUT_NEXT: 4,
    Kind.RESET: 3,
    Kind.DELAY: 2,
    Kind.SLOW: 2,
    Kind.TWIN: 2,
    Kind.RESTART: 4,
    Kind.KILL: 5,
    Kind.CRASH: 5,
    Kind.FULL: 3,
    Kind.CLOCK: 2,
    Kind.NAMES: 1,
}


@attrs.frozen
class Event:
    """One thing that goes wrong. `amount` is bytes, seconds or bytes per second, as the kind has it."""

    at_s: float
    kind: Kind
    side: int
    lasting_s: float
    amount: float = 0.0
    #: How a connection ends, or what a power cut leaves.
    how: str = ""
    #: What the disk has left when it is full, and the seed of a power cut.
    number: int = 0

    def __str__(self) -> str:
        what = f"{self.kind.name} of {'the master' if not self.side else f'slave {self.side}'}"
        return f"{self.at_s:.2f} s: {what}, for {self.lasting_s:.2f} s, {self.amount:g} {self.how}".rstrip()


@attrs.frozen(kw_only=True)
class Scenario:
    """A run. `ha` and `store` are settings by their Python names; those of slaves change `store`."""

    seed: int
    slaves: int
    ha: dict[str, Any]
    store: dict[str, Any]
    slave_store: dict[str, Any]
    slave_ha: dict[str, Any]
    delay_s: float
    #: What a call to the disk takes that is not made on the loop's thread, a sync say.
    disk_s: float
    lasting_s: float
    producers: int
    #: Mean time between two messages of a producer.
    pause_s: float
    #: Messages that the master has before the first slave starts.
    before: int
    events: tuple[Event, ...]

    @property
    def is_sync(self) -> bool:
        """Whether sends wait for a slave."""
        return bool(self.ha["role"] == "SYNC_MASTER" and self.ha["in_sync_replicas"] > 1)

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}: {self.slaves} slaves, {self.lasting_s:.0f} s, disk {self.disk_s:g} s, "
            f"{self.ha}, {self.store}, "
            f"slaves {self.slave_ha} {self.slave_store}"
        )
        return "\n  ".join([head, *map(str, self.events)])


def scenario(seed: int) -> Scenario:
    """The run of a seed."""
    rng = random.Random(seed)
    slaves = rng.choice((1, 1, 1, 2))
    lasting_s = rng.uniform(6, 30)
    producers = rng.randint(1, 3)
    ha = {
        "role": "SYNC_MASTER" if rng.random() < 0.7 else "ASYNC_MASTER",
        "in_sync_replicas": 2,
        "replicate_from_start": rng.random() < 0.5,
        "transfer_batch_size": rng.choice((50, 1000, 32768, 32768)),
        "slave_timeout_ms": rng.choice((500, 2500)),
    }
    if rng.random() < 0.2:
        ha |= {"flow_control_enable": True, "max_transfer_byte_in_second": 20_000}
    flush = ("ASYNC_FLUSH", "SYNC_FLUSH")
    return Scenario(
        seed=seed,
        slaves=slaves,
        ha=ha,
        store={"flush_disk_type": rng.choice(flush)},
        slave_store={"flush_disk_type": rng.choice(flush)},
        slave_ha={"cut_when_ahead": rng.random() < 0.3},
        delay_s=rng.choice((0.0, 0.0, 0.001, 0.05)),
        disk_s=rng.choice((0.0, 0.0, 0.01, 0.2)),
        lasting_s=lasting_s,
        producers=producers,
        pause_s=lasting_s * producers / rng.choice((15, 40, 100)),
        before=rng.choice((0, 0, 5, 30)),
        events=_events(rng, slaves, lasting_s),
    )


def _events(rng: random.Random, slaves: int, lasting_s: float) -> tuple[Event, ...]:
    kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=rng.randint(1, 7))
    found = [_event(rng, kind, slaves, lasting_s) for kind in kinds]
    if rng.random() < 0.3:  # two that belong together, one right after the other
        first = rng.choice(found)
        second = _event(rng, rng.choice((Kind.KILL, Kind.CRASH, Kind.RESET)), slaves, lasting_s)
        found.append(attrs.evolve(second, at_s=first.at_s + rng.choice((0.0, 0.001, 0.02, 0.5))))
    return tuple(sorted(found, key=lambda event: event.at_s))


def _event(rng: random.Random, kind: Kind, slaves: int, lasting_s: float) -> Event:
    side = rng.choice((0, *range(1, slaves + 1)))
    if kind in (Kind.PARTITION, Kind.DELAY, Kind.RESET, Kind.TWIN, Kind.NAMES):
        side = rng.randint(1, slaves)
    last_s = rng.choice((0.3, 2.0, 6.0, 30.0)) * rng.uniform(0.5, 1.5)
    at_s = rng.uniform(0, lasting_s)
    # Once nobody sends any more, nothing is learned from what goes on being wrong.
    last_s = min(last_s, lasting_s - at_s + AFTER_S)
    made = Event(round(at_s, 3), kind, side, round(last_s, 3))
    match kind:
        case Kind.CUT | Kind.CUT_NEXT:
            # headers have 12 bytes, reports 8: most cuts go through one of the first
            count = rng.choice((rng.randint(0, 40), rng.randint(0, 4000), rng.randint(0, 60_000)))
            ending = rng.choice(("reset", "end", "silence"))
            return attrs.evolve(made, amount=count, how=ending)
        case Kind.DELAY:
            return attrs.evolve(made, amount=rng.choice((0.02, 0.5, 3.0)))
        case Kind.SLOW:
            return attrs.evolve(made, amount=rng.choice((50, 1000, 10_000)))
        case Kind.CRASH:
            keep = rng.choice(("some", "some", "none", "all"))
            return attrs.evolve(made, how=keep, number=rng.getrandbits(30))
        case Kind.FULL:
            return attrs.evolve(made, number=rng.choice((0, 0, 500, 5000)))
        case Kind.CLOCK:
            return attrs.evolve(made, amount=rng.choice((-3600, -5, 5, 3600)))
    return made
