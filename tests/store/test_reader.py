"""Reads: outcomes and offsets, limits, filters, holes, segments, cold data, search by time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_stores as golden
from tests.store.stores import bodies, empty_store, send, send_many
from trio_mq.protocol.message import Host, tags_code_of
from trio_mq.protocol.record import decode
from trio_mq.store import reader as reading
from trio_mq.store.queues import BatchConsumeQueue, ConsumeQueue
from trio_mq.store.reader import Found, Messages
from trio_mq.store.segments import ColdData, warmed
from trio_mq.store.store import Store
from trio_mq.testing.clock import DEFAULT_START_MS
from trio_mq.testing.disk import MemoryDisk

BIG = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000}


def store_of(disk: MemoryDisk | None = None, **changes) -> Store:
    return empty_store(disk or MemoryDisk(), **(BIG | changes))


def decoded(answer: Messages):
    at, found = 0, []
    while at < len(answer.data):
        found.append(decode(answer.data, at))
        at += found[-1].size
    return found


def read(store: Store, offset: int, count: int = 32, codes=None, queue_id: int = 0) -> Messages:
    return store.reader.messages(store.queues.get("T", queue_id), offset, count, codes)


# -- outcomes


def test_outcomes_and_next_offsets_as_the_peers_have_them():
    store = store_of()
    assert read(store, 0) == Messages(Found.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
    queue = store.queues.obtain("T", 0)
    assert read(store, 5) == Messages(Found.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
    send_many(store, queue, 10)
    queue.min_offset = 4
    assert read(store, 3) == Messages(Found.OFFSET_TOO_SMALL, 4, 4, 10)
    assert read(store, -1) == Messages(Found.OFFSET_TOO_SMALL, 4, 4, 10)
    assert read(store, 10) == Messages(Found.OFFSET_OVERFLOW_ONE, 10, 4, 10)
    assert read(store, 11) == Messages(Found.OFFSET_OVERFLOW_BADLY, 10, 4, 10)
    answer = read(store, 4)
    assert (answer.found, answer.next_offset, answer.count) == (Found.FOUND, 10, 6)
    assert (answer.min_offset, answer.max_offset) == (4, 10)
    assert [m.body for m in decoded(answer)] == [b"body %d" % n for n in range(4, 10)]
    assert [m.queue_offset for m in decoded(answer)] == list(range(4, 10))


def test_an_emptied_queue_waits_at_its_end():
    store = store_of()
    queue = store.queues.obtain("T", 0)
    send_many(store, queue, 3)
    queue.min_offset = 3
    assert read(store, 3).found is Found.OFFSET_OVERFLOW_ONE
    assert read(store, 2) == Messages(Found.OFFSET_TOO_SMALL, 3, 3, 3)


# -- limits


@pytest.mark.parametrize(("asked", "got"), [(1, 1), (5, 5), (32, 32), (100, 32)])
def test_counts_are_limited(asked, got):
    store = store_of()
    send_many(store, store.queues.obtain("T", 0), 50)
    for codes in (None, {0}):
        answer = read(store, 3, asked, codes)
        assert (answer.count, answer.next_offset) == (got, 3 + got)


def test_bytes_are_limited_but_one_message_always_comes():
    store = store_of(max_transfer_bytes_in_memory=1000)
    queue = store.queues.obtain("T", 0)
    for size in (300, 300, 300, 5000, 10):
        send(store, queue, b"x" * size)
    store.commit()
    assert [len(m.body) for m in decoded(read(store, 0))] == [300, 300]
    assert [len(m.body) for m in decoded(read(store, 2))] == [300]
    assert [len(m.body) for m in decoded(read(store, 3))] == [5000]
    assert read(store, 3).next_offset == 4
    assert [len(m.body) for m in decoded(read(store, 4))] == [10]


def test_old_messages_have_limits_of_their_own():
    store = store_of(
        access_message_in_memory_max_ratio=0,
        max_transfer_count_in_disk=3,
        max_transfer_count_in_memory=10,
    )
    send_many(store, store.queues.obtain("T", 0), 20)
    answer = read(store, 0)
    assert (answer.count, answer.next_offset, answer.lags) == (3, 3, True)
    assert not store_of().reader.messages(None, 0, 1, None).lags


def test_recent_messages_do_not_lag():
    store = store_of()
    send_many(store, store.queues.obtain("T", 0), 5)
    assert not read(store, 0).lags
    assert not read(store, 0, codes={0}).lags


# -- filters


def test_only_wanted_tags_come_and_the_offset_moves_past_the_others():
    store = store_of()
    queue = store.queues.obtain("T", 0)
    for number in range(40):
        tag = b"a" if number % 4 == 0 else b"b"
        send(store, queue, b"%d" % number, props=b"TAGS\x01" + tag + b"\x02")
    store.commit()
    answer = read(store, 0, 5, {tags_code_of(b"a")})
    assert [m.body for m in decoded(answer)] == [b"0", b"4", b"8", b"12", b"16"]
    assert answer.next_offset == 17  # a full answer ends at its last message, as in Apache
    answer = read(store, 17, 32, {tags_code_of(b"a")})
    assert [m.body for m in decoded(answer)] == [b"20", b"24", b"28", b"32", b"36"]
    assert answer.next_offset == 40
    nothing = read(store, 0, 32, {tags_code_of(b"c")})
    assert (nothing.found, nothing.next_offset, nothing.data) == (Found.NO_MATCHED_MESSAGE, 40, b"")


def test_a_filter_looks_at_a_bounded_number_of_entries():
    store = store_of()
    queue = store.queues.obtain("T", 0)
    send_many(store, queue, 1000)
    answer = read(store, 0, 32, {1})
    assert (answer.found, answer.next_offset) == (Found.NO_MATCHED_MESSAGE, 800)
    assert read(store, 800, 32, {1}).next_offset == 1000
    assert read(store, 0, 900, {1}).next_offset == 900


# -- where records lie


def test_queues_that_share_the_log_are_read_apart():
    store = store_of()
    queues = [store.queues.obtain("T", n) for n in range(3)]
    for number in range(60):
        send(store, queues[number % 3], b"%d" % number)
    store.commit()
    for queue_id in range(3):
        found = [m.body for m in decoded(read(store, 0, queue_id=queue_id))]
        assert found == [b"%d" % n for n in range(queue_id, 60, 3)]


def test_far_records_between_near_ones():
    """Neighbours are read in one go, others by themselves, and the answer has neither gaps nor too much."""
    store = store_of()
    queue, other = store.queues.obtain("T", 0), store.queues.obtain("Other", 0)
    for size in (0, 0, 10, 6000, 0, 3000, 0, 20_000, 1):
        send(store, queue, b"mine")
        if size:
            send(store, other, b"x" * size)
    store.commit()
    assert [m.body for m in decoded(read(store, 0))] == [b"mine"] * 9
    assert bodies(store, queue) == [b"mine"] * 9


def test_a_total_that_looks_like_one_run_is_not_taken_for_one():
    store = store_of()
    queue, other = store.queues.obtain("T", 0), store.queues.obtain("Other", 0)
    send(store, queue, b"a" * 10)
    size = store.log.end
    send(store, other, b"x" * 10 + b"y" * (size - (store.log.end + 0)))
    send(store, queue, b"b" * 10)
    send(store, other, b"x" * 5000)
    send(store, queue, b"c" * 10)
    store.commit()
    assert [m.body[:1] for m in decoded(read(store, 0))] == [b"a", b"b", b"c"]


def test_reads_go_over_segments():
    store = store_of(mapped_file_size_commit_log=4096)
    queue = store.queues.obtain("T", 0)
    send_many(store, queue, 100, per_commit=7)
    assert len(store.log.segments.starts) >= 3
    assert bodies(store, queue) == [b"body %d" % n for n in range(100)]


def test_entries_in_memory_and_in_files_are_one_queue():
    store = store_of(mapped_file_size_consume_queue=200)
    queue = store.queues.obtain("T", 0)
    for round_ in range(7):
        send_many(store, queue, 6, first=round_ * 6)
        if round_ % 2:
            store.queues.write_tails()
    assert bodies(store, queue) == [b"body %d" % n for n in range(42)]


def test_nothing_that_is_not_written_is_read():
    store = store_of()
    queue = store.queues.obtain("T", 0)
    send_many(store, queue, 3)
    assert isinstance(queue, ConsumeQueue)
    queue.put(3, 1, store.log.written, 100, 0, 0)  # an entry ahead of its record
    answer = read(store, 0)
    assert (answer.count, answer.next_offset) == (3, 4)
    answer = read(store, 3)
    assert (answer.found, answer.next_offset) == (Found.MESSAGE_WAS_REMOVING, 4)


def test_pullers_get_past_a_missing_segment_c010():
    store = store_of(mapped_file_size_commit_log=4096)
    queue = store.queues.obtain("T", 0)
    offsets = send_many(store, queue, 100)
    store.log.segments.drop_segment(4096)
    lost = [n for n, at in enumerate(offsets) if 4096 <= at < 8192]
    assert len(lost) > 20
    answer = read(store, lost[0])
    assert answer.found is Found.FOUND  # what lies behind the hole
    assert decoded(answer)[0].queue_offset == lost[-1] + 1
    assert [b"body %d" % n for n in range(100) if n not in lost] == bodies(store, queue)
    queue_end = read(store, lost[0], codes={12345})
    assert queue_end.next_offset == 100


def test_holes_are_passed_over():
    store = store_of()
    queue = store.queues.obtain("T", 0)
    send_many(store, queue, 2)
    queue.next_offset = 2000
    send_many(store, queue, 2, first=2)
    assert queue.max_offset == 2002
    assert (read(store, 0).count, read(store, 0).next_offset) == (2, 2)
    answer = read(store, 2)
    assert (answer.found, answer.next_offset) == (Found.NO_MATCHED_MESSAGE, 802)
    assert bodies(store, queue) == [b"body %d" % n for n in range(4)]


def test_cold_queues_and_logs_are_told_apart_from_nothing():
    disk = MemoryDisk()
    store = store_of(disk)
    queue = store.queues.obtain("T", 0)
    send_many(store, queue, 5)
    disk.cold = True
    with pytest.raises(ColdData):
        read(store, 0)
    store.queues.write_tails()
    with pytest.raises(ColdData) as caught:
        read(store, 0)
    assert len(caught.value.warm()) == 100
    disk.cold = False
    assert read(store, 0).count == 5


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 900)), max_size=40),
    st.integers(1, 40),
    st.sets(st.integers(0, 2)),
    st.booleans(),
)
def test_every_message_is_read_once_in_order(messages, count, tags, written):
    """Any mix of queues, tags and sizes, over segment borders, with and without a filter."""
    store = store_of(mapped_file_size_commit_log=4096, max_transfer_bytes_in_memory=2000)
    expected: dict[int, list[tuple[int, int]]] = {0: [], 1: [], 2: []}
    for number, (queue_id, tag, size) in enumerate(messages):
        queue = store.queues.obtain("T", queue_id)
        body = b"%d" % number + b"." * size
        send(store, queue, body, props=b"TAGS\x01t%d\x02" % tag)
        expected[queue_id].append((number, tag))
        if number % 3 == 0:
            store.commit()
            if written:
                store.queues.write_tails()
    store.commit()
    codes = {tags_code_of(b"t%d" % tag) for tag in tags} if tags else None
    for queue_id, sent in expected.items():
        offset, got = 0, []
        while sent and offset < len(sent):
            answer = read(store, offset, count, codes, queue_id)
            assert answer.found in (Found.FOUND, Found.NO_MATCHED_MESSAGE)
            assert offset < answer.next_offset <= len(sent)
            assert len(decoded(answer)) == answer.count <= count
            got += [int(m.body.split(b".")[0]) for m in decoded(answer)]
            offset = answer.next_offset
        assert got == [number for number, tag in sent if not tags or tag in tags]


# -- batches


def batch_store(counts: list[int]) -> Store:
    store = store_of()
    queue = store.queues.obtain("Batches", 0)
    for number, count in enumerate(counts):
        send(store, queue, b"%d" % number, count=count, now_ms=DEFAULT_START_MS + number * 1000)
    store.commit()
    return store


def test_a_batch_comes_whole_whichever_of_its_messages_is_asked_for():
    store = batch_store([10, 10, 10])
    queue = store.queues.get("Batches", 0)
    answer = store.reader.messages(queue, 13, 32, None)
    assert (answer.count, answer.next_offset) == (20, 30)
    assert [m.body for m in decoded(answer)] == [b"1", b"2"]
    answer = store.reader.messages(queue, 3, 15, None)
    assert (answer.count, answer.next_offset) == (10, 10)
    answer = store.reader.messages(queue, 3, 5, None)
    assert (answer.count, answer.next_offset) == (10, 10)  # at least one record
    assert store.reader.messages(queue, 30, 5, None).found is Found.OFFSET_OVERFLOW_ONE


def test_search_by_time_ends_at_the_first_message_of_a_batch_c077():
    store = batch_store([100, 100, 100])
    queue = store.queues.get("Batches", 0)
    assert isinstance(queue, BatchConsumeQueue)
    search = store.reader.offset_by_time
    assert search(queue, DEFAULT_START_MS + 1000) == 100
    assert search(queue, DEFAULT_START_MS + 999) == 100
    assert search(queue, DEFAULT_START_MS + 1001) == 200
    assert search(queue, DEFAULT_START_MS) == 0
    assert search(queue, DEFAULT_START_MS + 9999) == 300
    assert search(queue, DEFAULT_START_MS + 1500, upper=True) == 199


# -- times


def timed(*times_ms: int, **changes) -> Store:
    store = store_of(**changes)
    queue = store.queues.obtain("T", 0)
    for ms in times_ms:
        store._last_ms = 0  # as a store of somebody else, whose clock was set back
        send(store, queue, now_ms=ms)
        store.commit()
    return store


@pytest.mark.parametrize(
    ("ms", "lower", "upper"),
    [
        (5, 0, 0),  # before the first
        (10, 0, 0),
        (15, 1, 0),  # in a gap: right and left neighbour
        (20, 1, 3),  # several at once: earliest and latest
        (25, 4, 3),
        (30, 4, 4),
        (31, 5, 4),  # behind the last: max offset and last offset
    ],
)
def test_search_by_time_has_the_boundaries_of_the_peers(ms, lower, upper):
    store = timed(10, 20, 20, 20, 30)
    queue = store.queues.get("T", 0)
    assert store.reader.offset_by_time(queue, ms) == lower
    assert store.reader.offset_by_time(queue, ms, upper=True) == upper


def test_search_by_time_in_a_queue_whose_first_messages_expired():
    store = timed(10, 20, 30, 40)
    queue = store.queues.get("T", 0)
    assert queue is not None
    queue.min_offset = 2
    search = store.reader.offset_by_time
    assert (search(queue, 5), search(queue, 30), search(queue, 35), search(queue, 99)) == (
        2,
        2,
        3,
        4,
    )
    assert (search(queue, 5, upper=True), search(queue, 99, upper=True)) == (0, 3)
    queue.min_offset = 4
    assert (search(queue, 5), search(queue, 5, upper=True)) == (0, 0)
    assert search(None, 5) == 0


@pytest.mark.parametrize("ms", [50, 100, 165, 40, 170, 171, 0])
@pytest.mark.parametrize("upper", [False, True])
def test_a_clock_that_went_back_keeps_answers_inside_the_queue_c076(ms, upper):
    store = timed(100, 160, 40, 170)
    queue = store.queues.get("T", 0)
    assert 0 <= store.reader.offset_by_time(queue, ms, upper=upper) <= 4


def test_own_store_times_never_go_back_c076():
    store = store_of()
    queue = store.queues.obtain("T", 0)
    for ms in (100, 160, 40, 170):
        send(store, queue, now_ms=ms)
    store.commit()
    assert [m.store_timestamp_ms for m in decoded(read(store, 0))] == [100, 160, 160, 170]


def test_search_by_time_passes_over_holes():
    store = timed(10, 20)
    queue = store.queues.get("T", 0)
    assert queue is not None
    queue.next_offset = 6
    store._last_ms = 0
    send(store, queue, now_ms=30)
    store.commit()
    search = store.reader.offset_by_time
    assert [search(queue, ms) for ms in (5, 10, 15, 20, 25, 30, 31)] == [0, 0, 1, 1, 6, 6, 7]
    assert [search(queue, ms, upper=True) for ms in (5, 15, 25, 31)] == [0, 0, 1, 6]


@pytest.mark.parametrize("born", ["127.0.0.1", "2001:db8::1"])
@pytest.mark.parametrize("host", ["10.0.0.1", "2001:db8::2"])
def test_store_times_with_every_pair_of_hosts_c092(born, host):
    store = empty_store(MemoryDisk(), host=Host(host, 10911), **BIG)
    queue = store.queues.obtain("T", 0)
    born_host = Host(born, 5000)
    flag = 0x10 if born_host.is_v6 else 0
    for number in range(3):
        send(
            store,
            queue,
            now_ms=DEFAULT_START_MS + number,
            born_host=born_host.packed,
            sys_flag=flag,
        )
    store.commit()
    message = decoded(read(store, 0))[2]
    assert (message.born_host, message.store_host) == (born_host, Host(host, 10911))
    assert store.reader.store_time_ms(message.log_offset) == DEFAULT_START_MS + 2
    assert store.reader.earliest_store_time_ms(queue) == DEFAULT_START_MS
    assert store.reader.offset_by_time(queue, DEFAULT_START_MS + 1) == 1


def test_times_of_what_is_not_there():
    store = timed(10, 20)
    queue = store.queues.get("T", 0)
    assert queue is not None
    assert store.reader.store_time_ms(-1) == -1
    assert store.reader.store_time_ms(5) == -1  # not the start of a record
    assert store.reader.store_time_ms(1 << 40) == -1
    assert store.reader.earliest_store_time_ms(None) == -1
    queue.min_offset = 1
    assert store.reader.earliest_store_time_ms(queue) == 20
    queue.min_offset = 2
    assert store.reader.earliest_store_time_ms(queue) == -1


def test_a_search_by_time_can_be_warmed():
    disk = MemoryDisk()
    store = store_of(disk)
    queue = store.queues.obtain("T", 0)
    for ms in range(50):
        send(store, queue, now_ms=ms)
    store.commit()
    store.queues.write_tails()
    disk.cold = True

    def search() -> int:
        return store.reader.offset_by_time(queue, 33)

    with pytest.raises(ColdData):
        search()
    disk.cold = False
    assert warmed(search) == 33


# -- single records


def test_a_record_by_its_offset_and_nothing_else():
    store = store_of()
    queue = store.queues.obtain("T", 0)
    inner = decoded_fake()
    first, second = send(store, queue, b"one"), send(store, queue, inner)
    store.commit()
    data = store.reader.record(first)
    assert data is not None
    assert decode(data).body == b"one"
    assert store.reader.record(second) is not None
    for offset in (-1, first + 1, second + 1, store.log.written, 1 << 50):
        assert store.reader.record(offset) is None
    # what a client put into a body does not count as a record, whatever size it claims
    at = second + store.reader.record(second).index(inner)  # type: ignore[union-attr]
    assert store.reader.record(at) is None
    assert (
        store.reader.store_time_ms(at) != -1
    )  # offsets from queues are trusted; this one is not from there


def decoded_fake() -> bytes:
    """Bytes that look like the head of a record of a gigabyte."""
    return (1 << 30).to_bytes(4, "big") + bytes.fromhex("daa320a7") + bytes(100)


def test_raw_entries():
    store = store_of()
    queue = store.queues.obtain("T", 0)
    assert isinstance(queue, ConsumeQueue)
    offsets = send_many(store, queue, 5, props=b"TAGS\x01a\x02")
    entries = store.reader.entries(queue, 1, 3)
    assert [offset for offset, _, _ in entries] == offsets[1:4]
    assert {code for _, _, code in entries} == {tags_code_of(b"a")}
    assert store.reader.entries(queue, 5, 3) == []
    assert store.reader.entries(queue, -1, 3) == []


def test_the_memory_of_the_machine_is_known():
    assert reading.physical_memory_bytes() > 1 << 26


# -- Apache's own stores


@pytest.mark.parametrize("name", golden.NAMES)
def test_golden_records_by_offset(name):
    """The reader finds every record that Apache's decoder listed, at its offset and with its store time."""
    disk = MemoryDisk()
    for start, data in golden.segments(name):
        disk.make_dirs("/store/commitlog")
        disk.open(f"/store/commitlog/{start:020d}", create=True).write(data, 0)
    store = empty_store(disk, mapped_file_size_commit_log=golden.SEGMENT_SIZE)
    store.log.segments.load()
    store.log.open_at(store.log.segments.end)
    for row in golden.decoded(name):
        data = store.reader.record(row["offset"])
        assert data is not None
        assert len(data) == row["size"]
        assert store.reader.store_time_ms(row["offset"]) == decode(data).store_timestamp_ms
