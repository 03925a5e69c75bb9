"""The table of consumer groups: predefined ones, automatic creation, changes, forbidden topics."""

from __future__ import annotations

import attrs
import pytest

from tests import golden_stores
from trio_mq.broker.groups import GroupTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import BodyError, RequestRefused
from trio_mq.protocol import jsondialect
from trio_mq.protocol.bodies import DataVersion, SubscriptionGroupConfig
from trio_mq.testing.clock import ManualClock

SETTINGS = BrokerSettings(broker_name="b", cluster="c")


def make(**settings) -> GroupTable:
    return GroupTable(attrs.evolve(SETTINGS, **settings), ManualClock(1_000))


def test_the_groups_of_a_new_broker_are_those_of_the_release():
    value = jsondialect.loads(golden_stores.read_file("clean", "config/subscriptionGroup.json"))
    theirs = {n for n in value["subscriptionGroupTable"] if not n.startswith("Gold")}
    assert {config.group_name for config in make()} == theirs


def test_a_group_is_created_on_first_use():
    changes = []
    clock = ManualClock(7)
    table = GroupTable(SETTINGS, clock, changed=changes.append)
    assert table.get("G") is None
    config = table.obtain("G")
    assert config == SubscriptionGroupConfig("G")
    assert table.obtain("G") is table.get("G") is table.require("G") is config
    assert "G" in table
    assert changes == ["G"]
    assert (table.version, table.revision) == (DataVersion(1, 0, 7), 1)


def test_without_automatic_creation_only_groups_of_the_system():
    table = make(auto_create_subscription_group=False)
    assert table.obtain("G") is None
    assert table.obtain("CID_RMQ_SYS_MINE") is not None
    with pytest.raises(RequestRefused) as caught:
        table.require("G")
    assert caught.value.code == 26
    for part in ("G does not exist on broker b", "updateSubGroup", "autoCreateSubscriptionGroup"):
        assert part in caught.value.remark


@pytest.mark.parametrize("group", ["g" * 121, "a b", "", "G@1"])
def test_an_illegal_name_creates_nothing(group):
    table = make()
    assert table.obtain(group) is None
    with pytest.raises(RequestRefused) as caught:
        table.require(group)
    assert caught.value.code == 26
    assert "cannot be created" in caught.value.remark
    with pytest.raises(RequestRefused) as caught:
        table.update(SubscriptionGroupConfig(group))
    assert caught.value.code == 29
    assert table.revision == 0


def test_b020_the_longest_name():
    """B020."""
    assert make().update(SubscriptionGroupConfig("g" * 120))


def test_update_changes_once():
    table = make()
    assert table.update(SubscriptionGroupConfig("G", retry_max_times=3))
    assert not table.update(SubscriptionGroupConfig("G", retry_max_times=3))
    assert table.version.counter == 1
    wanted = SubscriptionGroupConfig("G", attributes={"+priority.factor": "7"})
    assert table.update(wanted)
    assert table.require("G") == SubscriptionGroupConfig("G", attributes={"priority.factor": "7"})
    with pytest.raises(RequestRefused):
        table.update(SubscriptionGroupConfig("G", attributes={"priority.factor": "7"}))


def test_delete_forgets_what_was_forbidden_too():
    table = make()
    table.obtain("G")
    table.set_readable("G", "T", readable=False)
    assert table.delete("G")
    assert not table.delete("G")
    assert not table.is_forbidden("G", "T")
    assert "G" not in table.wrapper().forbidden_table


def test_forbidden_topics():
    table = make()
    table.set_readable("G", "T", readable=False)
    table.set_readable("G", "T", readable=False)
    assert table.is_forbidden("G", "T")
    assert not table.is_forbidden("G", "U")
    assert not table.is_forbidden("H", "T")
    assert table.to_json()["forbiddenTable"] == {"G": {"T": 4}}
    assert table.revision == 1
    table.set_readable("G", "T", readable=True)
    assert not table.is_forbidden("G", "T")
    assert table.to_json()["forbiddenTable"] == {}


def test_pages():
    table = make()
    table.obtain("A")
    table.set_readable("A", "T", readable=False)
    assert list(table.page(0, 2)) == ["A", "CID_ONS-HTTP-PROXY"]
    assert list(table.wrapper(1, 1).subscription_group_table) == ["CID_ONS-HTTP-PROXY"]
    assert table.wrapper(1, 1).forbidden_table == {}
    assert table.wrapper().forbidden_table == {"A": {"T": 4}}
    assert len(table.wrapper().subscription_group_table) == len(table) == 9


# -- the file


@pytest.mark.parametrize("store", ["clean", "crash"])
def test_the_file_of_a_reference_store_is_kept_exactly(store):
    value = jsondialect.loads(golden_stores.read_file(store, "config/subscriptionGroup.json"))
    table = make()
    table.read_json(value)
    assert jsondialect.loads(jsondialect.dumps(table.to_json())) == value
    assert table.get("GoldGroup") is not None
    assert table.version.counter == 2


def test_forbidden_bits_and_unknown_fields_are_written_again():
    value = {
        "dataVersion": {"counter": 1, "stateVersion": 2, "timestamp": 3},
        "forbiddenTable": {"G": {"T": 13}, "gone": {"T": 4}},
        "newInTheFile": {"a": None, "b": 1},
        "subscriptionGroupTable": {
            "G": {
                "groupName": "G",
                "newInAGroup": "x",
                "groupRetryPolicy": {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 1}},
                "subscriptionDataSet": [{"topic": "T"}],
            }
        },
    }
    table = make()
    table.read_json(value)
    table.update(attrs.evolve(table.require("G"), retry_max_times=1))
    written = table.to_json()
    assert written["forbiddenTable"] == value["forbiddenTable"]
    assert written["newInTheFile"] == {"a": None, "b": 1}
    group = written["subscriptionGroupTable"]["G"]
    assert group["newInAGroup"] == "x"
    assert group["groupRetryPolicy"]["exponentialRetryPolicy"] == {"max": 1}
    assert list(group["subscriptionDataSet"]) == [{"topic": "T"}]
    assert group["retryMaxTimes"] == 1
    assert table.version.state_version == 2


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"subscriptionGroupTable": 1},
        {"subscriptionGroupTable": {"G": []}},
        {"subscriptionGroupTable": {"G": {"retryMaxTimes": "x"}}},
        {"forbiddenTable": {"G": 1}},
    ],
)
def test_another_shape_is_an_error_and_changes_nothing(value):
    table = make()
    before = table.to_json()
    with pytest.raises(BodyError):
        table.read_json(value)
    assert table.to_json() == before


# -- following a master


def test_a_copy_becomes_the_masters_table_at_its_version():
    master, copy, changed = make(), make(), []
    copy.following, copy.changed = True, changed.append
    master.obtain("A")
    master.obtain("B")
    master.set_readable("B", "T", readable=False)
    copy.obtain("own")  # a consumer that was here first
    assert copy.version == DataVersion()
    changed.clear()
    assert copy.take_over(jsondialect.loads(jsondialect.dumps(master.to_json()))) == 3
    assert sorted(changed) == ["A", "B", "own"]
    assert copy.to_json() == master.to_json()
    assert copy.is_forbidden("B", "T")
    revision = copy.revision
    assert copy.take_over(master.to_json()) == 0
    assert copy.revision == revision
    master.set_readable("B", "T", readable=True)
    copy.take_over(master.to_json())
    assert not copy.is_forbidden("B", "T")
    assert copy.revision > revision


def test_groups_of_every_broker_stay_in_a_copy():
    copy = make()
    copy.take_over({"subscriptionGroupTable": {}})
    assert "CID_RMQ_SYS_TRANS" in copy
    before = copy.to_json()
    with pytest.raises(BodyError):
        copy.take_over({"subscriptionGroupTable": {"G": {"brokerId": "x"}}})
    assert copy.to_json() == before
