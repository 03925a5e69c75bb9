"""The list of queues that a store had: how a start notices that the files of one are gone.

In: topic, queue id and which messages each queue surely had; deleted topics. Out: the same, at the next start.
The file ``queuelist.json`` lies in the store's folder; peers pass it over. It is written whole under another name and
renamed: whenever queues came or went, before the checkpoint counts on them; when a topic is deleted; and with the
bounds of all queues by a clean stop and by a recovery. A list that cannot be read is as good as none.

The flusher saves in a worker thread, while a topic may be deleted on the loop: the two write under different names, and
what was made before a deletion is made again in place of being renamed over it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from threading import Lock  # noqa: TID251 - part of the disk seam, which worker threads call
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
        #: Number of deletions so far: a list of queues is told apart by it from what was deleted since.
        self.deletions = 0
        self._deleted_as: dict[str, int] = {}
        self._lock = Lock()

    def load(self) -> None:
        """Read the file, if there is one. Blocking."""
        self.listed, self.deleted = None, {}
        if self.disk.exists(self.path):
            found = _read(read_file(self.disk, self.path, self.disk.size(self.path), 0))
            if found is not None:
                self.listed, self.deleted = found

    def delete(self, topic: str, log_end: int, *, but: Collection[QueueKey] = ()) -> None:
        """Note that a topic is gone, with its records before `log_end`; the queues `but` have later ones only.

        Blocking for a moment.
        """
        with self._lock:
            self.deleted[topic] = max(log_end, self.deleted.get(topic, 0))
            self.deletions += 1
            self._deleted_as[topic] = self.deletions
        listed = self.listed or {}
        kept = {key: bounds for key, bounds in listed.items() if key[0] != topic or key in but}
        self.save(kept, durable=False)

    def cut_back(self, log_end: int) -> bool:
        """The log ends there, perhaps before a deletion: what is written next was not deleted. Whether that is news.

        It has to be saved before anything is written.
        """
        with self._lock:
            behind = [topic for topic, offset in self.deleted.items() if offset > log_end]
            self.deleted |= dict.fromkeys(behind, log_end)
        return bool(behind)

    def save(
        self,
        queues: Mapping[QueueKey, Bounds],
        *,
        as_of: int | None = None,
        durable: bool = True,
    ) -> None:
        """Write a list, without what was deleted since `as_of` (see :attr:`deletions`; None stands for now).

        Blocking; without `durable` only for a moment, and a power cut may take it back.
        """
        since = self.deletions if as_of is None else as_of
        written = f"{self.path}.new" if durable else f"{self.path}.now"
        renamed = False
        while not renamed:
            with self._lock:
                seen, listed = self.deletions, self._without_deleted(queues, since)
                data = self._encoded(listed)
            self._write(written, data, durable=durable)
            with self._lock:
                renamed = seen == self.deletions
                if renamed:
                    self.disk.rename(written, self.path)
                    self.listed = listed
        if durable:
            self.disk.sync_dir(self.root)

    def _without_deleted(
        self, queues: Mapping[QueueKey, Bounds], since: int
    ) -> dict[QueueKey, Bounds]:
        deleted = self._deleted_as
        return {key: bounds for key, bounds in queues.items() if deleted.get(key[0], 0) <= since}

    def _encoded(self, queues: Mapping[QueueKey, Bounds]) -> bytes:
        topics: dict[str, dict[str, list[int]]] = {}
        for (topic, queue_id), bounds in sorted(queues.items()):
            topics.setdefault(topic, {})[str(queue_id)] = list(bounds)
        value = {"version": _VERSION, "queues": topics, "deleted": self.deleted}
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")

    def _write(self, path: str, data: bytes, *, durable: bool) -> None:
        file = self.disk.open(path, create=True)
        try:
            file.truncate(0)
            file.write(data, 0)
            if durable:
                file.sync()
        finally:
            file.close()


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
