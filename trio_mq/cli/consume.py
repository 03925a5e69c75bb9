"""``trio-mq consume``: print the messages of a topic, all that are there or as they come.

In: options. Out: messages on stdout, for people, as JSON lines (``docs/reference/message-lines.md``) or bodies only.
They are read by :meth:`trio_mq.Admin.read`, and nothing is left behind. Apache's mqadmin has printMsg and
consumeMessage for it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from trio_mq.cli import options, places
from trio_mq.cli.message import FORMAT, LINES, Printer, printer
from trio_mq.cli.online import (
    CONNECTION,
    NOTHING,
    number,
    refuse,
    report_failures,
    run_admin,
)
from trio_mq.cli.options import Option, Values

if TYPE_CHECKING:
    from trio_mq.client.admin import Admin
    from trio_mq.client.subscription import Sql

CONSUME: Final = (
    Option("TOPIC", "Name of the topic."),
    Option("--follow", "Wait for more when all that is there was printed."),
    Option("--count", "End after so many messages.", "N"),
    Option(
        "--from",
        f"Where to begin: {places.PLACES}. [default: begin; with --follow: end]",
        "PLACE",
    ),
    Option("--to", "Where to end: a place as for --from, which is not part of it.", "PLACE"),
    Option("--queue", "Only this queue; can be given several times.", "BROKER:ID", many=True),
    Option("--tags", "Only messages with these tags: 'new || paid'.", "EXPRESSION"),
    Option(
        "--sql", "Only messages whose properties fulfil a condition: 'amount > 100'.", "CONDITION"
    ),
    FORMAT,
    LINES,
    *CONNECTION,
)


def consume(values: Values) -> int:
    """Print the messages of a topic in the order in which they were stored; code 1 when there are none."""
    if "--follow" in values and "--to" in values:
        refuse("--follow and --to: give one of them")
    if "--tags" in values and "--sql" in values:
        refuse("--tags and --sql: give one of them")
    show = printer(values, CONSUME, at_once="--follow" in values)
    return run_admin(values, lambda admin, values: _read(admin, values, show))


def _wanted(values: Values) -> str | Sql | None:
    condition = options.last(values, "--sql")
    if condition is None:
        return options.last(values, "--tags")
    from trio_mq.client.subscription import Sql

    return Sql(condition)


async def _read(admin: Admin, values: Values, show: Printer) -> int:
    topic, now = values["TOPIC"][0], datetime.now(UTC)
    follow, count = "--follow" in values, number(values, "--count", least=1)
    begin = options.last(values, "--from") or ("end" if follow else "begin")
    end = options.last(values, "--to") or "end"
    queues = [places.queue("--queue", text, topic) for text in values.get("--queue", ())]
    reading = await admin.read(
        topic,
        begin=places.place("--from", begin, now),
        end=places.place("--to", end, now),
        follow=follow,
        wanted=_wanted(values),
        queues=queues or None,
    )
    shown = 0
    async for message in reading:
        show(message)
        shown += 1
        if shown == count:
            break
    return report_failures(reading.failures) or (0 if shown else NOTHING)
