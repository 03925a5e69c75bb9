"""All consume queues of a store: which exist, where their files are, and what of them is not written yet.

In: topic names and queue ids. Out: queues. Made by :func:`trio_mq.store.store.open_parts`, filled by recovery from the
folders it finds, and by the first message of each queue. Source: Apache ConsumeQueueStore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from trio_mq.errors import ConfigError
from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY_SIZE, PRE_BLANK, QUEUE_ENTRY_SIZE
from trio_mq.store.disk import Disk
from trio_mq.store.entries import EntryFiles
from trio_mq.store.queues import BaseQueue, BatchConsumeQueue, ConsumeQueue
from trio_mq.store.roster import Bounds, QueueKey, QueueRoster
from trio_mq.store.segments import FilePool, Segments
from trio_mq.store.traffic import Traffic

#: Folders under the store's root.
SIMPLE_FOLDER = "consumequeue"
BATCH_FOLDER = "batchconsumequeue"


def fits_folder(topic: str) -> bool:
    """Whether a name of a topic can be that of a folder; any other would lead out of the store."""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


class QueueTable:
    """All queues of a store, by topic and queue id."""

    def __init__(
        self,
        disk: Disk,
        root: str,
        *,
        queue_file_bytes: int,
        batch_file_bytes: int,
        is_batch_topic: Callable[[str], bool],
    ) -> None:
        if batch_file_bytes % BATCH_QUEUE_ENTRY_SIZE:
            raise ConfigError(
                f"mapperFileSizeBatchConsumeQueue is {batch_file_bytes} bytes, which is not a multiple of "
                f"{BATCH_QUEUE_ENTRY_SIZE}, the size of an entry"
            )
        self.disk = disk
        self.pool = FilePool(disk)
        self._root = root
        self._queue_file_bytes = -(-queue_file_bytes // QUEUE_ENTRY_SIZE) * QUEUE_ENTRY_SIZE
        self._batch_file_bytes = batch_file_bytes
        #: Says whether a topic has batch queues; the broker's topic table knows.
        self.is_batch_topic = is_batch_topic
        self._queues: dict[tuple[str, int], BaseQueue] = {}
        #: Totals of each topic that has queues.
        self.traffic: dict[str, Traffic] = {}
        #: Queues with entries that are not in their files yet.
        self.dirty: set[BaseQueue] = set()
        self.roster = QueueRoster(disk, root)
        #: Queues that came or went so far, and at which count the list was last found to be right.
        self._changes = 0
        self._listed_changes = -1
        #: Whether the list was written without a sync.
        self._list_unsynced = False

    def __iter__(self) -> Iterator[BaseQueue]:
        return iter(list(self._queues.values()))

    def get(self, topic: str, queue_id: int) -> BaseQueue | None:
        """The queue, if it exists."""
        return self._queues.get((topic, queue_id))

    def obtain(self, topic: str, queue_id: int, *, batch: bool = False) -> BaseQueue:
        """The queue, made when it does not exist; its files come with the first entry.

        With `batch` it becomes a batch queue even if the table of topics does not say so (yet).
        """
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self.make(topic, queue_id, batch=batch or self.is_batch_topic(topic))
        return queue

    def make(self, topic: str, queue_id: int, *, batch: bool) -> BaseQueue:
        """A queue of a given kind, with its files not yet looked at."""
        assert fits_folder(topic), f"{topic!r} is no name of a folder, which its source has to see"
        folder = BATCH_FOLDER if batch else SIMPLE_FOLDER
        segments = Segments(
            self.disk,
            self.pool,
            f"{self._root}/{folder}/{topic}/{queue_id}",
            self._batch_file_bytes if batch else self._queue_file_bytes,
        )
        queue: BaseQueue
        if batch:
            queue = BatchConsumeQueue(topic, queue_id, EntryFiles(segments, BATCH_QUEUE_ENTRY_SIZE))
        else:
            files = EntryFiles(segments, QUEUE_ENTRY_SIZE, filler=PRE_BLANK)
            queue = ConsumeQueue(topic, queue_id, files)
        queue.traffic = self.traffic.setdefault(topic, queue.traffic)
        self._queues[topic, queue_id] = queue
        self._changes += 1
        return queue

    def found(self) -> list[tuple[str, int, bool]]:
        """Topic, queue id and kind (batch or not) of every queue folder on the disk; other names are passed over."""
        result: list[tuple[str, int, bool]] = []
        for folder, batch in ((SIMPLE_FOLDER, False), (BATCH_FOLDER, True)):
            for topic in self.disk.list_dir(f"{self._root}/{folder}"):
                of_topic = f"{self._root}/{folder}/{topic}"
                if not self.disk.is_dir(of_topic):
                    continue
                result += [
                    (topic, int(name), batch)
                    for name in self.disk.list_dir(of_topic)
                    if name.isascii()
                    and name.isdigit()
                    and name == str(int(name))
                    and self.disk.is_dir(f"{of_topic}/{name}")
                ]
        return result

    def of_topic(self, topic: str) -> list[BaseQueue]:
        """All queues of one topic."""
        return [queue for (name, _), queue in self._queues.items() if name == topic]

    def drop_topic(self, topic: str, log_end: int) -> None:
        """Forget a topic's queues and remove their files. Its records before `log_end` belong to no queue any more.

        That is noted first: a careful start reads those records again.
        """
        assert fits_folder(topic), f"{topic!r} is no name of a folder, which its source has to see"
        self.roster.delete(topic, log_end)
        self._list_unsynced = True  # saved durably with the next sync
        for queue in self.of_topic(topic):
            self.drop(queue)
        self.traffic.pop(topic, None)
        for folder in (SIMPLE_FOLDER, BATCH_FOLDER):
            self.disk.remove_tree(f"{self._root}/{folder}/{topic}")

    def begin_anew(self, queue: BaseQueue) -> None:
        """Forget a queue, and those of its topic whose records all come before its end: their topic was deleted.

        So it is in a log that is copied, where the master tells nothing of it: the next record of the queue says that
        it is the first one. All entries have to have been put. Noted as by :meth:`drop_topic`.
        """
        topic, end = queue.topic, max(0, queue.indexed_to)
        old = [one for one in self.of_topic(topic) if one is queue or 0 <= one.indexed_to <= end]
        stays = {(one.topic, one.queue_id) for one in self.of_topic(topic) if one not in old}
        self.roster.delete(topic, end, but=stays)
        self._list_unsynced = True  # saved durably with the next sync
        for one in old:
            self.drop(one)

    def drop(self, queue: BaseQueue) -> None:
        """Forget one queue and remove its files. Records that are on their way to it get no entries any more."""
        del self._queues[queue.topic, queue.queue_id]
        self._changes += 1
        self.dirty.discard(queue)
        queue.dropped = True
        queue.files.segments.drop_all()
        self.disk.remove_tree(queue.files.segments.directory)

    def unlisted(self) -> dict[QueueKey, Bounds] | None:
        """The list of queues that is due for :attr:`roster`, since some came or went; None when it is as it was."""
        if self._changes == self._listed_changes and not self._list_unsynced:
            return None
        listed = self.roster.listed or {}
        names = [key for key, queue in self._queues.items() if not queue.files.segments.empty]
        due, self._list_unsynced = self._list_unsynced, False
        if len(names) == len(self._queues):
            self._listed_changes = self._changes  # else one gets its files soon
        if not due and set(names) == listed.keys():
            return None
        return {key: listed.get(key, Bounds()) for key in names}

    def reached(self) -> dict[QueueKey, Bounds]:
        """The list of queues with their bounds, for :attr:`roster`; all entries have to be durable."""
        return {
            key: Bounds(queue.min_offset, queue.max_offset)
            for key, queue in self._queues.items()
            if not queue.files.segments.empty
        }

    def write_tails(self) -> None:
        """Write all entries in memory to their files.

        After an OSError the other queues are still written; what is left stays for the next time.
        """
        failed: OSError | None = None
        for queue in list(self.dirty):
            try:
                queue.files.write_tail()
            except OSError as error:
                failed = failed or error
            else:
                self.dirty.discard(queue)
        if failed is not None:
            raise failed
