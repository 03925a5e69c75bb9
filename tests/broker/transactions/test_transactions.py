"""Whole transactions: sent, decided, checked, over restarts and kills; on the mock clock."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.support import BROKER, STORE, FakePeer, props, request, send, serving
from tests.broker.transactions.support import (
    COMMIT,
    ROLL_BACK,
    UNKNOWN,
    Producer,
    Sent,
    delivered,
    given_up,
    halves,
    ops,
    progress,
    stored,
)
from trio_mq.broker.names import SCHEDULE_TOPIC
from trio_mq.broker.put import Letter
from trio_mq.broker.transactions import checks
from trio_mq.broker.transactions.ledger import Fate
from trio_mq.config.store import FlushDiskType
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.transaction import ResumeCheckHalfMessageRequest
from trio_mq.protocol.message import offset_message_id
from trio_mq.protocol.properties import remove

INTERVAL_S = 30.0


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        made.create()
        yield made


@pytest.fixture
async def producer(bench):
    made = Producer(bench)
    made.start()
    return made


async def rounds(count: float = 1) -> None:
    await trio.sleep(count * INTERVAL_S)


# -- decisions


async def test_b126_nobody_sees_a_half_message_before_the_decision(autojump_clock, bench, producer):
    sent = producer.half(b"x", TAGS="A", KEYS="k")
    assert delivered(bench) == []
    (half,) = halves(bench)
    found = half.property_map
    assert half.queue_id == 0
    assert half.sys_flag & 0xC == 0
    assert (found["REAL_TOPIC"], found["REAL_QID"]) == ("T", "0")
    assert found["__transactionId__"] == sent.unique_id
    assert found["TRAN_MSG"] == "true"


async def test_a_commit_delivers_as_apache_does(autojump_clock, bench, producer):
    sent = producer.half(b"x", queue_id=2, TAGS="A", KEYS="k")
    producer.end(sent, COMMIT)
    (message,) = stored(bench, "T")
    assert (message.queue_id, message.queue_offset, message.body) == (2, 0, b"x")
    assert message.sys_flag & 0xC == COMMIT
    assert message.prepared_transaction_offset == sent.log_offset
    found = message.property_map
    assert "REAL_TOPIC" not in found
    assert "REAL_QID" not in found
    assert found["TRAN_MSG"] == "true"
    assert found["__transactionId__"] == sent.unique_id
    assert found["TAGS"] == "A"
    assert bench.store.queue("T", 2).max_offset == 1


async def test_a_roll_back_delivers_nothing(autojump_clock, bench, producer):
    producer.end(producer.half(), ROLL_BACK)
    await rounds(3)
    assert delivered(bench) == []
    assert producer.checks() == []
    assert ops(bench) == [b"0,"]


async def test_decisions_are_written_down_some_at_a_time(autojump_clock, bench, producer):
    sent = [producer.half() for _ in range(5)]
    for at in sent:
        producer.end(at, COMMIT)
    assert ops(bench) == []
    await trio.sleep(3.1)
    assert ops(bench) == [b"0,1,2,3,4,"]
    (record,) = stored(bench, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    assert record.property_map == {"TAGS": "d", "WAIT": "true"}
    await rounds()
    assert progress(bench) == (5, 1)


async def test_an_unknown_answer_gets_no_reply(autojump_clock, bench, producer):
    sent = producer.half()
    peer = FakePeer()
    bench.hand(peer, producer.end_frame(sent, UNKNOWN), producer.end_frame(sent, 77))
    assert peer.take() == []


async def test_b129_wrong_ends_are_refused(autojump_clock, bench, producer):
    sent = producer.half()
    for wrong, text in (
        ({"producer_group": "other"}, "producer group"),
        ({"tran_state_table_offset": 7}, "is at 0 of its queue"),
        ({"commit_log_offset": 1}, "no half message"),
        ({"commit_log_offset": 10**12}, "no half message"),
    ):
        reply = producer.asked(sent, COMMIT, **wrong)
        assert reply.code == ResponseCode.SYSTEM_ERROR
        assert text in reply.remark
    bench.put(b"plain")
    plain = bench.stored()[-1]
    reply = producer.asked(sent, COMMIT, commit_log_offset=plain.log_offset)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert delivered(bench) == [b"plain"]
    assert producer.asked(sent, COMMIT).code == ResponseCode.SUCCESS


async def test_b129_a_late_end_without_a_check_is_refused(autojump_clock, bench, producer):
    sent = producer.half(CHECK_IMMUNITY_TIME_IN_SECONDS="10")
    await trio.sleep(10.1)
    for decision in (COMMIT, ROLL_BACK):
        assert producer.asked(sent, decision).code == ResponseCode.ILLEGAL_OPERATION
    reply = producer.asked(sent, COMMIT, from_transaction_check=True)
    assert reply.code == ResponseCode.SUCCESS
    assert delivered(bench) == [b"half"]


async def test_b129_transactions_can_be_refused(autojump_clock):
    settings = attrs.evolve(BROKER, reject_transaction_message=True)
    async with serving(broker=settings) as bench:
        bench.create()
        producer = Producer(bench)
        with pytest.raises(AssertionError, match="rejectTransactionMessage"):
            producer.half()
        assert bench.stored() == []


async def test_a_success_that_somebody_hears_is_written_down(autojump_clock, bench, producer):
    sent = producer.half()
    assert producer.asked(sent, ROLL_BACK).code == ResponseCode.SUCCESS
    assert ops(bench) == [b"0,"]


async def test_c154_a_half_message_with_a_delay_is_stored_once(autojump_clock, bench, producer):
    sent = producer.half(DELAY="3", TIMER_DELAY_MS="5000")
    (half,) = halves(bench)
    assert "DELAY" not in half.property_map
    assert "TIMER_DELAY_MS" not in half.property_map
    producer.end(sent, COMMIT)
    await rounds(3)
    assert len(halves(bench)) == 1
    assert stored(bench, SCHEDULE_TOPIC) == []
    assert delivered(bench) == [b"half"]


async def test_c155_the_first_decision_counts(autojump_clock, bench, producer):
    sent = producer.half()
    await rounds(1.5)
    (check,) = producer.checks()
    producer.end(check, ROLL_BACK)
    reply = producer.asked(sent, COMMIT)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "already" in reply.remark
    assert producer.asked(check, ROLL_BACK).code == ResponseCode.SUCCESS
    await rounds(5)
    assert producer.asked(sent, COMMIT).code == ResponseCode.SYSTEM_ERROR
    assert delivered(bench) == []


async def test_the_same_decision_twice_is_one(autojump_clock, bench, producer):
    sent = producer.half()
    assert producer.asked(sent, COMMIT).code == ResponseCode.SUCCESS
    assert producer.asked(sent, COMMIT).code == ResponseCode.SUCCESS
    assert producer.asked(sent, ROLL_BACK).code == ResponseCode.SYSTEM_ERROR
    assert delivered(bench) == [b"half"]


async def test_a_producer_cannot_pretend_to_be_a_copy(autojump_clock, bench, producer):
    first = producer.half(b"first")
    second = producer.half(
        b"second", TRAN_PREPARED_QUEUE_OFFSET=str(first.queue_offset), TRANSACTION_CHECK_TIMES="15"
    )
    producer.end(second, ROLL_BACK)
    producer.end(first, COMMIT)
    assert delivered(bench) == [b"first"]


# -- checks


async def test_a_check_names_the_copy_and_the_real_topic(autojump_clock, bench, producer):
    sent = producer.half(b"x", queue_id=3, TAGS="A")
    await rounds(1.1)
    (check,) = producer.checks()
    copy = halves(bench)[1]
    header = check.header
    assert header.tran_state_table_offset == copy.queue_offset == 1
    assert header.commit_log_offset == copy.log_offset
    assert header.msg_id == header.transaction_id == sent.unique_id
    assert header.offset_msg_id == offset_message_id(bench.store.host, copy.log_offset)
    assert header.topic == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert header.broker_name == "b-a"
    message = check.message
    assert (message.topic, message.queue_id, message.body) == ("T", 3, b"x")
    assert (message.log_offset, message.queue_offset) == (copy.log_offset, copy.queue_offset)
    assert message.property_map["TRANSACTION_CHECK_TIMES"] == "1"
    assert message.property_map["PGROUP"] == "PG"
    producer.end(check, COMMIT)
    (message,) = stored(bench, "T")
    assert (message.queue_id, message.prepared_transaction_offset) == (3, copy.log_offset)


async def test_b125_an_undecided_one_is_asked_again_at_each_interval(
    autojump_clock, bench, producer
):
    producer.half()
    await rounds(0.1)
    seen = []
    for _ in range(5):
        await rounds()
        seen.append(len(producer.checks()))
    assert seen == [1] * 5
    assert delivered(bench) == []


async def test_b127_fifteen_checks_then_it_is_given_up(autojump_clock):
    settings = attrs.evolve(BROKER, transaction_check_interval_ms=2000)
    async with serving(broker=settings) as bench:
        bench.create()
        await _check_fifteen_times(bench)


async def _check_fifteen_times(bench):
    producer = Producer(bench)
    producer.start()
    sent = producer.half(b"x", TAGS="A")
    await trio.sleep(6 + 20 * 2)
    checks = producer.checks()
    assert len(checks) == 15
    assert [c.message.property_map["TRANSACTION_CHECK_TIMES"] for c in checks] == [
        str(number) for number in range(1, 16)
    ]
    (moved,) = given_up(bench)
    assert moved.body == b"x"
    assert moved.property_map["REAL_TOPIC"] == "T"
    assert moved.property_map["UNIQ_KEY"] == sent.unique_id
    assert bench.topics.get("TRANS_CHECK_MAX_TIME_TOPIC") is not None
    assert delivered(bench) == []
    assert progress(bench)[0] == 16
    assert bench.broker.transactions.transactions.ledger.copied == 0


async def test_b127_what_is_older_than_the_log_is_kept_is_given_up(autojump_clock):
    async with serving(store=attrs.evolve(STORE, file_reserved_time_hours=1)) as bench:
        bench.create()
        producer = Producer(bench)
        producer.start()
        producer.half(b"x", CHECK_IMMUNITY_TIME_IN_SECONDS="7200")
        await trio.sleep(3590)
        assert given_up(bench) == []
        await rounds(2)
        assert [message.body for message in given_up(bench)] == [b"x"]
        assert producer.checks() == []


async def test_b128_another_producer_of_the_group_is_asked(autojump_clock, bench, producer):
    producer.half()
    producer.peer.close()
    bench.face.disconnected(producer.peer)
    other = Producer(bench)
    other.start()
    stranger = Producer(bench, group="other")
    stranger.start()
    await rounds(1.1)
    (check,) = other.checks()
    other.end(check, COMMIT)
    assert delivered(bench) == [b"half"]
    assert stranger.checks() == []


async def test_without_a_producer_nothing_is_counted_or_copied(autojump_clock, bench):
    producer = Producer(bench)
    producer.half()
    await rounds(39.5)
    assert len(halves(bench)) == 1
    assert given_up(bench) == []
    producer.start()
    await rounds(1.1)
    (check,) = producer.checks()
    assert check.message.property_map["TRANSACTION_CHECK_TIMES"] == "1"


async def test_those_that_wait_are_stored_again_when_they_hold_up_many(
    autojump_clock, bench, monkeypatch
):
    """This is no check, and it is done only while most of the others are decided."""
    monkeypatch.setattr(checks, "MAX_WINDOW", 20)
    silent, producer = Producer(bench, group="silent"), Producer(bench)
    for _ in range(3):
        silent.half(b"silent")
        for at in [producer.half() for _ in range(10)]:
            producer.end(at, COMMIT)
    await rounds(1.5)
    assert [m.body for m in halves(bench)[33:]] == [b"silent"] * 3
    assert all("TRANSACTION_CHECK_TIMES" not in m.property_map for m in halves(bench))
    assert progress(bench) == (33, 1)
    await rounds(5)
    assert len(halves(bench)) == 36
    silent.start()
    await rounds(1)
    assert len(silent.checks()) == 3


async def test_a_producer_that_takes_nothing_is_not_sent_more(autojump_clock, bench, producer):
    producer.half()
    producer.peer.stalled = True
    await rounds(3.5)
    assert producer.checks() == []
    producer.peer.stalled = False
    await rounds()
    assert len(producer.checks()) == 1


async def test_young_transactions_are_not_checked(autojump_clock, bench, producer):
    await rounds(0.9)
    producer.half()
    await rounds(0.2)
    assert producer.checks() == []
    await rounds()
    assert len(producer.checks()) == 1


async def test_an_immune_transaction_is_not_checked_for_its_time(autojump_clock, bench, producer):
    producer.half(CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    producer.half(b"not immune")
    await rounds(3.1)
    assert {check.message.body for check in producer.checks()} == {b"not immune"}
    await rounds()
    assert b"half" in {check.message.body for check in producer.checks()}


async def test_c152_a_commit_after_checks_is_honoured_once(autojump_clock, bench, producer):
    sent = producer.half()
    await rounds(4.5)
    checks = producer.checks()
    assert len(checks) == 4
    producer.end(sent, COMMIT)
    assert delivered(bench) == [b"half"]
    producer.end(checks[1], COMMIT)
    producer.end(checks[3], COMMIT)
    await rounds(20)
    assert delivered(bench) == [b"half"]
    assert producer.checks() == []
    assert given_up(bench) == []


async def test_c149_an_unreadable_half_does_not_stop_the_round(autojump_clock, bench, producer):
    producer.half(b"one")
    bad = producer.half(b"two")
    producer.half(b"three")
    path = bench.store.log.segments.path(0)
    await trio.sleep(1)
    file = bench.disk.open(path)
    file.write(b"\xff" * 20, bad.log_offset)
    file.close()
    await rounds(1.1)
    assert [check.message.body for check in producer.checks()] == [b"one", b"three"]
    assert progress(bench)[0] == 3


async def test_a_broker_without_transactions_has_no_group_for_them(autojump_clock, bench, producer):
    """Tools list who has read a topic; Apache's broker shows nobody there."""
    await rounds(3.5)
    assert progress(bench) == (None, None)


async def test_a_half_without_room_for_the_count_of_its_checks(autojump_clock, bench, producer):
    """It keeps its place and is asked about there; the others are, too."""
    sent = producer.half(b"x", LONG="x" * 32_600)
    assert len(halves(bench)[0].properties) > 32_767 - 40
    producer.half(b"y")
    await rounds(3.5)
    assert [half.body for half in halves(bench)] == [b"x", *[b"y"] * 4]
    checks_of_x = [check for check in producer.checks() if check.message.body == b"x"]
    assert [check.header.tran_state_table_offset for check in checks_of_x] == [0, 0, 0]
    assert progress(bench)[0] is None
    producer.end(checks_of_x[-1], COMMIT)
    assert delivered(bench) == [b"x"]
    assert sent.queue_offset == 0


@pytest.mark.parametrize("restart", [False, True])
async def test_a_commit_of_one_that_was_given_up_is_honoured_once(autojump_clock, restart):
    """As with Apache; its local work took longer than all checks."""
    settings = attrs.evolve(BROKER, transaction_check_interval_ms=2000, transaction_check_max=3)
    async with serving(broker=settings) as bench:
        bench.create()
        producer = Producer(bench)
        producer.start()
        sent, other = producer.half(b"late"), producer.half(b"other")
        await trio.sleep(30)
        assert len(given_up(bench)) == 2
        if not restart:
            await _commit_late(bench, producer, sent, other)
        disk, clock = bench.disk, bench.clock
    if restart:
        async with serving(disk, clock=clock, broker=settings) as bench:
            await _commit_late(bench, Producer(bench), sent, other)


async def _commit_late(bench, producer, sent, other):
    assert producer.asked(other, ROLL_BACK).code == ResponseCode.SYSTEM_ERROR
    producer.end(sent, COMMIT)
    producer.end(sent, COMMIT)
    await trio.sleep(10)
    assert producer.asked(sent, COMMIT).code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)
    assert delivered(bench) == [b"late"]


async def test_a_late_commit_finds_a_copy_that_apache_has_made(autojump_clock, bench, producer):
    """Such a copy does not name the half that it stands for."""
    sent = producer.half()
    await rounds(2.5)
    producer.checks()
    service = bench.broker.transactions.transactions
    copy = halves(bench)[-1]
    props = remove(copy.properties, b"TRAN_PREPARED_QUEUE_OFFSET")
    letter = Letter.again(copy, topic=copy.topic, queue_id=0, properties=props)
    put = service.putter.put(letter)
    service.ledger.settle(sent.queue_offset, Fate.DECIDED)
    await rounds(1)
    (check,) = producer.checks()
    assert check.header.tran_state_table_offset > put.queue_offset
    producer.end(sent, COMMIT)
    await rounds(2)
    assert delivered(bench) == [b"half"]


async def test_resume_check_of_one_that_was_given_up(autojump_clock, bench, producer):
    producer.half(b"x")
    await rounds(20)
    producer.checks()
    (moved,) = given_up(bench)
    header = ResumeCheckHalfMessageRequest(
        msg_id=offset_message_id(bench.store.host, moved.log_offset)
    )
    reply = bench.ask(request(RequestCode.RESUME_CHECK_HALF_MESSAGE, header))
    assert reply.code == ResponseCode.SUCCESS
    await rounds(1.5)
    (check,) = producer.checks()
    producer.end(check, COMMIT)
    assert delivered(bench) == [b"x"]


# -- a store that is full, a disk that is slow


async def test_a_commit_that_cannot_be_stored_leaves_the_transaction_open(
    autojump_clock, bench, producer
):
    sent = producer.half()
    await trio.sleep(1)
    bench.disk.fail_when(lambda op: op.kind == "write" and "/commitlog/" in op.path)
    reply = producer.asked(sent, COMMIT)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    await rounds(2)
    assert producer.checks() == []
    bench.disk.heal()
    await rounds(2)
    check, *_ = producer.checks()
    producer.end(check, COMMIT)
    assert delivered(bench) == [b"half"]


async def test_with_sync_flush_a_commit_is_answered_when_it_is_durable(autojump_clock):
    settings = attrs.evolve(STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    async with serving(store=settings) as bench:
        bench.create()
        producer = Producer(bench)
        peer = FakePeer()
        pairs = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U"}
        reply = await bench.answer(send(properties=props(**pairs), sys_flag=4))
        assert reply.code == ResponseCode.SUCCESS
        (half,) = halves(bench)
        at = Sent(half.queue_offset, half.log_offset, "U")
        bench.hand(peer, producer.end_frame(at, COMMIT))
        assert peer.take() == []
        reply = await bench.next(peer)
        assert reply.code == ResponseCode.SUCCESS
        assert bench.store.log.durable.value == bench.store.log.written


# -- restarts


@pytest.mark.parametrize("clean_stop", [True, False])
async def test_c151_a_restart_checks_only_what_is_open(autojump_clock, clean_stop):
    async with serving(clean_stop=clean_stop) as bench:
        bench.create()
        producer = Producer(bench)
        producer.start()
        sent = [producer.half(b"%d" % number) for number in range(40)]
        for number, at in enumerate(sent):
            if number % 4 < 2:
                producer.end(at, (COMMIT, ROLL_BACK)[number % 4])
        await trio.sleep(4)
        await rounds(1)
        assert len(producer.checks()) == 20
        disk, clock = bench.disk, bench.clock
    async with serving(disk, clock=clock) as bench:
        producer = Producer(bench)
        producer.start()
        await rounds(1.5)
        checks = producer.checks()
        assert sorted(int(check.message.body) % 4 for check in checks) == [2] * 10 + [3] * 10
        for check in checks:
            producer.end(check, COMMIT)
        await rounds(5)
        assert producer.checks() == []
        assert len(delivered(bench)) == len(set(delivered(bench))) == 30


async def test_commits_before_a_kill_are_not_asked_about_again(autojump_clock):
    """Their op records were not written yet."""
    async with serving(clean_stop=False) as bench:
        bench.create()
        producer = Producer(bench)
        producer.start()
        sent = [producer.half(b"%d" % number) for number in range(10)]
        await rounds(1.5)
        checks = producer.checks()
        producer.end(sent[0], COMMIT)
        producer.end(checks[1], COMMIT)
        for number in range(30):
            bench.put(b"plain" * 500 + b"%d" % number, queue_id=1)
        bench.broker.transactions.transactions.ops._pending.clear()
        disk, clock = bench.disk, bench.clock
    async with serving(disk, clock=clock) as bench:
        producer = Producer(bench)
        producer.start()
        assert "already" in producer.asked(sent[1], ROLL_BACK).remark
        await rounds(1.5)
        assert sorted(int(c.message.body) for c in producer.checks()) == list(range(2, 10))
        assert producer.asked(sent[0], ROLL_BACK).code == ResponseCode.SYSTEM_ERROR
        await rounds(1)
        assert [b for b in delivered(bench) if len(b) < 5] == [b"0", b"1"]


async def test_c152_a_late_commit_is_honoured_once_after_a_restart(autojump_clock):
    async with serving(clean_stop=False) as bench:
        bench.create()
        producer = Producer(bench)
        producer.start()
        sent = producer.half()
        await rounds(3.5)
        disk, clock = bench.disk, bench.clock
    async with serving(disk, clock=clock) as bench:
        producer = Producer(bench)
        producer.start()
        producer.end(sent, COMMIT)
        producer.end(sent, COMMIT)
        await rounds(3)
        assert delivered(bench) == [b"half"]
        assert producer.checks() == []


# -- many


async def test_many_open_transactions_cost_little_memory(autojump_clock, bench, producer):
    for _ in range(500):
        producer.half(b"x")
    ledger = bench.broker.transactions.transactions.ledger
    await rounds(1.1)
    assert len(producer.checks()) == 500
    assert ledger.copied == 500
    await rounds(1)
    assert len(ledger._fates) < 600
    for check in producer.checks():
        producer.end(check, COMMIT)
    await rounds(2)
    assert (len(ledger._fates), ledger.copied) == (0, 0)
    assert len(bench.broker.transactions.transactions.ops.progress) == 0
    assert len(delivered(bench)) == 500
