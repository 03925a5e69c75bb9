"""``trio-mq recover``: what is wrong with a store and what a start does about it; or the recovery, without a broker.

In: the folder of a store, and options. Out: a report on stdout, as text or as one JSON object, and an exit code that
says the same in short. The work is done by :mod:`trio_mq.offline`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

import attrs

from trio_mq.cli import options, output, progress
from trio_mq.errors import ConfigError

if TYPE_CHECKING:
    from trio_mq.offline import Rehearsal, Wanted
    from trio_mq.recovery.inspection import Inspection

#: Codes beside those of :class:`trio_mq.recovery.inspection.Verdict`: sysexits.h EX_USAGE and EX_SOFTWARE.
USAGE: Final = 64
OURS: Final = 70
#: Not a store, not readable, refused, or failed.
FAILED: Final = 3
_ASSUMED: Final = {"normal": True, "abnormal": False}


def recover(values: options.Values) -> int:
    """Recover a store without a broker, or with --dry-run only tell what a start would do, and what would be lost."""
    with ExitStack() as stack:
        try:
            asked = _Asked.read(values, stack)
        except ConfigError as error:
            output.report(error)
            return USAGE
        try:
            return _run(asked, stack)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return _failed(asked, error)


def _failed(asked: _Asked, error: BaseException) -> int:
    """Tell what kept the command from its work."""
    if isinstance(error, BaseExceptionGroup) and error.split(KeyboardInterrupt)[0]:
        raise KeyboardInterrupt from error
    code = output.report(error)
    if code is None:
        if not isinstance(error, Exception):
            raise error
        traceback.print_exception(error)
        return OURS
    if asked.json:
        text = output.explanation(error)
        _print_json(
            {"store": asked.root, "verdict": "failed", "exit_code": FAILED, "refusals": [text]}
        )
    return FAILED


@attrs.define
class _Asked:
    """A command line, read."""

    root: str
    wanted: Wanted
    dry_run: bool
    json: bool
    records: bool
    quiet: bool
    #: Where salvaged records go, and its path.
    salvage: TextIO | None
    salvage_path: str
    #: Lost records as JSON lines, before they are cut off.
    spool: TextIO | None = None
    salvaged: int = 0

    @classmethod
    def read(cls, values: options.Values, stack: ExitStack) -> _Asked:
        """ConfigError says what is wrong on the command line."""
        root = values["STORE"][0].rstrip("/") or "/"
        settings = options.settings(values)
        path = options.word(values, "--path", options.RECOVER)
        assumed = options.word(values, "--assume", options.RECOVER)
        from trio_mq.cli.newfile import new_file
        from trio_mq.offline import Wanted
        from trio_mq.recovery.paths import Path

        salvage_path = options.last(values, "--salvage")
        return cls(
            root=root,
            wanted=Wanted(
                root=root,
                settings=settings,
                path=None if path is None else Path(path),
                assume_clean=None if assumed is None else _ASSUMED[assumed],
            ),
            dry_run="--dry-run" in values,
            json="--json" in values,
            records="--records" in values,
            quiet="--quiet" in values,
            salvage=None
            if salvage_path is None
            else stack.enter_context(new_file("--salvage", salvage_path, root)),
            salvage_path=salvage_path or "",
        )


def _run(asked: _Asked, stack: ExitStack) -> int:
    import trio

    if asked.records:
        spool = stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8"))  # noqa: SIM115
        asked.spool = cast("TextIO", spool)
    level = logging.CRITICAL + 1 if asked.dry_run else logging.ERROR
    with progress.shown(quiet=asked.quiet) as told, _quiet_logs(level):
        asked.wanted = attrs.evolve(asked.wanted, progress=told)
        found = trio.run(_inspect, asked)
    try:
        _tell(asked, found)
    except BrokenPipeError:
        # Whoever read the report has seen enough; Python would complain about it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return found.verdict.exit_code


async def _inspect(asked: _Asked) -> Inspection:
    from trio_mq.clock import SystemClock
    from trio_mq.offline import recover_offline, rehearse
    from trio_mq.store.disk import RealDisk, lock_owner

    disk, clock, keep = RealDisk(), SystemClock(), partial(_keep, asked)
    if not asked.dry_run:
        return await recover_offline(disk, clock, asked.wanted, keep)
    async with rehearse(disk, clock, asked.wanted) as rehearsal:
        await keep(rehearsal)
        owner = lock_owner(f"{asked.root}/lock")
        return attrs.evolve(rehearsal.inspection, owner=owner)


async def _keep(asked: _Asked, rehearsal: Rehearsal) -> None:
    """Take records out of the store while they are there."""
    from trio_mq.offline.salvage import salvage

    if asked.salvage is not None:
        asked.salvaged = await salvage(rehearsal, asked.salvage)
    if asked.spool is not None:
        await rehearsal.run_blocking(partial(_spool, rehearsal, asked.spool))


def _spool(rehearsal: Rehearsal, spool: TextIO) -> None:
    spool.writelines(json.dumps(attrs.asdict(record)) + "\n" for record in rehearsal.lost_records())
    spool.seek(0)


@contextmanager
def _quiet_logs(level: int) -> Iterator[None]:
    """What the code of a start logs is in the report, in order and with its cost."""
    ours = logging.getLogger("trio_mq")
    before = ours.level
    ours.setLevel(level)
    try:
        yield
    finally:
        ours.setLevel(before)


# -- printing ------------------------------------------------------------------------------------------------


def _tell(asked: _Asked, found: Inspection) -> None:
    if asked.json:
        table = found.as_dict()
        if asked.salvage is not None:
            table["salvaged"] = {"file": asked.salvage_path, "records": asked.salvaged}
        _print_json(table, asked.spool)
    else:
        _print_text(asked, found)


def _print_json(table: dict[str, Any], spool: TextIO | None = None) -> None:
    """One JSON object; the records go by line by line, however many there are."""
    text = json.dumps(table, indent=2)
    write = sys.stdout.write
    if spool is None:
        write(text + "\n")
    else:
        write(text.removesuffix("\n}") + ',\n  "records": [')
        between = "\n    "
        for line in spool:
            write(between + line.rstrip("\n"))
            between = ",\n    "
        write("\n  ]\n}\n")
    sys.stdout.flush()


def _print_text(asked: _Asked, found: Inspection) -> None:
    from trio_mq.recovery.inspectiontext import lines, record_lines
    from trio_mq.recovery.picture import LostRecord

    write = sys.stdout.write
    for line in lines(found):
        write(line + "\n")
    if asked.spool is not None:
        for line in record_lines(LostRecord(**json.loads(text)) for text in asked.spool):
            write(line + "\n")
    if asked.salvage is not None:
        write(f"\n{asked.salvaged} records are written to {asked.salvage_path}\n")
    sys.stdout.flush()
