"""Asks for a message again: the broker puts it into the group's retry topic, or among the dead letters.

In: a received message, a delay level. Out: nothing, when a broker has it; the error, when none has. Called when a
message is failed on (:mod:`.concurrent`, orderly consumption at its limit). Source of the rules: Apache
DefaultMQPushConsumerImpl.sendMessageBack.
"""

from __future__ import annotations

import logging

from trio_mq.client.instance import Instance
from trio_mq.client.messages import Message, ReceivedMessage
from trio_mq.client.sending import Sender
from trio_mq.errors import PeerUnavailable, TrioMQError
from trio_mq.protocol import headers
from trio_mq.protocol import properties as props
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.topics import RETRY_PREFIX, retry_topic

log = logging.getLogger("trio_mq.client")

#: Lets the broker choose the delay: it grows with each retry.
BROKER_CHOOSES = 0
#: Makes a dead letter at once.
DEAD_LETTER = -1
#: Delay level of a message whose handler takes too long (Apache: ProcessQueue.cleanExpiredMsg).
OVERDUE_LEVEL = 3
#: Apache: DefaultMQPushConsumer.maxReconsumeTimes, where -1 stands for this.
MAX_RECONSUME_TIMES = 16
#: Group of the producer inside a consumer (Apache: MixAll.CLIENT_INNER_PRODUCER_GROUP).
INNER_PRODUCER_GROUP = "CLIENT_INNER_PRODUCER"
_TIMEOUT_S = 5.0
#: Properties that a copy must not have: the send sets them, or they belong to a transaction that is over.
_NOT_COPIED = {props.TAGS, props.KEYS, props.DELAY, props.WAIT, props.TRAN_MSG, props.SHARDING_KEY,
               props.TIMER_DELIVER_MS, props.TIMER_DELAY_MS}  # fmt: skip


class SendBack:
    """For the messages of one group."""

    def __init__(self, instance: Instance, group: str, max_reconsume_times: int = -1) -> None:
        self._instance = instance
        self._group = group
        self._most = MAX_RECONSUME_TIMES if max_reconsume_times < 0 else max_reconsume_times
        self._sender = Sender(instance, INNER_PRODUCER_GROUP)

    async def __call__(self, message: ReceivedMessage, delay_level: int = BROKER_CHOOSES) -> None:
        """Ask for a message again. The error of the last way when there is none left: it is nowhere but here then."""
        try:
            await self._ask_broker(message, delay_level)
        except TrioMQError as failure:
            log.warning("message %s is sent again as a new one, for its broker does not take it back: %s",
                        message.message_id, failure)  # fmt: skip
            await self.as_new_message(message)

    async def _ask_broker(self, message: ReceivedMessage, delay_level: int) -> None:
        broker_name = message.queue.broker_name
        address = self._instance.routes.address(broker_name)
        if address is None:
            raise PeerUnavailable(
                f"broker {broker_name}: no route names its master; check that it runs and registers"
            )
        header = headers.ConsumerSendMsgBackRequest(
            offset=message.record.log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=origin_topic(message),
            max_reconsume_times=self._most,
        )
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        about = f"message {message.message_id} of group {self._group}"
        await self._instance.ask(address, code, header, about=about, timeout_s=_TIMEOUT_S)

    async def as_new_message(self, message: ReceivedMessage) -> None:
        """The same over any broker; one that was retried too often becomes a dead letter there."""
        await self._sender.send(retry_message(message, self._group, self._most))


def origin_topic(message: ReceivedMessage) -> str:
    """The topic that a message was sent to first, as on the wire."""
    topic = message.record.topic
    if topic.startswith(RETRY_PREFIX):
        return message.properties.get(props.RETRY_TOPIC, topic)
    return topic


def retry_message(message: ReceivedMessage, group: str, max_reconsume_times: int) -> Message:
    """A new message for the retry topic that stands for a failed one."""
    found, times = message.properties, message.reconsume_times
    own = {name: value for name, value in found.items() if name not in _NOT_COPIED}
    own[props.ORIGIN_MESSAGE_ID] = found.get(props.ORIGIN_MESSAGE_ID) or message.message_id
    own[props.RETRY_TOPIC] = origin_topic(message)
    own[props.RECONSUME_TIME] = str(times + 1)
    own[props.MAX_RECONSUME_TIMES] = str(max_reconsume_times)
    try:
        body = message.body
    except TrioMQError:
        body = message.record.body  # compressed, and not readable here
    return Message(
        retry_topic(group),
        body,
        tags=message.tags,
        keys=message.keys,
        properties=own,
        delay_level=3 + times,
        flag=message.record.flag,
    )
