"""Queues of topics on all brokers of the cluster, as name servers know them.

In: the addresses of name servers, this broker's own table of topics, and topics that somebody asks for. Out: their
readable queues, at once where they are known, later where a name server has to be asked. Known ones are asked for
again now and then while somebody wants them. Owns its tasks and connections in :meth:`TopicRoutes.run`. Called by
the assignment processor. Rules: Apache TopicRouteInfoManager.

This broker's own queues come from its own table, which name servers hear of a moment later.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import attrs
import trio

from trio_mq.broker.topics import TopicTable
from trio_mq.config import Address, BrokerSettings
from trio_mq.errors import BodyError, HeaderError, PeerUnavailable
from trio_mq.net.dial import Connect, LinkPool, connect, open_pool
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import TopicRouteData
from trio_mq.protocol.codes import Perm, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.route import GetRouteInfoRequest
from trio_mq.protocol.jsondialect import MessageQueue

log = logging.getLogger("trio_mq.broker.routes")

#: Time for one question to one name server (Apache: GET_TOPIC_ROUTE_TIMEOUT).
CALL_LIMIT_S: Final = 3.0
#: Questions at the same time.
ASKERS: Final = 4
#: A topic that nobody wanted for so long is not asked for again.
FORGET_AFTER_S: Final = 600.0
#: Questions that wait for a name server; for more, the answer is that nothing is known.
MOST_WAITING: Final = 10_000

Then = Callable[[tuple[MessageQueue, ...] | None], None]
"""Hears the queues of a topic, or None when nothing is known of it."""


@attrs.define
class _Known:
    """What a name server said of a topic, and when somebody last wanted to know, on Trio's clock."""

    queues: tuple[MessageQueue, ...]
    wanted_s: float


class TopicRoutes:
    """Queues of topics. `nameservers` is set by who registers this broker there; empty for a broker alone.

    `connect`, which :mod:`trio_mq.system` may change before :meth:`run`, is how they are reached.
    """

    def __init__(
        self, topics: TopicTable, settings: BrokerSettings, *, connect: Connect = connect
    ) -> None:
        self.nameservers: Sequence[Address] = ()
        self._topics = topics
        self._broker_name = settings.broker_name
        self._permission = settings.broker_permission
        self._interval_s = settings.load_balance_poll_name_server_interval_ms / 1000
        self.connect = connect
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, list[Then]] = {}
        self._waiting = 0
        self._queue: deque[str] = deque()
        self._idle = trio.lowlevel.ParkingLot()

    def ask(self, topic: str, then: Then) -> None:
        """Let `then` hear the queues that can be read: at once if they are known, else when a name server has answered.

        It hears None when no name server can be reached, and when neither they nor this broker know the topic.
        """
        known = self._known.get(topic)
        if known is not None:
            known.wanted_s = trio.current_time()
            then(self._with_own(topic, known.queues))
        elif not self.nameservers:
            then(self._with_own(topic, ()) or None)
        elif self._waiting >= MOST_WAITING:
            log.warning(
                "%d questions wait for name servers, that for %s does not", MOST_WAITING, topic
            )
            then(None)
        else:
            self._look_up(topic, then)

    def _look_up(self, topic: str, *then: Then) -> None:
        if topic not in self._asked:
            self._queue.append(topic)
            self._idle.unpark()
        self._asked.setdefault(topic, []).extend(then)
        self._waiting += len(then)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Ask name servers until cancelled. One that cannot be reached costs its topics an answer, nothing else."""
        async with open_pool(connect=self.connect) as pool, trio.open_nursery() as nursery:
            for _ in range(ASKERS):
                nursery.start_soon(self._work, pool)
            nursery.start_soon(self._refresh)
            task_status.started()

    async def _refresh(self) -> None:
        """Ask again for all that somebody still wants."""
        while True:
            await trio.sleep(self._interval_s)
            oldest_s = trio.current_time() - FORGET_AFTER_S
            self._known = {
                topic: known for topic, known in self._known.items() if known.wanted_s >= oldest_s
            }
            for topic in self._known:
                self._look_up(topic)

    async def _work(self, pool: LinkPool) -> None:
        while True:
            while not self._queue:
                await self._idle.park()
            topic = self._queue.popleft()
            found = await self._fetch(topic, pool)
            queues = self._learn(topic, found)
            waiting = self._asked.pop(topic)
            self._waiting -= len(waiting)
            for then in waiting:
                try:
                    then(queues)
                except Exception:  # one answer is lost, and its client asks again; the others go on
                    log.exception("an answer about the queues of %s could not be given", topic)

    def _learn(
        self, topic: str, found: tuple[MessageQueue, ...] | None
    ) -> tuple[MessageQueue, ...] | None:
        """Note what a name server said, None for no answer; what is known of the topic now."""
        known = self._known.get(topic)
        if found is None:
            return None if known is None else self._with_own(topic, known.queues)
        if found:
            wanted_s = trio.current_time() if known is None else known.wanted_s
            self._known[topic] = _Known(found, wanted_s)
        else:
            self._known.pop(topic, None)
        return self._with_own(topic, found) or None

    async def _fetch(self, topic: str, pool: LinkPool) -> tuple[MessageQueue, ...] | None:
        """What the first name server that answers says: empty if it does not know the topic. None if none answers."""
        request = Command(
            code=RequestCode.GET_ROUTEINFO_BY_TOPIC,
            ext=headers.encode(GetRouteInfoRequest(topic)),
        )
        for nameserver in self.nameservers:
            try:
                reply = await pool.call(nameserver, request, CALL_LIMIT_S)
                if reply.code == ResponseCode.TOPIC_NOT_EXIST:
                    return ()
                if reply.code != ResponseCode.SUCCESS:
                    raise PeerUnavailable(
                        f"{nameserver}: refused with code {reply.code}: {reply.remark}"
                    )
                return queues_of(topic, bodies.decode(TopicRouteData, reply.body))
            except (PeerUnavailable, HeaderError, BodyError) as error:
                log.info("the route of topic %s is not known: %s", topic, error)
        return None

    def _with_own(self, topic: str, queues: tuple[MessageQueue, ...]) -> tuple[MessageQueue, ...]:
        """The queues with this broker's own as they are now."""
        others = [queue for queue in queues if queue.broker_name != self._broker_name]
        config = self._topics.get(topic)
        readable = config is not None and config.perm & self._permission & Perm.READ
        count = config.read_queue_nums if config is not None and readable else 0
        own = [MessageQueue(topic, self._broker_name, number) for number in range(count)]
        return (*others, *own)


def queues_of(topic: str, route: TopicRouteData) -> tuple[MessageQueue, ...]:
    """All queues that a route lets consumers read (Apache: topicRouteData2TopicSubscribeInfo)."""
    return tuple(
        MessageQueue(topic, data.broker_name, number)
        for data in route.queue_datas
        if data.perm & Perm.READ
        for number in range(data.read_queue_nums)
    )
