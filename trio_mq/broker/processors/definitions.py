"""Administration of topics and groups: look at, create, change and delete them.

In: typed requests and their bodies. Out: replies. A change is answered once it is saved, so that an
administrator who was told of a success finds it again after a crash. Called by the remoting face.
Rules: Apache AdminBrokerProcessor.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.names import pop_retry_topics
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.saver import Saver, respond_saved
from trio_mq.broker.stats import BrokerStats
from trio_mq.broker.topics import TopicTable
from trio_mq.errors import BodyError
from trio_mq.net.requests import DEFERRED, Call, Deferred, Reply, RequestTable
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import DataVersion, SubscriptionGroupConfig, TopicConfig, TopicList
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.headers.admin import (
    CreateTopicRequest,
    DeleteSubscriptionGroupRequest,
    DeleteTopicRequest,
    GetAllSubscriptionGroupReply,
    GetAllSubscriptionGroupRequest,
    GetAllTopicConfigReply,
    GetAllTopicConfigRequest,
    GetSubscriptionGroupConfigRequest,
    GetTopicConfigRequest,
)
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.admin")

PAGE_SIZE: Final = 2000
"""Most topics or groups of one answer to a peer that asks for pages (Apache splitMetadataSize)."""


class Definitions:
    """Answers about topics and groups. Without a `saver`, changes are answered before they are saved."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        saver: Saver | None,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._stats = stats
        self._saver = saver

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicRequest, self.update_topic)
        table.add(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequest, self.delete_topic)
        table.add(RequestCode.GET_TOPIC_CONFIG, GetTopicConfigRequest, self.topic)
        table.add(RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequest, self.all_topics)
        table.add(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None, self.system_topics)
        table.add(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, self.update_group)
        table.add(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, DeleteSubscriptionGroupRequest, self.delete_group
        )
        table.add(
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, GetSubscriptionGroupConfigRequest, self.group
        )
        table.add(
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
            GetAllSubscriptionGroupRequest,
            self.all_groups,
        )

    # -- topics

    def update_topic(self, call: Call, request: CreateTopicRequest) -> Reply | Deferred:
        """UPDATE_AND_CREATE_TOPIC (17)."""
        wanted = TopicConfig(
            request.topic,
            request.read_queue_nums,
            request.write_queue_nums,
            request.perm,
            request.topic_filter_type,
            request.topic_sys_flag or 0,
            request.order,
        )
        if not self._topics.update(wanted, request.attributes):
            return Reply()
        log.info("topic %s set by %s", request.topic, call.peer.address)
        return self._when_saved(call)

    def delete_topic(self, call: Call, request: DeleteTopicRequest) -> Reply | Deferred:
        """DELETE_TOPIC_IN_BROKER (215): settings, queues and offsets, and its pop retry topics."""
        victims = [request.topic]
        for group in self._offsets.groups_of(request.topic):
            found = pop_retry_topics(request.topic, group)
            victims += [name for name in found if name in self._topics]
        for topic in victims:
            self._topics.delete(topic)
            self._offsets.remove_topic(topic)
            self._store.drop_topic(topic)
        log.info("topics %s deleted by %s", ", ".join(victims), call.peer.address)
        return self._when_saved(call)

    def topic(self, _: Call, request: GetTopicConfigRequest) -> Reply:
        """GET_TOPIC_CONFIG (351)."""
        return Reply(body=bodies.encode(self._topics.require(request.topic)))

    def all_topics(self, _: Call, request: GetAllTopicConfigRequest) -> Reply:
        """GET_ALL_TOPIC_CONFIG (21), all at once or a page."""
        start, count = _page(
            *(request.topic_seq, request.data_version, request.max_topic_num),
            *(self._topics.version, len(self._topics)),
        )
        page = None if count is None else self._topics.page(start, count)
        return Reply(
            header=GetAllTopicConfigReply(len(self._topics)),
            body=bodies.encode(self._topics.wrapper(page)),
        )

    def system_topics(self, _: Call, __: None) -> Reply:
        """GET_SYSTEM_TOPIC_LIST_FROM_BROKER (305)."""
        return Reply(body=bodies.encode(TopicList(tuple(self._topics.system_names))))

    # -- groups

    def update_group(self, call: Call, _: None) -> Reply | Deferred:
        """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP (200)."""
        wanted = bodies.decode(SubscriptionGroupConfig, call.command.body)
        if not self._groups.update(wanted):
            return Reply()
        log.info("group %s set by %s", wanted.group_name, call.peer.address)
        return self._when_saved(call)

    def delete_group(self, call: Call, request: DeleteSubscriptionGroupRequest) -> Reply | Deferred:
        """DELETE_SUBSCRIPTIONGROUP (207), with or without its offsets."""
        self._groups.delete(request.group_name)
        self._stats.forget_group(request.group_name)
        if request.clean_offset:
            self._offsets.remove_group(request.group_name)
        log.info("group %s deleted by %s", request.group_name, call.peer.address)
        return self._when_saved(call)

    def group(self, _: Call, request: GetSubscriptionGroupConfigRequest) -> Reply:
        """GET_SUBSCRIPTIONGROUP_CONFIG (352); an unknown group may be created, as on any use."""
        return Reply(body=bodies.encode(self._groups.require(request.group)))

    def all_groups(self, _: Call, request: GetAllSubscriptionGroupRequest) -> Reply:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201), all at once or a page."""
        start, count = _page(
            *(request.group_seq, request.data_version, request.max_group_num),
            *(self._groups.version, len(self._groups)),
        )
        return Reply(
            header=GetAllSubscriptionGroupReply(len(self._groups)),
            body=bodies.encode(self._groups.wrapper(start, count)),
        )

    def _when_saved(self, call: Call) -> Reply | Deferred:
        if self._saver is None:
            return Reply()
        self._saver.soon(partial(respond_saved, call, Reply()))
        return DEFERRED


def _page(
    start: int | None,
    version_text: str | None,
    count: int | None,
    version: DataVersion,
    total: int,
) -> tuple[int, int | None]:
    """First number and count of a page; count None is everything, for peers that know no pages.

    A peer whose version is not ours starts anew: the order of names has changed under it.
    """
    if start is None and version_text is None and count is None:
        return 0, None
    try:
        same = bodies.decode(DataVersion, (version_text or "").encode()) == version
    except BodyError:
        same = False
    begin = max(0, start or 0) if same else 0
    number = max(0, min(count or PAGE_SIZE, PAGE_SIZE))
    # A page never leaves just one entry for the next: an Apache slave does not ask for the last one alone.
    return begin, number - 1 if number > 1 and begin + number == total - 1 else number
