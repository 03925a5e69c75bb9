"""Roles in a cluster: what name servers tell of a group, and what its brokers do when one of them is gone."""

from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import trio

from tests.broker.support import NOW, send
from trio_mq.config.ha import BrokerRole, HASettings
from trio_mq.net.dial import open_pool
from trio_mq.protocol import bodies, command, headers
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.testing.cluster import SimulatedCluster

#: For a slave to get what its master has, its tables included.
FOLLOWED_S = 12.0
ACTING = HASettings(enable_slave_acting_master=True)
NAMES = {"support_acting_master": True, "notify_min_broker_id_changed": True}


@attrs.define(eq=False)
class Group:
    """A master with slaves, and requests to them by hand."""

    cluster: SimulatedCluster
    nodes: list
    pool: object

    async def ask(self, node, code, header=None, body=b""):
        ext = {} if header is None else headers.encode(header)
        return await self.pool.call(node.address, Command(code, ext, body), 5)

    async def send(self, node, body, **fields):
        return await self.pool.call(node.address, command.decode(send(body=body, **fields)), 5)

    async def max_offset(self, node, topic="T", queue_id=0):
        header = headers.GetMaxOffsetRequest(topic=topic, queue_id=queue_id)
        reply = await self.ask(node, RequestCode.GET_MAX_OFFSET, header)
        return headers.decode(headers.GetMaxOffsetReply, reply.ext).offset

    async def pull(self, node, offset=0):
        header = headers.PullMessageRequest(
            consumer_group="G", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=32,
            sys_flag=NOW, commit_offset=0, suspend_timeout_millis=0, sub_version=0,
            subscription="*", expression_type="TAG",
        )  # fmt: skip
        return await self.ask(node, RequestCode.PULL_MESSAGE, header)

    async def route(self):
        """Address by id, and the permission of the topic."""
        reply = await self.pool.call(
            self.cluster.nameservers[0].address,
            Command(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                {"topic": "T", "acceptStandardJsonOnly": "true"},
            ),
            5,
        )
        data = bodies.decode(bodies.TopicRouteData, reply.body)
        return data.broker_datas[0].broker_addrs, data.queue_datas[0].perm

    def at(self, *nodes):
        return [str(node.address) for node in nodes]


@asynccontextmanager
async def group(slaves=1, ha=ACTING):
    async with SimulatedCluster(brokers=0, names=NAMES) as cluster:
        master = cluster.add_broker()
        master.settings = attrs.evolve(master.settings, ha=ha)
        await cluster.start(master)
        nodes = [master, *(cluster.add_slave(master) for _ in range(slaves))]
        await cluster.start(*nodes[1:])
        await cluster.create_topic("T", 1, master)
        async with open_pool(connect=cluster.network.connect) as pool:
            yield Group(cluster, nodes, pool)


async def test_slaves_are_told_brokerip2_and_the_port_for_slaves(autojump_clock):
    async with SimulatedCluster(brokers=0) as cluster:
        master = cluster.add_broker()
        master.settings = attrs.evolve(master.settings, ha=HASettings(listen_port=20_999))
        await cluster.start(master)
        slave = cluster.add_slave(master)
        await cluster.start(slave)
        await trio.sleep(FOLLOWED_S)
        routes = cluster.nameservers[0].nameserver.routes
        assert routes._live[str(master.address)].ha_address == "10.1.0.1:20999"
        assert cluster.network.between(slave.host, master.host, 20_999), "the slave found it"
        await master.stop()
        ha = HASettings(advertise_host="10.1.0.77")
        master.settings = attrs.evolve(master.settings, ha=ha)
        await cluster.start(master)
        assert routes._live[str(master.address)].ha_address == "10.1.0.77:10912"


async def test_slave_tells_where_groups_and_queues_are(autojump_clock):
    async with group(ha=HASettings()) as it:
        master, slave = it.nodes
        for n in range(3):
            assert (await it.send(master, b"%d" % n, properties=f"KEYS\x01k{n}\x02")).code == 0
        await trio.sleep(FOLLOWED_S)
        assert await it.max_offset(slave) == 3
        for code, header, reply, expected in (
            (31, headers.GetMinOffsetRequest("T", 0), headers.GetMinOffsetReply, 0),
            (29, headers.SearchOffsetRequest("T", 0, 1), headers.SearchOffsetReply, 0),
            (29, headers.SearchOffsetRequest("T", 0, 2**50), headers.SearchOffsetReply, 3),
        ):
            told = await it.ask(slave, code, header)
            assert headers.decode(reply, told.ext).offset == expected
        for code, header in (
            (33, headers.ViewMessageRequest(offset=0)),
            (12, headers.QueryMessageRequest("T", "k1", 32, 0, 2**60)),
        ):
            at_master, at_slave = [await it.ask(node, code, header) for node in it.nodes]
            assert at_slave.body
            assert at_slave.body == at_master.body
        assert (await it.pull(master)).code == ResponseCode.SUCCESS  # which makes the group
        commit = headers.UpdateConsumerOffsetRequest("G", "T", 0, 2)
        await it.ask(master, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        await trio.sleep(FOLLOWED_S)
        place = headers.QueryConsumerOffsetRequest("G", "T", 0)
        told = await it.ask(slave, RequestCode.QUERY_CONSUMER_OFFSET, place)
        assert headers.decode(headers.QueryConsumerOffsetReply, told.ext).offset == 2


async def test_slave_shares_out_queues_and_shows_its_tables(autojump_clock):
    async with group(ha=HASettings()) as it:
        _, slave = it.nodes
        await trio.sleep(FOLLOWED_S)
        asked = bodies.QueryAssignmentBody(
            "T", "G", "me", "AVG", message_model=bodies.MessageModel.BROADCASTING
        )
        reply = await it.ask(slave, RequestCode.QUERY_ASSIGNMENT, body=bodies.encode(asked))
        found = bodies.decode(bodies.QueryAssignmentReplyBody, reply.body).message_queue_assignments
        assert [(one.message_queue.topic, one.message_queue.queue_id) for one in found] == [
            ("T", 0)
        ]
        for code in (28, 43, 45, 60, 61, 402, 907):
            reply = await it.ask(slave, code)
            assert (code, reply.code) == (code, 0), reply.remark
            assert reply.body


async def test_slave_delivers_nothing_that_waits_not_even_while_it_acts(autojump_clock):
    async with group() as it:
        master, slave = it.nodes
        assert (await it.send(master, b"now")).code == 0
        await trio.sleep(FOLLOWED_S)
        assert (await it.send(master, b"later", properties="DELAY\x014\x02")).code == 0
        await trio.sleep(2)
        assert await it.max_offset(slave, "SCHEDULE_TOPIC_XXXX", 3) == 1
        await master.kill()
        await trio.sleep(120)
        assert await it.max_offset(slave) == 1
        await master.start()
        await trio.sleep(60)
        assert await it.max_offset(master) == await it.max_offset(slave) == 2


async def test_slaves_stand_in_one_after_the_other(autojump_clock):
    async with group(slaves=2) as it:
        master, first, second = it.nodes
        await it.send(master, b"x")
        await trio.sleep(FOLLOWED_S)
        m, a, b = it.at(*it.nodes)
        assert await it.route() == ({0: m, 1: a, 2: b}, 6)
        await master.kill()
        await trio.sleep(1)
        assert await it.route() == ({0: a, 2: b}, 4)
        assert (await it.pull(first)).code == ResponseCode.SUCCESS
        assert (await it.pull(second)).code == ResponseCode.SYSTEM_BUSY
        await first.kill()
        await trio.sleep(1)
        assert await it.route() == ({0: b}, 4)
        assert (await it.pull(second)).code == ResponseCode.SUCCESS
        assert (await it.send(second, b"no")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await master.start()
        await trio.sleep(1)
        assert await it.route() == ({0: m, 2: b}, 6)
        assert (await it.pull(second)).code == ResponseCode.SYSTEM_BUSY
        assert (await it.send(master, b"yes")).code == 0


async def test_master_that_name_servers_lost_is_gone_for_readers_until_it_is_back(autojump_clock):
    """Its slave still gets the log; readers follow their routes."""
    async with group() as it:
        master, slave = it.nodes
        await it.send(master, b"0")
        await trio.sleep(FOLLOWED_S)
        it.cluster.network.sever(master.host, it.cluster.nameservers[0].host)
        await trio.sleep(20)
        assert await it.route() == ({0: str(slave.address)}, 4)
        await it.send(master, b"1")
        await trio.sleep(2)
        assert (await it.pull(slave, 1)).code == ResponseCode.SUCCESS
        it.cluster.heal()
        await trio.sleep(20)
        assert await it.route() == ({0: str(master.address), 1: str(slave.address)}, 6)
        assert (await it.pull(slave)).code == ResponseCode.SYSTEM_BUSY


async def test_sends_know_how_many_brokers_live(autojump_clock):
    """With `minInSyncReplicas` 2, a master whose slave went is told so by name servers, and takes no more."""
    ha = attrs.evolve(
        ACTING, role=BrokerRole.SYNC_MASTER, in_sync_replicas=2, min_in_sync_replicas=2,
        enable_auto_in_sync_replicas=True,
    )  # fmt: skip
    async with group(ha=ha) as it:
        master, slave = it.nodes
        await trio.sleep(FOLLOWED_S)
        assert (await it.send(master, b"0")).code == ResponseCode.SUCCESS
        await slave.stop()
        await trio.sleep(2)
        reply = await it.send(master, b"1")
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert await it.max_offset(master) == 1
        await slave.start()
        await trio.sleep(FOLLOWED_S)
        assert (await it.send(master, b"2")).code == ResponseCode.SUCCESS
