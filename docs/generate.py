"""Writes the pages of docs/reference that the code knows best: settings, command line, exit codes.

In: the tables of settings and options, and the error tree. Out: three Markdown files. Run by ``just docs``; with
``--check`` it writes nothing and fails when a page is stale, as a test does too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from trio_mq import errors
from trio_mq.cli import app, recover, store, tree
from trio_mq.config.known import OBSOLETE, REFUSED, KnownKey, apache_keys
from trio_mq.config.settings import SettingInfo, catalogue

REFERENCE: Final = Path(__file__).resolve().parent / "reference"
NOTE: Final = "<!-- Written by docs/generate.py (`just docs`); do not edit. -->"
SECTIONS: Final = {
    "broker": "Broker",
    "store": "Store",
    "ha": "Replication",
    "nameserver": "Name server",
}


def main() -> int:
    """Write the pages, or with ``--check`` compare them; the exit code of the script."""
    stale = [name for name, text in pages().items() if read(name) != text]
    if "--check" in sys.argv[1:]:
        for name in stale:
            sys.stderr.write(f"docs/reference/{name} is stale; run: python docs/generate.py\n")
        return 1 if stale else 0
    REFERENCE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, "utf-8")
    return 0


def read(name: str) -> str | None:
    """A page as it is on disk."""
    path = REFERENCE / name
    return path.read_text("utf-8") if path.exists() else None


def pages() -> dict[str, str]:
    """File name to text of every page."""
    made = {
        "settings.md": settings_page(),
        "cli.md": cli_page(),
        "exit-codes.md": exit_codes_page(),
    }
    return {name: "\n".join([NOTE, "", *lines, ""]) for name, lines in made.items()}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def settings_page() -> list[str]:
    """Every setting with legal values, default and meaning; then what Apache knows besides."""
    lines = [
        "# Settings",
        "",
        "Keys are those of Apache RocketMQ 5.4, so a `broker.conf` can be used as it is: `--config FILE`. A value",
        "given with `--set KEY=VALUE` wins over the file, and an option of the command line wins over both.",
        "`trio-mq config show` prints the effective values and where each comes from.",
        "",
        "The file has the syntax of Java properties; blanks around a value are not part of it. A value that is not",
        "legal stops the start and names the line. A key that nobody knows is warned about, with the nearest known",
        "one, and a key that only Apache acts on is listed; with `--strict-config` both stop the start.",
    ]
    for section, title in SECTIONS.items():
        lines += ["", f"## {title}", ""]
        rows = [_setting_row(info) for info in catalogue() if info.section == section]
        lines += table(("key", "legal values", "default", "meaning"), rows)
    ours = {info.meta.key for info in catalogue()}
    own = ", ".join(f"`{key}`" for key in sorted(ours - apache_keys().keys()))
    lines += ["", f"Apache does not know {own}; it ignores them.", ""]
    lines += _refused()
    lines += _unused(
        key for name, key in apache_keys().items() if name not in ours and name not in REFUSED
    )
    return lines


def _setting_row(info: SettingInfo) -> tuple[str, str, str, str]:
    meta = info.meta
    default = meta.default_text
    if default is None:
        shown = meta.kind.show(info.default)
        default = f"`{shown}`" if shown else "empty"
    meaning = meta.doc
    if meta.aliases:
        meaning += " Also read as " + ", ".join(f"`{alias}`" for alias in meta.aliases) + "."
    if meta.environment:
        meaning += f" The environment variable `{meta.environment}` (exactly `true` or `false`) gives another default."
    legal = meta.kind.legal
    if meta.kind.clamp is not None:
        low, high = meta.kind.clamp
        legal += f"; values are kept within {low} to {high}"
    return f"`{meta.key}`", legal, default, meaning


def _refused() -> list[str]:
    lines = [
        "## Refused",
        "",
        "These ask for something that a start without it would silently betray. Only the values listed are accepted.",
        "",
    ]
    rows = [
        (
            f"`{key}`",
            ", ".join(f"`{value}`" if value else "empty" for value in sorted(refusal.allowed)),
            f"Any other value {refusal.reason}.",
        )
        for key, refusal in sorted(REFUSED.items())
    ]
    return [*lines, *table(("key", "accepted", "why"), rows)]


def _unused(keys: Iterable[KnownKey]) -> list[str]:
    by_owner: dict[str, list[str]] = {}
    for key in keys:
        by_owner.setdefault(key.owner, []).append(key.key)
    lines = [
        "",
        "## Known, not used",
        "",
        "Keys of Apache 5.4 that have no effect here. Their values are still checked for their type.",
    ]
    for owner, names in by_owner.items():
        lines += ["", f"**{owner}**: " + ", ".join(f"`{name}`" for name in sorted(names)) + "."]
    obsolete = ", ".join(f"`{name}`" for name in sorted(OBSOLETE))
    return [*lines, "", f"**Obsolete**, no longer read by Apache 5.4 either: {obsolete}."]


def cli_page() -> list[str]:
    """Every verb with its options."""
    lines = [
        "# Command line",
        "",
        "`trio-mq` (or `python -m trio_mq`) has these verbs; `--help` explains each, and `trio-mq --version` prints",
        "the version. A foreseen error is one line on stderr, and the exit code tells its kind: see",
        "[exit codes](exit-codes.md).",
    ]
    for verb in tree.verbs():
        arguments = [option for option in verb.table if option.is_argument]
        shown = " ".join([f"trio-mq {verb.path}", *(option.name for option in arguments)])
        lines += ["", f"## {shown}", "", _doc(verb.run), ""]
        rows = [
            (f"`{option.name}`" + (f" `{option.metavar}`" if option.metavar else ""), option.help)
            for option in verb.table
        ]
        lines += table(("option", "meaning"), rows)
    lines += [
        "",
        "Options that set something win over `--set`, and `--set` over the file; the keys are on the page of",
        "[settings](settings.md).",
    ]
    return lines


def exit_codes_page() -> list[str]:
    """Every exit code of a command with the errors that lead to it."""
    rows = [
        (
            "0",
            "",
            "The command did what it was asked; `serve` was stopped by a signal and ended in order.",
        ),
        ("1", "", "Any other error, and what the operating system refuses."),
        (
            "1",
            "",
            "`consume`, `message`, `broker config`: nothing is there that was asked for.",
        ),
        ("3", "", "`status`: the broker runs, and takes no messages."),
        ("4", "", "`status`: the broker is still recovering its store."),
        *(
            (
                str(error.exit_code),
                f"`{error.__name__}`",
                _doc(error),
            )
            for error in sorted(own_codes(), key=lambda error: error.exit_code)
        ),
        (str(app.INTERRUPTED), "", "SIGINT before `serve` was up, or in another verb."),
        (
            "143",
            "",
            "SIGTERM in a verb that talks to a cluster: offsets were stored, brokers told.",
        ),
        (
            "128 + n",
            "",
            "A second signal n while `serve` was stopping: it ended at once, the next start recovers.",
        ),
    ]
    return [
        "# Exit codes",
        "",
        "Part of the public interface: a code does not change its meaning within a major version.",
        "",
        *table(("code", "error", "meaning"), rows),
        "",
        "A wrong option or argument has the code of `ConfigError`; of a verb whose own codes begin at 0 (below, and",
        f"`status`), it has {tree.USAGE}.",
        "",
        "## trio-mq recover",
        "",
        "The code says in short what the report says. A start leaves marks in the abort marker, the checkpoint and the",
        "lock each time; these are no change.",
        "",
        *table(("code", "with `--dry-run`", "without"), RECOVER_CODES),
        "",
        "## trio-mq store ls, cat, verify, export",
        "",
        "`store import` has the codes of the first table: 1 for bad lines, 21 for a store that is open.",
        "",
        *table(("code", "meaning"), STORE_CODES),
    ]


RECOVER_CODES: Final = (
    ("0", "The store is sound: a start changes nothing.", "Nothing was wrong."),
    (
        "1",
        "A start would change something in log, queues, index or state files; or the log is damaged in a place that "
        "a start leaves as it is.",
        "Something was put right.",
    ),
    (
        "2",
        "A start would cut off records that can be read.",
        "Records that could be read were cut off; they are in `quarantine/`, unless that is turned off.",
    ),
    (
        "3",
        "No store, or not readable; or a start would refuse it. The path and the reason are told.",
        "The same, or another process has the store open, or something failed on the way.",
    ),
    (
        str(recover.USAGE),
        "A wrong option or setting, or a file for `--salvage` that cannot be made.",
        "The same.",
    ),
    (str(recover.OURS), "A mistake of ours; the traceback is on stderr.", "The same."),
)


STORE_CODES: Final = (
    ("0", "Done; of `verify`: the store is sound."),
    (
        str(store.FINDINGS),
        "`verify`: something is wrong. `cat`, `export`: nothing is there that was asked for.",
    ),
    (str(store.UNREADABLE), "No store, or not readable; the path and the reason are told."),
    (str(store.USAGE), "A wrong option."),
)


def _doc(item: object) -> str:
    """First line of a docstring, as Markdown."""
    return (inspect.getdoc(item) or "").splitlines()[0].replace("``", "`")


def own_codes() -> Iterator[type[errors.TrioMQError]]:
    """The error classes that have an exit code of their own."""
    todo: list[type[errors.TrioMQError]] = [errors.TrioMQError]
    while todo:
        error = todo.pop()
        todo += error.__subclasses__()
        if "exit_code" in vars(error) and error is not errors.TrioMQError:
            yield error


if __name__ == "__main__":
    sys.exit(main())
