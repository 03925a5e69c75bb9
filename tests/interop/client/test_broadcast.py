"""Broadcasting consumers beside Java's: everybody gets all, and each reads the other's offsets file."""

from __future__ import annotations

import shutil
from functools import partial

import anyio
import pytest

from tests.backends import both, until
from tests.client.received import bodies, nothing_comes, receive
from tests.interop.client.test_consumer import send
from tests.interop.java_client import texts, wait_all_queues
from tests.interop.raw import RawClient, Sender
from trio_mq import Consumer
from trio_mq.client.localoffsets import offsets_file, read_offsets

UNREGISTER_BROKER = 104


@pytest.fixture
def broadcasting(cluster, tmp_path):
    """A consumer of a group that broadcasts, with its files in a directory of the test."""

    def make(topic, group, instance_name="here", ns=None, **options):
        options.setdefault("from_where", "last")
        return Consumer(
            ns or cluster.ns, group, subscribe={topic: options.pop("wanted", "*")}, model="broadcasting",
            offsets_dir=tmp_path / "offsets", instance_name=instance_name, **options,
        )  # fmt: skip

    return make


def file_of(tmp_path, consumer):
    instance = consumer._member.instance
    return offsets_file(tmp_path / "offsets", instance.client_id, consumer.group)


def javas_file(java, client_id, group):
    home = java.driver.log.parent / ".rocketmq_offsets"
    return offsets_file(home, client_id, group)


@both
async def test_b039_java_and_we_each_get_all(cluster, java, broadcasting):
    topic, group = cluster.topic(2), cluster.group()
    theirs = java.push(cluster.ns, group, (topic, "*"), broadcast=True)
    await anyio.to_thread.run_sync(wait_all_queues, [theirs], topic, 2)
    async with broadcasting(topic, group) as ours:
        messages = texts(topic, 16)
        java.producer(cluster.ns).send_ok(messages)
        expected = sorted(message["body"] for message in messages)
        assert [body.decode() for body in bodies(await receive(ours, 16))] == expected
        await until(lambda: theirs.count() == 16)
        assert sorted(theirs.bodies()) == expected


@both
async def test_b042_only_wanted_tags_come(cluster, broadcasting):
    topic = cluster.topic(2)
    async with broadcasting(topic, cluster.group(), wanted="T") as consumer:
        await send(cluster, topic, b"u", tags="U")
        await send(cluster, topic, b"t", tags="T")
        assert bodies(await receive(consumer, 1)) == [b"t"]
        await nothing_comes(consumer, 0.2)


@both
async def test_c118_all_that_is_sent_after_the_start_comes(cluster, broadcasting):
    topic = cluster.topic(4)
    await send(cluster, topic, *[b"old"] * 8)
    async with broadcasting(topic, cluster.group()) as consumer:
        await send(cluster, topic, *[b"%03d" % i for i in range(100)])
        assert bodies(await receive(consumer, 100)) == [b"%03d" % i for i in range(100)]


@both
async def test_we_go_on_where_java_stopped(cluster, java, broadcasting, tmp_path):
    topic, group = cluster.topic(2), cluster.group()
    theirs = java.push(cluster.ns, group, (topic, "*"), broadcast=True, start="FIRST_OFFSET")
    await anyio.to_thread.run_sync(wait_all_queues, [theirs], topic, 2)
    await send(cluster, topic, *[b"java %d" % i for i in range(6)])
    await anyio.to_thread.run_sync(theirs.wait, 6)
    theirs.stop()
    await send(cluster, topic, *[b"ours %d" % i for i in range(6)])
    path = javas_file(java, theirs.client_id, group)
    assert sum(read_offsets(path).values()) == 6
    consumer = broadcasting(topic, group)
    async with consumer:  # to learn where its file is
        pass
    shutil.copy(path, file_of(tmp_path, consumer))
    async with broadcasting(topic, group) as consumer:
        assert bodies(await receive(consumer, 6)) == [b"ours %d" % i for i in range(6)]
        await nothing_comes(consumer, 0.2)


@both
async def test_java_goes_on_where_we_stopped(cluster, java, broadcasting, tmp_path):
    topic, group = cluster.topic(2), cluster.group()
    first = java.push(cluster.ns, group, (topic, "*"), broadcast=True, instance=f"{group}-i")
    first.stop()
    async with broadcasting(topic, group, from_where="first") as consumer:
        await send(cluster, topic, *[b"ours %d" % i for i in range(6)])
        await receive(consumer, 6)
        path = file_of(tmp_path, consumer)
    await send(cluster, topic, *[b"java %d" % i for i in range(6)])
    target = javas_file(java, first.client_id, group)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
    theirs = java.push(
        cluster.ns, group, (topic, "*"), broadcast=True, instance=f"{group}-i", start="FIRST_OFFSET"
    )
    assert theirs.client_id == first.client_id
    await anyio.to_thread.run_sync(theirs.wait, 6)
    assert sorted(theirs.bodies()) == [f"java {i}" for i in range(6)]


@both
async def test_c121_a_damaged_file_is_kept_aside_and_the_start_is_as_told(
    cluster, broadcasting, tmp_path, caplog
):
    topic, group = cluster.topic(1), cluster.group()
    make = partial(broadcasting, topic, group, from_where="first")
    await send(cluster, topic, b"1", b"2")
    async with make() as consumer:
        await receive(consumer, 2)
        path = file_of(tmp_path, consumer)
    path.write_bytes(b"\0" * 100)
    path.with_name(path.name + ".bak").write_bytes(b"[}")
    async with make() as consumer:
        assert bodies(await receive(consumer, 2)) == [b"1", b"2"]
    assert "offsets.json is damaged" in caplog.text
    assert path.with_name("offsets.json.damaged").read_bytes() == b"\0" * 100
    assert list(read_offsets(path).values()) == [2]


@both(backends=["trio"])
async def test_c119_a_broker_that_was_out_of_sight_is_gone_on_with(workshop, broadcasting):
    settings = {"registerNameServerPeriod": "10000"}
    first = workshop.alone("b1", settings=settings)
    first.start()
    away = workshop.joining("b2", first.nameservers[0], settings=settings)
    away.start()
    cluster = workshop.cluster(first, away)
    topic = cluster.topic(2)

    def brokers():
        return {queue.broker_name for queue in consumer.assignment}

    async with broadcasting(topic, cluster.group(), ns=cluster.ns) as consumer:
        await send(cluster, topic, *[b"before %d" % i for i in range(8)])
        await receive(consumer, 8)
        with RawClient(first.nameservers[0]) as nameserver:
            ext = {
                "brokerName": "b2", "brokerAddr": away.address, "clusterName": "DefaultCluster",
                "brokerId": "0",
            }  # fmt: skip
            assert nameserver.call(UNREGISTER_BROKER, ext).code == 0
        await consumer._member.instance.refreshed_route(topic)
        await until(lambda: brokers() == {"b1"}, 8)
        with RawClient(away.address) as client:
            hand = Sender(client, topic)
            assert all(hand.send(f"away {n}".encode(), n % 2).code == 0 for n in range(8))
        assert bodies(await receive(consumer, 8)) == [b"away %d" % i for i in range(8)]
