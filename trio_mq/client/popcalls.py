"""The requests of a pop consumer, each to the broker that has the message.

In: what to pop, messages to settle. Out: popped messages; PeerUnavailable and PeerRefused as they come. Called by
:mod:`.simple` and :mod:`.popsource`. Source of the rules: Apache MQClientAPIImpl (popMessageAsync, ackMessageAsync,
batchAckMessageAsync, changeInvisibleTimeAsync), and for dead letters ConsumerProcessor of the proxy.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from trio_mq.client.instance import Instance
from trio_mq.client.popping import Popped, PoppedMessage, batch_acks, popped
from trio_mq.client.subscription import Subscription
from trio_mq.config.addresses import Address
from trio_mq.errors import PeerUnavailable
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.receipts import Receipt

#: A broker may answer a held pop so much later than asked, by its clock (Apache: the same 10 s).
ANSWER_GRACE_S = 10.0
#: Most messages of one pop; brokers refuse more.
MAX_MESSAGES = 32
#: A pop that is not to be held is not refused as too old, however the two clocks differ.
_NO_HURRY_MS = 24 * 3600 * 1000
_NOTHING = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
_DEAD_LETTER_LEVEL = -1


class PopCalls:
    """Requests of one group. `group` has its namespace."""

    def __init__(self, instance: Instance, group: str, init_mode: int) -> None:
        self._instance = instance
        self._group = group
        self._init_mode = init_mode

    async def pop(
        self,
        wanted: Subscription,
        broker_name: str,
        count: int,
        invisible_s: float,
        poll_s: float,
    ) -> tuple[list[Popped], bool]:
        """Up to `count` messages of all queues of a topic at one broker, and whether it has more of them now.

        With `poll_s` the broker waits so long for a first one. When this is cancelled, messages may be on their way:
        they come again when their invisible time is over.
        """
        now_ms = self._instance.clock.now_ms()
        header = headers.PopMessageRequest(
            consumer_group=self._group,
            topic=wanted.topic,
            queue_id=-1,
            max_msg_nums=count,
            invisible_time=_ms(invisible_s),
            poll_time=_ms(poll_s),
            born_time=now_ms if poll_s else now_ms + _NO_HURRY_MS,
            init_mode=self._init_mode,
            exp_type=wanted.expression_type,
            exp=wanted.expression,
        )
        reply = await self._instance.ask(
            self._address(broker_name),
            RequestCode.POP_MESSAGE,
            header,
            about=f"topic {wanted.topic}, group {self._group}",
            accept=(ResponseCode.SUCCESS, *_NOTHING),
            timeout_s=poll_s + ANSWER_GRACE_S if poll_s else None,
        )
        if reply.code in _NOTHING:
            return [], False
        told = headers.decode(headers.PopMessageReply, reply.ext)
        return popped(told, reply.body, wanted.topic, broker_name), told.rest_num > 0

    async def has_offsets(self, topic: str, broker_name: str) -> bool:
        """Whether the group has begun to consume all queues of a topic at a broker."""
        address = self._address(broker_name)
        for queue in self._instance.routes.topics[topic].read_queues:
            if queue.broker_name != broker_name:
                continue
            reply = await self._instance.ask(
                address,
                RequestCode.QUERY_CONSUMER_OFFSET,
                headers.QueryConsumerOffsetRequest(self._group, topic, queue.queue_id),
                about=f"topic {topic}, group {self._group}",
                accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
            )
            if reply.code == ResponseCode.QUERY_NOT_FOUND:
                return False
        return True

    async def ack(self, receipt: Receipt, topic: str) -> None:
        """Acknowledge one message."""
        header = headers.AckMessageRequest(
            consumer_group=self._group,
            topic=topic,
            queue_id=receipt.queue_id,
            extra_info=receipt.text,
            offset=receipt.queue_offset,
        )
        await self._instance.ask(
            self._address(receipt.broker_name),
            RequestCode.ACK_MESSAGE,
            header,
            about=f"topic {topic}, group {self._group}",
        )

    async def ack_several(self, broker_name: str, topic: str, receipts: Sequence[Receipt]) -> None:
        """Acknowledge messages of one broker and one topic (its retry topics included) by one request."""
        body = bodies.BatchAckBody(broker_name, batch_acks(self._group, topic, receipts))
        await self._instance.ask(
            self._address(broker_name),
            RequestCode.BATCH_ACK_MESSAGE,
            None,
            bodies.encode(body),
            about=f"topic {topic}, group {self._group}",
        )

    async def change_invisible(self, message: PoppedMessage, invisible_s: float) -> None:
        """Let a message be invisible from now on for so long; it gets a new receipt and a new end of its time."""
        receipt = message.receipt
        began_s = anyio.current_time()
        header = headers.ChangeInvisibleTimeRequest(
            consumer_group=self._group,
            topic=message.queue.topic,
            queue_id=receipt.queue_id,
            extra_info=receipt.text,
            offset=receipt.queue_offset,
            invisible_time=_ms(invisible_s),
        )
        reply = await self._instance.ask(
            self._address(receipt.broker_name),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            header,
            about=f"topic {message.queue.topic}, group {self._group}",
        )
        told = headers.decode(headers.ChangeInvisibleTimeReply, reply.ext)
        message.receipt = Receipt(
            receipt.queue_offset,
            told.pop_time,
            told.invisible_time,
            told.revive_qid,
            receipt.kind,
            receipt.broker_name,
            receipt.queue_id,
            receipt.queue_offset,
        )
        message.expires_s = began_s + invisible_s

    async def bury(self, message: PoppedMessage) -> None:
        """Make a message a dead letter; it is acknowledged once it lies there."""
        header = headers.ConsumerSendMsgBackRequest(
            offset=message.record.log_offset,
            group=self._group,
            delay_level=_DEAD_LETTER_LEVEL,
            origin_msg_id=message.message_id,
            origin_topic=message.queue.topic,
            max_reconsume_times=0,
        )
        await self._instance.ask(
            self._address(message.queue.broker_name),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            header,
            about=f"topic {message.queue.topic}, group {self._group}",
        )
        await self.ack(message.receipt, message.queue.topic)

    def _address(self, broker_name: str) -> Address:
        found = self._instance.routes.address(broker_name)
        if found is None:
            raise PeerUnavailable(
                f"broker {broker_name} has no master in any route; check that it runs and is registered"
            )
        return found


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
