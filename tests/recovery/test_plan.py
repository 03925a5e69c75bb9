"""What a start decides, as a function of what it found."""

from __future__ import annotations

import attrs
import pytest

from trio_mq.protocol.layout import Checkpoint
from trio_mq.protocol.verdict import Torn, Verdict, Whole
from trio_mq.recovery.indexscan import IndexSpan, IndexState
from trio_mq.recovery.plan import (
    FOREIGN_LAG_MS,
    Found,
    earlier,
    end_without_log,
    is_boundary,
    plan_end,
    plan_start,
)
from trio_mq.recovery.scan import QueueTail

SIZE = 1000
SEGMENTS = (1000, 2000, 3000, 4000)
MINUTE_MS = 60_000
BASE_MS = 1_700_000_000_000


def first(offset: int, ms: int) -> Verdict:
    return Whole(100, "T", 0, 0, offset, 0, ms, 0, 0, b"")


def checkpoint(ms: int, index_ms: int = 0) -> Checkpoint:
    """A checkpoint that says: everything stored up to `ms` is on the disk."""
    return Checkpoint(ms + 3000, ms + 3000, index_ms)


def tail(indexed_to: int, *, hole: bool = False) -> QueueTail:
    return QueueTail(0, indexed_to - 100, indexed_to, 0, hole)


#: A crash under Apache: no marks; segments begin a quarter of an hour after each other.
CRASH = Found(
    clean=False,
    checkpoint=checkpoint(BASE_MS + 50 * MINUTE_MS),
    segments=SEGMENTS,
    segment_bytes=SIZE,
    tails=(tail(4500),),
    first_records={s: first(s, BASE_MS + 15 * n * MINUTE_MS) for n, s in enumerate(SEGMENTS)},
)


def begin(**changes: object) -> int:
    return plan_start(attrs.evolve(CRASH, **changes)).walk_from


def test_the_last_segment_that_is_older_than_the_checkpoint():
    assert begin() == 4000
    assert begin(checkpoint=checkpoint(BASE_MS + 44 * MINUTE_MS)) == 3000
    assert begin(checkpoint=checkpoint(BASE_MS - 1)) == 1000


def test_apaches_checkpoint_is_not_believed_to_the_minute():
    edge = BASE_MS + 45 * MINUTE_MS
    assert begin(checkpoint=checkpoint(edge + FOREIGN_LAG_MS)) == 4000
    assert begin(checkpoint=checkpoint(edge + FOREIGN_LAG_MS - 1)) == 3000
    assert begin(checkpoint=checkpoint(edge), clean=True) == 4000


def test_not_behind_what_the_queues_have():
    assert begin(tails=(tail(2700),)) == 2000
    assert begin(tails=(tail(500),)) == 1000
    assert begin(tails=()) == 1000
    assert begin(tails=(tail(2700), tail(4100))) == 4000


@pytest.mark.parametrize("verdict", [Torn("cut"), first(4000, 0)])
def test_a_segment_that_begins_with_no_record_is_no_start(verdict: Verdict):
    assert begin(first_records={**CRASH.first_records, 4000: verdict}) == 3000


def test_without_times_the_queues_progress_counts_less_a_segment():
    assert begin(checkpoint=Checkpoint()) == 3000
    assert begin(checkpoint=Checkpoint(), tails=(tail(1500),)) == 1000


def test_a_safe_offset_is_where_to_begin():
    assert begin(safe_offset=4400) == 4400
    assert begin(safe_offset=4400, clean=True) == 4400
    assert begin(safe_offset=4600) == 4000, "queues have lost what was said to be safe"
    assert begin(safe_offset=5000, last_indexed=4400, tails=(tail(4500),)) == 4500


def test_a_recovery_that_did_not_end_is_gone_on_with():
    assert begin(replay_from=2345) == 2345
    assert begin(replay_from=2345, safe_offset=4400) == 2345
    assert begin(replay_from=0) == 1000, "the file expired meanwhile"


def test_a_clean_stop_needs_the_last_record_only():
    assert begin(clean=True, last_indexed=4400) == 4400
    assert begin(clean=True, last_indexed=None) == 4000


def test_a_hole_in_a_queue_leads_back():
    assert begin(tails=(tail(4500), tail(2100, hole=True))) == 2000
    assert begin(tails=(tail(4500), tail(4100, hole=True)), safe_offset=4050) == 4050
    assert begin(tails=(tail(4500), tail(-1, hole=True))) == 1000


def index_from(
    clean: bool = False, safe: int = 0, index_ms: int = 0, **state: object
) -> int | None:
    spans = (
        IndexSpan(1100, 2100, BASE_MS + 10 * MINUTE_MS),
        IndexSpan(2200, 4300, BASE_MS + 40 * MINUTE_MS),
    )
    found = attrs.evolve(
        CRASH,
        clean=clean,
        last_indexed=4400 if clean else None,
        safe_offset=safe,
        checkpoint=checkpoint(BASE_MS + 50 * MINUTE_MS, index_ms),
        index=IndexState(**{"spans": spans, **state}),
    )
    plan = plan_start(found)
    assert plan.index_from is None or plan.walk_from <= plan.index_from
    return plan.index_from


def test_the_index_is_kept_after_a_clean_stop():
    assert index_from(clean=True) is None
    assert index_from(clean=True, whole_to=2100) == 2100
    assert index_from(clean=True, whole_to=-1, spans=()) == 1000
    assert index_from(clean=True, foreign=True) == 1000


def test_the_index_is_made_again_from_where_it_may_lack_keys():
    assert index_from() == 1100
    assert index_from(index_ms=BASE_MS + 20 * MINUTE_MS) == 2200
    assert index_from(index_ms=BASE_MS + 45 * MINUTE_MS) == 4300
    assert index_from(safe=4400) == 4400
    assert index_from(safe=4400, whole_to=2100) == 2100
    assert index_from(safe=4400, foreign=True) == 1000
    assert plan_start(CRASH).index_from is None


def test_what_a_walk_may_begin_with():
    found = attrs.evolve(CRASH, last_indexed=4400)
    assert is_boundary(found, 4500)
    assert is_boundary(found, 3000)
    assert not is_boundary(found, 4400 + 1)
    assert not is_boundary(CRASH, 4500)


def test_looking_further_back():
    assert earlier(SEGMENTS, 4400, 1) == 4000
    assert earlier(SEGMENTS, 4000, 1) == 3000
    assert earlier(SEGMENTS, 4000, 2) == 2000
    assert earlier(SEGMENTS, 2000, 8) == 1000
    assert earlier(SEGMENTS, 500, 1) == 1000


def test_the_end():
    plain = plan_end(CRASH, 4500, 4500, None)
    assert (plain.log_end, plain.cut_bytes, plain.reason, plain.index_to) == (4500, 0, None, None)
    torn = plan_end(CRASH, 4500, 4540, "at offset 4500: torn")
    assert (torn.cut_bytes, torn.reason) == (40, "at offset 4500: torn")
    lost = plan_end(CRASH, 4500, 4900, None)
    assert lost.cut_bytes == 400
    assert "nothing was written here" in (lost.reason or "")


def test_an_index_that_knows_more_than_the_log_is_cut():
    found = attrs.evolve(CRASH, index=IndexState((IndexSpan(1100, 4600, BASE_MS),)))
    assert plan_end(found, 4600, 4600, None).index_to == 4600
    assert plan_end(found, 4700, 4700, None).index_to is None


def test_a_log_without_files_goes_on_behind_everything():
    found = Found(False, Checkpoint(), (), SIZE)
    assert end_without_log(found) == 0
    assert end_without_log(attrs.evolve(found, tails=(tail(4500), tail(300)))) == 5000
    assert end_without_log(attrs.evolve(found, tails=(tail(5000),))) == 5000
