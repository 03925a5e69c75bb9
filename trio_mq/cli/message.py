"""``trio-mq message``: one message by its id, and messages of a topic by key, place or time.

In: options. Out: messages on stdout, for people or as JSON lines (``docs/reference/message-lines.md``). The work is
done by :class:`trio_mq.Admin`; Apache's mqadmin has queryMsgById, queryMsgByKey, queryMsgByUniqueKey and
queryMsgByOffset for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from trio_mq.cli import options, places
from trio_mq.cli.online import (
    CONNECTION,
    NOTHING,
    flush,
    number,
    refuse,
    report_failures,
    run_admin,
    tell,
    write,
)
from trio_mq.cli.options import Option, Values

if TYPE_CHECKING:
    from trio_mq.client.admin import Admin
    from trio_mq.client.messages import ReceivedMessage

_FORMATS: Final = ("text", "json", "body")
FORMAT: Final = Option(
    "--format",
    "For people, as JSON lines, or only the bodies, one a line. [default: text]",
    "|".join(_FORMATS),
    words=_FORMATS,
)
LINES: Final = Option("--json", "The same as --format json.")
GET: Final = (
    Option("ID", "Offset message id, or with --topic the id that the producer gave."),
    Option("--topic", "The topic that it is in.", "TOPIC"),
    FORMAT,
    LINES,
    *CONNECTION,
)
FIND: Final = (
    Option("TOPIC", "Name of the topic."),
    Option("--key", "With this key.", "KEY"),
    Option("--unique-id", "With this id of a producer, every time it was stored.", "ID"),
    Option("--queue", "Only this queue; for --offset it is needed.", "BROKER:ID"),
    Option("--offset", "The one at this offset of --queue.", "N"),
    Option("--since", "Stored at or after this time, or a while ago (90s, 10m, 2h, 7d).", "TIME"),
    Option("--until", "Stored before this time, or a while ago.", "TIME"),
    Option("--count", "At most so many; with --key the newest ones, 64 if it is not given.", "N"),
    FORMAT,
    LINES,
    *CONNECTION,
)


def get(values: Values) -> int:
    """Print the message with an id; code 1 when there is none."""
    return run_admin(values, _get)


async def _get(admin: Admin, values: Values) -> int:
    show = printer(values, GET)
    found = await admin.message(values["ID"][0], options.last(values, "--topic"))
    if found is None:
        tell(f"no message has the id {values['ID'][0]}, or it is gone")
        return NOTHING
    show(found)
    return 0


def find(values: Values) -> int:
    """Print the messages of a topic with a key, at a place or of a time; code 1 when there are none."""
    return run_admin(values, _find)


async def _find(admin: Admin, values: Values) -> int:
    topic = values["TOPIC"][0]
    show = printer(values, FIND)
    now = datetime.now(UTC)
    begin, end = (
        None if (text := options.last(values, name)) is None else places.moment(name, text, now)
        for name in ("--since", "--until")
    )
    text = options.last(values, "--queue")
    queue = None if text is None else places.queue("--queue", text, topic)
    offset, count = number(values, "--offset"), number(values, "--count", least=1)
    key, unique = options.last(values, "--key"), options.last(values, "--unique-id")
    ways = [name for name in ("--key", "--unique-id", "--offset") if name in values]
    if len(ways) > 1:
        refuse(f"{' and '.join(ways)}: give one of them")
    if offset is not None:
        if queue is None:
            refuse(f"--offset {offset} is a place in one queue: say which with --queue BROKER:ID")
        one = await admin.message_at(queue, offset)
        return _show_all([] if one is None else [one], values)
    if key is not None or unique is not None:
        if queue is not None:
            refuse("--queue does not go with --key or --unique-id")
        found = await (
            admin.messages_by_key(topic, key, begin=begin, end=end, limit=count or 64)
            if key is not None
            else admin.messages_by_unique_id(topic, str(unique))
        )
        code = _show_all(found[-(count or len(found)) :], values)
        return report_failures(found.failures) or code
    if begin is None and end is None and queue is None:
        refuse("what shall be found? give --key, --unique-id, --queue and --offset, or --since")
    reading = await admin.read(
        topic,
        begin="begin" if begin is None else begin,
        end="end" if end is None else end,
        queues=None if queue is None else [queue],
    )
    shown = 0
    async for message in reading:
        show(message)
        shown += 1
        if shown == count:
            break
    return report_failures(reading.failures) or (0 if shown else _nothing())


def _show_all(found: Iterable[ReceivedMessage], values: Values) -> int:
    show = printer(values, FIND)
    shown = 0
    for message in found:
        show(message)
        shown += 1
    return 0 if shown else _nothing()


def _nothing() -> int:
    tell("no message is there that was asked for")
    return NOTHING


class Printer:
    """Prints messages in one of the formats."""

    def __init__(self, form: str, *, at_once: bool = False) -> None:
        self._form = form
        self._at_once = at_once

    def __call__(self, message: ReceivedMessage) -> None:
        """Print one."""
        if self._form == "body":
            _write_body(message.body)
        else:
            write(self._text(message) + "\n")
        if self._at_once:
            flush()

    def _text(self, message: ReceivedMessage) -> str:
        from trio_mq.lookinside.shown import BodyForm, as_line, as_text

        if self._form == "json":
            return as_line(message.record, decompress=True, form=BodyForm.AUTO)
        return as_text(message.record, decompress=True)


def printer(values: Values, table: Iterable[Option], *, at_once: bool = False) -> Printer:
    """What prints in the format that is asked for; `at_once` for whoever waits for each message."""
    form = options.word(values, "--format", tuple(table))
    if form not in (None, "json") and "--json" in values:
        refuse(f"--json and --format {form}: give one of them")
    return Printer("json" if "--json" in values else form or "text", at_once=at_once)


def _write_body(body: bytes) -> None:
    """Bytes as they are, where stdout takes some."""
    import sys

    from trio_mq.cli.online import OutputClosed

    raw = getattr(sys.stdout, "buffer", None)
    if raw is None:
        write(body.decode("utf-8", "replace") + "\n")
        return
    flush()
    try:
        raw.write(body + b"\n")
    except BrokenPipeError:
        raise OutputClosed from None
