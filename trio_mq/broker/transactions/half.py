"""A half message as it is stored, and what is made of it: its commit, its copy, its check, its end.

In: record bytes of the half topic. Out: a :class:`Half`, letters for the store, the body of a check. Pure. Called by
the end of transactions, the checks and the loading. Rules: Apache TransactionalMessageBridge (renewHalfMessageInner,
renewImmunityHalfMessageInner), EndTransactionProcessor.endMessageTransaction, TransactionalMessageUtil,
AbstractTransactionalMessageCheckListener.sendCheckMessage.
"""

from __future__ import annotations

from typing import Final

import attrs

from trio_mq.broker.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from trio_mq.broker.put import Letter
from trio_mq.errors import BodyError
from trio_mq.protocol import properties
from trio_mq.protocol.codes import TRANSACTION_MASK, MessageFlag
from trio_mq.protocol.layout import MAGIC_V1, MAGIC_V2, MAX_TOPIC_V1_BYTES
from trio_mq.protocol.record import StoredMessage, decode, encode, record_size

_COMMIT: Final = int(MessageFlag.TRANSACTION_COMMIT)
_HOSTS_V6: Final = int(MessageFlag.BORN_HOST_V6 | MessageFlag.STORE_HOST_V6)
_WAITS: Final = (
    properties.DELAY,
    properties.TIMER_DELAY_SEC,
    properties.TIMER_DELAY_MS,
    properties.TIMER_DELIVER_MS,
)
#: Properties that say where a half message is to go; what is delivered does not have them.
_WAY: Final = (properties.REAL_TOPIC.encode(), properties.REAL_QID.encode())
_CHECK_TIMES: Final = properties.TRANSACTION_CHECK_TIMES.encode()
ROOT_NAME: Final = properties.TRAN_PREPARED_QUEUE_OFFSET.encode()
#: What op records have: their tag says that the halves in their body are done.
OP_PROPERTIES: Final = properties.encode({properties.TAGS: "d", properties.WAIT: "true"})
OP_TAG: Final = b"d"
_SEPARATOR: Final = b","
_LONG_DIGITS: Final = 19


@attrs.frozen
class Half:
    """A stored half message. Offsets in its half queue and in the log are those of its record."""

    record: StoredMessage
    props: dict[str, str] = attrs.field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "props", properties.parse(self.record.properties))

    @classmethod
    def read(cls, data: bytes) -> Half | None:
        """The half in a record, None if it is none or cannot be read."""
        try:
            record = decode(data)
        except BodyError:
            return None
        return cls(record) if record.topic == HALF_TOPIC else None

    @property
    def offset(self) -> int:
        """Its place in the half queue."""
        return self.record.queue_offset

    @property
    def root(self) -> int:
        """The place of the first copy of this half: what stands for the transaction."""
        root = _number(self.props.get(properties.TRAN_PREPARED_QUEUE_OFFSET))
        return self.offset if root is None or not 0 <= root < self.offset else root

    @property
    def producer_group(self) -> str | None:
        """The group that decides."""
        return self.props.get(properties.PGROUP)

    @property
    def unique_id(self) -> str | None:
        """The client's id of the message, and of the transaction."""
        return self.props.get(properties.UNIQ_KEY)

    @property
    def real_topic(self) -> str | None:
        """Where it goes when it is committed."""
        return self.props.get(properties.REAL_TOPIC)

    @property
    def real_queue_id(self) -> int | None:
        """The queue there; None if the property is no number of a queue."""
        number = _number(self.props.get(properties.REAL_QID))
        return number if number is not None and 0 <= number < 2**31 else None

    @property
    def check_times(self) -> int:
        """How often its producer was asked."""
        return max(0, _number(self.props.get(properties.TRANSACTION_CHECK_TIMES)) or 0)

    def immunity_ms(self, timeout_ms: int) -> int | None:
        """How long after its birth it is not checked, if it says so itself; what is no number means `timeout_ms`."""
        text = self.props.get(properties.CHECK_IMMUNITY_TIME_IN_SECONDS)
        if text is None:
            return None
        seconds = _number(text)
        return timeout_ms if seconds is None or seconds < 0 else seconds * 1000

    def age_ms(self, now_ms: int) -> int:
        """Time since its birth; a client's clock that is ahead must not make a message younger than its record."""
        return now_ms - min(self.record.born_timestamp_ms, self.record.store_timestamp_ms)

    # -- what is made of it

    def committed(self) -> Letter:
        """The message for its real topic, which has to be known."""
        topic, queue_id = self.real_topic, self.real_queue_id
        assert topic is not None
        assert queue_id is not None
        record, props = self.record, self.record.properties
        for name in (*_WAY, ROOT_NAME):
            props = properties.remove(props, name)
        return Letter(
            topic,
            queue_id,
            record.body,
            props,
            record.born_timestamp_ms,
            record.born_host.packed,
            record.flag,
            record.sys_flag & ~(TRANSACTION_MASK | _HOSTS_V6) | _COMMIT,
            record.reconsume_times,
            record.log_offset,
        )

    @property
    def waits(self) -> bool:
        """Whether it is to wait again when it is committed; only halves of an Apache broker may want that."""
        return any(name in self.props for name in _WAITS)

    def copied(self, check_times: int | None) -> Letter:
        """The same half for the end of its queue, with a new number of checks unless that is None."""
        props = properties.remove(self.record.properties, ROOT_NAME)
        props = properties.append(props, ROOT_NAME, b"%d" % self.root)
        if check_times is not None:
            props = properties.remove(props, _CHECK_TIMES)
            props = properties.append(props, _CHECK_TIMES, b"%d" % check_times)
        return Letter.again(
            self.record, topic=HALF_TOPIC, queue_id=self.record.queue_id, properties=props
        )

    def given_up(self) -> Letter:
        """The same half for the topic of those that nobody has decided about."""
        return Letter.again(self.record, topic=CHECK_MAX_TIME_TOPIC, queue_id=0)

    def check_body(self, props: bytes, log_offset: int, queue_offset: int) -> bytes:
        """What a producer is sent: its message as it would be delivered, with the properties and places of a copy."""
        topic = self.real_topic or ""
        fields = attrs.evolve(
            self.record,
            magic=MAGIC_V1 if len(topic.encode()) <= MAX_TOPIC_V1_BYTES else MAGIC_V2,
            topic=topic,
            queue_id=self.real_queue_id or 0,
            queue_offset=queue_offset,
            log_offset=log_offset,
            properties=props,
        )
        size = record_size(
            len(fields.body), len(topic.encode()), len(fields.properties), fields.sys_flag
        )
        return encode(attrs.evolve(fields, size=size))


def op_letter(offsets: list[int], now_ms: int, host: bytes) -> Letter:
    """An op record: these halves are done. `host` is the packed address of the store."""
    body = b"".join(b"%d," % offset for offset in offsets)
    return Letter(OP_HALF_TOPIC, 0, body, OP_PROPERTIES, now_ms, host)


def op_offsets(record: StoredMessage) -> list[int]:
    """The halves that an op record names; none for one of another kind. What is no number is passed over."""
    if properties.get(record.properties, b"TAGS") != OP_TAG:
        return []
    parts = record.body.split(_SEPARATOR)
    return [int(part) for part in parts if part.isdigit() and len(part) <= _LONG_DIGITS]


def _number(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return None
