"""Where a group may read and where it stands, on an administrator's order.

In: UPDATE_AND_GET_GROUP_FORBIDDEN (353), CLONE_GROUP_OFFSET (314). Out: replies. A change of what a group may read is
answered once it is saved; offsets are saved by the second, as commits are. Called by the remoting face. Rules: Apache
AdminBrokerProcessor, SubscriptionGroupManager.updateForbidden, ConsumerOffsetManager.cloneOffset.
"""

from __future__ import annotations

import logging
from functools import partial

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.members import Members
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.saver import Saver, respond_saved
from trio_mq.broker.topics import TopicTable
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply, RequestTable
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import GroupForbidden
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.headers.admin import UpdateGroupForbiddenRequest
from trio_mq.protocol.headers.offset import CloneGroupOffsetRequest

log = logging.getLogger("trio_mq.broker.admin")


class GroupAccess:
    """Answers about single groups."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        members: Members,
        saver: Saver | None,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._members = members
        self._saver = saver

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, UpdateGroupForbiddenRequest, self.forbidden
        )
        table.add(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffsetRequest, self.clone)

    def forbidden(self, call: Call, request: UpdateGroupForbiddenRequest) -> Reply | Deferred:
        """UPDATE_AND_GET_GROUP_FORBIDDEN (353): whether a group may read a topic; changed if the request says so."""
        group, topic, before = request.group, request.topic, self._groups.revision
        if request.readable is not None:
            self._groups.set_readable(group, topic, readable=request.readable)
        readable = not self._groups.is_forbidden(group, topic)
        reply = Reply(remark="", body=bodies.encode(GroupForbidden(topic, group, readable)))
        if self._groups.revision == before or self._saver is None:
            return reply
        log.info(
            "group %s %s read topic %s, set by %s",
            *(group, "may" if readable else "may not", topic, call.peer.address),
        )
        self._saver.soon(partial(respond_saved, call, reply))
        return DEFERRED

    def clone(self, call: Call, request: CloneGroupOffsetRequest) -> Reply:
        """CLONE_GROUP_OFFSET (314): let a group be where another one is, in one topic or in all of its topics.

        (Apache copies nothing when no topic is named.) Topics that the source is connected for but does not
        subscribe are passed over, unless the request says that it is offline.
        """
        source, target = request.src_group, request.dest_group
        wanted = [request.topic] if request.topic else self._offsets.topics_of(source)
        if request.topic:
            self._topics.require(request.topic)
        live = None if request.offline else self._members.consumer_group(source)
        copied = [
            topic
            for topic in wanted
            if topic in self._topics
            and self._offsets.of(source, topic)
            and (live is None or not live.subscriptions or topic in live.subscriptions)
        ]
        for topic in copied:
            self._offsets.clone(source, target, topic)
        if not copied:
            return Reply(remark=f"nothing copied: group {source} has no offsets there")
        log.info(
            "group %s is where group %s is in %s, set by %s",
            *(target, source, ", ".join(copied), call.peer.address),
        )
        return Reply()
