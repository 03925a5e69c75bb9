"""What consumers are asked through the broker: their running info, their offsets, to consume one message now.

In: GET_CONSUMER_RUNNING_INFO (307), CONSUME_MESSAGE_DIRECTLY (309) and INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223) of
administrators. Out: the same requests (221 for 223) to consumers on their own connections, and the answers of these,
passed on. Called by the remoting face. A look for a message may raise ColdData: the face asks again then. Rules: Apache
AdminBrokerProcessor.callConsumer, consumeMessageDirectly, Broker2Client.getConsumeStatus.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Final

import attrs

from trio_mq.broker.clientcalls import CALL_TIMEOUT_S, ClientCalls, Unanswered
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.members import Client, Members
from trio_mq.broker.topics import TopicTable
from trio_mq.errors import BodyError, HeaderError, RequestRefused
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply, RequestTable
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import ConsumerStatusBody, MessageQueue
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.heartbeat import (
    ConsumeMessageDirectlyResultRequest,
    GetConsumerRunningInfoRequest,
)
from trio_mq.protocol.headers.offset import GetConsumerStatusRequest
from trio_mq.protocol.message import parse_offset_message_id
from trio_mq.protocol.record import decode
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.callback")

#: Oldest clients that know these requests, by the number of their version (3.1.8 and 3.0.7, both snapshots).
RUNNING_INFO_VERSION: Final = 62
STATUS_VERSION: Final = 28
#: How long all consumers together may take to tell their offsets (Apache: 5 s for each, one after the other).
STATUS_TIMEOUT_S: Final = 5.0


class Callbacks:
    """Asks consumers on behalf of administrators."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        members: Members,
        calls: ClientCalls,
        broker_name: str,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._members = members
        self._calls = calls
        self._broker_name = broker_name

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(
            RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequest, self.running_info
        )
        table.add(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            ConsumeMessageDirectlyResultRequest,
            self.consume_directly,
        )
        table.add(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GetConsumerStatusRequest, self.status
        )

    def running_info(self, call: Call, request: GetConsumerRunningInfoRequest) -> Deferred:
        """GET_CONSUMER_RUNNING_INFO (307): what a consumer does, with its threads when jstackEnable is set."""
        client = self._consumer(request.consumer_group, request.client_id)
        return self._pass_on(call, client, call.command.ext, call.command.body)

    def consume_directly(
        self, call: Call, request: ConsumeMessageDirectlyResultRequest
    ) -> Deferred:
        """CONSUME_MESSAGE_DIRECTLY (309): a consumer gets one stored message, whatever its offsets are."""
        client = self._consumer(request.consumer_group, request.client_id)
        body = self._message(request.msg_id)
        topic = self._topics.get(request.topic) if request.topic else None
        group = self._groups.get(request.consumer_group)
        added = attrs.evolve(
            request,
            broker_name=self._broker_name,
            topic_sys_flag=request.topic_sys_flag if topic is None else topic.topic_sys_flag,
            group_sys_flag=request.group_sys_flag if group is None else group.group_sys_flag,
        )
        return self._pass_on(call, client, {**call.command.ext, **headers.encode(added)}, body)

    def _message(self, message_id: str | None) -> bytes:
        """The record that an offset message id names."""
        if message_id is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, "which message is to be consumed is missing (msgId)"
            )
        try:
            _, log_offset = parse_offset_message_id(message_id)
            data = self._store.reader.record(log_offset)
            if data is not None and decode(data).log_offset == log_offset:
                return data
        except (HeaderError, BodyError) as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"message id {message_id}: {error}; the id with the log offset is needed, as a send "
                "returns it and queryMsgByKey prints it",
            ) from error
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"there is no message at log offset {log_offset}"
        )

    def _consumer(self, group: str, client_id: str | None) -> Client:
        client = None if client_id is None else self._members.consumer(group, client_id)
        if client is None:
            online = ", ".join(self._members.client_ids(group)[:10]) or "none"
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"The Consumer <{group}> <{client_id}> not online; connected members: {online}",
            )
        if client.version < RUNNING_INFO_VERSION:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"consumer {client_id} of group {group} has version {client.version}, which does not "
                f"know this request; {RUNNING_INFO_VERSION} (3.1.8) is the first that does",
            )
        return client

    def _pass_on(self, call: Call, client: Client, ext: Mapping[str, str], body: bytes) -> Deferred:
        """Ask a client the same, and answer what it answers."""

        def answered(outcome: Command | Unanswered) -> None:
            call.respond(_as_reply(outcome, client))

        self._calls.call(client.peer, call.command.code, ext, body, answered)
        return DEFERRED

    def status(self, call: Call, request: GetConsumerStatusRequest) -> Deferred:
        """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223): how far one or all consumers of a group are, by what they say."""
        clients = self._members.consumers(request.group)
        if not clients:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"No Any Consumer online in the consumer group: [{request.group}]",
            )
        old = [c for c in clients if c.version < STATUS_VERSION]
        if old:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"consumer {old[0].client_id} has version {old[0].version}, which cannot tell its offsets",
            )
        wanted = request.client_addr
        if wanted and not wanted.isspace():
            clients = [c for c in clients if c.client_id == wanted]
        _StatusRound(call, request, clients).begin(self._calls)
        return DEFERRED


class _StatusRound:
    """One question to several consumers, answered when all have answered or their time is over."""

    def __init__(
        self, call: Call, request: GetConsumerStatusRequest, clients: list[Client]
    ) -> None:
        self._call = call
        self._request = request
        self._clients = clients
        self._left = len(clients)
        self._table: dict[str, Mapping[MessageQueue, int]] = {}

    def begin(self, calls: ClientCalls) -> None:
        """Ask them all at once."""
        if not self._clients:
            self._respond()
        ext = headers.encode(GetConsumerStatusRequest(self._request.topic, self._request.group))
        for client in self._clients:
            calls.call(
                client.peer,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                ext,
                b"",
                partial(self._answered, client),
                timeout_s=STATUS_TIMEOUT_S,
            )

    def _answered(self, client: Client, outcome: Command | Unanswered) -> None:
        self._left -= 1
        try:
            if isinstance(outcome, Unanswered):
                log.warning("consumer %s %s: its offsets are left out", *_who(client, outcome))
            elif outcome.code == ResponseCode.SUCCESS and outcome.body:
                body = bodies.decode(ConsumerStatusBody, outcome.body)
                self._table[client.client_id] = body.message_queue_table
        except BodyError as error:
            log.warning("consumer %s: its offsets cannot be read: %s", client.client_id, error)
        if not self._left:
            self._respond()

    def _respond(self) -> None:
        self._call.respond(Reply(body=bodies.encode(ConsumerStatusBody(self._table))))


def _who(client: Client, outcome: Unanswered) -> tuple[str, str]:
    return client.client_id, outcome.value


def _as_reply(outcome: Command | Unanswered, client: Client) -> Reply:
    """A client's response as our own answer."""
    if isinstance(outcome, Command):
        return Reply(outcome.code, body=outcome.body, remark=outcome.remark, ext=outcome.ext)
    if outcome is Unanswered.TIMEOUT:
        return Reply(
            ResponseCode.CONSUME_MSG_TIMEOUT,
            remark=f"consumer {client.client_id} did not answer within {CALL_TIMEOUT_S:g} s",
        )
    return Reply(ResponseCode.SYSTEM_ERROR, remark=f"consumer {client.client_id} {outcome.value}")
