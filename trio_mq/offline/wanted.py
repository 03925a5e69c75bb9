"""What an offline recovery is asked for, and the settings that it works with.

In: settings of a command line, and the sizes that were found from a store's files. Out: the settings of a start of
that store. Called by :mod:`trio_mq.offline.rehearsal`.
"""

from __future__ import annotations

from typing import Final

import attrs

from trio_mq.config import Settings
from trio_mq.recovery.detect import Detected, view_settings
from trio_mq.recovery.paths import Path
from trio_mq.recovery.picture import Progress
from trio_mq.recovery.recover import Choices

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

    def effective(self, detected: Detected) -> Settings:
        """The settings of a start of this store, with the sizes that it was written with."""
        seen = view_settings(detected, self.root)
        given = self.settings
        sizes = {
            field: getattr(seen, field) for field, key in SIZES.items() if key not in given.origins
        }
        return attrs.evolve(given, store=attrs.evolve(given.store, path=self.root, **sizes))

    def choices(self, settings: Settings, *, fill_index: bool) -> Choices:
        """How to recover."""
        choices = attrs.evolve(
            Choices.of(settings.store),
            fill_index=fill_index,
            assume_clean=self.assume_clean,
            progress=self.progress,
        )
        return choices if self.path is None else attrs.evolve(choices, path=self.path)
