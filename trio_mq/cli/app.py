"""The ``trio-mq`` command, and the one place where an error becomes an exit code.

In: the command line. Out: an exit code, and at most one line on stderr for a foreseen error. Called
by the ``trio-mq`` script and by ``python -m trio_mq``.
"""

from __future__ import annotations

import sys
from typing import Final, NoReturn

from trio_mq.cli import options, output

INTERRUPTED: Final = 130
"""What shells show for a command that SIGINT ended; once ``serve`` is up it handles the signal."""


def main() -> NoReturn:
    """Run the command line and exit with its code; every foreseen error is one line on stderr."""
    try:
        code = _run(sys.argv[1:])
    except Exception as error:
        reported = output.report(error)
        if reported is None:
            raise
        code = reported
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["serve"]:
        values = options.parse_plain(arguments[1:], options.SERVE)
        if values is not None:
            from trio_mq.cli import serve

            return serve.serve(values)
    if arguments[:1] == ["recover"]:
        values = options.parse_plain(arguments[1:], options.RECOVER)
        if values is not None:  # typer and pydantic would take a quarter of the memory of a dry run
            from trio_mq.cli import recover

            return recover.recover(values)
    if arguments and not arguments[0].startswith("-"):
        from trio_mq.cli import (
            verbs,
        )  # loads no client: each verb does, once its line is known to be good

        found = verbs.find(arguments)
        if found is not None:
            verb, rest = found
            values = options.parse_plain(rest, verb.table)
            if values is not None:
                return verb.run(values)
    from trio_mq.cli import tree  # loads typer, which a plain start does without

    tree.make()(prog_name="trio-mq")
    return 0
