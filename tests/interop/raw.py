"""A small remoting client for hand-made frames, on purpose without any code of trio_mq.

In: request codes, header fields, bytes. Out: replies as :class:`Reply`, requests of the broker, closed connections.
Formats: remoting command (Apache: RemotingCommand, RocketMQSerializable), records (Apache: MessageDecoder).
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import struct
import time
import zlib
from typing import Any, Self

import attrs

FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
MAGIC_V1 = -626843481
MAGIC_V2 = -626843477
_OPAQUE = itertools.count(1)
# Every connection made; a test's fixture closes what the test left open.
OPEN: list[RawClient] = []


class ConnectionGone(Exception):
    """The broker closed the connection."""


@attrs.frozen
class Reply:
    """One frame of the broker: an answer, or (``flag & 1 == 0``) a request of its own."""

    code: int
    opaque: int
    flag: int
    version: int
    remark: str | None
    ext: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, read as the peers' JSON dialect."""
        return loads(self.body.decode())


@attrs.frozen
class Record:
    """One stored message, as pull, view and query answers carry it."""

    size: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    log_offset: int
    sys_flag: int
    store_host: tuple[str, int]
    reconsume_times: int
    stored_body: bytes
    topic: str
    properties: dict[str, str]
    properties_length: int

    @property
    def body(self) -> bytes:
        """The body as the sender gave it."""
        return zlib.decompress(self.stored_body) if self.sys_flag & 1 else self.stored_body


def json_frame(code: int, ext: dict[str, str] | None, body: bytes = b"", **header: Any) -> bytes:
    """A whole frame with a JSON header; ``header`` overrides single fields."""
    fields: dict[str, Any] = {
        "code": code,
        "flag": 0,
        "language": "JAVA",
        "opaque": next(_OPAQUE),
        "serializeTypeCurrentRPC": "JSON",
        "version": 493,
    }
    if ext is not None:
        fields["extFields"] = ext
    fields.update(header)
    return frame(json.dumps(fields, ensure_ascii=False).encode(), body)


def frame(header: bytes, body: bytes = b"", serialize_type: int = 0) -> bytes:
    """Lengths in front of header and body."""
    lengths = struct.pack(">II", 4 + len(header) + len(body), serialize_type << 24 | len(header))
    return lengths + header + body


def binary_frame(code: int, ext: dict[str, str], body: bytes = b"", opaque: int = 0) -> bytes:
    """A whole frame with a ROCKETMQ (binary) header."""
    fields = b"".join(
        struct.pack(">h", len(k.encode()))
        + k.encode()
        + struct.pack(">i", len(v.encode()))
        + v.encode()
        for k, v in ext.items()
    )
    head = struct.pack(">hBhiii", code, 0, 493, opaque, 0, 0)
    return frame(head + struct.pack(">i", len(fields)) + fields, body, serialize_type=1)


class RawClient:
    """One blocking connection."""

    def __init__(self, address: str, timeout_s: float = 15.0) -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
        self.timeout_s = timeout_s
        self.requests: list[Reply] = []
        self._buffer = b""
        OPEN.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close without any farewell."""
        self.socket.close()

    def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes = b"", **header: Any
    ) -> Reply:
        """Send one request and wait for its answer; requests of the broker meanwhile go to ``requests``."""
        opaque = next(_OPAQUE)
        self.send(json_frame(code, ext, body, opaque=opaque, **header))
        return self.reply(opaque)

    def oneway(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> None:
        """Send one request that must not be answered."""
        self.send(json_frame(code, ext, body, flag=FLAG_ONEWAY))

    def send(self, data: bytes) -> None:
        """Bytes as they are."""
        self.socket.sendall(data)

    def reply(self, opaque: int | None = None) -> Reply:
        """The next answer, or the one with this number."""
        while True:
            got = self.read()
            if not got.flag & FLAG_RESPONSE:
                self.requests.append(got)
            elif opaque is None or got.opaque == opaque:
                return got

    def read(self, timeout_s: float | None = None) -> Reply:
        """The next frame of any kind."""
        end = time.monotonic() + (self.timeout_s if timeout_s is None else timeout_s)
        while True:
            if len(self._buffer) >= 4:
                (length,) = struct.unpack_from(">I", self._buffer)
                if len(self._buffer) >= 4 + length:
                    raw, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
                    return _parse(raw)
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.socket], [], [], left)[0]:
                raise TimeoutError("no frame from the broker")
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError as error:
                raise ConnectionGone(str(error)) from error
            if not data:
                raise ConnectionGone("closed by the broker")
            self._buffer += data

    def silent_for(self, seconds: float) -> bool:
        """True when the broker sends nothing and keeps the connection for this long."""
        try:
            self.read(seconds)
        except TimeoutError:
            return True
        return False

    def closed_within(self, seconds: float) -> bool:
        """True when the broker closes the connection in this time; what it says before is dropped."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                self.read(left)
            except ConnectionGone:
                return True
            except TimeoutError:
                return False
        return False


def _parse(raw: bytes) -> Reply:
    (word,) = struct.unpack_from(">I", raw)
    kind, length = word >> 24, word & 0xFFFFFF
    assert kind == 0, f"answers are JSON, got serialize type {kind}"
    header = json.loads(raw[4 : 4 + length])
    return Reply(
        code=header["code"],
        opaque=header["opaque"],
        flag=header["flag"],
        version=header.get("version", 0),
        remark=header.get("remark"),
        ext=header.get("extFields") or {},
        body=raw[4 + length :],
    )


def records(data: bytes) -> list[Record]:
    """All records of a pull, view or query answer."""
    out, pos = [], 0
    while pos < len(data):
        one = _record(data, pos)
        out.append(one)
        pos += one.size
    assert pos == len(data), "records fill the body exactly"
    return out


def _record(data: bytes, pos: int) -> Record:
    size, magic, crc, queue_id, flag, queue_offset, log_offset, sys_flag = struct.unpack_from(
        ">iiIiiqqi", data, pos
    )
    assert magic in (MAGIC_V1, MAGIC_V2), f"magic {magic} at {pos}"
    at = pos + 48
    at += 20 if sys_flag & 0x10 else 8
    at += 8
    host_bytes = 16 if sys_flag & 0x20 else 4
    family = socket.AF_INET6 if sys_flag & 0x20 else socket.AF_INET
    ip = socket.inet_ntop(family, data[at : at + host_bytes])
    (port,) = struct.unpack_from(">i", data, at + host_bytes)
    at += host_bytes + 4
    reconsume_times, _prepared, body_length = struct.unpack_from(">iqi", data, at)
    at += 16
    body = data[at : at + body_length]
    at += body_length
    if magic == MAGIC_V1:
        topic_length, at = data[at], at + 1
    else:
        topic_length, at = struct.unpack_from(">H", data, at)[0], at + 2
    topic = data[at : at + topic_length].decode()
    at += topic_length
    (properties_length,) = struct.unpack_from(">H", data, at)
    text = data[at + 2 : at + 2 + properties_length].decode()
    assert at + 2 + properties_length == pos + size, "lengths inside a record add up"
    pairs = (item.split("\x01", 1) for item in text.split("\x02") if item)
    return Record(
        size, crc, queue_id, flag, queue_offset, log_offset, sys_flag, (ip, port),
        reconsume_times, body, topic, dict(pairs), properties_length,
    )  # fmt: skip


def properties(values: dict[str, str]) -> str:
    """The properties text of a send."""
    return "".join(f"{k}\x01{v}\x02" for k, v in values.items())


def loads(text: str) -> Any:
    """The JSON of the peers: integers and objects may be keys. Object keys become sorted tuples of pairs."""
    value, end = _value(text, 0)
    assert not text[end:].strip(), f"text after the value: {text[end : end + 40]!r}"
    return value


def _space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _value(text: str, at: int) -> tuple[Any, int]:
    at = _space(text, at)
    if text[at] == "{":
        return _object(text, at)
    if text[at] == "[":
        items: list[Any] = []
        at = _space(text, at + 1)
        while text[at] != "]":
            item, at = _value(text, at)
            items.append(item)
            at = _space(text, at)
            if text[at] == ",":
                at = _space(text, at + 1)
        return items, at + 1
    return json.JSONDecoder(strict=False).raw_decode(text, at)


def _object(text: str, at: int) -> tuple[dict[Any, Any], int]:
    out: dict[Any, Any] = {}
    at = _space(text, at + 1)
    while text[at] != "}":
        key, at = _value(text, at)
        if isinstance(key, dict):
            key = tuple(sorted(key.items()))
        at = _space(text, at)
        assert text[at] == ":", f"':' expected at {at}: {text[at : at + 40]!r}"
        out[key], at = _value(text, at + 1)
        at = _space(text, at)
        if text[at] == ",":
            at = _space(text, at + 1)
    return out, at + 1


@attrs.define
class Sender:
    """Plain sends by hand: the fields that codes 10 and 310 need, with one method for each."""

    client: RawClient
    topic: str
    group: str = "RawProducer"
    extra: dict[str, str] = attrs.field(factory=dict)

    def fields(self, queue_id: int, props: str, **overrides: str) -> dict[str, str]:
        """Header of SEND_MESSAGE (10)."""
        values = {
            "producerGroup": self.group,
            "topic": self.topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": str(queue_id),
            "sysFlag": "0",
            "bornTimestamp": "1700000000000",
            "flag": "0",
            "properties": props,
            "reconsumeTimes": "0",
            "unitMode": "false",
            "batch": "false",
            "maxReconsumeTimes": "0",
        }
        values.update(overrides)
        return values

    def send(self, body: bytes, queue_id: int = 0, props: str = "", **overrides: str) -> Reply:
        """SEND_MESSAGE, long names."""
        return self.client.call(10, self.fields(queue_id, props, **overrides), body)

    def send_v2(
        self, body: bytes, queue_id: int = 0, props: str = "", code: int = 310, **overrides: str
    ) -> Reply:
        """SEND_MESSAGE_V2 or SEND_BATCH_MESSAGE: one-letter names."""
        return self.client.call(code, short(self.fields(queue_id, props, **overrides)), body)


_SHORT = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
}


def short(fields: dict[str, str]) -> dict[str, str]:
    """The one-letter names of SEND_MESSAGE_V2."""
    return {_SHORT[name]: value for name, value in fields.items()}


def pull_fields(
    group: str, topic: str, queue_id: int, offset: int, **overrides: str
) -> dict[str, str]:
    """Header of PULL_MESSAGE (11) with the subscription ``*`` in the request, and no waiting."""
    values = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
    }
    values.update(overrides)
    return values


def heartbeat(client_id: str, group: str, topic: str, expression: str = "*") -> bytes:
    """Body of HEART_BEAT (34) for one push consumer."""
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {
                "classFilterMode": False,
                "codeSet": [],
                "expressionType": "TAG",
                "subString": expression,
                "subVersion": 1,
                "tagsSet": [],
                "topic": topic,
            }
        ],
        "unitMode": False,
    }
    return json.dumps(
        {
            "clientID": client_id,
            "consumerDataSet": [consumer],
            "heartbeatFingerprint": 0,
            "producerDataSet": [],
            "withoutSub": False,
        }
    ).encode()
