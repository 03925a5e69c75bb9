"""Hashes for the key index: of a record's unique id, keys and tags, as ``topic#key``.

In: topic and raw property text. Out: the numbers that index files keep. Called by the dispatcher, once per message,
which is why topic and key are never joined and halves of hashes are remembered.
Format: Apache 5.4.0 IndexService.buildIndex, IndexFile.indexKeyHashMethod.
"""

from __future__ import annotations

from typing import Any

from trio_mq.protocol import properties
from trio_mq.protocol.message import java_hash

#: What is remembered at most, by kind; a producer of ever new names must not fill the memory.
_TOPICS, _TAGS, _HEADS, _ENDS = 20_000, 10_000, 20_000, 70_000
#: Keys up to here are hashed directly, longer ones in two halves.
_SHORT = 6
_POWERS = [pow(31, n, 1 << 32) for n in range(256)]
_MASK = 0xFFFF_FFFF


class KeyHasher:
    """Hashes of ``topic#key``: ``hash(topic#) * 31**len(key) + hash(key)``."""

    def __init__(self) -> None:
        self._topics: dict[str, int] = {}
        self._tags: dict[tuple[str, bytes], int] = {}
        #: Unique ids of one millisecond differ in their last four digits only.
        self._heads: dict[bytes, int] = {}
        self._ends: dict[bytes, int] = {}

    def keys(self, topic: str, data: bytes) -> list[int]:
        """The index hashes of a record's unique id, keys and tags, in the order that 5.4.0 writes them."""
        topic_hash = self._topics.get(topic)
        if topic_hash is None:
            topic_hash = self.topic_hash(topic)
        hashes: list[int] = []
        unique = properties.get(data, b"UNIQ_KEY")
        if unique:
            hashes.append(self.joined(topic_hash, unique))
        keys = properties.get(data, b"KEYS")
        if keys:
            if b" " in keys:
                hashes += [self.joined(topic_hash, key) for key in keys.split(b" ") if key]
            else:
                hashes.append(self.joined(topic_hash, keys))
        tags = properties.get(data, b"TAGS")
        if tags:
            hashes.append(self.tag_hash(topic, tags))
        return hashes

    def topic_hash(self, topic: str) -> int:
        """The hash of ``topic#``."""
        known = self._topics.get(topic)
        if known is None:
            _bound(self._topics, _TOPICS)
            known = self._topics[topic] = java_hash(topic + "#")
        return known

    def tag_hash(self, topic: str, tags: bytes) -> int:
        """The index hash of ``topic#T#tags``."""
        known = self._tags.get((topic, tags))
        if known is None:
            _bound(self._tags, _TAGS)
            known = self._tags[topic, tags] = self.joined(self.topic_hash(topic), b"T#" + tags)
        return known

    def joined(self, topic_hash: int, key: bytes) -> int:
        """The index hash of a key in a topic of which ``hash(topic#)`` is given."""
        length = len(key)
        if not key.isascii():
            text = key.decode("utf-8", "replace")
            length = len(text.encode("utf-16-be", "surrogatepass")) // 2
            value = java_hash(text)
        elif length > _SHORT:
            ends, end = self._ends, key[-4:]
            value = ends.get(end, -1)
            if value < 0:
                _bound(ends, _ENDS)
                value = ends[end] = java_hash(end.decode()) & _MASK
            heads, head = self._heads, key[:-4]
            head_hash = heads.get(head)
            if head_hash is None:
                _bound(heads, _HEADS)
                head_hash = heads[head] = java_hash(head.decode()) * _POWERS[4]
            value += head_hash
        else:
            value = java_hash(key.decode())
        power = _POWERS[length] if length < 256 else pow(31, length, 1 << 32)
        return absolute(topic_hash * power + value)


def absolute(value: int) -> int:
    """A Java hash, of which only the low 32 bits count, as index files keep it: its absolute value.

    It is 0 for the one value that has none (Apache: IndexFile.indexKeyHashMethod).
    """
    value &= _MASK
    return value if value < 0x8000_0000 else (0x1_0000_0000 - value) & 0x7FFF_FFFF


def _bound(known: dict[Any, int], limit: int) -> None:
    """Forget everything before there is too much; it is soon known again."""
    if len(known) >= limit:
        known.clear()
