"""A small blocking client of the remoting protocol, on the project's own codecs, for one process that talks to another.

In: requests as header values. Out: commands and stored messages. Many requests may be under way at once
(:meth:`Client.pipeline`), as the loads of these tests want it. Other codecs are tried by ``tests/interop``.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterable, Iterator
from typing import Self

from trio_mq.protocol import bodies, command, headers
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader
from trio_mq.protocol.record import StoredMessage, decode

RECEIVE_BYTES = 1 << 18
_opaques = itertools.count(1)


class Gone(Exception):
    """The other side closed the connection."""


class Client:
    """One connection."""

    def __init__(self, address: str, timeout_s: float = 20.0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = FrameReader()
        self._read: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def next(self) -> Command:
        """The next command of any kind; Gone, or TimeoutError when nothing comes."""
        while not self._read:
            try:
                data = self.socket.recv(RECEIVE_BYTES)
            except ConnectionError as error:
                raise Gone(str(error)) from error
            if not data:
                raise Gone("closed by the other side")
            self._read = [command.decode(frame) for frame in self._reader.feed(data)]
            assert self._reader.failure is None
        return self._read.pop(0)

    def post(self, code: int, header: object = None, body: bytes = b"") -> int:
        """Send a request without waiting; returns its number."""
        number = next(_opaques)
        ext = {} if header is None else headers.encode(header)
        self.write(command.encode(Command(code, ext, body, opaque=number)))
        return number

    def write(self, data: bytes) -> None:
        """Send bytes as they are."""
        try:
            self.socket.sendall(data)
        except ConnectionError as error:
            raise Gone(str(error)) from error

    def call(self, code: int, header: object = None, body: bytes = b"") -> Command:
        """The answer to one request; requests of the broker meanwhile are dropped."""
        number = self.post(code, header, body)
        while True:
            answer = self.next()
            if answer.is_response and answer.opaque == number:
                return answer

    def pipeline(self, frames: Iterable[bytes], window: int) -> Iterator[Command]:
        """Keep `window` requests under way; answers as they come."""
        waiting = 0
        left = iter(frames)
        while True:
            some = list(itertools.islice(left, window - waiting))
            if some:
                self.write(b"".join(some))
                waiting += len(some)
            if not waiting:
                return
            yield self.next()
            waiting -= 1
            # Half a window goes out at once, so that a system call is worth its while.
            while waiting > window // 2:
                yield self.next()
                waiting -= 1

    # -- what a producer and a consumer do

    def send(self, topic: str, body: bytes, queue_id: int = 0, props: str = "") -> Command:
        """The answer to one message sent."""
        return self.call(RequestCode.SEND_MESSAGE_V2, send_header(topic, queue_id, props), body)

    def sent(self, topic: str, body: bytes, queue_id: int = 0, props: str = "") -> int:
        """Queue offset of one message that was taken."""
        answer = self.send(topic, body, queue_id, props)
        assert answer.code == ResponseCode.SUCCESS, answer
        return int(answer.ext["queueOffset"])

    def pull(self, topic: str, queue_id: int = 0, offset: int = 0, **fields: object) -> Command:
        """The answer to one pull that does not wait."""
        return self.call(RequestCode.PULL_MESSAGE, pull_header(topic, queue_id, offset, **fields))

    def all_of(self, topic: str, queue_id: int = 0, offset: int = 0) -> list[StoredMessage]:
        """All messages of a queue from an offset on."""
        found: list[StoredMessage] = []
        while True:
            answer = self.pull(topic, queue_id, offset)
            if answer.code != ResponseCode.SUCCESS:
                return found
            found += messages(answer.body)
            offset = int(answer.ext["nextBeginOffset"])

    def max_offset(self, topic: str, queue_id: int = 0) -> int:
        """Where the next message of a queue goes."""
        answer = self.call(
            RequestCode.GET_MAX_OFFSET, headers.GetMaxOffsetRequest(topic=topic, queue_id=queue_id)
        )
        assert answer.code == ResponseCode.SUCCESS, answer
        return int(answer.ext["offset"])

    def route(self, topic: str) -> bodies.TopicRouteData:
        """The route that a name server has."""
        answer = self.call(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, headers.GetRouteInfoRequest(topic=topic)
        )
        assert answer.code == ResponseCode.SUCCESS, answer
        return bodies.decode(bodies.TopicRouteData, answer.body)

    def create(self, topic: str, queues: int = 1) -> None:
        """Create a topic."""
        header = headers.CreateTopicRequest(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=False,
        )
        answer = self.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        assert answer.code == ResponseCode.SUCCESS, answer


def send_header(topic: str, queue_id: int = 0, props: str = "") -> headers.SendMessageRequestV2:
    """Header of SEND_MESSAGE_V2, which makes a topic of four queues if there is none."""
    return headers.SendMessageRequestV2(
        producer_group="PG",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=props,
        reconsume_times=0,
        unit_mode=False,
        batch=False,
    )


def pull_header(
    topic: str, queue_id: int, offset: int, *, wait_ms: int = 0, most: int = 32, group: str = "CG"
) -> headers.PullMessageRequest:
    """Header of PULL_MESSAGE for all tags; with `wait_ms` a long poll."""
    return headers.PullMessageRequest(
        consumer_group=group,
        topic=topic,
        queue_id=queue_id,
        queue_offset=offset,
        max_msg_nums=most,
        sys_flag=6 if wait_ms else 4,
        commit_offset=0,
        suspend_timeout_millis=wait_ms,
        sub_version=1,
        subscription="*",
        expression_type="TAG",
    )


def messages(body: bytes) -> list[StoredMessage]:
    """The messages in the body of an answer."""
    found: list[StoredMessage] = []
    at = 0
    while at < len(body):
        message = decode(body, at)
        found.append(message)
        at += message.size
    return found
