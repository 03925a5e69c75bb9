"""The blocking producer: sends, pipelines, transactions and requests from plain threads, at a broker in a thread."""

from __future__ import annotations

import threading

import pytest

from tests.blocking.brokers import broker
from tests.blocking.support import Thread, client_threads, until
from trio_mq import (
    HandlerError,
    Message,
    NoReply,
    NotOpen,
    PeerRefused,
    PeerUnavailable,
    SendFailed,
    SendStatus,
    TransactionState,
)
from trio_mq.blocking import Producer
from trio_mq.errors import LocalProtocolError


@pytest.fixture
def ns():
    with broker() as address:
        yield address
    assert client_threads() == set()


def test_sends_of_all_kinds(ns) -> None:
    with Producer(ns, "G") as producer:
        receipt = producer.send(Message("Orders", b"one", keys=["42"]))
        assert receipt.status is SendStatus.OK
        assert receipt.queue in producer.queues("Orders")
        producer.send_oneway(Message("Orders", b"two"))
        (batch,) = producer.send_batch([Message("Orders", b"3"), Message("Orders", b"4")])
        assert batch.message_id.count(",") == 1
        with pytest.raises(LocalProtocolError, match="empty"):
            producer.send(Message("Orders", b""))


def test_many_threads_send_at_once(ns) -> None:
    ids: list[str] = []
    with Producer(ns) as producer:
        queue = producer.queues("Orders")[0]

        def work() -> None:
            sent = [producer.send(Message("Orders", b"x"), queue=queue) for _ in range(50)]
            ids.extend(receipt.message_id for receipt in sent)

        threads = [Thread(work) for _ in range(8)]
        for thread in threads:
            thread.ended()
        assert producer.send(Message("Orders", b"x"), queue=queue).queue_offset == 400
    assert len(set(ids)) == 400


def test_a_pipeline(ns) -> None:
    with Producer(ns) as producer:
        with producer.pipeline(window=16) as pipeline:
            pending = [pipeline.send(Message("Orders", b"%d" % n)) for n in range(200)]
            assert pending[7].wait().message_id == pending[7].message_id
            pipeline.flush()
            assert all(one.done for one in pending)
        assert len({one.receipt.offset_message_id for one in pending}) == 200
        with pytest.raises(NotOpen, match="opened before"):
            pipeline.__enter__()
        with pytest.raises(NotOpen, match="not open"):
            producer.pipeline().send(Message("Orders", b"x"))


def test_an_error_of_the_block_leaves_a_pipeline_as_itself(ns) -> None:
    with Producer(ns) as producer:
        with pytest.raises(ZeroDivisionError), producer.pipeline():
            _ = 1 / 0
        with pytest.raises(KeyboardInterrupt), producer.pipeline():
            raise KeyboardInterrupt
        producer.send(Message("Orders", b"x"))


def test_a_failed_send_of_a_pipeline_is_told_once(ns) -> None:
    with Producer(ns) as producer:
        queue = producer.queues("Orders")[0]
        bad = type(queue)("Orders", queue.broker_name, 99)
        with pytest.raises((PeerRefused, SendFailed)), producer.pipeline() as pipeline:
            pipeline.send(Message("Orders", b"x"), queue=bad)
        with producer.pipeline() as pipeline:
            pending = pipeline.send(Message("Orders", b"x"), queue=bad)
            with pytest.raises((PeerRefused, SendFailed)):
                pending.wait()


def test_a_local_transaction_runs_in_the_calling_thread(ns) -> None:
    where = []

    def local(half) -> None:
        where.append(threading.current_thread())

    with Producer(ns, "G") as producer:
        receipt = producer.send_in_transaction(Message("Orders", b"x"), local)
        assert receipt.state is TransactionState.COMMIT
        assert where == [threading.current_thread()]

        def fails(half) -> None:
            raise ValueError("no money")

        with pytest.raises(ValueError, match="no money") as caught:
            producer.send_in_transaction(Message("Orders", b"y"), fails)
        assert "rolled back" in caught.value.__notes__[0]
        with pytest.raises(HandlerError, match="returned 'yes'"):
            producer.send_in_transaction(Message("Orders", b"z"), lambda half: "yes")


def test_a_check_is_a_plain_function_in_a_thread() -> None:
    asked = []

    def check(message) -> TransactionState:
        asked.append((message.body, threading.current_thread() is threading.main_thread()))
        return TransactionState.COMMIT

    quick = {"transactionTimeOut": "100", "transactionCheckInterval": "50"}
    with broker(**quick) as ns, Producer(ns, "G", check_transaction=check) as producer:
        half = producer.send_in_transaction(
            Message("Orders", b"x"), lambda half: TransactionState.UNKNOWN
        )
        assert half.state is TransactionState.UNKNOWN
        until(lambda: asked, "the check")
    assert asked[0] == (b"x", False)
    assert client_threads() == set()


def test_a_request_without_an_answer(ns) -> None:
    with Producer(ns) as producer, pytest.raises(NoReply, match=r"Orders.* within 0.05 s"):
        producer.request(Message("Orders", b"?"), timeout_s=0.05)


def test_a_name_server_that_is_not_there() -> None:
    with pytest.raises(PeerUnavailable, match=r"127\.0\.0\.1:1"), Producer("127.0.0.1:1"):
        pass
    assert client_threads() == set()
