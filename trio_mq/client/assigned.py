"""The queues that a client holds now: each with its messages, its pull task and its position.

In: queues that come and go (from :mod:`.rebalance`, or as an application assigns them). Out: messages that are ready,
positions in an offset store. Owned by a consumer; its tasks live in the task group that it is given. Source of the
rules: Apache RebalanceImpl (processQueueTable), RebalancePushImpl.

Failure policy: a queue whose start cannot be learnt is tried again and again by its own task, and holds up no other
queue. Its cause is logged once. Positions that cannot be stored are logged, and stored with the next round.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

import anyio
import anyio.abc
import attrs

from trio_mq.client.offsets import OffsetStore
from trio_mq.client.processqueue import FlowLimits, ProcessQueue
from trio_mq.client.ready import Ready
from trio_mq.errors import PeerUnavailable, TrioMQError
from trio_mq.protocol.bodies import MessageQueue

log = logging.getLogger("trio_mq.client")

#: Between tries to learn where a queue begins, and to get it at all.
START_AGAIN_S = 1.0

#: Where a queue begins; raises what :func:`.start_offset` raises.
Start = Callable[[MessageQueue], Awaitable[int]]


class Fetch(Protocol):
    """What pulls a queue: :class:`.Fetcher`."""

    async def run(self, queue: ProcessQueue) -> int | None:
        """Until it is dropped (None), or has to begin anew at an offset."""
        ...


class Custody(Protocol):
    """What has to be true before a queue is used, and done after; orderly consumption locks queues at their broker."""

    async def admit(self, queue: MessageQueue) -> bool:
        """Whether the queue may be used; asked again in :data:`START_AGAIN_S` when not."""
        ...

    def may_commit(self, queue: MessageQueue) -> bool:
        """Whether a position may be stored now."""
        ...

    async def forsake(self, queue: MessageQueue) -> None:
        """A queue goes before it was used: let others have it."""
        ...

    async def release(self, queue: ProcessQueue, commit: Callable[[], Awaitable[None]]) -> None:
        """A dropped queue goes: wait for what runs, `commit` its position, and let others have it."""
        ...


@attrs.define(eq=False)
class _Held:
    """A queue that is ours. `process` is None until its start is known."""

    queue: MessageQueue
    scope: anyio.CancelScope = attrs.field(factory=anyio.CancelScope)
    process: ProcessQueue | None = None
    #: Set after the first try to learn its start, however that ended.
    tried: anyio.Event = attrs.field(factory=anyio.Event)


class AssignedQueues:
    """See the module. `shown` gives a queue the name that the application uses."""

    def __init__(
        self,
        tasks: anyio.abc.TaskGroup,
        fetcher: Fetch,
        store: OffsetStore,
        ready: Ready,
        *,
        start: Start,
        limits: FlowLimits | None = None,
        shown: Callable[[MessageQueue], MessageQueue] = lambda queue: queue,
        keeps_positions: bool = True,
    ) -> None:
        self._tasks = tasks
        self._fetcher = fetcher
        self._store = store
        self._ready = ready
        self._start = start
        self._limits = limits or FlowLimits()
        self._shown = shown
        #: What has to be done before and after; set it before the first queue is taken.
        self.custody: Custody | None = None
        #: False: positions are stored only when the application says so.
        self._keeps_positions = keeps_positions
        self._held: dict[MessageQueue, _Held] = {}
        self._paused: set[MessageQueue] = set()
        #: Queues whose last position is on its way to the store.
        self._leaving: dict[MessageQueue, anyio.Event] = {}
        self._failing: set[MessageQueue] = set()

    # -- what is held

    @property
    def queues(self) -> frozenset[MessageQueue]:
        """All queues that are ours, those that are not pulled yet included."""
        return frozenset(self._held)

    def process_queues(self) -> list[ProcessQueue]:
        """Those whose start is known."""
        return [held.process for held in self._held.values() if held.process is not None]

    def process_queue(self, queue: MessageQueue) -> ProcessQueue | None:
        """One of them, None when it is not ours or not started."""
        held = self._held.get(queue)
        return None if held is None else held.process

    # -- coming and going

    def take(self, queues: Iterable[MessageQueue]) -> None:
        """These are ours from now on; a task for each learns where to begin and pulls."""
        for queue in queues:
            if queue not in self._held:
                self._serve_from(queue, None)

    def give_up(self, queues: Iterable[MessageQueue]) -> None:
        """These are not ours any more: nothing of them is handed out, their positions are stored in the background."""
        for queue in list(queues):
            held = self._held.pop(queue, None)
            if held is None:
                continue
            held.scope.cancel()
            held.tried.set()
            self._failing.discard(queue)
            if held.process is not None:
                held.process.drop()
                self._leaving[queue] = anyio.Event()
                self._tasks.start_soon(self._let_go, held.process)
            elif self.custody is not None:
                self._tasks.start_soon(self.custody.forsake, queue)

    async def left(self) -> None:
        """Wait until the positions of all queues that were given up are stored, or cannot be."""
        for leaving in list(self._leaving.values()):
            await leaving.wait()

    def restart(self, queue: MessageQueue) -> None:
        """It may not be ours any more: ask again, and begin anew at the stored position.

        Not where this client got to, even if that is further: if somebody else has read some of it once more, the
        others have to follow.
        """
        held = self._held.pop(queue)
        held.scope.cancel()
        if held.process is not None:
            held.process.drop()
        self._serve_from(queue, None)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Begin anew at an offset. What was handed out and is not settled yet changes nothing any more."""
        held = self._held.pop(queue)
        held.scope.cancel()
        held.tried.set()
        if held.process is not None:
            held.process.drop()
        self._serve_from(queue, offset)

    async def started(self) -> None:
        """Wait until each queue was tried once: then positions are fixed, unless a broker does not answer."""
        for held in list(self._held.values()):
            await held.tried.wait()

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Neither pull nor hand out messages of these."""
        for queue in queues:
            self._paused.add(queue)
            process = self.process_queue(queue)
            if process is not None:
                process.pause()

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with these."""
        for queue in queues:
            self._paused.discard(queue)
            process = self.process_queue(queue)
            if process is not None:
                process.resume()
                self._ready.add(process)

    # -- positions

    def positions(self) -> dict[MessageQueue, int]:
        """What may be committed of each queue."""
        return {
            process.queue: process.position
            for process in self.process_queues()
            if self.custody is None or self.custody.may_commit(process.queue)
        }

    async def commit(
        self, *, wait: bool, positions: Mapping[MessageQueue, int] | None = None
    ) -> dict[MessageQueue, TrioMQError]:
        """Store positions, by default of all queues; the failures. With `wait` it is sure that they are stored."""
        found = self.positions() if positions is None else positions
        return await self._store.write(found, wait=wait) if found else {}

    async def commit_quietly(self, *, wait: bool = False) -> set[str]:
        """The same; failures are logged, once for each queue until it works again. Names of brokers that are silent."""
        failures = await self.commit(wait=wait)
        self._note_failures(failures)
        return {
            queue.broker_name
            for queue, failure in failures.items()
            if isinstance(failure, PeerUnavailable)
        }

    def _note_failures(self, failures: Mapping[MessageQueue, TrioMQError]) -> None:
        new = failures.keys() - self._failing
        for broker_name in sorted({queue.broker_name for queue in new}):
            queues = [queue for queue in failures if queue.broker_name == broker_name]
            log.warning("positions of %d queues at %s are not stored yet: %s", len(queues),
                        broker_name, failures[queues[0]])  # fmt: skip
        self._failing = set(failures)

    # -- tasks

    def _serve_from(self, queue: MessageQueue, offset: int | None) -> None:
        held = self._held[queue] = _Held(queue)
        self._tasks.start_soon(self._serve, held, offset)

    async def _serve(self, held: _Held, offset: int | None) -> None:
        with held.scope:
            if offset is None:
                offset = await self._start_of(held)
            held.tried.set()
            while offset is not None:
                process = self._begin(held, offset)
                offset = await self._fetcher.run(process)
                if offset is not None:
                    process.drop()
                    if self._keeps_positions:
                        await self._store.write({held.queue: offset}, wait=False)

    def _begin(self, held: _Held, offset: int) -> ProcessQueue:
        process = ProcessQueue(held.queue, offset, self._limits, self._shown(held.queue))
        process.paused = held.queue in self._paused
        held.process = process
        held.tried.set()
        return process

    async def _start_of(self, held: _Held) -> int:
        """Where a queue begins, however long it takes to learn that."""
        queue, told = held.queue, ""
        while True:
            leaving = self._leaving.get(queue)
            if leaving is not None:
                await leaving.wait()  # it was ours a moment ago: begin where we left off
            try:
                if self.custody is None or await self.custody.admit(queue):
                    return await self._start(queue)
                failure = "somebody else holds it"
            except TrioMQError as error:
                failure = str(error)
            held.tried.set()
            if failure != told:
                log.warning("%s cannot be consumed yet, tried again: %s", queue, failure)
                told = failure
            await anyio.sleep(START_AGAIN_S)

    async def _let_go(self, process: ProcessQueue) -> None:
        async def commit() -> None:
            if self._keeps_positions:
                queue, position = process.queue, process.position
                for failure in (await self._store.write({queue: position}, wait=True)).values():
                    log.info("position %d of %s, which is not ours any more, is not stored: %s", position,
                             queue, failure)  # fmt: skip

        try:
            if self.custody is None:
                await commit()
            else:
                await self.custody.release(process, commit)
        finally:
            self._leaving.pop(process.queue).set()
