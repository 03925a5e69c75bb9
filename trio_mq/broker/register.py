"""Keeps name servers informed of this broker: its address and its topics.

In: the table of topics, news of its changes, the address that clients are told, and any number of
name servers, Apache's included. Out: registrations there, and what each of them says to it. Called
by ``system``. Source of the rules: Apache BrokerController.registerBrokerAll, BrokerOuterAPI.

Each name server has a task and a connection of its own: one that hangs delays no other. A broker is
registered at the start, ten seconds later, then every period; at once when a topic changes or when
a name server that was away is back. All of it is timed by Trio's clock, never by wall time.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs
import trio

from trio_mq.broker.topics import TopicTable
from trio_mq.config import Address, BrokerSettings
from trio_mq.errors import BodyError, HeaderError, PeerUnavailable
from trio_mq.net.dial import Connect, LinkPool, connect, open_pool
from trio_mq.net.link import Link
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from trio_mq.protocol.codes import Perm, RequestCode, ResponseCode
from trio_mq.protocol.command import Command

log = logging.getLogger("trio_mq.broker.register")

#: Time for one registration at one name server. Apache allows 24 s, which is then the time that a
#: hanging name server keeps its task from noticing anything else.
CALL_LIMIT_S: Final = 3.0
#: From the first registration to the second: by then a name server that started together with us
#: has surely come up.
SECOND_AFTER_S: Final = 10.0
#: Bounds of the period, as with Apache.
SHORTEST_PERIOD_S, LONGEST_PERIOD_S = 10.0, 60.0
#: Pauses after failures double between these two.
RETRY_FIRST_S, RETRY_LONGEST_S = 1.0, 10.0
#: Time to unregister everywhere at a stop.
UNREGISTER_LIMIT_S: Final = 1.0
#: Up to this many topics, a change is told with the whole table: a few milliseconds of work. Above,
#: only the changed topics are sent.
WHOLE_TABLE_TOPICS: Final = 200


@attrs.define(eq=False)
class NameServerState:
    """What is known of one name server. Times are of Trio's clock, in seconds."""

    address: Address
    registered: bool = False
    last_registered_s: float | None = None
    #: Why the last attempt failed, None if it did not.
    failure: str | None = None
    attempts: int = 0
    #: For a broker that is not the master: where the master is.
    master_address: str | None = None
    ha_address: str | None = None
    #: Order configurations that the name server hands out, by topic.
    order_topics: Mapping[str, str] = attrs.field(factory=dict)


@attrs.define(eq=False)
class _Line:
    """The work for one name server."""

    state: NameServerState
    #: Topics that changed since the last registration; None says that all have to be told.
    changed: set[str] | None = None
    #: Which address of ours it was told.
    told: Address | None = None
    #: The number of changes that it was told of.
    told_changes: int = 0
    wake: trio.Event = attrs.field(factory=trio.Event)


class Registrar:
    """Registers one broker at `nameservers`. `address` is what clients connect to."""

    def __init__(
        self,
        settings: BrokerSettings,
        address: Address,
        topics: TopicTable,
        *,
        nameservers: Sequence[Address],
        ha_address: str,
        connect: Connect = connect,
    ) -> None:
        self._settings = settings
        self._address = address
        self._ha_address = ha_address
        self._topics = topics
        self._connect = connect
        self._lines = [_Line(NameServerState(at)) for at in dict.fromkeys(nameservers)]
        self._progress = trio.Event()
        self._stopping = trio.Event()
        self._ended = trio.Event()
        self._bodies: tuple[DataVersion, list[bytes]] | None = None
        self._changes = 0

    @property
    def states(self) -> tuple[NameServerState, ...]:
        """What is known of each name server, in the order given."""
        return tuple(line.state for line in self._lines)

    def topic_changed(self, topic: str) -> None:
        """A topic was created, changed or deleted: tell it to all name servers now."""
        self._changes += 1
        for line in self._lines:
            if line.changed is not None:
                line.changed.add(topic)
            line.wake.set()

    def permission_changed(self) -> None:
        """What all topics allow has changed: tell all of them to all name servers now."""
        self._changes += 1
        for line in self._lines:
            line.changed = None
            line.wake.set()

    def advertise(self, address: Address, ha_address: str | None = None) -> None:
        """From now on clients are told another address."""
        self._address = address
        self._ha_address = ha_address or self._ha_address
        for line in self._lines:
            line.changed = None
            line.wake.set()

    async def registered_once(self, timeout_s: float, nameserver: Address | None = None) -> bool:
        """Wait for a registration at `nameserver`, else at the first one given; whether it came.

        Returns early, with False, when there is no such name server.
        """
        state = next(
            (s for s in self.states if nameserver is None or s.address == nameserver), None
        )
        with trio.move_on_after(timeout_s):
            while state is not None and not state.registered:
                await self._progress.wait()
        return state is not None and state.registered

    async def published(self, timeout_s: float) -> None:
        """Wait until every name server that we are registered at knows all changes made by now.

        Those that cannot be reached are not waited for, nor longer than `timeout_s`.
        """
        target = self._changes
        with trio.move_on_after(timeout_s):
            while any(n.state.registered and n.told_changes < target for n in self._lines):
                await self._progress.wait()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Register until cancelled; then unregister everywhere, which takes a second at most."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._work)
                task_status.started()
                try:
                    await trio.sleep_forever()
                finally:
                    self._stopping.set()
        finally:
            self._ended.set()

    async def close(self) -> None:
        """Wait until a cancelled :meth:`run` has unregistered."""
        await self._ended.wait()

    async def _work(self) -> None:
        """All connections. Shielded, for they are needed once more after a cancel; see below."""
        with trio.CancelScope(shield=True) as scope:
            async with open_pool(connect=self._connect) as pool:
                async with trio.open_nursery() as nursery:
                    for line in self._lines:
                        nursery.start_soon(self._keep, line, pool)
                    await self._stopping.wait()
                    # The one wait on the network that a stop makes: it ends when its time is over,
                    # however silent the name servers are.
                    scope.deadline = trio.current_time() + UNREGISTER_LIMIT_S
                    nursery.cancel_scope.cancel()
                async with trio.open_nursery() as nursery:
                    for line in self._lines:
                        if line.state.registered:
                            nursery.start_soon(self._leave, line.state, pool)
        left = [str(state.address) for state in self.states if state.registered]
        if left:
            log.warning("not unregistered within %g s at %s", UNREGISTER_LIMIT_S, ", ".join(left))

    # --- one name server

    async def _keep(self, line: _Line, pool: LinkPool) -> None:
        """Register at one name server for ever."""
        period_s = self._settings.register_nameserver_period_ms / 1000
        period_s = min(max(period_s, SHORTEST_PERIOD_S), LONGEST_PERIOD_S)
        pause_s, retry_s = SECOND_AFTER_S, RETRY_FIRST_S
        while True:
            line.wake = trio.Event()
            link = await self._register(line, pool)
            if link is None:
                await trio.sleep(retry_s)
                retry_s = min(2 * retry_s, RETRY_LONGEST_S)
                continue
            retry_s = RETRY_FIRST_S
            with trio.move_on_after(pause_s):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch, link, line)
                    await line.wake.wait()
                    nursery.cancel_scope.cancel()
            pause_s = period_s

    async def _watch(self, link: Link, line: _Line) -> None:
        """A name server that closes the connection has forgotten us, or is on its way out."""
        await link.wait_ended()
        line.state.registered = False
        line.changed = None
        line.wake.set()

    async def _register(self, line: _Line, pool: LinkPool) -> Link | None:
        """One registration; the link that it went over, None if it was not taken."""
        state, address, changes = line.state, self._address, self._changes
        changed, line.changed = line.changed, set()  # what changes from here on is told next
        state.attempts += 1
        try:
            link = await pool.link(state.address)
            for request in self._requests(changed):
                reply = await link.call(request, CALL_LIMIT_S)
                if reply.code != ResponseCode.SUCCESS:
                    raise PeerUnavailable(
                        f"{state.address}: refused with code {reply.code}: {reply.remark}"
                    )
                if request.code == RequestCode.REGISTER_BROKER:
                    self._taken(state, reply)
            line.told_changes = changes
            self._told(state)
        except (PeerUnavailable, HeaderError, BodyError) as error:
            self._failed(line, str(error))
            # A new connection next time: this one may be half dead.
            await pool.drop(state.address)
            return None
        if line.told not in (None, address):
            # Were the old address to expire there, it would take this connection along.
            await self._unregister(state, pool, line.told)
        line.told = address
        return link

    def _taken(self, state: NameServerState, reply: Command) -> None:
        answer = headers.decode(headers.RegisterBrokerReply, reply.ext)
        state.master_address, state.ha_address = answer.master_addr, answer.ha_server_addr
        state.order_topics = bodies.decode(bodies.KVTable, reply.body).table if reply.body else {}

    def _told(self, state: NameServerState) -> None:
        if not state.registered:
            log.info("registered %s at name server %s", self._address, state.address)
        state.registered = True
        state.last_registered_s = trio.current_time()
        state.failure = None
        self._progress.set()
        self._progress = trio.Event()

    def _failed(self, line: _Line, failure: str) -> None:
        state = line.state
        line.changed = None  # it may have forgotten us: the next time it gets everything
        state.registered = False
        if failure != state.failure:
            log.warning("cannot register at name server %s; trying again", failure)
        state.failure = failure
        self._progress.set()
        self._progress = trio.Event()

    def _requests(self, changed: set[str] | None) -> list[Command]:
        """What tells a name server all topics, or only those that changed when the table is large."""
        present = self._only_changed(changed)
        if present is None:
            return [self._registration(body) for body in self._whole_bodies()]
        if self._settings.enable_single_topic_register:
            return [self._single(config) for config in present.values()]
        return [self._registration(self._encode(self._topics.wrapper(present)))]

    def _single(self, config: TopicConfig) -> Command:
        """REGISTER_TOPIC_IN_NAMESRV: one topic, and no word about the others."""
        config = _limited(config, self._settings.broker_permission)
        queues = bodies.QueueData(
            broker_name=self._settings.broker_name,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_sys_flag=config.topic_sys_flag,
        )
        return Command(
            code=RequestCode.REGISTER_TOPIC_IN_NAMESRV,
            ext=headers.encode(headers.RegisterTopicRequest(config.topic_name)),
            body=bodies.encode(bodies.TopicRouteData(queue_datas=(queues,))),
        )

    def _registration(self, body: bytes) -> Command:
        """REGISTER_BROKER with some or all topics."""
        header = headers.RegisterBrokerRequest(
            broker_name=self._settings.broker_name,
            broker_addr=str(self._address),
            cluster_name=self._settings.cluster,
            ha_server_addr=self._ha_address,
            broker_id=self._settings.broker_id,
            enable_acting_master=False,
            body_crc32=zlib.crc32(body) & 0x7FFFFFFF,
        )
        return Command(code=RequestCode.REGISTER_BROKER, ext=headers.encode(header), body=body)

    def _only_changed(self, changed: set[str] | None) -> dict[str, TopicConfig] | None:
        """The changed topics of a large table; None where everything has to be told."""
        if not changed or len(self._topics) <= WHOLE_TABLE_TOPICS:
            return None
        found = {topic: self._topics.get(topic) for topic in changed}
        present = {topic: config for topic, config in found.items() if config is not None}
        return present if len(present) == len(found) else None  # what is gone is seen in the whole

    def _whole_bodies(self) -> list[bytes]:
        """All topics, encoded once for all name servers and until the table changes; in pieces when that is set."""
        assert len(self._topics) >= 2, "a first registration with one topic counts as an update"
        if self._bodies is None or self._bodies[0] != self._topics.version:
            self._bodies = (self._topics.version, [self._encode(w) for w in self._pieces()])
        return self._bodies[1]

    def _pieces(self) -> Iterator[TopicConfigSerializeWrapper]:
        size = self._settings.split_registration_size
        if not self._settings.enable_split_registration or len(self._topics) <= size:
            yield self._topics.wrapper()
            return
        for start in range(0, len(self._topics), size):
            yield self._topics.wrapper(self._topics.page(start, size))

    def _encode(self, wrapper: TopicConfigSerializeWrapper) -> bytes:
        allowed = self._settings.broker_permission
        if allowed & (Perm.READ | Perm.WRITE) != Perm.READ | Perm.WRITE:
            table = {
                topic: _limited(config, allowed)
                for topic, config in wrapper.topic_config_table.items()
            }
            wrapper = attrs.evolve(wrapper, topic_config_table=table)
        return bodies.encode(RegisterBrokerBody(wrapper))

    async def _leave(self, state: NameServerState, pool: LinkPool) -> None:
        if await self._unregister(state, pool, self._address):
            state.registered = False

    async def _unregister(self, state: NameServerState, pool: LinkPool, address: Address) -> bool:
        header = headers.UnRegisterBrokerRequest(
            self._settings.broker_name,
            str(address),
            self._settings.cluster,
            self._settings.broker_id,
        )
        request = Command(code=RequestCode.UNREGISTER_BROKER, ext=headers.encode(header))
        try:
            reply = await pool.call(state.address, request, CALL_LIMIT_S)
        except PeerUnavailable as error:
            log.info("not unregistered: %s", error)
            return False
        return reply.code == ResponseCode.SUCCESS


def _limited(config: TopicConfig, allowed: int) -> TopicConfig:
    """A topic under a broker permission that lacks R or W, as clients see it."""
    return attrs.evolve(config, perm=config.perm & allowed)
