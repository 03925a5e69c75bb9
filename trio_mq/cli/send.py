"""``trio-mq send``: one message, one for each line, or message lines as an export wrote them.

In: a body as argument, file or stdin, and options. Out: receipts on stdout. The work is done by
:class:`trio_mq.Producer`; Apache's mqadmin has sendMessage for it. A message that cannot be sent ends the command, and
stderr says how many were sent before.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Final

from trio_mq.cli import options, places
from trio_mq.cli.online import (
    CONNECTION,
    Counter,
    connection,
    flush,
    given,
    number,
    pairs,
    refuse,
    run,
    tell,
    write,
)
from trio_mq.cli.options import Option, Values

if TYPE_CHECKING:
    from trio_mq.client.messages import Message, SendReceipt
    from trio_mq.client.producer import Producer
    from trio_mq.protocol.bodies import MessageQueue

SEND: Final = (
    Option("TOPIC", "Name of the topic."),
    Option("BODY", "The body. [default: what --file or stdin holds]", optional=True),
    Option("--file", "Read from a file and not from stdin.", "FILE"),
    Option(
        "--lines",
        "Send one message for each line that is not empty; in order with --sharding-key or --queue.",
    ),
    Option(
        "--message-lines",
        "Send one message for each line of JSON, as `consume --json` and `store export` write them.",
    ),
    Option("--tags", "The tag, which consumers choose by.", "TAG"),
    Option("--key", "A key to find it by; can be given several times.", "KEY", many=True),
    Option("--property", "A property; can be given several times.", "KEY=VALUE", many=True),
    Option("--sharding-key", "Messages with one key go to one queue, in order.", "KEY"),
    Option("--queue", "Send to this queue.", "BROKER:ID"),
    Option("--delay", "Deliver it later: after 90s, 10m, 2h, 7d.", "DURATION"),
    Option("--at", "Deliver it at a time: ISO 8601, UTC unless it says otherwise.", "TIME"),
    Option("--delay-level", "Deliver it after one of the broker's levels.", "1-18"),
    Option("--group", "The producer group. [default: DEFAULT_PRODUCER]", "GROUP"),
    Option("--json", "Print each receipt as one line of JSON."),
    *CONNECTION,
)
DEFAULT_TIMEOUT_S: Final = 3.0
_CHUNK: Final = 65_536
#: Longest line: brokers take messages of 4 MiB, and base64 needs a third more.
MAX_LINE_BYTES: Final = 16 * 1024 * 1024
_STDIN: Final = 0


def send(values: Values) -> int:
    """Send a message: the body from the command line, a file or stdin; or one for each line."""
    many = [option for option in ("--lines", "--message-lines") if option in values]
    if len(many) == 2:
        refuse("--lines and --message-lines: give one of them")
    if "BODY" in values and ("--file" in values or many):
        refuse(f"a body on the command line does not go with {(many or ['--file'])[0]}")
    make = maker(values)
    topic = values["TOPIC"][0]
    where = options.last(values, "--queue")
    queue = None if where is None else places.queue("--queue", where, topic)
    show = shower(values, bool(many))
    with _input(values) as file:

        async def main() -> int:
            from trio_mq.client.producer import Producer

            sender = given(group=options.last(values, "--group"))
            async with Producer(**connection(values, DEFAULT_TIMEOUT_S), **sender) as producer:
                if many:
                    return await _send_many(producer, _Input(file), make, queue, show)
                text = options.last(values, "BODY")
                body = await _Input(file).all() if text is None else text.encode()
                show(await producer.send(make(body), queue=queue))
                return 0

        return run(main)


async def _send_many(
    producer: Producer,
    source: _Input,
    make: Callable[[bytes], Message],
    queue: MessageQueue | None,
    show: Callable[[SendReceipt], None],
) -> int:
    import trio

    sent = Counter()
    try:
        async with producer.pipeline() as pipeline, trio.open_nursery() as nursery:
            # What is on its way is bounded by the window of the pipeline.
            put, take = trio.open_memory_channel[Any](1024)

            async def read() -> None:
                async with put:
                    count = 0
                    while (line := await source.line()) is not None:
                        count += 1
                        if line:
                            message = _made(make, line, count)
                            pending = await pipeline.send(message, queue=queue)
                            if queue is not None or message.sharding_key is not None:
                                # Apache's brokers store what is on its way at one time in any order.
                                await pending
                            await put.send(pending)

            nursery.start_soon(read)
            async for pending in take:
                show(await pending)
                sent.add()
    finally:
        sent.end()
        tell(sent.text)
    return 0


def _made(make: Callable[[bytes], Message], line: bytes, number_: int) -> Message:
    from trio_mq.errors import ConfigError, TrioMQError

    try:
        return make(line)
    except TrioMQError as error:
        raise ConfigError(f"line {number_}: {error}") from error


def shower(values: Values, many: bool) -> Callable[[SendReceipt], None]:
    """What prints a receipt; many of them only when they are asked for."""

    def show(receipt: SendReceipt) -> None:
        if "--json" in values:
            write(json.dumps(receipt_fields(receipt), separators=(",", ":")) + "\n")
        elif not many:
            queue = receipt.queue
            status = "" if receipt.status.name == "OK" else f"  {receipt.status.name}"
            write(
                f"{receipt.message_id}  {queue.broker_name}:{queue.queue_id}  "
                f"offset {receipt.queue_offset}{status}\n"
            )
        flush()

    return show


def receipt_fields(receipt: SendReceipt) -> dict[str, object]:
    """A receipt for JSON; what it does not have is left out."""
    fields = {
        "messageId": receipt.message_id,
        "offsetMessageId": receipt.offset_message_id,
        "topic": receipt.queue.topic,
        "brokerName": receipt.queue.broker_name,
        "queueId": receipt.queue.queue_id,
        "queueOffset": receipt.queue_offset,
        "status": receipt.status.name,
        "recallHandle": receipt.recall_handle,
    }
    return {name: value for name, value in fields.items() if value is not None}


# -- messages


def maker(values: Values) -> Callable[[bytes], Message]:
    """What makes a message of a body, or of a message line."""
    from trio_mq.client.messages import Message

    topic = values["TOPIC"][0]
    own = _own(values)
    if "--message-lines" not in values:
        return lambda body: Message(topic, body, **own)

    from trio_mq.cli.resend import parts_of

    def from_line(line: bytes) -> Message:
        fields = parts_of(line)
        properties = {**fields.pop("properties"), **own.get("properties", {})}
        return Message(topic, **{**fields, **own, "properties": properties})

    return from_line


def _own(values: Values) -> dict[str, Any]:
    """What the options say of each message."""
    ways = [name for name in ("--delay", "--at", "--delay-level") if name in values]
    if len(ways) > 1:
        refuse(f"{' and '.join(ways)}: give one of them")
    delay, at = options.last(values, "--delay"), options.last(values, "--at")
    after = None if delay is None else places.duration(delay)
    if delay is not None and after is None:
        refuse(f"--delay {delay!r} is no duration; write 90s, 10m, 2h or 7d")
    when = None if at is None else places.moment("--at", at, datetime.now(UTC))
    return given(
        tags=options.last(values, "--tags"),
        keys=tuple(values["--key"]) if "--key" in values else None,
        properties=pairs(values, "--property") or None,
        sharding_key=options.last(values, "--sharding-key"),
        deliver_after=after,
        deliver_at=when,
        delay_level=number(values, "--delay-level", least=1),
    )


# -- input


@contextmanager
def _input(values: Values) -> Iterator[IO[bytes] | None]:
    """The file that is named; None is stdin."""
    path = options.last(values, "--file")
    if path is None or path == "-":
        yield None
        return
    with open(path, "rb") as file:
        yield file


class _Input:
    """What a file or stdin holds, piece by piece or line by line.

    stdin is read below Python's own buffer, whose lock a thread that still waits for input would hold when Python ends.
    """

    def __init__(self, file: IO[bytes] | None) -> None:
        self._descriptor = _STDIN if file is None else file.fileno()
        self._waits_for_people = file is None and sys.stdin is not None and sys.stdin.isatty()
        self._lines: deque[bytes] = deque()
        self._rest = b""
        self._ended = False

    async def all(self) -> bytes:
        """Everything."""
        if self._waits_for_people:
            tell("reading the body from the terminal; end it with Ctrl-D")
        pieces = []
        while piece := await self._piece():
            pieces.append(piece)
        return b"".join(pieces)

    async def line(self) -> bytes | None:
        """The next line without its end, None after the last one, which needs no end."""
        while not self._lines and not self._ended:
            piece = await self._piece()
            *lines, self._rest = (self._rest + piece).split(b"\n")
            self._lines += lines
            if not piece:
                self._ended = True
                self._lines += [self._rest] if self._rest else []
            elif len(self._rest) > MAX_LINE_BYTES:
                refuse(f"a line is longer than {MAX_LINE_BYTES} bytes")
        return self._lines.popleft().removesuffix(b"\r") if self._lines else None

    async def _piece(self) -> bytes:
        import trio

        return await trio.to_thread.run_sync(
            os.read, self._descriptor, _CHUNK, abandon_on_cancel=True
        )
