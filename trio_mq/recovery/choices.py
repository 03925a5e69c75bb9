"""How to recover, where there is a choice: from the settings of a store, from the command line, from tests."""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs

from trio_mq.config import StoreSettings
from trio_mq.recovery.paths import Path
from trio_mq.store.roster import QueueKey


@attrs.frozen
class Choices:
    """How to recover; neither `path` nor `concurrently` changes the result.

    Without `index_enabled` the index stays as it is. `assume_clean` overrules what the files say about the last exit.
    `progress` is told phase, offset, and the end as far as it is known, both in bytes of the log. `expected` are
    queues that should have files, as far as others know; it counts for a store without a list of its own queues, as
    peers leave it. A log that is `copied` from a master ends where it has a hole that a power cut may have made: the
    master sends the rest again.
    """

    path: Path = Path.BATCH
    concurrently: bool = True
    index_enabled: bool = True
    assume_clean: bool | None = None
    progress: Callable[[str, int, int], None] | None = None
    expected: Collection[QueueKey] = ()
    copied: bool = False

    @classmethod
    def of(cls, settings: StoreSettings) -> Choices:
        """What the settings of a store say."""
        return cls(
            path=Path.of(optimized=settings.use_optimized_recovery),
            concurrently=settings.recover_concurrently,
            index_enabled=settings.message_index_enable,
        )
