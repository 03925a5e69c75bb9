"""Rows B073, B075, B080 to B082, B085 to B088 and B107 to B109, cases C112 and C134: pops that are not ordered."""

from __future__ import annotations

import random
import time
import zlib
from collections import Counter
from collections.abc import Iterator

import pytest

from . import raw, servers
from .conftest import STANDARD, Cluster, Workshop
from .failing import failing
from .java_client import Java, unique
from .polling import sleep
from .pops import (
    NOTHING_FOUND,
    TOO_MANY_WAIT,
    Pops,
    create_group,
    create_topic,
    delete_topic,
    pop_mode,
    reset,
    send,
)
from .raw import RawClient, Sender, properties
from .servers import Kind, Server

#: The standard set-up of these rows.
POPPING = {**STANDARD, "reviveInterval": "1000", "popCkStayBufferTimeOut": "3000"}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(False, id="plain"),
        pytest.param(True, id="merge", marks=pytest.mark.repeats),
    ],
)
def broker(
    request: pytest.FixtureRequest, kind: Kind, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """One broker, with and without the merging of check points in memory."""
    merge = {"enablePopBufferMerge": str(request.param).lower()}
    server, nameservers = servers.alone(
        kind, tmp_path_factory.mktemp("pop"), settings={**POPPING, **merge}
    )
    server.start()
    yield server
    for process in [server, *nameservers]:
        process.discard()


@pytest.fixture
def client(broker: Server) -> RawClient:
    """A connection to it."""
    return RawClient(broker.address, 40)


def pops(client: RawClient, queues: int = 8, **group: object) -> Pops:
    """A pop consumer of a new topic."""
    made = Pops(client, unique("Pop"), unique("PG"))
    create_topic(client, made.topic, queues)
    create_group(client, made.group, **group)
    return made


def bodies(several: list) -> list[bytes]:
    """Sorted."""
    return sorted(one.body for one in several)


def test_b080_what_is_not_acknowledged_comes_again_with_the_new_ones(client: RawClient) -> None:
    consumer = pops(client)
    for i in range(10):
        send(client, consumer.topic, b"%d" % i, queue_id=i % 8)
    assert len(gather(consumer, 10, 3)) == 10
    sleep(6)
    for i in range(20):
        send(client, consumer.topic, b"n%d" % i, queue_id=i % 8)
    found = gather(consumer, 30, 5)
    assert len(found) == len(set(bodies(found))) == 30
    assert consumer.batch_ack(found).code == 0
    sleep(6)
    assert consumer.ask(30, 3).code == NOTHING_FOUND


def gather(consumer: Pops, count: int, within_s: float) -> list:
    """Pops without waiting, until there are so many or the time is over."""
    found: list = []
    until = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < until:
        more = consumer.pop(30, 3)
        found += more
        if not more:
            sleep(0.1)
    return found


def test_b081_a_compressed_body_comes_back_as_it_is(client: RawClient) -> None:
    consumer = pops(client, 1)
    packed = zlib.compress(bytes(3 * 1024 * 1024), 5)
    reply = Sender(client, consumer.topic).send_v2(packed, sysFlag="1")
    assert reply.code == 0, reply.remark
    (first,) = consumer.wait(5, 1, 3)
    (second,) = consumer.gather(1, 60, 3)
    for one in (first, second):
        assert one.record.sys_flag & 1
        assert one.record.stored_body == packed
        assert one.body == bytes(3 * 1024 * 1024)
    assert second.record.reconsume_times == 1
    assert consumer.ack(second).code == 0


def test_b082_a_popped_message_is_sent_on(client: RawClient, workshop: Workshop) -> None:
    other = workshop.alone("b2", settings=POPPING)
    other.start()
    consumer = pops(client, 1)
    key = unique("ID")
    send(client, consumer.topic, b"x", props=properties({"UNIQ_KEY": key}))
    (first,) = consumer.wait(5)
    second_client = RawClient(other.address)
    there = Pops(second_client, consumer.topic, consumer.group, "b2")
    create_topic(second_client, there.topic, 1)
    create_group(second_client, there.group)
    props = {**first.record.properties, "POP_CK": first.receipt}
    send(second_client, there.topic, first.body, props=properties(props))
    (second,) = there.wait(5)
    assert second.record.properties["UNIQ_KEY"] == key
    assert "b1" in first.receipt.split(" ")
    assert "b2" in second.receipt.split(" ")
    assert there.ack(second).code == 0


def test_b085_a_message_comes_back_from_the_retry_topic(client: RawClient) -> None:
    consumer = pops(client, 2)
    send(client, consumer.topic, b"a", queue_id=1, props=properties({"TAGS": "X"}))
    (first,) = consumer.wait(5, invisible_s=3)
    began = time.monotonic()
    (second,) = consumer.gather(1, 20, 3)
    assert time.monotonic() - began > 2.5
    assert second.record.reconsume_times == first.record.reconsume_times + 1 == 1
    pop_time = first.receipt.split(" ")[1]
    assert second.record.properties["1ST_POP_TIME"] == pop_time
    assert second.record.properties["TAGS"] == "X"
    assert (second.kind, second.queue_id) == ("1", 0)
    (third,) = consumer.gather(1, 20, 60)
    assert third.record.reconsume_times == 2
    assert third.record.properties["1ST_POP_TIME"] == pop_time
    assert consumer.ack(third).code == 0


def test_b086_a_changed_message_comes_back_after_its_new_time(client: RawClient) -> None:
    consumer = pops(client, 1)
    send(client, consumer.topic, b"a")
    (first,) = consumer.wait(5, invisible_s=3)
    sleep(0.2)
    began = time.monotonic()
    reply = consumer.change(first, 5)
    assert reply.code == 0
    assert reply.ext["invisibleTime"] == "5000"
    assert int(reply.ext["popTime"]) > int(first.receipt.split(" ")[1])
    assert consumer.ack(first).code == 0  # the old receipt is done: it changes nothing
    (second,) = consumer.gather(1, 20, 60)
    assert time.monotonic() - began > 4.5
    assert second.record.reconsume_times == 1
    assert consumer.ack(second).code == 0


def test_b087_what_is_refused(client: RawClient) -> None:
    consumer = pops(client, 2)
    assert consumer.ask(33).code == 29
    assert consumer.ask(queueId="2").code == 29
    assert consumer.ask(topic=unique("Unknown")).code == 17
    denied = pops(client, 1, consumeEnable=False)
    assert denied.ask().code == 16
    send(client, consumer.topic, b"a")
    (a,) = consumer.wait(5)
    for refused in (consumer.ack, lambda one, **more: consumer.change(one, 3, **more)):
        assert refused(a, topic=unique("Unknown")).code == 17
        assert refused(a, queueId="2").code == 13
        assert refused(a, queueId="-1").code == 13
        assert refused(a, offset="5").code == 208
    assert consumer.batch_ack([]).code == 208


def test_b087_a_group_that_is_not_created(workshop: Workshop) -> None:
    server = workshop.alone(settings={**POPPING, "autoCreateSubscriptionGroup": "false"})
    server.start()
    client = RawClient(server.address)
    consumer = Pops(client, unique("Pop"), unique("PG"))
    create_topic(client, consumer.topic, 1)
    assert consumer.ask().code == 26


def test_b088_a_pop_waits(broker: Server, client: RawClient) -> None:
    consumer = pops(client, 2)
    waiting = Pops(RawClient(broker.address), consumer.topic, consumer.group)
    began = time.monotonic()
    waiting.client.send(raw.json_frame(200050, waiting.fields(32, 30, pollTime="20000"), opaque=77))
    sleep(0.5)
    send(client, consumer.topic, b"a", queue_id=1)
    (a,) = waiting.taken(waiting.client.reply(77))
    assert (a.body, time.monotonic() - began < 5) == (b"a", True)
    began = time.monotonic()
    assert consumer.ask(pollTime="2000").code == NOTHING_FOUND
    assert 1.5 < time.monotonic() - began < 4
    assert consumer.ack(a).code == 0


def test_b088_only_so_many_wait(broker: Server) -> None:
    client = RawClient(broker.address, 40)
    consumer = pops(client, 1)
    for number in range(1200):
        fields = consumer.fields(32, 30, pollTime="30000")
        client.send(raw.json_frame(200050, fields, opaque=100_000 + number))
    assert client.read(10).code == TOO_MANY_WAIT


@pytest.mark.parametrize("pause_s", [0, 3])
def test_b107_a_reset_gives_what_is_out_again(client: RawClient, pause_s: float) -> None:
    consumer = ten(client)
    assert len(consumer.wait(5, 16, 30)) == 10
    reset(consumer, 4)
    sleep(pause_s)
    assert [one.body for one in consumer.wait(5, 16, 30)] == [b"%d" % i for i in range(4, 10)]


@pytest.mark.parametrize("acks", [False, True])
@pytest.mark.parametrize("resets", [(5,), (3, 5)])
def test_b108_the_last_reset_back_wins(
    client: RawClient, acks: bool, resets: tuple[int, ...]
) -> None:
    consumer = ten(client)
    found = one_by_one(consumer, acks, 8, resets)
    assert len(found) >= 13


@pytest.mark.parametrize("resets", [(8,), (5, 8)])
def test_b109_a_reset_forward_passes_over(client: RawClient, resets: tuple[int, ...]) -> None:
    consumer = ten(client)
    found = one_by_one(consumer, True, 2, resets)
    assert 4 <= len(found) < 10


def ten(client: RawClient) -> Pops:
    """A consumer of a topic with ten messages in its queue."""
    consumer = pops(client, 1)
    send(client, consumer.topic, *[b"%d" % i for i in range(10)])
    return consumer


def one_by_one(consumer: Pops, acks: bool, after: int, resets: tuple[int, ...]) -> list:
    """Receipts of pops one by one for ten seconds at most, with resets after one of them."""
    found: list = []
    until = time.monotonic() + 10
    while time.monotonic() < until:
        more = consumer.wait(1, 1, 30)
        if not more and len(found) > after:
            break
        found += more
        if acks:
            for one in more:
                assert consumer.ack(one).code == 0
        if more and len(found) == after:
            for offset in resets:
                reset(consumer, offset)
    return found


def test_c112_only_the_unacknowledged_come_back(client: RawClient) -> None:
    """apache/rocketmq#7914, #7724."""
    consumer = pops(client, 4)
    chance = random.Random(112)
    owed, popped = set(), 0
    for number in range(60):
        send(
            client, consumer.topic, *[b"%d.%d" % (number, i) for i in range(8)], queue_id=number % 4
        )
        for one in consumer.pop(32, 10):
            popped += 1
            if chance.random() < 0.5:
                assert consumer.ack(one).code == 0
            else:
                owed.add(one.body)
    owed |= {one.body for one in consumer.gather(480 - popped, 5, 10)}
    assert len(owed) > 100
    back = consumer.gather(len(owed), 40, 60)
    assert consumer.batch_ack(back).code == 0
    assert Counter(bodies(back)) == Counter(owed)
    assert consumer.wait(3) == []


def test_c134_names_as_long_as_can_be(client: RawClient) -> None:
    """apache/rocketmq#5568, #7505, #9479."""
    group, topic = unique("G").ljust(120, "g"), unique("T").ljust(127, "t")
    consumer = Pops(client, topic, group)
    create_topic(client, topic, 1)
    create_group(client, group)
    send(client, topic, b"a")
    assert len(consumer.wait(5, 1, 3)) == 1
    (again,) = consumer.gather(1, 20, 60)
    assert again.record.reconsume_times == 1
    assert len(again.broker_topic) == 255
    assert consumer.ack(again).code == 0
    assert delete_topic(client, again.broker_topic).code == 0
    assert delete_topic(client, topic).code == 0


# -- the Java client, told by the broker to pop ------------------------------------------------------------


def check_failing_twice(java: Java, cluster: Cluster, topic: str, group: str) -> None:
    cluster.admin.topic(topic, 1)
    cluster.admin.group(group)
    with RawClient(cluster.brokers[0].address) as client:
        pop_mode(client, topic, group)
        consumer = failing(java, cluster, topic, 2, group, clientRebalance=False)
        sleep(3)
        send(client, topic, *[b"%d" % i for i in range(10)])
    tries = consumer.wait_done(10, 90)
    assert Counter(one.times for one in tries) == {0: 10, 1: 10, 2: 10}
    by_body: dict[str, list] = {}
    for one in tries:
        by_body.setdefault(one.body, []).append(one)
    for three in by_body.values():
        first, second, third = three
        assert second.at - first.at > 9_000, "the client asks for 10 s"
        assert third.at - second.at > 29_000, "and for 30 s"


def test_b073_a_listener_that_fails_twice(java: Java, cluster: Cluster) -> None:
    check_failing_twice(java, cluster, unique("Pop"), unique("PG"))


def test_b075_names_of_78_characters(java: Java, cluster: Cluster) -> None:
    topic, group = unique("Pop").ljust(78, "t"), unique("PG").ljust(78, "g")
    check_failing_twice(java, cluster, topic, group)


# -- stores that move, and processes that are killed -------------------------------------------------------


@pytest.mark.parametrize("first", ["trio", "apache"])
def test_open_pops_move_with_the_store(kind: Kind, workshop: Workshop, first: Kind) -> None:
    """A store with open pops of one kind of broker goes to the other, which brings back what is due."""
    second: Kind = "apache" if first == "trio" else "trio"
    server = workshop.alone("b1", kind=first, settings=POPPING)
    server.start()
    client = RawClient(server.address)
    consumer = pops(client, 4)
    for i in range(40):
        send(client, consumer.topic, b"%d" % i, queue_id=i % 4)
    taken = consumer.gather(20, 10, 60)
    owed = {one.body for one in taken}
    for one in taken[::2]:
        assert consumer.ack(one).code == 0
        owed.discard(one.body)
    assert consumer.change(taken[1], 30).code == 0
    client.close()
    server.stop()
    other = workshop.alone("b1", kind=second, settings=POPPING)
    other.home.mkdir(parents=True, exist_ok=True)
    server.store.rename(other.store)
    other.start()
    consumer.client = client = RawClient(other.address, 40)
    fresh = consumer.gather(20, 10, 60)
    assert consumer.batch_ack(fresh).code == 0
    assert len(fresh) == 20
    assert not {one.body for one in fresh} & {one.body for one in taken}
    back = consumer.gather(len(owed), 90, 60)
    assert Counter(bodies(back)) == Counter(owed)
    assert consumer.batch_ack(back).code == 0


def test_a_kill_loses_no_popped_message(workshop: Workshop) -> None:
    server = workshop.alone("b1", settings=POPPING)
    server.start()
    client = RawClient(server.address)
    consumer = pops(client, 4)
    chance = random.Random(5)
    everything, acked = set(), set()
    for number in range(50):
        lot = [b"%d.%d" % (number, i) for i in range(8)]
        everything |= set(lot)
        send(client, consumer.topic, *lot, queue_id=number % 4)
        for one in consumer.pop(32, 15):
            if chance.random() < 0.5 and consumer.ack(one).code == 0:
                acked.add(one.body)
        if number == 25:
            sleep(6)  # some offsets are saved, others are not
    server.kill()
    server.start()
    consumer.client = RawClient(server.address, 40)
    seen: Counter[bytes] = Counter()
    until = time.monotonic() + 60
    while time.monotonic() < until and not everything <= seen.keys() | acked:
        for one in consumer.wait(2):
            seen[one.body] += 1
            assert consumer.ack(one).code == 0
    assert everything <= seen.keys() | acked, "none is lost"
    assert set(seen.values()) <= {1, 2}, (
        "a pop whose offset was not saved is given out again, no more"
    )
