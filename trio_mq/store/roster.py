"""The list of queues that a store had: how a start notices that the files of one are gone.

In: topic, queue id and which messages each queue surely had; deleted topics. Out: the same, at the next start.
The file ``queuelist.json`` lies in the store's folder; peers pass it over. It is written whole under another name and
renamed: whenever queues came or went, before the checkpoint counts on them; when a topic is deleted; and with the
bounds of all queues by a clean stop and by a recovery. A list that cannot be read is as good as none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from trio_mq.store.disk import Disk
from trio_mq.store.segments import read_file

QueueKey = tuple[str, int]

#: Name in the store's folder.
FILE_NAME = "queuelist.json"
_VERSION = 1


class Bounds(NamedTuple):
    """First and next queue offset that a queue surely has had; both 0 when only the queue itself is known."""

    min_offset: int = 0
    max_offset: int = 0


class QueueRoster:
    """One store's list."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self.path = f"{root}/{FILE_NAME}"
        #: What the file says, None while there is no list.
        self.listed: dict[QueueKey, Bounds] | None = None
        #: Topics that were deleted, with the log's end at that time: records of theirs before have no queue any more.
        self.deleted: dict[str, int] = {}

    def load(self) -> None:
        """Read the file, if there is one. Blocking."""
        self.listed, self.deleted = None, {}
        if self.disk.exists(self.path):
            found = _read(read_file(self.disk, self.path, self.disk.size(self.path), 0))
            if found is not None:
                self.listed, self.deleted = found

    def save(self, queues: Mapping[QueueKey, Bounds], *, durable: bool = True) -> None:
        """Write a list. Blocking; without `durable` only for a moment, and a power cut may take it back."""
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, queue_id), bounds in sorted(queues.items()):
            topics.setdefault(topic, {})[str(queue_id)] = list(bounds)
        value = {"version": _VERSION, "queues": topics, "deleted": self.deleted}
        data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
        written = f"{self.path}.new"
        file = self.disk.open(written, create=True)
        try:
            file.truncate(0)
            file.write(data, 0)
            if durable:
                file.sync()
        finally:
            file.close()
        self.disk.rename(written, self.path)
        if durable:
            self.disk.sync_dir(self.root)
        self.listed = dict(queues)


def _read(data: bytes) -> tuple[dict[QueueKey, Bounds], dict[str, int]] | None:
    try:
        found = json.loads(data.decode("utf-8", "surrogateescape"))
        if found["version"] != _VERSION:
            return None
        queues = {
            (topic, int(queue_id)): Bounds(*map(int, bounds))
            for topic, of_topic in found["queues"].items()
            for queue_id, bounds in of_topic.items()
        }
        return queues, {topic: int(offset) for topic, offset in found["deleted"].items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
