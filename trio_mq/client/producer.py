"""A producer: what an application sends with.

In: messages. Out: receipts, or the errors of :mod:`trio_mq.errors`. The client of applications; how sends are tried is
:mod:`.sending`, many at once are :mod:`.pipeline`. Source of the names, defaults and rules: Apache DefaultMQProducer.

Failure policy: a send that fails raises and leaves the producer open. Brokers and name servers that are away while
nothing is sent cost nothing but a line in the log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from trio_mq.client.instance import Instance, open_instance
from trio_mq.client.lifetime import Owner
from trio_mq.client.messages import Message, ReceivedMessage, SendReceipt
from trio_mq.client.options import (
    ClientOptions,
    Credentials,
    check_group,
    check_topic,
    with_namespace,
)
from trio_mq.client.outgoing import MAX_MESSAGE_BYTES, Limits
from trio_mq.client.pipeline import WINDOW, Pipeline, open_pipeline
from trio_mq.client.requests import REQUEST_TIMEOUT_S, Requests
from trio_mq.client.sending import Sender, SendSettings
from trio_mq.client.transactions import (
    CheckTransaction,
    Local,
    TransactionReceipt,
    Transactions,
)
from trio_mq.errors import ConfigError
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.recall import parse_recall_handle

DEFAULT_GROUP = "DEFAULT_PRODUCER"


class Producer(Owner):
    """Sends messages, inside its ``async with`` block.

    `nameserver` is ``"host:port;host:port"`` or several such texts. Times are seconds. Any number of tasks may send at
    the same time. `check_transaction` (a coroutine function, or a plain one for a worker thread) tells brokers what
    became of a transaction of this group that they have not heard of.
    """

    def __init__(
        self,
        nameserver: str | Iterable[str],
        group: str = DEFAULT_GROUP,
        *,
        send_timeout_s: float = 3.0,
        retry_times_when_send_failed: int = 2,
        retry_another_broker_when_not_store_ok: bool = False,
        compress_over_bytes: int = 4096,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        send_latency_fault_enable: bool = False,
        default_topic_queues: int = 4,
        check_transaction: CheckTransaction | None = None,
        namespace: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        credentials: Credentials | None = None,
        start_timeout_s: float = 10.0,
        call_timeout_s: float = 3.0,
    ) -> None:
        self.group = check_group(group)
        self._options = ClientOptions.of(
            nameserver, namespace=namespace, instance_name=instance_name, unit_name=unit_name,
            credentials=credentials, start_timeout_s=start_timeout_s, call_timeout_s=call_timeout_s,
        )  # fmt: skip
        for name, number, least in (
            ("send_timeout_s", send_timeout_s, 0.001),
            ("retry_times_when_send_failed", retry_times_when_send_failed, 0),
            ("max_message_bytes", max_message_bytes, 1),
            ("compress_over_bytes", compress_over_bytes, 1),
            ("default_topic_queues", default_topic_queues, 1),
        ):
            if number < least:
                raise ConfigError(f"{name}: {number} is below {least}, the least that makes sense")
        self._settings = SendSettings(
            Limits(namespace, compress_over_bytes, max_message_bytes),
            send_timeout_s,
            retry_times_when_send_failed,
            retry_another_broker_when_not_store_ok,
            send_latency_fault_enable,
            default_topic_queues,
        )
        self._check_transaction = check_transaction
        self._instance: Instance
        self._sender: Sender
        self._transactions: Transactions
        self._requests: Requests

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with open_instance(self._options) as instance:
            group = with_namespace(self._options.namespace, self.group)
            self._instance = instance
            self._sender = Sender(instance, group, self._settings)
            instance.new_topic_queues = self._settings.default_topic_queues
            self._transactions = Transactions(
                instance, self._sender, group, self._check_transaction
            )
            self._requests = Requests(instance, self._sender)
            instance.producer_groups.add(group)
            yield

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send a message and wait until a broker has it; a receipt with a status other than OK is a success, too.

        Without `queue`, the message's sharding key chooses it, else queues take turns. `timeout_s` (default
        `send_timeout_s`) is for all tries together. Raises PeerRefused (a broker says no), SendFailed (no try came
        through; holds the failure of each), NoRoute, PeerUnavailable (no name server), LocalProtocolError (the message
        is too large, or nobody may send it). When cancelled, the message may or may not have been stored.
        """
        self._check_open()
        sender = self._sender
        sent = await sender.deliver_prepared(sender.prepared(message), queue, timeout_s)
        return sent.receipt

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Hand a message to a connection and forget it: no answer, no retry, nothing known if it gets lost."""
        self._check_open()
        await self._sender.send_oneway(message, queue=queue)

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic together; one receipt for each request that their size needs.

        In a receipt of several messages, `message_id` and `offset_message_id` hold the ids of all, joined by commas,
        and `queue_offset` is that of the first. Raises as :meth:`send`; LocalProtocolError, before anything is sent,
        for several topics, delays, transactions, retry topics or a message that is too large. When a later request
        fails, the earlier ones have been stored.
        """
        self._check_open()
        listed: Sequence[Message] = list(messages)
        return await self._sender.send_batch(listed, queue=queue, timeout_s=timeout_s)

    async def send_in_transaction(self, message: Message, local: Local) -> TransactionReceipt:
        """Send a message that consumers see only if `local`, the application's own transaction, commits.

        The message is stored first, hidden. Then `local` is called with its receipt; a plain function runs in a worker
        thread. It returns COMMIT or None to let consumers have the message, ROLLBACK to drop it, UNKNOWN to let the
        broker ask `check_transaction` later. When it raises, the message is rolled back and its error leaves with a
        note. When cancelled while `local` runs, or when the broker does not hear of the end, the broker asks, too. A
        half message that is stored with a status other than OK is rolled back, and `local` is not called.

        Raises as :meth:`send`, what `local` raises, and HandlerError when it returns anything else.
        """
        self._check_open()
        return await self._transactions.send(message, local)

    async def request(
        self, message: Message, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> ReceivedMessage:
        """Send a message and wait for the answer, which a consumer makes with :func:`trio_mq.reply_to`.

        Raises as :meth:`send`, and NoReply when no answer has come within `timeout_s`.
        """
        self._check_open()
        return await self._requests.ask(message, timeout_s)

    def pipeline(self, window: int = WINDOW) -> AbstractAsyncContextManager[Pipeline]:
        """Send many messages without waiting for each answer: at most `window` are on their way.

        ``async with producer.pipeline() as pipeline: pending = await pipeline.send(message)``; ``await pending`` gives
        the receipt. Leaving the block waits for all sends, at most as long as their time-outs, and raises the first
        failure that nobody awaited. Leaving it by an exception or a cancellation waits for nothing. Requests go out in
        order, but Apache's broker may store neighbours in another one: where order counts, use :meth:`send`.
        """
        self._check_open()
        return open_pipeline(self._sender, window)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that can be sent to, by broker name and id. NoRoute when there is none."""
        self._check_open()
        return await self._sender.queues(check_topic(topic))

    async def recall(self, topic: str, handle: str) -> str:
        """Take a timed message back before it is delivered, by the `recall_handle` of its receipt.

        Returns the id of that message. Raises BodyError for a text that is no handle, PeerRefused when the broker
        cannot take it back (too late, or recalls are disabled), PeerUnavailable.
        """
        self._check_open()
        named = parse_recall_handle(handle)
        topic = with_namespace(self._options.namespace, check_topic(topic))
        route = await self._sender.route(topic)
        address = self._sender.master(route, named.broker_name)
        reply = await self._instance.ask(
            address,
            RequestCode.RECALL_MESSAGE,
            headers.RecallMessageRequest(
                topic, handle, with_namespace(self._options.namespace, self.group)
            ),
            about=f"topic {topic}",
            timeout_s=self._settings.send_timeout_s,
        )
        return headers.decode(headers.RecallMessageReply, reply.ext).msg_id

    def __repr__(self) -> str:
        return f"<Producer {self.group} of {self._options.nameservers[0]}>"
