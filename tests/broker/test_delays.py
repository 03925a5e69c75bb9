"""Delay levels: each message comes when it is due, once, whatever happens to the broker, its clock and its files."""

from __future__ import annotations

import errno
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import pytest
import trio

from tests.broker.support import (
    BROKER,
    HOST,
    STORE,
    SUSPEND,
    Bench,
    FakePeer,
    props,
    pull,
    request,
    send,
    serving,
    texts,
)
from tests.marks import first_fast
from trio_mq.broker import delays as delays_module
from trio_mq.broker.delayoffsets import DelayOffsets
from trio_mq.broker.delays import Delays
from trio_mq.broker.put import Letter, Putter
from trio_mq.broker.redirects import Redirects
from trio_mq.broker.retries import returned_letter
from trio_mq.config import FlushDiskType, load
from trio_mq.errors import ConfigError, StoreFull
from trio_mq.protocol import jsondialect
from trio_mq.protocol.bodies import SubscriptionGroupConfig
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.message import tags_code
from trio_mq.protocol.record import StoredMessage, decode
from trio_mq.recovery.recover import recover
from trio_mq.store.store import Store, open_parts
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk

LEVELS_MS = STORE.delay_levels_ms
FILE = "/store/config/delayOffset.json"
#: Nothing but the delivery wakes up often, so that hours pass in a moment.
QUIET = attrs.evolve(
    STORE,
    flush_interval_commit_log_ms=60_000,
    flush_interval_consume_queue_ms=60_000,
    flush_delay_offset_interval_ms=60_000,
)
QUIET_BROKER = attrs.evolve(BROKER, flush_consumer_offset_interval_ms=600_000)


def delayed(bench: Bench, *bodies: bytes, level: int = 1, topic: str = "T", **more: str) -> None:
    """Store messages that are to come later."""
    for number, body in enumerate(bodies):
        unique = f"{body.decode()}-{number}"
        text = props(DELAY=str(level), UNIQ_KEY=unique, **more)
        bench.put(body, topic=topic, properties=text)


def come(bench: Bench, topic: str = "T") -> list[StoredMessage]:
    """The messages that are in their topic."""
    return [record for record in bench.stored() if record.topic == topic]


def bodies(bench: Bench, topic: str = "T") -> list[bytes]:
    return [record.body for record in come(bench, topic)]


async def until(bench: Bench, count: int, limit_s: float = 30.0) -> None:
    """Wait until so many messages have come."""
    queues = bench.store.queues
    with trio.fail_after(limit_s):  # the queues tell nobody here
        while sum(queue.max_offset for queue in queues.of_topic("T")) < count:  # noqa: ASYNC110
            await trio.sleep(0.01)


def saved(disk: MemoryDisk) -> dict[int, int]:
    """The offsets in delayOffset.json."""
    value = jsondialect.loads(read(disk, FILE))
    return {int(level): offset for level, offset in value["offsetTable"].items()}


def read(disk: MemoryDisk, path: str) -> bytes:
    file = disk.open(path, readonly=True)
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def write(disk: MemoryDisk, path: str, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.write(data, 0)
    file.sync()
    file.close()
    disk.sync_dir("/store/config")


@pytest.fixture
async def bench(autojump_clock):
    async with serving() as made:
        made.create()
        yield made


# -- when they come


@pytest.mark.parametrize("level", first_fast([3, *range(1, 3), *range(4, 19)]))
async def test_b071_c079_each_level_comes_when_it_is_due_and_not_before(autojump_clock, level):
    async with serving(store=QUIET, broker=QUIET_BROKER) as bench:
        bench.create()
        delay_ms = LEVELS_MS[level - 1]
        delayed(bench, b"m", level=level, TAGS="TagA", KEYS="k")
        (waiting,) = bench.stored()
        await trio.sleep(delay_ms / 1000 - 0.002)
        assert come(bench) == []
        await trio.sleep(0.05)
        (found,) = come(bench)
        assert 0 <= found.store_timestamp_ms - (waiting.store_timestamp_ms + delay_ms) < 50
        assert (found.queue_id, found.queue_offset, found.body) == (0, 0, b"m")
        assert found.born_timestamp_ms == waiting.born_timestamp_ms
        assert found.born_host == waiting.born_host
        assert found.properties == waiting.properties
        (entry,) = bench.store.reader.entries(bench.store.queue("T", 0), 0, 9)
        assert entry == (found.log_offset, found.size, tags_code("TagA"))


@asynccontextmanager
async def delivering(
    clock: TrioClock, offsets: DelayOffsets | None = None
) -> AsyncIterator[tuple[Store, Putter, Delays]]:
    """The delivery alone, on a store whose own tasks rest: hours pass in a moment."""
    parts = open_parts(MemoryDisk(), STORE, clock, lambda _topic: False)
    try:
        await recover(parts)
        store = Store(parts, clock, HOST)
        putter = Putter(store, Redirects(STORE), clock)
        delays = Delays(store, putter, offsets or DelayOffsets(clock), LEVELS_MS, clock)
        async with trio.open_nursery() as nursery:
            await nursery.start(delays.run)
            yield store, putter, delays
            nursery.cancel_scope.cancel()
    finally:
        parts.release()


async def test_a_level_of_two_hours_takes_no_time_to_test(autojump_clock):
    began_s = time.process_time()
    async with delivering(TrioClock()) as (store, putter, _):
        text = props(DELAY="18", UNIQ_KEY="u").encode()
        putter.deliver(Letter("T", 0, b"m", text, 1, bytes(8)))
        await trio.sleep(7199.99)
        assert store.queue("T", 0) is None
        await trio.sleep(0.02)
        assert store.queue("T", 0).max_offset == 1
    assert time.process_time() - began_s < 1


async def test_sixteen_retries_take_no_time_to_test(autojump_clock):
    """All levels from 3 to 18, one after the other: 4 h 46 min 40 s."""
    began_s = time.process_time()
    clock = TrioClock()
    group = SubscriptionGroupConfig("G")
    async with delivering(clock) as (store, putter, _):
        put = putter.put(Letter("T", 0, b"m", props(UNIQ_KEY="u").encode(), 1, bytes(8)))
        record = decode(store.reader.record(put.log_offset))
        for times in range(16):
            sent_ms = clock.now_ms()
            putter.deliver(returned_letter(record, group, 16, 0))
            delay_ms = LEVELS_MS[times + 2]
            await trio.sleep(delay_ms / 1000 + 0.01)
            queue = store.queue("%RETRY%G", 0)
            assert queue.max_offset == times + 1
            record = decode(store.reader.record(queue.log_offset_at(times)))
            assert record.reconsume_times == times + 1
            assert 0 <= record.store_timestamp_ms - sent_ms - delay_ms < 10
        putter.deliver(returned_letter(record, group, 16, 0))
        (dead,) = store.queues.of_topic("%DLQ%G")
        assert dead.max_offset == 1
    assert time.process_time() - began_s < 1


@pytest.mark.parametrize(("level", "delay_ms"), [("19", LEVELS_MS[17]), ("0", 0), ("-1", 0)])
async def test_b072_levels_beyond_the_table(autojump_clock, level, delay_ms):
    async with serving(store=QUIET, broker=QUIET_BROKER) as bench:
        bench.create()
        delayed(bench, b"m", level=int(level))
        if delay_ms:
            assert come(bench) == []
            (waiting,) = bench.stored()
            assert (waiting.queue_id, waiting.property_map["DELAY"]) == (17, "18")
            await trio.sleep(delay_ms / 1000 + 0.01)
        assert bodies(bench) == [b"m"]


async def test_messages_of_a_level_keep_their_order_and_their_queues(autojump_clock, bench):
    for number in range(300):
        text = props(DELAY="2", UNIQ_KEY=str(number))
        bench.put(b"%d" % number, properties=text, queue_id=number % 3)
        if number % 50 == 0:
            await trio.sleep(0.013)
    await until(bench, 300)
    assert bodies(bench) == [b"%d" % number for number in range(300)]
    assert [m.queue_id for m in come(bench)] == [number % 3 for number in range(300)]


async def test_levels_do_not_wait_for_each_other(autojump_clock, bench):
    for level in (4, 3, 2, 1):
        delayed(bench, b"%d" % level, level=level)
    await until(bench, 4, 60)
    assert bodies(bench) == [b"1", b"2", b"3", b"4"]
    born_ms = bench.stored()[0].store_timestamp_ms
    late_ms = [
        m.store_timestamp_ms - born_ms - LEVELS_MS[level - 1]
        for level, m in zip((1, 2, 3, 4), come(bench), strict=True)
    ]
    assert all(0 <= late < 50 for late in late_ms)


async def test_consumers_that_wait_hear_of_them(autojump_clock, bench):
    peer = FakePeer()
    bench.beat(peer, "T")
    bench.hand(peer, pull(sys_flag=SUSPEND))
    delayed(bench, b"m")
    began_s = trio.current_time()
    reply = await bench.next(peer)
    assert texts(reply) == [b"m"]
    assert 1.0 <= trio.current_time() - began_s < 1.1


# -- progress


async def test_progress_is_saved_now_and_then_and_told(autojump_clock, bench):
    delayed(bench, b"a", b"b", level=1)
    delayed(bench, b"c", level=3)
    await trio.sleep(2)
    table = bench.broker.delays.progress()
    assert table == {"scheduleMessageOffset_1": "2,2", "scheduleMessageOffset_3": "0,1"}
    runtime = bench.ask(request(RequestCode.GET_BROKER_RUNTIME_INFO))
    told = jsondialect.loads(runtime.body)["table"]
    assert table.items() <= told.items()
    await trio.sleep(20)
    assert saved(bench.disk) == {1: 2, 3: 1}
    reply = bench.ask(request(RequestCode.GET_ALL_DELAY_OFFSET))
    answer = jsondialect.loads(reply.body)
    assert {int(k): v for k, v in answer["offsetTable"].items()} == {1: 2, 3: 1}
    assert set(answer["dataVersion"]) == {"counter", "stateVersion", "timestamp"}


async def test_many_deliveries_are_saved_before_their_time(autojump_clock, monkeypatch):
    """A crash repeats that many, not all of ten seconds."""
    monkeypatch.setattr(delays_module, "HURRY_AFTER", 200)
    async with serving(store=attrs.evolve(STORE, mapped_file_size_commit_log=1 << 20)) as bench:
        bench.create()
        delayed(bench, *(b"%d" % number for number in range(1000)))
        await until(bench, 1000)
        await trio.sleep(1)
        delayed(bench, b"more")
        await trio.sleep(1.6)
        assert saved(bench.disk)[1] >= 800


async def test_deliveries_that_become_durable_late_are_saved_before_their_time_too(
    autojump_clock, monkeypatch
):
    """A sync may end between lots: what is delivered by then is not all that can be noted."""
    monkeypatch.setattr(delays_module, "HURRY_AFTER", 200)
    clock, saved_at = TrioClock(), []
    offsets = DelayOffsets(clock)
    async with delivering(clock, offsets) as (store, putter, delays):
        delays.hurry = lambda: saved_at.append(offsets.get(1))
        for number in range(1000):
            text = props(DELAY="1", UNIQ_KEY=str(number)).encode()
            putter.deliver(Letter("T", 0, b"m", text, 1, bytes(8)))
        await trio.sleep(0.9)
        waiting = store.log.written
        await trio.sleep(0.2)
        assert delays.delivered == 1000
        for durable in (waiting + (store.log.written - waiting) // 4, store.log.written):
            store.log.durable.advance(durable)
            delays.settle()
        assert 1000 - saved_at[-1] < 200 + delays_module.LOT


@pytest.mark.parametrize("sync", [False, True])
async def test_c049_a_stop_in_the_middle_repeats_nothing_and_loses_nothing(autojump_clock, sync):
    store = attrs.evolve(
        STORE,
        mapped_file_size_commit_log=1 << 20,
        flush_disk_type=FlushDiskType.SYNC_FLUSH if sync else FlushDiskType.ASYNC_FLUSH,
    )
    disk, clock = MemoryDisk(), TrioClock()
    async with serving(disk, store=store, clock=clock) as bench:
        bench.create()
        for number in range(500):
            frame = send(body=b"%d" % number, properties=props(DELAY="1", UNIQ_KEY=str(number)))
            assert (await bench.answer(frame)).code == 0
            await trio.sleep(0.002)
        await trio.sleep(0.5)
        first = len(come(bench))
        assert 0 < first < 500
        settled = bench.broker.delays.progress()["scheduleMessageOffset_1"]
    assert saved(disk) == {1: int(settled.split(",")[0])}
    assert saved(disk)[1] == first
    async with serving(disk, store=store, clock=clock) as bench:
        await until(bench, 500)
        await trio.sleep(2)
        assert bodies(bench) == [b"%d" % number for number in range(500)]
    assert saved(disk) == {1: 500}


@pytest.mark.parametrize("seed", range(6))
async def test_a_power_cut_loses_none_and_comes_early_with_none(autojump_clock, seed):
    disk, clock = MemoryDisk(), TrioClock()
    store = attrs.evolve(
        STORE, flush_disk_type=FlushDiskType.SYNC_FLUSH, flush_delay_offset_interval_ms=300
    )
    async with serving(disk, store=store, clock=clock, clean_stop=False) as bench:
        bench.create()
        for number in range(60):
            frame = send(body=b"%d" % number, properties=props(DELAY="1", UNIQ_KEY=str(number)))
            assert (await bench.answer(frame)).code == 0
            await trio.sleep(0.02)
        await trio.sleep(0.3 * seed / 5)
    disk.crash(seed)
    async with serving(disk, store=store, clock=clock) as bench:
        await trio.sleep(5)
        found = Counter(bodies(bench))
        assert set(found) == {b"%d" % number for number in range(60)}
        due_ms = {
            m.body: m.store_timestamp_ms + 1000
            for m in bench.stored()
            if m.topic == "SCHEDULE_TOPIC_XXXX"
        }
        assert all(m.store_timestamp_ms >= due_ms[m.body] for m in come(bench))


async def test_progress_never_runs_ahead_of_what_a_power_cut_leaves(autojump_clock):
    """Under asynchronous flush: what is delivered but not durable is delivered again."""
    disk, clock = MemoryDisk(), TrioClock()
    store = attrs.evolve(
        STORE,
        flush_interval_commit_log_ms=20_000,
        flush_interval_consume_queue_ms=20_000,
        flush_delay_offset_interval_ms=100,
    )
    async with serving(disk, store=store, clock=clock, clean_stop=False) as bench:
        bench.create()
        delayed(bench, *(b"%d" % number for number in range(9)))
        await bench.store.flusher.sync_log()
        await trio.sleep(2)
        assert len(come(bench)) == 9
        assert saved(disk).get(1, 0) == 0, "the copies are not durable yet"
    disk.crash(1, keep="none")
    async with serving(disk, store=store, clock=clock) as bench:
        await trio.sleep(2)
        assert bodies(bench) == [b"%d" % number for number in range(9)]


async def _waiting(disk: MemoryDisk, clock: TrioClock, count: int, level: int = 2) -> None:
    """A clean store in which messages wait."""
    async with serving(disk, clock=clock) as bench:
        bench.create()
        delayed(bench, *(b"%d" % number for number in range(count)), level=level)


@pytest.mark.parametrize(
    ("content", "backup"),
    [
        (b"\0" * 180, b"\0" * 180),
        (b"", b""),
        (b"[]", None),
        (b'{"offsetTable":{"one":1}}', None),
        (b'{"offsetTable":{1:-5}}', None),
    ],
)
async def test_c043_spoilt_progress_stops_no_start_and_loses_nothing(
    autojump_clock, caplog, content, backup
):
    disk, clock = MemoryDisk(), TrioClock()
    await _waiting(disk, clock, 500)
    write(disk, FILE, content)
    if backup is not None:
        write(disk, f"{FILE}.bak", backup)
    else:
        disk.remove(f"{FILE}.bak") if disk.exists(f"{FILE}.bak") else None
    async with serving(disk, clock=clock) as bench:
        await until(bench, 500)
        await trio.sleep(1)
        assert bodies(bench) == [b"%d" % number for number in range(500)]
    kept = [name for name in disk.list_dir("/store/config") if ".bad-" in name]
    assert any(read(disk, f"/store/config/{name}") == content for name in kept)
    assert "progress of delayed messages" in caplog.text
    assert saved(disk) == {2: 500}


async def test_c050_progress_behind_the_end_is_put_right_once(autojump_clock, caplog):
    disk, clock = MemoryDisk(), TrioClock()
    async with serving(disk, clock=clock) as bench:
        bench.create()
        delayed(bench, b"a", b"b", level=2)
        await trio.sleep(30)
        bench.put(b"later than all that was due")
    write(disk, FILE, b'{"dataVersion":{},"offsetTable":{2:5}}')
    async with serving(disk, clock=clock):
        await trio.sleep(30)
        assert saved(disk) == {2: 2}
    assert "level 2 at 5" in caplog.text
    caplog.clear()
    async with serving(disk, clock=clock) as bench:
        await trio.sleep(30)
        assert bodies(bench).count(b"a") == 1
    assert "level 2" not in caplog.text


async def test_c140_progress_far_behind_the_end_hides_nothing(autojump_clock):
    disk, clock = MemoryDisk(), TrioClock()
    await _waiting(disk, clock, 300, level=4)
    write(disk, FILE, b'{"offsetTable":{4:25477423}}')
    async with serving(disk, clock=clock) as bench:
        await until(bench, 300, 60)
        await trio.sleep(1)
        assert bodies(bench) == [b"%d" % number for number in range(300)]
    assert saved(disk) == {4: 300}


async def test_progress_of_a_log_that_lost_its_end_goes_back_with_it(autojump_clock):
    """What is due after the newest record cannot have been delivered, whatever the file says."""
    disk, clock = MemoryDisk(), TrioClock()
    await _waiting(disk, clock, 20)
    write(disk, FILE, b'{"offsetTable":{2:15}}')
    async with serving(disk, clock=clock) as bench:
        await until(bench, 20)
        assert bodies(bench) == [b"%d" % number for number in range(20)]


async def test_what_others_keep_in_the_file_stays(autojump_clock):
    disk, clock = MemoryDisk(), TrioClock()
    await _waiting(disk, clock, 1)
    write(disk, FILE, b'{"dataVersion":{"counter":7},"offsetTable":{"2":0,19:3},"more":[1]}')
    async with serving(disk, clock=clock):
        await trio.sleep(30)
    value = jsondialect.loads(read(disk, FILE))
    assert value["more"] == [1]
    assert value["dataVersion"]["counter"] == 7
    assert saved(disk) == {2: 1, 19: 3}
    assert b"{2:1,19:3}" in read(disk, FILE), "Apache writes the levels without quotes"


async def test_the_version_changes_every_200_updates(autojump_clock):
    broker = attrs.evolve(BROKER, delay_offset_update_version_step=2)
    table = DelayOffsets(TrioClock(), broker.delay_offset_update_version_step)
    for offset in (1, 1, 2, 3, 4):
        table.update(1, offset)
    assert (table.version.counter, table.revision) == (2, 4)


# -- other levels, other clocks


@pytest.mark.parametrize("table", ["3s 4s 5s", "1s 5s 2h", "1s"])
async def test_c142_a_changed_table_keeps_the_due_times(autojump_clock, caplog, table):
    disk, clock = MemoryDisk(), TrioClock()
    async with serving(disk, clock=clock) as bench:
        bench.create()
        delayed(bench, b"old", level=3)
        due_ms = bench.stored()[0].store_timestamp_ms + LEVELS_MS[2]
    changed = attrs.evolve(STORE, message_delay_level=table)
    async with serving(disk, store=changed, clock=clock) as bench:
        await trio.sleep(20)
        (old,) = come(bench)
        assert 0 <= old.store_timestamp_ms - due_ms < 100
    gone = len(table.split()) < 3
    assert ("no level 3 any more" in caplog.text) is gone
    assert saved(disk)[3] == 1


@pytest.mark.parametrize("table", ["", "1s 5x", "1s -5s", "s"])
def test_c142_a_bad_table_stops_the_start(table):
    with pytest.raises(ConfigError, match="messageDelayLevel"):
        load(overrides=[f"messageDelayLevel={table}"])


async def test_a_clock_that_is_set_forward_brings_them_soon(autojump_clock, bench):
    delayed(bench, b"m", level=18)
    await trio.sleep(1)
    bench.clock.set(bench.clock.now_ms() + 7_200_000)
    await trio.sleep(5.1)
    assert bodies(bench) == [b"m"]


async def test_a_clock_that_is_set_back_makes_none_wait_longer_than_its_delay(
    autojump_clock, bench, caplog
):
    delayed(bench, b"before", level=3)
    await trio.sleep(2)
    bench.clock.set(bench.clock.now_ms() - 3_600_000)
    await trio.sleep(1)
    delayed(bench, b"after", level=3)
    await trio.sleep(6.9)
    assert bodies(bench) == []
    await trio.sleep(1)
    assert bodies(bench) == [b"before"]
    await trio.sleep(2)
    assert bodies(bench) == [b"before"]
    await trio.sleep(0.2)
    assert bodies(bench) == [b"before", b"after"]
    assert "the clock was set back by 3600.0 s" in caplog.text
    delayed(bench, b"later", level=1)
    await trio.sleep(1.1)
    assert bodies(bench)[-1] == b"later"


async def test_a_clock_that_is_behind_the_log_at_the_start(autojump_clock):
    disk, clock = MemoryDisk(), TrioClock()
    await _waiting(disk, clock, 3, level=3)
    clock.set(clock.now_ms() - 86_400_000)
    async with serving(disk, clock=clock) as bench:
        await trio.sleep(11)
        assert len(come(bench)) == 3


# -- what cannot be delivered


async def test_c148_a_full_disk_is_waited_for_and_nothing_is_repeated(autojump_clock):
    disk, clock = MemoryDisk(), TrioClock()
    async with serving(disk, clock=clock) as bench:
        bench.create()
        delayed(bench, *(b"%d" % number for number in range(50)))
        disk.fail_when(
            lambda operation: operation.kind == "write" and "commitlog" in operation.path,
            errno.ENOSPC,
        )
        await trio.sleep(5)
        assert come(bench) == []
        disk.heal()
        with trio.fail_after(120):
            while bench.store.refusal is not None:  # noqa: ASYNC110
                await trio.sleep(0.5)
        await until(bench, 50)
        assert bodies(bench) == [b"%d" % number for number in range(50)]


async def test_one_that_says_no_topic_is_passed(autojump_clock, bench, caplog):
    queue = bench.store.queues.obtain("SCHEDULE_TOPIC_XXXX", 0)
    for text in (
        b"",
        b"REAL_TOPIC\x01T\x02",
        b"REAL_TOPIC\x01T\x02REAL_QID\x01x\x02",
        b"REAL_TOPIC\x01a/../b\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010\x02",
        b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02",
    ):
        bench.store.append(
            queue,
            b"m",
            text,
            token=None,
            born_timestamp_ms=1,
            born_host=bytes(8),
            delay_ms=1000,
            now_ms=bench.clock.now_ms(),
        )
    bench.store.commit()
    await trio.sleep(2)
    assert bodies(bench) == [b"m"]
    lines = [r for r in caplog.records if "cannot be delivered" in r.getMessage()]
    assert len(lines) == 5
    assert all(r.levelno == logging.ERROR for r in lines)


async def test_a_topic_with_a_longer_name_has_room_in_any_segment(autojump_clock, bench, caplog):
    """The copy has a longer record; one that fits into no segment is told and passed."""
    long = "L" * 120
    bench.create(long)
    room = STORE.mapped_file_size_commit_log - 8
    for size in (room - 500, room - 340):
        bench.put(b"x" * size, topic=long, properties=props(DELAY="1", UNIQ_KEY="u"))
    delayed(bench, b"next")
    await trio.sleep(3)
    assert bodies(bench) == [b"next"]
    told = [r for r in caplog.records if "cannot be delivered" in r.getMessage()]
    assert len(come(bench, long)) + len(told) == 2


async def test_a_store_that_refuses_is_no_end_of_the_service(autojump_clock, bench, monkeypatch):
    delayed(bench, b"a")
    failures = iter([StoreFull("full"), ValueError("odd"), None])
    put_all = bench.broker.putter.put_all

    def sometimes(letters):
        if (failure := next(failures)) is not None:
            raise failure
        return put_all(letters)

    monkeypatch.setattr(bench.broker.putter, "put_all", sometimes)
    await trio.sleep(4)
    assert bodies(bench) == [b"a"]
