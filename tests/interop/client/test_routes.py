"""The base of all clients: routes, heartbeats, refusals."""

from __future__ import annotations

import pytest

from tests.backends import both
from trio_mq.client.instance import open_instance
from trio_mq.client.options import ClientOptions
from trio_mq.errors import NoRoute, PeerRefused
from trio_mq.protocol import bodies, headers
from trio_mq.protocol.bodies import ConsumerData
from trio_mq.protocol.codes import RequestCode


@both
async def test_a_route_names_the_queues_of_all_brokers(cluster):
    topic = cluster.topic(4)
    async with open_instance(ClientOptions.of(cluster.ns)) as instance:
        route = await instance.route(topic)
        assert [queue.queue_id for queue in route.publish_queues] == [0, 1, 2, 3]
        assert route.read_queues == route.publish_queues
        assert instance.routes.address("b1") in instance.routes.addresses()


@both
async def test_an_unknown_topic_has_no_route_until_it_is_sent_to(cluster):
    async with open_instance(ClientOptions.of(cluster.ns)) as instance:
        with pytest.raises(NoRoute, match=r"nowhere.*create it"):
            await instance.route("nowhere")
        route = await instance.route("nowhere", to_send=True)
        assert len(route.publish_queues) == 4


@both
async def test_brokers_know_a_client_while_its_block_runs(cluster):
    topic, group = cluster.topic(1), cluster.group()
    who = headers.GetConsumerListByGroupRequest(consumer_group=group)
    async with open_instance(ClientOptions.of(cluster.ns)) as watching:
        await watching.route(topic)
        broker = watching.routes.address("b1")
        async with open_instance(ClientOptions.of(cluster.ns)) as instance:
            instance.consumers[group] = lambda: ConsumerData(group)
            await instance.route(topic)
            await instance.heartbeat()
            reply = await watching.ask(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, who)
            found = bodies.decode(bodies.ConsumerIdList, reply.body)
            assert found.consumer_id_list == (instance.client_id,)
        with pytest.raises(PeerRefused):
            await watching.ask(broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, who)
