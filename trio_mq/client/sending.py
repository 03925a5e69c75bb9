"""Sending as the Java client decides it: which broker, how often, what counts as sent.

In: messages, queues, times. Out: receipts, or the errors of :mod:`trio_mq.errors`. Called by :mod:`.producer`, and by
every other part of a client that sends: transactions, requests, consumers that return messages. Source of the rules:
Apache DefaultMQProducerImpl (sendDefaultImpl, sendKernelImpl, sendSelectImpl), MQClientAPIImpl.processSendResponse.

A send has one time for all its tries. A try that fails for want of a broker, or with one of `RETRY_CODES`, is followed
by one at another broker; any other refusal is raised at once. A send whose queue is given, or follows from a sharding
key, is tried once, as with Java's: another queue would break the order. The id of a message stays the same over tries.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

import anyio
import attrs

from trio_mq.client.faults import Faults, Turns, choose, queue_by_key
from trio_mq.client.instance import Instance
from trio_mq.client.messages import Message, SendReceipt
from trio_mq.client.options import with_namespace, without_namespace
from trio_mq.client.outgoing import Limits, Outgoing, prepare, prepare_batches
from trio_mq.client.routes import DEFAULT_TOPIC_QUEUES, MASTER_ID, TopicRoute
from trio_mq.client.tries import Sent, Tries, receipt_of
from trio_mq.config.addresses import Address
from trio_mq.errors import (
    NoRoute,
    PeerRefused,
    PeerUnavailable,
    RemoteProtocolError,
    SendFailed,
    TrioMQError,
)
from trio_mq.net.link import Encode
from trio_mq.protocol import command as commands
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.headers.hotsend import SendFrames
from trio_mq.protocol.topics import AUTO_CREATE_TOPIC

#: Routes are asked for again after a failure, but not more often than this.
ROUTE_AGAIN_S: Final = 1.0


@attrs.frozen
class SendSettings:
    """How sends behave; names and defaults are those of Apache's DefaultMQProducer."""

    limits: Limits = attrs.field(factory=Limits)
    send_timeout_s: float = 3.0
    retry_times_when_send_failed: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    send_latency_fault_enable: bool = False
    default_topic_queues: int = DEFAULT_TOPIC_QUEUES


class Sender:
    """Sends over the links of an instance. One for each producer group of a client."""

    def __init__(
        self, instance: Instance, group: str, settings: SendSettings | None = None
    ) -> None:
        self.settings = settings or SendSettings()
        self.instance = instance
        self._group = group
        self._turns: dict[str, Turns] = {}
        self._faults = Faults() if self.settings.send_latency_fault_enable else None
        self._asked_at_s: dict[str, float] = {}
        self._frames: dict[tuple[str, str], SendFrames] = {}

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
        sys_flag: int = 0,
        extra_properties: Mapping[str, str] | None = None,
    ) -> SendReceipt:
        """Send one message; see :meth:`deliver`."""
        sent = await self.deliver(
            message,
            queue=queue,
            timeout_s=timeout_s,
            sys_flag=sys_flag,
            extra_properties=extra_properties,
        )
        return sent.receipt

    async def deliver(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
        sys_flag: int = 0,
        extra_properties: Mapping[str, str] | None = None,
    ) -> Sent:
        """Send one message, with flags and properties of RocketMQ's own where given.

        Raises PeerRefused, SendFailed, NoRoute, PeerUnavailable (no name server), LocalProtocolError. When cancelled,
        the message may or may not have been stored.
        """
        outgoing = prepare(
            message,
            self.settings.limits,
            self.instance.clock.now_ms(),
            sys_flag=sys_flag,
            extra_properties=extra_properties,
        )
        return await self.deliver_prepared(outgoing, queue, timeout_s)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> list[SendReceipt]:
        """Send messages of one topic in as few requests as they need; the time is for each of them."""
        parts = list(prepare_batches(messages, self.settings.limits, self.instance.clock.now_ms()))
        return [(await self.deliver_prepared(part, queue, timeout_s)).receipt for part in parts]

    async def send_oneway(self, message: Message, *, queue: MessageQueue | None = None) -> None:
        """Hand a message to a connection, once. Whether it was stored is never known."""
        outgoing = self.prepared(message)
        route = self.known_route(outgoing.topic)
        if route is None or (queue is not None and not self.serves(route, queue)):
            route = await self.route_within(outgoing, self.settings.send_timeout_s)
        chosen = self.fixed(outgoing, queue, route) or self.choose(route)
        address = self.master(route, chosen.broker_name)
        await self.instance.send_oneway(
            address, self._command(outgoing, chosen, self.instance.clock.now_ms())
        )

    def prepared(self, message: Message) -> Outgoing:
        """A message as it goes over the wire. LocalProtocolError or ConfigError for one that cannot."""
        return prepare(message, self.settings.limits, self.instance.clock.now_ms())

    def known_route(self, topic: str) -> TopicRoute | None:
        """The route of a topic (with its namespace), None when it has to be asked for."""
        route = self.instance.routes.topics.get(topic)
        return route if route is not None and route.publish_queues else None

    def serves(self, route: TopicRoute, queue: MessageQueue) -> bool:
        """Whether a route names the master of a queue: one that was restarted may be back by now."""
        return MASTER_ID in route.brokers.get(queue.broker_name, {})

    async def route(self, topic: str) -> TopicRoute:
        """Where a topic (with its namespace) can be sent to; it has queues."""
        route = self.known_route(topic)
        return route if route is not None else await self._asked_route(topic)

    async def _asked_route(self, topic: str) -> TopicRoute:
        route = await self.instance.refresh_route(topic, to_send=True)
        if not route.publish_queues:
            raise NoRoute(
                f"topic {topic}: no broker lets it be sent to; give it write permission and write queues "
                f"(mqadmin updateTopic -p 6), and check that its masters run",
                topic=topic,
            )
        return route

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that can be sent to, by broker name and id, in the application's name of the topic."""
        namespace = self.settings.limits.namespace
        route = await self.route(with_namespace(namespace, topic))
        return tuple(
            attrs.evolve(queue, topic=without_namespace(namespace, topic))
            for queue in route.publish_queues
        )

    def master(self, route: TopicRoute, broker_name: str) -> Address:
        """Where the master of a broker is; PeerUnavailable when no route says so."""
        address = route.brokers.get(broker_name, {}).get(MASTER_ID)
        if address is None:
            raise PeerUnavailable(
                f"broker {broker_name} of topic {route.topic}: no route names its master; "
                f"check that it runs and registers at the name servers"
            )
        return address

    # -- tries

    async def deliver_prepared(
        self, outgoing: Outgoing, queue: MessageQueue | None, timeout_s: float | None
    ) -> Sent:
        """All tries of one send."""
        tries = self.tries(outgoing, anyio.current_time(), timeout_s)
        route = self.known_route(outgoing.topic)
        if route is None or (queue is not None and not self.serves(route, queue)):
            route = await self.route_within(outgoing, tries.timeout_s)
        return await self.go_on(tries, route, self.fixed(outgoing, queue, route))

    def tries(self, outgoing: Outgoing, now_s: float, timeout_s: float | None) -> Tries:
        """A send that begins now."""
        settings = self.settings
        return Tries(
            outgoing,
            1 + settings.retry_times_when_send_failed,
            now_s,
            settings.send_timeout_s if timeout_s is None else timeout_s,
            settings.retry_another_broker_when_not_store_ok,
        )

    async def go_on(self, tries: Tries, route: TopicRoute, fixed: MessageQueue | None) -> Sent:
        """The tries that are left."""
        if fixed is not None:
            tries.left = 1
        while True:
            now_s = anyio.current_time()
            chosen = fixed or self.choose(route, tries.failed_broker)
            tries.left -= 1
            try:
                sent = await self._try(tries.outgoing, chosen, route, tries.left_s(now_s))
            except (PeerUnavailable, PeerRefused, RemoteProtocolError) as failure:
                self.failed(tries, chosen, failure)
            else:
                if tries.done(sent):
                    return sent
            now_s = anyio.current_time()
            if not tries.another(now_s):
                return tries.result(now_s)
            route = self.instance.routes.topics.get(tries.outgoing.topic, route)

    def failed(self, tries: Tries, queue: MessageQueue, failure: TrioMQError) -> None:
        """Note a failed try; raises it when another one makes no sense."""
        tries.failed(queue.broker_name, failure)
        self._ask_again(tries.outgoing.topic)

    async def _try(
        self, outgoing: Outgoing, queue: MessageQueue, route: TopicRoute, timeout_s: float
    ) -> Sent:
        began_s = anyio.current_time() if self._faults is not None else 0.0
        try:
            address = self.master(route, queue.broker_name)
            reply = await self._asked(outgoing, queue, address, timeout_s)
            if (
                reply.code == ResponseCode.GO_AWAY
            ):  # its connection is retired: once more, over a new one
                reply = await self._asked(outgoing, queue, address, timeout_s)
            sent = Sent(receipt_of(reply, outgoing, queue.broker_name, address), address)
        except (PeerUnavailable, PeerRefused, RemoteProtocolError):
            self.note(queue, began_s, failed=True)
            raise
        self.note(queue, began_s, failed=False)
        return sent

    async def _asked(
        self, outgoing: Outgoing, queue: MessageQueue, address: Address, timeout_s: float
    ) -> Command:
        link = self.instance.living_link(address)
        if link is None:
            link = await self.instance.link(address, timeout_s)
        reply = await link.call_encoded(self.encoder(outgoing, queue), outgoing.code, timeout_s)
        if reply.code == ResponseCode.GO_AWAY:
            link.retire()
        return reply

    @property
    def takes_notes(self) -> bool:
        """Whether latencies count (send_latency_fault_enable)."""
        return self._faults is not None

    def note(self, queue: MessageQueue, began_s: float, *, failed: bool) -> None:
        """Let later choices know how a try went, where they ask for that."""
        if self._faults is not None:
            now_s = anyio.current_time()
            self._faults.note(queue.broker_name, now_s - began_s, now_s, failed=failed)

    def choose(self, route: TopicRoute, failed_broker: str | None = None) -> MessageQueue:
        """The queue for a try, where nothing says which one."""
        turns = self._turns.get(route.topic)
        if turns is None:
            turns = self._turns[route.topic] = Turns(random.randrange(1 << 16))
        queues = route.publish_queues
        if failed_broker is None and self._faults is None:
            turns.at += 1
            return queues[turns.at % len(queues)]
        return choose(
            queues,
            turns,
            failed_broker=failed_broker,
            faults=self._faults,
            now_s=anyio.current_time(),
        )

    def fixed(
        self, outgoing: Outgoing, queue: MessageQueue | None, route: TopicRoute
    ) -> MessageQueue | None:
        """The one queue that a message has to go to, if there is one."""
        if queue is not None:
            return attrs.evolve(
                queue, topic=with_namespace(self.settings.limits.namespace, queue.topic)
            )
        if outgoing.sharding_key is not None:
            return queue_by_key(outgoing.sharding_key, route.publish_queues)
        return None

    async def route_within(self, outgoing: Outgoing, timeout_s: float) -> TopicRoute:
        """The route, asked for in the time that its send has; SendFailed when that is over."""
        with anyio.move_on_after(timeout_s):
            return await self._asked_route(outgoing.topic)
        names = ", ".join(map(str, self.instance.options.nameservers))
        raise SendFailed(
            f"topic {outgoing.given_topic}: no route within {timeout_s:g} s; check the name servers {names}"
        )

    def _ask_again(self, topic: str) -> None:
        """A broker that failed may have moved: look again, aside, so that no try waits for it."""
        now_s = anyio.current_time()
        if now_s - self._asked_at_s.get(topic, -ROUTE_AGAIN_S) >= ROUTE_AGAIN_S:
            self._asked_at_s[topic] = now_s
            self.instance.tasks.start_soon(self.instance.refreshed_route, topic)

    # -- requests

    def encoder(self, outgoing: Outgoing, queue: MessageQueue) -> Encode:
        """What writes the request once its number is known."""
        born_ms = self.instance.clock.now_ms()
        if self.instance.options.credentials is None and outgoing.is_usual:
            at = outgoing.topic, queue.broker_name
            frames = self._frames.get(at)
            if frames is None:
                frames = self._frames[at] = SendFrames(
                    self._group,
                    outgoing.topic,
                    AUTO_CREATE_TOPIC,
                    self.settings.default_topic_queues,
                    queue.broker_name,
                )
            write = frames.frame
            return lambda opaque: write(
                opaque, queue.queue_id, outgoing.sys_flag, born_ms,
                outgoing.flag, outgoing.properties, outgoing.body,
            )  # fmt: skip
        command = self.instance.signed(self._command(outgoing, queue, born_ms))

        def encode(opaque: int) -> bytes:
            command.opaque = opaque
            return commands.encode(command)

        return encode

    def _command(self, outgoing: Outgoing, queue: MessageQueue, born_ms: int) -> Command:
        header = headers.SendMessageRequestV2(
            producer_group=self._group,
            topic=outgoing.topic,
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_nums=self.settings.default_topic_queues,
            queue_id=queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_timestamp=born_ms,
            flag=outgoing.flag,
            properties=outgoing.properties,
            reconsume_times=outgoing.reconsume_times,
            unit_mode=False,
            max_reconsume_times=outgoing.max_reconsume_times,
            batch=outgoing.is_batch,
            broker_name=queue.broker_name,
        )
        return Command(outgoing.code, headers.encode(header), bytes(outgoing.body))
