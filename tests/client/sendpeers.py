"""A name server and brokers for tests of sending: in memory, each answers as the test says.

``Cluster({"b1": 4, "b2": 4})`` has topic "T" with four queues on each. ``cluster.answers["b1"]`` is a function of the
request that gives the reply, or None for silence; what arrived is in ``cluster.sends``.
"""

from __future__ import annotations

import anyio
import attrs
import trio

from trio_mq.client import world
from trio_mq.config.addresses import Address
from trio_mq.errors import PeerUnavailable
from trio_mq.protocol import bodies, headers
from trio_mq.protocol import command as commands
from trio_mq.protocol.bodies import BrokerData, QueueData, TopicRouteData
from trio_mq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader
from trio_mq.protocol.message import Host, offset_message_id
from trio_mq.protocol.properties import parse
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.links import MemoryNetwork

NAMESERVER = Address("ns", 9876)
NS = "ns:9876"
SENDS = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE)


@attrs.frozen
class Send:
    """A request that a broker got."""

    broker: str
    command: Command
    at_s: float

    @property
    def header(self):
        return headers.decode(headers.SendMessageRequestV2, self.command.ext)

    @property
    def queue_id(self):
        return self.header.queue_id

    @property
    def properties(self):
        return parse(self.header.properties.encode())

    @property
    def body(self):
        return self.command.body


class Cluster:
    """See the module."""

    def __init__(self, brokers=None, topics=("T",), auto_create=False):
        self.network = MemoryNetwork()
        self.sends: list[Send] = []
        self.asked: list[str] = []
        self.answers = {}
        self.delays_s = {}
        self.topics = set(topics)
        self.auto_create = auto_create
        self.queues = brokers or {"b1": 4}
        self.addresses = {name: Address(name, 10911) for name in self.queues}
        self.offsets = {}

    async def run(self, task_status=trio.TASK_STATUS_IGNORED):
        async with trio.open_nursery() as nursery:
            listener = self.network.listen(NAMESERVER)
            nursery.start_soon(listener.serve, self._serve_nameserver)
            for name in self.queues:
                self.start(nursery, name)
            task_status.started(nursery)
            await trio.sleep_forever()

    def start(self, nursery, name):
        """Let a broker listen (again)."""

        async def serve(stream):
            await self._serve(stream, name)

        nursery.start_soon(self.network.listen(self.addresses[name]).serve, serve)

    def stop(self, name):
        """Kill a broker: connections are reset, new ones refused."""
        self.network.close(self.addresses[name])

    def of(self, broker):
        return [send for send in self.sends if send.broker == broker]

    async def _serve_nameserver(self, stream):
        await self._serve(stream, None)

    async def _serve(self, stream, broker):
        reader = FrameReader()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    for frame in reader.feed(await stream.receive()):
                        command = commands.decode(frame)
                        if broker in self.delays_s:
                            nursery.start_soon(self._answer_later, stream, broker, command)
                        else:
                            await self._answer(stream, broker, command)
        except* (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            await trio.lowlevel.checkpoint()  # the client is gone

    async def _answer_later(self, stream, broker, command):
        at_s = trio.current_time()
        await trio.sleep(self.delays_s[broker])
        await self._answer(stream, broker, command, at_s)

    async def _answer(self, stream, broker, command, at_s=None):
        if broker is None:
            reply = self._route(command)
        elif command.code in SENDS:
            self.sends.append(Send(broker, command, trio.current_time() if at_s is None else at_s))
            reply = self.answers.get(broker, self.stored)(self.sends[-1])
        else:
            reply = Command(ResponseCode.SUCCESS)
        if reply is not None and not command.is_oneway:
            reply = attrs.evolve(reply, opaque=command.opaque, flag=FLAG_RESPONSE)
            await stream.send(commands.encode(reply))

    def stored(self, send, code=0):
        """The answer to a message that was stored."""
        at = send.broker, send.header.topic, send.queue_id
        self.offsets[at] = self.offsets.get(at, -1) + 1
        reply = headers.SendMessageReply(
            offset_message_id(Host("10.0.0.1", 10911), 100 * len(self.sends)), send.queue_id, self.offsets[at],
            transaction_id=send.properties.get("UNIQ_KEY"), msg_region="DefaultRegion", trace_on=True,
        )  # fmt: skip
        return Command(code, headers.encode(reply))

    def _route(self, command):
        if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return Command(
                ResponseCode.SUCCESS, body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
            )
        topic = command.ext["topic"]
        self.asked.append(topic)
        if topic not in self.topics and not (topic == "TBW102" and self.auto_create):
            return Command(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        data = TopicRouteData(
            queue_datas=tuple(QueueData(name, n, n, 6, 0) for name, n in self.queues.items()),
            broker_datas=tuple(
                BrokerData("c", name, {0: str(address)}) for name, address in self.addresses.items()
            ),
        )
        return Command(ResponseCode.SUCCESS, body=bodies.encode(data))


def refusing(code, remark="no"):
    """An answer that says no."""
    return lambda send: Command(code, remark=remark)


def silent(send):
    """No answer at all."""


def using(cluster):
    """Let clients live in the cluster's network, on Trio's clock."""

    async def connect(address, timeout_s=3.0):
        try:
            return await cluster.network.connect(address, timeout_s)
        except KeyError:
            raise PeerUnavailable(f"{address}: connection refused") from None

    return world.using(world.World(connect=connect, clock=TrioClock()))
