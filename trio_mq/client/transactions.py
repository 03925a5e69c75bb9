"""Transactions: a message that consumers see only if the application's own transaction commits.

In: a message and a local transaction; later, checks of brokers (CHECK_TRANSACTION_STATE, 39). Out: half messages,
their ends (END_TRANSACTION, 37), :class:`TransactionReceipt`. Called by :mod:`.producer`. Source of the rules: Apache
DefaultMQProducerImpl (sendMessageInTransaction, endTransaction, checkTransactionState).

Ends are sent one-way, as Apache's clients send them. One that gets lost is made up for: the broker asks, after
transactionTimeOut, any producer of the group what became of the transaction, and asks again until it knows.

Failure policy of checks: one that fails is logged and answered with UNKNOWN, one that cannot be read or comes while
too many wait is dropped; the broker asks again. None of it ends the producer.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final

import anyio
import attrs

from trio_mq.client.functions import called
from trio_mq.client.instance import Instance
from trio_mq.client.messages import Message, ReceivedMessage, SendReceipt, SendStatus
from trio_mq.client.options import with_namespace, without_namespace
from trio_mq.client.sending import Sender
from trio_mq.client.tries import Sent
from trio_mq.config.addresses import Address
from trio_mq.errors import HandlerError, LocalProtocolError, PeerUnavailable, ProtocolError
from trio_mq.net.link import Link
from trio_mq.protocol import headers, record
from trio_mq.protocol import properties as props
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import MessageFlag, RequestCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers import CheckTransactionStateRequest, EndTransactionRequest

log = logging.getLogger("trio_mq.client")

#: Checks that run at the same time; Apache's client runs one.
CHECKS_AT_ONCE: Final = 8
#: Checks that wait for their turn; more are dropped (Apache: TransactionMQProducer.checkRequestHoldMax).
CHECKS_WAITING: Final = 2_000
#: The end of a transaction is handed over within this time, also when the sender is cancelled.
END_TIMEOUT_S: Final = 3.0


class TransactionState(Enum):
    """What became of a local transaction (Apache: LocalTransactionState).

    COMMIT lets consumers have the message, ROLLBACK drops it, UNKNOWN lets the broker ask later.
    """

    COMMIT = int(MessageFlag.TRANSACTION_COMMIT)
    ROLLBACK = int(MessageFlag.TRANSACTION_ROLLBACK)
    UNKNOWN = 0


@attrs.frozen
class TransactionReceipt(SendReceipt):
    """The receipt of the half message, and what the broker was told of it."""

    state: TransactionState = TransactionState.UNKNOWN


#: The application's own transaction; it gets the receipt of the half message. None stands for COMMIT.
Local = Callable[[SendReceipt], Awaitable[TransactionState | None] | TransactionState | None]
#: Says what became of a transaction, for a broker that was not told.
CheckTransaction = Callable[[ReceivedMessage], Awaitable[TransactionState] | TransactionState]


class Transactions:
    """The transactions of one producer group. Checks run in the tasks of the instance."""

    def __init__(
        self, instance: Instance, sender: Sender, group: str, check: CheckTransaction | None
    ) -> None:
        self._instance = instance
        self._sender = sender
        self._group = group
        self._check = check
        self._turns = anyio.Semaphore(CHECKS_AT_ONCE)
        self._checks = 0
        instance.on_request(RequestCode.CHECK_TRANSACTION_STATE, self._asked)

    async def send(self, message: Message, local: Local) -> TransactionReceipt:
        """Send the half message, run the local transaction, and tell the broker how it ended."""
        half = await self.begin(message)
        if half.receipt.status is not SendStatus.OK:
            return await self.end(half, TransactionState.ROLLBACK)
        try:
            state = decided(await called(local, half.receipt))
        except HandlerError:
            await self.end(half, TransactionState.UNKNOWN)
            raise
        except Exception as error:
            await self.undo(half, error)
            raise
        return await self.end(half, state)

    async def begin(self, message: Message) -> Sent:
        """Send the half message: stored, and hidden from consumers."""
        if message.delay_level or message.deliver_at or message.deliver_after:
            raise LocalProtocolError(
                f"topic {message.topic}: a message in a transaction cannot be delayed; send it without a delay"
            )
        return await self._sender.deliver(
            message,
            sys_flag=MessageFlag.TRANSACTION_PREPARED,
            extra_properties={props.TRAN_MSG: "true", props.PGROUP: self._group},
        )

    async def undo(self, half: Sent, error: BaseException) -> None:
        """Roll back after a local transaction that raised, and say so on its error."""
        remark = f"the local transaction raised {type(error).__name__}: {error}"
        await self.end(half, TransactionState.ROLLBACK, remark)
        receipt = half.receipt
        error.add_note(
            f"the half message {receipt.message_id} of topic {receipt.queue.topic} was rolled back"
        )

    async def end(
        self, half: Sent, state: TransactionState, remark: str | None = None
    ) -> TransactionReceipt:
        """Tell the broker; a failure is logged, for the broker asks when it hears nothing."""
        receipt = half.receipt
        header = EndTransactionRequest(
            producer_group=self._group,
            tran_state_table_offset=receipt.queue_offset,
            commit_log_offset=half.log_offset,
            commit_or_rollback=state.value,
            msg_id=receipt.message_id,
            topic=with_namespace(self._instance.options.namespace, receipt.queue.topic),
            transaction_id=receipt.transaction_id,
        )
        await self._tell(half.address, header, remark)
        fields = attrs.asdict(receipt, recurse=False)
        return TransactionReceipt(**fields, state=state)

    async def _tell(
        self, address: Address, header: EndTransactionRequest, remark: str | None
    ) -> None:
        command = Command(RequestCode.END_TRANSACTION, headers.encode(header), remark=remark)
        try:
            # Decided is decided: a cancellation now would only make the broker ask.
            with anyio.move_on_after(END_TIMEOUT_S, shield=True):
                await self._instance.send_oneway(address, command)
        except PeerUnavailable as error:
            state = TransactionState(header.commit_or_rollback).name
            log.warning(
                "the broker was not told %s of message %s and will ask for it: %s",
                state, header.msg_id, error,
            )  # fmt: skip

    # -- checks

    def _asked(self, link: Link, command: Command) -> None:
        """CHECK_TRANSACTION_STATE (39), one-way."""
        try:
            header = headers.decode(CheckTransactionStateRequest, command.ext)
            message = self._message(header, command.body)
        except ProtocolError as error:
            log.warning("%s: a transaction check cannot be read, dropped: %s", link.address, error)
            return
        if message.properties.get(props.PGROUP) != self._group:
            log.debug("%s: a check of another group, dropped: %r", link.address, message)
        elif self._check is None:
            log.warning(
                "group %s: %s asks what became of %r, and the producer has no check_transaction",
                self._group, link.address, message,
            )  # fmt: skip
        elif self._checks >= CHECKS_WAITING:
            log.warning("group %s: %d checks wait, one more is dropped", self._group, self._checks)
        else:
            self._checks += 1
            self._instance.tasks.start_soon(
                self._answer, self._check, link.address, header, message
            )

    def _message(self, header: CheckTransactionStateRequest, body: bytes) -> ReceivedMessage:
        stored = record.decode(body)
        topic = without_namespace(self._instance.options.namespace, stored.topic)
        queue = MessageQueue(topic, header.broker_name or "", stored.queue_id)
        return ReceivedMessage(stored, queue, stored.plain_body, topic=topic)

    async def _answer(
        self,
        check: CheckTransaction,
        address: Address,
        asked: CheckTransactionStateRequest,
        message: ReceivedMessage,
    ) -> None:
        try:
            async with self._turns:
                state, remark = await _checked(check, message)
                header = EndTransactionRequest(
                    producer_group=self._group,
                    tran_state_table_offset=asked.tran_state_table_offset,
                    commit_log_offset=asked.commit_log_offset,
                    commit_or_rollback=state.value,
                    msg_id=message.message_id,
                    from_transaction_check=True,
                    topic=asked.topic,
                    transaction_id=asked.transaction_id,
                )
                await self._tell(address, header, remark)
        finally:
            self._checks -= 1


def decided(returned: object) -> TransactionState:
    """What a local transaction's result means; HandlerError for one that means nothing."""
    if returned is None:
        return TransactionState.COMMIT
    if isinstance(returned, TransactionState):
        return returned
    raise HandlerError(
        f"a local transaction returned {returned!r}; it returns a TransactionState, or None for COMMIT. "
        f"The broker was told UNKNOWN and will ask"
    )


async def _checked(
    check: CheckTransaction, message: ReceivedMessage
) -> tuple[TransactionState, str | None]:
    """The answer to a check, and why it is UNKNOWN when the check failed."""
    try:
        state: object = await called(check, message)
    except Exception as error:
        log.exception("the check of message %s failed, the broker asks again", message.message_id)
        return TransactionState.UNKNOWN, f"the check raised {type(error).__name__}: {error}"
    if isinstance(state, TransactionState):
        return state, None
    log.error(
        "the check of message %s returned %r and not a TransactionState, the broker asks again",
        message.message_id, state,
    )  # fmt: skip
    return TransactionState.UNKNOWN, f"the check returned {state!r}"
