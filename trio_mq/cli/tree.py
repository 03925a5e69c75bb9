"""The typer commands, made from the tables of options: help, usage errors, and every line that the
plain reader leaves alone.

In: the command line. Out: calls of the verbs with :data:`trio_mq.cli.options.Values`, whose exit
codes it passes on. Called by :func:`trio_mq.cli.app.main`, and by the generator of the CLI page.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from trio_mq import __version__
from trio_mq.cli import config, serve
from trio_mq.cli.options import SERVE, SHOW, Option, Values

_PLAIN: dict[str, Any] = {
    "add_completion": False,
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    # rich would be loaded to print a page of help
    "rich_markup_mode": None,
}


def command(run: Callable[[Values], int], table: Sequence[Option]) -> Callable[..., None]:
    """A function with one keyword parameter for each option, which is what typer reads."""

    def run_verb(**given: Any) -> None:
        values: dict[str, list[str]] = {}
        for option in table:
            value = given[option.parameter]
            if option.many and value:
                values[option.name] = list(value)
            elif option.metavar is None and value:
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
    if option.metavar is None:
        shape, default = bool, False
    elif option.many:
        shape = list[str] | None
    info = typer.Option(option.name, help=option.help, metavar=option.metavar, show_default=False)
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[shape, info],
    )


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

    app.command("serve")(command(serve.serve, SERVE))
    settings = typer.Typer(name="config", help="Look at settings.", **_PLAIN)

    @settings.callback()
    def settings_root() -> None:
        """Look at settings."""

    settings.command("show")(command(config.show, SHOW))
    app.add_typer(settings)
    return app
