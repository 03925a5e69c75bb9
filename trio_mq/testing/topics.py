"""A topic made over the wire, at a broker of a test.

In: the broker's address, a name, a number of queues. Out: the topic, known to the broker and to its name server. Called
by the pytest plugin in process, and by the process of a broker (:mod:`.serve`) for all other tests.
"""

from __future__ import annotations

from trio_mq.client import world
from trio_mq.config import parse_address
from trio_mq.errors import ConfigError, PeerRefused
from trio_mq.net.dial import open_pool
from trio_mq.protocol import headers
from trio_mq.protocol.codes import Perm, RequestCode, ResponseCode
from trio_mq.protocol.command import Command


async def create_topic(address: str, name: str, queues: int) -> None:
    """Make a topic that may be read and written; PeerRefused when the broker does not want it."""
    if queues < 1:
        raise ConfigError(f"queues: {queues} is below 1; a topic has at least one")
    header = headers.CreateTopicRequest(
        topic=name,
        default_topic="TBW102",
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=int(Perm.READ | Perm.WRITE),
        topic_filter_type="SINGLE_TAG",
    )
    command = Command(RequestCode.UPDATE_AND_CREATE_TOPIC, headers.encode(header))
    async with open_pool(connect=world.current().connect) as pool:
        reply = await pool.call(parse_address(address), command)
    if reply.code != ResponseCode.SUCCESS:
        what = f"topic {name}"
        raise PeerRefused(reply.code, reply.remark, address=address, what=what)
