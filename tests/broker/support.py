"""A whole broker without sockets on a disk in memory, peers that keep what they are sent, and frames to send.

Frames of sends and pulls are written as the Java client writes them, so that they take the short ways; with
`long_way=True` the same fields go another way (a binary header), which must end the same.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from trio_mq.broker.broker import Broker
from trio_mq.broker.groups import GroupTable
from trio_mq.broker.offsets import ConsumerOffsets
from trio_mq.broker.remoting import RemotingFace
from trio_mq.broker.safety import Replicas
from trio_mq.broker.tables import BrokerTables, load_tables
from trio_mq.broker.topics import TopicTable
from trio_mq.config import BrokerSettings, Settings, StoreSettings
from trio_mq.config.ha import HASettings
from trio_mq.protocol import bodies, command, headers
from trio_mq.protocol.bodies import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
    TopicConfig,
)
from trio_mq.protocol.codes import FLAG_ONEWAY, RequestCode, ResponseCode, SerializeType
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader, RawFrame
from trio_mq.protocol.headers.pull import PullMessageRequest
from trio_mq.protocol.headers.send import SendMessageRequest, SendMessageRequestV2
from trio_mq.protocol.message import Host, java_hash
from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.recovery.recover import recover
from trio_mq.store.store import Store, open_parts
from trio_mq.tasks import stage
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk

TOPIC, GROUP = "T", "CG"
HOST = Host("192.168.1.5", 10911)
BROKER = BrokerSettings(broker_name="b-a")
STORE = StoreSettings(
    path="/store",
    mapped_file_size_commit_log=65_536,
    mapped_file_size_consume_queue=1_200,
    mapped_file_size_batch_consume_queue=4_600,
    max_hash_slot_num=50,
    max_index_num=2_000,
)
#: sysFlag of a pull: suspend, and the expression is in the request.
SUSPEND, NOW = 6, 4
_opaques = itertools.count(1)
_ports = itertools.count(40_000)


class FakePeer:
    """The other end of a connection, as the face sees it. `takes_bytes` is what it reads before it stalls."""

    def __init__(self, ip: str = "10.0.0.9", *, takes_bytes: int | None = None) -> None:
        self.address = Host(ip, next(_ports))
        self.packed_address = self.address.packed
        self.closed = False
        self.stalled = False
        self.writes = 0
        self._takes_bytes = takes_bytes
        self._reader = FrameReader()
        self._commands: list[Command] = []
        self._written: trio.Event | None = None

    def write(self, data: bytes) -> None:
        if self.closed or not data:
            return
        self.writes += 1
        if self._takes_bytes is not None:
            self._takes_bytes -= len(data)
            self.stalled = self._takes_bytes < 0
        frames = self._reader.feed(data)
        assert self._reader.failure is None
        assert self._reader.buffered_bytes == 0, "half a frame was written"
        self._commands += [command.decode(frame) for frame in frames]
        if self._written is not None:
            self._written.set()

    async def written(self) -> None:
        """Wait until something is there to be taken."""
        while not self._commands:
            self._written = trio.Event()
            await self._written.wait()

    def close(self) -> None:
        self.closed = self.stalled = True

    def take(self) -> list[Command]:
        """What was written since the last look."""
        found, self._commands = self._commands, []
        return found

    def one(self) -> Command:
        """The only command that was written since the last look."""
        (found,) = self.take()
        return found


# -- frames --------------------------------------------------------------------------------------------------------


def request(
    code: int,
    header: object | None = None,
    body: object | bytes = b"",
    *,
    ext: Mapping[str, str] | None = None,
    flag: int = 0,
    opaque: int | None = None,
) -> RawFrame:
    """A frame in the ordinary form."""
    fields = dict(ext or {}) if header is None else headers.encode(header)
    data = body if isinstance(body, bytes) else bodies.encode(body)
    number = next(_opaques) if opaque is None else opaque
    return raw(Command(code, fields, data, flag, number))


def raw(value: Command) -> RawFrame:
    """A command as it comes out of a frame reader."""
    (frame,) = FrameReader().feed(command.encode(value))
    return frame


def java(code: int, ext: Mapping[str, str], body: bytes, flag: int, opaque: int) -> RawFrame:
    """A frame with the header exactly as a Java client writes it."""
    header = {
        "code": code,
        "extFields": dict(ext),
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 493,
    }
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False)
    return (0, text.encode(), body)


def _made(
    code: int, fields: object, body: bytes, flag: int, opaque: int | None, *, long_way: bool
) -> RawFrame:
    number = next(_opaques) if opaque is None else opaque
    ext = headers.encode(fields)
    if long_way:
        return raw(Command(code, ext, body, flag, number, serialize=SerializeType.ROCKETMQ))
    return java(code, ext, body, flag, number)


def props(**pairs: str) -> str:
    """The text of properties, every pair terminated."""
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs.items())


def send(
    topic: str = TOPIC,
    body: bytes = b"hello",
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    flag: int = 0,
    opaque: int | None = None,
    long_way: bool = False,
    **fields: Any,
) -> RawFrame:
    """A send; `fields` are those of :class:`SendMessageRequest`."""
    made: dict[str, Any] = {
        "producer_group": "PG",
        "topic": topic,
        "default_topic": "TBW102",
        "default_topic_queue_nums": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_timestamp": 1_699_999_999_999,
        "flag": 0,
        "properties": None,
        "reconsume_times": 0,
        "unit_mode": False,
        "batch": False,
    } | fields
    kind = SendMessageRequest if code == RequestCode.SEND_MESSAGE else SendMessageRequestV2
    return _made(code, kind(**made), body, flag, opaque, long_way=long_way)


def pull(
    offset: int = 0,
    topic: str = TOPIC,
    *,
    queue_id: int = 0,
    group: str = GROUP,
    code: int = RequestCode.PULL_MESSAGE,
    flag: int = 0,
    opaque: int | None = None,
    long_way: bool = False,
    **fields: Any,
) -> RawFrame:
    """A pull that does not wait, for all tags; `fields` are those of :class:`PullMessageRequest`."""
    made: dict[str, Any] = {
        "consumer_group": group,
        "topic": topic,
        "queue_id": queue_id,
        "queue_offset": offset,
        "max_msg_nums": 32,
        "sys_flag": NOW,
        "commit_offset": 0,
        "suspend_timeout_millis": 15_000,
        "sub_version": 1,
        "subscription": "*",
        "expression_type": "TAG",
    } | fields
    return _made(code, PullMessageRequest(**made), b"", flag, opaque, long_way=long_way)


def messages(reply: Command) -> list[StoredMessage]:
    """The messages in the body of a reply."""
    found = []
    at = 0
    while at < len(reply.body):
        message = decode(reply.body, at)
        found.append(message)
        at += message.size
    return found


def texts(reply: Command) -> list[bytes]:
    """The bodies of the messages in a reply."""
    return [message.body for message in messages(reply)]


# -- a broker --------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class Bench:
    """A broker that works, and short ways to use it."""

    disk: MemoryDisk
    clock: TrioClock
    settings: Settings
    store: Store
    broker: Broker
    tables: BrokerTables
    nursery: trio.Nursery

    @property
    def topics(self) -> TopicTable:
        return self.tables.topics.table

    @property
    def groups(self) -> GroupTable:
        return self.tables.groups.table

    @property
    def offsets(self) -> ConsumerOffsets:
        return self.tables.offsets.table

    @property
    def face(self) -> RemotingFace:
        return self.broker.face

    def hand(self, peer: FakePeer, *frames: RawFrame) -> None:
        """Let frames arrive together."""
        self.face.received(peer, list(frames))

    def ask(self, frame: RawFrame, peer: FakePeer | None = None) -> Command:
        """The reply to one request, which is answered at once."""
        peer = peer or FakePeer()
        peer.take()
        self.hand(peer, frame)
        return peer.one()

    async def answer(self, frame: RawFrame, peer: FakePeer | None = None) -> Command:
        """The reply to one request, which may take some time."""
        peer = peer or FakePeer()
        peer.take()
        self.hand(peer, frame)
        return await self.next(peer)

    async def next(self, peer: FakePeer) -> Command:
        """The next reply to a peer."""
        with trio.fail_after(60):
            await peer.written()
        (reply,) = peer.take()
        return reply

    def create(self, topic: str = TOPIC, queues: int = 4, perm: int = 6, **attributes: str) -> None:
        """Create a topic."""
        config = TopicConfig(topic, queues, queues, perm)
        changes = ",".join(f"+{name.replace('_', '.')}={v}" for name, v in attributes.items())
        self.topics.update(config, changes or None)

    def put(
        self, *bodies_: bytes, topic: str = TOPIC, tags: str | None = None, **fields: Any
    ) -> None:
        """Store messages; they are visible at once unless the flush is synchronous."""
        if tags is not None:
            fields["properties"] = props(TAGS=tags)
        peer = FakePeer()
        self.hand(peer, *(send(topic, body, **fields) for body in bodies_))
        assert [reply.code for reply in peer.take()] == [ResponseCode.SUCCESS] * len(bodies_)

    def beat(
        self,
        peer: FakePeer,
        *topics: str,
        group: str = GROUP,
        tags: str = "*",
        version: int = 1,
        model: MessageModel = MessageModel.CLUSTERING,
        expression_type: str = "TAG",
    ) -> None:
        """A consumer's heartbeat."""
        subscriptions = tuple(
            SubscriptionData(
                topic=topic, sub_string=tags, sub_version=version, expression_type=expression_type
            )
            for topic in topics
        )
        consumer = ConsumerData(
            group,
            ConsumeType.CONSUME_PASSIVELY,
            model,
            ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscriptions,
        )
        data = HeartbeatData(f"client@{peer.address.port}", (), (consumer,))
        self.hand(peer, request(RequestCode.HEART_BEAT, body=data))
        assert [c.code for c in peer.take() if c.is_response] == [ResponseCode.SUCCESS]

    def stored(self) -> list[StoredMessage]:
        """All records in the log, by reading it from its start."""
        log, at, found = self.store.log, self.store.log.start, []
        while at < log.written:
            record = self.store.reader.record(at)
            if record is None:  # the rest of a segment
                at = log.segments.segment_of(at) + log.segments.segment_bytes
                continue
            found.append(decode(record))
            at += len(record)
        return found


def is_batch(topics: TopicTable, topic: str) -> bool:
    config = topics.get(topic)
    return config is not None and config.attributes.get("queue.type") == "BatchCQ"


@asynccontextmanager
async def serving(
    disk: MemoryDisk | None = None,
    *,
    host: Host = HOST,
    broker: BrokerSettings = BROKER,
    store: StoreSettings = STORE,
    ha: HASettings | None = None,
    primary: Replicas | None = None,
    clock: TrioClock | None = None,
    clean_stop: bool = True,
) -> AsyncIterator[Bench]:
    """A recovered, working broker, stopped in order at the end; or, without `clean_stop`, just cancelled."""
    disk, clock = disk or MemoryDisk(), clock or TrioClock()
    settings = Settings(broker=broker, store=store, ha=ha or HASettings())
    topics = TopicTable(broker, clock)
    parts = open_parts(disk, store, clock, lambda topic: is_batch(topics, topic))
    try:
        tables = await load_tables(
            disk,
            f"{store.path}/config",
            clock,
            topics=topics,
            groups=GroupTable(broker, clock),
            offsets=ConsumerOffsets(broker, clock),
            lmq=store.enable_lmq,
        )
        await recover(parts)
        kept = Store(parts, clock, host)
        await kept.start()
        made = Broker(settings, kept, tables, clock, str(host), primary)
        async with stage() as outer:
            await outer.start(kept.run)
            async with stage() as inner:
                await inner.start(made.run)
                yield Bench(disk, clock, settings, kept, made, tables, inner)
            if clean_stop:
                await made.close()
        if clean_stop:
            await kept.close()
    finally:
        parts.release()


def oneway(frame: RawFrame) -> RawFrame:
    """The same request, one-way."""
    value = command.decode(frame)
    return raw(attrs.evolve(value, flag=value.flag | FLAG_ONEWAY))


#: Two tags with one Java hash.
COLLIDING = ("Aa", "BB")
assert java_hash(COLLIDING[0]) == java_hash(COLLIDING[1])
