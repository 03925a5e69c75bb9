"""State files of Apache's brokers that nothing here uses: looked at, so that a spoilt one is no surprise later.

In: the directory ``config`` of a store. Out: files that a crash has spoilt have other names (cases C043, C046), and
one line in the log says so. Called when the tables are loaded. Format: ``docs/reference/state-files.md``; source:
Apache ConfigManager.load, ConsumerFilterManager, TransactionMetrics.
"""

from __future__ import annotations

import logging
from typing import Final

from trio_mq.broker.aside import keep_aside
from trio_mq.errors import BodyError
from trio_mq.protocol import jsondialect
from trio_mq.store.disk import Disk

log = logging.getLogger("trio_mq.broker.unused")

#: Files that Apache's brokers read from JSON or its backup at their start.
NAMES: Final = (
    "consumerFilter.json",
    "transactionMetrics",
)


def keep_spoilt_aside(disk: Disk, directory: str, now_ms: int) -> None:
    """Give those of these files other names that cannot be read, and whose backups neither. Blocking.

    Whoever reads such a file begins anew without it, which repeats and loses nothing; with it, an Apache broker
    refuses to start.
    """
    kept: list[str] = []
    for path in (f"{directory}/{name}" for name in NAMES):
        found = {path: _reads(disk, path), f"{path}.bak": _reads(disk, f"{path}.bak")}
        if True in found.values():
            continue
        for spoilt in (one for one, reads in found.items() if reads is False):
            try:
                kept.append(keep_aside(disk, spoilt, now_ms))
            except OSError as error:
                log.warning("%s cannot be read, nor renamed: %s", spoilt, error.strerror)
    if kept:
        log.warning(
            "cannot be read, and nothing here uses them: they are kept as %s; who reads them (an Apache broker) begins "
            "without them",
            ", ".join(kept),
        )


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
