"""A cluster of scripted peers on a simulated network: what is asked is kept, what is answered is in a table."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import attrs
import trio

from trio_mq import Admin
from trio_mq.client import world
from trio_mq.client.world import World
from trio_mq.config.addresses import Address, parse_address
from trio_mq.protocol import bodies, command, headers
from trio_mq.protocol import properties as props
from trio_mq.protocol import record as records
from trio_mq.protocol.bodies import BrokerData, ClusterInfo, QueueData, TopicRouteData
from trio_mq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader
from trio_mq.protocol.message import Host
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.links import MemoryNetwork, MemoryStream

NS = "10.0.0.9:9876"
B1, B2, B3 = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"

Answer = Command | Callable[[Command], Command]


def ok(body=None, header=None) -> Command:
    """Yes, with a body value and a header value."""
    ext = {} if header is None else headers.encode(header)
    data = b"" if body is None else body if isinstance(body, bytes) else bodies.encode(body)
    return Command(ResponseCode.SUCCESS, ext, data)


def no(code: int, remark: str = "no") -> Command:
    return Command(code, {}, b"", remark=remark)


@attrs.define(eq=False)
class Peer:
    """Somebody who answers requests from a table; silent on what the table answers with None."""

    answers: dict[int, Answer | None] = attrs.field(factory=dict)
    asked: list[Command] = attrs.field(factory=list)

    def requests(self, code: RequestCode) -> list[Command]:
        return [each for each in self.asked if each.code == code]

    async def serve(self, stream: MemoryStream) -> None:
        reader = FrameReader()
        while data := await stream.receive_some():
            for frame in reader.feed(data):
                asked = command.decode(frame)
                self.asked.append(asked)
                answer = self.answers.get(asked.code, no(3, f"{asked.code} is not scripted"))
                reply = answer(asked) if callable(answer) else answer
                if reply is not None:
                    made = attrs.evolve(reply, flag=reply.flag | FLAG_RESPONSE, opaque=asked.opaque)
                    await stream.send_all(command.encode(made))


@attrs.define(eq=False)
class Cluster:
    """A name server and brokers b1, b2, ... by address."""

    network: MemoryNetwork
    nameserver: Peer
    brokers: dict[str, Peer]
    routes: dict[str, TopicRouteData] = attrs.field(factory=dict)

    def topic(self, name: str, queues: int = 1, brokers: int | None = None) -> None:
        """Give a topic a route."""
        table = dict(list(broker_table(self.brokers).items())[:brokers])
        self.routes[name] = TopicRouteData(
            tuple(QueueData(broker, queues, queues, 6) for broker in table), tuple(table.values())
        )

    def route(self, asked: Command) -> Command:
        data = self.routes.get(asked.ext["topic"])
        return no(17, "no topic route info") if data is None else ok(data)


def broker_table(addresses) -> dict[str, BrokerData]:
    return {
        f"b{number}": BrokerData("c1", f"b{number}", {0: address})
        for number, address in enumerate(addresses, 1)
    }


@asynccontextmanager
async def cluster(*addresses: str, down: tuple[str, ...] = ()) -> AsyncIterator[Cluster]:
    """Brokers at these addresses; those that are down are known to the name server, and nobody is there."""
    network = MemoryNetwork()
    made = Cluster(network, Peer(), {address: Peer() for address in addresses})
    table = broker_table(addresses)
    made.nameserver.answers |= {
        RequestCode.GET_BROKER_CLUSTER_INFO: ok(ClusterInfo(table, {"c1": tuple(table)})),
        RequestCode.GET_ROUTEINFO_BY_TOPIC: made.route,
    }
    async with trio.open_nursery() as nursery:
        for address, peer in {NS: made.nameserver, **made.brokers}.items():
            if address not in down:
                listener = network.listen(parse_address(address))
                nursery.start_soon(listener.serve, peer.serve)
        with world.using(World(connect=network.connect, clock=TrioClock())):
            yield made
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def administered(
    *addresses: str, down: tuple[str, ...] = (), **options
) -> AsyncIterator[tuple[Admin, Cluster]]:
    async with cluster(*addresses, down=down) as made, Admin(NS, **options) as admin:
        yield admin, made


def address(text: str) -> Address:
    return parse_address(text)


HOST = Host("10.0.0.1", 10911)


def record(offset: int, body: bytes = b"body", *, at_ms: int = 1_700_000_000_000, queue_id: int = 0,
           topic: str = "T", sys_flag: int = 0, **properties: str) -> bytes:  # fmt: skip
    """A stored message; its log offset is 1000 times its queue offset."""
    return records.pack(
        queue_id, 0, offset, 1000 * offset, sys_flag, at_ms, HOST.packed, at_ms, HOST.packed, 0, 0,
        body, topic.encode(), props.encode(properties),
    )  # fmt: skip


@attrs.define
class Queue:
    """A queue that answers pulls as a broker does: `batch` messages at once."""

    records: list[bytes]
    min_offset: int = 0
    batch: int = 2

    @property
    def max_offset(self) -> int:
        return self.min_offset + len(self.records)

    def pull(self, asked: Command) -> Command:
        at = int(asked.ext["queueOffset"])
        if at < self.min_offset:
            return self._reply(21, self.min_offset)
        if at > self.max_offset:
            return self._reply(21, self.max_offset)
        found = self.records[at - self.min_offset :][
            : min(self.batch, int(asked.ext["maxMsgNums"]))
        ]
        if not found:
            return self._reply(19, at)
        return self._reply(0, at + len(found), b"".join(found))

    def _reply(self, code: int, following: int, body: bytes = b"") -> Command:
        header = headers.PullMessageReply(0, following, self.min_offset, self.max_offset)
        return Command(code, headers.encode(header), body)


def serve_queues(peer: Peer, queues: dict[int, Queue]) -> None:
    """Let a broker have these queues of every topic."""

    def queue(asked: Command) -> Queue:
        return queues[int(asked.ext["queueId"])]

    peer.answers |= {
        RequestCode.PULL_MESSAGE: lambda asked: queue(asked).pull(asked),
        RequestCode.GET_MIN_OFFSET: lambda asked: ok(
            header=headers.GetMinOffsetReply(queue(asked).min_offset)
        ),
        RequestCode.GET_MAX_OFFSET: lambda asked: ok(
            header=headers.GetMaxOffsetReply(queue(asked).max_offset)
        ),
    }
