"""A fast writer for the request that producers make for each message: SEND_MESSAGE_V2 (310).

In: what is the same for all messages to one broker of a topic, once; then what differs. Out: whole frames with a JSON
header, with the fields that :func:`trio_mq.protocol.headers.encode` and :func:`trio_mq.protocol.command.encode` write
for a :class:`.send.SendMessageRequestV2`. Called by the client's sends; :mod:`.hot` reads the same requests. Measured:
a sixth of the time of the ordinary way.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trio_mq.errors import LocalProtocolError
from trio_mq.protocol.codes import VERSION, RequestCode, SerializeType
from trio_mq.protocol.frames import encode_frame

_json: Final = msgspec.json.Encoder().encode
_JSON_HEADER: Final = int(SerializeType.JSON)


class SendFrames:
    """Frames for one producer group, topic and broker. `broker_name` is the one in the queue."""

    __slots__ = ("_template",)

    def __init__(
        self, group: str, topic: str, default_topic: str, default_queues: int, broker_name: str
    ) -> None:
        def text(value: str) -> bytes:
            return _json(value).replace(b"%", b"%%")

        self._template = (
            b'{"code":%d,"extFields":{"a":%b,"b":%b,"c":%b,"d":"%d","e":"%%d","f":"%%d","g":"%%d","h":"%%d",'
            b'"i":%%b,"j":"0","k":"false","m":"false","n":%b},"flag":0,"language":"PYTHON","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
            % (
                int(RequestCode.SEND_MESSAGE_V2),
                text(group),
                text(topic),
                text(default_topic),
                default_queues,
                text(broker_name),
                VERSION,
            )
        )

    def frame(
        self,
        opaque: int,
        queue_id: int,
        sys_flag: int,
        born_timestamp_ms: int,
        flag: int,
        properties: str,
        body: bytes,
    ) -> bytes:
        """One request. LocalProtocolError for properties that are no text, or a body that is too large for a frame."""
        try:
            text = _json(properties)
        except UnicodeEncodeError as error:
            raise LocalProtocolError(
                f"properties: {error.object!r:.80} is not valid text"
            ) from None
        header = self._template % (queue_id, sys_flag, born_timestamp_ms, flag, text, opaque)
        return encode_frame(_JSON_HEADER, header, body)
