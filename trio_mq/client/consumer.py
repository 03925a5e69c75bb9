"""A consumer: what an application receives with.

In: subscriptions. Out: messages, by iteration or to a handler, and the errors of :mod:`trio_mq.errors`. The client of
applications; how a group shares queues is :mod:`.member`, how messages are settled :mod:`.concurrent`. Source of the
names, defaults and rules: Apache DefaultMQPushConsumer.

Failure policy: what brokers and networks do never ends a consumer; it goes on when they do. Only the application's own
mistakes raise.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Literal, Self

import anyio

from trio_mq.client.callbacks import Asked, BrokerQuestions
from trio_mq.client.concurrent import Handler, HandlerRun, Settling
from trio_mq.client.fetch import PullSettings
from trio_mq.client.lifetime import Owner
from trio_mq.client.locks import LOCK_INTERVAL_S, QueueLocks
from trio_mq.client.member import LAST_COMMIT_S, Member, MemberSpec, Where, open_member
from trio_mq.client.messages import ReceivedMessage
from trio_mq.client.offsets import check_from_where
from trio_mq.client.options import ClientOptions, Credentials, check_group, check_topic
from trio_mq.client.orderly import OrderedReady, Orderly, orderly_limit
from trio_mq.client.processqueue import FlowLimits
from trio_mq.client.ready import Ready
from trio_mq.client.sendback import SendBack
from trio_mq.client.strategies import Strategy, average, strategy_of
from trio_mq.client.subscription import Sql, parse
from trio_mq.errors import ConfigError
from trio_mq.protocol.bodies import MessageModel, MessageQueue

#: Most messages of one pull that any broker gives.
MAX_BATCH = 1024
#: The instance name of broadcasting consumers (Apache): their offsets are found again by it.
BROADCASTING_INSTANCE = "DEFAULT"
_MODELS = {"clustering": MessageModel.CLUSTERING, "broadcasting": MessageModel.BROADCASTING}


class Consumer(Owner):
    """Receives messages of a group, inside its ``async with`` block; iterate over it, or :meth:`run` a handler.

    `nameserver` is ``"host:port;host:port"`` or several such texts. `subscribe` maps topics to ``"*"``, to tags
    (``"a || b"``) or to :class:`Sql`. In a ``"clustering"`` group a message goes to one member, in a
    ``"broadcasting"`` one to each.
    A group without offsets begins where `from_where` says: ``"last"`` (only what comes now), ``"first"``, or a time.
    `strategy` shares out queues: ``"average"``, ``"by_circle"``, ``"consistent_hash"``, or a function. Of each queue at
    most about `pull_threshold` messages, `pull_threshold_bytes` and `max_span` offsets are held. A message that is
    worked on for longer than `consume_timeout_s` is asked for again. Positions are stored every `auto_commit_s`, and
    when the block is left; handlers that run then may finish within `close_grace_s`. Broadcasting consumers keep them
    in a file below `offsets_dir`. Times are seconds.

    With `orderly`, messages of one queue are handed out one at a time, in order, by one member of the group: a failed
    one comes again after a second, before the others. Locks of queues are renewed every `lock_interval_s`.
    """

    def __init__(
        self,
        nameserver: str | Iterable[str],
        group: str,
        *,
        subscribe: Mapping[str, str | Sql],
        model: Literal["clustering", "broadcasting"] = "clustering",
        from_where: Literal["last", "first"] | datetime = "last",
        strategy: str | Strategy = average,
        pull_batch_size: int = 32,
        pull_threshold: int = 1000,
        pull_threshold_bytes: int = 100 * 1024 * 1024,
        max_span: int = 2000,
        orderly: bool = False,
        lock_interval_s: float = LOCK_INTERVAL_S,
        max_reconsume_times: int = -1,
        consume_timeout_s: float = 900.0,
        auto_commit_s: float = 5.0,
        offsets_dir: str | os.PathLike[str] | None = None,
        close_grace_s: float = 10.0,
        namespace: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        credentials: Credentials | None = None,
        start_timeout_s: float = 10.0,
        call_timeout_s: float = 3.0,
    ) -> None:
        self.group = check_group(group)
        for topic, wanted in subscribe.items():
            parse(check_topic(topic), wanted)
        for name, number, least, most in (
            ("pull_batch_size", pull_batch_size, 1, MAX_BATCH),
            ("pull_threshold", pull_threshold, 1, None),
            ("pull_threshold_bytes", pull_threshold_bytes, 1, None),
            ("max_span", max_span, 1, None),
            ("consume_timeout_s", consume_timeout_s, 0.001, None),
            ("lock_interval_s", lock_interval_s, 0.001, None),
            ("auto_commit_s", auto_commit_s, 0.001, None),
            ("close_grace_s", close_grace_s, 0, None),
        ):
            if number < least or (most is not None and number > most):
                limits = f"{least} or more" if most is None else f"{least} to {most}"
                raise ConfigError(f"{name}: {number} is not allowed; give {limits}")
        if model not in _MODELS:
            raise ConfigError(f"model: {model!r}; give 'clustering' or 'broadcasting'")
        if model == "broadcasting" and instance_name is None:
            instance_name = BROADCASTING_INSTANCE
        self._spec = MemberSpec(
            ClientOptions.of(
                nameserver, namespace=namespace, instance_name=instance_name, unit_name=unit_name,
                credentials=credentials, start_timeout_s=start_timeout_s, call_timeout_s=call_timeout_s,
            ),
            group,
            dict(subscribe),
            _MODELS[model],
            check_from_where(from_where),
            strategy_of(strategy),
            FlowLimits(pull_threshold, pull_threshold_bytes, None if orderly else max_span),
            PullSettings(pull_batch_size),
            auto_commit_s=auto_commit_s,
            offsets_dir=offsets_dir,
        )  # fmt: skip
        self._lock_interval_s = _lock_interval(lock_interval_s, model) if orderly else None
        self._max_reconsume_times = max_reconsume_times
        self._consume_timeout_s = consume_timeout_s
        self._close_grace_s = close_grace_s
        self._member: Member
        self._orderly: Orderly | None = None
        self._runs: set[HandlerRun] = set()

    def __repr__(self) -> str:
        return f"<Consumer of group {self.group}>"

    @asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        ready = OrderedReady() if self._lock_interval_s is not None else Ready()
        async with open_member(self._spec, ready) as member:
            self._member = member
            if isinstance(ready, OrderedReady):
                self._orderly = self._in_order(member, ready)
            else:
                settling = Settling(member.tasks, member.ready, self._send_back(member))
                member.settler = settling.of
                member.tasks.start_soon(
                    settling.watch_overdue, member.assigned.process_queues, self._consume_timeout_s
                )
            BrokerQuestions(
                Asked(
                    member.instance,
                    member.group,
                    member.assigned,
                    member.store,
                    is_orderly=self._orderly is not None,
                    runs=self._runs,
                )
            ).listen()
            await member.start()
            try:
                yield
            finally:
                await self._finish(member)

    def _send_back(self, member: Member) -> SendBack | None:
        if self._spec.is_broadcasting:
            return None
        return SendBack(member.instance, member.group, self._max_reconsume_times)

    def _in_order(self, member: Member, ready: OrderedReady) -> Orderly:
        """Let messages be handed out in order, and of locked queues only."""
        assert self._lock_interval_s is not None
        orderly = Orderly(
            member.tasks,
            QueueLocks(member.instance, member.group, self._lock_interval_s),
            ready,
            SendBack(member.instance, member.group, orderly_limit(self._max_reconsume_times)),
            max_reconsume_times=orderly_limit(self._max_reconsume_times),
            consume_timeout_s=self._consume_timeout_s,
        )
        member.settler = lambda queue: orderly
        member.assigned.custody = orderly
        member.tasks.start_soon(orderly.keep, member.assigned)
        return orderly

    async def _finish(self, member: Member) -> None:
        """Hand out nothing more, and wait for the handlers that run: positions are stored after them."""
        member.ready.close()
        with anyio.move_on_after(self._close_grace_s, shield=True):
            for run in list(self._runs):
                run.stop()
                await run.done.wait()
        if self._orderly is not None:
            with anyio.move_on_after(LAST_COMMIT_S, shield=True):
                await self._orderly.let_all_go(member.assigned)

    # -- messages

    def __aiter__(self) -> Self:
        self._check_open()
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message of any queue; settle it by ``async with message:``, or `ack` and `retry`.

        Ends when the consumer's block is left. Any number of tasks may iterate; each message goes to one of them.
        """
        message = self._member.ready.take_now() or await self._member.ready.next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def run(self, handler: Handler, concurrency: int = 8) -> None:
        """Call `handler` with each message, with up to `concurrency` at the same time; until cancelled or closed.

        An async handler runs as a task, a plain function in a worker thread, where it may block. It returns None, True
        or Outcome.ACK when the message is done, False or Outcome.RETRY to get it again later; an exception counts as
        the latter and is logged. Anything else ends the run with HandlerError. When cancelled, and when the block is
        left, handlers that run may finish within `close_grace_s`; then they are cancelled, and get their messages
        again after the next start.
        """
        self._check_open()
        if concurrency < 1:
            raise ConfigError(f"concurrency: {concurrency} is not allowed; give 1 or more")
        run = HandlerRun(self._member.ready, handler, concurrency, self._close_grace_s)
        self._runs.add(run)
        try:
            await run()
        finally:
            self._runs.discard(run)

    # -- queues and positions

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now, those of the group's retry topic included."""
        self._check_open()
        return frozenset(map(self._member.shown, self._member.assigned.queues))

    async def seek(self, queue: MessageQueue, where: Where) -> None:
        """Go on at an offset, ``"begin"``, ``"end"`` or a time; messages handed out before do not count any more.

        ClientError when the queue is not ours; PeerUnavailable, PeerRefused when its broker does not tell the offset.
        """
        self._check_open()
        found = self._member.own(queue)
        offset = await self._member.offset_of(found, where)
        self._member.assigned.seek(self._member.own(queue), offset)

    async def commit(self) -> None:
        """Store the positions of all queues now, and wait until brokers have them. Raises the first failure."""
        self._check_open()
        for failure in (await self._member.assigned.commit(wait=True)).values():
            raise failure

    def pause(self, *queues: MessageQueue) -> None:
        """Neither pull nor hand out messages of these queues, of all that are ours when none is given."""
        self._check_open()
        self._member.assigned.pause(self._given(queues))

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with these queues, with all when none is given."""
        self._check_open()
        self._member.assigned.resume(self._given(queues))

    async def lag(self) -> dict[MessageQueue, int]:
        """How many messages of each own queue are not settled. PeerUnavailable, PeerRefused from brokers."""
        self._check_open()
        return await self._member.lag()

    def _given(self, queues: tuple[MessageQueue, ...]) -> Iterable[MessageQueue]:
        return map(self._member.own, queues) if queues else self._member.assigned.queues

    # -- subscriptions

    async def subscribe(self, topic: str, wanted: str | Sql = "*") -> None:
        """Consume one more topic, or another part of one.

        NoRoute for a topic that nobody knows, PeerRefused when a broker does not take an SQL condition.
        """
        self._check_open()
        await self._member.subscribe(topic, wanted)

    async def unsubscribe(self, topic: str) -> None:
        """Consume a topic no more."""
        self._check_open()
        await self._member.unsubscribe(topic)


def _lock_interval(lock_interval_s: float, model: str) -> float:
    if model == "broadcasting":
        raise ConfigError(
            "orderly: a broadcasting group shares no queues; leave one of the two out"
        )
    return lock_interval_s
