"""Where a group is in a queue: offsets that brokers keep, and where a group without one begins.

In: queues, positions. Out: stored offsets, start offsets. Called by :mod:`.assigned`; the store of broadcasting
consumers, :mod:`.localoffsets`, has the same face. Source of the rules: Apache RemoteBrokerOffsetStore,
RebalancePushImpl.computePullFromWhere.

Failure policy: a broker that does not answer costs only its own queues; the caller hears of each and tries again. But
first the route is asked for again, and another broker that it names then is asked: while there is no master, a slave
keeps the offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Literal, Protocol

import anyio

from trio_mq.client.instance import Instance
from trio_mq.config.addresses import Address
from trio_mq.errors import ConfigError, PeerUnavailable, TrioMQError
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers import BoundaryType
from trio_mq.protocol.topics import RETRY_PREFIX

#: Apache's clients wait longer for offsets than for other answers.
OFFSET_TIMEOUT_S = 5.0

#: Where a group without a stored offset begins.
FromWhere = Literal["last", "first"] | datetime


class OffsetStore(Protocol):
    """Offsets of one group."""

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset, None without one. PeerUnavailable, PeerRefused when it cannot be learnt."""
        ...

    async def write(
        self, positions: Mapping[MessageQueue, int], *, wait: bool
    ) -> dict[MessageQueue, TrioMQError]:
        """Store positions; the failures by queue. With `wait` it is sure, when this returns, that they are stored."""
        ...


class RemoteOffsets:
    """Offsets that the brokers keep."""

    def __init__(self, instance: Instance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def read(self, queue: MessageQueue) -> int | None:
        """See :class:`OffsetStore`."""
        reply = await _ask(
            self._instance,
            queue,
            RequestCode.QUERY_CONSUMER_OFFSET,
            headers.QueryConsumerOffsetRequest(
                consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id
            ),
            about=f"group {self._group}, topic {queue.topic}",
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        if reply.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return headers.decode(headers.QueryConsumerOffsetReply, reply.ext).offset

    async def write(
        self, positions: Mapping[MessageQueue, int], *, wait: bool
    ) -> dict[MessageQueue, TrioMQError]:
        """See :class:`OffsetStore`. Brokers are told at the same time."""
        failures: dict[MessageQueue, TrioMQError] = {}
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in positions:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        async with anyio.create_task_group() as telling:
            for queues in by_broker.values():
                if not wait:
                    telling.start_soon(self._tell_all, queues, positions, failures)
                    continue
                for queue in queues:
                    telling.start_soon(
                        partial(self._tell, queue, positions[queue], failures, wait=True)
                    )
        return failures

    async def _tell_all(
        self,
        queues: list[MessageQueue],
        positions: Mapping[MessageQueue, int],
        failures: dict[MessageQueue, TrioMQError],
    ) -> None:
        """One way, to one broker, one after another: none of them waits for an answer."""
        for queue in queues:
            if not await self._tell(queue, positions[queue], failures, wait=False):
                failures.update(dict.fromkeys(queues, failures[queue]))
                return

    async def _tell(
        self,
        queue: MessageQueue,
        offset: int,
        failures: dict[MessageQueue, TrioMQError],
        *,
        wait: bool,
    ) -> bool:
        header = headers.UpdateConsumerOffsetRequest(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        code = RequestCode.UPDATE_CONSUMER_OFFSET
        try:
            if wait:
                about = f"group {self._group}, topic {queue.topic}"
                await _ask(self._instance, queue, code, header, about=about)
            else:
                await self._send_oneway(queue, Command(code, headers.encode(header)))
        except TrioMQError as failure:
            failures[queue] = failure
            return False
        return True

    async def _send_oneway(self, queue: MessageQueue, command: Command) -> None:
        instance = self._instance
        address = broker_address(instance, queue)
        try:
            await instance.send_oneway(address, command)
        except PeerUnavailable:
            other = await _other_address(instance, queue, address)
            if other is None:
                raise
            await instance.send_oneway(other, command)


def broker_address(instance: Instance, queue: MessageQueue) -> Address:
    """The broker of a queue that keeps its offsets: the master, or a slave while there is none."""
    address = instance.routes.any_address(queue.broker_name)
    if address is None:
        raise PeerUnavailable(
            f"broker {queue.broker_name} of topic {queue.topic}: no route names an address; "
            f"check that it runs and registers at the name servers"
        )
    return address


# -- queue bounds


async def queue_max(instance: Instance, queue: MessageQueue) -> int:
    """The offset after the last message."""
    header = headers.GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
    code, reply = RequestCode.GET_MAX_OFFSET, headers.GetMaxOffsetReply
    return await _asked(instance, queue, code, header, reply)


async def queue_min(instance: Instance, queue: MessageQueue) -> int:
    """The offset of the first message that is still there."""
    header = headers.GetMinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
    code, reply = RequestCode.GET_MIN_OFFSET, headers.GetMinOffsetReply
    return await _asked(instance, queue, code, header, reply)


async def queue_offset_at(instance: Instance, queue: MessageQueue, when: datetime) -> int:
    """The offset of the first message that was stored at that time or later."""
    header = headers.SearchOffsetRequest(
        topic=queue.topic,
        queue_id=queue.queue_id,
        timestamp=round(when.timestamp() * 1000),
        boundary_type=BoundaryType.LOWER,
    )
    code, reply = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, headers.SearchOffsetReply
    return await _asked(instance, queue, code, header, reply)


async def _asked(
    instance: Instance, queue: MessageQueue, code: RequestCode, header: object, reply: type[Any]
) -> int:
    about = f"topic {queue.topic}, queue {queue.queue_id}"
    answer = await _ask(instance, queue, code, header, about=about)
    offset: int = headers.decode(reply, answer.ext).offset
    return offset


async def _ask(
    instance: Instance,
    queue: MessageQueue,
    code: RequestCode,
    header: object,
    *,
    about: str,
    accept: tuple[int, ...] = (ResponseCode.SUCCESS,),
) -> Command:
    """An answer about a queue from its broker; without one, from another broker of that name, if there is one now."""
    ask = partial(
        instance.ask,
        code=code,
        header=header,
        about=about,
        accept=accept,
        timeout_s=OFFSET_TIMEOUT_S,
    )
    address = broker_address(instance, queue)
    try:
        return await ask(address)
    except PeerUnavailable:
        other = await _other_address(instance, queue, address)
        if other is None:
            raise
        return await ask(other)


async def _other_address(
    instance: Instance, queue: MessageQueue, address: Address
) -> Address | None:
    """Where a queue's offsets are now, if that is not the address that did not answer."""
    await instance.renew_route(queue.topic)
    found = instance.routes.any_address(queue.broker_name)
    return None if found == address else found


# -- where to begin


def check_from_where(from_where: object) -> FromWhere:
    """ConfigError for what is no place to begin."""
    if isinstance(from_where, datetime):
        if from_where.tzinfo is None:
            raise ConfigError("from_where: the time has no zone; say datetime.now(UTC) - ...")
        return from_where
    if from_where == "last" or from_where == "first":
        return "last" if from_where == "last" else "first"
    raise ConfigError(f"from_where: {from_where!r}; give 'last', 'first' or an aware datetime")


async def start_offset(
    instance: Instance, store: OffsetStore, queue: MessageQueue, from_where: FromWhere
) -> int:
    """Where to begin: any stored offset wins. PeerUnavailable, PeerRefused rather than a guess.

    A retry topic begins at 0 where others begin at their end, since what is in it failed before; with a time, at its
    end: that is Apache's rule. The broker answers 0 for a young queue without an offset, whose first message it still
    has in memory.
    """
    stored = await store.read(queue)
    if stored is not None:
        return stored
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    if from_where == "first" or (from_where == "last" and is_retry):
        return 0
    if isinstance(from_where, datetime) and not is_retry:
        return await queue_offset_at(instance, queue, from_where)
    return await queue_max(instance, queue)
