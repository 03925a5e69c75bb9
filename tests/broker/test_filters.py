"""Filters of subscriptions: what is refused, what is kept, and what pulls get through them."""

from __future__ import annotations

import subprocess
import sys

import attrs
import pytest
import trio

from tests.broker.support import (
    BROKER,
    NOW,
    SUSPEND,
    FakePeer,
    props,
    pull,
    request,
    serving,
    texts,
)
from trio_mq.broker import filters as filtering
from trio_mq.broker.filters import EVERYTHING, SQL_TYPE, Filters, MessageFilter
from trio_mq.config.loading import load
from trio_mq.errors import RequestRefused
from trio_mq.protocol.bodies import CheckClientBody, SubscriptionData
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.message import java_hash

ON = attrs.evolve(BROKER, enable_property_filter=True)
FOUND, NOT_FOUND, RETRY = 0, 19, 20
SQL_PULL = {"expression_type": SQL_TYPE, "sys_flag": NOW}


@pytest.fixture
async def bench(autojump_clock):
    async with serving(broker=ON) as made:
        made.create()
        yield made


def sql(expression: str, **fields):
    return pull(subscription=expression, **(SQL_PULL | fields))


# -- the filters themselves


def test_tags():
    filters = Filters(BROKER)
    assert filters.of("TAG", "*") is filters.of(None, None) is EVERYTHING
    made = filters.of("TAG", "A || B")
    assert made.accepts is None
    assert made.matches(java_hash("A"), b"")
    assert not made.matches(java_hash("C"), b"")
    assert EVERYTHING.matches(1, b"")


def test_properties():
    made = Filters(ON).of(SQL_TYPE, "v > 3")
    assert made.codes is None
    assert made.matches(0, b"v\x014\x02")
    assert not made.matches(0, b"v\x013\x02")
    both = MessageFilter(frozenset({1}), made.accepts)
    assert [both.matches(code, b"v\x01%d\x02" % v) for code in (0, 1) for v in (3, 4)] == [
        0,
        0,
        0,
        1,
    ]


@pytest.mark.parametrize(
    ("settings", "kind", "expression", "code", "said"),
    [
        (BROKER, SQL_TYPE, "a = 1", 1, "enablePropertyFilter=false; set it to true"),
        (BROKER, SQL_TYPE, "a = ", 1, "does not support consumer to filter message by SQL92"),
        (ON, SQL_TYPE, "a = ", 23, "character 5: the expression ends too early"),
        (ON, SQL_TYPE, "", 23, "character 1"),
        (ON, SQL_TYPE, None, 23, "character 1"),
        (ON, "XPATH", "a", 23, "no filters of type XPATH; there are TAG and SQL92"),
        (ON, "TAG", "||", 23, "names no tag"),
    ],
)
def test_what_is_refused_says_why(settings, kind, expression, code, said):
    with pytest.raises(RequestRefused) as caught:
        Filters(settings).of(kind, expression)
    assert caught.value.code == code
    assert said in caught.value.remark


def test_expressions_are_compiled_once_and_wrong_ones_found_wrong_once(monkeypatch):
    from trio_mq.sql92 import parse

    seen = []
    real = parse.compile_expression
    monkeypatch.setattr(parse, "compile_expression", lambda text: seen.append(text) or real(text))
    filters = Filters(ON)
    for _ in range(3):
        filters.of(SQL_TYPE, "a = 1")
        with pytest.raises(RequestRefused):
            filters.of(SQL_TYPE, "a = ")
    assert seen == ["a = 1", "a = "]


def test_what_is_kept_is_bounded_and_the_oldest_goes(monkeypatch):
    from trio_mq.sql92 import parse

    monkeypatch.setattr(filtering, "CACHED_CHARACTERS", 1000)
    filters = Filters(ON)
    first = filters.of(SQL_TYPE, "a = 1")
    for number in range(200):
        filters.of(SQL_TYPE, f"a = {number:04}.5")
        assert filters.of(SQL_TYPE, "a = 1") == first
    kept = filters._kept
    assert sum(map(len, kept)) <= 1000
    assert filters._characters == sum(map(len, kept))
    assert "a = 0000.5" not in kept
    assert "a = 0199.5" in kept
    with pytest.raises(RequestRefused):
        filters.of(SQL_TYPE, "a" * (parse.MAX_CHARACTERS + 1))
    assert filters._characters == sum(map(len, kept)) <= 1000


def test_what_is_ignored_is_told_once(caplog):
    filters = Filters(ON)
    for _ in range(3):
        assert filters.of(SQL_TYPE, "a = 1 + 2").matches(0, b"a\x011\x02")
    (told,) = caplog.messages
    assert "counts up to character 6 only" in told


async def test_the_parser_is_loaded_in_the_background_only_where_it_may_be_wanted(autojump_clock):
    loaded = []

    class Disk:
        async def run(self, call):
            loaded.append((trio.current_time(), call()))

    began_s = trio.current_time()
    await Filters(BROKER).prepare(Disk())
    assert loaded == []
    await Filters(ON).prepare(Disk())
    assert loaded == [(began_s + filtering.PREPARE_AFTER_S, None)]


# -- C127: where filters by properties are on


def test_c127_on_without_a_file_of_settings_and_as_apache_with_one(tmp_path):
    assert load(environment={}).broker.enable_property_filter
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=b\n")
    assert not load(file=str(file), environment={}).broker.enable_property_filter
    assert not load(
        overrides=["enablePropertyFilter=false"], environment={}
    ).broker.enable_property_filter
    file.write_text("enablePropertyFilter=true\n")
    assert load(file=str(file), environment={}).broker.enable_property_filter


# -- pulls


def put_numbers(bench, count=10, **fields):
    for number in range(count):
        bench.put(b"%d" % number, properties=props(v=str(number)), **fields)


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("v BETWEEN 3 AND 5", [3, 4, 5]),
        ("v > 7", [8, 9]),
        ("v IS NULL", []),
        ("w = 1", []),
        ("w <> 1", []),
        ("NOT (w = 1)", []),
        ("w IS NULL", list(range(10))),
    ],
)
@pytest.mark.parametrize("long_way", [False, True])
async def test_b037_numbers(autojump_clock, bench, expression, wanted, long_way):
    put_numbers(bench)
    reply = bench.ask(sql(expression, long_way=long_way))
    assert [int(body) for body in texts(reply)] == wanted
    assert reply.code == (FOUND if wanted else RETRY)
    assert reply.ext["nextBeginOffset"] == "10"


async def test_b036_an_expression_that_does_not_parse(autojump_clock, bench):
    reply = bench.ask(sql("v > "))
    assert reply.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "character 5" in reply.remark


async def test_what_a_heartbeat_subscribes(autojump_clock, bench):
    put_numbers(bench)
    ask = {"sys_flag": 0, "subscription": None, "expression_type": None, "sub_version": 5}
    peer = FakePeer()
    bench.beat(peer, "T", tags="v < 2", expression_type=SQL_TYPE, version=4)
    assert bench.ask(pull(**ask)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    bench.beat(peer, "T", tags="v < 2", expression_type=SQL_TYPE, version=5)
    assert texts(bench.ask(pull(**ask))) == [b"0", b"1"]
    bench.beat(peer, "T", tags="v < ", expression_type=SQL_TYPE, version=6)
    reply = bench.ask(pull(**ask))
    assert reply.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "character 5" in reply.remark
    bench.beat(peer, "T", tags="", expression_type=SQL_TYPE, version=7)
    assert bench.ask(pull(**ask)).code == ResponseCode.FILTER_DATA_NOT_EXIST
    bench.beat(peer, "T", tags="||", version=8)
    assert bench.ask(pull(**ask)).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    bench.beat(peer, "T", tags="v = 9", expression_type=SQL_TYPE, version=9)
    assert texts(bench.ask(pull(**ask))) == [b"9"]


async def test_of_two_groups_each_has_its_own(autojump_clock, bench):
    put_numbers(bench)
    for group, expression in (("G1", "v < 3"), ("G2", "v > 7")):
        bench.beat(FakePeer(), "T", group=group, tags=expression, expression_type=SQL_TYPE)
    assert texts(bench.ask(pull(sys_flag=0, group="G1"))) == [b"0", b"1", b"2"]
    assert texts(bench.ask(pull(sys_flag=0, group="G2"))) == [b"8", b"9"]


async def test_a_held_pull_is_woken_by_what_it_wants_only(autojump_clock, bench):
    peer = FakePeer()
    bench.hand(peer, sql("v = 5", sys_flag=SUSPEND))
    bench.put(b"no", properties=props(v="4"))
    bench.put(b"no property")
    assert peer.take() == []
    bench.put(b"yes", properties=props(v="5"))
    reply = peer.one()
    assert texts(reply) == [b"yes"]
    assert reply.ext["nextBeginOffset"] == "3"


async def test_a_held_pull_that_nothing_matches_learns_the_next_offset(autojump_clock, bench):
    peer = FakePeer()
    bench.hand(peer, sql("v = 5", sys_flag=SUSPEND))
    bench.put(b"no", properties=props(v="4"))
    reply = await bench.next(peer)
    assert reply.code == RETRY
    assert reply.ext["nextBeginOffset"] == "1"


async def test_a_batch_queue_is_filtered_by_the_properties_of_the_batch(autojump_clock, bench):
    bench.create("Batches", queue_type="BatchCQ")
    put_numbers(bench, 5, topic="Batches")
    assert texts(bench.ask(sql("v >= 3", topic="Batches"))) == [b"3", b"4"]


async def test_hostile_expressions_are_answered(autojump_clock, bench):
    put_numbers(bench)
    for expression, code in (
        ("(" * 10_000 + "v = 1" + ")" * 10_000, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("v = 1 OR " * 1_000 + "v = 2", FOUND),
        ("v IN (" + ",".join(f"'{n}'" for n in range(2_000)) + ")", FOUND),
        ("-" * 30_000, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("'" * 15_001, ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("\x00", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
        ("v = 1 OR " * 9_000 + "v = 2", ResponseCode.SUBSCRIPTION_PARSE_FAILED),
    ):
        assert bench.ask(sql(expression)).code == code


# -- retry topics (case C128)

RETRIES = "%RETRY%CG"


def put_retries(bench):
    bench.create(RETRIES, 1)
    for number in range(3):
        text = props(v=str(number), RETRY_TOPIC="T")
        bench.put(b"%d" % number, topic=RETRIES, properties=text)
    bench.put(b"other", topic=RETRIES, properties=props(v="0", RETRY_TOPIC="Unknown"))
    bench.put(b"none", topic=RETRIES, properties=props(v="0"))


@pytest.mark.parametrize("kind", ["TAG", SQL_TYPE])
async def test_c128_a_retry_comes_whatever_the_group_subscribes(autojump_clock, bench, kind):
    """Clients subscribe their retry topic by ``*``, whatever they subscribe of the topic itself."""
    put_retries(bench)
    expression = "A" if kind == "TAG" else "v = 99"
    bench.beat(FakePeer(), "T", tags=expression, expression_type=kind, version=1)
    found = bench.ask(pull(topic=RETRIES, subscription="*"))
    assert texts(found) == [b"0", b"1", b"2", b"other", b"none"]


async def test_an_sql_subscription_of_a_retry_topic_is_taken_as_it_is(autojump_clock, bench):
    put_retries(bench)
    bench.beat(FakePeer(), RETRIES, tags="v = 1", expression_type=SQL_TYPE)
    assert texts(bench.ask(pull(topic=RETRIES, sys_flag=0))) == [b"1"]


async def test_filter_support_retry_filters_by_what_the_message_was_for(autojump_clock):
    settings = attrs.evolve(ON, filter_support_retry=True)
    async with serving(broker=settings) as bench:
        bench.create()
        put_retries(bench)
        peer = FakePeer()
        # One heartbeat has one expression for all its topics here: that of the retry topic does not count.
        bench.beat(peer, "T", RETRIES, tags="v = 1", expression_type=SQL_TYPE, version=1)
        found = bench.ask(pull(topic=RETRIES, sys_flag=0))
        assert texts(found) == [b"1", b"other", b"none"]
        bench.beat(peer, "T", tags="v =", expression_type=SQL_TYPE, version=2)
        bench.beat(peer, "T", RETRIES, tags="v =", expression_type=SQL_TYPE, version=3)
        assert bench.ask(pull(topic=RETRIES, sys_flag=0)).code == ResponseCode.FILTER_DATA_NOT_EXIST


# -- the check of a client


@pytest.mark.parametrize(
    ("kind", "expression", "code"),
    [
        ("TAG", "||", 0),
        (SQL_TYPE, "a > 1", 0),
        (SQL_TYPE, "a > 'x'", 23),
        (SQL_TYPE, "", 23),
        ("XPATH", "a", 23),
    ],
)
async def test_the_check_of_a_client(autojump_clock, bench, kind, expression, code):
    data = SubscriptionData("T", expression, expression_type=kind)
    body = CheckClientBody("c1", "G", data)
    reply = bench.ask(request(RequestCode.CHECK_CLIENT_CONFIG, body=body))
    assert reply.code == code
    assert not code or "XPATH" in reply.remark or "character" in reply.remark


async def test_c125_the_text_of_a_condition_means_something_by_its_type_only(autojump_clock, bench):
    """C125: as SQL92 ``Tag=test AND creator=xx`` is legal and compares properties; quoted, it does what was meant."""
    bench.put(b"x", properties=props(Tag="test", creator="xx"))
    assert bench.ask(sql("Tag=test AND creator=xx")).code == RETRY
    assert texts(bench.ask(sql("Tag='test' AND creator='xx'"))) == [b"x"]
    assert bench.ask(sql("Tag=='test'")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_start_does_not_load_the_parser():
    script = "import sys, trio_mq.system; print('lark' in sys.modules, 'trio_mq.broker.filters' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["False", "True"]
