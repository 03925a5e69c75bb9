"""Requests: a message that waits for its answer, which another client sends as a message.

In: a question, an answer as brokers hand it on (PUSH_REPLY_MESSAGE_TO_CLIENT, 326). Out: the answer, or
:class:`.NoReply`; for the other side, :func:`reply_to` makes the message that answers. Called by :mod:`.producer`.
Source of the rules: Apache DefaultMQProducerImpl.request, RequestFutureHolder, MessageUtil,
ClientRemotingProcessor.receiveReplyMessage.

A broker hands an answer to the connection on which a client sent a heartbeat. Whoever answers may choose any broker
of the cluster: so all of them are told of this client before its first question.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import attrs

from trio_mq.client.instance import Instance
from trio_mq.client.messages import Message, MessageView, ReceivedMessage
from trio_mq.client.options import with_namespace
from trio_mq.client.outgoing import REPLY
from trio_mq.client.sending import Sender
from trio_mq.errors import ClientError, LocalProtocolError, NoReply, NoRoute, ProtocolError
from trio_mq.net.link import Link
from trio_mq.protocol import headers
from trio_mq.protocol import properties as props
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers import ReplyMessageRequest
from trio_mq.protocol.layout import MAGIC_V2
from trio_mq.protocol.message import Host
from trio_mq.protocol.record import StoredMessage

log = logging.getLogger("trio_mq.client")

#: Apache's request() has no default; this is that of its sends.
REQUEST_TIMEOUT_S: Final = 3.0
#: Topics of answers, one for each cluster (Apache: MixAll.REPLY_TOPIC_POSTFIX).
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"


@attrs.define(eq=False)
class _Question:
    """One that waits."""

    answered: anyio.Event = attrs.field(factory=anyio.Event)
    answer: ReceivedMessage | None = None


class Requests:
    """The questions of one producer that wait for answers."""

    def __init__(self, instance: Instance, sender: Sender) -> None:
        self._instance = instance
        self._sender = sender
        self._waiting: dict[str, _Question] = {}
        self._ready_clusters: set[str] = set()
        instance.on_request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._answered)

    async def ask(self, message: Message, timeout_s: float) -> ReceivedMessage:
        """Send a question and wait for its answer; raises as a send does, and NoReply when the time is over."""
        correlation_id = str(uuid.uuid4())
        question = self._waiting[correlation_id] = _Question()
        began_s = anyio.current_time()
        try:
            with anyio.move_on_after(timeout_s):
                await self._make_known(message.topic)
                await self._sender.send(
                    message,
                    timeout_s=max(began_s + timeout_s - anyio.current_time(), 0.001),
                    extra_properties={
                        props.CORRELATION_ID: correlation_id,
                        props.REPLY_TO_CLIENT: self._instance.client_id,
                        props.TTL: str(round(timeout_s * 1000)),
                    },
                )
                await question.answered.wait()
        finally:
            del self._waiting[correlation_id]
        if question.answer is not None:
            return question.answer
        raise NoReply(
            f"topic {message.topic}: no answer to request {correlation_id} within {timeout_s:g} s; check that a "
            f"consumer of the topic runs and answers with reply_to(), or give it more time (timeout_s)",
            correlation_id=correlation_id,
        )

    async def _make_known(self, topic: str) -> None:
        """Let all brokers of the topic's clusters know this client."""
        topic = with_namespace(self._instance.options.namespace, topic)
        route = await self._sender.route(topic)
        new = {broker.cluster for broker in route.data.broker_datas} - self._ready_clusters
        if not new:
            return
        for cluster in new:
            try:
                await self._instance.route(cluster + REPLY_TOPIC_SUFFIX)
            except NoRoute as error:  # a cluster of brokers that make that topic when it is used
                log.debug("cluster %s: %s", cluster, error)
        await self._instance.heartbeat()
        self._ready_clusters |= new

    def _answered(self, link: Link, command: Command) -> Command:
        """PUSH_REPLY_MESSAGE_TO_CLIENT (326)."""
        try:
            header = headers.decode(ReplyMessageRequest, command.ext)
            answer = answer_of(header, command.body, self._instance.clock.now_ms())
        except ProtocolError as error:
            log.warning("%s: an answer cannot be read: %s", link.address, error)
            return Command(ResponseCode.SYSTEM_ERROR, remark=f"cannot read the reply: {error}")
        correlation_id = answer.properties.get(props.CORRELATION_ID, "")
        question = self._waiting.get(correlation_id)
        if question is None:
            log.warning("an answer to request %r comes too late, dropped", correlation_id)
        elif question.answer is None:
            question.answer = answer
            question.answered.set()
        return Command(ResponseCode.SUCCESS)


def answer_of(header: ReplyMessageRequest, body: bytes, now_ms: int) -> ReceivedMessage:
    """The message that a broker pushes; fields that only stored messages have are 0."""
    properties = {**props.parse((header.properties or "").encode()), props.ARRIVE_TIME: str(now_ms)}
    stored = StoredMessage(
        size=0,
        magic=MAGIC_V2,
        body_crc=0,
        queue_id=header.queue_id,
        flag=header.flag,
        queue_offset=0,
        log_offset=0,
        sys_flag=header.sys_flag,
        born_timestamp_ms=header.born_timestamp,
        born_host=Host.parse(header.born_host),
        store_timestamp_ms=header.store_timestamp,
        store_host=Host.parse(header.store_host),
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body=body,
        topic=header.topic,
        properties=props.encode(properties),
    )
    return ReceivedMessage(
        stored, MessageQueue(header.topic, "", header.queue_id), stored.plain_body
    )


def reply_to(
    request: MessageView,
    body: bytes,
    tags: str | None = None,
    keys: str | Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
) -> Message:
    """The message that answers a request; send it with ``producer.send``, which then waits until the asker has it.

    ClientError for a message that asks nothing.
    """
    asked = request.properties
    cluster, client_id = asked.get(props.CLUSTER), asked.get(props.REPLY_TO_CLIENT)
    correlation_id = asked.get(props.CORRELATION_ID)
    if client_id is None or correlation_id is None:
        raise ClientError(
            f"{request!r} is no request: nobody waits for an answer; requests are sent with producer.request()"
        )
    if cluster is None:
        raise LocalProtocolError(
            f"{request!r} does not say its cluster ({props.CLUSTER}); brokers since 4.6 add it to requests"
        )
    own = {
        props.MSG_TYPE: REPLY,
        props.CORRELATION_ID: correlation_id,
        props.REPLY_TO_CLIENT: client_id,
    }
    if props.TTL in asked:
        own[props.TTL] = asked[props.TTL]
    return Message(cluster + REPLY_TOPIC_SUFFIX, body, tags, keys, {**(properties or {}), **own})
