"""SEND_REPLY_MESSAGE (324, 325): the answer to a request that was itself a message.

In: a reply message of a consumer. Out: the same as PUSH_REPLY_MESSAGE_TO_CLIENT (326) on the connection of the client
that asked, then a record in the topic of replies, then the consumer's answer: success means that the client has taken
the reply. Nobody reads the topic of replies; its records are there to look up what was answered, so one that cannot be
stored is told in the log and not to the consumer. Called by the remoting face. Rules: Apache ReplyMessageProcessor.
"""

from __future__ import annotations

import logging
from typing import Final

from trio_mq.broker.clientcalls import ClientCalls, Unanswered
from trio_mq.broker.members import Client, Members
from trio_mq.broker.processors.send import Sender
from trio_mq.broker.put import Letter, Put, Putter
from trio_mq.config import Settings
from trio_mq.errors import LocalProtocolError, RequestRefused, StoreFull
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply, RequestTable
from trio_mq.protocol import headers, properties
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.send import (
    ReplyMessageRequest,
    SendMessageReply,
    SendMessageRequest,
    SendMessageRequestV2,
)
from trio_mq.protocol.layout import MAX_PROPERTIES_BYTES
from trio_mq.protocol.message import Host, offset_message_id

log = logging.getLogger("trio_mq.broker.reply")

#: Message id of a reply that is not stored; the Java client needs some text there.
NOT_STORED: Final = "0"


class Replies:
    """Hands replies to the clients that wait for them."""

    def __init__(
        self,
        sender: Sender,
        putter: Putter,
        members: Members,
        calls: ClientCalls,
        settings: Settings,
        host: Host,
    ) -> None:
        self._sender = sender
        self._putter = putter
        self._members = members
        self._calls = calls
        self._settings = settings.broker
        self._max_body = settings.store.max_message_size
        self._host = host

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.SEND_REPLY_MESSAGE, SendMessageRequest, self.reply)
        table.add(RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageRequestV2, self.reply)

    def reply(self, call: Call, request: SendMessageRequest) -> Deferred:
        """SEND_REPLY_MESSAGE (324), SEND_REPLY_MESSAGE_V2 (325)."""
        queue = self._sender.queue_for(request)
        self._check(call.command.body, request.properties or "")
        letter = Letter(
            queue.topic,
            queue.queue_id,
            call.command.body,
            (request.properties or "").encode(),
            request.born_timestamp,
            call.peer.address.packed,
            flag=request.flag,
            reconsume_times=request.reconsume_times or 0,
        )
        found = properties.parse(letter.properties)
        client_id = found.get(properties.REPLY_TO_CLIENT)
        client = None if client_id is None else self._members.producer(client_id)
        if client is None:
            self._answer(call, letter, _nobody(client_id))
            return DEFERRED
        found[properties.PUSH_REPLY_TIME] = str(call.now_ms)
        self._push(call, request, letter, client, properties.encode(found))
        return DEFERRED

    def _check(self, body: bytes, props: str) -> None:
        if not 0 < len(body) <= self._max_body:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body of the reply has {len(body)} bytes, 1 to {self._max_body} are allowed "
                "(maxMessageSize)",
            )
        if len(props.encode()) > MAX_PROPERTIES_BYTES:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties of the reply have {len(props.encode())} bytes, "
                f"{MAX_PROPERTIES_BYTES} are allowed; use fewer or shorter properties",
            )

    def _push(
        self, call: Call, request: SendMessageRequest, letter: Letter, client: Client, props: bytes
    ) -> None:
        """Hand the reply to the client that asked, and answer when it has said what it did with it."""
        header = ReplyMessageRequest(
            producer_group=request.producer_group,
            topic=request.topic,
            default_topic=request.default_topic,
            default_topic_queue_nums=request.default_topic_queue_nums,
            queue_id=request.queue_id,
            sys_flag=request.sys_flag,
            born_timestamp=request.born_timestamp,
            flag=request.flag,
            born_host=_plain(call.peer.address),
            store_host=_plain(self._host),
            store_timestamp=call.now_ms,
            properties=props.decode("utf-8", "replace"),
            reconsume_times=request.reconsume_times,
            unit_mode=bool(request.unit_mode),
        )

        def answered(outcome: Command | Unanswered) -> None:
            self._answer(call, letter, _problem(outcome, client))

        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        self._calls.call(client.peer, code, headers.encode(header), letter.body, answered)

    def _answer(self, call: Call, letter: Letter, problem: str | None) -> None:
        """Store the reply and tell the consumer; `problem` is why the client that asked has not got it."""
        if problem is not None:
            log.warning("reply of %s not delivered: %s", call.peer.address, problem)
        put = self._store(letter)
        header = SendMessageReply(
            msg_id=NOT_STORED if put is None else offset_message_id(self._host, put.log_offset),
            queue_id=letter.queue_id,
            queue_offset=0 if put is None else put.queue_offset,
            msg_region=self._settings.region_id,
            trace_on=self._settings.trace_on,
        )
        code = ResponseCode.SUCCESS if problem is None else ResponseCode.SYSTEM_ERROR
        reply = Reply(code, header=header, remark=problem)
        answer: Reply | Deferred = reply
        if put is not None and problem is None:
            answer = self._putter.answer(call, put.end, reply)
        if answer is not DEFERRED:
            call.respond(answer)

    def _store(self, letter: Letter) -> Put | None:
        """Where the reply lies now, None when it is not stored."""
        if not self._settings.store_reply_message_enable:
            return None
        try:
            self._putter.check_replicas()
            return self._putter.deliver(letter)
        except (StoreFull, LocalProtocolError, RequestRefused) as error:
            log.warning("a reply is not stored in %s: %s", letter.topic, error)
            return None


def _nobody(client_id: str | None) -> str:
    if client_id is None:
        return f"reply message properties[{properties.REPLY_TO_CLIENT}] is null; reply to a request only"
    return f"push reply message fail, channel of <{client_id}> not found."


def _problem(outcome: Command | Unanswered, client: Client) -> str | None:
    """Why a client has not taken the reply, None when it has."""
    if isinstance(outcome, Unanswered):
        return f"push reply message to {client.client_id} fail: it {outcome.value}"
    if outcome.code == ResponseCode.SUCCESS:
        return None
    return (
        f"push reply message to {client.client_id} fail: {outcome.remark or f'code {outcome.code}'}"
    )


def _plain(host: Host) -> str:
    """Address and port as Apache writes them here: no brackets around IPv6."""
    return f"{host.ip}:{host.port}"
