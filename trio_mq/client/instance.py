"""One client of a cluster: its links, routes and heartbeats, shared by the parts of a producer or a consumer.

In: :class:`.ClientOptions`. Out: an :class:`Instance`, open as long as the block of :func:`open_instance`. Called by
all kinds of client. Source of the rules: Apache MQClientInstance, MQClientAPIImpl, NettyRemotingClient; times as in
``docs/explanation/client.md``.

Failure policy: a name server that does not answer is passed over and the next one asked; routes that cannot be
refreshed stay as they are; a heartbeat that fails is sent again with the next round, or as soon as a new connection
to that broker is made. Nothing of that ends the client.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
import anyio.abc
import attrs

from trio_mq.client import identity, world
from trio_mq.client.lifetime import background, forever, sheltered
from trio_mq.client.options import ClientOptions
from trio_mq.client.routes import (
    DEFAULT_TOPIC_QUEUES,
    RouteTable,
    TopicRoute,
)
from trio_mq.config.addresses import Address
from trio_mq.errors import NoRoute, PeerRefused, PeerUnavailable, ProtocolError, TrioMQError
from trio_mq.net.dial import LinkPool, open_pool
from trio_mq.net.link import Link
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import ConsumerData, HeartbeatData, ProducerData, TopicRouteData
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.signature import signed
from trio_mq.protocol.topics import AUTO_CREATE_TOPIC

log = logging.getLogger("trio_mq.client")

H = TypeVar("H")

#: For the last words to brokers, when a block is left.
FAREWELL_S = 1.5
#: A route that is in doubt is asked for again, but not more often than this.
ROUTE_AGAIN_S = 1.0
#: Questions about routes that run at the same time: a refresh of a thousand topics does not flood a name server.
ROUTES_AT_ONCE = 16

#: Answers a request of a broker: the reply, or None when there is none or `link.respond` brings it later.
OnBrokerRequest = Callable[[Link, Command], Command | None]


@attrs.define(eq=False)
class _Doubt:
    """A route that somebody was in doubt of."""

    lock: anyio.Lock = attrs.field(factory=anyio.Lock)
    settled_s: float = -math.inf

    def is_settled(self) -> bool:
        """Whether it was asked for just now."""
        return anyio.current_time() - self.settled_s < ROUTE_AGAIN_S


class Instance:
    """See the module. `tasks` belong to the client and are cancelled when its block is left."""

    def __init__(
        self,
        options: ClientOptions,
        here: world.World,
        tasks: anyio.abc.TaskGroup,
        pool: LinkPool,
    ) -> None:
        self.options = options
        self.clock = here.clock
        self.tasks = tasks
        self.routes = RouteTable()
        self.client_id = identity.client_id(
            options.instance_name, options.unit_name, now_ms=here.clock.now_ms()
        )
        #: Queues of a topic that a first send makes.
        self.new_topic_queues = DEFAULT_TOPIC_QUEUES
        #: Groups that heartbeats tell of.
        self.producer_groups: set[str] = set()
        self.consumers: dict[str, Callable[[], ConsumerData]] = {}
        #: Called with the topic when its route has changed.
        self.route_changed: list[Callable[[str], None]] = []
        self._pool = pool
        self._topics: set[str] = set()
        self._handlers: dict[int, OnBrokerRequest] = {}
        self._nameserver_at = 0
        #: One heartbeat at a time to a broker: the last one to arrive tells the newest subscriptions.
        self._beats: dict[Address, anyio.Lock] = {}
        #: The connections whose brokers know us.
        self._greeted: dict[Address, Link] = {}
        self._greeting: set[Address] = set()
        #: Addresses that routes have named: connections to them go when no route names them any more.
        self._routed: set[Address] = set()
        self._leaving = False
        self._routing = anyio.Semaphore(ROUTES_AT_ONCE)
        self._doubts: dict[str, _Doubt] = {}

    # -- requests

    async def call(
        self, address: Address, command: Command, timeout_s: float | None = None
    ) -> Command:
        """Send a request to one address; the reply, whatever its code. PeerUnavailable without one."""
        timeout_s = timeout_s or self.options.call_timeout_s
        return await self._pool.call(address, self.signed(command), timeout_s)

    async def send_oneway(self, address: Address, command: Command) -> None:
        """Send a request that is never answered."""
        await self._pool.send_oneway(address, self.signed(command), self.options.call_timeout_s)

    def signed(self, command: Command) -> Command:
        """The command with the signature of the client's credentials, if it has any."""
        keys = self.options.credentials
        if keys is None:
            return command
        return signed(command, keys.access_key, keys.secret_key, keys.security_token)

    def living_link(self, address: Address) -> Link | None:
        """The living link to an address, None when one has to be made."""
        return self._pool.living_link(address)

    async def link(self, address: Address, timeout_s: float) -> Link:
        """The link to an address, connected if needed. PeerUnavailable when that fails or takes longer."""
        return await self._pool.link_within(address, timeout_s)

    async def ask(
        self,
        address: Address,
        code: RequestCode,
        header: Any = None,
        body: bytes = b"",
        *,
        about: str = "",
        accept: tuple[int, ...] = (ResponseCode.SUCCESS,),
        timeout_s: float | None = None,
    ) -> Command:
        """Send a request and insist on a reply with one of the codes in `accept`; PeerRefused for another one.

        `header` is a value of :mod:`trio_mq.protocol.headers`; `about` names topic or group in the error.
        """
        ext = {} if header is None else headers.encode(header)
        reply = await self.call(address, Command(code, ext, body), timeout_s)
        if reply.code not in accept:
            what = f"{code.name} ({code.value}){about and ' for ' + about}"
            raise PeerRefused(reply.code, reply.remark, address=str(address), what=what)
        return reply

    async def ask_nameserver(
        self,
        code: RequestCode,
        header: Any = None,
        body: bytes = b"",
        *,
        about: str = "",
        accept: tuple[int, ...] = (ResponseCode.SUCCESS,),
    ) -> Command:
        """The same at the name server that answered last, or the next ones; PeerUnavailable names all of them."""
        failures = []
        begin, count = self._nameserver_at, len(self.options.nameservers)
        for at in (number % count for number in range(begin, begin + count)):
            address = self.options.nameservers[at]
            try:
                return await self.ask(address, code, header, body, about=about, accept=accept)
            except PeerUnavailable as failure:
                failures.append(str(failure))
                if self._nameserver_at == at:  # else somebody who asked meanwhile has gone on
                    self._nameserver_at = (at + 1) % count
        raise PeerUnavailable("no name server answers: " + " | ".join(failures))

    def on_request(self, code: RequestCode, handler: OnBrokerRequest) -> None:
        """Let `handler` answer what brokers ask with that code."""
        self._handlers[code] = handler

    def _requested(self, link: Link, command: Command) -> Command | None:
        handler = self._handlers.get(command.code)
        if handler is not None:
            return handler(link, command)
        return Command(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f"request code {command.code} is not supported by client {self.client_id}",
        )

    # -- routes

    async def route(self, topic: str, *, to_send: bool = False) -> TopicRoute:
        """The route of a topic, from the table or a name server; from now on it is kept fresh.

        With `to_send`, a topic that does not exist gets the route of those that a first send makes, where brokers
        allow that. NoRoute when there is none, PeerUnavailable when no name server answers.
        """
        found = self.routes.topics.get(topic)
        if found is None or (to_send and not found.publish_queues):
            found = await self.refresh_route(topic, to_send=to_send)
        return found

    async def refresh_route(self, topic: str, *, to_send: bool = False) -> TopicRoute:
        """The same, always asked for."""
        self._topics.add(topic)
        data = await self._asked_route(topic)
        if data is not None:
            return self._keep(TopicRoute(topic, data))
        if to_send:
            data = await self._asked_route(AUTO_CREATE_TOPIC)
            if data is not None:
                made = TopicRoute(AUTO_CREATE_TOPIC, data)
                return self._keep(made.for_new_topic(topic, self.new_topic_queues))
            self._topics.discard(topic)
        names = ", ".join(map(str, self.options.nameservers))
        hint = "create it (mqadmin updateTopic, or trio-mq topic create), "
        if to_send:
            hint += "or let brokers make topics (autoCreateTopicEnable), "
        raise NoRoute(
            f"topic {topic}: the name server knows no broker that serves it; {hint}"
            f"and check that its brokers register at {names}",
            topic=topic,
        )

    async def _asked_route(self, topic: str) -> TopicRouteData | None:
        async with self._routing:
            reply = await self.ask_nameserver(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                headers.GetRouteInfoRequest(topic=topic, accept_standard_json_only=True),
                about=f"topic {topic}",
                accept=(ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST),
            )
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return bodies.decode(TopicRouteData, reply.body)

    def _keep(self, route: TopicRoute) -> TopicRoute:
        if self.routes.put(route):
            self._routed |= self.routes.addresses()
            for told in self.route_changed:
                told(route.topic)
            self.tasks.start_soon(self._greet_new)
        return route

    async def _refresh_routes(self) -> None:
        """Ask for all routes again; what fails stays as it is."""
        async with anyio.create_task_group() as asking:
            for topic in self._topics:
                asking.start_soon(self.refreshed_route, topic)
        for address in self._routed - self.routes.addresses() - set(self.options.nameservers):
            await self._pool.drop(address)
            self._routed.discard(address)
            self._greeted.pop(address, None)
            self._beats.pop(address, None)

    async def refreshed_route(self, topic: str) -> None:
        """Ask for one route again; the old one stays when there is no answer. Raises nothing."""
        try:
            data = await self._asked_route(topic)
            if data is not None:
                self._keep(TopicRoute(topic, data))
        except TrioMQError as error:
            log.warning("the route of topic %s stays as it is: %s", topic, error)

    def doubt_route(self, topic: str) -> None:
        """A broker in it does not answer, or one that it lacks was named: ask for it again in the background."""
        doubt = self._doubts.setdefault(topic, _Doubt())
        if not (doubt.lock.statistics().locked or doubt.is_settled()):
            self.tasks.start_soon(self.renew_route, topic)

    async def renew_route(self, topic: str) -> None:
        """The same, and return when it is answered; at once if that was just now. Raises nothing."""
        doubt = self._doubts.setdefault(topic, _Doubt())
        async with doubt.lock:
            if not doubt.is_settled():
                await self.refreshed_route(topic)
                doubt.settled_s = anyio.current_time()

    # -- heartbeats

    async def heartbeat(self) -> None:
        """Tell all brokers who we are: at the start, every 30 s, and when subscriptions change."""
        async with anyio.create_task_group() as telling:
            for address in self._audience():
                telling.start_soon(self._beat, address)

    def _audience(self) -> set[Address]:
        """All brokers; the masters only when there is nothing to consume."""
        return {
            address
            for by_id in self.routes.brokers().values()
            for broker_id, address in by_id.items()
            if self.consumers or broker_id == 0
        }

    async def _beat(self, address: Address) -> None:
        if not (self.consumers or self.producer_groups):
            return
        async with self._beats.setdefault(address, anyio.Lock()):
            data = HeartbeatData(
                client_id=self.client_id,
                producer_data_set=tuple(ProducerData(g) for g in sorted(self.producer_groups)),
                consumer_data_set=tuple(make() for _, make in sorted(self.consumers.items())),
            )
            header, body = headers.HeartbeatRequest(), bodies.encode(data)
            try:
                await self.ask(address, RequestCode.HEART_BEAT, header, body)
                link = self._pool.living_link(address)
                if link is not None:
                    self._greeted[address] = link
            except PeerUnavailable as error:
                log.warning("heartbeat failed, the next one comes by itself: %s", error)
                # Without an answer the connection is half-open, most likely: pulls would wait for nobody over it.
                await self._pool.drop(address)
            except (PeerRefused, ProtocolError) as error:
                log.warning("heartbeat failed, the next one comes by itself: %s", error)

    def _linked(self, link: Link) -> None:
        """A broker that we lost, or that was started again, does not know us: tell it at once, not in 30 s."""
        if not self._leaving and link.address in self._audience():
            self.tasks.start_soon(self._greet, link.address)

    async def _greet(self, address: Address) -> None:
        """Tell a broker who we are, unless it was told over this connection, by a beat that is on its way, say."""
        if address in self._greeting:
            return
        self._greeting.add(address)
        try:
            async with self._beats.setdefault(address, anyio.Lock()):
                pass
            for _ in range(2):  # a second time when the connection was made again meanwhile
                if not self._is_greeted(address):
                    await self._beat(address)
                if self._pool.living_link(address) is None:
                    return
        finally:
            self._greeting.discard(address)

    def _is_greeted(self, address: Address) -> bool:
        link = self._pool.living_link(address)
        return link is not None and self._greeted.get(address) is link

    async def _greet_new(self) -> None:
        """Tell brokers that a new route names."""
        async with anyio.create_task_group() as telling:
            for address in self._audience():
                telling.start_soon(self._greet, address)

    async def farewell(self) -> None:
        """Tell brokers that we leave, so that others take our queues at once."""
        self._leaving = True
        audience = self._audience()
        async with anyio.create_task_group() as telling:
            for link in self._pool.living():
                if link.address in audience:
                    telling.start_soon(self._unregister, link.address)

    async def _unregister(self, address: Address) -> None:
        told = [(group, None) for group in self.producer_groups]
        told += [(None, group) for group in self.consumers]  # type: ignore[misc]
        try:
            for producer_group, consumer_group in told:
                header = headers.UnregisterClientRequest(
                    client_id=self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                )
                await self.ask(address, RequestCode.UNREGISTER_CLIENT, header, timeout_s=FAREWELL_S)
        except TrioMQError as error:
            log.info("%s was not told that client %s ends: %s", address, self.client_id, error)

    # -- life

    async def reach_nameserver(self) -> None:
        """Fail now, with all addresses in the text, when no name server answers."""
        with anyio.move_on_after(self.options.start_timeout_s):
            await self.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)
            return
        names = ", ".join(map(str, self.options.nameservers))
        raise PeerUnavailable(
            f"no name server answers within {self.options.start_timeout_s:g} s: {names}; "
            f"check the addresses and that a name server listens there"
        )

    def begin(self) -> None:
        """Start the periodic work."""
        options = self.options
        for period_s, work in (
            (options.route_interval_s, self._refresh_routes),
            (options.heartbeat_interval_s, self.heartbeat),
        ):
            self.tasks.start_soon(partial(forever, period_s, work, first_s=period_s))


@asynccontextmanager
async def open_instance(options: ClientOptions) -> AsyncIterator[Instance]:
    """An instance that has reached a name server. Raises PeerUnavailable when there is none."""
    here = world.current()
    stop = anyio.Event()
    made: list[Instance] = []

    def requested(link: Link, command: Command) -> Command | None:
        return made[0]._requested(link, command)

    def linked(link: Link) -> None:
        if made:
            made[0]._linked(link)

    def pool() -> Any:
        return open_pool(connect=here.connect, on_request=requested, on_link=linked)

    async with background() as shelter:
        try:
            links: LinkPool = await shelter.start(sheltered, pool, stop)
            async with background() as tasks:
                instance = Instance(options, here, tasks, links)
                made.append(instance)
                await instance.reach_nameserver()
                instance.begin()
                yield instance
        finally:
            if made:
                with anyio.move_on_after(FAREWELL_S, shield=True):
                    await made[0].farewell()
            stop.set()
