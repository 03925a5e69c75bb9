"""Transactions: half messages, their ends, and checks; with a whole broker in virtual time, and with parts of one."""

from __future__ import annotations

import logging
import threading  # noqa: TID251
from functools import partial

import attrs
import pytest
import trio

from tests.client.received import stored
from trio_mq import (
    Admin,
    HandlerError,
    Message,
    MessageQueue,
    PeerUnavailable,
    Producer,
    SendReceipt,
    SendStatus,
    TransactionReceipt,
    TransactionState,
)
from trio_mq.client import transactions
from trio_mq.client.options import ClientOptions
from trio_mq.client.transactions import CHECKS_AT_ONCE, Transactions
from trio_mq.client.tries import Sent
from trio_mq.config import Address
from trio_mq.errors import LocalProtocolError
from trio_mq.protocol import headers, record
from trio_mq.protocol import properties as props
from trio_mq.protocol.codes import MessageFlag, RequestCode
from trio_mq.protocol.command import Command
from trio_mq.testing.inprocess import open_broker

TOPIC = "Orders"
COMMIT, ROLLBACK, UNKNOWN = TransactionState
ORDER = Message(TOPIC, b"order 42", keys=["42"])


async def visible(ns: str) -> int:
    """How many messages consumers can see."""
    async with Admin(ns) as admin:
        return sum((await admin.max_offsets(TOPIC)).values())


def deciding(state):
    """A local transaction, or a check, that says so."""

    async def decide(_) -> TransactionState | None:
        return state

    return decide


# -- with a broker


@pytest.mark.parametrize(
    ("returned", "state", "count"),
    [(None, COMMIT, 1), (COMMIT, COMMIT, 1), (ROLLBACK, ROLLBACK, 0), (UNKNOWN, UNKNOWN, 0)],
)
async def test_what_the_local_transaction_says(autojump_clock, returned, state, count) -> None:
    async with open_broker() as broker, Producer(broker.nameserver, "G") as producer:
        receipt = await producer.send_in_transaction(ORDER, deciding(returned))
        assert isinstance(receipt, TransactionReceipt)
        assert receipt.state is state
        assert receipt.transaction_id == receipt.message_id
        await trio.sleep(1)
        assert await visible(broker.nameserver) == count


async def test_nothing_is_visible_while_the_local_transaction_runs(autojump_clock) -> None:
    seen = []
    async with open_broker() as broker, Producer(broker.nameserver, "G") as producer:

        async def local(half: SendReceipt) -> None:
            await trio.sleep(2)
            seen.append((half.queue.topic, await visible(broker.nameserver)))

        await producer.send_in_transaction(ORDER, local)
        await trio.sleep(1)
        assert seen == [(TOPIC, 0)]
        assert await visible(broker.nameserver) == 1


async def test_an_error_of_the_local_transaction_rolls_back_and_leaves(autojump_clock) -> None:
    async def local(half: SendReceipt) -> None:
        raise ValueError("no money")

    asked = []

    async def check(message) -> TransactionState:
        asked.append(message)
        return COMMIT

    async with (
        open_broker() as broker,
        Producer(broker.nameserver, "G", check_transaction=check) as producer,
    ):
        with pytest.raises(ValueError, match="no money") as caught:
            await producer.send_in_transaction(ORDER, local)
        await trio.sleep(100)
        assert await visible(broker.nameserver) == 0
    (note,) = caught.value.__notes__
    assert note.endswith("of topic Orders was rolled back")
    assert asked == []


async def test_a_plain_function_runs_in_a_worker_thread(autojump_clock) -> None:
    threads = []

    def local(half: SendReceipt) -> None:
        threads.append(threading.current_thread())

    async with open_broker() as broker, Producer(broker.nameserver, "G") as producer:
        await producer.send_in_transaction(ORDER, local)
        await trio.sleep(1)
        assert await visible(broker.nameserver) == 1
    assert threads[0] is not threading.current_thread()


async def test_the_broker_asks_about_a_transaction_that_it_heard_nothing_of(autojump_clock) -> None:
    asked = []

    async def check(message) -> TransactionState:
        asked.append(message)
        return COMMIT

    async with (
        open_broker() as broker,
        Producer(broker.nameserver, "G", check_transaction=check) as producer,
    ):
        half = await producer.send_in_transaction(ORDER, deciding(UNKNOWN))
        await trio.sleep(100)
        assert await visible(broker.nameserver) == 1
    (message,) = asked
    assert (message.topic, message.body, message.keys) == (TOPIC, b"order 42", ["42"])
    assert message.message_id == half.message_id
    assert message.properties[props.TRANSACTION_CHECK_TIMES] == "1"


async def test_a_check_that_fails_is_logged_and_asked_again(autojump_clock, caplog) -> None:
    results = iter([ValueError("cannot look"), "yes", UNKNOWN, ROLLBACK])

    async def check(message) -> TransactionState:
        result = next(results)
        if isinstance(result, ValueError):
            raise result
        return result

    async with (
        open_broker() as broker,
        Producer(broker.nameserver, "G", check_transaction=check) as producer,
    ):
        half = await producer.send_in_transaction(ORDER, deciding(UNKNOWN))
        await trio.sleep(300)
        assert next(results, "asked four times") == "asked four times"
        assert await visible(broker.nameserver) == 0
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [half.message_id in record.getMessage() for record in errors] == [True, True]
    assert errors[0].exc_info[1].args == ("cannot look",)
    assert "'yes'" in errors[1].getMessage()


async def never(half: SendReceipt) -> None:
    """A local transaction that takes for ever."""
    await trio.sleep_forever()


async def test_a_cancelled_local_transaction_is_left_to_the_check(autojump_clock) -> None:
    async with (
        open_broker() as broker,
        Producer(broker.nameserver, "G", check_transaction=deciding(COMMIT)) as producer,
    ):
        with trio.move_on_after(1):
            await producer.send_in_transaction(ORDER, never)
        assert await visible(broker.nameserver) == 0
        await trio.sleep(100)
        assert await visible(broker.nameserver) == 1


async def test_another_producer_of_the_group_answers(autojump_clock) -> None:
    async with open_broker() as broker:
        async with Producer(broker.nameserver, "G") as first:
            await first.send_in_transaction(ORDER, deciding(UNKNOWN))
        async with Producer(broker.nameserver, "G", check_transaction=deciding(COMMIT)) as second:
            await second.send(Message("Other", b"x"))
            await trio.sleep(100)
            assert await visible(broker.nameserver) == 1


async def test_a_producer_that_cannot_answer_says_so(autojump_clock, caplog) -> None:
    async with open_broker() as broker, Producer(broker.nameserver, "G") as producer:
        await producer.send_in_transaction(ORDER, deciding(UNKNOWN))
        await trio.sleep(50)
    assert "the producer has no check_transaction" in caplog.text


async def test_a_result_that_means_nothing(autojump_clock) -> None:
    async with (
        open_broker() as broker,
        Producer(broker.nameserver, "G", check_transaction=deciding(COMMIT)) as producer,
    ):
        with pytest.raises(HandlerError, match=r"returned True.* will ask"):
            await producer.send_in_transaction(ORDER, deciding(True))
        await trio.sleep(100)
        assert await visible(broker.nameserver) == 1


async def test_a_message_in_a_transaction_is_not_delayed(autojump_clock) -> None:
    async with open_broker() as broker, Producer(broker.nameserver, "G") as producer:
        with pytest.raises(LocalProtocolError, match="cannot be delayed"):
            await producer.send_in_transaction(Message(TOPIC, b"x", delay_level=3), deciding(None))


# -- with parts of one

BROKER = Address("10.0.0.1", 10911)


@attrs.define(eq=False)
class Instance:
    """What transactions need of an instance, and what they did with it."""

    tasks: trio.Nursery
    options: ClientOptions = attrs.field(
        factory=lambda: ClientOptions.of("ns:1", namespace="space")
    )
    handlers: dict = attrs.field(factory=dict)
    told: list = attrs.field(factory=list)
    failure: Exception | None = None

    def on_request(self, code, handler) -> None:
        self.handlers[code] = handler

    async def send_oneway(self, address, command) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        header = headers.decode(headers.EndTransactionRequest, command.ext)
        self.told.append((address, command.code, header, command.remark))


class Sender:
    """Takes all messages."""

    def __init__(self, status=SendStatus.OK) -> None:
        self.status = status
        self.sent = []

    async def deliver(self, message, **options) -> Sent:
        self.sent.append((message, options))
        receipt = SendReceipt(
            "ID",
            "0A00000100002A9F00000000000003E8",
            MessageQueue(TOPIC, "b1", 2),
            7,
            self.status,
            "TX",
        )
        return Sent(receipt, BROKER)


@pytest.fixture
def instance(nursery) -> Instance:
    return Instance(nursery)


async def test_a_half_message_and_its_end(autojump_clock, instance) -> None:
    sender = Sender()
    await Transactions(instance, sender, "space%G", None).send(ORDER, deciding(COMMIT))
    ((message, options),) = sender.sent
    assert message is ORDER
    assert options["sys_flag"] == MessageFlag.TRANSACTION_PREPARED
    assert options["extra_properties"] == {"TRAN_MSG": "true", "PGROUP": "space%G"}
    ((address, code, header, remark),) = instance.told
    assert (address, code, remark) == (BROKER, RequestCode.END_TRANSACTION, None)
    assert header == headers.EndTransactionRequest(
        producer_group="space%G", tran_state_table_offset=7, commit_log_offset=1000,
        commit_or_rollback=8, msg_id="ID", topic="space%Orders", transaction_id="TX",
    )  # fmt: skip


async def test_the_end_says_why_it_is_a_rollback(autojump_clock, instance) -> None:
    async def local(half) -> None:
        raise ValueError("no money")

    with pytest.raises(ValueError, match="no money"):
        await Transactions(instance, Sender(), "G", None).send(ORDER, local)
    ((_, _, header, remark),) = instance.told
    assert header.commit_or_rollback == 12
    assert remark == "the local transaction raised ValueError: no money"


@pytest.mark.parametrize(
    "status",
    [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE],
)
async def test_a_half_message_that_is_not_safe_is_rolled_back_at_once(
    autojump_clock, instance, status
) -> None:
    called = []
    receipt = await Transactions(instance, Sender(status), "G", None).send(ORDER, called.append)
    assert called == []
    assert receipt.state is ROLLBACK
    assert receipt.status is status
    assert instance.told[0][2].commit_or_rollback == 12


async def test_an_end_that_gets_lost_is_logged_only(autojump_clock, instance, caplog) -> None:
    instance.failure = PeerUnavailable("10.0.0.1:10911: gone")
    receipt = await Transactions(instance, Sender(), "G", None).send(ORDER, deciding(None))
    assert receipt.state is COMMIT
    assert "was not told COMMIT of message ID and will ask for it" in caplog.text


def check_request(**changes) -> Command:
    """A broker's question about a half message of the group G."""
    properties = {"PGROUP": "G", "UNIQ_KEY": "ID", **changes}
    body = record.encode(stored(body=b"x", topic="space%Orders", properties=properties, queue_id=3))
    header = headers.CheckTransactionStateRequest(
        tran_state_table_offset=9, commit_log_offset=2000, topic="space%Orders", msg_id="ID",
        transaction_id="TX", broker_name="b1",
    )  # fmt: skip
    return Command(RequestCode.CHECK_TRANSACTION_STATE, headers.encode(header), body)


@attrs.frozen
class Link:
    """Where a request came from."""

    address: Address = BROKER


async def test_the_answer_to_a_check(autojump_clock, instance) -> None:
    asked = []

    async def check(message) -> TransactionState:
        asked.append(message)
        return ROLLBACK

    Transactions(instance, Sender(), "G", check)
    assert instance.handlers[RequestCode.CHECK_TRANSACTION_STATE](Link(), check_request()) is None
    await trio.testing.wait_all_tasks_blocked()
    assert (asked[0].topic, asked[0].queue) == ("Orders", MessageQueue("Orders", "b1", 3))
    ((address, _, header, _),) = instance.told
    assert address == BROKER
    assert header == headers.EndTransactionRequest(
        producer_group="G", tran_state_table_offset=9, commit_log_offset=2000, commit_or_rollback=12,
        msg_id="ID", from_transaction_check=True, topic="space%Orders", transaction_id="TX",
    )  # fmt: skip


async def test_few_checks_run_at_once_and_not_too_many_wait(
    autojump_clock, instance, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(transactions, "CHECKS_WAITING", 20)
    running, most = [0], [0]

    async def check(message) -> TransactionState:
        running[0] += 1
        most[0] = max(most[0], running[0])
        await trio.sleep(1)
        running[0] -= 1
        return COMMIT

    Transactions(instance, Sender(), "G", check)
    ask = partial(instance.handlers[RequestCode.CHECK_TRANSACTION_STATE], Link(), check_request())
    for _ in range(22):
        ask()
    await trio.sleep(10)
    assert most == [CHECKS_AT_ONCE]
    assert len(instance.told) == 20
    assert caplog.text.count("one more is dropped") == 2
    ask()
    await trio.sleep(2)
    assert len(instance.told) == 21


async def test_checks_that_are_broken_or_not_ours_are_dropped(
    autojump_clock, instance, caplog
) -> None:
    Transactions(instance, Sender(), "G", deciding(COMMIT))
    handler = instance.handlers[RequestCode.CHECK_TRANSACTION_STATE]
    whole = check_request()
    handler(Link(), check_request(PGROUP="other"))
    handler(Link(), attrs.evolve(whole, body=whole.body[:50]))
    handler(Link(), attrs.evolve(whole, ext={}))
    await trio.sleep(1)
    assert instance.told == []
    assert caplog.text.count("a transaction check cannot be read, dropped") == 2
