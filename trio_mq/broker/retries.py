"""What becomes of a message that a consumer failed on: another try after a while, or the dead letters of its group.

In: the record, or the send request of a client, and the settings of its group. Out: the :class:`Letter` to be stored,
or the topic that a send really goes to. Called by the processors of CONSUMER_SEND_MSG_BACK and of sends. Pure but for
topics that are created. Explained in ``docs/explanation/delay-and-retry.md``. Source: Apache
AbstractSendMessageProcessor.consumerSendMsgBack, SendMessageProcessor.handleRetryAndDLQ.

The retry policy in a group's settings (``groupRetryPolicy``) changes nothing here: in Apache's broker neither, since
only its gRPC proxy reads it.
"""

from __future__ import annotations

import logging
import random
from typing import Final

import attrs

from trio_mq.broker.groups import GroupTable
from trio_mq.broker.locks import QueueLocks
from trio_mq.broker.names import RETRY_PREFIX, dlq_topic, retry_topic
from trio_mq.broker.put import Letter
from trio_mq.broker.topics import TopicTable
from trio_mq.protocol import properties
from trio_mq.protocol.bodies import SubscriptionGroupConfig
from trio_mq.protocol.message import offset_message_id
from trio_mq.protocol.record import StoredMessage

log = logging.getLogger("trio_mq.broker.retries")

#: Delay level of the first retry; each further one waits a level longer.
FIRST_RETRY_LEVEL: Final = 3
#: Queues of a topic of dead letters.
DEAD_LETTER_QUEUES: Final = 1
#: Level that stands for "no further try".
NO_RETRY: Final = 0


def retry_level(reconsume_times: int, max_times: int, asked_level: int) -> int:
    """The delay level of the next try, or :data:`NO_RETRY` when there is none.

    `reconsume_times` is how often the message came again so far; `asked_level` is what the consumer wants: 0 leaves
    it to the broker, a negative one means that another try makes no sense.
    """
    if reconsume_times >= max_times or asked_level < 0:
        return NO_RETRY
    return asked_level or FIRST_RETRY_LEVEL + reconsume_times


def returned_letter(
    record: StoredMessage, config: SubscriptionGroupConfig, max_times: int, asked_level: int
) -> Letter:
    """A message that a consumer sends back, as it is to be put: in its retry topic after a delay, or a dead letter."""
    level = retry_level(record.reconsume_times, max_times, asked_level)
    found = record.property_map
    found.setdefault(properties.RETRY_TOPIC, record.topic)
    origin = offset_message_id(record.store_host, record.log_offset)
    found.setdefault(properties.ORIGIN_MESSAGE_ID, origin)
    found[properties.WAIT] = "false"
    if level == NO_RETRY:
        found.pop(properties.DELAY, None)  # else the next broker would let it wait (case C145)
        topic, queues = dlq_topic(config.group_name), DEAD_LETTER_QUEUES
    else:
        found[properties.DELAY] = str(level)
        topic, queues = retry_topic(config.group_name), config.retry_queue_nums
    letter = Letter.again(
        record, topic=topic, queue_id=random.randrange(queues), properties=properties.encode(found)
    )
    return attrs.evolve(letter, reconsume_times=record.reconsume_times + 1)


class RetrySends:
    """Rules for clients that send to a retry topic by themselves, as they do when a send-back failed."""

    def __init__(self, topics: TopicTable, groups: GroupTable, locks: QueueLocks) -> None:
        self._topics = topics
        self._groups = groups
        self._locks = locks

    def topic_of(
        self, topic: str, reconsume_times: int | None, max_times: int | None, now_s: float
    ) -> str:
        """Where a message to the retry topic `topic` goes: there, or to the dead letters, whose topic is then made.

        `reconsume_times` counts the try that the message is sent for. A group with queue locks consumes in order, and
        sends only what it gives up. Refuses an unknown group with SUBSCRIPTION_GROUP_NOT_EXIST (26).
        """
        group = topic.removeprefix(RETRY_PREFIX)
        config = self._groups.require(group)
        limit = config.retry_max_times if max_times is None else max_times
        ordered = self._locks.any_held(group, now_s)
        if (reconsume_times or 0) <= limit and not ordered:
            return topic
        dead = dlq_topic(group)
        self._topics.create_retry(dead, DEAD_LETTER_QUEUES)
        log.info(
            "a message that was sent to %s goes to %s: %s",
            *(topic, dead),
            "the group consumes in order"
            if ordered
            else f"try {reconsume_times} of {limit} at most",
        )
        return dead
