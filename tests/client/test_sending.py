"""How sends are tried, on brokers that answer as a test says, with time that jumps."""

import logging

import pytest
import trio

from tests.client.sendpeers import NS, Cluster, refusing, silent, using
from trio_mq import (
    Credentials,
    Message,
    MessageQueue,
    NoRoute,
    PeerRefused,
    PeerUnavailable,
    Producer,
    SendFailed,
    SendStatus,
)
from trio_mq.protocol import headers
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.signature import signed

TWO = {"b1": 2, "b2": 2}


@pytest.fixture
async def cluster(nursery):
    found = Cluster(TWO)
    found.tasks = await nursery.start(found.run)
    with using(found):
        yield found


@pytest.mark.parametrize("code", [1, 2, 14, 16, 17, 204, 205])
async def test_a_retry_goes_to_the_other_broker_with_the_same_id(autojump_clock, cluster, code):
    cluster.answers["b1"] = refusing(code)
    async with Producer(NS) as producer:
        for _ in range(4):
            receipt = await producer.send(Message("T", b"x"))
            assert receipt.queue.broker_name == "b2"
            assert cluster.sends[-1].properties["UNIQ_KEY"] == receipt.message_id
    failed, stored = cluster.of("b1"), cluster.of("b2")
    assert failed
    assert len(stored) == 4
    ids = {send.properties["UNIQ_KEY"] for send in stored}
    assert {send.properties["UNIQ_KEY"] for send in failed} <= ids


@pytest.mark.parametrize("code", [13, 29, 3])
async def test_another_refusal_is_raised_at_once(autojump_clock, cluster, code):
    cluster.answers.update(b1=refusing(code, "not this one"), b2=refusing(code, "not this one"))
    async with Producer(NS) as producer:
        with pytest.raises(PeerRefused, match="not this one") as caught:
            await producer.send(Message("T", b"x"))
    assert caught.value.code == code
    assert len(cluster.sends) == 1


async def test_three_tries_and_then_all_failures_are_told(autojump_clock, cluster):
    cluster.answers.update(b1=refusing(14, "disk full"), b2=refusing(2, "busy"))
    async with Producer(NS) as producer:
        with pytest.raises(SendFailed, match=r"in 3 tries .*disk full") as caught:
            await producer.send(Message("T", b"x"))
    brokers = [send.broker for send in cluster.sends]
    assert brokers in (["b1", "b2", "b1"], ["b2", "b1", "b2"])
    assert len(caught.value.failures) == 3


async def test_retries_are_as_many_as_asked_for(autojump_clock, cluster):
    cluster.answers.update(b1=refusing(2), b2=refusing(2))
    async with Producer(NS, retry_times_when_send_failed=0) as producer:
        with pytest.raises(SendFailed, match="in 1 try"):
            await producer.send(Message("T", b"x"))
    assert len(cluster.sends) == 1


async def test_a_dead_broker_costs_no_message(autojump_clock, cluster):
    cluster.stop("b1")
    async with Producer(NS) as producer:
        receipts = [await producer.send(Message("T", b"x")) for _ in range(8)]
    assert {receipt.queue.broker_name for receipt in receipts} == {"b2"}


async def test_a_broker_that_dies_during_a_send_costs_no_message(autojump_clock, cluster):
    def die(send):
        cluster.stop("b1")

    cluster.answers["b1"] = die
    async with Producer(NS) as producer:
        for _ in range(4):
            await producer.send(Message("T", b"x"))
    assert len(cluster.of("b1")) == 1


async def test_a_silent_broker_takes_the_whole_time(autojump_clock, cluster):
    cluster.answers.update(b1=silent, b2=silent)
    async with Producer(NS, send_timeout_s=3.0) as producer:
        began_s = trio.current_time()
        with pytest.raises(SendFailed, match=r"in 1 try and 3.0 s: b\d:10911: no answer") as caught:
            await producer.send(Message("T", b"x"))
        assert trio.current_time() - began_s == pytest.approx(3.0, abs=0.01)
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"), timeout_s=0.5)
        assert trio.current_time() - began_s == pytest.approx(3.5, abs=0.02)
    assert isinstance(caught.value.failures[0], PeerUnavailable)


async def test_time_that_failed_tries_took_is_gone(autojump_clock, cluster):
    cluster.delays_s.update(b1=1.0, b2=1.0)
    cluster.answers.update(b1=refusing(2), b2=refusing(2))
    async with Producer(NS, send_timeout_s=1.5) as producer:
        with pytest.raises(SendFailed, match=r"in 2 tries and 1\.5 s"):
            await producer.send(Message("T", b"x"))


@pytest.mark.parametrize("code", [10, 11, 12])
async def test_a_status_is_a_success(autojump_clock, cluster, code):
    cluster.answers.update(
        b1=lambda send: cluster.stored(send, code), b2=lambda send: cluster.stored(send, code)
    )
    async with Producer(NS) as producer:
        receipt = await producer.send(Message("T", b"x"))
    assert receipt.status is SendStatus(code)
    assert len(cluster.sends) == 1


async def test_another_broker_is_tried_for_a_status_when_asked_for(autojump_clock, cluster):
    cluster.answers["b1"] = lambda send: cluster.stored(send, 11)
    async with Producer(NS, retry_another_broker_when_not_store_ok=True) as producer:
        for _ in range(4):
            assert (await producer.send(Message("T", b"x"))).status is SendStatus.OK
        assert cluster.of("b1")
        cluster.answers["b2"] = lambda send: cluster.stored(send, 10)
        receipt = await producer.send(Message("T", b"x"))
    assert receipt.status in (SendStatus.SLAVE_NOT_AVAILABLE, SendStatus.FLUSH_DISK_TIMEOUT)


async def test_queues_take_turns(autojump_clock, cluster):
    async with Producer(NS) as producer:
        for _ in range(8):
            await producer.send(Message("T", b"x"))
    places = [(send.broker, send.queue_id) for send in cluster.sends]
    assert places[:4] == places[4:]
    assert len(set(places)) == 4


async def test_a_sharding_key_keeps_its_queue_and_is_tried_once(autojump_clock, cluster):
    async with Producer(NS) as producer:
        for number in range(6):
            await producer.send(Message("T", b"%d" % number, sharding_key="order-17"))
        # Java: 1234255109 % 4 = 1, the second of b1's queues
        assert {(send.broker, send.queue_id) for send in cluster.sends} == {("b1", 1)}
        assert cluster.sends[0].properties["__SHARDINGKEY"] == "order-17"
        assert [send.body for send in cluster.sends] == [b"%d" % number for number in range(6)]
        cluster.answers["b1"] = refusing(2)
        with pytest.raises(SendFailed, match="in 1 try"):
            await producer.send(Message("T", b"x", sharding_key="order-17"))
    assert not cluster.of("b2")


async def test_a_given_queue_is_taken_and_tried_once(autojump_clock, cluster):
    cluster.answers["b2"] = refusing(2)
    async with Producer(NS) as producer:
        receipt = await producer.send(Message("T", b"x"), queue=MessageQueue("T", "b1", 1))
        assert receipt.queue == MessageQueue("T", "b1", 1)
        with pytest.raises(SendFailed):
            await producer.send(Message("T", b"x"), queue=MessageQueue("T", "b2", 0))
        with pytest.raises(SendFailed, match=r"broker b9 of topic T: no route names its master"):
            await producer.send(Message("T", b"x"), queue=MessageQueue("T", "b9", 0))
    assert len(cluster.sends) == 2


async def test_the_route_is_asked_for_when_it_lacks_the_broker_of_a_given_queue(
    autojump_clock, cluster
):
    address = cluster.addresses.pop("b2")
    queue = MessageQueue("T", "b2", 0)
    async with Producer(NS) as producer:
        await producer.send(Message("T", b"x"))
        with pytest.raises(SendFailed, match="no route names its master"):
            await producer.send(Message("T", b"x"), queue=queue)
        cluster.addresses["b2"] = address
        assert (await producer.send(Message("T", b"x"), queue=queue)).queue == queue
        await producer.send_oneway(Message("T", b"x"), queue=queue)


async def test_slow_brokers_are_avoided_when_latency_counts(autojump_clock, cluster):
    cluster.delays_s["b1"] = 0.6
    async with Producer(NS, send_latency_fault_enable=True) as producer:
        while not cluster.of("b1"):
            await producer.send(Message("T", b"x"))
        before = len(cluster.of("b2"))
        for _ in range(10):
            await producer.send(Message("T", b"x"))
        assert len(cluster.of("b1")) == 1
        assert len(cluster.of("b2")) == before + 10
        await trio.sleep(2.1)
        for _ in range(4):
            await producer.send(Message("T", b"x"))
        assert len(cluster.of("b1")) == 2


async def test_go_away_is_followed_by_a_new_connection(autojump_clock, cluster):
    first = []

    def answer(send):
        if not first:
            first.append(send)
            return Command(ResponseCode.GO_AWAY, remark="the broker stops")
        return cluster.stored(send)

    cluster.answers["b1"] = answer
    async with Producer(NS) as producer:
        receipt = await producer.send(Message("T", b"x"), queue=MessageQueue("T", "b1", 0))
    assert receipt.queue_offset == 0
    assert len(cluster.network.wires(cluster.addresses["b1"])) == 2


async def test_an_answer_that_cannot_be_read_counts_as_a_failed_try(autojump_clock, cluster):
    cluster.answers["b1"] = lambda send: Command(0, {"msgId": "x"})
    async with Producer(NS) as producer:
        for _ in range(2):
            assert (await producer.send(Message("T", b"x"))).queue.broker_name == "b2"


async def test_a_failure_asks_for_the_route_again_but_not_for_each_message(autojump_clock, cluster):
    cluster.stop("b1")
    async with Producer(NS) as producer:
        for _ in range(20):
            await producer.send(Message("T", b"x"))
        await trio.sleep(0.1)
        assert cluster.asked.count("T") == 2


async def test_a_cancelled_send_leaves_the_producer_usable(autojump_clock, cluster):
    cluster.delays_s.update(b1=1.0, b2=1.0)
    async with Producer(NS) as producer:
        await producer.queues("T")
        with trio.move_on_after(0.5) as scope:
            await producer.send(Message("T", b"x" * 100_000))
        assert scope.cancelled_caught
        assert (await producer.send(Message("T", b"next"))).status is SendStatus.OK


async def test_c103_the_first_send_makes_the_topic(autojump_clock, cluster):
    cluster.auto_create = True
    async with Producer(NS, default_topic_queues=1) as producer:
        receipt = await producer.send(Message("New", b"x"))
    header = cluster.sends[0].header
    assert receipt.queue.topic == header.topic == "New"
    assert (header.default_topic, header.default_topic_queue_nums) == ("TBW102", 1)
    assert header.queue_id == 0


async def test_c103_without_that_the_error_says_how_to_create_it_and_nothing_is_logged(
    autojump_clock, cluster, caplog
):
    caplog.set_level(logging.WARNING)
    async with Producer(NS) as producer:
        for _ in range(3):
            with pytest.raises(NoRoute, match=r"topic New: .*create it \(mqadmin updateTopic"):
                await producer.send(Message("New", b"x"))
        asked = len(cluster.asked)
        await trio.sleep(100)
        assert len(cluster.asked) == asked
    assert caplog.records == []


async def test_requests_are_signed_with_credentials(autojump_clock, cluster):
    keys = Credentials("me", "secret")
    async with Producer(NS, credentials=keys) as producer:
        await producer.send(Message("T", b"x"))
    command = cluster.sends[0].command
    plain = {k: v for k, v in command.ext.items() if k not in ("AccessKey", "Signature")}
    again = signed(Command(command.code, plain, command.body), "me", "secret", None)
    assert command.ext == again.ext


async def test_requests_say_who_sends(autojump_clock, cluster):
    async with Producer(NS, "orders", namespace="ns") as producer:
        cluster.topics.add("ns%T")
        receipt = await producer.send(Message("T", b"x"))
    header = headers.decode(headers.SendMessageRequestV2, cluster.sends[0].command.ext)
    assert (header.producer_group, header.topic) == ("ns%orders", "ns%T")
    assert receipt.queue.topic == "T"
    assert header.broker_name == cluster.sends[0].broker
