"""Headers of sending: ordinary, version 2, batch, reply messages, send-back, recall.

In and out: see :mod:`.core`. Fields and their names on the wire are those of the peers' classes
``SendMessageRequestHeader``, ``SendMessageRequestHeaderV2``, ``SendMessageResponseHeader``,
``ConsumerSendMsgBackRequestHeader``, ``ReplyMessageRequestHeader``, ``RecallMessage...Header``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from trio_mq.protocol.names import wire
from trio_mq.protocol.values import value

from .core import I32, I64


@value
class SendMessageRequest:
    """SEND_MESSAGE (10), SEND_REPLY_MESSAGE (324). ``properties`` is the property string."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool | None = None
    max_reconsume_times: I32 | None = None
    batch: bool = False
    broker_name: str | None = wire("bname", default=None)


@value
class SendMessageRequestV2(SendMessageRequest):
    """The same fields under one-letter names.

    SEND_MESSAGE_V2 (310), SEND_BATCH_MESSAGE (320), SEND_REPLY_MESSAGE_V2 (325).
    """

    SHORT: ClassVar[Mapping[str, str]] = {
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sys_flag": "f",
        "born_timestamp": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    }


@value
class SendMessageReply:
    """Answer to all sends; the peers look at ``MSG_REGION`` and ``TRACE_ON`` without a null
    check."""

    msg_id: str
    queue_id: I32
    queue_offset: I64
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = wire("MSG_REGION", default=None)
    trace_on: bool | None = wire("TRACE_ON", default=None)


@value
class ConsumerSendMsgBackRequest:
    """CONSUMER_SEND_MSG_BACK (36). ``offset`` is the message's place in the log."""

    offset: I64
    group: str
    delay_level: I32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: I32 | None = None


@value
class ReplyMessageRequest:
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326), broker to client. Hosts are ``ip:port``."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: I32
    queue_id: I32
    sys_flag: I32
    born_timestamp: I64
    flag: I32
    born_host: str
    store_host: str
    store_timestamp: I64
    properties: str | None = None
    reconsume_times: I32 | None = None
    unit_mode: bool = False


@value
class RecallMessageRequest:
    """RECALL_MESSAGE (370)."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


@value
class RecallMessageReply:
    """Answer to 370."""

    msg_id: str
