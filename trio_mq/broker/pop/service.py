"""Pop consumption, put together: what is handed out, who waits, what comes back.

In: the parts of a broker that pops need. Out: answers to the requests of pop consumers, and the tasks behind them.
Owns one nursery, in :meth:`PopService.run`. Called by :mod:`trio_mq.broker.broker`. How it works and what a crash
does: ``docs/explanation/pop.md``.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from trio_mq.broker.filters import Filters
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.pop.ledger import PopLedger
from trio_mq.broker.pop.orders import PopOrders
from trio_mq.broker.pop.polls import PopPolls
from trio_mq.broker.pop.revive import Reviver
from trio_mq.broker.processors.ack import Acks
from trio_mq.broker.processors.pop import Popper
from trio_mq.broker.put import Putter
from trio_mq.broker.redirects import Redirects
from trio_mq.broker.saver import Saver
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.net.requests import Peer, RequestTable
from trio_mq.protocol.command import Command
from trio_mq.store.store import Store


class PopService:
    """All of a broker that has to do with pops."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        orders: PopOrders,
        polls: PopPolls,
        filters: Filters,
        putter: Putter,
        redirects: Redirects,
        saver: Saver,
        settings: BrokerSettings,
        clock: Clock,
        handle_again: Callable[[Peer, Command], None],
        delivered_to_ms: Callable[[], int],
    ) -> None:
        self.orders = orders
        self.polls = polls
        self.ledger = PopLedger(store, putter, redirects, offsets, settings, clock)
        self.popper = Popper(
            store,
            topics,
            groups,
            offsets,
            putter,
            self.ledger,
            orders,
            polls,
            filters,
            settings,
            handle_again,
        )
        self.acks = Acks(
            store, topics, offsets, putter, self.ledger, orders, polls, settings, clock
        )
        self.reviver = Reviver(
            store,
            topics,
            groups,
            offsets,
            putter,
            self.ledger,
            saver,
            settings,
            clock,
            delivered_to_ms,
        )
        self._topics = topics

    def fill(self, table: RequestTable) -> None:
        """Answer the requests of pop consumers."""
        self.popper.fill(table)
        self.acks.fill(table)

    def topic_changed(self, topic: str) -> None:
        """A topic was created, changed or deleted."""
        if topic not in self._topics:
            self.ledger.forget(topic)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Bring back what is not acknowledged, until cancelled."""
        await self.reviver.run(task_status=task_status)
