"""What a consumer holds of one queue: messages that were pulled and not settled, and the offset that may be committed.

In: pulled messages, settlements in any order. Out: messages to hand out, the lowest offset that is not settled, whether
there is room for more. Pure, and atomic between checkpoints: no locks. Filled by :mod:`.fetch`, emptied by
:mod:`.ready` and by orderly consumption, owned by :mod:`.assigned`. Source of the rules: Apache ProcessQueue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import inf

import attrs

from trio_mq.client.messages import ReceivedMessage
from trio_mq.protocol.bodies import MessageQueue

#: Causes of failed pulls that are remembered: texts of brokers may have numbers that differ each time.
CAUSES_MOST = 8


@attrs.frozen
class FlowLimits:
    """How much of one queue a client holds before it stops pulling (Apache: pullThresholdForQueue and its kin)."""

    messages: int = 1000
    bytes: int = 100 * 1024 * 1024
    #: Offsets between the first and the last message held; None in order, where the first one is always next.
    span: int | None = 2000


class ProcessQueue:
    """One queue that is assigned to this client, from its assignment to its loss; then `dropped`, and never used again.

    `queue` is named as on the wire, `shown` as the application names it, without the namespace.
    """

    __slots__ = (
        "_cached", "_limits", "_offsets", "_ready", "consumed_at_s", "dropped", "failures", "listed",
        "locked_until_s", "max_offset", "next_offset", "on_room", "paused", "preferred_broker_id",
        "pulled_at_s", "queue", "shown", "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        next_offset: int,
        limits: FlowLimits | None = None,
        shown: MessageQueue | None = None,
    ) -> None:
        self.queue = queue
        self.shown = shown or queue
        #: Where the next pull reads.
        self.next_offset = next_offset
        #: The end of the queue, as the last answer told it; -1 before.
        self.max_offset = -1
        #: The broker that the last answer named for the next pull: a slave, when the master is loaded.
        self.preferred_broker_id = 0
        #: It belongs to somebody else, or begins anew at another offset: what is settled now changes nothing.
        self.dropped = False
        #: Messages are neither pulled nor handed out.
        self.paused = False
        #: Whether :class:`.Ready` has it in its round.
        self.listed = False
        #: Why the last pulls failed, for one line in the log for each cause: brokers that are tried in turn have
        #: a cause each.
        self.failures: deque[str] = deque(maxlen=CAUSES_MOST)
        #: Until when a broker keeps it for this client, by the clock of the event loop; orderly consumption only.
        self.locked_until_s = 0.0
        #: When the last answered pull began, and when the message that was settled last was handed out; 0 before.
        self.pulled_at_s = self.consumed_at_s = 0.0
        #: Called once when there is room again, and then forgotten.
        self.on_room: Callable[[], None] | None = None
        self.size_bytes = 0
        self._limits = limits or FlowLimits()
        #: Everything that is not settled, by queue offset.
        self._cached: dict[int, ReceivedMessage] = {}
        #: Offsets in ascending order; a settled one stays until it is the first, or the last.
        self._offsets: deque[int] = deque()
        #: Not handed out yet.
        self._ready: deque[ReceivedMessage] = deque()

    def __repr__(self) -> str:
        state = "dropped" if self.dropped else "paused" if self.paused else "active"
        return (
            f"<ProcessQueue {self.queue.topic}@{self.queue.broker_name}:{self.queue.queue_id} "
            f"{state}, position {self.position}, {len(self._cached)} held>"
        )

    # -- in

    def put(self, messages: Iterable[ReceivedMessage]) -> None:
        """Take pulled messages, in ascending order; an offset that is held is not taken twice."""
        cached, offsets = self._cached, self._offsets
        for message in messages:
            offset = message.queue_offset
            if offset in cached:
                continue
            cached[offset] = message
            self.size_bytes += message.size_bytes
            self._ready.append(message)
            if offsets and offset <= offsets[-1]:
                # Only a broker that counts wrongly, or a message that is put back, comes here.
                self._offsets = offsets = deque(sorted({*offsets, offset}))
            else:
                offsets.append(offset)

    def put_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Let messages that were handed out be handed out again, before all others. Settled ones stay settled."""
        again = [message for message in messages if message.queue_offset in self._cached]
        for message in again:
            message.taken_at_s = inf
            self._cached[message.queue_offset] = message
        self._ready.extendleft(reversed(again))

    # -- out

    def take(self) -> ReceivedMessage | None:
        """The next message to hand out; None when there is none, or none now."""
        if self._ready and not self.paused and not self.dropped:
            return self._ready.popleft()
        return None

    @property
    def next_out(self) -> int:
        """The offset of the next message to hand out, or where the next pull reads."""
        return self._ready[0].queue_offset if self._ready else self.next_offset

    @property
    def ready(self) -> int:
        """Messages that are not handed out yet."""
        return len(self._ready)

    def holds(self, message: ReceivedMessage) -> bool:
        """Whether a message of this queue is still to be settled here."""
        return self._cached.get(message.queue_offset) is message

    def settle(self, message: ReceivedMessage) -> bool:
        """A message is done with. False when it was before, say because its time was over."""
        if self._cached.get(message.queue_offset) is not message:
            return False
        del self._cached[message.queue_offset]
        self.size_bytes -= message.size_bytes
        if message.taken_at_s < inf:
            self.consumed_at_s = message.taken_at_s
        if self.on_room is not None:
            self._tell_room()
        return True

    def settled_to(self, offset: int) -> None:
        """Everything below `offset` is done with: a position that the application commits itself."""
        for message in [m for at, m in self._cached.items() if at < offset]:
            self.settle(message)
        self._ready = deque(message for message in self._ready if message.queue_offset >= offset)

    @property
    def position(self) -> int:
        """What may be committed: the lowest offset that is not settled, or where the next pull reads."""
        cached, offsets = self._cached, self._offsets
        while offsets and offsets[0] not in cached:
            offsets.popleft()
        return offsets[0] if offsets else self.next_offset

    def overdue(self, now_s: float, timeout_s: float) -> list[ReceivedMessage]:
        """Messages at the head, where they hold up the commit, that were handed out too long ago."""
        found = []
        for message in self._cached.values():
            if now_s - message.taken_at_s < timeout_s:
                break
            found.append(message)
        return found

    # -- room

    @property
    def count(self) -> int:
        """Messages that are held."""
        return len(self._cached)

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest offset that is held; (0, 0) without any."""
        return (min(self._cached), max(self._cached)) if self._cached else (0, 0)

    @property
    def span(self) -> int:
        """Offsets from the first held message to the last (Apache: ProcessQueue.getMaxSpan)."""
        first = self.position
        cached, offsets = self._cached, self._offsets
        while offsets and offsets[-1] not in cached:
            offsets.pop()
        return offsets[-1] - first if offsets else 0

    def pause(self) -> None:
        """Neither pull nor hand out, until :meth:`resume`."""
        self.paused = True

    def resume(self) -> None:
        """Go on; whoever hands out messages has to be told of those that are ready."""
        self.paused = False
        self._tell_room()

    def drop(self) -> None:
        """It is not ours any more, or begins anew."""
        self.dropped = True
        self._tell_room()

    def may_pull(self) -> bool:
        """Whether the next pull is due. False of a paused queue; :attr:`on_room` tells when that changes."""
        return self.dropped or (not self.paused and self.has_room())

    def _tell_room(self) -> None:
        if self.on_room is not None and self.may_pull():
            self.on_room()
            self.on_room = None

    def has_room(self) -> bool:
        """Whether more may be pulled. At a limit there is room, as with Apache: a pull may go over it."""
        limits = self._limits
        if len(self._cached) > limits.messages or self.size_bytes > limits.bytes:
            return False
        return limits.span is None or self.span <= limits.span
