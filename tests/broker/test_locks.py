"""Queue locks: who holds a queue, until when, and who lost one."""

from __future__ import annotations

import logging

from trio_mq.broker.locks import REMEMBERED_LOSSES, QueueLocks
from trio_mq.protocol.jsondialect import MessageQueue

Q0, Q1, Q2 = (MessageQueue("T", "b", number) for number in range(3))


def test_b056_a_held_queue_is_missing_in_the_answer_to_another_client():
    """B056."""
    locks = QueueLocks()
    assert locks.lock("G", "X", [Q0, Q1], 0.0).held == (Q0, Q1)
    outcome = locks.lock("G", "Y", [Q1, Q2], 1.0)
    assert outcome.held == (Q2,)
    assert outcome.refused == ((Q1, "X"),)
    assert locks.unlock("G", "X", [Q1]) == [Q1]
    assert locks.lock("G", "Y", [Q1], 2.0).held == (Q1,)


def test_groups_do_not_disturb_each_other():
    locks = QueueLocks()
    locks.lock("G", "X", [Q0], 0.0)
    assert locks.lock("H", "Y", [Q0], 0.0).held == (Q0,)


def test_only_the_owner_unlocks():
    locks = QueueLocks()
    locks.lock("G", "X", [Q0], 0.0)
    assert locks.unlock("G", "Y", [Q0]) == []
    assert locks.unlock("G", "X", [Q1]) == []
    assert locks.unlock("nobody", "X", [Q0]) == []
    assert locks.owner("G", Q0, 1.0) == "X"


def test_a_lock_lives_sixty_seconds_and_renewal_counts():
    locks = QueueLocks()
    locks.lock("G", "X", [Q0], 0.0)
    locks.lock("G", "X", [Q0], 50.0)
    assert locks.owner("G", Q0, 110.0) == "X"
    assert locks.lock("G", "Y", [Q0], 110.0).held == ()
    assert locks.owner("G", Q0, 110.1) is None
    assert locks.lock("G", "Y", [Q0], 110.1).held == (Q0,)


def test_c109_the_broker_reports_who_lost_a_lock_and_when(caplog):
    """C109 (broker): another client takes a lock that was not renewed in time."""
    locks = QueueLocks(life_s=3.0)
    locks.lock("G", "X", [Q0], 10.0)
    with caplog.at_level(logging.WARNING, "trio_mq.broker.locks"):
        (loss,) = locks.lock("G", "Y", [Q0], 14.0).lost
    assert (loss.group, loss.queue, loss.client_id, loss.taken_by) == ("G", Q0, "X", "Y")
    assert (loss.renewed_s, loss.noticed_s) == (10.0, 14.0)
    for part in ("group G", "client X", "T queue 0", "4.0 s ago", "held by Y"):
        assert part in caplog.text
    assert list(locks.recent_losses) == [loss]


def test_c109_a_client_that_renews_too_late_hears_of_it_too(caplog):
    """C109 (broker): lock life is set below the client's period of renewal."""
    locks = QueueLocks(life_s=3.0)
    locks.lock("G", "X", [Q0], 0.0)
    outcome = locks.lock("G", "X", [Q0], 20.0)
    assert outcome.held == (Q0,)
    assert outcome.lost[0].taken_by == "X"
    assert "locks live 3.0 s" in caplog.text


def test_c109_a_scan_finds_locks_that_nobody_asks_for():
    """C109 (broker)."""
    locks = QueueLocks()
    locks.lock("G", "X", [Q0], 0.0)
    locks.lock("G", "Y", [Q1], 30.0)
    assert locks.expire(60.0) == []
    (loss,) = locks.expire(61.0)
    assert (loss.client_id, loss.taken_by) == ("X", None)
    assert locks.expire(61.0) == []
    assert locks.any_held("G", 61.0)
    assert [loss.client_id for loss in locks.expire(91.0)] == ["Y"]
    assert not locks.any_held("G", 91.0)


def test_a_group_with_a_live_lock_is_an_ordered_one():
    locks = QueueLocks()
    assert not locks.any_held("G", 0.0)
    locks.lock("G", "X", [Q0], 0.0)
    assert locks.any_held("G", 60.0)
    assert not locks.any_held("G", 60.1)


def test_a_client_that_leaves_gives_all_back():
    locks = QueueLocks()
    locks.lock("G", "X", [Q0, Q1], 0.0)
    locks.lock("G", "Y", [Q2], 0.0)
    assert locks.release_client("G", "X") == [Q0, Q1]
    assert locks.lock("G", "Y", [Q0, Q1, Q2], 1.0).held == (Q0, Q1, Q2)
    assert locks.release_client("none", "X") == []


def test_remembered_losses_are_bounded():
    locks = QueueLocks(life_s=1.0)
    for number in range(REMEMBERED_LOSSES + 5):
        locks.lock("G", f"c{number}", [Q0], 10.0 * number)
    assert len(locks.recent_losses) == REMEMBERED_LOSSES
    assert locks.recent_losses[0].client_id == "c4"


def test_the_status_tells_who_holds_which_queues():
    locks = QueueLocks(life_s=10.0)
    queues = [MessageQueue("T", "b", number) for number in (7, 0, 1, 2, 10)]
    locks.lock("G", "X", queues, 0.0)
    locks.lock("G", "X", [Q1], 4.0)
    locks.lock("G", "Y", [MessageQueue("T", "b", 5), MessageQueue("U", "b", 5)], 5.0)
    locks.lock("F", "X", [Q0], 6.0)
    assert [holder.text(9.0) for holder in locks.holders(9.0)] == [
        "F: X holds T queues 0, renewed 3 s ago",
        "G: X holds T queues 0-2,7,10, renewed 9 s ago",
        "G: Y holds T queues 5, renewed 4 s ago",
        "G: Y holds U queues 5, renewed 4 s ago",
    ]
    assert [holder.queue_ids for holder in locks.holders(12.0)] == [(0,), (1,), (5,), (5,)]
    assert locks.holders(20.0) == []
