"""The time for which popped messages are ours: renewed while they wait here, full when they are handed out.

In: messages of the :class:`.Inbox`. Out: renewed ones, and what nobody got given back at the end. Called by
:mod:`.simple`, in whose task groups it runs.

Failure policy: a message whose time cannot be renewed is dropped here and logged; the broker gives it to somebody else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import anyio
import anyio.abc

from trio_mq.client.inbox import Inbox
from trio_mq.client.popcalls import PopCalls
from trio_mq.client.popping import PoppedMessage
from trio_mq.errors import TrioMQError

log = logging.getLogger("trio_mq.client")

#: Messages that nobody has settled are given back for so long when the block is left.
CLOSE_GRACE_S = 1.5
#: How often the time of messages that wait in the client is looked at, at least.
TEND_INTERVAL_S = 1.0
#: A message's time is renewed when it is handed out unless this part of it is left.
FRESH: Final = 0.9


class InvisibleTimes:
    """See the module. `tasks` outlive a receive; `invisible_s` is the consumer's own."""

    def __init__(
        self, tasks: anyio.abc.TaskGroup, inbox: Inbox, calls: PopCalls, invisible_s: float
    ) -> None:
        self._tasks = tasks
        self._inbox = inbox
        self._calls = calls
        self._invisible_s = invisible_s
        #: Messages that the application has got and not settled.
        self._in_hand: set[PoppedMessage] = set()

    async def hand_out(self, found: list[PoppedMessage], invisible_s: float) -> list[PoppedMessage]:
        """Messages with nearly all of the time that was asked for: they may have waited here.

        Cancelled, it puts them back.
        """
        now_s = anyio.current_time()
        old = [
            message
            for message in found
            if not FRESH < (message.expires_s - now_s) / invisible_s <= 2 - FRESH
        ]
        if old:
            lost: set[PoppedMessage] = set()
            done = anyio.Event()
            # In a task of the client: were it cancelled half way, nobody would know the new receipts.
            self._tasks.start_soon(self._renew_all, old, invisible_s, lost, done)
            try:
                await done.wait()
            except BaseException:
                self._inbox.put_back(found)
                raise
            found = [message for message in found if message not in lost]
        self._in_hand.update(found)
        return found

    def settled(self, message: PoppedMessage) -> None:
        """The application is done with a message."""
        self._in_hand.discard(message)

    async def tend(self) -> None:
        """Renew the time of messages that wait, as long as the application comes back for them in time.

        Who handles a message for longer than its invisible time has lost it, and need not keep the others.
        """
        while True:
            await anyio.sleep(min(TEND_INTERVAL_S, self._invisible_s / 4))
            now_s = anyio.current_time()
            self._in_hand = {message for message in self._in_hand if message.expires_s > now_s}
            old = self._inbox.take_old(now_s)
            if not old:
                continue
            is_left = now_s - self._inbox.last_asked_s > self._invisible_s
            if is_left and not self._inbox.wants:
                await self.give_back(old)
                continue
            lost: set[PoppedMessage] = set()
            try:
                await self._renew_all(old, self._invisible_s, lost, anyio.Event())
            finally:
                self._inbox.put_back([message for message in old if message not in lost])

    async def _renew_all(
        self,
        messages: Iterable[PoppedMessage],
        invisible_s: float,
        lost: set[PoppedMessage],
        done: anyio.Event,
    ) -> None:
        async with anyio.create_task_group() as asking:
            for message in messages:
                asking.start_soon(self._renew, message, invisible_s, lost)
        done.set()

    async def _renew(
        self, message: PoppedMessage, invisible_s: float, lost: set[PoppedMessage]
    ) -> None:
        try:
            await self._calls.change_invisible(message, invisible_s)
        except TrioMQError as error:
            log.warning("message %s waited too long and comes again: %s", message.message_id, error)
            lost.add(message)

    async def give_back_all(self) -> None:
        """Let other consumers have what the application has not settled."""
        await self.give_back([*self._inbox.messages, *self._in_hand])

    async def give_back(self, messages: Iterable[PoppedMessage]) -> None:
        """Let other consumers have messages, soon and within a time limit."""
        with anyio.move_on_after(CLOSE_GRACE_S, shield=True):
            await self._renew_all(messages, 0.0, set(), anyio.Event())
