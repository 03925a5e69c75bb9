"""Decisions that come when the progress has passed their half message, or find it given up: what they are about.

In: a half message. Out: the open copy that stands for its transaction, or whether that was given up and may still be
committed. The ledger has forgotten such transactions, so the key index is asked; without one (`messageIndexEnable`)
nothing is found, and the decision is refused. May raise ColdData; nothing is changed here. Called by the end of
transactions, for the few decisions that come so late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trio_mq.broker.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from trio_mq.broker.transactions.half import Half
from trio_mq.broker.transactions.ledger import Fate
from trio_mq.broker.transactions.transactions import Transactions
from trio_mq.errors import BodyError
from trio_mq.protocol import properties
from trio_mq.protocol.codes import TRANSACTION_MASK, MessageFlag
from trio_mq.protocol.layout import index_key_hash
from trio_mq.protocol.record import StoredMessage, decode

#: Records of one key that are looked at: a transaction has at most a copy for each check.
HITS: Final = 100
_COMMIT: Final = int(MessageFlag.TRANSACTION_COMMIT)


def open_copy(transactions: Transactions, half: Half) -> Half | None:
    """The open half that stands for the transaction of `half`, if an Apache broker has copied it.

    Its copies do not name their root. They count checks, which another send of the same message does not do.
    """
    ledger = transactions.ledger
    copies = {
        record.queue_offset: Half(record) for record in _records(transactions, HALF_TOPIC, half)
    }
    for copy in copies.values():
        current = copies.get(ledger.newest(copy.offset))
        if (
            copy.root == copy.offset
            and copy.check_times > half.check_times
            and copy.producer_group == half.producer_group
            and current is not None
            and ledger.fate(current.offset) is Fate.OPEN
        ):
            return current
    return None


def was_given_up(transactions: Transactions, half: Half) -> bool:
    """Whether a transaction was given up, and has not been committed after that."""
    given_up = any(
        Half(record).props.get(properties.TRAN_PREPARED_QUEUE_OFFSET) in (None, str(half.root))
        and Half(record).producer_group == half.producer_group
        for record in _records(transactions, CHECK_MAX_TIME_TOPIC, half)
    )
    return given_up and not any(
        record.sys_flag & TRANSACTION_MASK == _COMMIT
        for record in _records(transactions, half.real_topic or "", half)
    )


def _records(transactions: Transactions, topic: str, half: Half) -> Iterator[StoredMessage]:
    """Records of a topic with the id of a half, as far as the index knows them."""
    store, unique_id = transactions.store, half.unique_id
    if unique_id is None:
        return
    # A backlog of keys that are not in their file yet is short.
    while store.dispatcher.index_backlog and store.dispatcher.index_chunk():
        pass
    key_hash = index_key_hash(f"{topic}#{unique_id}")
    now_ms = max(transactions.clock.now_ms(), store.dispatcher.newest_ms)
    for log_offset in store.index.search(key_hash, HITS, half.record.store_timestamp_ms, now_ms):
        data = store.reader.record(log_offset)
        if data is None:
            continue
        try:
            record = decode(data)
        except BodyError:
            continue
        if record.topic == topic and Half(record).unique_id == unique_id:
            yield record
