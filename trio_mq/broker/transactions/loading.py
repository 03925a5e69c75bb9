"""The ledger of half messages, made from the store when a broker starts.

In: the saved progress, the op queue, the half queue, the end of the log. Out: the ledger as it was, after a clean stop
or not, written by this broker or by Apache's. Called by the broker before it serves.

Op records are written some seconds after the decisions. After a kill the last ones are missing, but the messages that
were committed are there, and each names its half: the end of the log is looked through for them, so that a committed
transaction is not asked about and delivered again. A roll back that was not written down is asked about again.
"""

from __future__ import annotations

import logging
from functools import partial
from struct import Struct
from typing import Final

import trio

from trio_mq.broker.names import HALF_TOPIC, OP_HALF_TOPIC
from trio_mq.broker.transactions.half import ROOT_NAME, Half, op_offsets
from trio_mq.broker.transactions.ledger import Fate
from trio_mq.broker.transactions.transactions import Transactions
from trio_mq.broker.warm import warmed
from trio_mq.protocol.codes import TRANSACTION_MASK, MessageFlag
from trio_mq.protocol.layout import FIXED_RECORD_SIZE, MAGIC_V1, MAGIC_V2
from trio_mq.protocol.record import StoredMessage

log = logging.getLogger("trio_mq.broker.transactions")

#: Records read at once.
LOT: Final = 32
#: Op records from the end of their queue that may have been written after decisions which they do not hold: Apache
#: has up to 20,000 decisions waiting, and writes some 400 of them in a record.
OPS_BACK: Final = 64
#: Bytes of the log looked through at once.
LOG_BYTES: Final = 1024 * 1024

_COMMIT: Final = int(MessageFlag.TRANSACTION_COMMIT)
#: Of a record: size, magic and sysFlag; then where it names its half, which is further back with IPv6 hosts.
_HEAD = Struct(">ii28xi")
_BORN_V6, _STORE_V6 = int(MessageFlag.BORN_HOST_V6), int(MessageFlag.STORE_HOST_V6)
_PREPARED_AT: Final = 76
_V6_SHIFT: Final = 12
_LONG = Struct(">q")


async def load(transactions: Transactions) -> None:
    """Fill the ledger. OSError when the disk does not hand data over."""
    ledger, store = transactions.ledger, transactions.store
    ledger.begin, transactions.ops.progress.begin = transactions.begin_at()
    halves = store.queue(HALF_TOPIC, 0)
    end = halves.max_offset if halves is not None else 0
    last_op = await _load_ops(transactions, end)
    oldest = await _load_halves(transactions, end)
    if oldest is None:
        return
    found = await _load_commits(transactions, max(oldest, last_op))
    log.info(
        "%d transactions are open between %d and %d of the half queue; %d were committed just before the end",
        *(ledger.open_count(end), ledger.begin, end, found),
    )


async def _load_ops(transactions: Transactions, half_end: int) -> int:
    """Note what op records say; log offset from which on decisions may be in no op record.

    Places behind the end of the half queue are those of no half: such a record is damaged.
    """
    progress = transactions.ops.progress
    queue = transactions.store.queue(OP_HALF_TOPIC, 0)
    if queue is None:
        return 0
    end = queue.max_offset
    offset = progress.begin
    while offset < end:
        records, offset = await _read(transactions, OP_HALF_TOPIC, offset, LOT)
        for record in records:
            places = [place for place in op_offsets(record) if place < half_end]
            progress.add(record.queue_offset, places)
            for place in places:
                transactions.ledger.settle_place(place, Fate.DECIDED)
    first = max(queue.min_offset, end - OPS_BACK)
    records, _ = await _read(transactions, OP_HALF_TOPIC, first, 1)
    return records[0].log_offset if records else 0


async def _load_halves(transactions: Transactions, end: int) -> int | None:
    """Note which halves are copies of others; log offset of the oldest open one, None without any."""
    ledger = transactions.ledger
    offset = ledger.begin
    while offset < end:
        try:
            data, after = await transactions.data(HALF_TOPIC, offset, LOT)
        except OSError:  # told below, if it matters
            data, after = b"", offset + 1
        if ROOT_NAME in data:  # most halves are no copies, and need not be decoded
            records, after = await _read(transactions, HALF_TOPIC, offset, LOT)
            for record in records:
                _note_copy(transactions, Half(record))
        offset = after
    first = ledger.next_open(ledger.begin, end)
    while first < end:
        records, after = await _read(transactions, HALF_TOPIC, first, 1)
        if records:
            return records[0].log_offset
        first = ledger.next_open(max(after, first + 1), end)
    return None


def _note_copy(transactions: Transactions, half: Half) -> None:
    """Note that a half is a copy, if it is one."""
    ledger, root = transactions.ledger, half.root
    if root == half.offset:
        return
    fate = ledger.fate(half.offset)
    ledger.copy(root, half.offset)
    if fate is not Fate.OPEN:  # an op record names it
        ledger.settle(root, fate)


async def _read(
    transactions: Transactions, topic: str, offset: int, count: int
) -> tuple[list[StoredMessage], int]:
    """As :meth:`Transactions.read`; what the disk does not hand over is left out, too."""
    try:
        return await transactions.read(topic, offset, count)
    except OSError as error:
        log.error("message %d of %s cannot be read: %s", offset, topic, error)
        return [], offset + 1


async def _load_commits(transactions: Transactions, log_offset: int) -> int:
    """Note transactions whose messages were delivered behind a log offset; how many."""
    store, ledger = transactions.store, transactions.ledger
    disk, commit_log = store.parts.disk, store.log
    at, count = max(log_offset, commit_log.start), 0
    while at < commit_log.written:
        try:
            data = await warmed(disk, partial(commit_log.read, LOG_BYTES, at))
        except OSError as error:
            log.error("the log at %d cannot be read: %s", at, error)
            data = b""
        named, step = _named_halves(data)
        for half_at in named:
            half = await warmed(disk, partial(transactions.half_at, half_at))
            if half is not None and ledger.fate(ledger.newest(half.root)) is Fate.OPEN:
                transactions.ops.add(ledger.settle(half.root, Fate.COMMITTED))
                count += 1
        # A blank, or what is no record: the next segment begins with one.
        segments = commit_log.segments
        at = at + step if step else segments.segment_of(at) + segments.segment_bytes
        await trio.lowlevel.checkpoint()
    return count


def _named_halves(data: bytes) -> tuple[list[int], int]:
    """Log offsets of the halves that the committed messages in some records name, and the bytes up to the last
    record that is there as a whole; 0 bytes when the first is none."""
    found: list[int] = []
    at, room = 0, len(data)
    while at + _HEAD.size <= room:
        size, magic, sys_flag = _HEAD.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or size < FIXED_RECORD_SIZE:
            return found, at
        prepared_at = at + _PREPARED_AT
        prepared_at += _V6_SHIFT * (bool(sys_flag & _BORN_V6) + bool(sys_flag & _STORE_V6))
        if sys_flag & TRANSACTION_MASK == _COMMIT and prepared_at + _LONG.size <= room:
            found.append(_LONG.unpack_from(data, prepared_at)[0])
        if at + size > room:
            # One that is longer than what is looked at in one go is passed over by its size.
            return found, at or size
        at += size
    return found, at
