"""The compressed body of REGISTER_BROKER.

In: bytes of a body whose header says ``compressed``. Out: a :class:`RegisterBrokerBody`. Called by
the name server. Format (Apache: ``RegisterBrokerBody.decode``, ``TopicConfig.decode``): a zlib
stream of length-prefixed pieces: the data version, the number of topics, each as ``name read write
perm filterType attributes``, the list of filter servers, and from release 5.0.0 on the number of
queue mappings and the mappings.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

from trio_mq.errors import BodyError
from trio_mq.protocol import jsondialect

from . import converter
from .tables import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigSerializeWrapper

MAX_INFLATED_BYTES: Final = 64 * 1024 * 1024
"""Limit for the inflated body: a frame of 16 MB could blow up to 16 GB. 64 MB is 500,000 topics."""

_MAPPING_VERSION: Final = 413
"""Version of 5.0.0, the first release that appends queue mappings."""


def decode_compressed(data: bytes, version: int) -> RegisterBrokerBody:
    """The registration in ``data``; ``version`` is that of the sending command."""
    pieces = _Pieces(_inflate(data))
    data_version = converter.decode(DataVersion, pieces.next("data version"))
    topics: dict[str, TopicConfig] = {}
    for _ in range(pieces.count("topics")):
        topic = _topic(pieces.next("topic").decode(errors="replace"))
        topics[topic.topic_name] = topic
    servers = jsondialect.loads(pieces.next("filter servers"))
    if not isinstance(servers, list):
        raise BodyError("RegisterBrokerBody: the filter servers are not a list")
    mappings: dict[str, Any] = {}
    if version >= _MAPPING_VERSION:
        for _ in range(pieces.count("queue mappings")):
            mapping = jsondialect.loads(pieces.next("queue mapping"))
            if not isinstance(mapping, dict) or "topic" not in mapping:
                raise BodyError("RegisterBrokerBody: a queue mapping has no topic")
            mappings[str(mapping["topic"])] = mapping
    return RegisterBrokerBody(
        TopicConfigSerializeWrapper(topics, data_version, topic_queue_mapping_info_map=mappings),
        tuple(str(server) for server in servers),
    )


def _inflate(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(data, MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise BodyError(f"RegisterBrokerBody: not a zlib stream ({error})") from None
    if inflater.unconsumed_tail:
        raise BodyError(f"RegisterBrokerBody: more than {MAX_INFLATED_BYTES} bytes when inflated")
    if not inflater.eof:
        raise BodyError("RegisterBrokerBody: the zlib stream is cut off")
    return inflated


def _topic(text: str) -> TopicConfig:
    parts = text.split(" ", 5)
    try:
        name, read, write, perm, filter_type = parts[:5]
        numbers = int(read), int(write), int(perm)
    except ValueError:
        raise BodyError(f"RegisterBrokerBody: topic {text[:60]!r} has no five fields") from None
    attributes = jsondialect.loads(parts[5]) if len(parts) > 5 and parts[5].strip() else {}
    if not isinstance(attributes, dict):
        raise BodyError(f"RegisterBrokerBody: attributes of topic {name!r} are not an object")
    return TopicConfig(
        name, *numbers, filter_type, attributes={str(k): str(v) for k, v in attributes.items()}
    )


class _Pieces:
    """Length-prefixed pieces, one after the other; every length is checked."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def count(self, what: str) -> int:
        """The number of pieces to come."""
        number = self._integer(what)
        if not 0 <= number <= len(self._data):
            raise BodyError(f"RegisterBrokerBody: number of {what} is {number}")
        return number

    def next(self, what: str) -> bytes:
        length = self._integer(what)
        end = self._at + length
        if length < 0 or end > len(self._data):
            raise BodyError(
                f"RegisterBrokerBody: {what} of {length} bytes, "
                f"but {len(self._data) - self._at} are left"
            )
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def _integer(self, what: str) -> int:
        end = self._at + 4
        if end > len(self._data):
            raise BodyError(f"RegisterBrokerBody: ends before its {what}")
        number = int.from_bytes(self._data[self._at : end], "big", signed=True)
        self._at = end
        return number
