"""What a pop consumer has at hand: popped messages, receives that wait for some, and who is to be asked next.

In: wants of receives, popped messages. Out: messages, and for each source (a topic at a broker) its turn to be popped.
Decides only; the requests are made by :mod:`.popsource`. The rules:

- A source whose last pop left messages behind is asked first, and one such source at a time: with a stock at every
  broker a receive takes from one of them, and leaves the others' to other consumers.
- Without such a source all are asked at the same time, and hold the question until a message comes. What the others
  bring after a receive has got enough stays here for the next one.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

import anyio
import attrs

from trio_mq.client.popcalls import MAX_MESSAGES
from trio_mq.client.popping import PoppedMessage
from trio_mq.errors import PeerRefused

#: Brokers end a held pop up to 50 ms early; the rest of a receive's time is not worth another question.
END_OF_WAIT_S = 0.1


class Asking(Enum):
    """What a source is doing."""

    NOTHING = 0
    STOCK = 1
    """It is asked for what it has, and answers at once."""
    NEWS = 2
    """It holds the question until a message comes."""
    FAILED = 3
    """It does not answer, and is left alone for a while."""


@attrs.define(eq=False)
class Source:
    """A topic at a broker."""

    topic: str
    broker_name: str
    asking: Asking = Asking.NOTHING
    #: Whether its last pop left messages behind.
    has_more: bool = False
    #: The newest receive that was known when its last answered question began.
    asked_for: int = 0
    #: What the broker said no with last, until it answers again.
    refusal: PeerRefused | None = None
    #: Set when the group's start there is fixed, or cannot be.
    begun: anyio.Event = attrs.field(factory=anyio.Event)


@attrs.define(eq=False)
class Want:
    """A receive in progress: `count` messages until a time on the clock of :func:`anyio.current_time`."""

    number: int
    count: int
    invisible_s: float
    until_s: float


@attrs.frozen
class Turn:
    """What to ask a source for; `poll_s` is 0 for an answer at once."""

    count: int
    invisible_s: float
    poll_s: float
    number: int


class Inbox:
    """See the module. Bounded: each source brings at most one answer beyond what receives want."""

    def __init__(self) -> None:
        self.messages: deque[PoppedMessage] = deque()
        self.sources: dict[tuple[str, str], Source] = {}
        self.wants: list[Want] = []
        #: When a receive last began or ended.
        self.last_asked_s = 0.0
        self._numbers = 0
        self._changed = anyio.Event()

    def want(self, count: int, invisible_s: float, until_s: float) -> Want:
        """Note a receive; it has to be taken back by :meth:`unwant`."""
        self._numbers += 1
        want = Want(self._numbers, count, invisible_s, until_s)
        self.wants.append(want)
        self.changed()
        return want

    def unwant(self, want: Want) -> None:
        """A receive has ended; others may want more."""
        self.wants.remove(want)
        if self.wants:
            self.changed()

    def changed(self) -> None:
        """Wake everybody who waits in :meth:`wait`."""
        self._changed.set()
        self._changed = anyio.Event()

    async def wait(self) -> None:
        """Wait for the next change."""
        await self._changed.wait()

    def add(self, messages: list[PoppedMessage]) -> None:
        """Keep popped messages for the next receive."""
        self.messages.extend(messages)
        self.changed()

    def put_back(self, messages: list[PoppedMessage]) -> None:
        """The same for those that were taken and not handed out."""
        self.messages.extendleft(reversed(messages))
        self.changed()

    def take(self, count: int, now_s: float) -> list[PoppedMessage]:
        """Up to `count` messages that are still ours; the broker gives the others to somebody else."""
        found: list[PoppedMessage] = []
        while self.messages and len(found) < count:
            message = self.messages.popleft()
            if message.expires_s > now_s:
                found.append(message)
        return found

    def refusal(self) -> PeerRefused | None:
        """Why nothing can come: every source has said no."""
        refusals = [source.refusal for source in self.sources.values()]
        return refusals[0] if refusals and all(refusals) else None

    def take_topic(self, topic: str) -> list[PoppedMessage]:
        """All messages of a topic, which is consumed no more."""
        gone = [message for message in self.messages if message.topic == topic]
        self.messages = deque(message for message in self.messages if message.topic != topic)
        return gone

    def take_old(self, now_s: float) -> list[PoppedMessage]:
        """Messages that have waited here for half of their invisible time."""
        old = [
            message
            for message in self.messages
            if (message.expires_s - now_s) * 2000 < message.receipt.invisible_ms
        ]
        for message in old:
            self.messages.remove(message)
        return old

    def is_answered(self, want: Want) -> bool:
        """Whether every source has said that it has nothing for a receive."""
        return all(
            source.asked_for >= want.number or source.asking in (Asking.NEWS, Asking.FAILED)
            for source in self.sources.values()
        )

    def turn(self, source: Source, now_s: float) -> Turn | None:
        """What to ask a source for now, None while it is to wait for a change."""
        if self.sources.get((source.topic, source.broker_name)) is not source:
            return None  # consumed no more
        if self.messages or not self.wants:
            return None  # a receive takes what is there, and ends
        newest = self.wants[-1]
        invisible_s = self.wants[0].invisible_s
        count = min(sum(want.count for want in self.wants), MAX_MESSAGES)
        if source.has_more:
            if any(other.asking is Asking.STOCK for other in self.sources.values()):
                return None
            return Turn(count, invisible_s, 0.0, newest.number)
        if any(other.has_more for other in self.sources.values()):
            return None
        poll_s = max(want.until_s for want in self.wants) - now_s
        if poll_s > END_OF_WAIT_S:
            return Turn(count, invisible_s, poll_s, newest.number)
        if source.asked_for < newest.number:
            return Turn(count, invisible_s, 0.0, newest.number)
        return None
