"""The options of the commands as one table, and their way into settings.

In: command-line arguments. Out: :data:`Values`, and from them :class:`trio_mq.config.Settings`. The
typer commands (:mod:`trio_mq.cli.tree`) are made from the same table; they print help and explain
mistakes. :func:`parse_plain` reads a correct line without them, because loading typer (and pydantic
below it) would take a quarter of the time from start to ready, and 20 MB that a broker would keep.

An option is only another way to write a setting, so it becomes a :class:`trio_mq.config.Given` with
its own name as the origin, and is checked like a line of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from keyword import iskeyword
from typing import Final

import attrs

from trio_mq.config import FlushDiskType, Given, Settings, load, parse_address
from trio_mq.errors import ConfigError

Values = Mapping[str, Sequence[str]]
"""What was given: option name to its values in order; a switch has one empty value."""


@attrs.frozen
class Option:
    """An option; without a `metavar` it is a switch, and `many` may be given several times.

    A name without dashes, written in capitals, is an argument that is told by its place. It has to be given, but for
    one with `optional`; with `many` it takes all that follow. Arguments stand in a table in their order.
    """

    name: str
    help: str
    metavar: str | None = None
    many: bool = False
    words: tuple[str, ...] = ()
    optional: bool = False

    @property
    def is_argument(self) -> bool:
        """Whether its place tells what it is, and not its name."""
        return not self.name.startswith("--")

    @property
    def parameter(self) -> str:
        """The name as an identifier."""
        name = self.name.removeprefix("--").replace("-", "_").lower()
        return f"{name}_" if iskeyword(name) else name


DISK_TYPES: Final = {"sync": FlushDiskType.SYNC_FLUSH, "async": FlushDiskType.ASYNC_FLUSH}
LOG_LEVELS: Final = ("debug", "info", "warning", "error")

SETTINGS: Final = (
    Option("--store", "Directory of the store. [default: ./trio-mq-store]", "DIR"),
    Option(
        "--listen",
        "Where clients connect; port 0 takes a free one. [default: 127.0.0.1:10911]",
        "HOST:PORT",
    ),
    Option(
        "--nameserver-listen",
        "Where the name server of this process listens. [default: 127.0.0.1:9876]",
        "HOST:PORT",
    ),
    Option("--no-nameserver", "Have no name server in this process."),
    Option(
        "--nameserver",
        "Register at this name server too; can be given several times.",
        "HOST:PORT",
        many=True,
    ),
    Option(
        "--advertise",
        "The address that clients are told. [default: the one listened on]",
        "HOST[:PORT]",
    ),
    Option("--broker-name", "Name in routes. [default: the machine's name]", "NAME"),
    Option("--cluster", "Cluster in routes. [default: DefaultCluster]", "NAME"),
    Option("--broker-id", "0 is the master. [default: 0]", "N"),
    Option(
        "--flush",
        "Answer a send after its sync to disk, or before. [default: async]",
        "sync|async",
        words=tuple(DISK_TYPES),
    ),
    Option("--no-fast-port", "Do not listen on the port two below as well."),
    Option("--config", "Settings in the form of Apache's broker.conf, as it is.", "FILE"),
    Option(
        "--set", "A setting, over the file's; can be given several times.", "KEY=VALUE", many=True
    ),
    Option("--strict-config", "Fail on a key in the file that has no effect here."),
)
SERVE: Final = (
    *SETTINGS,
    Option("--ready-json", "Print the ready line as one JSON object."),
    Option("--log-json", "Log one JSON object per line."),
    Option(
        "--log-level",
        "Least level that is logged. [default: info]",
        "|".join(LOG_LEVELS),
        words=LOG_LEVELS,
    ),
)
SHOW: Final = (*SETTINGS, Option("--json", "Print one JSON object."))
STATUS: Final = (
    Option("--broker", "The broker to look at. [default: 127.0.0.1:10911]", "HOST:PORT"),
    Option("--json", "Print one JSON object with all that it tells."),
)
RECOVER: Final = (
    Option("STORE", "Directory of the store."),
    Option("--dry-run", "Only tell what a start would do; opens every file for reading only."),
    Option(
        "--path",
        "How the log is read; the result is the same. [default: batch]",
        "sequential|batch",
        words=("sequential", "batch"),
    ),
    Option(
        "--assume",
        "How the last process ended, against what the files say.",
        "normal|abnormal",
        words=("normal", "abnormal"),
    ),
    Option("--json", "Print one JSON object."),
    Option("--records", "List the records that can be read and would be lost."),
    Option("--salvage", "Write those records to a new file, as JSON lines.", "FILE"),
    Option("--quiet", "Show no progress."),
    Option("--config", "Settings in the form of Apache's broker.conf, as it is.", "FILE"),
    Option(
        "--set", "A setting, over the file's; can be given several times.", "KEY=VALUE", many=True
    ),
)


def parse_plain(arguments: Sequence[str], table: Sequence[Option]) -> Values | None:
    """Read ``--name value``, ``--name=value``, switches and arguments; None for whatever else there is.

    None means that typer should read the line: to help, to explain a mistake, or because it knows
    a form that we do not.
    """
    known = {option.name: option for option in table if not option.is_argument}
    values: dict[str, list[str]] = {}
    stray: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            stray.append(argument)
            continue
        name, equals, value = argument.partition("=")
        option = known.get(name)
        if option is None or (option.metavar is None and equals):
            return None
        if option.metavar is not None and not equals:
            following = next(rest, None)
            if following is None or following.startswith("-"):
                return None
            value = following
        values.setdefault(name, []).append(value)
    return values if _place(stray, table, values) else None


def _place(stray: list[str], table: Sequence[Option], values: dict[str, list[str]]) -> bool:
    """Give arguments their names; whether all of them have a place, and none lacks that is needed."""
    for option in table:
        if option.is_argument:
            count = len(stray) if option.many else 1
            taken, stray = stray[:count], stray[count:]
            if taken:
                values[option.name] = taken
            elif not option.optional:
                return False
    return not stray


def word(values: Values, option: str, table: Sequence[Option]) -> str | None:
    """The last value of an option that takes one of a few words."""
    given = last(values, option)
    words = next(known.words for known in table if known.name == option)
    if given is not None and given not in words:
        raise ConfigError(f"{option} {given!r}: legal: {', '.join(words)}")
    return given


def last(values: Values, option: str) -> str | None:
    """The value of an option; given twice, the last one."""
    return values[option][-1] if option in values else None


def settings(values: Values) -> Settings:
    """Effective settings; ConfigError says what is wrong and where it was given."""
    return load(
        file=last(values, "--config"),
        overrides=values.get("--set", ()),
        flags=flags(values),
        strict="--strict-config" in values,
    )


_KEYS: Final = {
    "--store": "storePathRootDir",
    "--nameserver-listen": "nameserverListen",
    "--broker-name": "brokerName",
    "--cluster": "brokerClusterName",
    "--broker-id": "brokerId",
}
_SWITCHED_OFF: Final = {"--no-nameserver": "nameserverEnable", "--no-fast-port": "enableFastPort"}


def flags(values: Values) -> list[Given]:
    """The settings that options stand for, in the same text form as in a file."""
    given = [
        Given(key, values[option][-1], option) for option, key in _KEYS.items() if option in values
    ]
    given += [
        Given(key, "false", option) for option, key in _SWITCHED_OFF.items() if option in values
    ]
    if "--nameserver" in values:
        given.append(Given("namesrvAddr", ";".join(values["--nameserver"]), "--nameserver"))
    flush = word(values, "--flush", SETTINGS)
    if flush is not None:
        given.append(Given("flushDiskType", DISK_TYPES[flush].value, "--flush"))
    listen = last(values, "--listen")
    if listen is not None:
        given += _address(listen, "--listen", "bindAddress", "listenPort")
    advertise = last(values, "--advertise")
    if advertise is not None:
        head, colon, _ = advertise.rpartition(":")
        if colon and (":" not in head or head.endswith("]")):
            given += _address(advertise, "--advertise", "brokerIP1", "advertisePort")
        else:
            given.append(Given("brokerIP1", advertise, "--advertise"))
    return given


def _address(text: str, option: str, host_key: str, port_key: str) -> list[Given]:
    try:
        address = parse_address(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from error
    return [Given(host_key, address.host, option), Given(port_key, str(address.port), option)]
