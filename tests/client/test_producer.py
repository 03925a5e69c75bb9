"""The producer's own part: settings, life, one-way sends, batches, queues, recalls."""

import base64

import pytest
import trio

from tests.client.sendpeers import NS, Cluster, refusing, using
from trio_mq import ConfigError, Message, MessageQueue, NotOpen, PeerRefused, Producer, SendFailed
from trio_mq.errors import BodyError, LocalProtocolError, PeerUnavailable
from trio_mq.protocol.message import split_batch


@pytest.fixture
async def cluster(nursery):
    found = Cluster({"b1": 2, "b2": 2})
    await nursery.start(found.run)
    with using(found):
        yield found


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"send_timeout_s": 0}, "send_timeout_s: 0 is below"),
        ({"retry_times_when_send_failed": -1}, "retry_times_when_send_failed: -1 is below 0"),
        ({"max_message_bytes": 0}, "max_message_bytes"),
        ({"compress_over_bytes": 0}, "compress_over_bytes"),
        ({"default_topic_queues": 0}, "default_topic_queues"),
        ({"group": "a b"}, "group: 'a b' holds ' '"),
    ],
)
def test_bad_settings_are_told_at_once(setting, text):
    with pytest.raises(ConfigError, match=text):
        Producer(NS, **setting)


async def test_it_works_only_inside_its_block(autojump_clock, cluster):
    producer = Producer(NS, "orders")
    with pytest.raises(NotOpen, match=r"<Producer orders of ns:9876> is not open yet"):
        await producer.send(Message("T", b"x"))
    async with producer:
        await producer.send(Message("T", b"x"))
    for use in (
        lambda: producer.send(Message("T", b"x")),
        lambda: producer.send_oneway(Message("T", b"x")),
        lambda: producer.send_batch([Message("T", b"x")]),
        lambda: producer.queues("T"),
        lambda: producer.recall("T", "h"),
    ):
        with pytest.raises(NotOpen, match="is closed"):
            await use()


async def test_c182_without_a_name_server_it_does_not_open_and_says_where_it_looked(
    autojump_clock, cluster
):
    began_s = trio.current_time()
    with pytest.raises(PeerUnavailable, match=r"other:9876"):
        async with Producer("other:9876", start_timeout_s=5):
            pytest.fail("opened")
    assert trio.current_time() - began_s <= 5


async def test_a_one_way_send_arrives_and_knows_nothing(autojump_clock, cluster):
    cluster.answers.update(b1=refusing(13), b2=refusing(13))
    async with Producer(NS) as producer:
        assert await producer.send_oneway(Message("T", b"x", tags="t")) is None
        await producer.send_oneway(Message("T", b"y"), queue=MessageQueue("T", "b2", 1))
        await trio.sleep(1)
    first, second = cluster.sends
    assert first.command.is_oneway
    assert first.properties["TAGS"] == "t"
    assert (second.broker, second.queue_id) == ("b2", 1)


async def test_a_batch_goes_in_one_request(autojump_clock, cluster):
    async with Producer(NS) as producer:
        (receipt,) = await producer.send_batch([Message("T", b"%d" % i) for i in range(3)])
    (send,) = cluster.sends
    assert send.command.code == 320
    assert send.header.batch
    assert [item.body for item in split_batch(send.body)] == [b"0", b"1", b"2"]
    assert len(receipt.message_id.split(",")) == 3


async def test_c139_a_large_batch_needs_several_and_a_bad_one_sends_nothing(
    autojump_clock, cluster
):
    async with Producer(NS, max_message_bytes=2000) as producer:
        receipts = await producer.send_batch(Message("T", b"x" * 900) for _ in range(5))
        assert [len(receipt.message_id.split(",")) for receipt in receipts] == [2, 2, 1]
        assert len(cluster.sends) == 3
        cluster.sends.clear()
        receipts = await producer.send_batch(Message("T", b"x" * 500) for _ in range(5))
        assert [len(receipt.message_id.split(",")) for receipt in receipts] == [3, 2]
        cluster.sends.clear()
        for bad in (
            Message("U", b"x"),
            Message("T", b"x", delay_level=1),
            Message("T", b"x" * 2001),
        ):
            with pytest.raises(LocalProtocolError):
                await producer.send_batch(
                    [Message("T", b"x" * 1500), Message("T", b"x" * 1500), bad]
                )
    assert cluster.sends == []


async def test_a_batch_is_tried_again_as_a_message_is(autojump_clock, cluster):
    cluster.answers["b1"] = refusing(14)
    async with Producer(NS) as producer:
        for _ in range(4):
            (receipt,) = await producer.send_batch([Message("T", b"x")])
            assert receipt.queue.broker_name == "b2"


async def test_a_refused_batch_names_its_request(autojump_clock, cluster):
    cluster.answers.update(b1=refusing(13), b2=refusing(13))
    async with Producer(NS) as producer:
        with pytest.raises(PeerRefused, match=r"SEND_BATCH_MESSAGE \(320\) for topic T"):
            await producer.send_batch([Message("T", b"x")])


async def test_queues_are_those_that_can_be_sent_to(autojump_clock, cluster):
    async with Producer(NS) as producer:
        assert await producer.queues("T") == tuple(
            MessageQueue("T", broker, number) for broker in ("b1", "b2") for number in (0, 1)
        )
    cluster.topics.add("ns%T")
    async with Producer(NS, namespace="ns") as producer:
        queue = (await producer.queues("T"))[0]
        assert queue == MessageQueue("T", "b1", 0)
        assert (await producer.send(Message("T", b"x"), queue=queue)).queue == queue


async def test_a_recall_goes_to_the_broker_that_its_handle_names(autojump_clock, cluster):
    handle = base64.urlsafe_b64encode(b"v1 T b2 1700000000000 ID").decode()
    async with Producer(NS) as producer:
        with pytest.raises(BodyError, match="recall handle 'nonsense"):
            await producer.recall("T", "nonsense!")
        cluster.stop("b1")
        with pytest.raises(Exception, match=r"RecallMessageReply.*msgId") as caught:
            await producer.recall("T", handle)  # b2 answers, with nothing in it
        assert not isinstance(caught.value, SendFailed)
        other = base64.urlsafe_b64encode(b"v1 T b7 1700000000000 ID").decode()
        with pytest.raises(PeerUnavailable, match="broker b7 of topic T: no route"):
            await producer.recall("T", other)


async def test_the_namesake_topic_of_a_namespace_is_sent_to(autojump_clock, cluster):
    cluster.topics = {"ns%T"}
    async with Producer(NS, namespace="ns") as producer:
        await producer.send(Message("T", b"x"))
    assert cluster.sends[0].header.topic == "ns%T"
    assert cluster.sends[0].properties["INSTANCE_ID"] == "ns"
