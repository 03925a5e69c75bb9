"""What applications send and receive: messages, receipts, and what becomes of a received message.

In: the parts of a message, or a record of :mod:`trio_mq.protocol.record`. Out: :class:`Message`,
:class:`SendReceipt`, :class:`ReceivedMessage`. Called by all kinds of client. Names are those of Apache's Message,
MessageExt, SendResult; times are aware :class:`~datetime.datetime` values in UTC.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from enum import Enum
from math import inf
from types import TracebackType
from typing import Protocol, Self

import attrs

from trio_mq.client.options import texts
from trio_mq.errors import ClientError, LocalProtocolError
from trio_mq.protocol import properties as props
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.message import offset_message_id
from trio_mq.protocol.record import StoredMessage
from trio_mq.protocol.record import decode as decode_record

log = logging.getLogger("trio_mq.client")

#: Properties that fields of :class:`Message` stand for: giving them twice would hide one of the two.
_OWN_PROPERTIES = {
    props.TAGS: "tags",
    props.KEYS: "keys",
    props.DELAY: "delay_level",
    props.TIMER_DELIVER_MS: "deliver_at",
    props.TIMER_DELAY_MS: "deliver_after",
    props.SHARDING_KEY: "sharding_key",
    props.WAIT: "wait_store_ok",
}


@attrs.frozen
class Message:
    """A message to send.

    `keys` find it again (no blanks inside one: a blank separates keys). At most one of `delay_level` (1 to 18 by
    default), `deliver_at` (an aware datetime) and `deliver_after` delays it. Messages of one `sharding_key` go to one
    queue and keep their order. `properties` are the application's own.
    """

    topic: str
    body: bytes = attrs.field(repr=lambda body: f"<{len(body)} bytes>")
    tags: str | None = None
    keys: Sequence[str] = attrs.field(default=(), converter=texts)
    properties: Mapping[str, str] = attrs.field(factory=dict)
    delay_level: int = attrs.field(default=0, kw_only=True)
    deliver_at: datetime | None = attrs.field(default=None, kw_only=True)
    deliver_after: timedelta | None = attrs.field(default=None, kw_only=True)
    sharding_key: str | None = attrs.field(default=None, kw_only=True)
    wait_store_ok: bool = attrs.field(default=True, kw_only=True)
    flag: int = attrs.field(default=0, kw_only=True)

    def __attrs_post_init__(self) -> None:
        body: object = self.body
        if not isinstance(body, (bytes, bytearray, memoryview)):
            kind = type(body).__name__
            raise TypeError(
                f"the body of a message is bytes, not {kind}; encode texts: text.encode()"
            )
        for name in self.properties:
            if name in _OWN_PROPERTIES:
                raise LocalProtocolError(
                    f"property {name!r}: give it as {_OWN_PROPERTIES[name]}=..."
                )
        for key in self.keys:
            if not key or len(key.split()) != 1:
                raise LocalProtocolError(
                    f"key {key!r} is empty or holds blanks, which separate keys"
                )
        delays = (
            self.delay_level != 0,
            self.deliver_at is not None,
            self.deliver_after is not None,
        )
        if sum(delays) > 1:
            raise LocalProtocolError("give one of delay_level, deliver_at and deliver_after")
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise LocalProtocolError("deliver_at has no time zone; say datetime.now(UTC) + ...")

    @property
    def delayed(self) -> bool:
        """Whether a delay is asked for."""
        return (
            bool(self.delay_level) or self.deliver_at is not None or self.deliver_after is not None
        )

    def all_properties(self) -> dict[str, str]:
        """The properties as they are stored, in the peers' names (Apache: MessageConst)."""
        found = dict(self.properties)
        if self.tags:
            found[props.TAGS] = self.tags
        if self.keys:
            found[props.KEYS] = " ".join(self.keys)
        if self.delay_level:
            found[props.DELAY] = str(self.delay_level)
        if self.deliver_at is not None:
            found[props.TIMER_DELIVER_MS] = str(round(self.deliver_at.timestamp() * 1000))
        if self.deliver_after is not None:
            found[props.TIMER_DELAY_MS] = str(round(self.deliver_after.total_seconds() * 1000))
        if self.sharding_key is not None:
            found[props.SHARDING_KEY] = self.sharding_key
        found[props.WAIT] = "true" if self.wait_store_ok else "false"
        return found


class SendStatus(Enum):
    """How safe a sent message is (Apache: SendStatus). All four mean that the broker has it."""

    OK = ResponseCode.SUCCESS
    FLUSH_DISK_TIMEOUT = ResponseCode.FLUSH_DISK_TIMEOUT
    FLUSH_SLAVE_TIMEOUT = ResponseCode.FLUSH_SLAVE_TIMEOUT
    SLAVE_NOT_AVAILABLE = ResponseCode.SLAVE_NOT_AVAILABLE


@attrs.frozen
class SendReceipt:
    """What the broker says of a message that it has taken.

    `message_id` is the client's id (``UNIQ_KEY``), `offset_message_id` the broker's, from which the place in the
    commit log can be read. `recall_handle` takes a timed message back, `transaction_id` names a half message.
    """

    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    status: SendStatus = SendStatus.OK
    transaction_id: str | None = None
    recall_handle: str | None = None


class Outcome(Enum):
    """What becomes of a received message."""

    ACK = "ack"
    RETRY = "retry"


#: Place of a body that has to be inflated.
COMPRESSED_BODY_AT = -1


class Settler(Protocol):
    """The consumer's side of a message that was handed out."""

    async def settle(self, message: ReceivedMessage, outcome: Outcome, delay_level: int) -> None:
        """Acknowledge, or ask for the message again. Called once for each message."""
        ...


class MessageView:
    """What can be read of a received message; see :class:`ReceivedMessage` and its twin for plain threads."""

    __slots__ = (
        "__weakref__", "_body", "_properties", "_raw", "_record", "_topic",
        "queue", "queue_offset", "size_bytes", "taken_at_s",
    )  # fmt: skip

    #: Where it was read from; of a retried message the retry topic's queue.
    queue: MessageQueue
    #: Place in :attr:`queue`.
    queue_offset: int
    #: Bytes that it takes up: those of the record.
    size_bytes: int
    #: When it was handed to the application, by the clock of the event loop; 0 before that.
    taken_at_s: float
    _record: StoredMessage | None
    _raw: tuple[bytes, int, int] | None
    _body: bytes | None
    _topic: str | None
    _properties: dict[str, str] | None

    @property
    def record(self) -> StoredMessage:
        """The stored record, all fields in the peers' terms."""
        found = self._record
        if found is None:
            assert self._raw is not None, "a message has its record, or the bytes of it"
            found = self._record = decode_record(self._raw[0])
        return found

    @property
    def body(self) -> bytes:
        """The body as the producer gave it.

        A compressed one is inflated now: BodyError when it is broken, LocalProtocolError when a package is missing.
        """
        found = self._body
        if found is None:
            assert self._raw is not None, "a message has its body, or the bytes of its record"
            raw, body_at, body_end = self._raw
            found = raw[body_at:body_end] if body_at >= 0 else self.record.plain_body
            self._body = found
        return found

    @property
    def topic(self) -> str:
        """The topic it was sent to, of a retried message too."""
        return self._topic or self.record.topic

    @property
    def properties(self) -> dict[str, str]:
        """All properties by name, those of RocketMQ included."""
        found = self._properties
        if found is None:
            found = self._properties = self.record.property_map
        return found

    @property
    def tags(self) -> str | None:
        """The tag, None without one."""
        return self.properties.get(props.TAGS)

    @property
    def keys(self) -> list[str]:
        """The keys that the producer gave."""
        return self.properties.get(props.KEYS, "").split()

    @property
    def message_id(self) -> str:
        """The id that the producer knows, the broker's where it gave none."""
        return self.properties.get(props.UNIQ_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's id, with the place in its commit log."""
        return offset_message_id(self.record.store_host, self.record.log_offset)

    @property
    def born_at(self) -> datetime:
        """When the producer sent it, by the producer's clock."""
        return from_ms(self.record.born_timestamp_ms)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it, by the broker's clock."""
        return from_ms(self.record.store_timestamp_ms)

    @property
    def reconsume_times(self) -> int:
        """How often it failed before."""
        return self.record.reconsume_times

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.message_id} {self.topic}@{self.queue.broker_name}:"
            f"{self.queue.queue_id} offset {self.queue_offset}, {len(self.body)} bytes>"
        )


class ReceivedMessage(MessageView):
    """A message as a consumer gets it.

    ``async with message:`` acknowledges when the block is left normally; an exception is logged once, with the
    message's id, and asks for a retry: it ends there, so that the loop around goes on. A cancellation, and every other
    exception that is no :class:`Exception`, passes through and settles nothing: the message comes again.
    """

    __slots__ = ("_settled", "_settler")

    def __init__(
        self,
        record: StoredMessage,
        queue: MessageQueue,
        body: bytes,
        settler: Settler | None = None,
        topic: str | None = None,
    ) -> None:
        self.queue = queue
        self.queue_offset = record.queue_offset
        self.size_bytes = record.size
        self.taken_at_s = inf
        self._record = record
        self._raw = None
        self._body = body
        self._topic = topic
        self._settler = settler
        self._settled = False
        self._properties = None

    @classmethod
    def of_record(
        cls,
        raw: bytes,
        body_at: int,
        body_end: int,
        queue: MessageQueue,
        queue_offset: int,
        settler: Settler | None,
        topic: str | None,
    ) -> Self:
        """From the bytes of one whole record, whose body lies between two places; decoded when it is asked for.

        Consumers make one for each message: most are asked for little more than their body. A compressed body has
        COMPRESSED_BODY_AT for its place.
        """
        self = cls.__new__(cls)
        self.queue = queue
        self.queue_offset = queue_offset
        self.size_bytes = len(raw)
        self.taken_at_s = inf
        self._record = None
        self._raw = (raw, body_at, body_end)
        self._body = None
        self._topic = topic
        self._settler = settler
        self._settled = False
        self._properties = None
        return self

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or sent back."""
        return self._settled

    async def ack(self) -> None:
        """It is done: the group does not get it again. Does nothing the second time."""
        await self._settle(Outcome.ACK, 0)

    async def retry(self, delay_level: int = 0) -> None:
        """Ask for it again, after a delay level; 0 lets the broker choose, -1 makes it a dead letter."""
        await self._settle(Outcome.RETRY, delay_level)

    def renewed(self, failures: int = 0) -> Self:
        """The same message once more, for another try: not settled, and with so many more failures."""
        again = copy(self)
        if failures:
            times = self.record.reconsume_times + failures
            again._record = attrs.evolve(self.record, reconsume_times=times)
        again.taken_at_s, again._settled = inf, False
        return again

    async def _settle(self, outcome: Outcome, delay_level: int) -> None:
        if self._settled:
            return
        if self._settler is None:
            raise ClientError(f"{self!r} was looked up and not consumed: nothing to acknowledge")
        self._settled = True
        try:
            await self._settler.settle(self, outcome, delay_level)
        except BaseException:
            self._settled = False
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if error is None:
            await self.ack()
            return False
        if not isinstance(error, Exception):
            return False
        log.error("message %s of topic %s failed and is asked for again", self.message_id,
                  self.topic, exc_info=error)  # fmt: skip
        await self.retry()
        return True


def from_ms(timestamp_ms: int) -> datetime:
    """A timestamp of the peers as an aware datetime."""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
