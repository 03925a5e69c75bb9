"""Checks: producers are asked about transactions that they have not decided.

In: the ledger of half messages, the members of producer groups. Out: CHECK_TRANSACTION_STATE (39) to one producer of
the group, a copy of each half that was asked about at the end of its queue, moves of those that nobody decides to
TRANS_CHECK_MAX_TIME_TOPIC, and the progress. Owns one task, :meth:`Checks.run`. It holds one half message at a time.

A half that cannot be read is logged and passed (case C149). One that has no room for the number of its checks is asked
about where it lies until it is too old. A disk that is full ends the round; the next one begins at the same place.
Rules: Apache TransactionalMessageServiceImpl.check, TransactionalMessageCheckService,
DefaultTransactionalMessageCheckListener.
"""

from __future__ import annotations

import enum
import logging
import time
from typing import Final

import attrs
import trio

from trio_mq.broker.clientcalls import ClientCalls
from trio_mq.broker.members import Client, Members
from trio_mq.broker.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC
from trio_mq.broker.put import Letter, Put
from trio_mq.broker.topics import TopicTable
from trio_mq.broker.transactions.half import Half
from trio_mq.broker.transactions.ledger import Fate
from trio_mq.broker.transactions.transactions import Transactions
from trio_mq.config import BrokerSettings
from trio_mq.errors import LocalProtocolError, StoreFull
from trio_mq.protocol.bodies import TopicConfig
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.headers.transaction import CheckTransactionStateRequest
from trio_mq.protocol.message import offset_message_id
from trio_mq.protocol.record import StoredMessage

log = logging.getLogger("trio_mq.broker.transactions")

#: Halves looked at before other tasks get their turn, for as long as these took: some milliseconds.
SLICE: Final = 16
#: Young halves passed in a round before it ends: those behind them are young, too.
MAX_YOUNG: Final = 1000
#: Places from the progress on up to which a half keeps its place while nobody can be asked about it. Beyond, it is
#: stored again if most of the others are decided, so that the ledger, the next start and an Apache broker have less to
#: look through, and the log does not grow by more than what comes anyway.
MAX_WINDOW: Final = 100_000
#: Time that the copies of a round may take to be on the disk; the progress is noted then, or after a later round.
DURABLE_LIMIT_S: Final = 60.0


class Step(enum.Enum):
    """What is to be done about an open half now."""

    ASK = enum.auto()
    GIVE_UP = enum.auto()
    WAIT = enum.auto()
    """Nobody can or shall be asked yet, maybe for long."""
    YOUNG = enum.auto()
    """Its producer may be about to decide."""
    FRESH = enum.auto()
    """Stored in this round: the round is over."""


@attrs.define
class Round:
    """What one round has done."""

    began_ms: int
    is_crowded: bool
    """Whether halves that wait are stored again."""
    asked: int = 0
    given_up: int = 0
    waiting: int = 0
    young: int = 0
    unreadable: int = 0


class Checks:
    """Asks about open transactions, round after round."""

    def __init__(
        self,
        transactions: Transactions,
        members: Members,
        calls: ClientCalls,
        topics: TopicTable,
        settings: BrokerSettings,
        reserved_hours: int,
    ) -> None:
        self._transactions = transactions
        self._members = members
        self._calls = calls
        self._topics = topics
        self._settings = settings
        self._reserved_ms = reserved_hours * 3_600_000
        self._interval_s = settings.transaction_check_interval_ms / 1000

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """A round in each interval, until cancelled; one that takes longer delays the next."""
        task_status.started()
        due_s = trio.current_time()
        while True:
            due_s = max(due_s + self._interval_s, trio.current_time())
            await trio.sleep_until(due_s)
            try:
                await self.round()
            except StoreFull as error:
                log.error(
                    "the check of transactions is put off by %g s: %s", self._interval_s, error
                )

    async def round(self) -> Round:
        """Look at all open halves once. StoreFull when that has to end before."""
        transactions, ledger = self._transactions, self._transactions.ledger
        end = transactions.halves.max_offset
        expired = ledger.expire(transactions.halves.min_offset)
        if expired:
            log.error(
                "%d open transactions are lost: their half messages have expired with the log",
                expired,
            )
        window = end - ledger.begin
        is_crowded = window > MAX_WINDOW and 2 * ledger.open_count(end) < window
        done = Round(transactions.clock.now_ms(), is_crowded)
        try:
            await self._pass(done, end)
        finally:
            if done.asked or done.given_up or done.unreadable:
                log.info("transactions checked: %s", done)
        # Behind the progress nobody looks any more; so the copies have to be safe before it is noted.
        with trio.move_on_after(DURABLE_LIMIT_S) as scope:
            written = transactions.store.log.written
            await transactions.putter.durable(written)
            await transactions.store.log.durable.reached(written)
        if not scope.cancelled_caught:
            transactions.advance()
        return done

    async def _pass(self, done: Round, end: int) -> None:
        ledger = self._transactions.ledger
        offset, looked = ledger.next_open(ledger.begin, end), 0
        began_s = time.perf_counter()
        while offset < end:
            record = await self._read(offset)
            if ledger.fate(offset) is Fate.OPEN:  # else it was decided while the disk was read
                if record is None:
                    done.unreadable += 1
                    log.error(
                        "half message %d cannot be read; its transaction is passed over", offset
                    )
                    ledger.forget_place(offset)
                elif not self._treat(Half(record), done):
                    return
            offset = ledger.next_open(offset + 1, end)
            looked += 1
            if looked % SLICE == 0:
                await trio.sleep(time.perf_counter() - began_s)
                began_s = time.perf_counter()

    async def _read(self, offset: int) -> StoredMessage | None:
        try:
            records, _ = await self._transactions.read(HALF_TOPIC, offset)
        except OSError as error:
            log.error("half message %d: %s", offset, error)
            return None
        return records[0] if records and records[0].queue_offset == offset else None

    def _treat(self, half: Half, done: Round) -> bool:
        """Do what is due about an open half; whether the round goes on."""
        step, producer = self._step(half, done.began_ms)
        if step is Step.FRESH:
            return False
        if step is Step.YOUNG:
            done.young += 1
            return done.young < MAX_YOUNG
        if step is Step.GIVE_UP:
            self._give_up(half)
            done.given_up += 1
        elif producer is None:
            done.waiting += 1
            if done.is_crowded:  # not counted as a check
                self._store_again(half, half.copied(None))
        else:
            done.asked += 1
            self._ask(half, producer)
        return True

    def _step(self, half: Half, began_ms: int) -> tuple[Step, Client | None]:
        """What is due, and whom to ask."""
        if half.record.store_timestamp_ms >= began_ms:
            return Step.FRESH, None
        age_ms = half.age_ms(began_ms)
        group = half.producer_group
        if (
            half.check_times >= self._settings.transaction_check_max
            or age_ms > self._reserved_ms
            or group is None
            or half.real_topic is None
            or half.real_queue_id is None
        ):
            return Step.GIVE_UP, None
        timeout_ms = self._settings.transaction_timeout_ms
        immunity_ms = half.immunity_ms(timeout_ms)
        if immunity_ms is None and age_ms <= timeout_ms:
            return Step.YOUNG, None
        if immunity_ms is not None and age_ms <= immunity_ms:
            return Step.WAIT, None
        producer = self._members.any_producer(group)
        # One that does not take what it is sent is not sent more.
        if producer is None or producer.peer.stalled:
            return Step.WAIT, None
        return Step.ASK, producer

    def _give_up(self, half: Half) -> None:
        """Move a half away that nobody decides about."""
        self._topics.create_if_absent(TopicConfig(CHECK_MAX_TIME_TOPIC, 1, 1, 6))
        log.warning(
            "transaction %s of group %s to topic %s is given up after %d checks: half message %d is moved to %s",
            *(half.unique_id, half.producer_group, half.real_topic, half.check_times),
            *(half.offset, CHECK_MAX_TIME_TOPIC),
        )
        self._transactions.give_up(half)

    def _store_again(self, half: Half, letter: Letter) -> Put | None:
        """Where the copy lies; None when the message has no room for the properties of one, and keeps its place.

        It is asked about where it is then, until it is too old.
        """
        try:
            return self._transactions.store_again(half, letter)
        except LocalProtocolError as error:
            log.warning("half message %d cannot be copied: %s", half.offset, error)
            return None

    def _ask(self, half: Half, producer: Client) -> None:
        """Store the half again as checked once more, and ask about that copy."""
        letter = half.copied(half.check_times + 1)
        put = self._store_again(half, letter)
        log_offset = half.record.log_offset if put is None else put.log_offset
        queue_offset = half.offset if put is None else put.queue_offset
        header = CheckTransactionStateRequest(
            tran_state_table_offset=queue_offset,
            commit_log_offset=log_offset,
            topic=HALF_TOPIC,
            msg_id=half.unique_id,
            transaction_id=half.unique_id,
            offset_msg_id=offset_message_id(self._transactions.store.host, log_offset),
            broker_name=self._settings.broker_name,
        )
        properties = half.record.properties if put is None else letter.properties
        body = half.check_body(properties, log_offset, queue_offset)
        try:
            self._calls.tell(producer.peer, RequestCode.CHECK_TRANSACTION_STATE, header, body)
        except LocalProtocolError as error:  # it does not fit into a frame
            log.error("half message %d cannot be sent for a check: %s", half.offset, error)
