"""Reading a topic without being a consumer: from one place of its queues to another, or on and on.

In: queues with the offsets where reading begins and ends, what is wanted of them. Out: :class:`Reading`, an async
iterator of messages, in the order in which brokers stored them. Made by :meth:`trio_mq.Admin.read`. Nothing is
committed, no group is joined. Source of the rules: mqadmin's printMsg and consumeMessage, which pull with the group
TOOLS_CONSUMER; Apache PullMessageProcessor for the answers.

Failure policy: a broker that fails is left out from then on and named in `failures`; the messages of the others are
all there. A reading that follows tries it again every second instead, and tells so in the log, once.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Self

import anyio
import attrs

from trio_mq.client.admin.records import messages_in
from trio_mq.client.lifetime import only
from trio_mq.client.messages import ReceivedMessage
from trio_mq.client.subscription import Subscription
from trio_mq.errors import (
    BrokerFailure,
    PeerRefused,
    PeerUnavailable,
    ProtocolError,
    TrioMQError,
)
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import PullFlag, ResponseCode
from trio_mq.protocol.command import Command

log = logging.getLogger("trio_mq.client")

#: The group that brokers keep for tools (Apache: MixAll.TOOLS_CONSUMER_GROUP).
TOOLS_GROUP = "TOOLS_CONSUMER"
#: Messages of one request; Apache's brokers give 32 at most, as they are configured.
BATCH = 32
#: Between two looks for new messages: at first, and after a while without any. No request waits at a broker, so that
#: nothing of a reading that was left stays behind.
IDLE_S = (0.05, 0.5)
RETRY_S = 1.0
ANSWERS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)

#: Sends one pull request to the broker of a queue.
Pull = Callable[[MessageQueue, headers.PullMessageRequest], Awaitable[Command]]
_EXPECTED = (PeerUnavailable, PeerRefused, ProtocolError)


@attrs.define(eq=False)
class Cursor:
    """A place in one queue. Without an `end` it goes on for ever."""

    queue: MessageQueue
    address: str
    next: int
    end: int | None
    messages: deque[ReceivedMessage] = attrs.field(factory=deque)
    failed: bool = False

    @property
    def is_done(self) -> bool:
        """Whether nothing more can come."""
        return self.failed or (self.end is not None and self.next >= self.end)

    def take(
        self,
        code: int,
        reply: headers.PullMessageReply,
        found: Iterable[ReceivedMessage],
        wanted: Subscription,
    ) -> bool:
        """Go on by what a broker answered; whether there was anything to go on by."""
        begin = self.next
        if reply.next_begin_offset > begin:
            self.next = reply.next_begin_offset
        elif code == ResponseCode.PULL_OFFSET_MOVED:  # the queue ends before the place asked for
            self.next = reply.next_begin_offset if self.end is None else self.end
        elif code == ResponseCode.PULL_NOT_FOUND and self.end is not None:
            self.next = self.end
        self.messages += [
            message
            for message in found
            if message.queue_offset >= begin
            and (self.end is None or message.queue_offset < self.end)
            and wanted.wants(message)
        ]
        return self.next != begin


def pull_request(
    queue: MessageQueue, offset: int, wanted: Subscription, count: int = BATCH
) -> headers.PullMessageRequest:
    """A request for messages of a queue, answered at once."""
    return headers.PullMessageRequest(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=count,
        sys_flag=int(PullFlag.SUBSCRIPTION),
        commit_offset=0,
        suspend_timeout_millis=0,
        sub_version=0,
        subscription=wanted.expression,
        expression_type=wanted.expression_type,
    )


class Reading:
    """An async iterator of messages; see the module. It may be left at any time, and has no tasks of its own."""

    def __init__(
        self,
        pull: Pull,
        cursors: Iterable[Cursor],
        wanted: Subscription,
        failures: Iterable[BrokerFailure] = (),
    ) -> None:
        self._pull = pull
        self._cursors = list(cursors)
        self._wanted = wanted
        self._failures = {failure.name: failure for failure in failures}
        self._trouble: set[str] = set()
        self._idle_s = IDLE_S[0]

    @property
    def failures(self) -> tuple[BrokerFailure, ...]:
        """Brokers whose messages are not all there."""
        return tuple(self._failures.values())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        while True:
            empty = [c for c in self._cursors if not c.messages and not c.is_done]
            bounded = [cursor for cursor in empty if cursor.end is not None]
            if bounded:  # the next message may be in any of them
                await self._fill(bounded)
                continue
            ready = [cursor for cursor in self._cursors if cursor.messages]
            if ready:
                self._idle_s = IDLE_S[0]
                return min(ready, key=_stored).messages.popleft()
            if not empty:
                raise StopAsyncIteration
            await self._fill(empty)
            if not any(cursor.messages for cursor in empty):
                await anyio.sleep(self._idle_s)
                self._idle_s = min(2 * self._idle_s, IDLE_S[1])

    async def _fill(self, cursors: list[Cursor]) -> None:
        """Ask for more of all of them at the same time."""
        try:
            async with anyio.create_task_group() as asking:
                for cursor in cursors:
                    asking.start_soon(self._ask, cursor)
        except BaseExceptionGroup as group:
            raise only(group) from None

    async def _ask(self, cursor: Cursor) -> None:
        request = pull_request(cursor.queue, cursor.next, self._wanted)
        try:
            answer = await self._pull(cursor.queue, request)
            reply = headers.decode(headers.PullMessageReply, answer.ext)
            is_found = answer.code == ResponseCode.SUCCESS
            found = messages_in(answer.body, cursor.queue.broker_name) if is_found else []
        except _EXPECTED as error:
            await self._failed(cursor, error)
            return
        self._trouble.discard(cursor.address)
        if not cursor.take(answer.code, reply, found, self._wanted):
            await anyio.sleep(IDLE_S[0])

    async def _failed(self, cursor: Cursor, error: TrioMQError) -> None:
        failure = BrokerFailure(cursor.queue.broker_name, cursor.address, error)
        if cursor.end is not None:
            cursor.failed = True
            self._failures.setdefault(failure.name, failure)
            return
        if cursor.address not in self._trouble:
            self._trouble.add(cursor.address)
            log.warning("reading goes on without it until it answers: %s", failure)
        await anyio.sleep(RETRY_S)


def _stored(cursor: Cursor) -> tuple[int, MessageQueue]:
    return cursor.messages[0].record.store_timestamp_ms, cursor.queue
