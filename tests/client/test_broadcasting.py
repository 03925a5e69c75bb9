"""Broadcasting consumers on a simulated cluster: all queues, local offsets, no retries."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager

import pytest
import trio

from tests.client.received import bodies, nothing_comes, receive
from tests.client.simulations import NOTHING_IN_MEMORY, consumer, send, simulated
from trio_mq.client.localoffsets import offsets_file, read_offsets
from trio_mq.errors import ConfigError
from trio_mq.testing.cluster import SimulatedCluster

DEFAULT_DIRECTORY = "@DEFAULT"


@pytest.fixture
def broadcasting(tmp_path):
    """Consumers that keep their offsets below a directory of the test."""

    def make(cluster, name=None, **options):
        options.setdefault("offsets_dir", tmp_path)
        return consumer(cluster, model="broadcasting", instance_name=name, **options)

    return make


def file_of(tmp_path, receiving):
    return offsets_file(tmp_path, receiving._member.instance.client_id, "G")


async def test_b039_every_member_gets_all(autojump_clock, broadcasting):
    async with (
        simulated() as cluster,
        broadcasting(cluster, "one") as first,
        broadcasting(cluster, "two") as second,
    ):
        await send(cluster, *[b"%02d" % i for i in range(16)])
        for receiving in (first, second):
            assert bodies(await receive(receiving, 16)) == [b"%02d" % i for i in range(16)]
            assert {queue.topic for queue in receiving.assignment} == {"T"}, "nothing is retried"


async def test_b040_a_later_member_gets_what_comes_then(autojump_clock, broadcasting):
    async with (
        simulated(store=NOTHING_IN_MEMORY) as cluster,
        broadcasting(cluster, "one", from_where="last") as first,
    ):
        await send(cluster, b"early")
        await receive(first, 1)
        async with broadcasting(cluster, "two", from_where="last") as second:
            await send(cluster, b"late")
            assert bodies(await receive(second, 1)) == [b"late"]
        assert bodies(await receive(first, 1)) == [b"late"]


async def test_positions_are_found_again_under_the_same_name(
    autojump_clock, broadcasting, tmp_path
):
    async with simulated(queues=1) as cluster:
        await send(cluster, b"1", b"2")
        async with broadcasting(cluster) as receiving:
            assert bodies(await receive(receiving, 2)) == [b"1", b"2"]
            path = file_of(tmp_path, receiving)
            assert path.parent.parent.name.endswith("@DEFAULT"), "as Java's"
        assert list(read_offsets(path).values()) == [2]
        await send(cluster, b"3")
        async with broadcasting(cluster) as receiving:
            assert bodies(await receive(receiving, 1)) == [b"3"]


async def test_the_file_is_written_every_few_seconds_too(autojump_clock, broadcasting, tmp_path):
    async with simulated(queues=1) as cluster, broadcasting(cluster) as receiving:
        await send(cluster, b"1")
        await receive(receiving, 1)
        await trio.sleep(6)
        assert list(read_offsets(file_of(tmp_path, receiving)).values()) == [1]


async def test_b044_failures_are_passed_and_hurt_no_other_member(
    autojump_clock, broadcasting, caplog
):
    async with (
        simulated() as cluster,
        broadcasting(cluster, "one") as first,
        broadcasting(cluster, "two") as second,
    ):
        await send(cluster, *[b"%d" % i for i in range(4)])
        with caplog.at_level(logging.WARNING), trio.move_on_after(20):
            await first.run(lambda_retry)
        assert caplog.text.count("is passed: nobody retries in broadcasting") == 4
        assert len(await receive(second, 4)) == 4
        await nothing_comes(second, 20.0)


async def lambda_retry(message):
    return False


async def test_c118_a_member_from_last_gets_all_that_is_sent_after_its_start(
    autojump_clock, broadcasting
):
    async with simulated(store=NOTHING_IN_MEMORY, queues=8) as cluster:
        await send(cluster, *[b"old"] * 8)
        async with broadcasting(cluster, from_where="last") as receiving:
            await send(cluster, *[b"%03d" % i for i in range(100)])
            assert bodies(await receive(receiving, 100)) == [b"%03d" % i for i in range(100)]


async def test_c119_a_broker_that_was_away_is_gone_on_with_where_it_was_left(
    autojump_clock, broadcasting
):
    async with SimulatedCluster(brokers=2, store=NOTHING_IN_MEMORY) as cluster:
        await cluster.create_topic("T", 2)
        away = cluster.brokers[1]
        async with broadcasting(cluster, from_where="last") as receiving:
            await send(cluster, *[b"%d" % i for i in range(8)])
            await receive(receiving, 8)
            away.partition()
            await nothing_comes(receiving, for_s=300)
            assert {queue.broker_name for queue in receiving.assignment} == {"broker-a"}, (
                "the name server has forgotten it"
            )
            away.heal()
            await trio.sleep(60)
            await send(cluster, *[b"late %d" % i for i in range(8)])
            found = await receive(receiving, 8, limit_s=60)
            assert bodies(found) == [b"late %d" % i for i in range(8)]
            await nothing_comes(receiving, 20.0)


async def test_c119_what_is_sent_to_a_broker_meanwhile_comes(autojump_clock, broadcasting):
    async with SimulatedCluster(brokers=2, store=NOTHING_IN_MEMORY) as cluster:
        await cluster.create_topic("T", 2)
        here, away = "10.9.0.7", cluster.brokers[1].host
        async with open_at(cluster, here, broadcasting(cluster, from_where="last")) as receiving:
            await send(cluster, *[b"%d" % i for i in range(8)])
            await receive(receiving, 8)
            cluster.partition(here, away)
            await send(cluster, *[b"meanwhile %d" % i for i in range(8)])
            await nothing_comes_from(receiving, "broker-b", for_s=60)
            cluster.heal()
            found = await receive(receiving, 4, limit_s=60)
            assert {message.queue.broker_name for message in found} == {"broker-b"}
            await nothing_comes(receiving, 20.0)


async def nothing_comes_from(receiving, broker_name, for_s):
    with trio.move_on_after(for_s):
        async for message in receiving:
            async with message:
                assert message.queue.broker_name != broker_name


@asynccontextmanager
async def open_at(cluster, host, client):
    with cluster.client_at(host):
        await client.__aenter__()
    try:
        yield client
    finally:
        await client.__aexit__(None, None, None)


async def test_c121_a_damaged_file_is_kept_aside_and_the_start_is_as_told(
    autojump_clock, broadcasting, tmp_path, caplog
):
    async with simulated(queues=1) as cluster:
        await send(cluster, b"1", b"2")
        async with broadcasting(cluster) as receiving:
            await receive(receiving, 2)
            path = file_of(tmp_path, receiving)
        backup = path.with_name(path.name + ".bak")
        path.write_bytes(b"\xffgarbage")
        backup.write_bytes(b"{{{")
        with caplog.at_level(logging.WARNING):
            async with broadcasting(cluster, from_where="first") as receiving:
                assert bodies(await receive(receiving, 2)) == [b"1", b"2"]
        assert "offsets.json is damaged" in caplog.text
        assert path.with_name("offsets.json.damaged").read_bytes() == b"\xffgarbage"
        assert list(read_offsets(path).values()) == [2]


async def test_a_directory_that_cannot_be_written_is_told_and_stops_nothing(
    autojump_clock, broadcasting, tmp_path, caplog
):
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    with caplog.at_level(logging.WARNING):
        async with simulated(queues=1) as cluster, broadcasting(
            cluster, offsets_dir=blocked
        ) as receiving:  # fmt: skip
            await send(cluster, b"1")
            assert bodies(await receive(receiving, 1)) == [b"1"]
            await trio.sleep(20)
    assert caplog.text.count("are not stored yet") == 1
    assert "offsets.json: Not a directory" in caplog.text


async def test_brokers_keep_no_offsets_of_it(autojump_clock, broadcasting):
    async with simulated(queues=1) as cluster:
        await send(cluster, b"1")
        async with broadcasting(cluster) as receiving:
            await receive(receiving, 1)
            await trio.sleep(20)
        async with consumer(cluster) as clustering:
            assert bodies(await receive(clustering, 1)) == [b"1"], "the group has no offset there"


def test_broadcasting_has_no_order(broadcasting):
    class Nowhere:
        nameserver = "127.0.0.1:1"

    with pytest.raises(ConfigError, match="orderly"):
        broadcasting(Nowhere, orderly=True)
