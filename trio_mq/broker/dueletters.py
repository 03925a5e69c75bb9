"""From the record of a delayed message to the message as it is put into its own topic.

In: bytes of a record of the schedule topic. Out: a :class:`Letter`. Called by the delivery of delay levels, for each
message, so what most records look like takes a short way. Source: Apache ScheduleMessageService.messageTimeUp; like
there, the properties stay as they were stored, with DELAY, REAL_TOPIC and REAL_QID.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from trio_mq.broker.names import HALF_TOPIC, SCHEDULE_TOPIC, check_topic
from trio_mq.broker.put import Letter
from trio_mq.errors import BodyError
from trio_mq.protocol import properties
from trio_mq.protocol.codes import MessageFlag
from trio_mq.protocol.layout import MAGIC_V1
from trio_mq.protocol.record import decode, record_size

#: Ends of property texts whose meaning is remembered; mostly they differ in topic and queue only.
ENDS_KEPT: Final = 1000
#: Fields of a record with IPv4 hosts: magic, flag, sysFlag, born time and host, reconsumeTimes, size of the body.
_USUAL: Final = Struct(">4xi8xi16xiq8s16xi8xi")
_HOSTS_V6: Final = int(MessageFlag.BORN_HOST_V6 | MessageFlag.STORE_HOST_V6)


class DueLetters:
    """Makes letters of records."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[str, int]] = {}

    def of(self, record: bytes) -> Letter:
        """The message in a record, for the topic and queue that it names.

        Raises BodyError for a record that cannot be read or names none, RequestRefused for an illegal topic name.
        """
        letter = self._usual(record)
        if letter is not None:
            return letter
        message = decode(record)
        topic, queue_id = destination(message.properties)
        return Letter.again(message, topic=topic, queue_id=queue_id)

    def _usual(self, record: bytes) -> Letter | None:
        """The same in a third of the time; None for a record that is not of the usual form."""
        if len(record) < _USUAL.size + 3:
            return None
        magic, flag, sys_flag, born_ms, born_host, times, body_size = _USUAL.unpack_from(record)
        body_at = _USUAL.size
        if (
            magic != MAGIC_V1
            or sys_flag & _HOSTS_V6
            or not 0 <= body_size <= len(record) - body_at - 3
        ):
            return None
        topic_at = body_at + body_size
        props_at = topic_at + 1 + record[topic_at]
        props = record[props_at + 2 :]
        if len(props) != int.from_bytes(record[props_at : props_at + 2], "big"):
            return None
        topic, queue_id = self._destination(props)
        body = record[body_at:topic_at]
        return Letter(topic, queue_id, body, props, born_ms, born_host, flag, sys_flag, times)

    def _destination(self, props: bytes) -> tuple[str, int]:
        at = props.rfind(b"\x02REAL_TOPIC\x01")
        end = props[at:] if at >= 0 else b""
        if b"\x02REAL_QID\x01" not in end:
            return destination(props)
        known = self._known.get(end)
        if known is None:
            known = destination(props)
            if len(self._known) >= ENDS_KEPT:
                self._known.clear()
            self._known[end] = known
        return known


def destination(props: bytes) -> tuple[str, int]:
    """Topic and queue that a delayed message is for; BodyError when it does not say that."""
    topic, queue_id = properties.get(props, b"REAL_TOPIC"), properties.get(props, b"REAL_QID")
    if not topic or not queue_id or not queue_id.isdigit():
        raise BodyError("it does not say which topic and queue it is for (REAL_TOPIC, REAL_QID)")
    name = topic.decode("utf-8", "replace")
    check_topic(name)
    if name in (HALF_TOPIC, SCHEDULE_TOPIC):
        raise BodyError(f"it is for topic {name}, where a delayed message has no business")
    return name, int(queue_id)


def letter_size(letter: Letter) -> int:
    """Bytes of the record of a letter at most, whatever the hosts; LocalProtocolError for a field that is too long."""
    topic_length = len(letter.topic.encode())
    return record_size(len(letter.body), topic_length, len(letter.properties), _HOSTS_V6)
