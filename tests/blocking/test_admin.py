"""Blocking administration, at a broker in a thread."""

from __future__ import annotations

import pytest

from tests.blocking.brokers import broker
from tests.blocking.support import Thread, client_threads, until
from trio_mq import Message, NotOpen
from trio_mq.blocking import Admin, Producer


@pytest.fixture
def ns():
    with broker() as address:
        yield address
    assert client_threads() == set()


def test_topics_groups_and_messages(ns) -> None:
    with Admin(ns) as admin, Producer(ns) as producer:
        admin.create_topic("Orders", queues=2)
        admin.create_group("billing")
        assert "Orders" in admin.topics()
        receipt = producer.send(Message("Orders", b"x", keys=["42"]))
        found = admin.message(receipt.offset_message_id)
        assert found is not None
        assert found.body == b"x"
        assert sum(admin.max_offsets("Orders").values()) == 1
    with pytest.raises(NotOpen):
        admin.topics()


def test_reading_ends_or_follows(ns) -> None:
    got: list[bytes] = []
    with Producer(ns) as producer:
        for number in range(10):
            producer.send(Message("Orders", b"%d" % number))
        with Admin(ns) as admin:
            reading = admin.read("Orders")
            assert sorted(message.body for message in reading) == [b"%d" % n for n in range(10)]
            assert reading.failures == ()

            def follow() -> None:
                got.extend(m.body for m in admin.read("Orders", begin="end", follow=True))

            thread = Thread(follow)
            until(lambda: admin._waiting._calls, "the reading")
            producer.send(Message("Orders", b"new"))
            until(lambda: got, "the message")
        thread.ended()
    assert got == [b"new"]
