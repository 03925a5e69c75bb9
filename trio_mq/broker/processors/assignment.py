"""QUERY_ASSIGNMENT, SET_ and GET_ALL_MESSAGE_REQUEST_MODE: the broker shares out queues, to be pulled or popped.

In: the bodies of these requests. Out: the queues of one consumer, once the topic's queues on all brokers are known;
modes, once they are saved. Called by the remoting face. Rules: Apache QueryAssignmentProcessor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.members import Members
from trio_mq.broker.names import LMQ_PREFIX, RETRY_PREFIX
from trio_mq.broker.pop.modes import POP, PULL, RequestModes, checked
from trio_mq.broker.pop.shares import STRATEGIES, share_for_pop
from trio_mq.broker.routes import TopicRoutes
from trio_mq.broker.saver import respond_saved
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import RequestRefused, StoreError
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply, RequestTable
from trio_mq.protocol import bodies, jsondialect
from trio_mq.protocol.bodies import (
    MessageModel,
    MessageQueueAssignment,
    QueryAssignmentBody,
    QueryAssignmentReplyBody,
    SetMessageRequestModeBody,
)
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.jsondialect import MessageQueue

log = logging.getLogger("trio_mq.broker.pop")

Save = Callable[[Callable[[StoreError | None], None]], None]
"""Saves the modes, and tells when that has happened or why it has not."""


class Assignments:
    """Shares out queues."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        members: Members,
        modes: RequestModes,
        routes: TopicRoutes,
        settings: BrokerSettings,
        save: Save,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._members = members
        self._modes = modes
        self._routes = routes
        self._settings = settings
        self._save = save

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.QUERY_ASSIGNMENT, None, self.query)
        table.add(RequestCode.SET_MESSAGE_REQUEST_MODE, None, self.set_mode)
        table.add(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, None, self.all_modes)

    def query(self, call: Call, _: None) -> Deferred:
        """QUERY_ASSIGNMENT (400): queues of one consumer. Without a list it keeps those that it has."""
        asked = bodies.decode(QueryAssignmentBody, call.command.body)
        if asked.topic.startswith(LMQ_PREFIX):
            own = MessageQueue(asked.topic, self._settings.broker_name, 0)
            self._assign(call, asked, (own,))
        else:
            self._routes.ask(asked.topic, partial(self._assign, call, asked))
        return DEFERRED

    def _assign(
        self, call: Call, asked: QueryAssignmentBody, queues: Sequence[MessageQueue] | None
    ) -> None:
        mode = self._mode_of(asked.topic, asked.consumer_group)
        found = None if queues is None else self._share(asked, queues, mode)
        assignments = (
            None
            if found is None
            else tuple(MessageQueueAssignment(queue, mode.mode) for queue in found)
        )
        call.respond(Reply(body=bodies.encode(QueryAssignmentReplyBody(assignments))))

    def _mode_of(self, topic: str, group: str) -> SetMessageRequestModeBody:
        """What was set for a group in a topic, else what the settings say. Retry topics are pulled."""
        found = self._modes.get(topic, group)
        if found is not None:
            return found
        settings = self._settings
        if topic.startswith(RETRY_PREFIX) or settings.default_message_request_mode.value != POP:
            return SetMessageRequestModeBody(topic, group, PULL)
        return SetMessageRequestModeBody(topic, group, POP, settings.default_pop_share_queue_num)

    def _share(
        self,
        asked: QueryAssignmentBody,
        queues: Sequence[MessageQueue],
        mode: SetMessageRequestModeBody,
    ) -> Sequence[MessageQueue] | None:
        """The queues of a consumer; none if it is not a member of its group; None if nothing can be said."""
        if asked.message_model is MessageModel.BROADCASTING:
            return queues
        if not self._settings.server_load_balancer_enable:
            return queues
        client_ids = sorted(self._members.client_ids(asked.consumer_group))
        strategy = STRATEGIES.get(asked.strategy_name or "")
        if not client_ids or strategy is None or not asked.client_id.strip() or not queues:
            log.warning(
                "no queues of topic %s for client %r of group %s: %d clients, %d queues, strategy %s (known: %s)",
                *(asked.topic, asked.client_id, asked.consumer_group, len(client_ids), len(queues)),
                *(asked.strategy_name, ", ".join(STRATEGIES)),
            )
            return None
        ordered = sorted(queues, key=lambda q: (q.topic, q.broker_name, q.queue_id))
        if mode.mode == POP:
            number = mode.pop_share_queue_num
            return share_for_pop(strategy, ordered, client_ids, asked.client_id, number)
        return strategy(ordered, client_ids, asked.client_id)

    def set_mode(self, call: Call, _: None) -> Deferred:
        """SET_MESSAGE_REQUEST_MODE (401): answered when it is saved."""
        mode = checked(bodies.decode(SetMessageRequestModeBody, call.command.body))
        if mode.topic.startswith(RETRY_PREFIX):
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"topic {mode.topic} is a retry topic, which is always pulled; its mode cannot be set",
            )
        self._topics.require(mode.topic)
        self._groups.require(mode.consumer_group)
        self._modes.set_mode(mode)
        log.info("group %s reads topic %s by %s", mode.consumer_group, mode.topic, mode)
        self._save(partial(respond_saved, call, Reply()))
        return DEFERRED

    def all_modes(self, _call: Call, _request: None) -> Reply:
        """GET_ALL_MESSAGE_REQUEST_MODE (402): for brokers that follow this one."""
        return Reply(body=jsondialect.dumps(self._modes.to_json()))
