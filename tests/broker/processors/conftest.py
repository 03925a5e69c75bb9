"""A broker without sockets on the disk in memory, and a peer that keeps what is written to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest

from trio_mq.broker.clientcalls import ClientCalls
from trio_mq.broker.filters import Filters
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.holds import Holds
from trio_mq.broker.locks import QueueLocks
from trio_mq.broker.members import Members
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.processors.admin import Admin
from trio_mq.broker.processors.client import Clients
from trio_mq.broker.processors.offset import Offsets
from trio_mq.broker.processors.pull import Puller
from trio_mq.broker.processors.send import Sender
from trio_mq.broker.saver import Saver
from trio_mq.broker.stats import BrokerStats
from trio_mq.broker.tables import BrokerTables, load_tables
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings, Settings, StoreSettings
from trio_mq.net.requests import RequestTable
from trio_mq.protocol import bodies, command, headers
from trio_mq.protocol.bodies import HeartbeatData, ProducerData
from trio_mq.protocol.codes import FLAG_ONEWAY
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader
from trio_mq.protocol.message import Host
from trio_mq.store.store import Store, open_parts
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk

BROKER = "b-a"
HOST = Host("127.0.0.1", 10911)
STORE = StoreSettings(
    path="/store",
    mapped_file_size_commit_log=65_536,
    mapped_file_size_consume_queue=1_200,
    max_hash_slot_num=50,
    max_index_num=200,
)


class FakePeer:
    """The other end of a connection."""

    def __init__(self, port: int) -> None:
        self.address = Host("10.0.0.9", port)
        self.closed = False
        self._reader = FrameReader()
        self._commands: list[Command] = []

    def write(self, data: bytes) -> None:
        assert not self.closed
        self._commands += [command.decode(frame) for frame in self._reader.feed(data)]

    def close(self) -> None:
        self.closed = True

    def take(self) -> list[Command]:
        """What was written since the last look."""
        found, self._commands = self._commands, []
        return found


@attrs.define(eq=False, slots=False)
class Bench:
    """Everything that a processor needs, and short ways to use it."""

    disk: MemoryDisk
    clock: TrioClock
    settings: Settings
    store: Store
    tables: BrokerTables
    saver: Saver | None
    table: RequestTable = attrs.field(factory=lambda: RequestTable("broker"))
    members: Members = attrs.field(factory=Members)
    locks: QueueLocks = attrs.field(factory=QueueLocks)
    calls: ClientCalls = attrs.field(factory=ClientCalls)

    permission_changes: int = 0

    def __attrs_post_init__(self) -> None:
        mine = self.settings.broker
        self.topics: TopicTable = self.tables.topics.table
        self.groups: GroupTable = self.tables.groups.table
        self.offsets: ConsumerOffsets = self.tables.offsets.table
        store, topics, groups, offsets = self.store, self.topics, self.groups, self.offsets
        sender = Sender(store, topics, groups, mine, self.settings.store, self.clock, HOST)
        filters = Filters(mine)
        puller = Puller(store, topics, groups, offsets, self.members, Holds(5.0), filters, mine)
        self.sender, self.puller = sender, puller
        self.stats = BrokerStats(
            store.queues, self.clock, mine.cluster, topics.is_system, lambda: puller.missed
        )
        self.clients = Clients(topics, groups, self.members, self.locks, mine, self.calls, filters)
        self.clients.fill(self.table)
        Offsets(store, topics, groups, offsets, mine).fill(self.table)
        Admin(
            self.settings,
            store,
            topics,
            groups,
            offsets,
            self.members,
            sender,
            self.stats,
            self.clock,
            str(HOST),
            locks=self.locks,
            calls=self.calls,
            updates=self.tables.updates.table,
            permission_changed=self._permission_changed,
            saver=self.saver,
        ).fill(self.table)

    def _permission_changed(self) -> None:
        self.permission_changes += 1

    def ask(
        self,
        code: int,
        header: object | None = None,
        body: object | bytes = b"",
        *,
        peer: FakePeer | None = None,
        ext: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> Command | None:
        """Make a request; the reply, or None if there is none (yet)."""
        peer = peer or FakePeer(1)
        data = body if isinstance(body, bytes) else bodies.encode(body)
        fields = dict(ext or {}) if header is None else headers.encode(header)
        self.table.handle(peer, Command(code, fields, data, flag, 7), self.clock.now_ms())
        replies = [found for found in peer.take() if found.is_response]
        assert len(replies) <= 1
        if not replies:
            return None
        assert replies[0].opaque == 7
        return replies[0]

    def send_oneway(self, code: int, header: object | None = None, **more: Any) -> None:
        """Make a request that must not be answered."""
        assert self.ask(code, header, flag=FLAG_ONEWAY, **more) is None

    def put(self, topic: str, queue_id: int = 0, count: int = 1) -> None:
        """Store messages."""
        queue = self.store.queues.obtain(topic, queue_id)
        for _ in range(count):
            self.store.append(
                queue,
                b"body",
                b"",
                token=None,
                born_timestamp_ms=0,
                born_host=HOST.packed,
                now_ms=self.clock.now_ms(),
            )
        self.store.commit()

    def beat(self, peer: FakePeer, client_id: str, *consumers: Any, producers: Any = ()) -> None:
        """A heartbeat of version 1; what it makes the broker write stays with the peers."""
        data = HeartbeatData(client_id, tuple(map(ProducerData, producers)), consumers)
        self.table.handle(peer, Command(34, {}, bodies.encode(data), 0, 1), self.clock.now_ms())


async def make_bench(saver: bool = False, **settings: Any) -> Bench:
    clock, disk = TrioClock(), MemoryDisk()
    all_settings = Settings(
        broker=BrokerSettings(broker_name=BROKER, **settings), store=attrs.evolve(STORE)
    )
    mine = all_settings.broker
    tables = await load_tables(
        disk,
        "/store/config",
        clock,
        topics=TopicTable(mine, clock),
        groups=GroupTable(mine, clock),
        offsets=ConsumerOffsets(mine, clock),
    )
    parts = open_parts(disk, all_settings.store, clock, lambda topic: False)
    parts.log.segments.load()
    parts.index.load()
    parts.log.open_at(0)
    store = Store(parts, clock, HOST)
    return Bench(disk, clock, all_settings, store, tables, Saver(tables, 5.0) if saver else None)


@pytest.fixture
async def bench():
    return await make_bench()
