"""A recovery carried out without a broker: as a start would, and then closed as a clean stop does.

In: a folder, settings, how to recover. Out: the inspection of the rehearsal before, with the report of the real one.
Called by ``trio-mq recover`` without ``--dry-run``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

import attrs

from trio_mq.clock import Clock
from trio_mq.config import StoreSettings
from trio_mq.errors import ForeignFormat, StoreError
from trio_mq.offline.phases import recover_parts
from trio_mq.offline.rehearsal import Rehearsal, rehearse
from trio_mq.offline.statefiles import Tables
from trio_mq.offline.wanted import Wanted
from trio_mq.protocol.message import Host
from trio_mq.recovery.inspection import Inspection
from trio_mq.store.disk import Disk
from trio_mq.store.store import Store, open_parts

#: Who has this has not changed sizes, most likely.
DEFAULT_LOG_BYTES: Final = StoreSettings().mapped_file_size_commit_log
#: Nothing is stored by a recovery, so no record gets this address.
_HOST: Final = Host("127.0.0.1", 10911)


def _guessed(found: Inspection) -> Iterator[str]:
    """Why new files must not be made: their size is a guess, and the store is not of the usual sizes.

    A broker with other settings would refuse the store afterwards.
    """
    if all(size.is_guess or size.value == DEFAULT_LOG_BYTES for size in found.sizes[:1]):
        return
    for size in found.guesses:
        yield (
            f"new files in {size.folder} would be made with {size.name} = {size.value}, which no file tells: give the "
            f"broker's settings with --config FILE or --set {size.name}=..."
        )


async def recover_offline(
    disk: Disk, clock: Clock, wanted: Wanted, before: Callable[[Rehearsal], Awaitable[None]]
) -> Inspection:
    """Recover a store and close it. `before` is called with the rehearsal, when nothing is changed yet.

    Nothing is changed either when the rehearsal ends in a refusal. Raises StoreError (StoreLocked while a process has
    the store open) and OSError.
    """
    detected = await disk.run(partial(wanted.detect, disk))
    if detected.commit_log_dir == detected.root:
        raise ForeignFormat(
            f"{wanted.root} is a folder of log files only: it can be looked at with --dry-run; to recover it, put it "
            f"as commitlog into a folder of its own, and name that"
        )
    settings = wanted.effective(detected)
    tables = Tables.make(settings.broker, clock)
    parts = open_parts(disk, settings.store, clock, tables.is_batch)
    try:
        async with rehearse(disk, clock, wanted) as rehearsal:
            found = rehearsal.inspection
            await before(rehearsal)
        found = attrs.evolve(found, refusals=(*found.refusals, *_guessed(found)))
        if found.refusals:
            return found
        choices = wanted.choices(settings)
        report, _ = await recover_parts(parts, tables, choices, clock, found.state_files)
        store = Store(parts, clock, _HOST)
        await store.close()
        if parts.abort.present:
            raise StoreError(
                f"{parts.root} was recovered, but could not be closed well; see the messages above, and recover again"
            )
    finally:
        parts.release()
    return attrs.evolve(found, done=True, report=report)
