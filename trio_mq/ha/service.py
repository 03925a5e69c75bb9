"""Replication of one broker: its parts, and the two stages that run them.

In: a recovered store, the port for slaves, and addresses of the master as name servers tell them. Out: slaves that are
fed, on every role; on a slave a log, queues and tables that follow the master's. Called by :mod:`trio_mq.system`.

Failure policy: what a slave or a master does never leaves its connection; a lost master is tried again every five
seconds, for ever. Only failures of the own store end the process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import attrs
import trio

from trio_mq.broker.follow import Follower
from trio_mq.clock import Clock
from trio_mq.config import Address, Settings, parse_address
from trio_mq.errors import PeerUnavailable, RequestRefused
from trio_mq.ha.continuity import Continuity
from trio_mq.ha.copylog import LogCopy
from trio_mq.ha.masterasks import MasterAsks, Unanswered
from trio_mq.ha.primary import Primary
from trio_mq.ha.replica import Replica
from trio_mq.ha.runtime import HARuntime, SlaveSide
from trio_mq.ha.states import LinkState, StateWatch
from trio_mq.ha.stuck import StuckWatch
from trio_mq.net.dial import LinkPool, open_pool
from trio_mq.net.network import Listening, Network
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.store.store import Store

#: When it is told that the link has changed: a master that starts listens for slaves before it registers.
LINK_TOLD_S: Final = (1.0, 4.0)
#: Time that slaves get at a stop to take the rest of the log.
DRAIN_LIMIT_S: Final = 3.0
#: Time for one answer of the master about its log.
ASK_LIMIT_S: Final = 3.0


class Replication:
    """See the module. `copy` and `replica` are there on a slave only."""

    def __init__(self, settings: Settings, store: Store, network: Network, port: Listening) -> None:
        self._settings = settings.ha
        self._store = store
        self._network = network
        self._port = port
        self.primary = Primary(store, settings.ha)
        store.grown = self.primary.grown
        self.copy: LogCopy | None = None
        self.replica: Replica | None = None
        if settings.ha.is_slave:
            self.copy = LogCopy(store)
            logs = Continuity(self.copy, store, settings.ha, self.ask)
            self.replica = Replica(
                self.copy, settings.ha, network.open_stream, logs.check, logs.answers
            )
        #: What copies the tables; set on a slave before :meth:`follow` runs.
        self.tables: Follower | None = None
        #: Where the master answers requests, as far as name servers tell.
        self.master: Address | None = None
        #: Where it was found beside `haMasterAddress`; counts while no name server has told anything.
        self._beside: Address | None = None
        #: Called when the link to the master broke or came up: name servers may know more about it.
        self.link_changed: Callable[[], None] | None = None
        self._pool: LinkPool | None = None
        self._stopping = trio.Event()

    def master_told(self, master: Address | None, ha_address: Address | None) -> None:
        """What name servers say about the master of a slave.

        Without a master the log is still asked for where it was, and tables are not, unless settings name the master.
        """
        if self.tables is not None:
            self.tables.follow(master or self._beside)
        if master is not None:
            self.master = master
        if self.replica is not None:
            self.replica.follow(ha_address)

    def runtime(self, clock: Clock, *, address: str, ha_address: str) -> HARuntime:
        """What answers others about replication; the addresses are what they are told of this broker."""
        replica = self.replica
        slave = None
        if replica is not None:
            slave = SlaveSide(
                lambda: replica.view,
                self._adopt,
                lambda: None if self.tables is None else self.tables.master_log_end,
                lambda: () if self.tables is None else self.tables.views,
            )
        return HARuntime(
            self._settings,
            self._store,
            self.primary,
            clock,
            ha_address=ha_address,
            address=address,
            slave=slave,
        )

    def _adopt(self, ha_address: str, master: str | None) -> None:
        """An administrator, or another broker, names the master."""
        try:
            told = None if master is None else parse_address(master)
            self.master_told(told, parse_address(ha_address))
        except ValueError as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"no address of a master: {error}"
            ) from error

    async def ask(self, command: Command) -> Command:
        """The master's answer to a request, whatever it is; PeerUnavailable."""
        if self.master is None and self._beside is None:
            self._beside = await self._beside_given()
            self.master_told(self.master, None)
        master = self.master or self._beside
        assert master is not None
        return await self._ask_at(master, command)

    async def _ask_at(self, address: Address, command: Command) -> Command:
        pool = self._pool
        assert pool is not None, "it is asked while it follows"
        try:
            return await pool.call(address, command, ASK_LIMIT_S)
        except PeerUnavailable:
            await pool.drop(address)  # may be half-open: the next question gets a new connection
            raise

    async def _beside_given(self) -> Address:
        """Where the master of `haMasterAddress` answers requests, if that is the port below; PeerUnavailable.

        It is only believed if it says that its slaves connect to that port.
        """
        given = self._settings.master_address
        if given is None or given.port < 2:
            raise PeerUnavailable("no name server has told where the master answers requests")
        beside = attrs.evolve(given, port=given.port - 1)
        try:
            run = await MasterAsks(partial(self._ask_at, beside)).run()
        except Unanswered as error:
            raise PeerUnavailable(str(error)) from error
        if run is None or not run.address.endswith(f":{given.port}"):
            raise PeerUnavailable(
                f"no name server has told where the master answers requests, and at {beside}, the usual place, is "
                f"no broker with slaves at port {given.port}"
            )
        return beside

    # -- the stage around the broker -------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Feed slaves, and take what was copied over into the queues, until cancelled; slaves get the rest then."""
        async with trio.open_nursery() as nursery:
            try:
                feeding = trio.Event()
                nursery.start_soon(self._feed, feeding)
                await feeding.wait()
                if self.copy is not None:
                    await nursery.start(self.copy.run)
                task_status.started()
                await trio.sleep_forever()
            finally:  # the shielded part waits for it, also when the start is cancelled half-way
                self._stopping.set()

    async def _feed(self, feeding: trio.Event) -> None:
        """Serve slaves; `feeding` is set once that has begun.

        Shielded: at a stop they still get the rest of the log, for a limited time.
        """
        with trio.CancelScope(shield=True) as scope:
            async with trio.open_nursery() as nursery:
                serve = partial(self._network.serve_streams, [self._port], self.primary.serve)
                await nursery.start(serve)
                await nursery.start(self.primary.run)
                feeding.set()
                await self._stopping.wait()
                scope.deadline = trio.current_time() + DRAIN_LIMIT_S
                await self.primary.drained()
                nursery.cancel_scope.cancel()

    async def close(self) -> None:
        """Leave a log that ends with a whole record. Called after :meth:`run` has ended, before the store closes."""
        if self.copy is not None:
            await self.copy.close()

    # -- the innermost stage, on a slave ---------------------------------------------------------------------

    async def follow(
        self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Copy the master until cancelled, which ends it at once."""
        assert self.replica is not None, "a master follows nobody"
        async with (
            open_pool(connect=self._network.connect) as self._pool,
            trio.open_nursery() as nursery,
        ):
            tables = self.tables
            if tables is not None:
                await nursery.start(tables.run)
                stuck = StuckWatch(
                    self.replica.state,
                    lambda: self._store.log.written,
                    lambda: tables.master_log_end,
                )
                await nursery.start(stuck.run)
            await nursery.start(self.replica.run)
            nursery.start_soon(self._watch_link, self.replica.state)
            task_status.started()

    async def _watch_link(self, state: StateWatch) -> None:
        """Tell that the link has changed: when name servers had time to see it too, and once more for slow ones."""
        while state.state is not LinkState.SHUTDOWN:
            await state.left(state.state)
            for after_s in LINK_TOLD_S:
                await trio.sleep(after_s)
                if self.link_changed is not None:
                    self.link_changed()
