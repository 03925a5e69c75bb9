"""The table of options: the plain reader agrees with typer, and options become settings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from trio_mq.cli import options, tree
from trio_mq.cli.options import SERVE, SHOW, Option, Values, parse_plain
from trio_mq.config import Address, FlushDiskType, Settings
from trio_mq.errors import ConfigError

_seen: list[Values] = []


def _remember(values: Values) -> int:
    _seen.append(values)
    return 0


def _typer_command(table: Sequence[Option]) -> typer.Typer:
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(tree.command(_remember, table))
    return app


#: Arguments of every kind, as verbs other than ``serve`` have them.
PLACED = (
    Option("STORE", "The store."),
    Option("FILES", "Files in it.", many=True, optional=True),
    Option("--from", "Where to begin.", "OFFSET"),
    Option("--json", "Print JSON."),
)
ONE_MORE = (Option("STORE", "The store."), Option("FILE", "A file.", optional=True))
_COMMANDS = {
    table: typer.main.get_command(_typer_command(table)) for table in (SERVE, PLACED, ONE_MORE)
}


def through_typer(arguments: Sequence[str], table: Sequence[Option] = SERVE) -> Values | None:
    """What typer makes of the same line; None for help and mistakes."""
    _seen.clear()
    try:
        _COMMANDS[tuple(table)](list(arguments), prog_name="serve", standalone_mode=False)
    except Exception as error:
        if not type(error).__module__.startswith(("click", "typer")):
            raise
        return None
    return _seen[0] if _seen else None


def effective(values: Values, table: Sequence[Option]) -> dict[str, list[str]]:
    """Values as a verb reads them: of an option that counts once, the last."""
    many = {option.name for option in table if option.many}
    return {name: list(given) if name in many else [given[-1]] for name, given in values.items()}


NAMES = [option.name for option in SERVE]
TOKENS = st.one_of(
    st.sampled_from(NAMES),
    st.builds("{}={}".format, st.sampled_from(NAMES), st.sampled_from(["", "a", "a=b", "-x"])),
    st.sampled_from(["", "sync", "127.0.0.1:0", "a=b", "--help", "--", "-h", "--sto", "--no-"]),
)
VALUES = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


def lines(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Command lines of options with their values."""
    parts = st.sampled_from(SERVE).flatmap(
        lambda option: st.tuples(st.just(option.name), *([values] if option.metavar else []))
    )
    return st.lists(parts).map(lambda found: [token for part in found for token in part])


@given(st.one_of(lines(VALUES), st.lists(TOKENS, max_size=8)))
def test_what_the_plain_reader_reads_typer_reads_alike(arguments: list[str]) -> None:
    plain = parse_plain(arguments, SERVE)
    if plain is not None:
        reference = through_typer(arguments)
        assert reference is not None
        assert effective(plain, SERVE) == effective(reference, SERVE)


@pytest.mark.parametrize("table", [PLACED, ONE_MORE])
@given(st.data())
def test_what_the_plain_reader_reads_of_arguments_typer_reads_alike(
    table: Sequence[Option], data: st.DataObject
) -> None:
    words = ["a", "b", "c", "", "--from", "--from=1", "--json", "--", "-x", "--help", "STORE"]
    arguments = data.draw(st.lists(st.sampled_from(words), max_size=5))
    plain, reference = parse_plain(arguments, table), through_typer(arguments, table)
    if plain is not None:
        assert reference is not None
        assert effective(plain, table) == effective(reference, table)


def test_arguments_are_told_by_their_place() -> None:
    read = parse_plain(["--json", "store", "--from", "7", "one", "two"], PLACED)
    assert read == {"STORE": ["store"], "FILES": ["one", "two"], "--from": ["7"], "--json": [""]}
    assert parse_plain(["store"], ONE_MORE) == {"STORE": ["store"]}
    assert parse_plain([], ONE_MORE) is None, "it has to be given"
    assert parse_plain(["store", "file", "stray"], ONE_MORE) is None


@given(lines(VALUES.filter(lambda value: not value.startswith("-"))))
def test_correct_lines_are_read_without_typer(arguments: list[str]) -> None:
    assert parse_plain(arguments, SERVE) is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--unknown"],
        ["--sto", "x"],
        ["stray"],
        ["--store"],
        ["--store", "--ready-json"],
        ["--ready-json=true"],
        ["-h"],
        ["--"],
    ],
)
def test_anything_else_is_left_to_typer(arguments: list[str]) -> None:
    assert parse_plain(arguments, SERVE) is None


def read(*arguments: str) -> Settings:
    values = parse_plain(arguments, SERVE)
    assert values is not None
    return options.settings(values)


def test_every_option_reaches_its_setting() -> None:
    settings = read(
        "--store", "/s", "--listen", "[::1]:0", "--nameserver-listen", "0.0.0.0:0",
        "--nameserver", "a:1", "--nameserver=b:2", "--advertise", "broker.local:1234",
        "--broker-name", "b", "--cluster", "c", "--broker-id", "0", "--flush", "sync",
        "--no-fast-port", "--set", "maxMessageSize=1000",
    )  # fmt: skip
    broker = settings.broker
    assert settings.store.path == "/s"
    assert (broker.listen_host, broker.listen_port) == ("::1", 0)
    assert settings.nameserver.listen == Address("0.0.0.0", 0)
    assert broker.nameservers == (Address("a", 1), Address("b", 2))
    assert (broker.advertise_host, broker.advertise_port) == ("broker.local", 1234)
    assert (broker.broker_name, broker.cluster, broker.broker_id) == ("b", "c", 0)
    assert settings.store.flush_disk_type is FlushDiskType.SYNC_FLUSH
    assert broker.fast_port is False
    assert settings.store.max_message_size == 1000
    assert dict(settings.origins) == {
        "storePathRootDir": "--store",
        "bindAddress": "--listen",
        "listenPort": "--listen",
        "nameserverListen": "--nameserver-listen",
        "namesrvAddr": "--nameserver",
        "brokerIP1": "--advertise",
        "advertisePort": "--advertise",
        "brokerName": "--broker-name",
        "brokerClusterName": "--cluster",
        "brokerId": "--broker-id",
        "flushDiskType": "--flush",
        "enablePropertyFilter": "no file of settings",
        "enableFastPort": "--no-fast-port",
        "maxMessageSize": "--set",
    }
    off = read("--no-nameserver", "--nameserver", "a:1", "--flush", "async")
    assert off.nameserver.enabled is False
    assert off.store.flush_disk_type is FlushDiskType.ASYNC_FLUSH


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("10.0.0.5", "10.0.0.5", 0),
        ("10.0.0.5:7000", "10.0.0.5", 7000),
        ("[::1]", "::1", 0),
        ("[::1]:7000", "::1", 7000),
        ("fd00::1:7a", "fd00::1:7a", 0),
    ],
)
def test_the_advertised_port_may_be_left_out(text: str, host: str, port: int) -> None:
    broker = read("--advertise", text, "--listen", "0.0.0.0:10911").broker
    assert (broker.advertise_host, broker.advertise_port) == (host, port)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "10911"], "--listen: '10911' has no port; write HOST:PORT"),
        (["--listen", "a:b"], "--listen: 'b' is not a port from 0 to 65535"),
        (["--advertise", "a:b"], "--advertise: 'b' is not a port from 0 to 65535"),
        (
            ["--advertise", "0.0.0.0"],
            "--advertise: brokerIP1 = '0.0.0.0': '0.0.0.0' means every interface; clients need "
            "one address to connect to; "
            "legal: an IP address or host name that clients can connect to",
        ),
        (["--flush", "often"], "--flush 'often': legal: sync, async"),
        (
            ["--broker-id", "x"],
            "--broker-id: brokerId = 'x': not a whole number; legal: a whole number, 0 or more",
        ),
    ],
)
def test_a_bad_value_names_the_option(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(*arguments)
    assert str(caught.value) == message


def test_tables_are_consistent() -> None:
    for verb in tree.verbs():
        table = verb.table
        assert len({option.parameter for option in table}) == len(table)
        assert all(option.parameter.isidentifier() for option in table)
        rest = [o.many or o.optional for o in table if o.is_argument]
        assert rest == sorted(rest), "what takes the rest stands last"
    assert {option.name for option in SERVE} & {option.name for option in SHOW} == {
        option.name for option in options.SETTINGS
    }
