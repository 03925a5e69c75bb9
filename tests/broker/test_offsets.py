"""Consumer offsets: commits, pending resets, the end of a damaged queue, and the file."""

from __future__ import annotations

import logging

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import golden_stores
from trio_mq.broker.offsets import Clamped, Commit, ConsumerOffsets, split_key
from trio_mq.config import BrokerSettings
from trio_mq.errors import BodyError
from trio_mq.protocol import bodies, jsondialect
from trio_mq.testing.clock import ManualClock

SETTINGS = BrokerSettings(broker_name="b")


def make(**settings) -> ConsumerOffsets:
    return ConsumerOffsets(attrs.evolve(SETTINGS, **settings), ManualClock(1_000))


def test_commit_and_query():
    offsets = make()
    assert offsets.query("G", "T", 0) is None
    assert offsets.commit("G", "T", 0, 5) is Commit.STORED
    assert offsets.query("G", "T", 0) == 5
    assert offsets.query("G", "T", 1) is None
    assert offsets.query("G", "U", 0) is None
    assert offsets.of("G", "T") == {0: 5}
    assert offsets.of("H", "T") == {}


def test_queues_that_were_read_had_messages():
    offsets = make()
    offsets.commit("G", "T", 0, 5)
    offsets.commit("H", "T", 0, 6)
    offsets.commit("G", "U", 3, 1)
    offsets.commit("G", "V", 0, 0)
    assert offsets.read_queues() == {("T", 0), ("U", 3)}


def test_a_commit_may_go_back_and_is_reported(caplog):
    offsets = make()
    offsets.commit("G", "T", 0, 5)
    assert offsets.commit("G", "T", 0, 3, client="10.0.0.1:7") is Commit.WENT_BACK
    assert offsets.query("G", "T", 0) == 3
    for part in ("group G", "T queue 0", "5 to 3", "10.0.0.1:7"):
        assert part in caplog.text


def test_only_changes_have_to_be_saved():
    offsets = make()
    offsets.commit("G", "T", 0, 5)
    revision = offsets.revision
    assert offsets.commit("G", "T", 0, 5) is Commit.STORED
    assert offsets.revision == revision
    offsets.commit("G", "T", 0, 6)
    assert offsets.revision > revision


def test_the_version_changes_every_five_hundred_commits():
    offsets = make()
    for offset in range(499):
        offsets.commit("G", "T", 0, offset)
    assert offsets.version.counter == 0
    offsets.commit("G", "T", 0, 499)
    assert (offsets.version.counter, offsets.version.timestamp) == (1, 1_000)
    quick = make(consumer_offset_update_version_step=1)
    quick.commit("G", "T", 0, 1)
    assert quick.version.counter == 1


def test_pull_offsets_fall_back_to_stored_ones():
    offsets = make()
    assert offsets.pull_offset("G", "T", 0) is None
    offsets.commit("G", "T", 0, 5)
    assert offsets.pull_offset("G", "T", 0) == 5
    offsets.pulled("G", "T", 0, 9)
    assert offsets.pull_offset("G", "T", 0) == 9
    assert offsets.query("G", "T", 0) == 5


# -- resets


def test_b105_commits_are_ignored_until_the_next_pull_took_the_reset():
    """B105."""
    offsets = make()
    offsets.commit("G", "T", 0, 50)
    offsets.assign_reset("G", "T", 0, 7)
    assert offsets.pending_reset("G", "T", 0) == 7
    assert offsets.commit("G", "T", 0, 60) is Commit.IGNORED
    assert offsets.commit("G", "T", 1, 60) is Commit.STORED
    assert offsets.query("G", "T", 0) == 7
    assert offsets.take_reset("G", "T", 0) == 7
    assert offsets.take_reset("G", "T", 0) is None
    assert offsets.pending_reset("G", "T", 0) is None
    assert offsets.query("G", "T", 0) == 7
    assert offsets.commit("G", "T", 0, 8) is Commit.STORED


def test_b108_the_last_reset_wins():
    """B108."""
    offsets = make()
    offsets.assign_reset("G", "T", 0, 3)
    offsets.assign_reset("G", "T", 0, 5)
    assert offsets.take_reset("G", "T", 0) == 5


def test_c115_a_reset_of_an_offline_group_is_stored():
    """C115 (table): nobody pulls, the stored offset changes and is saved."""
    offsets = make()
    revision = offsets.revision
    offsets.assign_reset("G", "T", 0, 5)
    assert offsets.to_json()["offsetTable"] == {"T@G": {0: 5}}
    assert offsets.revision > revision


def test_resets_can_be_switched_off():
    offsets = make(use_server_side_reset_offset=False)
    offsets.assign_reset("G", "T", 0, 7)
    assert offsets.pending_reset("G", "T", 0) is None
    assert offsets.take_reset("G", "T", 0) is None
    assert offsets.commit("G", "T", 0, 60) is Commit.STORED
    assert offsets.query("G", "T", 0) == 60


# -- after damage


def test_c052_progress_ahead_of_the_log_is_taken_back(caplog):
    """C052: stored 500, the queue ends at 450 after truncation."""
    offsets = make()
    offsets.commit("G", "T", 0, 500)
    offsets.commit("H", "T", 0, 450)
    revision = offsets.revision
    with caplog.at_level(logging.WARNING, "trio_mq.broker.offsets"):
        found = offsets.clamp_all(lambda topic, queue_id: 450)
    assert found == [Clamped("G", "T", 0, 500, 450)]
    assert offsets.query("G", "T", 0) == offsets.query("H", "T", 0) == 450
    assert offsets.revision > revision
    for part in ("group G", "T queue 0", "500", "450"):
        assert part in caplog.text
    assert offsets.clamp_all(lambda topic, queue_id: 450) == []


def test_c052_a_queue_that_nobody_knows_is_left_alone():
    """C052: no statement about a queue is no reason to lose its offset."""
    offsets = make()
    offsets.commit("G", "T", 0, 500)
    offsets.read_json({"offsetTable": {"T@G": {"0": 500}, "odd@key@here": {"0": 9}}})
    assert offsets.clamp_all(lambda topic, queue_id: None) == []
    assert offsets.clamp("G", "T", 1, 0) is None
    assert offsets.clamp("H", "T", 0, 0) is None
    assert offsets.query("G", "T", 0) == 500


# -- topics and groups


def test_topics_groups_clone_and_removal():
    offsets = make()
    for group, topic in (("G", "T"), ("G", "%RETRY%G"), ("H", "T")):
        offsets.commit(group, topic, 0, 1)
        offsets.pulled(group, topic, 0, 2)
        offsets.assign_reset(group, topic, 1, 3)
    assert offsets.topics_of("G") == ["%RETRY%G", "T"]
    assert offsets.groups_of("T") == ["G", "H"]
    offsets.clone("G", "N", "T")
    offsets.clone("nobody", "M", "T")
    offsets.commit("G", "T", 0, 9)
    assert offsets.of("N", "T") == {0: 1, 1: 3}
    assert offsets.of("M", "T") == {}
    assert offsets.remove_topic("T")
    assert not offsets.remove_topic("T")
    assert offsets.topics_of("G") == ["%RETRY%G"]
    assert offsets.pending_reset("G", "T", 1) is None
    assert offsets.pull_offset("G", "T", 0) is None
    assert offsets.remove_group("G")
    assert not offsets.remove_group("G")
    assert offsets.to_json()["offsetTable"] == {}


def test_a_name_inside_another_is_not_removed_with_it():
    offsets = make()
    offsets.commit("Group", "Topic", 0, 1)
    offsets.remove_topic("Top")
    offsets.remove_group("Gro")
    assert offsets.query("Group", "Topic", 0) == 1


def test_keys():
    assert split_key("T@G") == ("T", "G")
    assert split_key("%RETRY%G@G") == ("%RETRY%G", "G")
    for odd in ("T", "T@", "@G", "a@b@c", "@", ""):
        assert split_key(odd) is None


# -- the file


@pytest.mark.parametrize("store", ["clean", "crash"])
def test_the_file_of_a_reference_store_is_kept(store):
    value = jsondialect.loads(golden_stores.read_file(store, "config/consumerOffset.json"))
    offsets = make()
    offsets.read_json(value)
    written = jsondialect.loads(jsondialect.dumps(offsets.to_json()))
    del value["groupTopicMap"]  # made from the keys, by those who want it
    assert written == value
    assert offsets.query("GoldFailing", "GoldRetry", 0) == 3
    assert offsets.topics_of("GoldGroup") == ["GoldBatch", "GoldNormal"]
    assert offsets.revision == 0


def test_queue_ids_are_written_without_quotes():
    offsets = make()
    offsets.commit("G", "T", 0, 5)
    offsets.commit("G", "T", 11, 6)
    assert b'"offsetTable":{"T@G":{0:5,11:6}}' in jsondialect.dumps(offsets.to_json())


def test_odd_keys_are_reported_and_kept(caplog):
    offsets = make()
    offsets.read_json({"offsetTable": {"a@b@c": {"0": 1}, "T@G": {"0": 2}}, "newField": 3})
    assert "'a@b@c'" in caplog.text
    assert offsets.to_json()["offsetTable"] == {"a@b@c": {0: 1}, "T@G": {0: 2}}
    assert offsets.to_json()["newField"] == 3
    assert offsets.topics_of("G") == ["T"]
    offsets.remove_topic("a")
    assert "a@b@c" in offsets.to_json()["offsetTable"]


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"offsetTable": 1},
        {"offsetTable": {"T@G": 1}},
        {"offsetTable": {"T@G": {"x": 1}}},
        {"offsetTable": {"T@G": {"0": None}}},
    ],
)
def test_another_shape_is_an_error_and_changes_nothing(value):
    offsets = make()
    offsets.commit("G", "T", 0, 5)
    before = jsondialect.dumps(offsets.to_json())
    with pytest.raises(BodyError):
        offsets.read_json(value)
    assert jsondialect.dumps(offsets.to_json()) == before


def test_what_peers_get_is_a_copy():
    offsets = make()
    offsets.commit("G", "T", 0, 5)
    wrapper = offsets.wrapper()
    offsets.commit("G", "T", 0, 6)
    assert wrapper.offset_table == {"T@G": {0: 5}}


NAMES = st.text("abc%_-|", min_size=1, max_size=6)


@given(st.dictionaries(st.tuples(NAMES, NAMES), st.dictionaries(st.integers(0, 9), st.integers(0))))
def test_any_table_survives_its_file(table):
    offsets = make()
    for (topic, group), queues in table.items():
        for queue_id, offset in queues.items():
            offsets.commit(group, topic, queue_id, offset % 2**63)
    again = make()
    again.read_json(jsondialect.loads(jsondialect.dumps(offsets.to_json())))
    assert again.to_json() == offsets.to_json()


# -- following a master


def copy_of(*offsets, version=(1, 1_000), **settings):
    """A copy that has taken this over already: (group, offset) in queue 0 of T."""
    copy = make(**settings)
    copy.following = True
    copy.take_over(answer(*offsets, version=version), returned=True)
    return copy


def answer(*offsets, version=(1, 1_000), queue_id=0):
    counter, timestamp = version
    return {
        "dataVersion": {"counter": counter, "stateVersion": 0, "timestamp": timestamp},
        "offsetTable": {f"T@{group}": {queue_id: offset} for group, offset in offsets},
    }


def test_a_copy_is_where_the_master_says_forward_and_back():
    copy = copy_of(("G", 5), ("H", 7))
    assert copy.take_over(answer(("G", 9), ("H", 2), version=(1, 1_000)), returned=False)
    assert (copy.query("G", "T", 0), copy.query("H", "T", 0)) == (9, 2)
    assert (copy.version.counter, copy.version.timestamp) == (1, 1_000)


def test_what_the_master_does_not_have_stays():
    copy = copy_of(("G", 5))
    copy.take_over(answer(("H", 7)), returned=False)
    assert (copy.query("G", "T", 0), copy.query("H", "T", 0)) == (5, 7)


def test_commits_at_a_copy_survive_a_master_that_returns():
    copy = copy_of(("G", 50), ("H", 50))
    copy.commit("G", "T", 0, 70)
    # it comes back without its last commits, and later without news of the group
    for theirs in (45, 45, 60):
        copy.take_over(answer(("G", theirs), ("H", theirs)), returned=theirs == 45)
        assert (copy.query("G", "T", 0), copy.query("H", "T", 0)) == (70, theirs)
    # the consumers have told it themselves: from here on it leads again
    copy.take_over(answer(("G", 71)), returned=False)
    copy.take_over(answer(("G", 30)), returned=True)
    assert copy.query("G", "T", 0) == 30


def test_commits_at_a_copy_survive_its_own_restart():
    copy = copy_of(("G", 50))
    copy.commit("G", "T", 0, 70)
    copy.commit("N", "T", 0, 3)
    again = make()
    again.read_json(jsondialect.loads(jsondialect.dumps(copy.to_json())))
    again.following = True
    again.take_over(answer(("G", 45), ("N", 0)), returned=True)
    assert (again.query("G", "T", 0), again.query("N", "T", 0)) == (70, 3)
    # promoted, it keeps no account of a master
    again.following = False
    assert "keptOffsets" not in again.to_json()


def test_a_master_that_stays_may_set_a_group_back_whatever_was_committed_here():
    copy = copy_of(("G", 50))
    copy.commit("G", "T", 0, 70)
    copy.take_over(answer(("G", 52)), returned=False)
    assert copy.query("G", "T", 0) == 70
    copy.take_over(answer(("G", 20)), returned=False)  # mqadmin resetOffsetByTime
    assert copy.query("G", "T", 0) == 20


def test_nothing_goes_back_to_a_state_before():
    copy = copy_of(("G", 50), ("H", 50), version=(7, 2_000))
    assert not copy.take_over(answer(("G", 40), ("H", 60), version=(6, 1_500)), returned=True)
    assert (copy.query("G", "T", 0), copy.query("H", "T", 0)) == (50, 60)
    assert copy.version.counter == 7
    # when it has caught up it leads again
    copy.take_over(answer(("G", 45), version=(7, 3_000)), returned=False)
    assert copy.query("G", "T", 0) == 50
    copy.take_over(answer(("G", 55), version=(8, 3_000)), returned=False)
    assert copy.query("G", "T", 0) == 55


def test_commits_at_a_copy_make_no_version():
    copy = copy_of(("G", 5), consumer_offset_update_version_step=1)
    copy.commit("G", "T", 0, 6)
    assert (copy.version.counter, copy.version.timestamp) == (1, 1_000)


def test_a_copy_has_to_be_saved_only_when_something_changed():
    copy = copy_of(("G", 5))
    revision = copy.revision
    copy.take_over(answer(("G", 5)), returned=False)
    assert copy.revision == revision
    copy.take_over(answer(("G", 6)), returned=False)
    assert copy.revision > revision


def test_light_queues_of_a_master_have_a_table_of_their_own():
    copy = make()
    value = {"lmqOffsetTable": {"%LMQ%q@%LMQ%q": 5}}
    copy.take_over(value, returned=True)
    assert copy.query("%LMQ%q", "%LMQ%q", 0) == 5


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {"offsetTable": 1},
        {"offsetTable": {"T@G": {"x": 1}}},
        {"offsetTable": {"T@G": {0: float("inf")}}},
        {"offsetTable": {"T@G": {0: 2**63}}},
        {"offsetTable": {"T@G": [1]}},
    ],
)
def test_an_answer_that_is_no_table_changes_nothing(bad):
    copy = copy_of(("G", 5))
    before = copy.to_json()
    with pytest.raises(BodyError):
        copy.take_over(bad, returned=True)
    assert copy.to_json() == before


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.dictionaries(st.integers(0, 999), st.integers(-1, 2**62)),
        max_size=8,
    )
)
def test_what_slaves_are_told_is_what_peers_write(table):
    offsets = make()
    offsets.read_json({"offsetTable": table})
    assert offsets.encoded() == bodies.encode(offsets.wrapper())
