"""Codes 370, 60 and 61: recalls that are taken and refused, the timer's checkpoint and counts."""

from __future__ import annotations

import json
import struct

import attrs
import pytest
import trio

from tests.broker.support import BROKER, STORE, FakePeer, props, request, send, serving
from trio_mq.config import FlushDiskType
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.recall import recall_handle
from trio_mq.testing.clock import DEFAULT_START_MS

RECALLS = attrs.evolve(BROKER, recall_message_enable=True)


@pytest.fixture
def peer():
    return FakePeer()


async def ask(bench, peer, code, body=b"", **ext):
    bench.face.received(peer, [request(code, None, body, ext=ext)])
    await peer.written()
    return peer.one()


async def recall(bench, peer, handle, topic="T"):
    return await ask(
        bench,
        peer,
        RequestCode.RECALL_MESSAGE,
        topic=topic,
        recallHandle=handle,
        producerGroup="PG",
    )


def handle(at_ms, topic="T", broker="b-a", key="ID"):
    return recall_handle(topic, broker, at_ms, key).decode()


async def sent(bench, peer, body=b"m", **pairs):
    bench.face.received(peer, [send(body=body, properties=props(**pairs))])
    await peer.written()
    return peer.one()


async def test_a_message_is_taken_back(autojump_clock, peer):
    async with serving(broker=RECALLS) as bench:
        reply = await sent(bench, peer, UNIQ_KEY="ID", TIMER_DELAY_SEC="5")
        await sent(bench, peer, b"stays", UNIQ_KEY="ID2", TIMER_DELAY_SEC="5")
        taken = await recall(bench, peer, reply.ext["recallHandle"])
        assert (taken.code, taken.ext["msgId"]) == (0, "ID")
        await trio.sleep(8)
        assert [m.body for m in bench.stored() if m.topic == "T"] == [b"stays"]
        note = next(m for m in bench.stored() if m.body == b"0").property_map
        assert (note["TIMER_DEL_UNIQKEY"], note["TAGS"]) == ("ID", "_RECALL_TAG_")
        assert (note["PGROUP"], note["REAL_TOPIC"]) == ("PG", "T")


async def test_recalls_that_are_refused(autojump_clock, peer):
    async with serving(broker=RECALLS) as bench:
        await sent(bench, peer)
        now_ms = bench.clock.now_ms()
        soon = now_ms + 30_000
        wrong = {
            (handle(soon), "Unknown"): 17,
            ("none", "T"): 604,
            (handle(soon, topic="Other"), "T"): 604,
            (handle(soon, broker="b-b"), "T"): 604,
            (handle(now_ms), "T"): 604,
            (handle(now_ms + 259_200_000), "T"): 604,
            (recall_handle("T", "b-a", -1, "ID").decode(), "T"): 604,
        }
        for (text, topic), code in wrong.items():
            assert (await recall(bench, peer, text, topic)).code == code
        bench.store.cleaner.refusal = "the disk is full"
        full = await recall(bench, peer, handle(soon))
        assert (full.code, "the disk is full" in full.remark) == (1, True)


async def test_brokers_that_take_no_recalls(autojump_clock, peer):
    soon = DEFAULT_START_MS + 30_000
    async with serving() as bench:
        refused = await recall(bench, peer, handle(soon))
        assert (refused.code, "recallMessageEnable" in refused.remark) == (16, True)
    closed = attrs.evolve(
        RECALLS, broker_permission=4, allow_recall_when_broker_not_writeable=False
    )
    async with serving(broker=closed) as bench:
        assert (await recall(bench, peer, handle(soon))).code == 14


async def test_a_recall_under_sync_flush_is_answered_when_it_is_durable(autojump_clock, peer):
    sync = attrs.evolve(STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with serving(broker=RECALLS, store=sync) as bench:
        await sent(bench, peer)
        taken = await recall(bench, peer, handle(bench.clock.now_ms() + 30_000))
        assert taken.code == 0
        assert bench.store.log.durable.value == bench.store.log.end


async def test_checkpoint_and_counts(autojump_clock, peer):
    async with serving() as bench:
        await sent(bench, peer, TIMER_DELAY_SEC="50")
        await sent(bench, peer, TIMER_DELAY_SEC="60")
        await trio.sleep(3)
        check = await ask(bench, peer, RequestCode.GET_TIMER_CHECK_POINT)
        fields = struct.unpack(">7q", check.body)
        assert fields[1:4] == (104, 2, 2)
        assert DEFAULT_START_MS <= fields[0] <= bench.clock.now_ms()
        counts = await ask(bench, peer, RequestCode.GET_TIMER_METRICS)
        assert json.loads(counts.body)["timingCount"]["T"]["count"] == 2
        info = await ask(bench, peer, RequestCode.GET_BROKER_RUNTIME_INFO)
        table = json.loads(info.body)["table"]
        assert (table["timerCongestNum"], table["timerOffsetBehind"]) == ("2", "0")
        assert table["timerReadBehind"] == "0"


async def test_a_broker_without_timers(autojump_clock, peer):
    async with serving(store=attrs.evolve(STORE, timer_wheel_enable=False)) as bench:
        for code in (RequestCode.GET_TIMER_CHECK_POINT, RequestCode.GET_TIMER_METRICS):
            refused = await ask(bench, peer, code)
            assert (refused.code, "timerWheelEnable" in refused.remark) == (1, True)
