"""END_TRANSACTION and RESUME_CHECK_HALF_MESSAGE: decisions about transactions, mostly one-way.

In: typed requests. Out: the message on its real topic, or a roll back; the first decision counts (case C155). May raise
ColdData before anything has changed: the face asks again then. Rules: Apache EndTransactionProcessor,
AdminBrokerProcessor.resumeCheckHalfMessage.
"""

from __future__ import annotations

import logging
from typing import Final

import attrs

from trio_mq.broker.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from trio_mq.broker.put import Letter, Putter
from trio_mq.broker.transactions.half import Half
from trio_mq.broker.transactions.late import open_copy, was_given_up
from trio_mq.broker.transactions.ledger import Fate
from trio_mq.broker.transactions.transactions import Transactions
from trio_mq.config import BrokerSettings
from trio_mq.errors import BodyError, LocalProtocolError, RequestRefused, StoreFull
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply, RequestTable
from trio_mq.protocol import properties
from trio_mq.protocol.codes import MessageFlag, RequestCode, ResponseCode
from trio_mq.protocol.headers.transaction import (
    EndTransactionRequest,
    ResumeCheckHalfMessageRequest,
)
from trio_mq.protocol.message import parse_offset_message_id
from trio_mq.protocol.record import decode

log = logging.getLogger("trio_mq.broker.transactions")

_COMMIT: Final = int(MessageFlag.TRANSACTION_COMMIT)
_ROLLBACK: Final = int(MessageFlag.TRANSACTION_ROLLBACK)
#: Fates of which the store may know more than the ledger. One that was given up can still be committed, as with Apache.
_FORGOTTEN: Final = (Fate.PASSED, Fate.DECIDED)
_FATES: Final = {_COMMIT: Fate.COMMITTED, _ROLLBACK: Fate.ROLLED_BACK}


class EndTransactions:
    """Takes decisions about transactions."""

    def __init__(
        self, transactions: Transactions, putter: Putter, settings: BrokerSettings
    ) -> None:
        self._transactions = transactions
        self._putter = putter
        self._settings = settings

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.END_TRANSACTION, EndTransactionRequest, self.end)
        table.add(RequestCode.RESUME_CHECK_HALF_MESSAGE, ResumeCheckHalfMessageRequest, self.resume)

    def end(self, call: Call, request: EndTransactionRequest) -> Reply | Deferred:
        """END_TRANSACTION (37). There is no reply to a producer that does not know yet."""
        if request.commit_or_rollback not in _FATES:
            log.info(
                "producer %s has not decided about transaction %s of group %s yet",
                *(call.peer.address, request.msg_id, request.producer_group),
            )
            return DEFERRED
        half = self._half(call, request)
        wanted = _FATES[request.commit_or_rollback]
        found = self._fate(half)
        if found in _FORGOTTEN:
            half, found = self._recalled(half, found)
        if found is wanted:
            return Reply()  # sent twice: once is enough
        if found is not Fate.OPEN and not (found is Fate.GIVEN_UP and wanted is Fate.COMMITTED):
            raise self._refusal(half, wanted, found)
        end = self._decide(half, wanted)
        if not call.command.is_oneway:
            # Whoever hears of a success must not be asked again, even after a crash.
            end = max(end, self._write_ops())
        return self._putter.answer(call, end, Reply())

    def _fate(self, half: Half) -> Fate:
        """What has become of a transaction, as far as the ledger knows."""
        ledger = self._transactions.ledger
        found = ledger.fate(ledger.newest(half.root))
        # The progress may have passed the first place, but not yet the copy that was decided about.
        return ledger.fate(half.offset) if found is Fate.PASSED else found

    def _recalled(self, half: Half, found: Fate) -> tuple[Half, Fate]:
        """The same from the store, for a transaction that the ledger has forgotten; and the copy that stands for it."""
        copy = open_copy(self._transactions, half) if found is Fate.PASSED else None
        if copy is not None:
            return copy, Fate.OPEN
        return half, Fate.GIVEN_UP if was_given_up(self._transactions, half) else found

    def _half(self, call: Call, request: EndTransactionRequest) -> Half:
        """The half message that a decision is about; refused where the decision does not fit to it."""
        half = self._transactions.half_at(request.commit_log_offset)
        if half is None:
            raise _wrong(
                f"there is no half message at log offset {request.commit_log_offset}; the offset is in "
                f"the id that the send was answered with"
            )
        self._check_in_time(call, request, half)
        if half.producer_group != request.producer_group:
            raise _wrong(
                f"the half message is of producer group {half.producer_group}, not {request.producer_group}"
            )
        if half.offset != request.tran_state_table_offset:
            raise _wrong(
                f"the half message is at {half.offset} of its queue, not {request.tran_state_table_offset}"
            )
        if half.real_topic is None or half.real_queue_id is None:
            raise _wrong("the half message does not say where it is to go (REAL_TOPIC, REAL_QID)")
        return half

    def _check_in_time(self, call: Call, request: EndTransactionRequest, half: Half) -> None:
        """A producer that asks not to be checked for a while has to decide in that time, or when it is asked."""
        timeout_ms = self._settings.transaction_timeout_ms
        immunity_ms = half.immunity_ms(timeout_ms)
        if request.from_transaction_check or immunity_ms is None:
            return
        limit_ms = max(immunity_ms, timeout_ms)
        age_ms = call.now_ms - half.record.born_timestamp_ms
        if age_ms > limit_ms:
            raise RequestRefused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the decision comes {age_ms} ms after the message was made, {limit_ms} ms are allowed "
                f"(CHECK_IMMUNITY_TIME_IN_SECONDS); the broker will ask",
            )

    def _decide(self, half: Half, fate: Fate) -> int:
        """Do it; log offset behind what was stored."""
        if fate is Fate.ROLLED_BACK:
            self._transactions.roll_back(half)
            return 0
        try:
            return self._transactions.commit(half).end
        except StoreFull as full:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, str(full)) from full
        except LocalProtocolError as error:
            raise RequestRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error

    def _write_ops(self) -> int:
        try:
            put = self._transactions.ops.write()
        except StoreFull:
            return (
                0  # the decision itself is stored, or will be asked about: the task goes on trying
            )
        return 0 if put is None else put.end

    def _refusal(self, half: Half, wanted: Fate, found: Fate) -> RequestRefused:
        """The answer to another decision about a transaction that is not open any more."""
        log.warning(
            "group %s wants transaction %s %s, but it is %s already: ignored",
            *(half.producer_group, half.unique_id, _NAMES[wanted], _NAMES[found]),
        )
        return _wrong(
            f"transaction {half.unique_id} is {_NAMES[found]} already; the first decision counts"
        )

    def resume(self, call: Call, request: ResumeCheckHalfMessageRequest) -> Reply | Deferred:
        """RESUME_CHECK_HALF_MESSAGE (323): check a half message anew that was given up."""
        _, log_offset = parse_offset_message_id(request.msg_id or "")
        data = self._transactions.store.reader.record(log_offset)
        if data is None:
            raise _wrong(f"there is no message at log offset {log_offset}")
        try:
            record = decode(data)
        except BodyError as error:
            raise _wrong(
                f"the message at log offset {log_offset} cannot be read: {error}"
            ) from error
        if record.topic not in (CHECK_MAX_TIME_TOPIC, HALF_TOPIC):
            raise _wrong(
                f"the message at log offset {log_offset} is of topic {record.topic}; only half messages, and "
                f"those in {CHECK_MAX_TIME_TOPIC}, can be checked"
            )
        props = record.properties
        for name in (
            properties.TRANSACTION_CHECK_TIMES,
            properties.TRAN_PREPARED_QUEUE_OFFSET,
        ):
            props = properties.remove(props, name.encode())
        props = properties.append(props, properties.TRANSACTION_CHECK_TIMES.encode(), b"0")
        letter = Letter.again(record, topic=HALF_TOPIC, queue_id=0, properties=props)
        # Its age counts anew, too, or it would be given up for that in the next round.
        letter = attrs.evolve(letter, born_timestamp_ms=call.now_ms)
        try:
            put = self._putter.put(letter)
        except StoreFull as full:
            raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, str(full)) from full
        return self._putter.answer(call, put.end, Reply())


_NAMES: Final = {
    Fate.OPEN: "open",
    Fate.COMMITTED: "committed",
    Fate.ROLLED_BACK: "rolled back",
    Fate.DECIDED: "decided",
    Fate.GIVEN_UP: f"given up, and in {CHECK_MAX_TIME_TOPIC}",
    Fate.COPIED: "copied",
    Fate.UNREADABLE: "lost: it cannot be read",
    Fate.PASSED: "decided or given up",
}


def _wrong(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.SYSTEM_ERROR, text)
