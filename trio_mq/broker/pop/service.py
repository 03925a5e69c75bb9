"""Pop consumption, put together: what is handed out, who waits, what comes back, who reads which queues.

In: the parts of a broker that pops need. Out: answers to the requests of pop consumers, and the tasks behind them.
Owns one nursery, in :meth:`PopService.run`. Called by :mod:`trio_mq.broker.broker`. How it works and what a crash
does: ``docs/explanation/pop.md`` and ``docs/explanation/ordered-pop.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import trio

from trio_mq.broker.filters import Filters
from trio_mq.broker.members import Members
from trio_mq.broker.pop.ledger import PopLedger
from trio_mq.broker.pop.polls import PopPolls
from trio_mq.broker.pop.revive import Reviver
from trio_mq.broker.processors.ack import Acks
from trio_mq.broker.processors.assignment import Assignments
from trio_mq.broker.processors.notification import Notifications
from trio_mq.broker.processors.pop import Popper
from trio_mq.broker.put import Putter
from trio_mq.broker.redirects import Redirects
from trio_mq.broker.routes import TopicRoutes
from trio_mq.broker.saver import Saver
from trio_mq.broker.tables import BrokerTables
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.net.requests import Peer, RequestTable
from trio_mq.protocol.command import Command
from trio_mq.store.dispatch import Arrival
from trio_mq.store.store import Store

#: Time between saves of the batches that ordered pop consumers have (Apache: the same).
ORDERS_SAVE_S: Final = 10.0


class PopService:
    """All of a broker that has to do with pops."""

    def __init__(
        self,
        store: Store,
        tables: BrokerTables,
        members: Members,
        filters: Filters,
        putter: Putter,
        redirects: Redirects,
        saver: Saver,
        settings: BrokerSettings,
        clock: Clock,
        handle_again: Callable[[Peer, Command], None],
        delivered_to_ms: Callable[[], int],
    ) -> None:
        topics, groups = tables.topics.table, tables.groups.table
        offsets = tables.offsets.table
        self._topics, self._groups = topics, groups
        self.orders = orders = tables.orders.table
        saver.every(tables.orders, ORDERS_SAVE_S, before=self._clean_orders)
        self.polls = polls = PopPolls.of(settings, store.queues, topics)
        self.notification_polls = PopPolls.of(settings, store.queues, topics, newest_first=True)
        self.ledger = ledger = PopLedger(store, putter, redirects, offsets, settings, clock)
        self.popper = Popper(
            store,
            topics,
            groups,
            offsets,
            putter,
            ledger,
            orders,
            polls,
            filters,
            settings,
            handle_again,
        )
        self.acks = Acks(store, topics, offsets, putter, ledger, orders, polls, settings, clock)
        self.reviver = Reviver(
            store,
            topics,
            groups,
            offsets,
            putter,
            ledger,
            saver,
            settings,
            clock,
            delivered_to_ms,
        )
        self.notifications = Notifications(
            store, topics, groups, ledger, orders, polls, self.notification_polls, settings, clock
        )
        orders.on_unlocked = self.notifications.unlocked
        self.routes = TopicRoutes(topics, settings)
        modes = tables.modes.table
        self.assignments = Assignments(
            topics, groups, members, modes, self.routes, settings, saver.soon
        )

    def fill(self, table: RequestTable) -> None:
        """Answer the requests of pop consumers."""
        self.popper.fill(table)
        self.acks.fill(table)
        self.notifications.fill(table)
        self.assignments.fill(table)

    def arrived(self, hits: Iterable[Arrival]) -> None:
        """Wake who waits for these messages; a listener of the store's dispatcher."""
        self.polls.arrived(hits)
        self.notification_polls.arrived(hits)

    def topic_changed(self, topic: str) -> None:
        """A topic was created, changed or deleted."""
        if topic not in self._topics:
            self.ledger.forget(topic)
        self.polls.topic_changed(topic)
        self.notification_polls.topic_changed(topic)

    def group_changed(self, group: str) -> None:
        """A group was created, changed or deleted."""
        self.polls.group_changed(group)
        self.notification_polls.group_changed(group)

    def drop(self, peer: Peer) -> None:
        """Forget the requests of a connection that has closed."""
        self.polls.drop(peer)
        self.notification_polls.drop(peer)

    def _clean_orders(self) -> None:
        topics = self._topics

        def queue_nums(topic: str) -> int:
            config = topics.get(topic)
            return 0 if config is None else config.read_queue_nums

        self.orders.clean(queue_nums, self._groups.__contains__)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer who waits, and bring back what is not acknowledged, until cancelled."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.polls.run)
            await nursery.start(self.notification_polls.run)
            await nursery.start(self.orders.run)
            await nursery.start(self.routes.run)
            await nursery.start(self.reviver.run)
            task_status.started()
