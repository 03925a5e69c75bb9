"""Runs the command line inside the test's process, as the ``trio-mq`` script would."""

from __future__ import annotations

import contextlib
import io
import sys
from unittest import mock

import attrs

from trio_mq.cli.app import main


@attrs.frozen
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        """See the class."""
        return True


def run(*arguments: str, out: io.StringIO | None = None) -> Result:
    """Run ``trio-mq`` with these arguments."""
    out, err = out or io.StringIO(), io.StringIO()
    code: object = None
    with (
        mock.patch.object(sys, "argv", ["trio-mq", *arguments]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return Result(code, out.getvalue(), err.getvalue())
