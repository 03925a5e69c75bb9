"""Messages by id, key and place."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.client.admin.scripted import (
    B1,
    B2,
    HOST,
    Queue,
    administered,
    no,
    ok,
    record,
    serve_queues,
)
from trio_mq.client.admin.messages import place_of
from trio_mq.errors import ConfigError, PeerRefused, PeerUnavailable
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.message import Host, UniqueIds, offset_message_id

VIEW, QUERY = RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.QUERY_MESSAGE
FOUND = headers.QueryMessageReply(0, 0)
ID = offset_message_id(HOST, 4000)
UNIQUE = UniqueIds("10.0.0.5", 4711, 99, UTC).create(1_700_000_000_000)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (ID, (HOST, 4000)),
        (ID.lower(), (HOST, 4000)),
        (offset_message_id(Host("fd00::1", 1), 7), (Host("fd00::1", 1), 7)),
        (UNIQUE, None),
        (UniqueIds("fd00::1", 1, 2, UTC).create(1_700_000_000_000), None),
        ("0" * 32, None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_ids_of_brokers_and_of_clients_look_alike(text, place):
    assert place_of(text) == place


async def test_a_brokers_id_is_a_place_in_its_log():
    async with administered(B1) as (admin, there):
        there.brokers[B1].answers[VIEW] = ok(record(4, b"found"))
        found = await admin.message(ID)
        assert found is not None
        assert (found.body, found.queue) == (b"found", MessageQueue("T", "b1", 0))
        assert there.brokers[B1].requests(VIEW)[0].ext == {"offset": "4000"}
        there.brokers[B1].answers[VIEW] = no(1, "nothing there")
        assert await admin.message(ID) is None


async def test_a_clients_id_needs_a_topic():
    async with administered(B1) as (admin, there):
        there.topic("T")
        there.brokers[B1].answers[QUERY] = ok(
            record(4, UNIQ_KEY=UNIQUE) + record(5, UNIQ_KEY="other"), FOUND
        )
        found = await admin.message(UNIQUE, "T")
        assert found is not None
        assert (found.message_id, found.queue_offset) == (UNIQUE, 4)
        (asked,) = there.brokers[B1].requests(QUERY)
        assert (asked.ext["key"], asked.ext["_UNIQUE_KEY_QUERY"]) == (UNIQUE, "true")
        with pytest.raises(ConfigError, match="say its topic"):
            await admin.message(UNIQUE)


async def test_an_id_that_is_no_place_after_all_is_looked_for_by_key(autojump_clock):
    """Whoever makes ids in its own way may make one that looks like a place."""
    away = offset_message_id(Host("10.0.0.77", 1234), 4)
    async with administered(B1) as (admin, there):
        there.topic("T")
        there.brokers[B1].answers[QUERY] = ok(record(4, UNIQ_KEY=away), FOUND)
        found = await admin.message(away, "T")
        assert found is not None
        assert found.message_id == away
        there.brokers[B1].answers[QUERY] = no(22)
        with pytest.raises(PeerUnavailable, match=r"10\.0\.0\.77:1234"):
            await admin.message(away, "T")
        with pytest.raises(PeerUnavailable):
            await admin.message(away)


async def test_keys_are_looked_for_on_all_brokers(autojump_clock):
    async with administered(B1, B2) as (admin, there):
        there.topic("T")
        there.brokers[B1].answers[QUERY] = ok(record(2, b"late", at_ms=9_000, KEYS="a k"), FOUND)
        early = record(1, b"early", at_ms=5_000, KEYS="k") + record(3, b"hash", at_ms=1, KEYS="kk")
        there.brokers[B2].answers[QUERY] = ok(early, FOUND)
        found = await admin.messages_by_key(
            "T",
            "k",
            begin=datetime.fromtimestamp(1, UTC),
            end=datetime.fromtimestamp(2, UTC),
            limit=7,
        )
        assert [message.body for message in found] == [b"early", b"late"]
        (asked,) = there.brokers[B1].requests(QUERY)
        assert (asked.ext["beginTimestamp"], asked.ext["endTimestamp"]) == ("1000", "2000")
        assert asked.ext["maxNum"] == "7"
        there.brokers[B1].answers[QUERY] = no(22)
        there.brokers[B2].answers[QUERY] = no(1, "broken")
        nothing = await admin.messages_by_key("T", "k")
        assert list(nothing) == []
        assert [failure.address for failure in nothing.failures] == [B2]


async def test_the_message_at_a_place():
    async with administered(B1) as (admin, there):
        serve_queues(there.brokers[B1], {0: Queue([record(n, b"%d" % n) for n in range(3, 6)], 3)})
        queue = MessageQueue("T", "b1", 0)
        found = await admin.message_at(queue, 4)
        assert found is not None
        assert found.body == b"4"
        assert [await admin.message_at(queue, offset) for offset in (2, 6, 99)] == [None] * 3
        there.brokers[B1].answers[RequestCode.PULL_MESSAGE] = no(17)
        with pytest.raises(PeerRefused):
            await admin.message_at(queue, 4)
