"""What a slave asks its master over remoting before it copies: when its run began, where its log ends, single records.

In: a way to ask a command. Out: values; None where a master does not know the answer, :class:`Unanswered` where nobody
answers. Called by :mod:`trio_mq.ha.continuity`. All of it is answered by Apache's masters too (AdminBrokerProcessor,
QueryMessageProcessor), which say nothing about logs on the stream itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from trio_mq.errors import BodyError, HeaderError, PeerUnavailable
from trio_mq.protocol import headers, jsondialect
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers import ExchangeHAInfoReply, ExchangeHAInfoRequest, ViewMessageRequest

#: Sends a request to the master and returns its answer, whatever its code is; PeerUnavailable.
Ask = Callable[[Command], Awaitable[Command]]


class Unanswered(Exception):
    """Nobody answered, or not in a way that says anything."""


@attrs.frozen
class MasterRun:
    """One life of a master: where its log ended when it started, and where it listens for slaves."""

    start: int
    address: str


@attrs.frozen
class Bounds:
    """Where a master's log begins and ends; None for unknown."""

    start: int | None
    end: int | None


class MasterAsks:
    """See the module. Cancelling a call leaves nothing behind."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def _answer(
        self, code: RequestCode, header: object | None = None, *, ext: Mapping[str, str] = {}
    ) -> Command:
        if header is not None:
            ext = headers.encode(header)
        try:
            return await self._ask(Command(code, ext))
        except PeerUnavailable as error:
            raise Unanswered(str(error)) from error

    async def run(self) -> MasterRun | None:
        """The run of the master; None from a broker that is none, or from releases before 5."""
        answer = await self._answer(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoRequest())
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return None
        if answer.code != ResponseCode.SUCCESS:  # it is starting, say
            raise Unanswered(f"code {answer.code}: {answer.remark}")
        try:
            found = headers.decode(ExchangeHAInfoReply, answer.ext)
        except HeaderError as error:
            raise Unanswered(str(error)) from error
        if found.master_flush_offset is None:
            return None
        return MasterRun(found.master_flush_offset, found.master_ha_address or "")

    async def record(self, offset: int) -> bytes | None:
        """What the master has for a record at a log offset; None where it has none.

        Where no record begins, Apache takes the four bytes there for a length: what comes back may be anything, also
        empty. So only an answer that is equal to a record says something.
        """
        answer = await self._answer(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset))
        if answer.code == ResponseCode.SUCCESS:
            return answer.body or None
        if answer.code == ResponseCode.SYSTEM_ERROR:
            return None
        raise Unanswered(f"code {answer.code}: {answer.remark}")

    async def bounds(self, own_end: int) -> Bounds:
        """From where to where the master's log goes; a master of Apache's without messages does not know its begin.

        The end of the own log is told along: our masters show a slave that is ahead (case C062). It is not reported on
        the stream, where a master that has grown meanwhile would take it for an acknowledgement.
        """
        answer = await self._answer(
            RequestCode.GET_BROKER_HA_STATUS, ext={"slaveLogEnd": str(own_end)}
        )
        end = _number(_object(answer).get("masterCommitLogMaxOffset"))
        table = _object(await self._answer(RequestCode.GET_BROKER_RUNTIME_INFO)).get("table")
        if not isinstance(table, dict):
            return Bounds(None, end)
        if end is None:  # before release 5
            end = _number(table.get("commitLogMaxOffset"))
        return Bounds(_number(table.get("commitLogMinOffset")), end)

    async def segment_bytes(self) -> int | None:
        """Length of the files of the master's log."""
        answer = await self._answer(RequestCode.GET_BROKER_CONFIG)
        if answer.code != ResponseCode.SUCCESS:
            return None
        for line in answer.body.decode("utf-8", "replace").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "mappedFileSizeCommitLog":
                return _number(value.strip())
        return None


def _object(answer: Command) -> Mapping[str, Any]:
    """The body as an object; empty when it is none."""
    if answer.code != ResponseCode.SUCCESS:
        return {}
    try:
        value = jsondialect.loads(answer.body)
    except BodyError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(value: object) -> int | None:
    """A number that is written as such or as text."""
    text = str(value)
    return int(text) if text.isascii() and text.isdecimal() else None
