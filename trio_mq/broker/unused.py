"""State files of Apache's brokers that nothing here uses: looked at, so that a spoilt one is no surprise later.

In: the directory ``config`` of a store. Out: one line in the log about files that a crash has spoilt (cases C043,
C046); they stay as they are. Called when the tables are loaded. Format: ``docs/reference/state-files.md``; source:
Apache ConfigManager.load, ScheduleMessageService, TimerMetrics, TransactionMetrics.
"""

from __future__ import annotations

import logging
from typing import Final

from trio_mq.errors import BodyError
from trio_mq.protocol import jsondialect
from trio_mq.store.disk import Disk

log = logging.getLogger("trio_mq.broker.unused")

#: Files that Apache's brokers read from JSON or its backup at their start.
NAMES: Final = (
    "delayOffset.json",
    "consumerFilter.json",
    "consumerOrderInfo.json",
    "timermetrics",
    "transactionMetrics",
)


def tell_spoilt(disk: Disk, directory: str) -> None:
    """Say once which of these files cannot be read, and their backups neither. Blocking; changes nothing."""
    spoilt = [path for path in (f"{directory}/{name}" for name in NAMES) if _is_spoilt(disk, path)]
    if spoilt:
        log.warning(
            "cannot be read, and no backup can: %s; they are not used here and stay as they are, but an Apache "
            "broker may refuse to start with them: move them and their .bak away before one opens this store",
            ", ".join(spoilt),
        )


def _is_spoilt(disk: Disk, path: str) -> bool:
    return _reads(disk, path) is False and not _reads(disk, f"{path}.bak")


def _reads(disk: Disk, path: str) -> bool | None:
    """Whether a file holds JSON; None when there is no such file."""
    try:
        file = disk.open(path, readonly=True)
    except FileNotFoundError:
        return None
    except OSError:
        return False
    try:
        jsondialect.loads(file.read(file.size(), 0))
    except (BodyError, OSError):
        return False
    finally:
        file.close()
    return True
