"""What has to be true of master and slaves at every moment of a run.

In: the parts of running brokers, whenever something may have changed, and what senders were told. Out: AssertionError
with what is wrong. The truth about a master's log is kept here, byte by byte: each life that begins with less than the
last one had begins another history, and a slave has to have the beginning of one of them, from where its log begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

from tests.recovery.stores import messages
from trio_mq.config.store import FlushDiskType
from trio_mq.ha.states import LinkState
from trio_mq.store.store import Store
from trio_mq.system import Inside
from trio_mq.tasks import Watermark
from trio_mq.testing.nodes import BrokerNode

#: A record is not longer than that.
MOST_RECORD_BYTES: Final = 4000


def _after(store: Store, look: Callable[[], None]) -> None:
    """Look each time that a log has grown, before anybody else does anything about it."""
    grown = store.grown

    def looking() -> None:
        look()
        if grown is not None:
            grown()

    store.grown = looking


def log_bytes(store: Store, begin: int, end: int) -> bytes:
    """What a log has there."""
    parts = []
    while begin < end:
        part = store.log.read(end - begin, begin)
        assert part, (
            f"the log has nothing at {begin}, though it goes from {store.log.start} to {store.log.written}"
        )
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


@attrs.frozen
class Acked:
    """A message of which a sender was told that it is stored."""

    body: bytes
    begin: int
    end: int
    record: bytes
    #: The slaves that had it then.
    slaves: tuple[str, ...]


class Pushed(Watermark):
    """What a master believes that a slave has (push2SlaveMaxOffset): never more than one really has."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def advance(self, to: int) -> None:
        """See :class:`Watermark`."""
        self._watch.pushed(to)
        super().advance(to)


class Master:
    """A master's log in all its lives."""

    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.is_lossy = False
        #: How much of its log survives the power cut that it had; None for all, as after a kill.
        self.sure: int | None = None
        #: While its process lives.
        self.store: Store | None = None
        #: What each history had at most; all begin at offset 0.
        self.histories: list[bytearray] = [bytearray()]

    @property
    def log(self) -> bytearray:
        """What it has now, or had when it went down."""
        return self.histories[-1]

    def begin(self, store: Store) -> None:
        """A life begins, with less than there was if what was not synced is gone."""
        has, end = self.log, store.log.written
        expired = store.log.start  # a disk that is full makes the oldest files go
        found = bytes(has[:expired]) + log_bytes(store, expired, end)
        same = min(end, len(has))
        sure = len(has) if self.sure is None else self.sure
        assert found[:sure] == has[:sure], (
            f"{sure} bytes were sure, and {len(found)} are there, or others"
        )
        self.sure = None
        if found[:same] != has[:same] or end != len(has):
            self.histories.append(bytearray(found))

    def look(self) -> None:
        """Take over what has come."""
        store = self.store
        if store is None:
            return
        has, end = self.log, store.log.written
        assert end >= len(has), f"the master's log went back from {len(has)} to {end} while it ran"
        if end > len(has):
            has += log_bytes(store, len(has), end)


class Slave:
    """A slave's log, and what must not go back in one life."""

    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self.start = 0
        self.has = bytearray()
        #: While its process lives.
        self.store: Store | None = None
        #: While some of its log is cut off, which takes a while.
        self.is_being_cut = False
        #: How much of its log was found to be that of each history, and where it differs.
        self._same: dict[int, int] = {}
        #: Highest log end that it ever really had, as it reports it.
        self.best = 0
        self.is_lossy = False
        self._queues: dict[tuple[str, int], int] = {}

    @property
    def end(self) -> int:
        """Where its log ends."""
        return self.start + len(self.has)

    def begin(self, store: Store) -> None:
        """A life begins."""
        self._queues.clear()
        self.is_being_cut = False
        # Where an empty log was to begin is no byte yet: that may be forgotten.
        kept = self.best if store.is_sync and self.best > self.start else 0
        self._reset(store)
        # What it reported was durable. (A torn record at the end was, too, and is cut off all the same.)
        assert store.log.written >= kept - MOST_RECORD_BYTES, (
            f"it reported {kept} as durable, and came back with {store.log.written}"
        )

    def cut(self, store: Store, *, on_purpose: bool) -> None:
        """The log was cut: `on_purpose` as haCutWhenAhead has it, or what of a record was torn."""
        lost = self.end - store.log.written
        assert on_purpose or lost < MOST_RECORD_BYTES, f"{self.node}: {lost} bytes were cut"
        if on_purpose:
            self._queues.clear()
        self._reset(store)

    def _reset(self, store: Store) -> None:
        self.start, self.has = store.log.start, bytearray()
        self._same.clear()

    def look(self, store: Store, master: Master) -> None:
        """See that its log is the beginning of one of the master's histories, and what must not go back."""
        end = store.log.written
        if store.log.start != self.start and not self.has:
            self.start = store.log.start
        if end < self.end and not self.node.running and self.end - end < MOST_RECORD_BYTES:
            self._reset(store)  # on its way down: what of a record was torn is cut
        assert end >= self.end, f"the log went back from {self.end} to {end} while it ran"
        if end > self.end:
            self.has += log_bytes(store, self.end, end)
        self.best = max(self.best, store.confirmed)
        self._check_prefix(master)
        for queue in store.queues:
            key = queue.topic, queue.queue_id
            before = self._queues.get(key, 0)
            assert queue.max_offset >= before, (
                f"{self.node}: max offset of {key} went back from {before} to {queue.max_offset}"
            )
            self._queues[key] = queue.max_offset

    def _check_prefix(self, master: Master) -> None:
        if not self.has:
            return
        found = [self._agrees(number, history) for number, history in enumerate(master.histories)]
        if not any(found):
            most = max(self._same.values(), default=self.start)
            ends = [len(history) for history in master.histories]
            raise AssertionError(
                f"{self.node}: the log from {self.start} to {self.end} is that of no master: the best history agrees "
                f"up to {most}; they end at {ends}"
            )

    def _agrees(self, number: int, history: bytearray) -> bool:
        """Whether all of the slave's log is in a history."""
        done = self._same.get(number, self.start)
        upto = min(self.end, len(history))
        mine = self.has[done - self.start : upto - self.start]
        if done < upto and mine == history[done:upto]:
            self._same[number] = done = upto
        return done == self.end

    def follows(self, history: bytearray) -> bool:
        """Whether its log continues with a history as it is now."""
        return history[self.start : self.end] == self.has

    def shares_a_record(self, history: bytearray, begin: int) -> bool:
        """Whether there is a record to cut its log back to; it begins there now, after its oldest files expired."""
        first = self.has[begin - self.start :]
        size = int.from_bytes(first[:4], "big")
        return size > 0 and history[begin:][:size] == first[:size]

    def has_record(self, begin: int, record: bytes) -> bool:
        """Whether it has a record of the master's."""
        at = begin - self.start
        return at >= 0 and self.has[at : at + len(record)] == record


@attrs.define(eq=False)
class Watch:
    """All of a run."""

    master: Master
    slaves: list[Slave]
    needed: int
    may_cut: bool = False
    acked: list[Acked] = attrs.field(factory=list)
    #: What was wrong where an error would end a connection only.
    broken: str = ""
    #: How many slaves' processes were started, at what times.
    starts_s: list[float] = attrs.field(factory=list)

    def attach(self) -> None:
        """Be told of each start of a broker."""
        self.master.node.opened = self._master_opened
        for slave in self.slaves:
            slave.node.opened = lambda inside, slave=slave: self._slave_opened(slave, inside)

    def _master_opened(self, inside: Inside) -> None:
        store = self.master.store = inside.store
        self.master.begin(store)
        inside.replication.primary.pushed = Pushed(self)
        _after(store, self.master.look)

    def _slave_opened(self, slave: Slave, inside: Inside) -> None:
        self.starts_s.append(trio.current_time())
        store = slave.store = inside.store
        slave.begin(store)
        _after(store, lambda: self._look_at(slave, store))
        copy = inside.replication.copy
        assert copy is not None, "a slave has its copy"
        cut_to = copy.cut_to

        async def cutting(offset: int) -> None:
            self._look_at(slave, store)
            slave.is_being_cut = True
            await cut_to(offset)
            slave.is_being_cut = False
            slave.cut(store, on_purpose=self.may_cut)

        copy.cut_to = cutting  # type: ignore[method-assign]

    def _look_at(self, slave: Slave, store: Store) -> None:
        if slave.is_being_cut:
            return
        self.master.look()  # the blank at the end of a file comes without a message
        slave.look(store, self.master)

    def pushed(self, to: int) -> None:
        """The master believes that a slave has all before `to`."""
        for slave in self.slaves:
            if slave.store is not None:
                slave.best = max(slave.best, slave.store.confirmed)
        best = max(slave.best for slave in self.slaves)
        if to > best and not self.broken:
            self.broken = (
                f"the master takes {to} for acknowledged; no slave ever had more than {best}"
            )

    def look(self) -> None:
        """See to all brokers that run."""
        assert not self.broken, self.broken
        for slave in self.slaves:
            if slave.store is not None:
                self._look_at(slave, slave.store)

    def down(self, node: BrokerNode, *, lossy: bool = False) -> None:
        """A machine goes down now, or has gone; `lossy` by a power cut."""
        self.look()
        if node is self.master.node:
            store = self.master.store
            if lossy:  # with ASYNC_FLUSH what was synced is not looked at that closely
                self.master.sure = store.log.durable.value if store and store.is_sync else 0
            self.master.store = None
        for slave in self.slaves:
            if slave.node is node and slave.store is not None:
                slave.best, slave.store = max(slave.best, slave.store.confirmed), None
        is_sync = node.settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
        for side in (self.master, *self.slaves):
            if side.node is node and lossy and not is_sync:
                side.is_lossy = True

    def stored(self, body: bytes, begin: int) -> None:
        """A sender was told that its message is as safe as the settings ask."""
        self.look()
        self.master.look()
        size = int.from_bytes(self.master.log[begin : begin + 4], "big")
        record = bytes(self.master.log[begin : begin + size])
        assert body in record, f"a send was told the place {begin}, where it is not"
        having = tuple(s.node.host for s in self.slaves if s.has_record(begin, record))
        assert len(having) >= self.needed, f"acknowledged at {begin}, and no slave has it"
        self.acked.append(Acked(body, begin, begin + size, record, having))

    def check_acked(self) -> None:
        """Each acknowledged message is on each side that had it and that has lost nothing since."""
        for one in self.acked:
            if not self.master.is_lossy:
                assert self.master.log[one.begin : one.end] == one.record, f"lost: {one.body!r}"
            for slave in self.slaves:
                is_sure = slave.node.host in one.slaves and not slave.is_lossy
                if is_sure and not self.may_cut and one.begin >= slave.start:
                    there = slave.has_record(one.begin, one.record)
                    assert there, f"{slave.node} has lost {one.body[:20]!r} at {one.begin}"


def check_reads(watch: Watch) -> int:
    """What consumers find at each slave that follows is what they find at the master; how many slaves do follow."""
    following = 0
    master = running(watch.master.node)
    assert master is not None, "both ends agree, so they run"
    for slave in watch.slaves:
        inside = running(slave.node)
        assert inside is not None, "both ends agree, so they run"
        if not slave.follows(watch.master.log) or slave.end != master.store.log.written:
            continue
        following += 1
        begin = max(inside.store.log.start, master.store.log.start)
        for queue in inside.store.queues:
            place = queue.topic, queue.queue_id
            found, expected = (
                [m.log_offset for m in messages(store, *place) if m.log_offset >= begin]
                for store in (inside.store, master.store)
            )
            assert found == expected, (
                f"{slave.node}: consumers find {found} in {place}, not {expected}"
            )
    return following


def running(node: BrokerNode) -> Inside | None:
    """The parts of a broker that serves."""
    return node.inside if node.running else None


def disagreement(watch: Watch) -> str | None:
    """Why both ends do not agree yet; None if they do, or if a slave says that it cannot."""
    master = running(watch.master.node)
    if master is None:
        return "the master does not run"
    for slave in watch.slaves:
        inside = running(slave.node)
        if inside is None:
            return f"{slave.node} does not run"
        why = _slave_disagrees(watch, slave, master, inside)
        if why is not None:
            return f"{slave.node}: {why}"
    return None


def _slave_disagrees(watch: Watch, slave: Slave, master: Inside, inside: Inside) -> str | None:
    replica = inside.replication.replica
    assert replica is not None, "a slave has its replica"
    state, end = replica.state, master.store.log.written
    is_stopped = state.state is LinkState.SUSPEND and bool(replica.view.last_error)
    if slave.has and slave.end < master.store.log.start:
        # what it lacks has expired at a full disk: that is visible at its next check, or here while its link lives
        is_told = "nothing has come from the master" in state.reason
        views = master.replication.primary.slaves
        is_too_old = any(view.too_old and view.ack_offset == slave.end for view in views)
        if is_stopped or (is_told and is_too_old):
            return None
    if slave.has and not slave.follows(watch.master.log):
        begin = max(slave.start, inside.store.log.start)
        if is_stopped and not (watch.may_cut and slave.shares_a_record(watch.master.log, begin)):
            return None
        return f"its log is not the master's, and the link is {state.state.name}: {state.reason}"
    if slave.end != end:
        return f"its log ends at {slave.end}, the master's at {end}; {state.state.name}, {state.reason}"
    if state.state is not LinkState.TRANSFER:
        return f"the link is {state.state.name}: {state.reason}"
    copy = inside.replication.copy
    if copy is None or copy.dispatched != end:
        return f"its queues are at {copy and copy.dispatched}, of {end}"
    acks = [view.ack_offset for view in master.replication.primary.slaves if view.in_sync]
    if end not in acks:
        return f"the master knows {acks} of its slaves, at {end}"
    return _queues_differ(slave, master.store, inside.store)


def _queues_differ(slave: Slave, theirs: Store, ours: Store) -> str | None:
    expected = {(q.topic, q.queue_id): q.max_offset for q in theirs.queues if q.max_offset}
    found = {(queue.topic, queue.queue_id): queue.max_offset for queue in ours.queues}
    if slave.start:  # queues that have nothing in the part that it copied are not known there
        expected = {key: offset for key, offset in expected.items() if key in found}
    return None if found == expected else f"queues {found}, the master has {expected}"
