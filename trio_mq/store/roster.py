"""The list of queues that a store had: how a start notices that the files of one are gone.

In: topic, queue id and how far each queue surely reached. Out: the same, at the next start. The file ``queuelist.json``
lies in the store's folder; peers pass it over. It is written whole under another name and renamed, whenever queues
came or went, before the checkpoint counts on them, and with the ends of all queues by a clean stop.
A list that cannot be read is as good as none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from trio_mq.store.disk import Disk

QueueKey = tuple[str, int]

#: Name in the store's folder.
FILE_NAME = "queuelist.json"
_VERSION = 1


class QueueRoster:
    """One store's list."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.disk = disk
        self.root = root
        self.path = f"{root}/{FILE_NAME}"
        #: What the file says, None while there is no list.
        self.listed: dict[QueueKey, int] | None = None

    def load(self) -> None:
        """Read the file, if there is one. Blocking."""
        self.listed = None
        if self.disk.exists(self.path):
            file = self.disk.open(self.path, readonly=True)
            try:
                self.listed = _read(file.read(max(1, file.size()), 0))
            finally:
                file.close()

    def save(self, queues: Mapping[QueueKey, int]) -> None:
        """Write a list, durably: the largest offset that each queue surely has had, 0 when that is not known.

        Blocking.
        """
        topics: dict[str, dict[str, int]] = {}
        for (topic, queue_id), reached in sorted(queues.items()):
            topics.setdefault(topic, {})[str(queue_id)] = reached
        data = json.dumps({"version": _VERSION, "queues": topics}, ensure_ascii=False).encode()
        written = f"{self.path}.new"
        file = self.disk.open(written, create=True)
        try:
            file.truncate(0)
            file.write(data, 0)
            file.sync()
        finally:
            file.close()
        self.disk.rename(written, self.path)
        self.disk.sync_dir(self.root)
        self.listed = dict(queues)


def _read(data: bytes) -> dict[QueueKey, int] | None:
    try:
        found = json.loads(data)
        if found["version"] != _VERSION:
            return None
        return {
            (topic, int(queue_id)): int(reached)
            for topic, of_topic in found["queues"].items()
            for queue_id, reached in of_topic.items()
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
