"""Pulls one queue: asks, waits at the broker until there is something, and asks again, as long as there is room.

In: a :class:`.ProcessQueue`. Out: messages in it, and its next offset; the offset to begin at when the broker says that
the one asked for is not there. Run by :mod:`.assigned`, a task for each queue. Source of the rules: Apache
DefaultMQPushConsumerImpl.pullMessage, PullAPIWrapper, PullMessageRequestHeader.

Failure policy: whatever a broker answers or does not answer, the queue is pulled again after a pause. Each cause is
logged once. A broker that does not answer may have moved: its route is asked for again, and meanwhile another broker of
its name is pulled. One that does not know this group or its newest subscription gets a heartbeat.

Which broker of a name is pulled: the master, until an answer suggests another one; each answer suggests anew. One that
fails or refuses is left for the master, and the master for a slave, which sends readers back when it is there again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio
import attrs

from trio_mq.client.decoding import Source, read
from trio_mq.client.instance import Instance
from trio_mq.client.processqueue import ProcessQueue
from trio_mq.client.routes import MASTER_ID
from trio_mq.client.subscription import Subscribed
from trio_mq.config.addresses import Address
from trio_mq.errors import PeerRefused, PeerUnavailable, ProtocolError
from trio_mq.protocol import headers
from trio_mq.protocol.codes import PullFlag, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.topics import RETRY_PREFIX

log = logging.getLogger("trio_mq.client")

#: After a failure (Apache: pullTimeDelayMillsWhenException).
FAILURE_PAUSE_S = 1.0
#: After FLOW_CONTROL (Apache: PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL).
FLOW_CONTROL_PAUSE_S = 0.02
#: After an answer that came at once and brought nothing: a broker that does not hold requests must not be hammered.
IDLE_PAUSE_S = 0.05

_FOUND = ResponseCode.SUCCESS
_NOTHING = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY)
_UNKNOWN_HERE = (
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_NOT_LATEST,
    ResponseCode.FILTER_DATA_NOT_EXIST,
    ResponseCode.FILTER_DATA_NOT_LATEST,
)


@attrs.frozen
class PullSettings:
    """How to pull; names and defaults are those of Apache's DefaultMQPushConsumer."""

    batch_size: int = 32
    batch_bytes: int = 0x7FFF_FFFF
    #: How long a broker holds a request that finds nothing.
    suspend_s: float = 15.0
    timeout_s: float = 30.0
    code: RequestCode = RequestCode.PULL_MESSAGE
    flags: int = int(PullFlag.SUSPEND)
    #: Send the expression along; a group without heartbeats of its topics (assigned queues) has to.
    with_expression: bool = False


class Fetcher:
    """Pulls queues of one group.

    `wanted` gives the subscription of a topic, `source` what messages of a queue get, `commit` the position that the
    broker is told with a pull (None for nothing), `delivered` is called when a queue has got messages.
    """

    def __init__(
        self,
        instance: Instance,
        group: str,
        settings: PullSettings,
        *,
        wanted: Callable[[str], Subscribed | None],
        source: Callable[[ProcessQueue], Source],
        commit: Callable[[ProcessQueue], int | None],
        delivered: Callable[[ProcessQueue], None],
    ) -> None:
        self._instance = instance
        self._group = group
        self._settings = settings
        self._wanted = wanted
        self._source = source
        self._commit = commit
        self._delivered = delivered
        #: Brokers of before release 5, some of which know ordinary pulls only.
        self._without_lite: set[Address] = set()

    async def run(self, queue: ProcessQueue) -> int | None:
        """Pull until the queue is dropped (None), or has to begin anew at the offset that is returned."""
        while not queue.dropped:
            if not queue.may_pull():
                await self._room(queue)
                continue
            try:
                pause_s, moved = await self._pull(queue)
            except PeerUnavailable as failure:
                self._failed(queue, str(failure))
                self._instance.doubt_route(queue.queue.topic)
                self._go_elsewhere(queue)
                pause_s, moved = FAILURE_PAUSE_S, None
            except (PeerRefused, ProtocolError) as failure:
                self._failed(queue, str(failure))
                pause_s, moved = FAILURE_PAUSE_S, None
            if moved is not None:
                return moved
            if pause_s:
                await anyio.sleep(pause_s)
        return None

    async def _room(self, queue: ProcessQueue) -> None:
        event = anyio.Event()
        queue.on_room = event.set
        await event.wait()

    async def _pull(self, queue: ProcessQueue) -> tuple[float, int | None]:
        """One request: how long to wait before the next one, and the offset to begin anew at, if any."""
        asked = queue.next_offset
        address = self._address(queue)
        began_s = anyio.current_time()
        reply = await self._instance.call(
            address, self._request(queue, address), self._settings.timeout_s
        )
        if queue.dropped:
            return 0.0, None
        if reply.code == ResponseCode.FLOW_CONTROL:
            return FLOW_CONTROL_PAUSE_S, None
        if reply.code not in (_FOUND, *_NOTHING, ResponseCode.PULL_OFFSET_MOVED):
            return await self._refused(queue, reply, address), None
        told = headers.decode(headers.PullMessageReply, reply.ext)
        if queue.failures:
            log.info("%r is pulled again", queue)
            queue.failures.clear()
        self._go_where_told(queue, told.suggest_which_broker_id)
        queue.max_offset = told.max_offset
        queue.pulled_at_s = began_s
        if reply.code == ResponseCode.PULL_OFFSET_MOVED:
            log.warning("offset %d of %r is not there, it goes on at %d (%s)", asked, queue,
                        told.next_begin_offset, reply.remark)  # fmt: skip
            return 0.0, told.next_begin_offset
        if reply.code == _FOUND:
            found = read(reply.body, self._source(queue), asked, told.offset_delta or 0)
            queue.put(found)
            queue.next_offset = told.next_begin_offset
            if found:
                self._delivered(queue)
            return 0.0, None
        queue.next_offset = told.next_begin_offset
        is_idle = queue.next_offset == asked and anyio.current_time() - began_s < IDLE_PAUSE_S
        return IDLE_PAUSE_S if is_idle else 0.0, None

    def _request(self, queue: ProcessQueue, address: Address) -> Command:
        settings, topic = self._settings, queue.queue.topic
        code, flags = settings.code, settings.flags
        if address in self._without_lite:
            code, flags = RequestCode.PULL_MESSAGE, flags & ~PullFlag.LITE_PULL
        position = self._commit(queue)
        is_master = address == self._instance.routes.address(queue.queue.broker_name)
        if position is not None and position > 0 and is_master:
            flags |= PullFlag.COMMIT_OFFSET
        wanted = self._wanted(topic)
        expression = None
        if settings.with_expression:
            expression = "*" if wanted is None else wanted.subscription.expression
            flags |= PullFlag.SUBSCRIPTION
        header = headers.PullMessageRequest(
            consumer_group=self._group,
            topic=topic,
            queue_id=queue.queue.queue_id,
            queue_offset=queue.next_offset,
            max_msg_nums=settings.batch_size,
            sys_flag=int(flags),
            commit_offset=position or 0,
            suspend_timeout_millis=round(settings.suspend_s * 1000),
            sub_version=0 if wanted is None else wanted.version,
            subscription=expression,
            expression_type="TAG" if wanted is None else wanted.subscription.expression_type,
            max_msg_bytes=settings.batch_bytes,
        )
        return Command(code, headers.encode(header))

    def _go_where_told(self, queue: ProcessQueue, broker_id: int) -> None:
        """The next pull goes to that broker; a master that is back may not be in our route yet."""
        queue.preferred_broker_id = broker_id
        name, topic = queue.queue.broker_name, queue.queue.topic
        if broker_id == MASTER_ID and self._instance.routes.address(name) is None:
            self._instance.doubt_route(topic)

    def _go_elsewhere(self, queue: ProcessQueue) -> None:
        """The next pull goes to another broker of the name, if there is one."""
        routes = self._instance.routes
        name, broker_id = queue.queue.broker_name, queue.preferred_broker_id
        queue.preferred_broker_id = routes.other_id(name, broker_id)

    def _address(self, queue: ProcessQueue) -> Address:
        broker_name = queue.queue.broker_name
        address = self._instance.routes.any_address(broker_name, queue.preferred_broker_id)
        if address is None:
            raise PeerUnavailable(
                f"broker {broker_name} of topic {queue.queue.topic}: no route names an address; "
                f"check that it runs and registers at the name servers"
            )
        return address

    async def _refused(self, queue: ProcessQueue, reply: Command, address: Address) -> float:
        is_lite = self._settings.code == RequestCode.LITE_PULL_MESSAGE
        is_unknown = reply.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        if is_lite and is_unknown and address not in self._without_lite:
            self._without_lite.add(address)
            return 0.0
        what = f"{self._settings.code.name} ({self._settings.code.value}) for {queue.queue.topic}"
        self._failed(
            queue, str(PeerRefused(reply.code, reply.remark, address=str(address), what=what))
        )
        queue.preferred_broker_id = MASTER_ID
        if reply.code in _UNKNOWN_HERE:
            await self._instance.heartbeat()
        return FAILURE_PAUSE_S

    def _failed(self, queue: ProcessQueue, why: str) -> None:
        if why in queue.failures:
            return
        queue.failures.append(why)
        # A retry topic is made with the first heartbeat, and is not everywhere at once.
        level = logging.INFO if queue.queue.topic.startswith(RETRY_PREFIX) else logging.WARNING
        log.log(level, "%r is pulled again in %g s: %s", queue, FAILURE_PAUSE_S, why)
