"""Keeps name servers informed of this broker: its address and its topics.

In: the table of topics, news of its changes, the address that clients are told, and any number of
name servers, Apache's included. Out: registrations there, and what each of them says to it; for the
role of a broker and for replication, which other brokers of its name there are, and the master among
them. Called by ``system``. Source of the rules: Apache BrokerController.registerBrokerAll,
BrokerOuterAPI, BrokerController.syncBrokerMemberGroup.

Each name server has a task and a connection of its own: one that hangs delays no other. A broker is
registered at the start, ten seconds later, then every period; at once when a topic changes or when
a name server that was away is back. A broker whose group may have an acting master
(`enableSlaveActingMaster`) also gives a sign of life and asks for the members every
`brokerHeartbeatInterval`. All of it is timed by Trio's clock, never by wall time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs
import trio

from trio_mq.broker.groupnews import GroupNews, Master
from trio_mq.broker.registrations import Registrations
from trio_mq.broker.role import Role
from trio_mq.broker.topics import TopicTable
from trio_mq.config import Address, BrokerSettings
from trio_mq.config.ha import HASettings
from trio_mq.errors import BodyError, ConfigError, HeaderError, PeerUnavailable
from trio_mq.net.address import parse_address
from trio_mq.net.dial import Connect, LinkPool, connect, open_pool
from trio_mq.net.link import Link
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command

log = logging.getLogger("trio_mq.broker.register")

#: Time for a sign of life, and for a farewell.
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
    #: Whether its last answer about the members of our name could not be read.
    garbled: bool = False
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
        ha: HASettings | None = None,
        role: Role | None = None,
        connect: Connect = connect,
    ) -> None:
        self._settings = settings
        self._ha = ha or HASettings()
        self._role = role or Role()
        self._say = Registrations(
            settings, self._ha, topics, address=address, ha_address=ha_address
        )
        self._connect = connect
        #: Called with the addresses of the master to follow, for clients and for slaves; with None for both when
        #: name servers know none any more. The second is None while it is not known.
        self.master_changed: Callable[[Address | None, Address | None], None] | None = None
        self._news = GroupNews(list(dict.fromkeys(nameservers)), settings.broker_id)
        self._followed: Master | None = None
        self._lines = [_Line(NameServerState(at)) for at in dict.fromkeys(nameservers)]
        self._progress = trio.Event()
        self._stopping = trio.Event()
        self._ended = trio.Event()
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
        self._say.address = address
        self._say.ha_address = ha_address or self._say.ha_address
        for line in self._lines:
            line.changed = None
            line.wake.set()

    def ask_again(self) -> None:
        """Register at all name servers now: where the master is, or whether there is one, may have changed."""
        for line in self._lines:
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
            async with open_pool(connect=self._connect, on_request=self._requested) as pool:
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
                    if self._ha.enable_slave_acting_master:
                        nursery.start_soon(self._live, link, line)
                    await line.wake.wait()
                    nursery.cancel_scope.cancel()
            pause_s = period_s

    async def _watch(self, link: Link, line: _Line) -> None:
        """A name server that closes the connection has forgotten us, or is on its way out."""
        await link.wait_ended()
        line.state.registered = False
        line.changed = None
        line.wake.set()

    async def _live(self, link: Link, line: _Line) -> None:
        """Give signs of life, and see who else does. A name server that does not answer is registered at anew."""
        interval_s = self._ha.broker_heartbeat_interval_ms / 1000
        while True:
            await trio.sleep(interval_s)
            try:
                await link.call(self._say.heartbeat(), CALL_LIMIT_S)
                reply = await link.call(self._say.members(), CALL_LIMIT_S)
            except PeerUnavailable as error:
                log.warning("a sign of life failed, registering anew: %s", error)
                line.wake.set()
                return
            if reply.code != ResponseCode.SUCCESS:
                continue  # of before release 5: it knows no such request
            try:
                members = _members(reply.body)
            except BodyError as error:
                # Told once, not every second, and no reason to register anew: that would change nothing.
                if not line.garbled:
                    what = "%s: its members of our name cannot be read: %s"
                    log.warning(what, link.address, error)
                line.garbled = True
                continue
            line.garbled = False
            is_new = self._news.has_members(line.state.address, members)
            self._publish()
            if is_new:
                line.wake.set()

    async def _register(self, line: _Line, pool: LinkPool) -> Link | None:
        """One registration; the link that it went over, None if it was not taken."""
        state, address, changes = line.state, self._say.address, self._changes
        changed, line.changed = line.changed, set()  # what changes from here on is told next
        state.attempts += 1
        limit_s = self._settings.register_broker_timeout_ms / 1000
        try:
            link = await pool.link(state.address)
            for request in self._say.changes(changed):
                reply = await link.call(request, limit_s)
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
        self._news.answered(state.address, _master(answer.master_addr, answer.ha_server_addr))
        self._publish()
        state.order_topics = bodies.decode(bodies.KVTable, reply.body).table if reply.body else {}

    def _told(self, state: NameServerState) -> None:
        if not state.registered:
            log.info("registered %s at name server %s", self._say.address, state.address)
        state.registered = True
        state.last_registered_s = trio.current_time()
        state.failure = None
        self._progress.set()
        self._progress = trio.Event()

    def _failed(self, line: _Line, failure: str) -> None:
        state = line.state
        line.changed = None  # it may have forgotten us: the next time it gets everything
        self._news.unreachable(state.address)
        self._publish()
        state.registered = False
        if failure != state.failure:
            log.warning("cannot register at name server %s; trying again", failure)
        state.failure = failure
        self._progress.set()
        self._progress = trio.Event()

    async def _leave(self, state: NameServerState, pool: LinkPool) -> None:
        if await self._unregister(state, pool, self._say.address):
            state.registered = False

    async def _unregister(self, state: NameServerState, pool: LinkPool, address: Address) -> bool:
        request = self._say.farewell(address)
        try:
            reply = await pool.call(state.address, request, CALL_LIMIT_S)
        except PeerUnavailable as error:
            log.info("not unregistered: %s", error)
            return False
        return reply.code == ResponseCode.SUCCESS

    # --- the others of our name

    def _requested(self, link: Link, command: Command) -> Command | None:
        """What a name server asks: NOTIFY_MIN_BROKER_ID_CHANGE, one-way."""
        if command.code != RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE:
            remark = f"request code {command.code} is not supported by a broker here"
            return Command(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            notice = headers.decode(headers.NotifyMinBrokerIdChangeRequest, command.ext)
        except HeaderError as error:
            return Command(ResponseCode.SYSTEM_ERROR, remark=str(error))
        if notice.min_broker_id is None or notice.broker_name not in (
            None,
            self._settings.broker_name,
        ):
            return Command(ResponseCode.SUCCESS)
        log.info(
            "name server %s: the smallest broker id of %s is %d now, at %s (gone: %s)",
            *(link.address, self._settings.broker_name, notice.min_broker_id),
            *(notice.min_broker_addr, notice.offline_broker_addr),
        )
        master = _master(notice.min_broker_addr, notice.ha_broker_addr)
        offline = _address(notice.offline_broker_addr)
        if self._news.noticed(link.address, notice.min_broker_id, master, offline):
            self.ask_again()
        self._publish()
        return Command(ResponseCode.SUCCESS)

    def _publish(self) -> None:
        """Tell the role, and who follows the master, what is new."""
        news = self._news
        self._role.hear(
            master_registered=news.registered, min_broker_id=news.min_id, alive=news.alive
        )
        master = news.master if news.registered else None
        if self._settings.broker_id == 0 or master == self._followed:
            return
        self._followed = master
        if master is None:
            log.warning("no name server knows a master of %s any more", self._settings.broker_name)
        else:
            log.info(
                "the master of %s is at %s, for slaves at %s",
                *(self._settings.broker_name, master.address, master.ha_address or "(not told)"),
            )
        if self.master_changed is None:
            return
        if master is None:
            self.master_changed(None, None)
        else:
            self.master_changed(master.address, master.ha_address)


def _address(text: str | None) -> Address | None:
    """An address that a name server told; None for none, and for what is none."""
    if not text:
        return None
    try:
        return parse_address(text, what="address of a broker")
    except ConfigError as error:
        log.warning("a name server tells an address that is none: %s", error)
        return None


def _members(body: bytes) -> dict[int, Address]:
    """Brokers of our name by id, of an answer to GET_BROKER_MEMBER_GROUP; without those whose address is none."""
    group = bodies.decode(bodies.GetBrokerMemberGroupReplyBody, body).broker_member_group
    found = {} if group is None else {i: _address(text) for i, text in group.broker_addrs.items()}
    return {number: at for number, at in found.items() if at}


def _master(address: str | None, ha_address: str | None) -> Master | None:
    at = _address(address)
    return None if at is None else Master(at, _address(ha_address))
