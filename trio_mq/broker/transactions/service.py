"""The transactions of a broker as the broker sees them: request codes to register, and one thing to run.

Called by :mod:`trio_mq.broker.broker`. Owns one nursery, in :meth:`TransactionService.run`, with two tasks: checks and
op records.
"""

from __future__ import annotations

import trio

from trio_mq.broker.clientcalls import ClientCalls
from trio_mq.broker.members import Members
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.processors.transaction import EndTransactions
from trio_mq.broker.put import Putter
from trio_mq.broker.topics import TopicTable
from trio_mq.broker.transactions.checks import Checks
from trio_mq.broker.transactions.loading import load
from trio_mq.broker.transactions.transactions import Transactions
from trio_mq.clock import Clock
from trio_mq.config import Settings
from trio_mq.net.requests import RequestTable
from trio_mq.store.store import Store


class TransactionService:
    """Puts the parts together."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        topics: TopicTable,
        offsets: ConsumerOffsets,
        members: Members,
        calls: ClientCalls,
        putter: Putter,
        clock: Clock,
    ) -> None:
        mine = settings.broker
        self.transactions = Transactions(store, offsets, putter, mine, clock)
        reserved_hours = settings.store.file_reserved_time_hours
        self.checks = Checks(self.transactions, members, calls, topics, mine, reserved_hours)
        self._ends = EndTransactions(self.transactions, putter, mine)

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of transactions."""
        self._ends.fill(table)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Find out which transactions are open; then, started, check them and write decisions until cancelled."""
        await load(self.transactions)
        async with trio.open_nursery() as nursery:
            await nursery.start(self.transactions.ops.run)
            await nursery.start(self.checks.run)
            task_status.started()
