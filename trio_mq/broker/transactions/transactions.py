"""Transactions of one broker: what its processor, its checks and its loading share.

In: half messages in the store, decisions about them. Out: messages on their real topics, op records, progress as the
offsets of a group of the broker's own. Made by :mod:`.service`, and owns no task: checks and op records have theirs.
Explained in ``docs/explanation/transactions.md``; Apache: TransactionalMessageServiceImpl, TransactionalMessageBridge.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from trio_mq.broker.names import HALF_TOPIC, OP_HALF_TOPIC
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.put import Letter, Put, Putter
from trio_mq.broker.transactions.half import Half
from trio_mq.broker.transactions.ledger import Fate, HalfLedger
from trio_mq.broker.transactions.ops import Ops
from trio_mq.broker.warm import warmed
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.errors import BodyError
from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.store.queues import BaseQueue
from trio_mq.store.store import Store

#: The group whose offsets are the progress.
GROUP: Final = "CID_RMQ_SYS_TRANS"


class Transactions:
    """The ledger of half messages, and the ways to change it together with the store."""

    def __init__(
        self,
        store: Store,
        offsets: ConsumerOffsets,
        putter: Putter,
        settings: BrokerSettings,
        clock: Clock,
    ) -> None:
        self.store = store
        self.putter = putter
        self.clock = clock
        self.ledger = HalfLedger()
        self.ops = Ops(putter, settings, clock, store.host.packed)
        self._offsets = offsets
        #: Decisions so far, and transactions given up.
        self.committed = self.rolled_back = self.given_up = 0

    @property
    def halves(self) -> BaseQueue:
        """The queue of half messages."""
        return self.store.queues.obtain(HALF_TOPIC, 0)

    # -- reading

    async def data(self, topic: str, offset: int, count: int) -> tuple[bytes, int]:
        """At most `count` records of a queue from `offset` on, as they are, and where to go on.

        OSError when the disk does not hand the record at `offset` over.
        """
        queue = self.store.queue(topic, 0)
        look = partial(self.store.reader.messages, queue, offset, count, None)
        try:
            answer = await warmed(self.store.parts.disk, look)
        except OSError:
            if count == 1:
                raise
            return await self.data(topic, offset, 1)
        return answer.data, max(answer.next_offset, offset + 1)

    async def read(
        self, topic: str, offset: int, count: int = 1
    ) -> tuple[list[StoredMessage], int]:
        """The same, decoded. What cannot be read is left out."""
        data, after = await self.data(topic, offset, count)
        records: list[StoredMessage] = []
        at = 0
        while at < len(data):
            try:
                record = decode(data, at)
            except BodyError:
                if count > 1:  # one by one, so that the others are found
                    return await self.read(topic, offset)
                break
            records.append(record)
            at += record.size
        return records, after

    def half_at(self, log_offset: int) -> Half | None:
        """The half message at a log offset, None where there is none. May raise ColdData."""
        data = self.store.reader.record(log_offset)
        half = None if data is None else Half.read(data)
        # A body may hold something that looks like a record; but not one that says it is here.
        return half if half is not None and half.record.log_offset == log_offset else None

    # -- decisions

    def commit(self, half: Half) -> Put:
        """Deliver an open half. Raises as :meth:`Putter.deliver`, and the transaction stays open then."""
        letter = half.committed()
        put = self.putter.deliver(letter) if half.waits else self.putter.put(letter)
        self._settled(half, Fate.COMMITTED)
        self.committed += 1
        return put

    def roll_back(self, half: Half) -> None:
        """Drop an open half."""
        self._settled(half, Fate.ROLLED_BACK)
        self.rolled_back += 1

    def give_up(self, half: Half) -> None:
        """Move an open half to where nobody is asked about it any more. StoreFull when it stays open."""
        self.putter.put(half.given_up())
        self._settled(half, Fate.GIVEN_UP)
        self.given_up += 1

    def _settled(self, half: Half, fate: Fate) -> None:
        self.ops.add(self.ledger.settle(half.root, fate))

    def store_again(self, half: Half, letter: Letter) -> Put:
        """Put a copy of an open half at the end of its queue. StoreFull when there is none."""
        put = self.putter.put(letter)
        # Its old place is done: whoever starts from an older progress must not ask about both.
        self.ops.add(self.ledger.newest(half.root))
        self.ledger.copy(half.root, put.queue_offset)
        return put

    # -- progress

    def begin_at(self) -> tuple[int, int]:
        """The saved progress in half and op queue, within what is there."""
        found = []
        for topic in (HALF_TOPIC, OP_HALF_TOPIC):
            queue = self.store.queue(topic, 0)
            low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
            saved = self._offsets.query(GROUP, topic, 0)
            found.append(min(max(saved or 0, low), high))
        return found[0], found[1]

    def advance(self) -> None:
        """Note the progress, to be saved with all offsets."""
        half_begin = self.ledger.advance()
        op_begin = self.ops.progress.advance(half_begin)
        for topic, offset in ((HALF_TOPIC, half_begin), (OP_HALF_TOPIC, op_begin)):
            # As with Apache's broker, where there never was a transaction there is no such group.
            if (self._offsets.query(GROUP, topic, 0) or 0) != offset:
                self._offsets.commit(GROUP, topic, 0, offset)
