"""Records that are packed before it is their time: what is left to do then is to write three numbers into them.

In: the parts of a message. Out: its record, whole but for the two offsets and the store time. Called by
:mod:`trio_mq.broker.timerfire`, for messages of which thousands may be due in the same millisecond; put into the log
by :meth:`trio_mq.store.store.Store.append_packed`. Format: :mod:`trio_mq.protocol.record`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import attrs

from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.message import HOST_V4_SIZE, HOST_V6_SIZE, Host, tags_code_of
from trio_mq.protocol.properties import get as get_property
from trio_mq.protocol.record import StoredMessage, pack

_BORN_V6: Final = int(MessageFlag.BORN_HOST_V6)
_STORE_V6: Final = int(MessageFlag.STORE_HOST_V6)
_OFFSETS: Final = Struct(">qq")
_OFFSETS_AT: Final = 20
_TIME: Final = Struct(">q")
_TIME_AT: Final = 56


@attrs.frozen
class Packed:
    """A record without its places; `properties` and `sys_flag` are as in it."""

    topic: str
    queue_id: int
    record: bytearray
    properties: bytes
    sys_flag: int
    tags_code: int
    time_at: int

    @classmethod
    def again(
        cls,
        message: StoredMessage,
        store_host: Host,
        *,
        topic: str,
        queue_id: int,
        properties: bytes,
    ) -> Packed:
        """A stored message for another queue. LocalProtocolError for topic or properties that are too long."""
        sys_flag = message.sys_flag & ~_STORE_V6 | (_STORE_V6 if store_host.is_v6 else 0)
        record = pack(
            queue_id,
            message.flag,
            0,
            0,
            sys_flag,
            message.born_timestamp_ms,
            message.born_host.packed,
            0,
            store_host.packed,
            message.reconsume_times,
            0,
            message.body,
            topic.encode(),
            properties,
        )
        tags = get_property(properties, b"TAGS")
        shift = HOST_V6_SIZE - HOST_V4_SIZE if sys_flag & _BORN_V6 else 0
        return cls(
            topic,
            queue_id,
            bytearray(record),
            properties,
            sys_flag,
            tags_code_of(tags) if tags else 0,
            _TIME_AT + shift,
        )

    def place(self, queue_offset: int, log_offset: int, store_timestamp_ms: int) -> None:
        """Write into the record where and when it is stored."""
        _OFFSETS.pack_into(self.record, _OFFSETS_AT, queue_offset, log_offset)
        _TIME.pack_into(self.record, self.time_at, store_timestamp_ms)
