"""What goes over the wire for a message or a batch: checked, with its id, compressed, properties as one text.

In: a :class:`.Message` or several, the limits of a producer, the wall clock. Out: :class:`Outgoing`, which the tries of
one send share: the id stays the same over retries, so that a consumer can tell copies. Called by :mod:`.sending`. No
waiting, no network. Source of the rules: Apache Validators, DefaultMQProducerImpl.sendKernelImpl, MessageBatch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from trio_mq.client import batches, identity
from trio_mq.client.compression import COMPRESS_OVER_BYTES, compressed
from trio_mq.client.messages import Message
from trio_mq.client.options import check_topic, with_namespace
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol import properties as props
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.message import BatchItem, join_batch
from trio_mq.protocol.topics import RETRY_PREFIX

#: Apache: DefaultMQProducer.maxMessageSize; the default limit of brokers, too.
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
#: The field for it in a record has 16 bits.
MAX_PROPERTIES_BYTES: Final = 32_767
#: The value of MSG_TYPE that makes a message the answer to a request (Apache: MixAll.REPLY_MESSAGE_FLAG).
REPLY: Final = "reply"

#: Topics of the brokers' own (Apache: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET).
_BROKERS_OWN: Final = frozenset(
    {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
    }
)


@attrs.frozen
class Limits:
    """What a producer compresses and refuses, and in which namespace it sends."""

    namespace: str | None = None
    compress_over_bytes: int = COMPRESS_OVER_BYTES
    max_message_bytes: int = MAX_MESSAGE_BYTES

    @property
    def own_properties(self) -> dict[str, str]:
        """What every message of this producer carries."""
        return {props.INSTANCE_ID: self.namespace} if self.namespace else {}


@attrs.define
class Outgoing:
    """One send. `topic` has the namespace, `given_topic` is the application's; times are those of a retry topic."""

    given_topic: str
    topic: str
    message_id: str
    body: bytes
    properties: str
    sys_flag: int = 0
    flag: int = 0
    is_batch: bool = False
    is_reply: bool = False
    sharding_key: str | None = None
    reconsume_times: int = 0
    max_reconsume_times: int | None = None

    @property
    def is_usual(self) -> bool:
        """Whether its request has nothing special, so that the fast writer can make it."""
        return not (
            self.is_batch
            or self.is_reply
            or self.reconsume_times
            or self.max_reconsume_times is not None
        )

    @property
    def code(self) -> RequestCode:
        """The request that takes it to a broker."""
        if self.is_batch:
            return RequestCode.SEND_BATCH_MESSAGE
        return RequestCode.SEND_REPLY_MESSAGE_V2 if self.is_reply else RequestCode.SEND_MESSAGE_V2


_NO_PROPERTIES: Final[Mapping[str, str]] = {}
_checked_topics: set[str] = set()
_CHECKED_TOPICS_MOST: Final = 10_000


def check_send_topic(topic: str) -> None:
    """ConfigError or LocalProtocolError for a topic that nobody may send to."""
    if topic in _checked_topics:
        return
    check_topic(topic)
    if topic in _BROKERS_OWN:
        raise LocalProtocolError(f"topic {topic} is the brokers' own; send to another one")
    if len(_checked_topics) < _CHECKED_TOPICS_MOST:
        _checked_topics.add(topic)


def prepare(
    message: Message,
    limits: Limits,
    now_ms: int,
    *,
    sys_flag: int = 0,
    extra_properties: Mapping[str, str] | None = None,
) -> Outgoing:
    """A message as it is sent. `extra_properties` are RocketMQ's, and win over the message's own."""
    topic, body = message.topic, message.body
    check_send_topic(topic)
    _check_body(message, limits)
    extra: Mapping[str, str] = _NO_PROPERTIES
    message_id = None
    if extra_properties or limits.namespace or message.properties:
        extra = {**limits.own_properties, **(extra_properties or {})}
        message_id = extra.get(props.UNIQ_KEY) or message.properties.get(props.UNIQ_KEY)
    message_id = message_id or identity.unique_id(now_ms)
    reconsume_times, max_reconsume_times = 0, None
    if topic.startswith(RETRY_PREFIX):
        stored = {**message.all_properties(), **extra, props.UNIQ_KEY: message_id}
        reconsume_times = _number(stored, props.RECONSUME_TIME) or 0
        max_reconsume_times = _number(stored, props.MAX_RECONSUME_TIMES)
        text = _text(stored, topic)
    else:
        text = _property_text(message, message_id, extra)
    if len(body) >= limits.compress_over_bytes:
        body, sys_flag = compressed(bytes(body), sys_flag, limits.compress_over_bytes)
    is_reply = bool(message.properties) and message.properties.get(props.MSG_TYPE) == REPLY
    # Topics of answers are the cluster's: they lie in no namespace.
    full_topic = topic if is_reply else with_namespace(limits.namespace, topic)
    return Outgoing(
        topic, full_topic, message_id, body, text, sys_flag, message.flag, False, is_reply,
        message.sharding_key, reconsume_times, max_reconsume_times,
    )  # fmt: skip


def _number(stored: dict[str, str], name: str) -> int | None:
    """A property that becomes a field of the request."""
    text = stored.pop(name, None)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise LocalProtocolError(f"property {name}: {text!r:.40} is no number") from None


def prepare_batches(messages: Sequence[Message], limits: Limits, now_ms: int) -> Iterator[Outgoing]:
    """Messages of one topic, in order, in as few batches as their size allows."""
    topic = batches.check_batch(messages)
    check_send_topic(topic)
    own = limits.own_properties
    ids: list[str] = []
    items: list[BatchItem] = []
    for message in messages:
        ids.append(message.properties.get(props.UNIQ_KEY) or identity.unique_id(now_ms))
        text = _property_text(message, ids[-1], own)
        items.append(BatchItem(message.flag, bytes(message.body), text.encode()))
    wait = "true" if messages[0].wait_store_ok else "false"
    start = 0
    for part in batches.split(items, limits.max_message_bytes):
        its_ids = ids[start : start + len(part)]
        start += len(part)
        # The id of the batch: topics with a batch queue store the whole as one message.
        text = _text({props.WAIT: wait, **own, props.UNIQ_KEY: identity.unique_id(now_ms)}, topic)
        yield Outgoing(
            topic, with_namespace(limits.namespace, topic), ",".join(its_ids), join_batch(part),
            text, is_batch=True,
        )  # fmt: skip


def _check_body(message: Message, limits: Limits) -> None:
    size = len(message.body)
    if size > limits.max_message_bytes:
        raise LocalProtocolError(
            f"topic {message.topic}: a body of {size} bytes is over max_message_bytes "
            f"({limits.max_message_bytes}); raise it here and maxMessageSize at the brokers, or send less"
        )
    if size == 0:
        raise LocalProtocolError(
            f"topic {message.topic}: the body is empty, brokers refuse that; put something into it"
        )


def _property_text(message: Message, message_id: str, extra: Mapping[str, str]) -> str:
    """All properties of a message; those without any of their own, nearly all, in a sixth of the time."""
    if message.properties or extra or message.delayed:
        return _text(
            {**message.all_properties(), **extra, props.UNIQ_KEY: message_id}, message.topic
        )
    wait = "true" if message.wait_store_ok else "false"
    text = f"UNIQ_KEY\x01{message_id}\x02WAIT\x01{wait}\x02"
    pairs = 2
    if message.tags:
        text = f"TAGS\x01{message.tags}\x02{text}"
        pairs += 1
    if message.keys:
        text = f"KEYS\x01{' '.join(message.keys)}\x02{text}"
        pairs += 1
    if message.sharding_key is not None:
        text = f"__SHARDINGKEY\x01{message.sharding_key}\x02{text}"
        pairs += 1
    if len(text) > MAX_PROPERTIES_BYTES // 4 or text.count("\x02") != pairs:
        # Too long perhaps, or with a separator in a value: the way that checks tells what is wrong.
        return _text({**message.all_properties(), props.UNIQ_KEY: message_id}, message.topic)
    return text


def _text(properties: Mapping[str, str], topic: str) -> str:
    data = props.encode(properties)
    if len(data) > MAX_PROPERTIES_BYTES:
        raise LocalProtocolError(
            f"topic {topic}: properties of {len(data)} bytes, {MAX_PROPERTIES_BYTES} are the most; "
            f"put large values into the body"
        )
    return data.decode()
