"""Reads that look at properties: what comes, how far a read goes, and records that are on the disk only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.store.stores import empty_store, send
from tests.store.test_reader import BIG, decoded
from trio_mq.protocol.message import Host
from trio_mq.store import sieve
from trio_mq.store.reader import Found
from trio_mq.store.recordproperties import FIRST_BYTES, record_properties
from trio_mq.store.segments import ColdData
from trio_mq.store.sieve import EXT_ADDRESS, Sieve
from trio_mq.testing.clock import DEFAULT_START_MS
from trio_mq.testing.disk import MemoryDisk

V4, V6 = Host("10.1.2.3", 5000), Host("fd00::1:2", 5000)


def filled(count: int, disk: MemoryDisk | None = None, body: bytes = b"", **changes):
    """A queue with messages whose property `v` is their number."""
    store = empty_store(disk or MemoryDisk(), **(BIG | changes))
    queue = store.queues.obtain("T", 0)
    for number in range(count):
        tag = b"a" if number % 2 else b"b"
        props = b"v\x01%d\x02TAGS\x01%b\x02" % (number, tag)
        send(store, queue, body + b"%d" % number, props=props)
        if number % 50 == 0:
            store.commit()
    store.commit()
    return store, queue


def value(properties: bytes) -> int:
    return int(properties.split(b"\x02")[0][2:])


def bodies(answer):
    return [int(message.body) for message in decoded(answer)]


def test_only_what_the_filter_takes_comes_and_the_offset_moves_past_the_others():
    store, queue = filled(40)
    answer = store.reader.messages(queue, 0, 5, None, lambda raw: value(raw) % 4 == 0)
    assert bodies(answer) == [0, 4, 8, 12, 16]
    assert answer.next_offset == 17
    answer = store.reader.messages(queue, 17, 32, None, lambda raw: value(raw) % 4 == 0)
    assert bodies(answer) == [20, 24, 28, 32, 36]
    assert answer.next_offset == 40
    nothing = store.reader.messages(queue, 0, 32, None, lambda _: False)
    assert (nothing.found, nothing.next_offset) == (Found.NO_MATCHED_MESSAGE, 40)


def test_tags_and_properties_together():
    store, queue = filled(20)
    codes = {ord("a")}  # the Java hash of one letter
    seen = []
    answer = store.reader.messages(
        queue, 0, 32, codes, lambda raw: seen.append(value(raw)) or value(raw) > 10
    )
    assert bodies(answer) == [11, 13, 15, 17, 19]
    assert seen == list(range(1, 20, 2)), "what the tag excludes is not looked into"


def test_a_filter_that_takes_its_time_ends_the_read_where_it_is(monkeypatch):
    ticks = iter(range(10_000))
    monkeypatch.setattr(sieve, "perf_counter", lambda: next(ticks) * 0.001)
    store, queue = filled(100)
    answer = store.reader.messages(queue, 0, 32, None, lambda _: False)
    assert answer.found is Found.NO_MATCHED_MESSAGE
    assert 5 < answer.next_offset < 20
    found = store.reader.messages(queue, answer.next_offset, 32, None, lambda _: True)
    assert 1 <= found.count < 32, "what was taken until then is the answer"


def test_one_record_is_looked_into_whatever_it_costs(monkeypatch):
    ticks = iter(range(10_000))
    monkeypatch.setattr(sieve, "perf_counter", lambda: next(ticks) * 10.0)
    store, queue = filled(5)
    offset = 0
    while offset < 5:
        answer = store.reader.messages(queue, offset, 32, None, lambda _: False)
        assert answer.next_offset == offset + 1
        offset = answer.next_offset


def test_records_on_the_disk_only_are_fetched_many_at_once():
    disk = MemoryDisk()
    store, queue = filled(50, disk)
    store.queues.write_tails()
    entries = queue.files.read(50 * 20, 0)
    size = int.from_bytes(entries[8:12], "big")
    disk.cold = True
    with pytest.raises(ColdData) as caught:
        Sieve(store.log.read, None, lambda _: True).takes(0, 0, size, first=True)
    assert len(caught.value.warm()) == store.log.written


class HalfCold:
    """A log whose records from an offset on are on the disk only."""

    def __init__(self, log, cold_from):
        self._log = log
        self._cold_from = cold_from

    def __getattr__(self, name):
        return getattr(self._log, name)

    def read(self, size, offset):
        if offset + size > self._cold_from:
            raise ColdData(lambda: None)
        return self._log.read(size, offset)


def test_a_read_ends_before_records_on_the_disk_and_begins_with_them_the_next_time(monkeypatch):
    store, queue = filled(50)
    place = queue.next_record(20, 50)[1]
    monkeypatch.setattr(store.reader, "_log", HalfCold(store.log, place))
    answer = store.reader.messages(queue, 0, 32, None, lambda raw: value(raw) == 3)
    assert (bodies(answer), answer.next_offset) == ([3], 20)
    with pytest.raises(ColdData):
        store.reader.messages(queue, 20, 32, None, lambda _: True)


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 6000)), min_size=1, max_size=40),
)
def test_every_record_is_looked_into_once_wherever_it_lies(messages):
    """Near each other and apart, short and long, over segment borders, through a window or not."""
    store = empty_store(MemoryDisk(), mapped_file_size_commit_log=16_384)
    expected: dict[int, list[int]] = {0: [], 1: []}
    for number, (queue_id, size) in enumerate(messages):
        queue = store.queues.obtain("T", queue_id)
        send(store, queue, b"." * size, props=b"v\x01%d\x02" % number)
        store.commit()
        expected[queue_id].append(number)
    for queue_id, numbers in expected.items():
        seen: list[int] = []
        offset = 0
        queue = store.queues.get("T", queue_id)
        while offset < len(numbers):
            answer = store.reader.messages(
                queue, offset, 32, None, lambda raw, to=seen: bool(to.append(value(raw)))
            )
            offset = answer.next_offset
        assert seen == numbers


def test_tags_of_entries_with_an_address_in_place_of_their_code_are_looked_up():
    """As a broker of Apache's with enableConsumeQueueExt leaves them."""
    store = empty_store(MemoryDisk(), **BIG)
    queue = store.queues.obtain("T", 0)
    for number in range(20):
        tag = b"TAGS\x01" + (b"a" if number % 2 else b"b") + b"\x02" if number % 5 else b""
        address = {} if number > 9 else {"delay_ms": EXT_ADDRESS - number * 100 - DEFAULT_START_MS}
        send(store, queue, b"%d" % number, props=tag, **address)
    store.commit()
    assert queue.files.read(20, 0)[12:] == EXT_ADDRESS.to_bytes(8, "big", signed=True)
    for codes, wanted in (
        ({ord("a")}, [1, 3, 7, 9, 11, 13, 17, 19]),
        ({0}, [0, 5, 10, 15]),
        ({1}, []),
        (None, list(range(20))),
    ):
        answer = store.reader.messages(queue, 0, 32, codes)
        assert bodies(answer) == wanted
        assert answer.next_offset == 20


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("host", [V4, V6])
@pytest.mark.parametrize("topic", ["T", "t" * 200])
@pytest.mark.parametrize("size", [0, 10, FIRST_BYTES - 150, FIRST_BYTES, 50_000])
def test_properties_of_every_kind_of_record(born, host, topic, size):
    store = empty_store(MemoryDisk(), host=host, **BIG)
    queue = store.queues.obtain(topic, 0)
    for props in (b"", b"a\x011\x02", b"k\x01" + b"v" * 30_000 + b"\x02"):
        at = send(store, queue, b"." * size, props=props, born_host=born.packed)
        store.commit()
        assert record_properties(store.log.read, at, store.log.written - at) == props


@given(st.binary(max_size=300), st.integers(0, 400))
def test_bytes_that_are_no_record_have_some_properties_or_none(data, size):
    record_properties(lambda count, at: data[at : at + count], 0, size)
