"""Writes docs/reference/request-codes.md from the request tables of broker and name server.

In: a broker and a name server that are made in memory, and their tables. Out: one Markdown file. Run by
``python docs/generate_request_codes.py``; with ``--check`` it writes nothing and fails when the page is stale, as a
test does too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from trio_mq.broker.broker import Broker
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.tables import load_tables
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import SystemClock
from trio_mq.config import load
from trio_mq.ha.primary import Primary
from trio_mq.ha.runtime import HARuntime
from trio_mq.nameserver.nameserver import NameServer
from trio_mq.net.requests import RequestTable
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.headers import PullMessageRequest, SendMessageRequest, SendMessageRequestV2
from trio_mq.protocol.message import Host
from trio_mq.protocol.names import wire_name
from trio_mq.store.store import Store, open_parts
from trio_mq.testing.disk import MemoryDisk

PAGE: Final = Path(__file__).resolve().parent / "reference" / "request-codes.md"
Headers = Mapping[int, type[Any] | None]

SHORT_WAY: Final[Headers] = {
    RequestCode.SEND_MESSAGE: SendMessageRequest,
    RequestCode.SEND_MESSAGE_V2: SendMessageRequestV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageRequestV2,
    RequestCode.PULL_MESSAGE: PullMessageRequest,
    RequestCode.LITE_PULL_MESSAGE: PullMessageRequest,
}
"""What ``broker/remoting.py`` answers without the request table, since it comes per message."""

SENT_BY_SERVERS: Final = frozenset(
    {
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
    }
)
"""Requests that brokers and name servers send; to receive one they need no processor."""


def main() -> int:
    """Write the page, or with ``--check`` compare it; the exit code of the script."""
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, "utf-8")
        return 0
    if read() != text:
        sys.stderr.write(
            f"docs/reference/{PAGE.name} is stale; run: python docs/generate_request_codes.py\n"
        )
        return 1
    return 0


def read() -> str | None:
    """The page as it is on disk."""
    return PAGE.read_text("utf-8") if PAGE.exists() else None


async def make_broker() -> Broker:
    """A broker without sockets on an empty disk in memory. Nothing of it runs."""
    settings, disk, clock = load(), MemoryDisk(), SystemClock()
    parts = open_parts(disk, settings.store, clock, lambda _topic: False)
    tables = await load_tables(
        disk,
        f"{settings.store.path}/config",
        clock,
        topics=TopicTable(settings.broker, clock),
        groups=GroupTable(settings.broker, clock),
        offsets=ConsumerOffsets(settings.broker, clock),
    )
    address = Host("127.0.0.1", 10911)
    store = Store(parts, clock, address)
    broker = Broker(settings, store, tables, clock, str(address))
    primary = Primary(store, settings.ha)
    HARuntime(settings.ha, store, primary, clock, ha_address="", address="").fill(broker.requests)
    return broker


def broker_codes() -> Headers:
    """Request codes that the broker answers, with the class of their header fields."""
    return {**SHORT_WAY, **_entries(trio.run(make_broker).requests)}


def nameserver_codes() -> Headers:
    """The same for the name server."""
    return _entries(NameServer().requests)


def _entries(table: RequestTable) -> Headers:
    return {code: header for code, (header, _) in table._entries.items()}


def page() -> str:
    """The text of the page."""
    broker, names = broker_codes(), nameserver_codes()
    answered = broker.keys() | names.keys()
    others = [code for code in RequestCode if code not in answered and code not in SENT_BY_SERVERS]
    lines = [
        "<!-- Written by docs/generate_request_codes.py; do not edit. -->",
        "",
        "# Request codes",
        "",
        "What broker and name server answer. Fields are those of the custom header (`extFields`), under their names on",
        "the wire; required ones are **bold**. Bodies and frames: [wire format](wire-format.md). Numbers and names are",
        "those of Apache RocketMQ 5.4.0 (`protocol/codes.py`), header classes are in `protocol/headers/`.",
        "",
        "Any other code is answered with REQUEST_CODE_NOT_SUPPORTED (3) and its number in the remark, unless the",
        "request is one-way.",
        "",
        "## Broker",
        "",
        *_table(broker),
        "",
        "## Name server",
        "",
        *_table(names),
        "",
        "## Not supported in this version",
        "",
        "Known to Apache 5.4.0, and answered with code 3 by both:",
        "",
        ", ".join(f"{code.name} ({int(code)})" for code in sorted(others)) + ".",
    ]
    return "\n".join([*lines, ""])


def _table(codes: Headers) -> Iterator[str]:
    yield "| code | name | header fields |"
    yield "| --- | --- | --- |"
    for code in sorted(codes):
        yield f"| {code} | {RequestCode(code).name} | {_fields(codes[code])} |"


def _fields(header: type[Any] | None) -> str:
    if header is None:
        return ""
    short: Mapping[str, str] = getattr(header, "SHORT", {})
    if short:
        return "those of SEND_MESSAGE, with [one letter for each](wire-format.md#sends)"
    fields: Iterable[attrs.Attribute[Any]] = attrs.fields(header)
    names = [(f"`{wire_name(field)}`", field.default is attrs.NOTHING) for field in fields]
    return ", ".join(
        [f"**{name}**" for name, required in names if required]
        + [name for name, required in names if not required]
    )


if __name__ == "__main__":
    sys.exit(main())
