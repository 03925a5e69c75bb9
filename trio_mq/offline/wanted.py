"""What an offline recovery is asked for, and the settings that it works with.

In: settings of a command line, and the sizes that were found from a store's files. Out: the settings of a start of
that store. Called by :mod:`trio_mq.offline.rehearsal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from trio_mq.config import Settings
from trio_mq.recovery.detect import (
    INDEX_FOLDER,
    LOG_FOLDER,
    Detected,
    detect,
    view_settings,
)
from trio_mq.recovery.inspection import Size
from trio_mq.recovery.paths import Path
from trio_mq.recovery.picture import Progress
from trio_mq.recovery.recover import Choices
from trio_mq.store.disk import Disk
from trio_mq.store.queuetable import BATCH_FOLDER, SIMPLE_FOLDER


@attrs.frozen
class Sized:
    """A setting that a store's files show: its key, the field of :class:`Detected`, the folder of such files."""

    key: str
    detected: str
    folder: str


#: By the name of the field in the settings; what is given explicitly wins over what files show.
SIZES: Final = {
    "mapped_file_size_commit_log": Sized("mappedFileSizeCommitLog", "log_segment", LOG_FOLDER),
    "mapped_file_size_consume_queue": Sized(
        "mappedFileSizeConsumeQueue", "queue_file", SIMPLE_FOLDER
    ),
    "mapped_file_size_batch_consume_queue": Sized(
        "mapperFileSizeBatchConsumeQueue", "batch_queue_file", BATCH_FOLDER
    ),
    "max_hash_slot_num": Sized("maxHashSlotNum", "index_slots", INDEX_FOLDER),
    "max_index_num": Sized("maxIndexNum", "index_entries", INDEX_FOLDER),
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
        changes: dict[str, Any] = {field: size.value for field, size in self._sizes(detected)}
        changes["path"] = self.root
        changes["commit_log_path"] = view_settings(detected, self.root).commit_log_path
        return attrs.evolve(self.settings, store=attrs.evolve(self.settings.store, **changes))

    def sizes(self, detected: Detected) -> list[Size]:
        """The sizes that are worked with, and how each is known."""
        return [size for _, size in self._sizes(detected)]

    def _sizes(self, detected: Detected) -> Iterator[tuple[str, Size]]:
        """By field of the settings: what is given, else what files show, else the default."""
        for field, sized in SIZES.items():
            seen, value = getattr(detected, sized.detected), getattr(self.settings.store, field)
            given = self.settings.origins.get(sized.key)
            if given is not None:
                yield field, Size(sized.key, value, f"given by {given}", sized.folder)
            elif seen.found:
                yield field, Size(sized.key, seen.value, seen.how, sized.folder)
            else:
                yield field, Size(sized.key, value, seen.how, sized.folder, is_guess=True)

    def choices(self, settings: Settings) -> Choices:
        """How to recover."""
        choices = attrs.evolve(
            Choices.of(settings.store),
            assume_clean=self.assume_clean,
            progress=self.progress,
            copied=settings.ha.is_slave,
        )
        return choices if self.path is None else attrs.evolve(choices, path=self.path)
