"""Messages: one by its id or its place, several by a key, and all of a topic between two places.

In: topics, ids, keys, places. Out: :class:`.ReceivedMessage` values that are looked at and not consumed. Called by
users of :class:`trio_mq.Admin`. Source of the rules: Apache MQAdminImpl (viewMessage, queryMessage), and what mqadmin's
queryMsgById, queryMsgByKey, queryMsgByUniqueKey, queryMsgByOffset and printMsg do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from trio_mq.client.admin.base import Target, targets_of
from trio_mq.client.admin.places import PlaceAdmin
from trio_mq.client.admin.reading import ANSWERS, Cursor, Pull, Reading, pull_request
from trio_mq.client.admin.records import messages_in
from trio_mq.client.admin.topics import Place, ms_of
from trio_mq.client.admin.values import Several
from trio_mq.client.messages import ReceivedMessage
from trio_mq.client.subscription import Sql, parse
from trio_mq.config.addresses import Address
from trio_mq.errors import ConfigError, HeaderError, NoRoute, PeerRefused, PeerUnavailable
from trio_mq.protocol import headers
from trio_mq.protocol import properties as props
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.message import Host, parse_offset_message_id

_NO_END_MS = (1 << 63) - 1
_HIGHEST_PORT = 65_535
#: Time that a query by key may take, in relation to other requests (Apache: timeoutMillis * 3).
_QUERY_FACTOR = 3
_NOT_THERE = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)


class MessageAdmin(PlaceAdmin):
    """See the module."""

    async def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage | None:
        """The message with an id: the broker's (``offset_message_id``), or with its topic the client's too.

        None when there is none, or not any more.
        """
        self._check_open()
        place = place_of(message_id)
        if place is None and topic is None:
            raise ConfigError(
                f"message id {message_id}: that is a client's id and no place in a log; say its topic, too"
            )
        failure: PeerRefused | PeerUnavailable | None = None
        if place is not None:
            try:
                found = await self._at_place(*place)
            except (PeerRefused, PeerUnavailable) as error:
                if topic is None:
                    raise
                found, failure = None, error
            if found is not None or topic is None:
                return found
        assert topic is not None, "checked above"
        named = await self.messages_by_unique_id(topic, message_id)
        if not named and failure is not None:
            raise failure
        return named[0] if named else None

    async def _at_place(self, host: Host, log_offset: int) -> ReceivedMessage | None:
        target = Target("", Address(host.ip, host.port))
        names = {str(broker.address): broker.name for broker in await self._brokers()}
        reply = await self._ask(
            target,
            RequestCode.VIEW_MESSAGE_BY_ID,
            headers.ViewMessageRequest(offset=log_offset),
            about=f"log offset {log_offset}",
            accept=_NOT_THERE,
        )
        if reply.code != ResponseCode.SUCCESS:
            return None
        name = names.get(str(target.address), str(target.address))
        return next(iter(messages_in(reply.body, name)), None)

    async def messages_by_unique_id(
        self, topic: str, message_id: str, *, limit: int = 32
    ) -> Several[ReceivedMessage]:
        """All messages with a client's id: retries of a send, and repeats of a consumer, have the same one."""
        found = await self._by_key(topic, message_id, None, None, limit, unique=True)
        return Several(
            tuple(m for m in found if m.properties.get(props.UNIQ_KEY) == message_id),
            found.failures,
        )

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | None = None,
        end: datetime | None = None,
        limit: int = 64,
    ) -> Several[ReceivedMessage]:
        """Messages of a topic with a key, stored between two times, oldest first.

        `limit` is for each broker, which may have a lower one of its own.
        """
        found = await self._by_key(topic, key, begin, end, limit, unique=False)
        return Several(tuple(m for m in found if key in m.keys), found.failures)

    async def _by_key(
        self,
        topic: str,
        key: str,
        begin: datetime | None,
        end: datetime | None,
        limit: int,
        *,
        unique: bool,
    ) -> Several[ReceivedMessage]:
        self._check_open()
        name = self._topic(topic)
        header = headers.QueryMessageRequest(
            topic=name,
            key=key,
            max_num=limit,
            begin_timestamp=0 if begin is None else ms_of(begin),
            end_timestamp=_NO_END_MS if end is None else ms_of(end),
            unique_key=unique,
        )

        async def one(target: Target) -> list[ReceivedMessage]:
            reply = await self._ask(
                target,
                RequestCode.QUERY_MESSAGE,
                header,
                about=f"key {key} in topic {name}",
                accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
                timeout_s=self._options.call_timeout_s * _QUERY_FACTOR,
            )
            is_found = reply.code == ResponseCode.SUCCESS
            return messages_in(reply.body, target.name) if is_found else []

        told = await self._read(await self._serving(name), one)
        found = [message for messages in told.values() for message in messages]
        found.sort(key=lambda message: message.record.store_timestamp_ms)
        return Several(tuple(found), told.failures)

    async def message_at(self, queue: MessageQueue, offset: int) -> ReceivedMessage | None:
        """The message at a place in a queue, None when there is none."""
        self._check_open()
        target = await self._broker(queue.broker_name)
        wanted = parse(queue.topic, None)
        request = pull_request(queue, offset, wanted, 1)
        answer = await self._pull_from({queue.broker_name: target})(queue, request)
        if answer.code != ResponseCode.SUCCESS:
            return None
        found = messages_in(answer.body, queue.broker_name)
        return next((message for message in found if message.queue_offset == offset), None)

    async def read(
        self,
        topic: str,
        *,
        begin: Place | Mapping[MessageQueue, int] = "begin",
        end: Place | Mapping[MessageQueue, int] = "end",
        follow: bool = False,
        wanted: str | Sql | None = None,
        queues: Iterable[MessageQueue] | None = None,
    ) -> Reading:
        """The messages of a topic between two places, in the order in which they were stored: an async iterator.

        Places are ``"begin"``, ``"end"`` (what is the end now), aware datetimes, offsets, or offsets by queue; `end` is
        not part of it. With `follow` there is no end: it waits for more. `wanted` are tags or a condition, as in a
        subscription. Nothing is committed. A broker that fails is in ``failures`` of the result, and the others go on.
        """
        self._check_open()
        name = self._topic(topic)
        route = await self._route(name)
        targets = {t.name: t for t in targets_of(route.data.broker_datas, False)}
        chosen = route.read_queues if queues is None else tuple(queues)
        missing = set(chosen) - set(route.read_queues)
        if missing:
            known = ", ".join(f"{q.broker_name}:{q.queue_id}" for q in route.read_queues) or "none"
            raise ConfigError(f"queues: topic {topic} has no {min(missing)}; it has {known}")
        if not chosen:
            raise NoRoute(f"topic {topic}: it has no queue that can be read", topic=name)
        first = await self._offsets(route, {q: place_in(begin, q, "begin") for q in chosen})
        last = None
        if not follow:
            last = await self._offsets(route, {q: place_in(end, q, "end") for q in first})
        cursors = [
            Cursor(q, str(targets[q.broker_name].address), at, None if last is None else last[q])
            for q, at in first.items()
            if last is None or q in last
        ]
        failures = {f.name: f for f in (*first.failures, *(last.failures if last else ()))}
        return Reading(
            self._pull_from(targets),
            cursors,
            parse(name, wanted),
            failures.values(),
        )

    def _pull_from(self, targets: Mapping[str, Target]) -> Pull:
        async def pull(queue: MessageQueue, request: headers.PullMessageRequest) -> Command:
            return await self._ask(
                targets[queue.broker_name],
                RequestCode.PULL_MESSAGE,
                request,
                about=f"queue {queue.queue_id} of topic {queue.topic}",
                accept=ANSWERS,
            )

        return pull


def place_of(message_id: str) -> tuple[Host, int] | None:
    """Where the message with a broker's id is; None for the id of a client, which looks alike.

    Where a broker's id has its port, a client's has its process: no port is that large.
    """
    try:
        host, log_offset = parse_offset_message_id(message_id)
    except HeaderError:
        return None
    if not 0 < host.port <= _HIGHEST_PORT or log_offset < 0:
        return None
    return host, log_offset


def place_in(
    place: Place | Mapping[MessageQueue, int], queue: MessageQueue, default: Place
) -> Place:
    """The place in one queue."""
    return place.get(queue, default) if isinstance(place, Mapping) else place
