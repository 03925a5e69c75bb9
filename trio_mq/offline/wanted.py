"""What an offline recovery is asked for, and the settings that it works with.

In: settings of a command line, and the sizes that were found from a store's files. Out: the settings of a start of
that store. Called by :mod:`trio_mq.offline.rehearsal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs

from trio_mq.config import Settings
from trio_mq.recovery.detect import Detected, detect, view_settings
from trio_mq.recovery.inspection import Size
from trio_mq.recovery.paths import Path
from trio_mq.recovery.picture import Progress
from trio_mq.recovery.recover import Choices
from trio_mq.store.disk import Disk

#: Settings that a store's files show, by the name of the field: what is given explicitly wins.
SIZES: Final = {
    "mapped_file_size_commit_log": "mappedFileSizeCommitLog",
    "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
    "mapped_file_size_batch_consume_queue": "mapperFileSizeBatchConsumeQueue",
    "max_hash_slot_num": "maxHashSlotNum",
    "max_index_num": "maxIndexNum",
}


@attrs.frozen
class Wanted:
    """`settings` as given; `path` and `assume_clean` overrule what they and the files say. `progress` is told often."""

    root: str
    settings: Settings = attrs.field(factory=Settings)
    path: Path | None = None
    assume_clean: bool | None = None
    progress: Progress | None = None

    def detect(self, disk: Disk) -> Detected:
        """What the files show. Blocking; raises StoreError for what is no store."""
        return detect(disk, self.root, commit_log_dir=self.settings.store.commit_log_path)

    def effective(self, detected: Detected) -> Settings:
        """The settings of a start of this store, with the sizes that it was written with."""
        seen, given = view_settings(detected, self.root), self.settings
        sizes = {
            field: getattr(seen, field) for field, key in SIZES.items() if key not in given.origins
        }
        store = attrs.evolve(
            given.store, path=self.root, commit_log_path=seen.commit_log_path, **sizes
        )
        return attrs.evolve(given, store=store)

    def sizes(self, detected: Detected) -> Iterator[Size]:
        """The sizes that are worked with, and how each is known."""
        store, seen = self.effective(detected).store, detected
        how = {
            "mapped_file_size_commit_log": seen.log_segment.how,
            "mapped_file_size_consume_queue": seen.queue_file.how,
            "mapped_file_size_batch_consume_queue": seen.batch_queue_file.how,
            "max_hash_slot_num": seen.index_slots.how,
            "max_index_num": seen.index_entries.how,
        }
        for field, key in SIZES.items():
            given = self.settings.origins.get(key)
            yield Size(key, getattr(store, field), f"given by {given}" if given else how[field])

    def choices(self, settings: Settings) -> Choices:
        """How to recover."""
        choices = attrs.evolve(
            Choices.of(settings.store), assume_clean=self.assume_clean, progress=self.progress
        )
        return choices if self.path is None else attrs.evolve(choices, path=self.path)
