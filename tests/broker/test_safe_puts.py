"""Puts that are no sends: they wait for slaves as sends do, and do not fail for a late one."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.pop.popping import Consumer
from tests.broker.replicas import OK, REFUSED, SYNC_FLUSH, TWO, codes, replicated
from tests.broker.support import (
    BROKER,
    GROUP,
    FakePeer,
    messages,
    oneway,
    props,
    pull,
    request,
    send,
)
from tests.broker.transactions.support import COMMIT, Producer, delivered
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.pop import AckMessageRequest, ChangeInvisibleTimeRequest
from trio_mq.protocol.headers.send import ConsumerSendMsgBackRequest
from trio_mq.protocol.headers.transaction import EndTransactionRequest
from trio_mq.protocol.message import parse_offset_message_id
from trio_mq.protocol.recall import recall_handle

# -- everything else that puts


async def popped(bench, slaves):
    """A message, and a consumer that has popped it."""
    consumer = Consumer(bench)
    bench.hand(consumer.peer, consumer.frame())
    slaves.finish(True)
    (taken,) = consumer.taken(consumer.peer.one())
    return consumer, taken


async def send_back(bench, slaves):
    header = ConsumerSendMsgBackRequest(offset=0, group=GROUP, delay_level=1)
    return request(RequestCode.CONSUMER_SEND_MSG_BACK, header)


async def pop(bench, slaves):
    return Consumer(bench).frame()


async def ack(bench, slaves):
    consumer, taken = await popped(bench, slaves)
    return request(RequestCode.ACK_MESSAGE, AckMessageRequest(**consumer.fields(taken)))


async def change(bench, slaves):
    consumer, taken = await popped(bench, slaves)
    header = ChangeInvisibleTimeRequest(**consumer.fields(taken), invisible_time=30_000)
    return request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


async def recall(bench, slaves):
    at_ms = bench.clock.now_ms() + 60_000
    handle = recall_handle("T", "b-a", at_ms, "ID").decode()
    ext = {"topic": "T", "recallHandle": handle, "producerGroup": "PG"}
    return request(RequestCode.RECALL_MESSAGE, None, ext=ext)


async def commit(bench, slaves):
    peer = FakePeer()
    half = props(TRAN_MSG="true", PGROUP="PG", UNIQ_KEY="K")
    bench.hand(peer, send(properties=half, sys_flag=4))
    slaves.finish(True)
    reply = peer.one()
    log_offset = parse_offset_message_id(reply.ext["msgId"])[1]
    header = EndTransactionRequest(
        producer_group="PG",
        tran_state_table_offset=0,
        commit_log_offset=log_offset,
        commit_or_rollback=COMMIT,
        msg_id="K",
        from_transaction_check=False,
        transaction_id="K",
    )
    return request(RequestCode.END_TRANSACTION, header)


OTHERS = (send_back, pop, ack, change, recall, commit)
RECALLS = attrs.evolve(BROKER, recall_message_enable=True)


@pytest.mark.parametrize("make", OTHERS)
@pytest.mark.parametrize("in_time", [True, False])
async def test_other_puts_wait_for_slaves_but_do_not_fail(autojump_clock, make, in_time):
    """The peers take a late slave for a success here: what was asked for is done, and would be done twice."""
    async with replicated(broker=RECALLS) as (bench, slaves):
        bench.hand(FakePeer(), send(body=b"m"))
        slaves.finish(True)
        peer, frame = FakePeer(), await make(bench, slaves)
        before = bench.store.log.written
        bench.hand(peer, frame)
        assert codes(peer) == [], "answered before a slave has it"
        assert bench.store.log.written > before
        assert slaves.finish(in_time) >= 1
        assert codes(peer) == [OK]


@pytest.mark.parametrize("make", [pop, ack, change, recall])
async def test_other_puts_are_refused_without_enough_replicas(autojump_clock, make):
    """Not those that the peers mark as waiting for nothing: messages sent back, and ends of transactions."""
    ha = attrs.evolve(TWO, enable_slave_acting_master=True)
    async with replicated(ha, broker=RECALLS) as (bench, slaves):
        bench.hand(FakePeer(), send(body=b"m"))
        slaves.finish(True)
        frame = await make(bench, slaves)
        slaves.in_sync_count, before = 1, bench.store.log.written
        assert bench.ask(frame).code == REFUSED
        assert bench.store.log.written == before


async def test_a_pop_commits_its_offset_though_the_slave_is_away(autojump_clock):
    async with replicated() as (bench, slaves):
        bench.hand(FakePeer(), send(body=b"m"))
        slaves.finish(False)
        bench.hand(FakePeer(), Consumer(bench).frame())
        assert bench.offsets.query(GROUP, "T", 0) == 0
        slaves.finish(False)
        assert bench.offsets.query(GROUP, "T", 0) == 1


async def test_a_committed_transaction_is_delivered_though_the_slave_is_away(autojump_clock):
    async with replicated() as (bench, slaves):
        producer = Producer(bench)
        frame = await commit(bench, slaves)
        bench.hand(producer.peer, oneway(frame))
        assert delivered(bench) == [b"hello"]
        assert [m.topic for m in messages(bench.ask(pull()))] == ["T"]


async def test_a_late_disk_is_told_as_before(autojump_clock):
    store = attrs.evolve(SYNC_FLUSH, sync_flush_timeout_ms=1000)
    async with replicated(store=store) as (bench, slaves):
        bench.hand(FakePeer(), send(body=b"m"))
        await trio.sleep(0.5)
        slaves.finish(True)
        bench.disk.run_delay_s = 3
        peer = FakePeer()
        bench.hand(peer, await send_back(bench, slaves))
        slaves.finish(True)
        await peer.written()
        assert peer.one().code == ResponseCode.FLUSH_DISK_TIMEOUT
