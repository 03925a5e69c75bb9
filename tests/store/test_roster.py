"""The list of queues, written by a worker thread while the loop deletes topics."""

from __future__ import annotations

import pytest

from trio_mq.store.roster import Bounds, QueueRoster
from trio_mq.testing.disk import MemoryDisk

OURS = {("T", 0): Bounds(0, 3), ("U", 0): Bounds(0, 2)}


@pytest.fixture
def roster():
    disk = MemoryDisk()
    disk.make_dirs("store")
    return QueueRoster(disk, "store")


def read(roster):
    """What the next start sees."""
    again = QueueRoster(roster.disk, "store")
    again.load()
    return again.listed, again.deleted


def test_a_deletion_takes_a_topic_off_the_list(roster):
    roster.save(OURS)
    roster.delete("T", 700)
    assert read(roster) == ({("U", 0): Bounds(0, 2)}, {"T": 700})


def test_what_is_deleted_while_a_list_is_written_stays_deleted(roster, monkeypatch):
    """The thread has written its file and not renamed it yet."""
    roster.save(OURS)
    really, deleted = roster._write, []

    def write(path, data, *, durable):
        really(path, data, durable=durable)
        if durable and not deleted:
            deleted.append("T")
            roster.delete("T", 700)

    monkeypatch.setattr(roster, "_write", write)
    roster.save({**OURS, ("V", 0): Bounds()})
    assert read(roster) == ({("U", 0): Bounds(0, 2), ("V", 0): Bounds()}, {"T": 700})
    assert roster.listed == read(roster)[0]


def test_what_is_deleted_before_a_list_is_written_stays_deleted(roster):
    """The list was made on the loop, and the thread begins later."""
    as_of = roster.deletions
    roster.delete("T", 700)
    roster.save(OURS, as_of=as_of)
    assert read(roster) == ({("U", 0): Bounds(0, 2)}, {"T": 700})


def test_a_topic_that_was_made_again_is_listed_again(roster):
    roster.delete("T", 700)
    roster.save(OURS, as_of=roster.deletions)
    assert read(roster) == (OURS, {"T": 700})


def test_queues_that_began_later_stay_on_the_list(roster):
    roster.save({**OURS, ("T", 1): Bounds(0, 1)})
    roster.delete("T", 700, but={("T", 1)})
    assert read(roster) == ({("U", 0): Bounds(0, 2), ("T", 1): Bounds(0, 1)}, {"T": 700})
    roster.delete("T", 500)
    assert read(roster) == ({("U", 0): Bounds(0, 2)}, {"T": 700})


def test_a_log_that_ends_before_a_deletion_limits_it(roster):
    roster.save(OURS)
    roster.delete("T", 700)
    assert not roster.cut_back(700)
    assert roster.cut_back(600)
    roster.save(OURS)
    assert read(roster)[1] == {"T": 600}
