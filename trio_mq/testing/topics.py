"""Topics and groups of one test, made and deleted over the wire.

In: the address of a broker, names. Out: a topic that the broker and its name server know; or nothing that is left of a
test. Called by the pytest plugin in process, and by the process of a broker (:mod:`.child`) for all other tests.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from trio_mq.client import world
from trio_mq.config import parse_address
from trio_mq.errors import ConfigError, PeerRefused
from trio_mq.net.dial import open_pool
from trio_mq.protocol import headers
from trio_mq.protocol.codes import Perm, RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.topics import AUTO_CREATE_TOPIC, DLQ_PREFIX, RETRY_PREFIX


async def create_topic(address: str, name: str, queues: int) -> None:
    """Make a topic that may be read and written; PeerRefused when the broker does not want it."""
    if queues < 1:
        raise ConfigError(f"queues: {queues} is below 1; a topic has at least one")
    header = headers.CreateTopicRequest(
        topic=name,
        default_topic=AUTO_CREATE_TOPIC,
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


async def forget(address: str, topics: Sequence[str], groups: Sequence[str]) -> None:
    """Delete topics, and groups with their retry topics and positions; what is not there is left out.

    A broker writes all of its topics with every change, so that a run of thousands of tests, each with some of its own,
    would get slower with each. All requests go out together: the broker saves once for all of them.
    """
    own = [f"{prefix}{group}" for group in groups for prefix in (RETRY_PREFIX, DLQ_PREFIX)]
    commands = [
        Command(
            RequestCode.DELETE_TOPIC_IN_BROKER, headers.encode(headers.DeleteTopicRequest(topic))
        )
        for topic in (*topics, *own)
    ] + [
        Command(
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            headers.encode(headers.DeleteSubscriptionGroupRequest(group, clean_offset=True)),
        )
        for group in groups
    ]
    async with (
        open_pool(connect=world.current().connect) as pool,
        anyio.create_task_group() as deleting,
    ):
        for command in commands:
            deleting.start_soon(pool.call, parse_address(address), command)
