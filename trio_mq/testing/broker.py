"""What a test is given of a broker: addresses and faults.

In: a broker that runs, in this process or in another one. Out: :class:`RocketMQBroker`, the value of the fixture
``rocketmq_broker``, and names for what a test has for itself. Called by :mod:`.process` and :mod:`.inprocess`.
"""

from __future__ import annotations

import itertools
import os
from typing import Final, Literal

import attrs

from trio_mq.testing.faults import Faults

#: Queues of a fresh topic: as many as a first send makes.
TOPIC_QUEUES: Final = 4

Mode = Literal["subprocess", "inprocess"]

_numbers = itertools.count(1)


@attrs.frozen
class RocketMQBroker:
    """A broker with its name server, for a test.

    `nameserver` is what clients are given, `address` is the broker's own; both are ``host:port``. `mode` is
    ``"subprocess"`` or ``"inprocess"``. In virtual time the addresses exist for the clients of this test only.
    """

    nameserver: str
    address: str
    mode: Mode
    faults: Faults = attrs.field(repr=False)

    def __str__(self) -> str:
        """The address that clients are given."""
        return self.nameserver


def fresh(prefix: str) -> str:
    """A name that no other test has, whatever process it runs in."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"
