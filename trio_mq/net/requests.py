"""From a decoded command to a typed request, and from a typed reply back to bytes.

In: a :class:`Command` and the :class:`Peer` that sent it, from a listener's handler. Out: a reply on that peer.
Name server and broker each fill a :class:`RequestTable`; this is the one place where errors become response
codes. Source of the rules: Apache NettyRemotingAbstract.processRequestCommand.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar

import attrs

from trio_mq.errors import BodyError, HeaderError, LocalProtocolError, RequestRefused
from trio_mq.protocol import command as commands
from trio_mq.protocol import headers
from trio_mq.protocol.codes import FLAG_RESPONSE, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import RawFrame
from trio_mq.protocol.message import Host

log = logging.getLogger("trio_mq.net.requests")

H = TypeVar("H")


class Peer(Protocol):
    """The other end of one connection, as handlers see it."""

    @property
    def address(self) -> Host:
        """Where the peer connected from."""
        ...

    @property
    def closed(self) -> bool:
        """Whether nothing can be written any more."""
        ...

    @property
    def stalled(self) -> bool:
        """Whether no more should be written now: it is closed, or does not take what it is sent."""
        ...

    def write(self, data: bytes) -> None:
        """Send whole frames, in order; never waits, does nothing on a closed connection."""
        ...

    def close(self) -> None:
        """Close the connection soon."""
        ...


@attrs.frozen
class Reply:
    """What a processor answers. `header` is a typed reply header, `ext` adds fields to it."""

    code: int = ResponseCode.SUCCESS
    header: object | None = None
    body: bytes = b""
    remark: str | None = None
    ext: Mapping[str, str] | None = None


class Deferred(enum.Enum):
    """Returned by a processor that answers later through :meth:`Call.respond`."""

    TOKEN = 0


DEFERRED: Final = Deferred.TOKEN


@attrs.define(eq=False)
class Call:
    """One request in progress."""

    peer: Peer
    command: Command
    now_ms: int

    def respond(self, reply: Reply) -> None:
        """Send the reply, unless the request was one-way or the peer has gone.

        One that does not fit into a frame becomes a reply that says so.
        """
        if self.command.is_oneway or self.peer.closed:
            return
        opaque = self.command.opaque
        try:
            data = encode_reply(opaque, reply)
        except LocalProtocolError as error:
            log.error(
                "reply to request code %d of %s: %s", self.command.code, self.peer.address, error
            )
            remark = f"the answer cannot be sent: {error}"
            data = encode_reply(opaque, Reply(ResponseCode.SYSTEM_ERROR, remark=remark))
        self.peer.write(data)


def encode_reply(opaque: int, reply: Reply) -> bytes:
    """The whole frame of a reply to request number `opaque`."""
    ext = headers.encode(reply.header) if reply.header is not None else {}
    if reply.ext:
        ext.update(reply.ext)
    return commands.encode(
        Command(
            code=int(reply.code),
            ext=ext,
            body=reply.body,
            flag=FLAG_RESPONSE,
            opaque=opaque,
            remark=reply.remark,
        )
    )


Processor = Callable[[Call, Any], Reply | Deferred]


def requests_in(peer: Peer, frames: Iterable[RawFrame]) -> Iterator[Command]:
    """The requests in some frames; a header that does not parse closes the connection, and ends them."""
    for frame in frames:
        try:
            command = commands.decode(frame)
        except HeaderError as error:
            log.warning("closing connection of %s: %s", peer.address, error)
            peer.close()
            return
        if not command.is_response:
            yield command


def _nothing() -> None:
    """Nobody has anything to settle."""


def _all_welcome(_code: int) -> RequestRefused | None:
    """No request is refused for its code."""
    return None


class RequestTable:
    """Request code to header type and processor."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Errors that are not answers: the owner of the table deals with them.
        self.passed_on: tuple[type[Exception], ...] = ()
        #: Called when all requests of one receive were handled, by who writes several of them at once.
        self.settle: Callable[[], None] = _nothing
        #: Why requests with a code are refused now, whatever they say.
        self.refusal: Callable[[int], RequestRefused | None] = _all_welcome
        self._entries: dict[int, tuple[type[Any] | None, Processor]] = {}

    def add(
        self, code: int, header: type[H] | None, process: Callable[[Call, H], Reply | Deferred]
    ) -> None:
        """Let `process` answer requests with `code`; its second argument is None without a header type."""
        assert code not in self._entries, f"request code {code} has two processors"
        self._entries[int(code)] = (header, process)

    @property
    def codes(self) -> list[int]:
        """All request codes that have a processor."""
        return sorted(self._entries)

    def handle(self, peer: Peer, command: Command, now_ms: int) -> None:
        """Answer one request; whatever goes wrong stays with this request."""
        call = Call(peer, command, now_ms)
        reply = self.process(call)
        if reply is not DEFERRED:
            call.respond(reply)

    def process(self, call: Call) -> Reply | Deferred:
        """The reply to a call. Errors of the request become replies; :attr:`passed_on` errors get out."""
        entry = self._entries.get(call.command.code)
        if entry is None:
            return Reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"request code {call.command.code} is not supported by this {self.name}",
            )
        header_type, process = entry
        try:
            refused = self.refusal(call.command.code)
            if refused is not None:
                return Reply(refused.code, remark=refused.remark)
            header = headers.decode(header_type, call.command.ext) if header_type else None
            return process(call, header)
        except RequestRefused as refusal:
            return Reply(refusal.code, remark=refusal.remark)
        except (HeaderError, BodyError) as error:
            return Reply(ResponseCode.SYSTEM_ERROR, remark=str(error))
        except self.passed_on:
            raise
        except Exception as error:
            log.exception(
                "%s: request code %d from %s failed",
                self.name,
                call.command.code,
                call.peer.address,
            )
            return Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")
