"""``trio-mq consume``: print the messages of a topic, all that are there or as they come; with a group or without.

In: options. Out: messages on stdout, for people, as JSON lines (``docs/reference/message-lines.md``) or bodies only.
Without a group they are read by :meth:`trio_mq.Admin.read`, and nothing is left behind; with one by
:class:`trio_mq.PullConsumer`, and the group goes on from there the next time. mqadmin has printMsg and consumeMessage.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

from trio_mq.cli import options, places
from trio_mq.cli.message import FORMAT, LINES, Printer, printer
from trio_mq.cli.online import (
    CONNECTION,
    NOTHING,
    connection,
    number,
    refuse,
    report_failures,
    run,
    run_admin,
)
from trio_mq.cli.options import Option, Values

if TYPE_CHECKING:
    from trio_mq.client.admin import Admin
    from trio_mq.client.pullconsumer import PullConsumer
    from trio_mq.client.subscription import Sql
    from trio_mq.protocol.bodies import MessageQueue

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
    Option(
        "--group",
        "Consume as a member of this group: what was printed counts as consumed, and --from is only where a new group "
        "begins (begin, end or a time). [default: none]",
        "GROUP",
    ),
    FORMAT,
    LINES,
    *CONNECTION,
)
#: How long a member of a group waits for messages before it asks whether any are left.
POLL_S: Final = 1.0
BATCH: Final = 32


def consume(values: Values) -> int:
    """Print the messages of a topic, without a group in the order of their times; code 1 when there are none."""
    if "--follow" in values and "--to" in values:
        refuse("--follow and --to: give one of them")
    if "--tags" in values and "--sql" in values:
        refuse("--tags and --sql: give one of them")
    # What counts as consumed has to be out before.
    at_once = "--follow" in values or "--group" in values
    show = printer(values, CONSUME, at_once=at_once)
    if "--group" not in values:
        return run_admin(values, lambda admin, values: _read(admin, values, show))
    for option in ("--queue", "--to"):
        if option in values:
            refuse(f"{option} does not go with --group, whose members share the queues")
    return run(lambda: _as_member(values, show))


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


async def _as_member(values: Values, show: Printer) -> int:
    from trio_mq.client.pullconsumer import PullConsumer

    follow, count = "--follow" in values, number(values, "--count", least=1)
    topic, group, where = values["TOPIC"][0], values["--group"][-1], _first_place(values)
    new = frozenset() if where == "begin" else await _queues_without_offset(values, topic, group)
    subscribe: Mapping[str, Any] = {topic: _wanted(values) or "*"}
    async with PullConsumer(
        **connection(values),
        group=group,
        subscribe=subscribe,
        from_where=where if isinstance(where, datetime) else "last" if where == "end" else "first",
    ) as consumer:
        for queue in consumer.assignment & new:
            await consumer.seek(queue, where)
        return await _print_all(consumer, follow, count, show)


async def _queues_without_offset(values: Values, topic: str, group: str) -> frozenset[MessageQueue]:
    """Queues in which the group is new. Where nothing was deleted yet, brokers say 0 to a member that asks."""
    from trio_mq.client.admin import Admin

    async with Admin(**connection(values)) as admin:
        route = await admin.topic_route(topic)
        return frozenset(route.read_queues) - set(await admin.consumer_offsets(group, topic))


async def _print_all(consumer: PullConsumer, follow: bool, count: int | None, show: Printer) -> int:
    shown = 0
    while count is None or shown < count:
        room = BATCH if count is None else min(BATCH, count - shown)
        found = await consumer.poll(room, timeout_s=POLL_S)
        for message in found:
            show(message)
        shown += len(found)
        if not found and not follow and not any((await consumer.lag()).values()):
            break
    return 0 if shown or follow else NOTHING


def _first_place(values: Values) -> Literal["begin", "end"] | datetime:
    """Where a group begins that has no offsets yet."""
    text = options.last(values, "--from") or ("end" if "--follow" in values else "begin")
    found = places.place("--from", text, datetime.now(UTC))
    if isinstance(found, int):
        refuse(
            f"--from {text} is an offset in one queue, and members share the queues: give a time"
        )
    return found
