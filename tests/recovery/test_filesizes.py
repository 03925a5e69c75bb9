"""Sizes of files in a row, told by lengths and names."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trio_mq.protocol.layout import BLANK, MAGIC_BLANK
from trio_mq.recovery.filesizes import (
    MOST_NAMED,
    FoundFile,
    Rule,
    Size,
    contradictions,
    ends_as_whole,
    find_size,
)

LOG = Rule("log file", 1, 4096, 1 << 30)
QUEUE = Rule("queue file", 20, 20, 6_000_000)
K = 65_536


def row(*files: tuple[int, int]) -> list[FoundFile]:
    """Files by start and length."""
    return [FoundFile(f"commitlog/{start:020d}", start, length) for start, length in files]


def cut(start: int, length: int) -> FoundFile:
    """A file that ends in the middle of a record."""
    return FoundFile(f"commitlog/{start:020d}", start, length, cut=True)


@pytest.mark.parametrize(
    ("files", "size"),
    [
        pytest.param(row((0, K), (K, K), (2 * K, K)), K, id="whole"),
        pytest.param(row((0, K)), K, id="one"),
        pytest.param(row((5 * K, K)), K, id="one, after others expired"),
        pytest.param(row((0, K), (K, 0)), K, id="empty last file after a crash"),
        pytest.param(row((0, K), (K, 4096)), K, id="last one cut at a page"),
        pytest.param([*row((0, K)), cut(K, 9_000)], K, id="last one cut in a record"),
        pytest.param(row((0, K), (3 * K, K)), K, id="files missing between"),
        pytest.param(row((0, K), (3 * K, 5000)), K, id="missing and cut"),
        pytest.param(row((0, 100), (K, 200), (2 * K, 300)), K, id="all cut"),
        pytest.param(row((0, 0), (K, 0)), K, id="all empty"),
        pytest.param(row((0, K), (K, K), (2 * K, K + 7)), K, id="one too long"),
        pytest.param(row((0, K), (1, K), (K, K)), K, id="a name that fits nothing"),
        pytest.param([cut(0, 50_000)], 1 << 30, id="only one, cut: the default"),
        pytest.param(
            [cut(7 << 30, 50_000)], 1 << 30, id="only one, cut, at a multiple of the default"
        ),
        pytest.param([cut(3 * K, 50_000)], 3 * K, id="only one, cut: its name"),
        pytest.param(
            [cut(0, (1 << 30) + 5)], (1 << 30) + 5, id="only one, longer than the default"
        ),
        pytest.param([cut(10, 50_000)], 50_000, id="only one, and a name that fits nothing"),
        pytest.param([], 1 << 30, id="none"),
    ],
)
def test_the_size_of_log_files(files, size):
    found = find_size([files], LOG)
    assert found.value == size
    assert found.how


def test_how_it_was_found_is_told():
    assert find_size([row((0, K), (K, K))], LOG) == Size(
        K, "the length of 2 of 2, and the names are as far apart"
    )
    assert find_size([row((0, K))], LOG) == Size(K, "the length of the only log file")
    assert find_size([row((0, 9), (K, 9))], LOG).how == (
        "the names are so far apart; no log file has this length"
    )
    assert not find_size([[cut(0, 50_000)]], LOG).found
    assert find_size([], LOG) == Size(
        1 << 30, "no log file is there: Apache's default", found=False
    )


def test_queue_files_hold_whole_entries():
    queues = [row((0, 1200), (1200, 1200)), row((2400, 1200)), row((0, 1207)), [], row((0, 40))]
    assert find_size(queues, QUEUE).value == 1200
    assert find_size([row((0, 1207))], QUEUE).value == 6_000_000
    assert list(contradictions(queues, 1200, QUEUE.what)) == [
        "commitlog/00000000000000000000 has 1207 bytes, expected 1200",
        "commitlog/00000000000000000000 has 40 bytes, expected 1200",
    ]


def test_contradictions_name_file_size_and_what_was_expected():
    files = row((0, K), (K, 0), (K + 1, K), (2 * K, 9), (3 * K, 0))
    assert list(contradictions([files], K, "log file")) == [
        f"commitlog/{K:020d} has 0 bytes, expected {K}",
        f"commitlog/{K + 1:020d} begins at {K + 1}, expected a multiple of {K}",
        f"commitlog/{2 * K:020d} has 9 bytes, expected {K}",
    ]


def test_many_contradictions_are_counted():
    notes = list(contradictions([row(*((n * K, 7) for n in range(50)))], K, "log file"))
    assert len(notes) == MOST_NAMED + 1
    assert notes[-1] == f"{50 - MOST_NAMED} more log files do not fit {K} bytes either"


@pytest.mark.parametrize(
    ("tail", "length", "whole"),
    [
        (bytes(8), 1000, True),
        (BLANK.pack(8, MAGIC_BLANK), 1000, True),
        (BLANK.pack(10, MAGIC_BLANK)[2:] + bytes(2), 1000, True),
        (b"PROPERTY", 1000, False),
        (b"PROPERTY", 4096, True),
        (b"", 0, True),
    ],
)
def test_the_end_of_a_log_file_shows_whether_it_was_cut(tail, length, whole):
    assert ends_as_whole(tail, length) == whole


@given(
    entries=st.integers(1, 400),
    rows=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True), max_size=6),
    short=st.lists(st.integers(1, 7_999), max_size=2),
)
def test_most_files_win_over_a_few_short_ones(entries, rows, short):
    size = entries * 20
    queues = [row(*((number * size, size) for number in sorted(numbers))) for numbers in rows]
    assume(sum(map(len, queues)) > 2 * len(short))
    queues += [row((0, min(length, size - 1))) for length in short if size > 1]
    assert find_size(queues, QUEUE).value == size
    wrong = list(contradictions(queues, size, QUEUE.what))
    assert len(wrong) == len(short)


@given(st.lists(st.tuples(st.integers(0, 10**20 - 1), st.integers(0, 1 << 40)), max_size=6))
def test_any_files_give_a_size_that_is_possible(files):
    for rule in (LOG, QUEUE, Rule("batch queue file", 46, 46, 13_800_000)):
        size = find_size([row(*sorted(files))], rule).value
        assert size >= rule.least
        assert size % rule.unit == 0
        assert len(list(contradictions([row(*files)], size, rule.what))) <= MOST_NAMED + 1
