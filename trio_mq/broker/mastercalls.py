"""What a slave asks its master for: the tables, page by page where they are long, and where the log ends.

In: the master's remoting address and a pool of links. Out: tables as the JSON of their state files, the timer's
checkpoint, a log offset. Called by :mod:`trio_mq.broker.follow`. Everything is asked on the master's normal port:
Apache's slaves ask for topics and timers on the fast one (listen port - 2), but its masters answer on both, and one of
ours may have no fast port. Errors: PeerUnavailable, PeerRefused, BodyError. Source: Apache BrokerOuterAPI.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import attrs

from trio_mq.broker.statejson import json_object
from trio_mq.config import Address
from trio_mq.errors import BodyError, PeerRefused, PeerUnavailable
from trio_mq.net.dial import LinkPool
from trio_mq.net.link import Link
from trio_mq.protocol import bodies, headers, jsondialect
from trio_mq.protocol.bodies import DataVersion, KVTable
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.admin import GetAllSubscriptionGroupRequest, GetAllTopicConfigRequest
from trio_mq.store.disk import Disk
from trio_mq.store.timercheck import TimerCheckpoint

#: Time for one answer, as Apache allows it; pages of long tables have more.
CALL_LIMIT_S: Final = 3.0
PAGE_LIMIT_S: Final = 30.0
#: Most topics or groups of one answer.
PAGE_SIZE: Final = 2000
#: Answers that are longer are read in a worker thread.
LONG_BYTES: Final = 32 * 1024
#: A text, or an integer that is a key and stands without quotes.
_TEXT_OR_KEY: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(?<=[{,])(-?\d+)(?=:)', re.DOTALL)


@attrs.define
class Pages:
    """Pages of a table, put together. `table` and `more` name the objects that every page has a part of."""

    table: str
    more: tuple[str, ...] = ()
    #: Where the next page begins, and the version that it has to have: None before the first page.
    start: int = 0
    version: DataVersion | None = None
    found: dict[str, Any] = attrs.field(factory=dict)

    def take(self, total: int | None, page: Any) -> bool:
        """Take a page; whether that was the last one. `total` is what the answer says, None from a peer without pages.

        A page of another version is the first page of a table that has changed meanwhile. :class:`BodyError` for
        what is no page, and for a peer that has less than it says.
        """
        if not isinstance(page, dict) or not isinstance(page.get(self.table), dict):
            raise BodyError(f"the master's answer has no {self.table}")
        version = bodies.structure(DataVersion, page.get("dataVersion") or {})
        if version != self.version:
            if self.version is not None and self.start and total is not None:
                self.start = 0
                self.version = None
                return False  # what came may be of the middle of the new table
            self.version, self.found = version, {"dataVersion": page.get("dataVersion")}
            self.found |= {name: {} for name in (self.table, *self.more)}
        for name in (self.table, *self.more):
            self.found[name] |= json_object(page.get(name), name)
        came = len(page[self.table])
        self.start += came
        if total is None or self.start >= total:
            return True
        if not came:
            raise BodyError(
                f"the master says that its {self.table} has {total} entries, but it hands out only {self.start}"
            )
        return False


class MasterCalls:
    """Asks one master."""

    def __init__(self, pool: LinkPool, address: Address, disk: Disk) -> None:
        self._pool = pool
        self.address = address
        self._disk = disk
        self._link: Link | None = None
        #: Number of connections so far: a master that was away answers on another one.
        self.connections = 0

    async def topics(self, known: DataVersion) -> dict[str, Any] | None:
        """GET_ALL_TOPIC_CONFIG (21): all of ``topicConfigTable``, at one version; None when that is `known`."""
        pages = Pages("topicConfigTable", ("topicQueueMappingDetailMap",))
        code, header = RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfigRequest
        return await self._all(code, header, pages, known, total="totalTopicNum")

    async def groups(self, known: DataVersion) -> dict[str, Any] | None:
        """GET_ALL_SUBSCRIPTIONGROUP_CONFIG (201): all of ``subscriptionGroupTable``; None as for topics."""
        pages = Pages("subscriptionGroupTable", ("forbiddenTable",))
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        header = GetAllSubscriptionGroupRequest
        return await self._all(code, header, pages, known, total="totalGroupNum")

    async def offsets(self) -> Any:
        """GET_ALL_CONSUMER_OFFSET (43)."""
        return await self._json(RequestCode.GET_ALL_CONSUMER_OFFSET)

    async def delays(self) -> Any:
        """GET_ALL_DELAY_OFFSET (45)."""
        return await self._json(RequestCode.GET_ALL_DELAY_OFFSET)

    async def modes(self) -> Any:
        """GET_ALL_MESSAGE_REQUEST_MODE (402)."""
        return await self._json(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)

    async def counts(self) -> Any:
        """GET_TIMER_METRICS (61)."""
        return await self._json(RequestCode.GET_TIMER_METRICS)

    async def checkpoint(self) -> TimerCheckpoint:
        """GET_TIMER_CHECK_POINT (60)."""
        reply = await self._call(Command(RequestCode.GET_TIMER_CHECK_POINT))
        return TimerCheckpoint.unpack(reply.body)

    async def log_end(self) -> int:
        """Where the master's log ends, by GET_BROKER_RUNTIME_INFO (28), which masters of all releases answer."""
        reply = await self._call(Command(RequestCode.GET_BROKER_RUNTIME_INFO))
        text = bodies.decode(KVTable, reply.body).table.get("commitLogMaxOffset", "")
        try:
            return int(text)
        except ValueError:
            raise BodyError(f"the master says {text!r} for where its log ends") from None

    # -- the ways to ask

    async def _all(
        self,
        code: int,
        header: Callable[[int, str, int], attrs.AttrsInstance],
        pages: Pages,
        known: DataVersion,
        *,
        total: str,
    ) -> dict[str, Any] | None:
        size = 1  # first only the version: most of the time nothing has changed
        while True:
            version = "" if pages.version is None else bodies.encode(pages.version).decode()
            ext = headers.encode(header(pages.start, version, size))
            reply = await self._call(Command(code, ext), PAGE_LIMIT_S)
            count = reply.ext.get(total)
            number = int(count) if count is not None and count.isdecimal() else None
            is_last = pages.take(number, await self._parsed(reply.body))
            if pages.version == known != DataVersion():
                return None
            if is_last:
                return pages.found
            size = PAGE_SIZE

    async def _json(self, code: int) -> Any:
        reply = await self._call(Command(code))
        return await self._parsed(reply.body)

    async def _parsed(self, body: bytes) -> Any:
        if len(body) <= LONG_BYTES:
            return jsondialect.loads(body)
        return await self._disk.run(partial(_loads_long, body))

    async def _call(self, command: Command, limit_s: float = CALL_LIMIT_S) -> Command:
        reply = await self._pool.call(self.address, command, limit_s)
        link = self._pool.living_link(self.address)
        if link is None or link is not self._link:
            self._link = link
            self.connections += 1
        if reply.code != ResponseCode.SUCCESS:
            what = RequestCode(command.code).name
            raise PeerRefused(reply.code, reply.remark, address=str(self.address), what=what)
        return reply

    async def reconnect(self) -> None:
        """Close the link: it may be half dead, and the next call makes a new one."""
        await self._pool.drop(self.address)


def _loads_long(body: bytes) -> Any:
    """As :func:`jsondialect.loads`, with integer keys in quotes: without them, its fast way can read the text."""
    return jsondialect.loads(_TEXT_OR_KEY.sub(_quoted, body))


def _quoted(match: re.Match[bytes]) -> bytes:
    key: bytes | None = match.group(1)
    return match.group() if key is None else b'"%b"' % key


#: What calls raise for the outside's sake.
FAILURES: Final = (PeerUnavailable, PeerRefused, BodyError)
