"""The phases of a start up to the point where a broker would begin: tables, log, queues, index, consumers' progress.

In: the locked parts of a store, on a real disk or on an overlay. Out: a report, and what became of the consumers'
progress. Called by a rehearsal and by a recovery that is carried out; ``trio-mq serve`` does the same
(:mod:`trio_mq.system`).
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from trio_mq.broker.tables import load_tables
from trio_mq.clock import Clock
from trio_mq.offline.statefiles import Tables, save_mended
from trio_mq.recovery.inspection import OffsetChange, StateFinding
from trio_mq.recovery.recover import Choices, recover
from trio_mq.recovery.report import RecoveryReport
from trio_mq.store.store import StoreParts


async def recover_parts(
    parts: StoreParts,
    tables: Tables,
    choices: Choices,
    clock: Clock,
    findings: Sequence[StateFinding] | None,
) -> tuple[RecoveryReport, tuple[OffsetChange, ...]]:
    """Load the tables, recover, set back progress that lies behind the end of its queue.

    `findings` tell how the state files were found: those that were not good are written again. None writes none.
    """
    loaded = await load_tables(
        parts.disk,
        f"{parts.root}/config",
        clock,
        topics=tables.topics,
        groups=tables.groups,
        offsets=tables.offsets,
        delays=tables.delays,
        orders=tables.orders,
        modes=tables.modes,
    )
    report = await recover(parts, attrs.evolve(choices, expected=loaded.read_queues()))
    clamped = loaded.clamp_progress(parts.queues)
    if findings is not None:
        await save_mended(loaded, findings)
    changes = tuple(OffsetChange(c.group, c.topic, c.queue_id, c.before, c.after) for c in clamped)
    return report, changes
