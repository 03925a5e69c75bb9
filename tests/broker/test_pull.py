"""Pulls: checks in Apache's order, what comes back, and the codes when there is nothing."""

from __future__ import annotations

import attrs
import pytest
import trio

from tests.broker.support import (
    BROKER,
    COLLIDING,
    NOW,
    STORE,
    SUSPEND,
    FakePeer,
    messages,
    oneway,
    props,
    pull,
    send,
    serving,
    texts,
)
from trio_mq.protocol.bodies import MessageModel
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.message import BatchItem, join_batch

FOUND, NOT_FOUND, RETRY, MOVED = 0, 19, 20, 21


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        made.create()
        yield made


def header(reply):
    """Next, minimum and maximum offset of a reply."""
    return tuple(int(reply.ext[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))


# -- what is found


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
@pytest.mark.parametrize("long_way", [False, True])
async def test_messages_come_back_as_they_are_stored(autojump_clock, bench, code, long_way):
    bench.topics.update(attrs.evolve(bench.topics.get("T"), topic_sys_flag=1), None)
    bench.groups.update(attrs.evolve(bench.groups.obtain("CG"), group_sys_flag=2))
    bench.put(b"a", b"b", b"c", properties=props(TAGS="TagA", k="ö"))
    bench.put(b"other", queue_id=1)
    reply = bench.ask(pull(1, code=code, long_way=long_way, opaque=77))
    assert (reply.code, reply.opaque, reply.remark) == (FOUND, 77, "FOUND")
    assert messages(reply) == bench.stored()[1:3]
    assert header(reply) == (3, 0, 3)
    assert reply.ext["suggestWhichBrokerId"] == "0"
    assert (reply.ext["topicSysFlag"], reply.ext["groupSysFlag"]) == ("1", "2")
    assert reply.is_response


async def test_a_pull_takes_what_it_asks_for_at_most(autojump_clock, bench):
    bench.put(*(b"%d" % n for n in range(40)))
    for wanted, got in (
        (1, 1),
        (5, 5),
        (31, 31),
        (32, 32),
        (1000, 32),
        (2**31 - 1, 32),
        (0, 1),
        (-1, 1),
    ):
        reply = bench.ask(pull(0, max_msg_nums=wanted))
        assert len(texts(reply)) == got
        assert header(reply)[0] == got


async def test_large_messages_come_fewer_at_a_time_but_one_always(autojump_clock):
    async with serving(store=attrs.evolve(STORE, max_transfer_bytes_in_memory=3_000)) as bench:
        bench.create()
        bench.put(b"x" * 10_000, b"y" * 1_000, b"z" * 1_000, b"w" * 1_000)
        offset, got = 0, []
        while (reply := bench.ask(pull(offset))).code == FOUND:
            got.append([len(text) for text in texts(reply)])
            offset = header(reply)[0]
        assert got == [[10_000], [1_000, 1_000], [1_000]]


async def test_messages_of_two_segments_come_in_one_answer(autojump_clock, bench):
    bench.put(*(bytes([n]) * 9_000 for n in range(20)))
    offset, got = 0, []
    while (reply := bench.ask(pull(offset))).code == FOUND:
        got += texts(reply)
        offset = header(reply)[0]
    assert [text[0] for text in got] == list(range(20))
    assert len(bench.store.log.segments.starts) > 2


# -- what is not found: the table of Apache's DefaultMessageStore.getMessage


async def test_nothing_there_yet(autojump_clock, bench):
    assert (bench.ask(pull(0)).code, bench.ask(pull(5)).code) == (NOT_FOUND, MOVED)
    assert header(bench.ask(pull(5))) == (0, 0, 0)
    bench.store.queues.obtain("T", 0)
    assert (bench.ask(pull(0)).code, bench.ask(pull(5)).code) == (NOT_FOUND, MOVED)


async def test_b117_around_the_ends_of_a_queue(autojump_clock, bench):
    bench.put(*(b"%d" % n for n in range(5)))
    bench.store.queue("T", 0).min_offset = 2
    for offset, code, following, status in (
        (-1, MOVED, 2, "OFFSET_TOO_SMALL"),
        (1, MOVED, 2, "OFFSET_TOO_SMALL"),
        (2, FOUND, 5, "FOUND"),
        (4, FOUND, 5, "FOUND"),
        (5, NOT_FOUND, 5, "OFFSET_OVERFLOW_ONE"),
        (6, MOVED, 5, "OFFSET_OVERFLOW_BADLY"),
        (2**62, MOVED, 5, "OFFSET_OVERFLOW_BADLY"),
    ):
        reply = bench.ask(pull(offset))
        assert (reply.code, header(reply), reply.remark) == (code, (following, 2, 5), status)


async def test_c010_a_hole_in_the_log_moves_a_consumer_on(autojump_clock, bench):
    """A segment in the middle is gone: code 20 with offsets that move, never an endless wait."""
    bench.put(*(bytes([n]) * 9_000 for n in range(20)))
    starts = bench.store.log.segments.starts
    bench.store.log.segments.drop_segment(starts[1])
    offset, got, codes = 0, [], set()
    while offset < 20:
        reply = bench.ask(pull(offset))
        assert header(reply)[0] > offset
        codes.add(reply.code)
        got += [text[0] for text in texts(reply)]
        offset = header(reply)[0]
    assert codes <= {FOUND, RETRY}
    assert got == sorted(got)
    assert 0 in got
    assert 19 in got
    assert len(got) < 20


# -- tags


async def test_b022_b024_tags_are_compared_by_their_hash(autojump_clock, bench):
    for tag in ("A", "B", "C", "", "A"):
        bench.put(tag.encode() or b"none", tags=tag or None)
    for expression, found in (
        ("A", [b"A", b"A"]),
        ("A||B", [b"A", b"B", b"A"]),
        (" B || none ", [b"B"]),
        ("A || ", [b"A", b"A"]),
        ("*", [b"A", b"B", b"C", b"none", b"A"]),
        (None, [b"A", b"B", b"C", b"none", b"A"]),
        ("", [b"A", b"B", b"C", b"none", b"A"]),
    ):
        reply = bench.ask(pull(0, subscription=expression))
        assert (texts(reply), header(reply)[0]) == (found, 5), expression


async def test_b029_tags_with_one_hash_are_left_to_the_client(autojump_clock, bench):
    for tag in COLLIDING:
        bench.put(tag.encode(), tags=tag)
    assert texts(bench.ask(pull(0, subscription=COLLIDING[0]))) == [b"Aa", b"BB"]


@pytest.mark.parametrize("tag", ["polygenelubricants", "x" * 200, "标签", "𝄞", "-"])
async def test_c122_any_tag_finds_its_messages(autojump_clock, bench, tag):
    bench.put(b"wanted", tags=tag)
    bench.put(b"other", tags="other")
    assert texts(bench.ask(pull(0, subscription=tag))) == [b"wanted"]


async def test_b025_b030_a_tag_that_nobody_uses(autojump_clock, bench):
    """1000 messages of another tag: code 20 and a next offset that moves on, until all are passed."""
    bench.put(*(b"B" for _ in range(1000)), tags="B")
    offset, steps = 0, []
    while (reply := bench.ask(pull(offset, subscription="A"))).code == RETRY:
        steps.append(header(reply)[0])
        assert reply.remark == "NO_MATCHED_MESSAGE"
        offset = steps[-1]
    assert steps == sorted(set(steps))
    assert steps[-1] == 1000
    assert reply.code == NOT_FOUND
    bench.put(b"new A", tags="A")
    assert texts(bench.ask(pull(offset, subscription="A"))) == [b"new A"]


async def test_a_huge_wish_does_not_lengthen_the_scan_for_a_rare_tag(autojump_clock, bench):
    bench.put(*(b"B" for _ in range(1000)), tags="B")
    little = header(bench.ask(pull(0, subscription="A", max_msg_nums=1)))[0]
    assert header(bench.ask(pull(0, subscription="A", max_msg_nums=2**31 - 1)))[0] == little


# -- inner batches


async def test_b060_a_pull_from_the_middle_starts_with_the_whole_batch(autojump_clock):
    async with serving(store=attrs.evolve(STORE, max_transfer_count_in_memory=1024)) as bench:
        bench.create("B", queue_type="BatchCQ")
        for number in range(10):
            items = [BatchItem(0, b"%d-%d" % (number, n), b"") for n in range(10)]
            bench.put(
                join_batch(items),
                topic="B",
                code=RequestCode.SEND_BATCH_MESSAGE,
                batch=True,
                properties=props(UNIQ_KEY=f"U{number}"),
            )
        for offset, first, count, following in (
            (5, 0, 100, 100),
            (0, 0, 100, 100),
            (9, 0, 5, 10),
            (10, 10, 10, 20),
            (39, 30, 20, 50),
            (99, 90, 100, 100),
        ):
            reply = bench.ask(pull(offset, "B", max_msg_nums=count))
            got = messages(reply)
            assert reply.code == FOUND
            assert got[0].queue_offset == first
            assert got[0].property_map["INNER_BASE"] == str(first)
            assert header(reply) == (following, 0, 100)
            assert sum(int(m.property_map["INNER_NUM"]) for m in got) == following - first
        assert bench.ask(pull(100, "B")).code == NOT_FOUND
        assert bench.ask(pull(101, "B")).code == MOVED


# -- checks


async def test_the_broker_may_not_be_read(autojump_clock):
    async with serving(broker=attrs.evolve(BROKER, broker_permission=2)) as bench:
        bench.create()
        reply = bench.ask(pull())
        assert (reply.code, reply.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "1")
        assert "brokerPermission" in reply.remark
        assert header(reply) == (0, 0, 0)


async def test_unknown_groups_and_disabled_ones(autojump_clock):
    async with serving(broker=attrs.evolve(BROKER, auto_create_subscription_group=False)) as bench:
        bench.create()
        reply = bench.ask(pull(group="Nobody"))
        assert reply.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "Nobody" in reply.remark
        assert bench.ask(pull(group="TOOLS_CONSUMER")).code == NOT_FOUND
        bench.groups.update(attrs.evolve(bench.groups.get("TOOLS_CONSUMER"), consume_enable=False))
        reply = bench.ask(pull(group="TOOLS_CONSUMER", topic="Unknown"))
        assert (reply.code, reply.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "2")


async def test_an_unknown_group_is_made_on_its_first_pull(autojump_clock, bench):
    assert bench.ask(pull(group="Fresh")).code == NOT_FOUND
    assert "Fresh" in bench.groups
    assert bench.ask(pull(group="b@d")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


async def test_unknown_topics_and_those_that_may_not_be_read(autojump_clock, bench):
    reply = bench.ask(pull(topic="Unknown"))
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert "Unknown" in reply.remark
    assert "Unknown" not in bench.topics
    bench.create("WriteOnly", perm=2)
    reply = bench.ask(pull(topic="WriteOnly", queue_id=99))
    assert (reply.code, reply.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "3")


@pytest.mark.parametrize("queue_id", [-1, 4, 2**31 - 1])
async def test_queues_that_a_topic_does_not_have(autojump_clock, bench, queue_id):
    reply = bench.ask(pull(queue_id=queue_id))
    assert reply.code == ResponseCode.INVALID_PARAMETER
    assert "4 queues" in reply.remark


@pytest.mark.parametrize("expression", ["||", " | | || ", "  "])
async def test_an_expression_that_names_no_tag(autojump_clock, bench, expression):
    reply = bench.ask(pull(subscription=expression))
    if "| |" in expression:
        assert reply.code == NOT_FOUND  # "| |" is a strange tag, but one
        return
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert header(reply) == (0, 0, 0)


async def test_b035_c127_sql_is_refused_with_the_key_that_would_allow_it(autojump_clock, bench):
    reply = bench.ask(pull(expression_type="SQL92", subscription="a > 1"))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "SQL92" in reply.remark
    assert "enablePropertyFilter" in reply.remark


# -- subscriptions from heartbeats


async def test_a_pull_without_expression_takes_that_of_the_heartbeat(autojump_clock, bench):
    bench.put(b"a", tags="A")
    bench.put(b"b", tags="B")
    ask = {"sys_flag": 0, "subscription": None, "sub_version": 5}
    assert bench.ask(pull(**ask)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    peer = FakePeer()
    bench.beat(peer, "Other", version=5)
    assert bench.ask(pull(**ask)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    bench.beat(peer, "T", tags="B", version=4)
    reply = bench.ask(pull(**ask))
    assert reply.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    bench.beat(peer, "T", tags="B", version=5)
    assert texts(bench.ask(pull(**ask))) == [b"b"]
    bench.beat(peer, "T", tags="A", version=6)
    assert texts(bench.ask(pull(**ask))) == [b"a"]
    assert texts(bench.ask(pull())) == [b"a", b"b"]


async def test_a_subscription_by_sql_from_a_heartbeat(autojump_clock, bench):
    bench.beat(FakePeer(), "T", tags="a > 1", expression_type="SQL92")
    assert bench.ask(pull(sys_flag=0)).code == ResponseCode.SYSTEM_ERROR


async def test_groups_that_may_not_broadcast_and_those_that_are_forbidden(autojump_clock, bench):
    bench.beat(FakePeer(), "T", model=MessageModel.BROADCASTING)
    assert bench.ask(pull(sys_flag=0)).code == NOT_FOUND
    bench.groups.set_readable("CG", "T", readable=False)
    reply = bench.ask(pull(sys_flag=0))
    assert (reply.code, reply.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "5")
    bench.groups.update(attrs.evolve(bench.groups.get("CG"), consume_broadcast_enable=False))
    reply = bench.ask(pull(sys_flag=0))
    assert (reply.code, reply.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "4")
    assert bench.ask(pull()).code == NOT_FOUND


# -- offsets


async def test_a_pull_can_commit(autojump_clock, bench):
    bench.put(b"a", b"b", b"c")
    bench.ask(pull(1, commit_offset=1))
    assert bench.offsets.query("CG", "T", 0) is None
    bench.ask(pull(1, commit_offset=1, sys_flag=NOW | 1))
    assert bench.offsets.query("CG", "T", 0) == 1
    assert bench.offsets.pull_offset("CG", "T", 0) == 3
    bench.ask(pull(0, commit_offset=0, sys_flag=NOW | 1))
    assert bench.offsets.query("CG", "T", 0) == 0


async def test_a_held_pull_commits_once_and_not_again_when_it_is_woken(autojump_clock, bench):
    peer = FakePeer()
    bench.hand(peer, pull(0, commit_offset=7, sys_flag=SUSPEND | 1))
    assert bench.offsets.query("CG", "T", 0) == 7
    bench.offsets.commit("CG", "T", 0, 9)
    bench.put(b"a")
    assert peer.one().code == FOUND
    assert bench.offsets.query("CG", "T", 0) == 9


async def test_b105_a_pending_reset_is_told_by_the_next_pull_and_its_commit_ignored(
    autojump_clock, bench
):
    bench.put(*(b"%d" % n for n in range(9)))
    bench.offsets.commit("CG", "T", 0, 8)
    bench.offsets.assign_reset("CG", "T", 0, 3)
    reply = bench.ask(pull(8, commit_offset=8, sys_flag=SUSPEND | 1))
    assert (reply.code, header(reply), reply.remark) == (MOVED, (3, 0, 9), "OFFSET_RESET")
    assert bench.offsets.query("CG", "T", 0) == 3
    reply = bench.ask(pull(3, commit_offset=3, sys_flag=SUSPEND | 1))
    assert (reply.code, texts(reply)[0]) == (FOUND, b"3")


# -- one-way, and data that is not in memory


async def test_a_one_way_pull_is_dropped(autojump_clock, bench):
    bench.put(b"a")
    peer = FakePeer()
    bench.hand(peer, oneway(pull()), oneway(pull(sys_flag=SUSPEND, queue_offset=1)))
    assert (peer.take(), len(bench.broker.holds)) == ([], 0)


async def test_an_error_of_ours_is_answered_and_logged(autojump_clock, bench, monkeypatch, caplog):
    monkeypatch.setattr(bench.store.reader, "messages", lambda *_: 1 // 0)
    bench.put(b"a")
    reply = bench.ask(pull())
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "ZeroDivisionError" in reply.remark
    assert "a pull of" in caplog.text


async def test_counters(autojump_clock, bench):
    bench.put(b"a", b"b")
    bench.ask(pull())
    bench.ask(pull(2))
    totals = bench.broker.stats.totals()
    assert (totals.got, totals.found) == (2, 1)


async def test_sends_and_pulls_in_one_receive(autojump_clock, bench):
    """What is sent and pulled together: the held pull is answered by the message behind it."""
    peer = FakePeer()
    bench.hand(peer, pull(0, sys_flag=SUSPEND, opaque=1), send(opaque=2))
    assert {r.opaque: r.code for r in peer.take()} == {1: FOUND, 2: 0}
    await trio.testing.wait_all_tasks_blocked()
