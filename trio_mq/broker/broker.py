"""The broker: its tables, its processors, its services and its faces, put together.

In: a recovered store and loaded tables. Out: a handler for listeners (:attr:`Broker.face`). Owns one nursery, in
:meth:`Broker.run`: requests that wait, for a message, the disk or a client; what delivers messages later (delay
levels, timers, checks of transactions, pops that were not acknowledged); saving of tables; and looks for silent
clients. Called by :mod:`trio_mq.system`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from trio_mq.broker.clientcalls import ClientCalls
from trio_mq.broker.delays import Delays
from trio_mq.broker.filters import Filters
from trio_mq.broker.follow import Follower
from trio_mq.broker.holds import Holds
from trio_mq.broker.locks import QueueLocks
from trio_mq.broker.members import Members
from trio_mq.broker.pop.service import PopService
from trio_mq.broker.processors.admin import Admin
from trio_mq.broker.processors.client import Clients
from trio_mq.broker.processors.delay import DelayRequests
from trio_mq.broker.processors.offset import Offsets
from trio_mq.broker.processors.pull import Puller
from trio_mq.broker.processors.query import Queries
from trio_mq.broker.processors.recall import Recalls
from trio_mq.broker.processors.reply import Replies
from trio_mq.broker.processors.send import Sender
from trio_mq.broker.processors.sendback import SendBack
from trio_mq.broker.put import Putter
from trio_mq.broker.redirects import Redirects
from trio_mq.broker.remoting import RemotingFace
from trio_mq.broker.retries import RetrySends
from trio_mq.broker.role import NoSends, Role
from trio_mq.broker.safety import Replicas, Safety
from trio_mq.broker.saver import Saver
from trio_mq.broker.stats import SAMPLE_S, BrokerStats
from trio_mq.broker.tables import BrokerTables
from trio_mq.broker.timerfollow import TimerFollower
from trio_mq.broker.timers import Timers
from trio_mq.broker.transactions.service import TransactionService
from trio_mq.clock import Clock
from trio_mq.config import Settings, parse_address
from trio_mq.errors import RequestRefused
from trio_mq.net.dial import Connect
from trio_mq.net.requests import Peer, RequestTable
from trio_mq.protocol.codes import RequestCode
from trio_mq.store.retention import Expired
from trio_mq.store.store import Store
from trio_mq.tasks import PeriodicTask, Scheduler, Watermark

log = logging.getLogger("trio_mq.broker")

#: Time between looks for clients that are silent and locks that are over.
EXPIRY_SCAN_S = 10.0
#: Time between looks at held pulls whose queue moved on without a match (Apache: 5 s, 1 s without long polling).
HOLD_SCAN_S, SHORT_HOLD_SCAN_S = 5.0, 1.0


class Broker:
    """A broker without its sockets."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        tables: BrokerTables,
        clock: Clock,
        address: str,
        primary: Replicas | None = None,
    ) -> None:
        mine = settings.broker
        self.address = address
        tables.updates.table.restore(settings)
        self.store = store
        self._settings, self._tables, self._clock = settings, tables, clock
        self.topics, self._groups = tables.topics.table, tables.groups.table
        self._offsets = tables.offsets.table
        self.topics.lmq = self._groups.lmq = settings.store.enable_lmq
        self.members = Members(mine.channel_expired_timeout_ms / 1000)
        self.locks = QueueLocks(mine.lock_max_live_ms / 1000)
        self.calls = ClientCalls()
        self.holds = Holds(HOLD_SCAN_S if mine.long_polling_enable else SHORT_HOLD_SCAN_S)
        self.filters = Filters(mine)
        self.saver = Saver(tables, mine.flush_consumer_offset_interval_ms / 1000)
        self.redirects = Redirects(settings.store)
        #: When puts may be answered; `primary` is who knows what slaves have.
        self.safety = Safety(store, settings.ha, primary)
        self.putter = Putter(store, self.redirects, clock, self.safety)
        #: What this broker may do; news about the others of its name changes it.
        self.role = role = Role(settings.ha, mine.broker_id)
        self.safety.alive_replicas = lambda: role.alive_replicas
        self.requests = RequestTable("broker")
        self.requests.refusal = self._refusal
        #: Called with the name of each topic that was created, changed or deleted.
        self.topic_changed: Callable[[str], None] | None = None
        #: Called when all topics allow more or less than before.
        self.permission_changed: Callable[[], None] | None = None
        self.sender = self._make_sender()
        self.puller = Puller(
            store,
            self.topics,
            self._groups,
            self._offsets,
            self.members,
            self.holds,
            self.filters,
            mine,
            self.role,
        )
        self.face = self._make_face()
        self.timers = self._make_timers()
        self.delays = self._make_delays()
        self.transactions = self._make_transactions()
        self.pops = self._make_pops()
        self.stats = BrokerStats(
            store.queues, clock, mine.cluster, self.topics.is_system, lambda: self.puller.missed
        )
        self.clients = Clients(
            self.topics,
            self._groups,
            self.members,
            self.locks,
            mine,
            self.calls,
            self.filters,
            self.saver,
        )
        self._fill_requests()
        self._fill_admin_requests(address)
        self._listen()

    # -- parts -----------------------------------------------------------------------------------------------

    def _make_sender(self) -> Sender:
        settings, store = self._settings, self.store
        sender = Sender(
            store,
            self.topics,
            self._groups,
            settings.broker,
            settings.store,
            self._clock,
            store.host,
            self.redirects,
            self.safety,
        )
        sender.retry_sends = RetrySends(self.topics, self._groups, self.locks)
        return sender

    def _make_face(self) -> RemotingFace:
        return RemotingFace(
            self.store,
            self.sender if self.role.puts else NoSends(self.role),
            self.puller,
            self.requests,
            self._clock,
            self._settings.broker.region_id,
            self._settings.broker.trace_on,
            self._disconnected,
            self.topics,
            saver=self.saver,
            answered=self.calls.answered,
            safety=self.safety,
        )

    def _make_timers(self) -> Timers | None:
        if not self._settings.store.timer_wheel_enable:
            return None
        timers = Timers(self.store, self.putter, self._settings.store, self._clock)
        self.redirects.timer_is_full = timers.is_full
        return timers

    def _make_delays(self) -> Delays:
        settings, saved = self._settings.store, self._tables.delays
        delays = Delays(self.store, self.putter, saved.table, settings.delay_levels_ms, self._clock)
        interval_s = settings.flush_delay_offset_interval_ms / 1000
        delays.hurry = self.saver.every(saved, interval_s, before=delays.settle)
        return delays

    def _make_transactions(self) -> TransactionService:
        return TransactionService(
            self._settings,
            self.store,
            self.topics,
            self._offsets,
            self.members,
            self.calls,
            self.putter,
            self._clock,
        )

    def _make_pops(self) -> PopService:
        return PopService(
            self.store,
            self._tables,
            self.members,
            self.filters,
            self.putter,
            self.redirects,
            self.saver,
            self._settings.broker,
            self._clock,
            self.face.handle_again,
            self.timers.delivered_to_ms if self.timers is not None else lambda: 0,
        )

    def follower(self, kept: Watermark, connect: Connect) -> Follower:
        """What lets the tables of a slave follow its master's; `kept` is how far the log is here for good."""
        disk, timer = self.store.parts.disk, None
        if self.timers is not None:
            timer = TimerFollower(disk, self._settings.store.path, self.timers, self._clock)
        return Follower(
            self._tables,
            self.saver,
            disk,
            kept,
            timer=timer,
            connect=connect,
            own=parse_address(self.address),
        )

    def _fill_requests(self) -> None:
        """What producers and consumers ask, but for sends and pulls, which do not go through the table."""
        settings, mine, store = self._settings, self._settings.broker, self.store
        topics, groups, offsets = self.topics, self._groups, self._offsets
        for family in (
            self.clients,
            self.pops,
            self.transactions,
            Offsets(store, topics, groups, offsets, mine),
            Queries(store, topics, settings.store),
            SendBack(store, topics, groups, self.putter, mine),
            Replies(self.sender, self.putter, self.members, self.calls, settings, store.host),
            Recalls(self.putter, self.timers, topics, settings, self._clock),
            DelayRequests(self._tables.delays.table, self.delays.settle),
        ):
            family.fill(self.requests)

    def _fill_admin_requests(self, address: str) -> None:
        admin = Admin(
            self._settings,
            self.store,
            self.topics,
            self._groups,
            self._offsets,
            self.members,
            self.sender,
            self.stats,
            self._clock,
            address,
            locks=self.locks,
            calls=self.calls,
            updates=self._tables.updates.table,
            permission_changed=self._permission_changed,
            saver=self.saver,
        )
        admin.fill(self.requests)
        #: What tells rows of the runtime information; replication adds its own.
        self.runtime_sources = admin.runtime.sources
        admin.runtime.sources.append(self.delays.progress)
        if self.timers is not None:
            admin.runtime.sources.append(self.timers.runtime)

    # -- events ----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        self._groups.changed = self._group_changed
        self.topics.changed = self._topic_changed
        self.store.dispatcher.listeners += [self.holds.arrived, self.pops.arrived]
        self.store.cleaner.expired = self._expired
        self.role.changed.append(self._role_changed)

    def _disconnected(self, peer: Peer) -> None:
        self.holds.drop(peer)
        self.pops.drop(peer)
        self.calls.dropped(peer)
        self.clients.disconnected(peer)

    def _expired(self, expired: Expired) -> None:
        """Name the groups that had not consumed what has expired (case C058); their next pull is moved."""
        offsets = self._offsets
        for one in expired.raised:
            for group in offsets.groups_of(one.topic):
                offset = offsets.query(group, one.topic, one.queue_id)
                if offset is not None and offset < one.new_offset:
                    log.warning(
                        "group %s loses messages of %s queue %d: it is at offset %d, and those before %d have "
                        "expired%s; its next pull goes on from there",
                        *(group, one.topic, one.queue_id, offset, one.new_offset),
                        " because the disk is full" if expired.forced else "",
                    )

    def _group_changed(self, group: str) -> None:
        self.saver.soon()
        self.pops.group_changed(group)

    def _refusal(self, code: int) -> RequestRefused | None:
        """What this role does not answer. A recall that is switched off says so itself, as an Apache slave does."""
        if code == RequestCode.RECALL_MESSAGE and not self._settings.broker.recall_message_enable:
            return None
        return self.role.refusal(code)

    def _role_changed(self) -> None:
        """Let who waits at a slave go to the master that is back."""
        if not self.role.master_is_gone:
            self.holds.answer_all()

    def _permission_changed(self) -> None:
        if self.permission_changed is not None:
            self.permission_changed()

    def _topic_changed(self, topic: str) -> None:
        if self.timers is not None and self.topics.get(topic) is None:
            self.timers.metrics.forget(topic)
        self.saver.soon()
        self.pops.topic_changed(topic)
        if self.topic_changed is not None:
            self.topic_changed(topic)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until cancelled. What fails here for the disk's sake ends the process; clients cannot."""
        scheduler = Scheduler(
            [
                PeriodicTask(
                    name="look for silent clients",
                    run=self._expire,
                    interval_s=EXPIRY_SCAN_S,
                    initial_delay_s=EXPIRY_SCAN_S,
                ),
                PeriodicTask(
                    name="sample statistics",
                    run=self.stats.sample,
                    interval_s=SAMPLE_S,
                    initial_delay_s=SAMPLE_S,
                ),
            ]
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.face.run)
            await nursery.start(self.holds.run)
            await nursery.start(self.calls.run)
            await nursery.start(self.saver.run)
            if self.role.puts:
                await self._start_putting(nursery)
            else:  # consumers whose queues are assigned ask any broker, and read slaves
                await nursery.start(self.pops.routes.run)
            nursery.start_soon(self.filters.prepare, self.store.parts.disk)
            await nursery.start(scheduler.run)
            task_status.started()

    async def _start_putting(self, nursery: trio.Nursery) -> None:
        """Start what puts messages by itself: on a slave none of it runs."""
        await nursery.start(self.delays.run)
        if self.timers is not None:
            await nursery.start(self.timers.run)
        await nursery.start(self.transactions.run)
        await nursery.start(self.pops.run)

    async def _expire(self) -> None:
        await trio.lowlevel.checkpoint()
        self.clients.expire()

    async def close(self) -> None:
        """Save all tables. Called after :meth:`run` has ended, with a shield and a limit around it."""
        try:
            await self.delays.close()
            if self.timers is not None:
                await self.timers.close()
        finally:
            await self.saver.close()
