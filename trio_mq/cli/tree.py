"""The typer commands, made from the tables of options: help, usage errors, and every line that the
plain reader leaves alone.

In: the command line. Out: calls of the verbs with :data:`trio_mq.cli.options.Values`, whose exit
codes it passes on. Called by :func:`trio_mq.cli.app.main`, and by the generator of the CLI page.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from trio_mq import __version__
from trio_mq.cli import config, recover, serve, status, store
from trio_mq.cli.options import RECOVER, SERVE, SHOW, STATUS, Option, Values
from trio_mq.cli.verbs import CLUSTER, Verb

#: Code of a wrong command line where 2 means something else (sysexits.h: EX_USAGE).
USAGE: Final = 64

_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    # rich would be loaded to print a page of help
    "rich_markup_mode": None,
}


def verbs() -> tuple[Verb, ...]:
    """All commands, in the order of the help."""
    return (
        Verb("serve", serve.serve, SERVE),
        Verb("status", status.status, STATUS),
        Verb("recover", recover.recover, RECOVER, own_codes=True),
        Verb("store ls", store.ls, store.LS, own_codes=True),
        Verb("store cat", store.cat, store.CAT, own_codes=True),
        Verb("store verify", store.verify, store.VERIFY, own_codes=True),
        Verb("store export", store.export, store.EXPORT, own_codes=True),
        Verb("store import", store.import_, store.IMPORT),
        Verb("config show", config.show, SHOW),
        *CLUSTER,
    )


#: What is said about a first word that stands before several verbs.
GROUPS: Final = {
    "store": "Look into a store that may be anybody's, or fill one.",
    "config": "Look at settings.",
    "topic": "Topics of a cluster.",
    "group": "Consumer groups of a cluster.",
    "cluster": "Brokers of a cluster.",
    "broker": "One broker of a cluster.",
    "message": "Single messages of a cluster.",
}


class _OwnCodes(TyperCommand):
    """A command whose code 2 is an answer: mistakes on its command line get another one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Where the class of mistakes is depends on the version of typer; they have a code, and nothing else has.
            if hasattr(error, "exit_code"):
                vars(error)["exit_code"] = USAGE
            raise


def command(run: Callable[[Values], int], table: Sequence[Option]) -> Callable[..., None]:
    """A function with one keyword parameter for each option, which is what typer reads."""

    def run_verb(**given: Any) -> None:
        values: dict[str, list[str]] = {}
        for option in table:
            value = given[option.parameter]
            if option.many and value:
                values[option.name] = list(value)
            elif value is True:
                values[option.name] = [""]
            elif isinstance(value, str):
                values[option.name] = [value]
        raise typer.Exit(run(values))

    parameters = [_parameter(option) for option in table]
    run_verb.__doc__ = run.__doc__
    run_verb.__name__ = run.__name__
    run_verb.__annotations__ = {each.name: each.annotation for each in parameters}
    run_verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run_verb


def _parameter(option: Option) -> inspect.Parameter:
    shape: Any = str | None
    default: Any = None
    if option.metavar is None and not option.is_argument:
        shape, default = bool, False
    elif option.many:
        shape = list[str] | None
    kind, info = inspect.Parameter.KEYWORD_ONLY, _info(option)
    if option.is_argument and not option.optional:
        shape = list[str] if option.many else str
        return inspect.Parameter(option.parameter, kind, annotation=Annotated[shape, info])
    return inspect.Parameter(
        option.parameter, kind, default=default, annotation=Annotated[shape, info]
    )


def _info(option: Option) -> Any:
    if option.is_argument:
        return typer.Argument(help=option.help, metavar=option.name, show_default=False)
    return typer.Option(option.name, help=option.help, metavar=option.metavar, show_default=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trio-mq {__version__}")
        raise typer.Exit


def make() -> typer.Typer:
    """All commands."""
    app = typer.Typer(
        name="trio-mq", help="A message broker that Apache RocketMQ clients use as it is.", **_PLAIN
    )

    @app.callback()
    def root(
        version: Annotated[
            bool,
            typer.Option(
                "--version",
                help="Print the version and exit.",
                callback=_show_version,
                is_eager=True,
            ),
        ] = False,
    ) -> None:
        """A message broker that Apache RocketMQ clients use as it is."""

    groups: dict[str, typer.Typer] = {}
    for verb in verbs():
        first, _, second = verb.path.partition(" ")
        if second and first not in groups:
            groups[first] = _group(first)
            app.add_typer(groups[first])
        kind = _OwnCodes if verb.own_codes else TyperCommand
        add = (groups[first] if second else app).command(second or first, cls=kind)
        add(command(verb.run, verb.table))
    return app


def _group(name: str) -> typer.Typer:
    """What stands before several verbs."""
    group = typer.Typer(name=name, help=GROUPS[name], **_PLAIN)

    def root() -> None: ...

    root.__doc__ = GROUPS[name]
    group.callback()(root)
    return group
