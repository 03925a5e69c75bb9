"""A slave's tables follow its master's: topics, groups, consumer offsets, and the progress of what is delivered later.

In: the master's remoting address, as name servers tell it, and how far the log was copied. Out: the tables of this
broker, in memory and in their files; :attr:`Follower.views`. Owned by :mod:`trio_mq.system` on a slave, which runs
:meth:`Follower.run`. The first sync begins as soon as the address is known, the next one every 10 s (Apache: every
60 s, the first one 60 s after the start). Explained in ``docs/explanation/tables-of-a-slave.md``. Source: Apache
SlaveSynchronize.

Items are independent, each in a task of its own with time limits and retries of its own. An item that fails three times
in a row is given up until its next turn; its table stays as it was. That is told once, counted, and shown.

Progress speaks of the log: what it calls delivered, or consumed, is in the master's log at that moment, and perhaps not
in ours yet. So the end of the master's log is asked after it, and it counts here once our log has come that far. A
slave that is promoted in between repeats deliveries then; it never leaves one out.

What a master has lost does not get lost here: topics, groups and timer progress of a state before ours are not taken
(:func:`trio_mq.broker.statejson.is_older`), consumer offsets do not go back then, nor do those that consumers committed
here (:meth:`trio_mq.broker.offsets.ConsumerOffsets.take_over`). Apache's slaves take whatever differs. Only when the
end of our log was given up, as it did not continue the master's, is progress taken as it comes. As theirs, a slave
copies no locks, no progress of ordered pops and no changed settings.

Failure policy: nothing that the master, the network or the disk does ends the broker.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import attrs
import trio

from trio_mq.broker.mastercalls import CALL_LIMIT_S, FAILURES, MasterCalls
from trio_mq.broker.saver import Saver
from trio_mq.broker.statejson import is_older
from trio_mq.broker.tables import BrokerTables, LoadedStateFile
from trio_mq.broker.timerfollow import TimerFollower
from trio_mq.config import Address
from trio_mq.errors import BodyError, PeerUnavailable, StoreError
from trio_mq.net.dial import Connect, open_pool
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import DataVersion
from trio_mq.store.disk import Disk
from trio_mq.tasks import Watermark, describe

log = logging.getLogger("trio_mq.broker.follow")

#: From the start of one turn of an item to that of the next.
PERIOD_S: Final = 10.0
#: Further tries of a turn that fails, and the time between two.
MAX_RETRY: Final = 2
RETRY_S: Final = 1.0
#: Time for a table that comes in pages.
PAGED_LIMIT_S: Final = 60.0
#: Answers of an item that wait for our log; with more, the oldest and the newest of them stay.
WAITING_MOST: Final = 32

_FAILURES: Final = (*FAILURES, StoreError, trio.TooSlowError)


class ItemState(enum.Enum):
    """How a table that follows its master's is."""

    NEW = "not copied yet"
    GOOD = "copied"
    WAITING = "waits for the log"
    OLDER = "the master's is older"
    FAILING = "cannot be copied"


@attrs.frozen
class ItemView:
    """How it goes with one table. `age_s` is the time since it was last as the master's, None before the first time.

    `failures` counts tries, `given_up` turns in which all tries failed; `last_error` stays when it goes well again.
    """

    name: str
    state: ItemState
    age_s: float | None
    turns: int
    failures: int
    given_up: int
    last_error: str


@attrs.frozen
class _Answer:
    """What the master said, on its connection number `connection`; it counts once our log has reached `log_end`."""

    value: Any
    log_end: int
    connection: int


#: Takes over an answer; `returned` says that it is the first one over its connection. False if it is of an older state.
_Take = Callable[[Any, bool], Awaitable[bool]]


def _nothing() -> None:
    """What does not speak of the log is right whatever becomes of that."""


@attrs.define(eq=False)
class _Item:
    """A table that follows. `progress` says that it speaks of the log."""

    name: str
    ask: Callable[[MasterCalls], Awaitable[Any]]
    take: _Take
    limit_s: float = CALL_LIMIT_S
    progress: bool = False
    #: Forgets what cannot be right any more after the end of our log was given up.
    start_anew: Callable[[], None] = _nothing
    state: ItemState = ItemState.NEW
    synced_s: float | None = None
    turns: int = 0
    failures: int = 0
    given_up: int = 0
    last_error: str = ""
    waiting: deque[_Answer] = attrs.field(factory=deque)
    connection: int = 0
    #: How often the end of our log was given up until an answer was last taken over.
    cuts: int = 0

    @property
    def view(self) -> ItemView:
        age_s = None if self.synced_s is None else trio.current_time() - self.synced_s
        counts = (self.turns, self.failures, self.given_up)
        return ItemView(self.name, self.state, age_s, *counts, self.last_error)

    def wait_with(self, answer: _Answer) -> None:
        """Let an answer wait for our log. Those that wait for more than it does are of a log that is gone."""
        while self.waiting and self.waiting[-1].log_end > answer.log_end:
            self.waiting.pop()
        if len(self.waiting) >= WAITING_MOST:
            self.waiting.pop()
        self.waiting.append(answer)


class Follower:
    """Lets the tables of a slave follow its master's.

    `kept` is how far the log is here for good. `timer` is None in a broker without timers. `own` is the address of
    this broker, which is not followed.
    """

    def __init__(
        self,
        tables: BrokerTables,
        saver: Saver,
        disk: Disk,
        kept: Watermark,
        *,
        timer: TimerFollower | None,
        connect: Connect,
        own: Address | None = None,
    ) -> None:
        self._tables = tables
        self._saver = saver
        self._disk = disk
        self._kept = kept
        self._timer = timer
        self._connect = connect
        self._own = own
        self._address: Address | None = None
        #: Where the master's log ended when it was asked last; None while there is no master.
        self.master_log_end: int | None = None
        self._changed = trio.Event()
        self._items = self._made_items()
        self._told = ""
        for table in (tables.topics.table, tables.groups.table, tables.offsets.table):
            table.following = True

    @property
    def master(self) -> Address | None:
        """The master that is followed now."""
        return self._address

    @property
    def views(self) -> tuple[ItemView, ...]:
        """How it goes with each table."""
        return tuple(item.view for item in self._items)

    def follow(self, address: Address | None) -> None:
        """Follow the master at this remoting address from now on; None, or the own address, is a pause."""
        if address == self._own:
            address = None
        if address != self._address:
            log.info("tables follow the master at %s, before: %s", address, self._address)
            self._address = address
            self.master_log_end = None
            self._changed.set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow until cancelled. StoreError if the files of the timer cannot be read."""
        if self._timer is not None:
            await self._timer.load()
        task_status.started()
        while True:
            self._changed = changed = trio.Event()
            if self._address is None:
                await changed.wait()
                continue
            async with open_pool(connect=self._connect) as pool, trio.open_nursery() as nursery:
                calls = MasterCalls(pool, self._address, self._disk)
                for item in self._items:
                    item.waiting.clear()
                    item.connection = 0
                    nursery.start_soon(self._keep, item, calls, name=f"follow {item.name}")
                await changed.wait()
                nursery.cancel_scope.cancel()

    # -- one table -------------------------------------------------------------------------------------------

    async def _keep(self, item: _Item, calls: MasterCalls) -> None:
        """Copy one table again and again, until cancelled."""
        due_s = trio.current_time()
        while True:
            await self._turn(item, calls)
            due_s = max(due_s + PERIOD_S, trio.current_time())
            with trio.move_on_at(due_s):
                while item.waiting:
                    await self._kept.reached(item.waiting[0].log_end)
                    await self._take(item, item.waiting.popleft())
                await trio.sleep_forever()

    async def _turn(self, item: _Item, calls: MasterCalls) -> None:
        """Ask for a table, some times if need be. What is not progress is taken over at once."""
        item.turns += 1
        silent = False
        for number in range(MAX_RETRY + 1):
            if number:
                await trio.sleep(RETRY_S)
            try:
                with trio.fail_after(item.limit_s):
                    value = await item.ask(calls)
                log_end = await calls.log_end() if item.progress else 0
            except _FAILURES as error:
                self._failed(item, error)
                silent = isinstance(error, (PeerUnavailable, trio.TooSlowError))
                continue
            answer = _Answer(value, log_end, calls.connections)
            if not item.progress:
                await self._take(item, answer)
                return
            self.master_log_end = log_end
            item.wait_with(answer)
            if self._kept.value < log_end:
                item.state = ItemState.WAITING
            return
        item.given_up += 1
        if silent:
            await calls.reconnect()

    async def _take(self, item: _Item, answer: _Answer) -> None:
        """Take over what the master said. A failure is noted; the next turn asks again."""
        returned, item.connection = answer.connection != item.connection, answer.connection
        if item.cuts != self._kept.falls:
            item.cuts = self._kept.falls
            item.start_anew()
        try:
            is_newest = await item.take(answer.value, returned)
        except _FAILURES as error:
            self._failed(item, error)
            return
        was, item.synced_s = item.state, trio.current_time()
        item.state = ItemState.GOOD if is_newest else ItemState.OLDER
        if item.state is ItemState.OLDER and was is not ItemState.OLDER:
            log.error(
                "the master at %s has %s of a state before ours, as after a loss of its files: ours stay",
                *(self._address, item.name),
            )
        if not any(other.state is ItemState.FAILING for other in self._items) and self._told:
            log.warning("tables follow the master at %s again", self._address)
            self._told = ""

    def _failed(self, item: _Item, error: Exception) -> None:
        item.failures += 1
        item.last_error = describe(error)
        is_news, item.state = item.state is not ItemState.FAILING, ItemState.FAILING
        if (
            is_news and item.last_error != self._told
        ):  # once for all tables, where it is for the same reason
            self._told = item.last_error
            log.warning(
                "%s of the master at %s cannot be copied: %s; ours stay as they are, and it is tried again",
                *(item.name, self._address, item.last_error),
            )

    # -- the tables ------------------------------------------------------------------------------------------

    def _made_items(self) -> Sequence[_Item]:
        offsets, delays = self._tables.offsets.table, self._tables.delays.table
        made = [
            _Item("topics", self._ask_topics, self._take_topics, PAGED_LIMIT_S),
            _Item(
                "consumer offsets",
                MasterCalls.offsets,
                self._take_offsets,
                progress=True,
                start_anew=offsets.follow_anew,
            ),
            _Item(
                "delay progress",
                MasterCalls.delays,
                self._take_delays,
                progress=True,
                start_anew=delays.follow_anew,
            ),
            _Item("groups", self._ask_groups, self._take_groups, PAGED_LIMIT_S),
            _Item("request modes", MasterCalls.modes, self._take_modes),
        ]
        if self._timer is not None:
            made.append(_Item("timer counts", MasterCalls.counts, self._take_counts))
            made.append(
                _Item(
                    "timer progress",
                    MasterCalls.checkpoint,
                    self._take_checkpoint,
                    progress=True,
                    start_anew=self._timer.follow_anew,
                )
            )
        return made

    async def _ask_topics(self, calls: MasterCalls) -> Any:
        return await calls.topics(self._tables.topics.table.version)

    async def _ask_groups(self, calls: MasterCalls) -> Any:
        return await calls.groups(self._tables.groups.table.version)

    async def _take_topics(self, value: Any, _returned: bool) -> bool:
        file = self._tables.topics
        if value is not None:
            if is_older(_version_of(value), file.table.version):
                return False
            count = file.table.take_over(value)
            log.info("%d topics changed as at the master", count)
            if value.get("topicQueueMappingDetailMap"):
                log.warning(
                    "the master has logical queues (static topics); they are not copied: %s",
                    ", ".join(sorted(value["topicQueueMappingDetailMap"])),
                )
        await self._saved(file)
        return True

    async def _take_groups(self, value: Any, _returned: bool) -> bool:
        file = self._tables.groups
        if value is not None:
            if is_older(_version_of(value), file.table.version):
                return False
            log.info("%d groups changed as at the master", file.table.take_over(value))
        await self._saved(file)
        return True

    async def _take_offsets(self, value: Any, returned: bool) -> bool:
        is_newest = self._tables.offsets.table.take_over(value, returned=returned)
        await self._saved(self._tables.offsets)
        return is_newest

    async def _take_delays(self, value: Any, _returned: bool) -> bool:
        is_newest = self._tables.delays.table.take_over(value)
        await self._saved(self._tables.delays)
        return is_newest

    async def _take_modes(self, value: Any, _returned: bool) -> bool:
        self._tables.modes.table.take_over(value)
        await self._saved(self._tables.modes)
        return True

    async def _take_counts(self, value: Any, _returned: bool) -> bool:
        assert self._timer is not None, "asked for with timers only"
        await self._timer.take_counts(value)
        return True

    async def _take_checkpoint(self, value: Any, _returned: bool) -> bool:
        assert self._timer is not None, "asked for with timers only"
        return await self._timer.take_checkpoint(value)

    async def _saved(self, file: LoadedStateFile[Any]) -> None:
        """Save what has changed; StoreError if that fails."""
        error = await self._saver.save(file)
        if error is not None:
            raise error


def _version_of(value: Any) -> DataVersion:
    if not isinstance(value, dict):
        raise BodyError("the master's answer is no table")
    return bodies.structure(DataVersion, value.get("dataVersion") or {})
