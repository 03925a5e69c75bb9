"""The store as the rest of the broker sees it: append, commit, read, query, and the tasks that keep it going.

In: messages from the send processor, reads from pull and query. Out: log offsets, stored bytes. A store is made by
recovery only: :func:`open_parts` takes the lock and finds the files, recovery repairs them, and
:class:`Store` is what may be appended to. All but :meth:`Store.run` and :meth:`Store.close` is synchronous.
Sources: Apache DefaultMessageStore, CommitLog.asyncPutMessage.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from struct import Struct

import attrs
import trio

from trio_mq.clock import Clock
from trio_mq.config import StoreSettings
from trio_mq.errors import ConfigError, LocalProtocolError, StoreFull
from trio_mq.protocol.layout import BLANK_HEADER_SIZE
from trio_mq.protocol.message import Host, tags_code_of
from trio_mq.protocol.properties import get as get_property
from trio_mq.protocol.record import pack
from trio_mq.store.checkpoint import AbortMarker, CheckpointFile, take_lock
from trio_mq.store.cleaner import Cleaner
from trio_mq.store.disk import DirectoryLock, Disk
from trio_mq.store.dispatch import Dispatcher, Stored
from trio_mq.store.flush import Flusher
from trio_mq.store.index import KeyIndex
from trio_mq.store.log import CommitLog
from trio_mq.store.multidispatch import QUEUE_ID, MultiDispatch, further_queues
from trio_mq.store.packed import Packed
from trio_mq.store.queues import BaseQueue
from trio_mq.store.queuetable import QueueTable
from trio_mq.store.reader import Reader
from trio_mq.store.times import Times

log = logging.getLogger("trio_mq.store")

#: Time that a clean stop gives to each of its steps.
CLOSE_LIMIT_S = 5.0
#: What senders are told by a store that copies another one.
FOLLOWS = "this broker is a slave, it takes no messages; send them to the master"
#: Where a record says its own log offset.
_LOG_OFFSET_AT = 28
_LONG = Struct(">q")


@attrs.frozen(eq=False)
class StoreParts:
    """The files of a store, found and locked, but not looked into yet: nothing can be appended to it."""

    disk: Disk
    root: str
    settings: StoreSettings
    clock: Clock
    lock: DirectoryLock
    log: CommitLog
    queues: QueueTable
    index: KeyIndex
    checkpoint: CheckpointFile
    abort: AbortMarker

    def release(self) -> None:
        """Close all files and give up the lock, leaving everything as it is."""
        self.log.segments.close()
        self.queues.pool.close()
        self.index.close()
        self.lock.release()


def open_parts(
    disk: Disk, settings: StoreSettings, clock: Clock, is_batch_topic: Callable[[str], bool]
) -> StoreParts:
    """Make the folder if need be, take the lock, and lay out the parts. Reads no file of the store before."""
    root = settings.path
    try:
        disk.make_dirs(root)
        lock = take_lock(disk, root)
    except OSError as error:
        raise ConfigError(
            f"cannot use the store folder {root}: {error.strerror}; choose another one with --store"
        ) from error
    try:
        return _lay_out(disk, settings, clock, lock, is_batch_topic)
    except BaseException:
        lock.release()
        raise


def _lay_out(
    disk: Disk,
    settings: StoreSettings,
    clock: Clock,
    lock: DirectoryLock,
    is_batch_topic: Callable[[str], bool],
) -> StoreParts:
    root = settings.path
    return StoreParts(
        disk=disk,
        root=root,
        settings=settings,
        clock=clock,
        lock=lock,
        log=CommitLog(disk, settings.commit_log_dir, settings.mapped_file_size_commit_log),
        queues=QueueTable(
            disk,
            root,
            queue_file_bytes=settings.mapped_file_size_consume_queue,
            batch_file_bytes=settings.mapped_file_size_batch_consume_queue,
            is_batch_topic=is_batch_topic,
        ),
        index=KeyIndex(
            disk,
            f"{root}/index",
            slots=settings.max_hash_slot_num,
            entries=settings.max_index_num,
            now_ms=clock.now_ms,
        ),
        checkpoint=CheckpointFile(disk, f"{root}/checkpoint"),
        abort=AbortMarker(disk, f"{root}/abort"),
    )


class Store:
    """A recovered store. One that `follows` another takes no messages: its log is a copy."""

    def __init__(
        self, parts: StoreParts, clock: Clock, host: Host, *, follows: bool = False
    ) -> None:
        settings = parts.settings
        self.parts = parts
        self.log = parts.log
        self.queues = parts.queues
        self.index = parts.index
        self.host = host
        self.reader = Reader(parts.log, settings)
        self.dispatcher = Dispatcher(
            parts.queues, parts.index, index_enabled=settings.message_index_enable
        )
        self.dispatcher.dispatched = parts.log.end
        self.cleaner = Cleaner(
            parts.log, parts.queues, parts.index, self.dispatcher, settings, clock
        )
        self.dispatcher.failed = self.cleaner.write_failed
        self.follows = follows
        if follows:
            self.cleaner.refuse_always(FOLLOWS)
        #: Called after the log has grown: replicas may have more of it.
        self.grown: Callable[[], None] | None = None
        #: With sync flush, called after records have become visible: the durable end has moved.
        self.confirmed_moved: Callable[[], None] | None = None
        #: Why the next start has to look at everything, whatever else a clean stop finds.
        self.unclean: str | None = None
        self.flusher = Flusher(
            parts.log, parts.queues, parts.index, self.dispatcher, parts.checkpoint, settings
        )
        self.flusher.durable_moved = self._durable_moved
        self.flusher.failed = self.cleaner.write_failed
        self._host_packed = host.packed
        self._host_flag = 0x20 if host.is_v6 else 0
        #: Records in the staging, in order, and what their sender called them.
        self._staged: list[Stored] = []
        self._tokens: list[object] = []
        #: Further queues of staged records, each with its next offset before.
        self._further: list[tuple[BaseQueue, int]] = []
        #: Offsets in several queues for one message (LMQ); None where that is off.
        self.multi: MultiDispatch | None = None
        if settings.enable_lmq:
            self.multi = MultiDispatch(parts.queues, settings.max_lmq_consume_queue_num)
            if settings.enable_multi_dispatch:
                self.dispatcher.further = partial(further_queues, obtain=self._light_queue)
        #: Written records that are not visible yet: under sync flush they have to be durable first.
        self._hidden: list[Stored] = []
        #: What senders called the records that could not be written; :meth:`commit` fills it.
        self.failed: list[object] = []
        #: How long writes to the log took.
        self.times = Times("writing to the commit log")
        self._last_ms = parts.log.newest_ms
        self.is_sync = self.flusher.is_sync

    @property
    def refusal(self) -> str | None:
        """Why no message is taken, None if they are."""
        return self.cleaner.refusal

    # -- writing ---------------------------------------------------------------------------------------------

    def append(
        self,
        queue: BaseQueue,
        body: bytes,
        props: bytes,
        *,
        token: object,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp_ms: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        count: int = 1,
        further: tuple[BaseQueue, ...] = (),
        delay_ms: int | None = None,
        now_ms: int,
    ) -> int:
        """Stage one record at the end of a queue; returns its log offset. :meth:`commit` has to follow.

        `token` is what :attr:`failed` will hold if the record cannot be written; `count` the messages in it. With
        `delay_ms` the queue entry says when the message is due, in place of its tags (the schedule topic).
        Raises :class:`StoreFull` when no message is taken, LocalProtocolError for a field that is too long.
        """
        if self.cleaner.refusal is not None:
            raise StoreFull(self.cleaner.refusal)
        commit_log = self.log
        sys_flag |= self._host_flag
        due_from_ms = now_ms  # a delay is meant by the clock as it is, also when that was set back
        if now_ms < self._last_ms:
            now_ms = self._last_ms  # stored times never go back, whatever the clock does
        else:
            self._last_ms = now_ms
        queue_offset, log_offset = queue.next_offset, commit_log.end
        record = pack(
            queue.queue_id,
            flag,
            queue_offset,
            log_offset,
            sys_flag,
            born_timestamp_ms,
            born_host,
            now_ms,
            self._host_packed,
            reconsume_times,
            prepared_transaction_offset,
            body,
            queue.topic_bytes,
            props,
        )
        size = len(record)
        if not commit_log.fits(size):
            self._roll(size)
            log_offset = commit_log.end
            record = record[:_LOG_OFFSET_AT] + _LONG.pack(log_offset) + record[_LOG_OFFSET_AT + 8 :]
        commit_log.staging += record
        commit_log.end = log_offset + size
        queue.next_offset = queue_offset + count
        if further:
            self._further += [(other, other.next_offset) for other in further]
            for other in further:
                other.next_offset += 1
        if delay_ms is not None:
            code = due_from_ms + delay_ms
        else:
            tags = get_property(props, b"TAGS")
            code = tags_code_of(tags) if tags else 0
        # As Stored(...), without a call in between.
        stored = (queue, queue_offset, count, log_offset, size, code, now_ms, props, sys_flag)
        self._staged.append(tuple.__new__(Stored, stored))
        self._tokens.append(token)
        return log_offset

    def append_packed(self, queue: BaseQueue, packed: Packed, *, token: object, now_ms: int) -> int:
        """As :meth:`append`, in a fraction of the time, for a record that was packed ahead of it."""
        if self.cleaner.refusal is not None:
            raise StoreFull(self.cleaner.refusal)
        now_ms = self._last_ms = max(now_ms, self._last_ms)
        commit_log, record = self.log, packed.record
        size = len(record)
        if not commit_log.fits(size):
            self._roll(size)
        queue_offset, log_offset = queue.next_offset, commit_log.end
        packed.place(queue_offset, log_offset, now_ms)
        commit_log.staging += record
        commit_log.end = log_offset + size
        queue.next_offset = queue_offset + 1
        code, props, sys_flag = packed.tags_code, packed.properties, packed.sys_flag
        stored = (queue, queue_offset, 1, log_offset, size, code, now_ms, props, sys_flag)
        self._staged.append(tuple.__new__(Stored, stored))
        self._tokens.append(token)
        return log_offset

    def make_room(self, size: int) -> None:
        """See to it that the next `size` bytes of records lie in one segment, as a batch has to."""
        if self.cleaner.refusal is None and not self.log.fits(size):
            self._roll(size)

    def _roll(self, size: int) -> None:
        if size + BLANK_HEADER_SIZE > self.log.segments.segment_bytes:
            raise LocalProtocolError(
                f"{size} bytes of records do not fit into a log segment of "
                f"{self.log.segments.segment_bytes} bytes (mappedFileSizeCommitLog)"
            )
        self.commit()
        if self.cleaner.refusal is None:
            try:
                self.log.roll()
            except OSError as error:
                self.cleaner.write_failed(error)
        if self.cleaner.refusal is not None:
            raise StoreFull(self.cleaner.refusal)

    def commit(self) -> None:
        """Write what is staged. Records that cannot be written are forgotten, their tokens are in :attr:`failed`."""
        staged, tokens = self._staged, self._tokens
        if not staged:
            return
        self._staged, self._tokens = [], []
        further, self._further = self._further, []
        began_s = time.perf_counter()
        try:
            self.log.write_staged()
        except OSError as error:
            self.log.forget_staged()
            for stored in reversed(staged):
                stored.queue.next_offset = stored.queue_offset
            for other, next_offset in reversed(further):
                other.next_offset = next_offset
            self.failed += tokens
            self.cleaner.write_failed(error)
            return
        self.times.add(time.perf_counter() - began_s)
        self.flusher.newest_ms = staged[-1].store_timestamp_ms
        if self.is_sync:
            self._hidden += staged
            self.flusher.written()
        else:
            self.dispatcher.apply(staged)
        if self.grown is not None:
            self.grown()

    def _durable_moved(self) -> None:
        if self.confirmed_moved is not None:
            self.confirmed_moved()
        hidden, durable = self._hidden, self.log.durable.value
        if not hidden:
            return
        if hidden[-1].log_offset + hidden[-1].size <= durable:
            visible, self._hidden = hidden, []
        else:
            count = sum(1 for s in hidden if s.log_offset + s.size <= durable)
            visible, self._hidden = hidden[:count], hidden[count:]
        self.dispatcher.apply(visible)

    def _light_queue(self, name: str) -> BaseQueue | None:
        queue = self.queues.obtain(name, QUEUE_ID)
        return None if queue.dropped else queue

    # -- looking up ------------------------------------------------------------------------------------------

    @property
    def confirmed(self) -> int:
        """Log offset up to which records are visible: with sync flush the durable end, else the written end."""
        return self.log.durable.value if self.is_sync else self.log.written

    def queue(self, topic: str, queue_id: int) -> BaseQueue | None:
        """A queue, if it exists."""
        return self.queues.get(topic, queue_id)

    def drop_topic(self, topic: str) -> None:
        """Forget a topic's queues. Its records stay in the log, and belong to no queue any more."""
        self.queues.drop_topic(topic, self.log.end)
        self.flusher.thorough_soon()

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Leave the abort marker: from now on a sudden end is noticed by the next start."""
        parts = self.parts
        try:
            await parts.disk.run(lambda: parts.abort.create(os.getpid(), parts.root))
        except OSError as error:
            raise StoreFull(
                f"cannot write to the store {parts.root}: {error.strerror}; free some room on that disk"
            ) from error

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Dispatch, flush and clean until cancelled. A disk that fails ends it: what is durable is unknown then."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.dispatcher.run)
            await nursery.start(self.flusher.run_log)
            await nursery.start(self.flusher.run_derived)
            await nursery.start(self.cleaner.run)
            task_status.started()

    async def close(self) -> None:
        """Make everything durable and take the abort marker away. Called after :meth:`run` has ended.

        When messages are refused because of the disk, something could not be written, or a queue turned out to have a
        hole, the marker stays and the next start looks at everything.
        """
        try:
            with trio.move_on_after(CLOSE_LIMIT_S, shield=True) as scope:
                await self._close_files()
            if scope.cancelled_caught:
                log.error("closing took more than %g s; the next start recovers", CLOSE_LIMIT_S)
        finally:
            self.parts.release()

    async def _close_files(self) -> None:
        parts = self.parts
        self.commit()
        try:
            await self.flusher.sync_log()
            self.dispatcher.finish()
            await self.flusher.sync_derived()
            self.log.drop_spare()
            await parts.disk.run(partial(parts.queues.roster.save, parts.queues.reached()))
            if self.reader.old.holed:
                log.warning(
                    "the abort marker stays, so that the next start fills a hole in a queue"
                )
                return
            if self.unclean is not None:
                log.warning("the abort marker stays: %s", self.unclean)
                return
            if self.cleaner.trouble is None:
                await parts.disk.run(partial(parts.abort.remove, parts.root))
                return
        except OSError as error:
            log.error("the store cannot be closed cleanly: %s", error)
        log.warning("the abort marker stays, since the disk refused writes")
