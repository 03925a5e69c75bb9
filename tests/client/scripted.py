"""Name servers and brokers for odd answers: what is asked is kept, what is answered is in a table."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import trio

from trio_mq.client import world
from trio_mq.client.world import World
from trio_mq.config.addresses import parse_address
from trio_mq.protocol import bodies, command
from trio_mq.protocol.bodies import BrokerData, QueueData, TopicRouteData
from trio_mq.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.hosts import MemoryHost


class Scripted:
    """A handler of one address. `answers` maps codes to replies; all else succeeds, or, `silent`, is not answered."""

    def __init__(self, answers=None, *, silent=False):
        self.answers = {RequestCode.GET_BROKER_CLUSTER_INFO: Command(0, body=b"{}")} | (
            answers or {}
        )
        self.silent = silent
        self.asked, self.replies, self.peers = [], [], []
        self._at_s = []
        self._began_s = trio.current_time()

    def times(self, code):
        """When requests of a code came, in whole seconds since this began."""
        pairs = zip(self._at_s, self.asked, strict=True)
        return [round(at_s - self._began_s) for at_s, asked in pairs if asked.code == code]

    def ask(self, request):
        """Ask the client that is connected."""
        self.peers[-1].write(command.encode(request))

    def opened(self, peer):
        self.peers.append(peer)

    def disconnected(self, peer):
        self.peers.remove(peer)

    def received(self, peer, frames):
        for frame in frames:
            asked = command.decode(frame)
            if asked.is_response:
                self.replies.append(asked)
                continue
            self.asked.append(asked)
            self._at_s.append(trio.current_time())
            if not self.silent:
                reply = self.answers.get(asked.code, Command(ResponseCode.SUCCESS))
                made = attrs.evolve(reply, flag=FLAG_RESPONSE, opaque=asked.opaque)
                peer.write(command.encode(made))


def route_of(topic, brokers, queues=4):
    """The answer to a question for a route, with a master for each broker name."""
    data = TopicRouteData(
        queue_datas=tuple(QueueData(name, queues, queues, 6) for name in brokers),
        broker_datas=tuple(BrokerData("c", name, {0: at}) for name, at in brokers.items()),
    )
    return Command(ResponseCode.SUCCESS, body=bodies.encode(data))


@asynccontextmanager
async def serving(network, peers):
    """Let each handler serve its address; clients that are opened inside the block live there."""
    async with trio.open_nursery() as nursery:
        for text, handler in peers.items():
            address = parse_address(text)
            host = MemoryHost(network, address.host)
            port = host.listen(address.host, address.port, purpose="scripted")
            await nursery.start(host.serve, [port], handler)
        with world.using(World(connect=network.connect, clock=TrioClock())):
            yield
        nursery.cancel_scope.cancel()
