"""Moving a group to another place: by time, to an end, to an offset, or to where another group is.

In: group, topic, place. Out: the offsets that hold now. Called by users of :class:`trio_mq.Admin`. Source of the rules:
Apache MQAdminExt.resetOffsetByTimestamp (request 222), resetOffsetByTimestampOld, and mqadmin's cloneGroupOffset.

A broker sets the offsets itself and lets connected consumers hear of it with their next fetch. One that asks the
consumers instead (``useServerSideResetOffset=false``) and finds none connected is told the offsets one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from trio_mq.client.admin.base import Target, targets_of
from trio_mq.client.admin.groups import GroupAdmin
from trio_mq.client.admin.topics import Place, ms_of, queue_order
from trio_mq.errors import BrokersFailed, ConfigError
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import MessageQueue, ResetOffsetBody
from trio_mq.protocol.codes import RequestCode, ResponseCode

ALL_QUEUES = -1
#: Times of a reset that mean the first message and the end of each queue.
_BEGIN_MS, _END_MS = 0, -1


class PlaceAdmin(GroupAdmin):
    """See the module."""

    async def reset_offsets(
        self, group: str, topic: str, to: Place, *, queue: MessageQueue | None = None
    ) -> dict[MessageQueue, int]:
        """Move a group to another place in all queues of a topic, or in one; the group may be online or not.

        `to` is ``"begin"``, ``"end"``, an aware datetime (the first message stored then or later), or the offset in
        `queue`. BrokersFailed when only some brokers did it.
        """
        self._check_open()
        if isinstance(to, int) and queue is None:
            raise ConfigError(f"to={to}: an offset is a place in one queue; say which: queue=...")
        group_name, name = self._group(group), self._topic(topic)
        route = await self._route(name)
        targets = targets_of(route.data.broker_datas, False)
        if queue is not None:
            targets = [target for target in targets if target.name == queue.broker_name]
            if not targets or queue not in route.read_queues:
                raise ConfigError(
                    f"queue: topic {name} has no queue {queue.queue_id} on {queue.broker_name}"
                )
        header = reset_header(group_name, name, to, queue)
        queues = route.read_queues if queue is None else (queue,)

        async def one(target: Target) -> dict[MessageQueue, int]:
            reply = await self._ask(
                target,
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
                header,
                about=f"group {group_name} in topic {name}",
                accept=(ResponseCode.SUCCESS, ResponseCode.CONSUMER_NOT_ONLINE),
            )
            if reply.code == ResponseCode.SUCCESS:
                return dict(bodies.decode(ResetOffsetBody, reply.body).offset_table)
            return await self._write_places(target, group_name, queues, to)

        moved = await self._change(f"reset of group {group_name} in topic {name}", targets, one)
        offsets = {at: offset for table in moved.values() for at, offset in table.items()}
        return dict(sorted(offsets.items(), key=queue_order))

    async def _write_places(
        self, target: Target, group: str, queues: Iterable[MessageQueue], to: Place
    ) -> dict[MessageQueue, int]:
        """Write the offsets of a group that is not online."""
        found = {}
        for queue in queues:
            if queue.broker_name == target.name:
                found[queue] = await self._offset(target, queue, to)
                await self._write_offset(target, group, queue, found[queue])
        return found

    async def clone_offsets(
        self, source: str, destination: str, topic: str
    ) -> dict[MessageQueue, int]:
        """Put one group where another one is, in all queues of a topic; the offsets that hold now.

        The other group has to exist, and nobody of it should be connected: consumers write their own offsets.
        """
        self._check_open()
        group, name = self._group(destination), self._topic(topic)
        told = await self.consumer_offsets(source, topic)
        if told.failures:
            raise BrokersFailed(
                f"group {source} in topic {topic}: not all of its offsets are known: "
                f"{' | '.join(map(str, told.failures))}; nothing was changed",
                done=(),
                failures=told.failures,
            )
        route = await self._route(name)

        async def one(target: Target) -> None:
            for queue, offset in told.items():
                if queue.broker_name == target.name:
                    await self._write_offset(target, group, queue, offset)

        brokers = {queue.broker_name for queue in told}
        targets = [t for t in targets_of(route.data.broker_datas, False) if t.name in brokers]
        await self._change(f"offsets of group {group} in topic {name}", targets, one)
        return dict(told)


def reset_header(
    group: str, topic: str, to: Place, queue: MessageQueue | None
) -> headers.ResetOffsetRequest:
    """The request that moves a group."""
    if isinstance(to, datetime):
        timestamp_ms = ms_of(to)
    elif to not in ("begin", "end") and not isinstance(to, int):
        raise ConfigError(f"to={to!r}: no place; give 'begin', 'end', an offset or a datetime")
    else:
        timestamp_ms = _END_MS if to == "end" else _BEGIN_MS
    return headers.ResetOffsetRequest(
        group=group,
        topic=topic,
        timestamp=timestamp_ms,
        force=True,
        queue_id=ALL_QUEUES if queue is None else queue.queue_id,
        offset=to if isinstance(to, int) else None,
    )
