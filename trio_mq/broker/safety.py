"""When a put may be answered: once the disk and enough replicas have it.

In: the log offset behind what was put. Out: a :class:`PutStatus`, once it is known; and, before anything is stored,
whether there are too few replicas to store it at all. The disk (SYNC_FLUSH) and the replicas (SYNC_MASTER) are waited
for side by side. Called by the remoting face, the send processor and :class:`trio_mq.broker.put.Putter`; all of it runs
on the loop's thread and waits for nothing itself. Rules and their order: Apache CommitLog.asyncPutMessage,
calcNeedAckNums, handleDiskFlushAndHA.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from trio_mq.broker.promises import wants_to_wait
from trio_mq.config.ha import BrokerRole, HASettings
from trio_mq.errors import RequestRefused
from trio_mq.protocol.codes import ResponseCode
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.safety")

#: Slaves that a remark names; the rest are in the status.
NAMED_SLAVES = 3


class PutStatus(enum.Enum):
    """What has become of a put, with the code it is answered with (Apache: PutMessageStatus).

    With the last one nothing was stored; with all others the message is stored and will be delivered.
    """

    PUT_OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    IN_SYNC_REPLICAS_NOT_ENOUGH = ResponseCode.SYSTEM_ERROR

    @property
    def code(self) -> ResponseCode:
        """The response code of this status."""
        return self.value


class Slave(Protocol):
    """A connected slave, as remarks tell of it."""

    @property
    def address(self) -> object:
        """Where it connected from."""
        ...

    @property
    def ack_offset(self) -> int:
        """Log offset up to which it has told to have everything; -1 before it has told anything."""
        ...

    @property
    def ahead(self) -> bool:
        """Whether it was sent away, since it has what this broker has not; nothing of it counts then."""
        ...


class Replicas(Protocol):
    """The slaves of this broker (:class:`trio_mq.ha.primary.Primary`)."""

    @property
    def slaves(self) -> Sequence[Slave]:
        """All that are connected."""
        ...

    @property
    def in_sync_count(self) -> int:
        """This broker, and the slaves that are not too far behind."""
        ...

    def wait_for(self, end: int, needed: int, done: Callable[[bool], None]) -> None:
        """Call `done(True)` once `needed` brokers, this one included, have all before `end`; `done(False)` after
        the time limit."""
        ...


Done = Callable[[PutStatus], None]


class Safety:
    """Says when puts are safe; without `replicas` only the disk counts, and SYNC_MASTER is not allowed to want more."""

    def __init__(
        self, store: Store, settings: HASettings | None = None, replicas: Replicas | None = None
    ) -> None:
        self._store = store
        self._settings = mine = settings or HASettings()
        self._replicas = replicas
        is_sync_master = mine.role is BrokerRole.SYNC_MASTER
        self._lowers = mine.enable_slave_acting_master and mine.enable_auto_in_sync_replicas
        most = max(mine.in_sync_replicas, mine.min_in_sync_replicas if self._lowers else 1)
        #: Whether puts wait for replicas, for all that these settings say.
        self.waits_for_replicas = is_sync_master and (most > 1 or mine.all_ack_in_sync_state_set)
        #: Whether puts wait for anything: without it, every put is safe as soon as it is written.
        self.waits = store.is_sync or self.waits_for_replicas
        #: Whether puts can be refused for want of replicas.
        self.may_refuse = is_sync_master and most > 1 and mine.enable_slave_acting_master
        assert replicas is not None or not self.waits_for_replicas, "nobody to wait for"
        #: How many brokers of this name live, as name servers know, None if nobody knows.
        self.alive_replicas: Callable[[], int | None] = lambda: None

    # -- before anything is stored ---------------------------------------------------------------------------

    def wanted(self, props: bytes) -> bool:
        """Whether the sender of a message wants to wait; raises as :meth:`check` if too few replicas are there."""
        if not wants_to_wait(props):
            return False
        if self.may_refuse:
            self.check()
        return True

    def check(self) -> None:
        """Raise RequestRefused, as IN_SYNC_REPLICAS_NOT_ENOUGH, if too few replicas are there to store anything.

        Not to be asked for messages that wait for nothing (WAIT=false).
        """
        refusal = self.refusal()
        if refusal is not None:
            raise RequestRefused(PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH.code, refusal)

    def refusal(self) -> str | None:
        """Why nothing is stored that wants replicas, None if it is."""
        if not self.may_refuse:
            return None
        needed, in_sync = self._needed(), self._in_sync()
        if needed <= in_sync:
            return None
        key = "minInSyncReplicas" if self._lowers else "inSyncReplicas"
        return (
            f"not stored: in-sync replicas not enough, {in_sync} of the {needed} that {key} asks for "
            f"(this broker included); {self._who_lacks(self._store.log.end)}"
        )

    def _in_sync(self) -> int:
        assert self._replicas is not None
        in_sync, alive = self._replicas.in_sync_count, self.alive_replicas()
        return in_sync if alive is None else min(alive, in_sync)

    def _needed(self) -> int:
        """How many brokers have to have a put, this one included."""
        mine = self._settings
        if not self._lowers:
            return mine.in_sync_replicas
        return max(min(mine.in_sync_replicas, self._in_sync()), mine.min_in_sync_replicas)

    # -- after it is stored ----------------------------------------------------------------------------------

    def when_safe(self, end: int, done: Done) -> None:
        """Call `done` once all before log offset `end` is as safe as the settings ask, or is late. Maybe at once.

        A replica that is late is told at once: that overrides whatever the disk does. An `end` of 0 is that of nothing.
        """
        needed = self._acks_needed() if self.waits_for_replicas and end else 1
        if needed <= 1:
            if self._store.is_sync:
                self._store.flusher.wait_durable(end, partial(_tell_disk, done))
            else:
                done(PutStatus.PUT_OK)
            return
        assert self._replicas is not None
        if not self._store.is_sync:
            self._replicas.wait_for(end, needed, partial(_tell_replicas, done))
            return
        both = _Both(done)
        self._store.flusher.wait_durable(end, both.disk)
        self._replicas.wait_for(end, needed, both.replicas)

    def _acks_needed(self) -> int:
        """What a put waits for: :meth:`_needed`, or with `allAckInSyncStateSet` all in sync, if that is more."""
        needed = self._needed()
        if self._settings.all_ack_in_sync_state_set and self._replicas is not None:
            return max(needed, self._replicas.in_sync_count)
        return needed

    def is_on_disk(self, end: int) -> bool:
        """Whether this broker's own disk has all before `end` as safe as the settings ask."""
        store = self._store
        return not store.is_sync or store.log.durable.value >= end

    # -- texts -----------------------------------------------------------------------------------------------

    def remark(self, status: PutStatus, end: int) -> str | None:
        """What whoever is told `status` of a put that ends at `end` should know; None for a success."""
        if status is PutStatus.PUT_OK:
            return None
        if status is PutStatus.FLUSH_DISK_TIMEOUT:
            return f"stored, but not known to be on the disk: {self._store.flusher.slow_text()}"
        if status is PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH:
            return self.refusal()
        assert self._replicas is not None
        have = sum(_has(slave, end) for slave in self._replicas.slaves)
        others = f"this broker and {have} slaves have" if have else "this broker has"
        return (
            f"stored, but only {others} it after {self._settings.slave_timeout_ms} ms (slaveTimeout): "
            f"{self._who_lacks(end)}"
        )

    def _who_lacks(self, end: int) -> str:
        """Which slaves lack how much of all before `end`, and what can be done."""
        assert self._replicas is not None
        slaves = self._replicas.slaves
        if not slaves:
            return (
                "no slave is connected; start one, or see in its log why it does not reach this "
                "broker's haListenPort"
            )
        late = [_lack(slave, end) for slave in slaves if not _has(slave, end)]
        if not late:
            return "all slaves that are connected have it; start one more"
        named = ", ".join(late[:NAMED_SLAVES])
        more = f" and {len(late) - NAMED_SLAVES} more" if len(late) > NAMED_SLAVES else ""
        return f"slave {named}{more}; see `trio-mq status` for how fast they copy"


class _Both:
    """One put that waits for disk and replicas."""

    __slots__ = ("_disk", "_done", "_replicas")

    def __init__(self, done: Done) -> None:
        self._done: Done | None = done
        self._disk: bool | None = None
        self._replicas: bool | None = None

    def disk(self, in_time: bool) -> None:
        self._disk = in_time
        self._look()

    def replicas(self, in_time: bool) -> None:
        self._replicas = in_time
        self._look()

    def _look(self) -> None:
        done = self._done
        if done is None:
            return
        if self._replicas is False:
            status = PutStatus.FLUSH_SLAVE_TIMEOUT
        elif self._replicas is None or self._disk is None:
            return
        else:
            status = PutStatus.PUT_OK if self._disk else PutStatus.FLUSH_DISK_TIMEOUT
        self._done = None
        done(status)


def _has(slave: Slave, end: int) -> bool:
    return slave.ack_offset >= end and not slave.ahead


def _lack(slave: Slave, end: int) -> str:
    if slave.ahead:
        return f"{slave.address} is ahead of this broker, and refused"
    if slave.ack_offset < 0:
        return f"{slave.address} has not told yet what it has"
    return f"{slave.address} lacks {end - slave.ack_offset} bytes"


def _tell_disk(done: Done, in_time: bool) -> None:
    done(PutStatus.PUT_OK if in_time else PutStatus.FLUSH_DISK_TIMEOUT)


def _tell_replicas(done: Done, in_time: bool) -> None:
    done(PutStatus.PUT_OK if in_time else PutStatus.FLUSH_SLAVE_TIMEOUT)
