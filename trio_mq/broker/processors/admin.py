"""All requests of administrators: definitions, statistics, resets, runtime information.

In: what the families need. Out: their processors in a request table. Called once by the broker.
"""

from __future__ import annotations

from collections.abc import Callable

from trio_mq import __version__
from trio_mq.broker.clientcalls import ClientCalls
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.locks import QueueLocks
from trio_mq.broker.members import Members
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.processors.callback import Callbacks
from trio_mq.broker.processors.configuration import Configuration
from trio_mq.broker.processors.definitions import Definitions
from trio_mq.broker.processors.figures import Figures
from trio_mq.broker.processors.groupaccess import GroupAccess
from trio_mq.broker.processors.resets import Resets
from trio_mq.broker.processors.runtime import Runtime
from trio_mq.broker.processors.send import Sender
from trio_mq.broker.processors.statistics import Statistics
from trio_mq.broker.saver import Saver
from trio_mq.broker.stats import BrokerStats
from trio_mq.broker.topics import TopicTable
from trio_mq.broker.updates import SettingUpdates
from trio_mq.clock import Clock
from trio_mq.config import Settings
from trio_mq.net.requests import RequestTable
from trio_mq.store.store import Store


class Admin:
    """The administrators' side of a broker. `address` is what clients connect to, `host:port`."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        members: Members,
        sender: Sender,
        stats: BrokerStats,
        clock: Clock,
        address: str,
        *,
        locks: QueueLocks,
        calls: ClientCalls,
        updates: SettingUpdates,
        permission_changed: Callable[[], None],
        saver: Saver | None = None,
    ) -> None:
        mine = settings.broker
        statistics = Statistics(settings, store, topics, offsets, members, stats, address)
        version = f"trio-mq {__version__}"
        self.runtime = Runtime(settings, store, sender, stats, members, locks, clock, version)
        self._families = (
            Definitions(store, topics, groups, offsets, stats, saver),
            statistics,
            Figures(store, topics, groups, offsets, stats, statistics, clock, address),
            GroupAccess(topics, groups, offsets, members, saver),
            Configuration(settings, topics, updates, clock, saver, permission_changed),
            Resets(store, topics, groups, offsets, members, mine, calls),
            Callbacks(store, topics, groups, members, calls, mine.broker_name),
            self.runtime,
        )

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of all families."""
        for family in self._families:
            family.fill(table)
