"""Stores written file by file: long logs, many segments, many queues, which no test has the time to send.

In: how many of what. Out: a folder as a broker leaves it, without any code of the store. Formats:
``docs/reference/store-format.md``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import attrs

from trio_mq.protocol.layout import QUEUE_ENTRY, QUEUE_ENTRY_SIZE, Checkpoint, pack_checkpoint
from trio_mq.protocol.message import Host
from trio_mq.protocol.record import pack

GIB = 1 << 30
QUEUE_FILE_BYTES = 300_000 * QUEUE_ENTRY_SIZE
NOW_MS = 1_795_000_000_000
#: Where a record holds what differs between two messages: queue id, queue offset, log offset, time of storing.
_QUEUE_ID, _OFFSETS, _STORED = 12, 20, 56
_HOST = Host("127.0.0.1", 10911).packed


@attrs.define
class RawStore:
    """A store under construction. Every record of a topic has the same body."""

    root: Path
    segment_bytes: int = GIB
    queue_file_bytes: int = QUEUE_FILE_BYTES
    at: int = 0
    #: Entries of each queue, by topic and queue id.
    queues: dict[tuple[str, int], bytearray] = attrs.field(factory=dict)

    def segment(self, start: int) -> Path:
        """The log file that begins at `start`, of full size."""
        path = self.root / "commitlog" / f"{start:020d}"
        _sparse(path, self.segment_bytes)
        return path

    def fill(self, count: int, topics: list[str], queues: int, body: bytes) -> None:
        """Add messages round robin over the queues of some topics, in the segment that :attr:`at` lies in."""
        start = self.at - self.at % self.segment_bytes
        data = b"".join(self._records(count, topics, queues, body))
        with self.segment(start).open("r+b") as log:
            log.seek(self.at - len(data) - start)
            log.write(data)

    def _records(
        self, count: int, topics: list[str], queues: int, body: bytes
    ) -> Iterator[bytearray]:
        turns = [(topic, queue_id) for queue_id in range(queues) for topic in topics]
        templates = {topic: _template(topic, body) for topic in topics}
        for number in range(count):
            topic, queue_id = turns[number % len(turns)]
            entries = self.queues.setdefault((topic, queue_id), bytearray())
            record = bytearray(templates[topic])
            struct.pack_into(">i", record, _QUEUE_ID, queue_id)
            struct.pack_into(">qq", record, _OFFSETS, len(entries) // QUEUE_ENTRY_SIZE, self.at)
            struct.pack_into(">q", record, _STORED, NOW_MS + number)
            entries += QUEUE_ENTRY.pack(self.at, len(record), 0)
            self.at += len(record)
            yield record

    def close(self, *, crashed: bool = False, with_queues: bool = True) -> None:
        """Write queues, topics and checkpoint; `crashed` leaves the abort marker."""
        config = self.root / "config"
        config.mkdir()
        table = {
            topic: {
                "topicName": topic,
                "readQueueNums": 1 + max(q for name, q in self.queues if name == topic),
                "writeQueueNums": 1 + max(q for name, q in self.queues if name == topic),
                "perm": 6,
            }
            for topic in ({name for name, _ in self.queues} if len(self.queues) < 100 else ())
        }
        version = {"counter": 1, "stateVersion": 0, "timestamp": NOW_MS}
        topics = {"dataVersion": version, "topicConfigTable": table}
        (config / "topics.json").write_text(json.dumps(topics))
        if with_queues:
            for (topic, queue_id), entries in self.queues.items():
                folder, size = (
                    self.root / "consumequeue" / topic / str(queue_id),
                    self.queue_file_bytes,
                )
                for start in range(0, len(entries), size):
                    _sparse(folder / f"{start:020d}", size, bytes(entries[start : start + size]))
        times = Checkpoint(NOW_MS, NOW_MS, NOW_MS)
        (self.root / "checkpoint").write_bytes(pack_checkpoint(times))
        if crashed:
            (self.root / "abort").write_bytes(b"1")


def _template(topic: str, body: bytes) -> bytes:
    return pack(0, 0, 0, 0, 0, NOW_MS, _HOST, NOW_MS, _HOST, 0, 0, body, topic.encode(), b"")


def _sparse(path: Path, size: int, content: bytes = b"") -> None:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as made:
            made.write(content)
            made.truncate(size)
