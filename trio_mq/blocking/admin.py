"""Administration for plain threads.

In: addresses of name servers. Out: typed results. The twin of :class:`trio_mq.client.admin.Admin`, where parameters,
results and errors are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trio_mq.blocking.twin import Twin, made_as, waits
from trio_mq.client import admin
from trio_mq.client.messages import ReceivedMessage
from trio_mq.client.subscription import Sql
from trio_mq.errors import BrokerFailure
from trio_mq.protocol.bodies import MessageQueue


class Admin(Twin[admin.Admin]):
    """Looks at a cluster and changes it, inside its ``with`` block; any number of threads may ask at the same time.

    It takes what :class:`trio_mq.Admin` takes.
    """

    @made_as(admin.Admin)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(admin.Admin(*args, **kwargs))

    brokers = waits(admin.Admin.brokers)
    clusters = waits(admin.Admin.clusters)
    cluster_status = waits(admin.Admin.cluster_status)
    broker_status = waits(admin.Admin.broker_status)
    broker_config = waits(admin.Admin.broker_config)
    update_broker_config = waits(admin.Admin.update_broker_config)
    kv = waits(admin.Admin.kv)
    kv_get = waits(admin.Admin.kv_get)
    kv_put = waits(admin.Admin.kv_put)
    kv_delete = waits(admin.Admin.kv_delete)
    wipe_write_permission = waits(admin.Admin.wipe_write_permission)
    add_write_permission = waits(admin.Admin.add_write_permission)
    running_info = waits(admin.Admin.running_info)
    topics = waits(admin.Admin.topics)
    create_topic = waits(admin.Admin.create_topic)
    update_topic = waits(admin.Admin.update_topic)
    delete_topic = waits(admin.Admin.delete_topic)
    topic_route = waits(admin.Admin.topic_route)
    topic_config = waits(admin.Admin.topic_config)
    topic_stats = waits(admin.Admin.topic_stats)
    groups_of = waits(admin.Admin.groups_of)
    min_offsets = waits(admin.Admin.min_offsets)
    max_offsets = waits(admin.Admin.max_offsets)
    offsets_at = waits(admin.Admin.offsets_at)
    offsets = waits(admin.Admin.offsets)
    groups = waits(admin.Admin.groups)
    create_group = waits(admin.Admin.create_group)
    update_group = waits(admin.Admin.update_group)
    group_config = waits(admin.Admin.group_config)
    delete_group = waits(admin.Admin.delete_group)
    consumers = waits(admin.Admin.consumers)
    producers = waits(admin.Admin.producers)
    topics_of = waits(admin.Admin.topics_of)
    progress = waits(admin.Admin.progress)
    consumer_offsets = waits(admin.Admin.consumer_offsets)
    set_consumer_offset = waits(admin.Admin.set_consumer_offset)
    reset_offsets = waits(admin.Admin.reset_offsets)
    clone_offsets = waits(admin.Admin.clone_offsets)
    message = waits(admin.Admin.message)
    messages_by_unique_id = waits(admin.Admin.messages_by_unique_id)
    messages_by_key = waits(admin.Admin.messages_by_key)
    message_at = waits(admin.Admin.message_at)

    def read(
        self,
        topic: str,
        *,
        begin: admin.Place | Mapping[MessageQueue, int] = "begin",
        end: admin.Place | Mapping[MessageQueue, int] = "end",
        follow: bool = False,
        wanted: str | Sql | None = None,
        queues: Iterable[MessageQueue] | None = None,
    ) -> Reading:
        """The messages of a topic, for a ``for`` loop; see :meth:`trio_mq.Admin.read`."""
        original = self._call(
            self._client.read,
            topic, begin=begin, end=end, follow=follow, wanted=wanted, queues=queues,
        )  # fmt: skip
        return Reading(self, original)


class Reading:
    """Messages from one place of a topic to another; may be left at any time."""

    def __init__(self, owner: Admin, original: admin.Reading) -> None:
        self._owner = owner
        self._original = original

    @property
    def failures(self) -> tuple[BrokerFailure, ...]:
        """Brokers whose messages are not all there."""
        return self._original.failures

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return self._owner._each(self._original)
