"""``trio-mq store``: list, print, check, export and import what is in a store, without a broker.

In: the folder of a store, and options. Out: text, JSON or raw records on stdout, and an exit code. All but the import
open every file for reading only. The work is done by :mod:`trio_mq.lookinside` and :mod:`trio_mq.offline_store`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import IO, TYPE_CHECKING, Final

from trio_mq.cli import options, output, progress
from trio_mq.cli.options import Option, Values
from trio_mq.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from trio_mq.lookinside.findings import Report
    from trio_mq.lookinside.selection import Selection
    from trio_mq.lookinside.view import StoreView
    from trio_mq.offline_store import Imported

#: Exit codes: nothing found, or something wrong; no store, or one that cannot be read; a wrong command line.
NOTHING: Final = 1
FINDINGS: Final = 1
UNREADABLE: Final = 3
USAGE: Final = 64

_STORE: Final = Option("STORE", "Directory of the store.")
_LOG: Final = Option(
    "--commit-log", "Directory of the commit log, where it has a place of its own.", "DIR"
)
_JSON: Final = Option("--json", "Print one JSON object.")
_QUIET: Final = Option("--quiet", "Show no progress.")
_FORMATS: Final = ("text", "json", "raw")
_BODIES: Final = ("auto", "text", "hex", "base64", "none")

LS: Final = (_STORE, _LOG, _JSON)
CAT: Final = (
    _STORE,
    _LOG,
    Option("--offset", "Begin at this log offset.", "N"),
    Option("--count", "At most so many records.", "N"),
    Option("--topic", "Only messages of this topic.", "TOPIC"),
    Option("--queue", "Only messages of this queue of the topic.", "N"),
    Option("--from", "Only messages from this queue offset on.", "N"),
    Option("--to", "Only messages up to this queue offset.", "N"),
    Option("--since", "Only messages stored at or after this time: ISO 8601 (UTC), or ms.", "TIME"),
    Option("--until", "Only messages stored at or before this time.", "TIME"),
    Option("--key", "Only messages of --topic with this key or unique key.", "KEY"),
    Option(
        "--format",
        "For people, as JSON lines, or the records as they are. [default: text]",
        "|".join(_FORMATS),
        words=_FORMATS,
    ),
    Option("--decompress", "Show compressed bodies as they were sent."),
    Option(
        "--body",
        "How bodies are shown; auto is text where it is some. [default: auto]",
        "|".join(_BODIES),
        words=_BODIES,
    ),
)
VERIFY: Final = (_STORE, _LOG, _JSON, _QUIET)
EXPORT: Final = (
    _STORE,
    _LOG,
    Option("--topic", "Export this topic; can be given several times.", "TOPIC", many=True),
    Option("--out", "Write to a new file and not to stdout.", "FILE"),
)
IMPORT: Final = (
    _STORE,
    Option("FILE", "Messages as JSON lines; - is stdin."),
    Option(
        "--topic-map", "Another name for a topic; can be given several times.", "OLD=NEW", many=True
    ),
    Option("--skip-bad", "Leave out lines that cannot be stored, and import the others."),
    _QUIET,
    Option("--config", "Settings in the form of Apache's broker.conf, as it is.", "FILE"),
    Option(
        "--set", "A setting, over the file's; can be given several times.", "KEY=VALUE", many=True
    ),
)


def _reading(run: Callable[[Values], int]) -> Callable[[Values], int]:
    """A verb whose codes say what was found: errors have codes of their own."""

    @wraps(run)
    def guarded(values: Values) -> int:
        try:
            code = run(values)
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            # Whoever reads has seen enough; Python would complain about it once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 0
        except ConfigError as error:
            output.report(error)
            return USAGE
        except (StoreError, OSError) as error:
            output.report(error)
            return UNREADABLE

    return guarded


@contextmanager
def _view(values: Values) -> Iterator[StoreView]:
    from trio_mq.lookinside.view import open_view
    from trio_mq.store.disk import RealDisk

    log_dir = options.last(values, "--commit-log")
    view = open_view(RealDisk(), values["STORE"][0], commit_log_dir=log_dir)
    try:
        yield view
    finally:
        view.close()


def _tell(text: str) -> None:
    sys.stderr.write(f"note: {text}\n")


@_reading
def ls(values: Values) -> int:
    """List the log files, queues, index files and state files of a store, with sizes, offsets and times."""
    from trio_mq.lookinside.listing import list_store

    with _view(values) as view:
        found = list_store(view)
    if "--json" in values:
        sys.stdout.write(json.dumps(found.as_dict(), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in found.lines())
    return 0


# -- cat -----------------------------------------------------------------------------------------------------


@_reading
def cat(values: Values) -> int:
    """Print records of a store: by log offset, topic and queue, time or key."""
    from trio_mq.lookinside.selection import select
    from trio_mq.lookinside.shown import BodyForm, as_line, as_text

    wanted = _selection(values)
    kind = options.word(values, "--format", CAT) or "text"
    form = BodyForm(options.word(values, "--body", CAT) or "auto")
    decompress = "--decompress" in values
    found = 0
    with _view(values) as view:
        for raw in select(view, wanted, _tell):
            found += 1
            if kind == "raw":
                sys.stdout.buffer.write(raw.data)
            elif kind == "json":
                line = as_line(raw.decoded(), decompress=decompress, form=form)
                sys.stdout.write(line + "\n")
            else:
                text = as_text(raw.decoded(), decompress=decompress, form=form)
                sys.stdout.write(text + "\n")
    if not found:
        _tell("no record is there that was asked for")
    return 0 if found else NOTHING


def _selection(values: Values) -> Selection:
    from trio_mq.lookinside.selection import Selection

    topic = options.last(values, "--topic")
    for option in ("--queue", "--from", "--to"):
        if option in values and topic is None:
            raise ConfigError(f"{option} needs --topic")
    return Selection(
        begin=_number(values, "--offset"),
        topics=frozenset() if topic is None else frozenset({topic}),
        queue_id=_number(values, "--queue"),
        first=_number(values, "--from"),
        last=_number(values, "--to"),
        since_ms=_time(values, "--since"),
        until_ms=_time(values, "--until"),
        key=options.last(values, "--key"),
        count=_number(values, "--count"),
    )


def _number(values: Values, option: str) -> int | None:
    text = options.last(values, option)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"{option} {text!r} is not a number of 0 or more")
    return int(text)


def _time(values: Values, option: str) -> int | None:
    from trio_mq.lookinside.shown import parse_moment

    text = options.last(values, option)
    if text is None:
        return None
    found = parse_moment(text)
    if found is None:
        raise ConfigError(
            f"{option} {text!r} is no time; write 2026-11-29T18:20, with an offset like +08:00 if it is not UTC, "
            f"or milliseconds since 1970"
        )
    return found


# -- verify --------------------------------------------------------------------------------------------------


@_reading
def verify(values: Values) -> int:
    """Check every checksum of the log, every queue entry and index entry against its record, and the state files."""
    from trio_mq.clock import SystemClock
    from trio_mq.lookinside.verify import verify as verify_store
    from trio_mq.offline_store import look_at_state

    with _view(values) as view, progress.shown(quiet="--quiet" in values) as told:
        state = look_at_state(view.base, view.root, SystemClock())
        report = verify_store(view, state, told or (lambda *_: None))
    if "--json" in values:
        sys.stdout.write(json.dumps({"store": view.root, **report.as_dict()}, indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _report_lines(report))
    return 0 if report.sound else FINDINGS


def _report_lines(report: Report) -> Iterator[str]:
    for finding in report.findings:
        yield finding.line()
    for kind, count in report.left_out.items():
        yield f"{kind.value}: {count} more"
    for note in report.notes:
        yield f"note: {note}"
    counted = report.counted
    yield (
        f"looked at {counted['records']} records ({counted['recordBytes']} bytes) in {counted['logFiles']} log files, "
        f"{counted.get('queues', 0)} queues, {counted['indexEntries']} index entries"
    )
    if report.sound:
        yield "sound"
    else:
        totals = ", ".join(
            f"{kind.value} {count}" for kind, count in sorted(report.totals.items(), key=str)
        )
        yield f"not sound: {totals}"


# -- export and import ---------------------------------------------------------------------------------------


@_reading
def export(values: Values) -> int:
    """Write the messages of topics as JSON lines, which `store import` takes."""
    from trio_mq.lookinside.transfer import export as export_lines

    topics = frozenset(values.get("--topic", ()))
    if not topics:
        raise ConfigError("--topic is missing: which topic shall be exported?")
    count = 0
    with _view(values) as view, _target(options.last(values, "--out"), view.root) as target:
        for line in export_lines(view, topics, _tell):
            target.write(line + "\n")
            count += 1
    sys.stderr.write(f"{count} messages exported\n")
    return 0 if count else NOTHING


@contextmanager
def _target(path: str | None, root: str) -> Iterator[IO[str]]:
    """Stdout, or a new file outside of the store, which is durable in the end."""
    if path is None:
        yield sys.stdout
        return
    from trio_mq.cli.newfile import new_file

    with new_file("--out", path, root) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def import_(values: Values) -> int:
    """Append messages from JSON lines to a store that no broker has open; it is made when there is none."""
    import trio

    from trio_mq.clock import SystemClock
    from trio_mq.offline import Wanted
    from trio_mq.offline_store import ImportWanted, import_messages, parse_topic_map
    from trio_mq.store.disk import RealDisk

    topic_map = parse_topic_map(list(values.get("--topic-map", ())))
    settings = options.settings(values)
    with _lines(values["FILE"][0]) as lines, progress.shown(quiet="--quiet" in values) as told:
        wanted = Wanted(root=values["STORE"][0], settings=settings, progress=told)

        def stored(_count: int) -> None:
            if told is not None:
                told("importing", lines.position, lines.size)

        what = ImportWanted(lines, topic_map, "--skip-bad" in values, stored)
        found = trio.run(import_messages, RealDisk(), SystemClock(), wanted, what)
    _tell_import(found)
    return 0


def _tell_import(found: Imported) -> None:
    for text in found.told:
        _tell(f"left out: {text}")
    if found.skipped > len(found.told):
        _tell(f"left out: {found.skipped - len(found.told)} more lines")
    topics = f" into {', '.join(found.topics)}" if found.topics else ""
    sys.stdout.write(f"{found.messages} messages imported{topics}\n")


class _Lines:
    """The lines of a file, as often as they are wanted."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)
        self.position = 0

    def __call__(self) -> Iterator[str]:
        """See :class:`trio_mq.lookinside.transfer.LineSource`."""
        self._file.seek(0)
        self.position = 0
        for line in self._file:
            self.position += len(line)
            yield line.decode("utf-8", "surrogateescape")


@contextmanager
def _lines(path: str) -> Iterator[_Lines]:
    if path == "-":
        with tempfile.TemporaryFile() as spool:
            while piece := sys.stdin.buffer.read(1 << 20):
                spool.write(piece)
            yield _Lines(spool)
        return
    with open(path, "rb") as file:
        if not file.seekable():
            raise ConfigError(
                f"{path} cannot be read twice; give its content on stdin, with - as FILE"
            )
        yield _Lines(file)
