"""Running a verb that talks to a cluster: the options of the connection, signals, and what may end it.

In: :data:`.options.Values` and an async function. Out: its exit code. Called by all verbs of
:data:`trio_mq.cli.verbs.CLUSTER`. SIGINT and SIGTERM cancel the work, so that offsets are committed and brokers told,
and end the process with 128 + n; stdout that nobody reads any more ends it quietly.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from trio_mq.cli import options
from trio_mq.cli.options import Option, Values
from trio_mq.errors import BrokersFailed, ConfigError

if TYPE_CHECKING:
    from trio_mq.client.admin import Admin
    from trio_mq.client.options import Credentials
    from trio_mq.errors import BrokerFailure

#: Apache's variable for the same thing.
NAMESERVER_VARIABLE: Final = "NAMESRV_ADDR"
DEFAULT_NAMESERVER: Final = "127.0.0.1:9876"
ACCESS_KEY_VARIABLE: Final = "TRIO_MQ_ACCESS_KEY"
SECRET_KEY_VARIABLE: Final = "TRIO_MQ_SECRET_KEY"  # noqa: S105  (a name)
TOKEN_VARIABLE: Final = "TRIO_MQ_SECURITY_TOKEN"  # noqa: S105  (a name)

#: Nothing was found that was asked for.
NOTHING: Final = 1

NAMESERVER: Final = Option(
    "--nameserver",
    f"Where the cluster is known; several with ; between them, or given several times. "
    f"[default: ${NAMESERVER_VARIABLE}, or {DEFAULT_NAMESERVER}]",
    "HOST:PORT",
    many=True,
)
TIMEOUT: Final = Option("--timeout", "Seconds that one answer may take. [default: 5]", "SECONDS")
JSON: Final = Option("--json", "Print one JSON object.")
#: Of every verb here.
CONNECTION: Final = (NAMESERVER, TIMEOUT)
DEFAULT_TIMEOUT_S: Final = 5.0
COUNTED_EVERY_S: Final = 0.2


class OutputClosed(Exception):
    """Nobody reads stdout any more."""


def write(text: str) -> None:
    """Print as it is."""
    try:
        sys.stdout.write(text)
    except BrokenPipeError:
        raise OutputClosed from None


def flush() -> None:
    """Let whoever reads see what was printed."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosed from None


def tell(text: str) -> None:
    """A note on stderr."""
    sys.stderr.write(f"note: {text}\n")


# -- options


def connection(values: Values, default_timeout_s: float = DEFAULT_TIMEOUT_S) -> dict[str, Any]:
    """The arguments that every client takes."""
    given = values.get("--nameserver") or [os.environ.get(NAMESERVER_VARIABLE, "")]
    return {
        "nameserver": ";".join(filter(None, given)) or DEFAULT_NAMESERVER,
        "credentials": credentials(os.environ),
        "start_timeout_s": seconds(values, "--timeout", default_timeout_s),
        "call_timeout_s": seconds(values, "--timeout", default_timeout_s),
    }


def credentials(environment: Mapping[str, str]) -> Credentials | None:
    """Keys come from the environment: everybody on a machine can read a command line."""
    access, secret = environment.get(ACCESS_KEY_VARIABLE), environment.get(SECRET_KEY_VARIABLE)
    if not access and not secret:
        return None
    if not access or not secret:
        raise ConfigError(
            f"{ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE} belong together: one of them is not set"
        )
    from trio_mq.client.options import Credentials

    return Credentials(access, secret, environment.get(TOKEN_VARIABLE) or None)


def seconds(values: Values, option: str, default: float) -> float:
    """A number of seconds above 0."""
    text = options.last(values, option)
    if text is None:
        return default
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < 1e6:
        raise ConfigError(f"{option} {text!r} is no number of seconds above 0")
    return found


def number(values: Values, option: str, *, least: int = 0) -> int | None:
    """A whole number, None when it is not given."""
    text = options.last(values, option)
    if text is None:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ConfigError(f"{option} {text!r}: a whole number from {least} on is needed")
    return int(text)


def given(**by_argument: object) -> dict[str, Any]:
    """Those arguments that were given: what is None stays as it is."""
    return {name: value for name, value in by_argument.items() if value is not None}


def pairs(values: Values, option: str) -> dict[str, str]:
    """``KEY=VALUE``, as often as it is given."""
    found = {}
    for text in values.get(option, ()):
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise ConfigError(f"{option} {text!r}: write KEY=VALUE")
        found[key] = value
    return found


# -- running


def run_admin(values: Values, work: Callable[[Admin, Values], Awaitable[int]]) -> int:
    """Run `work` with an open :class:`trio_mq.Admin`."""
    from trio_mq.client.admin import Admin

    async def main() -> int:
        async with Admin(**connection(values)) as admin:
            return await work(admin, values)

    return run(main)


def run(main: Callable[[], Awaitable[int]]) -> int:
    """Run an async function to its end, or to the first signal; its exit code."""
    import trio

    try:
        code = trio.run(_until_signal, main)
        flush()
    except OutputClosed:
        return _closed()
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is not None:
            raise KeyboardInterrupt from None
        if group.subgroup(OutputClosed) is not None:
            return _closed()
        raise
    return code


def _closed() -> int:
    """Python would complain once more, at its end, about what it could not write."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stdout__.fileno() if sys.__stdout__ else 1)
    return 0


async def _until_signal(main: Callable[[], Awaitable[int]]) -> int:
    import trio

    code = 0

    async def watch(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        nonlocal code
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for received in signals:
                code = 128 + received
                nursery.cancel_scope.cancel()
                return

    async with trio.open_nursery() as nursery:
        await nursery.start(watch)
        code = await main()
        nursery.cancel_scope.cancel()
    return code


# -- progress


class Counter:
    """How many messages were sent so far, on stderr, when that is a terminal."""

    def __init__(self, *, is_terminal: bool | None = None) -> None:
        self._shown = sys.stderr.isatty() if is_terminal is None else is_terminal
        self._due_s = 0.0
        self.count = 0

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.count} message{'' if self.count == 1 else 's'} sent"

    def add(self) -> None:
        """One more."""
        self.count += 1
        now_s = time.monotonic()
        if self._shown and now_s >= self._due_s:
            self._due_s = now_s + COUNTED_EVERY_S
            sys.stderr.write(f"\r{self.text}")
            sys.stderr.flush()

    def end(self) -> None:
        """Take it away."""
        if self._shown:
            sys.stderr.write("\r\x1b[K")


# -- brokers that do not answer


def report_failures(failures: Iterable[BrokerFailure]) -> int:
    """A line on stderr for each broker that did not answer, and the exit code: that of BrokersFailed, or 0."""
    code = 0
    for failure in failures:
        sys.stderr.write(f"error: {' '.join(str(failure).split())}\n")
        code = BrokersFailed.exit_code
    return code


def failure_fields(failures: Iterable[BrokerFailure]) -> list[dict[str, object]]:
    """The same for JSON."""
    return [
        {
            "brokerName": failure.name,
            "address": failure.address,
            "error": str(failure.error),
            "code": getattr(failure.error, "code", None),
        }
        for failure in failures
    ]


def refuse(text: str) -> NoReturn:
    """A mistake on the command line."""
    raise ConfigError(text)
