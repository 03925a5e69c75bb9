"""The connection of one slave: its reports come in, the log from where it asks goes out.

In: a stream, the log, and a bell that rings when the log has grown. Out: pieces of the log and heartbeats to the
slave, and :attr:`SlaveLink.ack` for :mod:`trio_mq.ha.primary`, which makes one per connection. Owns a nursery with a
reader and a writer; when either ends, so does the other, and nothing else.
Format: :mod:`trio_mq.protocol.replication`; source: Apache DefaultHAConnection.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from trio_mq.config.ha import HASettings
from trio_mq.ha.flow import Flow, Meter
from trio_mq.ha.states import LinkState, StateWatch
from trio_mq.net.streams import BROKEN, RawStream
from trio_mq.protocol.message import Host
from trio_mq.protocol.replication import (
    ReportReader,
    encode_header,
    first_offset,
)
from trio_mq.store.log import CommitLog
from trio_mq.store.segments import ColdData

log = logging.getLogger("trio_mq.ha")

#: Most bytes of the log that are read and sent at once, in one piece or several. From 128 KiB on the allocator maps
#: fresh pages for each read, which costs more than all else: 375 MB/s of a core's time in place of 1,100.
SEND_BYTES: Final = 96 * 1024
#: What the system is asked to fetch ahead from the disk when a slave reads what is not in memory.
AHEAD_BYTES: Final = 8 * 1024 * 1024
_RECEIVE_BYTES: Final = 4096
#: States that a slave in controller mode (AutoSwitchHA) begins its 16 and 12 byte messages with.
_CONTROLLER_STATES: Final = (1, 2)


class Bell:
    """Wakes all that wait for it; ringing costs next to nothing when nobody does."""

    def __init__(self) -> None:
        self._event: trio.Event | None = None

    def ring(self) -> None:
        """Wake all that wait now."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self, until_s: float = math.inf) -> None:
        """Wait for the next ring, or for a time. Cancelling leaves nothing behind."""
        if self._event is None:
            self._event = trio.Event()
        with trio.move_on_at(until_s):
            await self._event.wait()


class LinkOver(Exception):
    """Why a connection ends."""


class SlaveAhead(LinkOver):
    """A slave reports more than this log has."""

    def __init__(self, reported: int, log_end: int) -> None:
        hint = ""
        if reported >> 32 in _CONTROLLER_STATES and log_end < 1 << 32:
            hint = "; it may be a slave in controller mode (AutoSwitchHA), which is not spoken here"
        super().__init__(
            f"it reports the log end {reported}, but the log of this master ends at {log_end}{hint}"
        )
        self.reported = reported


def pieces(data: bytes, offset: int, most: int) -> bytes:
    """Bytes of the log from `offset` on as pieces of at most `most` bytes."""
    if len(data) <= most:
        return encode_header(offset, len(data)) + data
    view = memoryview(data)
    parts: list[bytes | memoryview] = []
    for at in range(0, len(data), most):
        part = view[at : at + most]
        parts += [encode_header(offset + at, len(part)), part]
    return b"".join(parts)


class SlaveLink:
    """One connection; `acked` is called with it after each report, all on the loop's thread."""

    def __init__(
        self,
        commit_log: CommitLog,
        settings: HASettings,
        stream: RawStream,
        peer: Host,
        grown: Bell,
        acked: Callable[[SlaveLink], None],
    ) -> None:
        now_s = trio.current_time()
        self.peer = peer
        self.state = StateWatch(f"slave {peer}", LinkState.TRANSFER)
        #: Where the slave's log ends by its last report; -1 before the first one.
        self.ack = -1
        #: What it is sent next, and was sent first; -1 before its first report.
        self.next = self.transfer_from = -1
        #: Where its log begins, if it was empty when it connected: a record before has not been copied, whatever the
        #: slave reports. (Apache counts it for those who wait for such a record.)
        self.floor = 0
        #: Whether it lacks bytes that this log does not have any more.
        self.too_old = False
        self.meter = Meter(now_s)
        self.last_report_s = now_s
        self._log = commit_log
        self._cuts = commit_log.cuts
        self._settings = settings
        self._stream = stream
        self._grown = grown
        self._acked = acked
        self._requested = trio.Event()
        limit = settings.max_transfer_byte_in_second if settings.flow_control_enable else None
        self._flow = Flow(limit, now_s)
        batch = settings.transfer_batch_size
        self._batch = batch
        self._chunk = SEND_BYTES // batch * batch or SEND_BYTES
        self._heartbeat_s = settings.send_heartbeat_interval_ms / 1000
        self._limit_s = settings.housekeeping_interval_ms / 1000
        self._sent_s = now_s
        self._sending = trio.CancelScope()

    async def run(self) -> LinkOver:
        """Serve the slave; returns why that ended. What the slave, the network or a disk does raises nothing."""
        reasons: list[LinkOver] = []

        async def to_its_end(task: Callable[[], Awaitable[LinkOver]]) -> None:
            try:
                reasons.append(await task())
            except BROKEN:
                reasons.append(LinkOver("the connection broke"))
            except OSError as error:
                log.error("slave %s: the log cannot be read at %d: %s", self.peer, self.next, error)
                reasons.append(LinkOver(f"reading the log failed: {error}"))
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(to_its_end, self._read)
            nursery.start_soon(to_its_end, self._write)
        return reasons[0]

    # -- reports -----------------------------------------------------------------------------------------------

    async def _read(self) -> LinkOver:
        reports = ReportReader()
        while True:
            with trio.move_on_at(self.last_report_s + self._limit_s):
                data = await self._stream.receive_some(_RECEIVE_BYTES)
                if not data:
                    return LinkOver("the slave has closed it")
                offsets = reports.feed(data)
                for offset in offsets:
                    if not 0 <= offset <= self._log.written:
                        return _refused(offset, self._log.written)
                if offsets:
                    self._take(offsets)
                continue
            # A report that is cut in half for so long is none.
            log.warning("slave %s has reported nothing for %g s", self.peer, self._limit_s)
            return LinkOver(f"no report for {self._limit_s:g} s (haHousekeepingInterval)")

    def _take(self, offsets: list[int]) -> None:
        self.last_report_s = trio.current_time()
        if not self._requested.is_set():
            self._begin(offsets[0])
        if offsets[-1] > self.ack and self._sending.deadline < math.inf:
            self._sending.deadline = self.last_report_s + self._limit_s
        self.ack = offsets[-1]
        self._acked(self)

    def _begin(self, reported: int) -> None:
        commit_log = self._log
        self.next = self.transfer_from = first_offset(
            reported,
            log_start=commit_log.start,
            log_end=commit_log.written,
            segment_bytes=commit_log.segments.segment_bytes,
            from_start=self._settings.replicate_from_start,
        )
        left_out = self.next - commit_log.start
        if reported == 0:
            self.floor = self.next
        if reported == 0 and left_out > 0:
            log.warning(
                "slave %s is empty and gets the log from %d on, the newest file: %d bytes before are not "
                "replicated (haReplicateFromStart=true replicates all)",
                *(self.peer, self.next, left_out),
            )
        else:
            log.info("slave %s: the log goes to it from %d on", self.peer, self.next)
        self._requested.set()

    # -- the log -----------------------------------------------------------------------------------------------

    async def _write(self) -> LinkOver:
        with self._sending:
            await self._requested.wait()
            while True:
                if self._log.cuts != self._cuts or self.next > self._log.written:
                    # It may have grown again since: what the slave has is not what is here now.
                    return LinkOver(f"the log was cut, it ends at {self._log.written} now")
                is_behind = self.next < self._log.written and not self.too_old
                if is_behind and await self._send_log():
                    continue
                now_s = trio.current_time()
                due_s = self._sent_s + self._heartbeat_s
                if now_s >= due_s:
                    await self._send(encode_header(self.next, 0))
                elif is_behind and not self.too_old:
                    await trio.sleep_until(min(due_s, self._flow.ready_s(now_s)))
                else:
                    await self._grown.wait(due_s)
        log.warning("slave %s has taken nothing for %g s", self.peer, self._limit_s)
        return LinkOver(f"no progress in sending for {self._limit_s:g} s")

    async def _send_log(self) -> bool:
        """Send what is there and allowed now; False when that is nothing."""
        size = self._flow.room(self._chunk, trio.current_time())
        if not size:
            return False
        data = await self._read_log(size)
        if not data:
            self.too_old = True
            log.error(
                "slave %s needs the log from %d on, but this master's begins at %d: it gets no more. Empty "
                "the store of that slave, and start it again",
                *(self.peer, self.next, self._log.start),
            )
            return False
        if self._log.cuts != self._cuts:
            return True  # while the disk was waited for
        offset, self.next = self.next, self.next + len(data)
        sent = pieces(data, offset, self._batch)
        await self._send(sent)
        # Heartbeats are free: they must not wait, nor keep the log waiting.
        self._flow.sent(len(sent), self._sent_s)
        return True

    async def _read_log(self, size: int) -> bytes:
        """The next bytes, from one segment; none when they are not there any more."""
        try:
            return self._log.read(size, self.next)
        except ColdData as cold:
            self._log.segments.will_need(AHEAD_BYTES, self.next)
            # What it reads is taken as it is: a cache that is too small for all would lose it again.
            data = await self._log.disk.run(cold.warm)
            assert isinstance(data, bytes)
            return data

    async def _send(self, data: bytes) -> None:
        # Until the end of a send, or a report of more than before, nobody can tell whether the slave takes anything.
        self._sending.deadline = trio.current_time() + self._limit_s
        await self._stream.send_all(data)
        self._sending.deadline = math.inf
        self._sent_s = trio.current_time()
        self.meter.add(len(data), self._sent_s)


def _refused(offset: int, log_end: int) -> LinkOver:
    if offset > log_end:
        return SlaveAhead(offset, log_end)
    return LinkOver(f"it reports {offset}, which is no offset")
