"""The one error tree of trio-mq. Every class says who is to blame and which exit code a command ends with.

::

    TrioMQError                      1
    ├── ProtocolError                1
    │   ├── LocalProtocolError       1   we tried to send something that the format cannot hold
    │   └── RemoteProtocolError      1   the peer's bytes break the format
    │       ├── FrameError           1   the connection cannot go on
    │       ├── HeaderError          1   one request cannot be read, or lacks a field
    │       └── BodyError            1   one body cannot be read
    ├── StoreError                   20
    │   ├── StoreLocked              21  another process owns the store
    │   ├── StoreDamaged             22  files contradict each other, a start would lose data
    │   ├── StoreFull                23  no room on the disk
    │   └── ForeignFormat            24  not a store, or one with other sizes than configured
    ├── RequestRefused               1   a request was understood and is refused, with the peers' response code
    │   └── PeerRefused              1   the same, told to our client: names the address and what was asked for
    ├── PeerUnavailable              30  nobody answers at an address
    ├── ClientError                  1   a client was asked for what it cannot do
    │   ├── NotOpen                  1   used before its `async with` block, or after it
    │   ├── NoRoute                  32  no broker of the cluster serves the topic
    │   ├── SendFailed               33  no try of a send came through; holds the failure of each
    │   ├── BrokersFailed            34  some brokers did what all were asked for, and others did not
    │   ├── ReceiptExpired           1   a popped message was settled after its invisible time
    │   ├── NoReply                  1   nobody answered a request in time
    │   └── HandlerError             1   a handler returned what means nothing
    ├── AddressInUse                 31  a port that we should listen on is taken
    └── ConfigError                  2   a setting, a file of settings or a command line is wrong

Exit codes are part of the public interface: ``docs/reference/exit-codes.md``.
"""

from __future__ import annotations

from typing import ClassVar

import attrs


class TrioMQError(Exception):
    """Root of all errors that trio-mq raises on purpose."""

    exit_code: ClassVar[int] = 1


class ProtocolError(TrioMQError):
    """Bytes and values do not fit together."""


class LocalProtocolError(ProtocolError):
    """A value of ours cannot be written in the format."""


class RemoteProtocolError(ProtocolError):
    """Bytes from outside break the format."""


class FrameError(RemoteProtocolError):
    """A frame lies about its length or its kind; the connection has to be closed."""


class HeaderError(RemoteProtocolError):
    """A command header does not parse or lacks a required field."""


class BodyError(RemoteProtocolError):
    """A command body does not parse."""


class StoreError(TrioMQError):
    """Something is wrong with the files of a store."""

    exit_code = 20


class StoreLocked(StoreError):
    """Another process has the store open."""

    exit_code = 21

    def __init__(self, text: str, *, owner: int | None = None) -> None:
        super().__init__(text)
        #: The id of that process, where it is known.
        self.owner = owner


class StoreDamaged(StoreError):
    """Files contradict each other in a way that a start would not survive without loss."""

    exit_code = 22


class StoreFull(StoreError):
    """The disk has no room, or is over the configured limit."""

    exit_code = 23


class ForeignFormat(StoreError):
    """The path is not a store, or was written with other sizes than the settings say."""

    exit_code = 24


class RequestRefused(TrioMQError):
    """A request that is answered with an error code of the peers.

    ``code`` is a :class:`trio_mq.protocol.codes.ResponseCode`, the text becomes the remark of the reply.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark


class PeerUnavailable(TrioMQError):
    """No connection to an address, or no answer in time."""

    exit_code = 30


class PeerRefused(RequestRefused):
    """A peer answered a client of ours with an error code.

    `address` is ``host:port``, `what` names the request and its topic or group; :attr:`code` and :attr:`remark` are
    the peer's.
    """

    def __init__(self, code: int, remark: str | None, *, address: str, what: str) -> None:
        super().__init__(code, remark or "no reason given")
        self.address = address
        self.what = what

    def __str__(self) -> str:
        """One line: who refused what with which code, and the peer's own words."""
        return f"{self.address} refused {self.what} with code {self.code}: {self.remark}"


class ClientError(TrioMQError):
    """A client was asked for something that it cannot do."""


class NotOpen(ClientError):
    """A client was used before its block, or after it."""


class NoRoute(ClientError):
    """No broker serves a topic, or none in the way that was asked for."""

    exit_code = 32

    def __init__(self, text: str, *, topic: str) -> None:
        super().__init__(text)
        self.topic = topic


class SendFailed(ClientError):
    """A send failed at every broker that was tried. `failures` holds the error of each try, in order."""

    exit_code = 33

    def __init__(self, text: str, *, failures: tuple[TrioMQError, ...] = ()) -> None:
        super().__init__(text)
        self.failures = failures

    @property
    def code(self) -> int | None:
        """The response code of the last try, None when no broker answered it."""
        last = self.failures[-1] if self.failures else None
        return last.code if isinstance(last, RequestRefused) else None


@attrs.frozen
class BrokerFailure:
    """A broker, or name server, that did not do what an administrator asked of all of them."""

    name: str
    address: str
    error: TrioMQError

    def __str__(self) -> str:
        """One line with the address."""
        text = str(self.error)
        return text if self.address in text else f"{self.name} at {self.address}: {text}"


class BrokersFailed(ClientError):
    """Some brokers did what all of them were asked for, and others did not: see `done` and `failures`."""

    exit_code = 34

    def __init__(
        self, text: str, *, done: tuple[str, ...], failures: tuple[BrokerFailure, ...]
    ) -> None:
        super().__init__(text)
        #: Addresses of those that did it.
        self.done = done
        self.failures = failures

    @property
    def code(self) -> int | None:
        """The response code of the first refusal, None when nobody refused."""
        refusals = (f.error for f in self.failures if isinstance(f.error, RequestRefused))
        first = next(refusals, None)
        return first.code if first is not None else None


class ReceiptExpired(ClientError):
    """A popped message was settled when its invisible time was over: another consumer may have it by now."""


class NoReply(ClientError):
    """Nobody answered a request in time. `correlation_id` is how the answer would have named it."""

    def __init__(self, text: str, *, correlation_id: str) -> None:
        super().__init__(text)
        self.correlation_id = correlation_id


class HandlerError(ClientError):
    """A function of the application returned a value that means nothing."""


class AddressInUse(TrioMQError):
    """A listening address is taken by another process."""

    exit_code = 31


class ConfigError(TrioMQError):
    """A setting is unknown, out of range or contradicts another one."""

    exit_code = 2
