"""CONSUMER_SEND_MSG_BACK: a consumer failed on a message, and wants it again later.

In: a typed request. Out: SUCCESS once the message is stored again, in the schedule topic for its retry topic or among
the dead letters; under sync flush, once that is durable. Called by the remoting face. The rules are in
:mod:`trio_mq.broker.retries`. Source: Apache AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from __future__ import annotations

import logging
from typing import Final

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.names import DLQ_PREFIX, dlq_topic, retry_topic
from trio_mq.broker.put import Putter
from trio_mq.broker.retries import DEAD_LETTER_QUEUES, returned_letter
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import BodyError, LocalProtocolError, RequestRefused, StoreFull
from trio_mq.net.requests import Call, Deferred, Reply, RequestTable
from trio_mq.protocol import properties
from trio_mq.protocol.bodies import SubscriptionGroupConfig
from trio_mq.protocol.codes import MessageFlag, Perm, RequestCode, ResponseCode
from trio_mq.protocol.headers.send import ConsumerSendMsgBackRequest
from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.sendback")

#: From this version on (3.4.9) a client's own limit of tries counts.
OWN_LIMIT_VERSION: Final = 121
_INNER_BATCH: Final = int(MessageFlag.INNER_BATCH)


class SendBack:
    """Answers consumers that send messages back."""

    def __init__(
        self,
        store: Store,
        topics: TopicTable,
        groups: GroupTable,
        putter: Putter,
        settings: BrokerSettings,
    ) -> None:
        self._store = store
        self._topics = topics
        self._groups = groups
        self._putter = putter
        self._settings = settings

    def fill(self, table: RequestTable) -> None:
        """Register the request code."""
        table.add(RequestCode.CONSUMER_SEND_MSG_BACK, ConsumerSendMsgBackRequest, self.send_back)

    def send_back(self, call: Call, request: ConsumerSendMsgBackRequest) -> Reply | Deferred:
        """CONSUMER_SEND_MSG_BACK (36)."""
        config = self._groups.require(request.group)
        settings = self._settings
        if not settings.broker_permission & Perm.WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"the broker {settings.broker_name} takes no messages "
                f"(brokerPermission is {settings.broker_permission})",
            )
        if config.retry_queue_nums <= 0:
            return Reply()  # the group wants no retries: the message is done with
        self._require_retry_topic(config, unit_mode=request.unit_mode)
        record = self._record(request.offset)
        max_times = config.retry_max_times
        if call.command.version >= OWN_LIMIT_VERSION and request.max_reconsume_times is not None:
            max_times = request.max_reconsume_times
        try:
            letter = returned_letter(record, config, max_times, request.delay_level)
            if letter.topic.startswith(DLQ_PREFIX):
                self._topics.create_retry(dlq_topic(request.group), DEAD_LETTER_QUEUES)
            put = self._putter.deliver(letter)
        except (StoreFull, LocalProtocolError, RequestRefused) as error:
            # Any failure has this code for the peers: their clients then send an ordinary message instead.
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"not sent back: {error}")
        topic = properties.parse(letter.properties)[properties.RETRY_TOPIC]
        if letter.topic.startswith(DLQ_PREFIX):
            log.info(
                "group %s gives up a message of %s after %d tries: it is in %s queue %d, key %s",
                *(request.group, topic, letter.reconsume_times, letter.topic, letter.queue_id),
                record.property_map.get(properties.UNIQ_KEY, "-"),
            )
        queue = self._store.queue(topic, 0) or self._store.queue(record.topic, record.queue_id)
        if queue is not None:
            queue.traffic.sent_back(request.group)
        return self._putter.answer(call, put.end, Reply())

    def _require_retry_topic(self, config: SubscriptionGroupConfig, *, unit_mode: bool) -> None:
        """See to it that the retry topic of a group is there, and may be written to."""
        name = retry_topic(config.group_name)
        topic = self._topics.create_retry(name, config.retry_queue_nums, unit_sub=unit_mode)
        if not topic.perm & Perm.WRITE:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                f"topic {name} takes no messages: its permission is {topic.perm}, without 2 (write)",
            )

    def _record(self, log_offset: int) -> StoredMessage:
        """The message at a place in the log. Raises ColdData, and :class:`RequestRefused` when there is none."""
        data = self._store.reader.record(log_offset)
        if data is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"there is no message at log offset {log_offset}; it may have expired",
            )
        try:
            record = decode(data)
        except BodyError as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the message at {log_offset} cannot be read: {error}"
            ) from error
        if record.sys_flag & _INNER_BATCH:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                f"the record at log offset {log_offset} is a batch, which is not sent back as a whole",
            )
        return record
