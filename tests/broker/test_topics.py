"""The table of topics: what is there at the start, what a send creates, what an administrator may do."""

from __future__ import annotations

import attrs
import pytest

from tests import golden_stores
from trio_mq.broker.topics import MAX_QUEUES, TopicTable
from trio_mq.config import BrokerSettings
from trio_mq.errors import BodyError, RequestRefused
from trio_mq.protocol import jsondialect
from trio_mq.protocol.bodies import DataVersion, TopicConfig
from trio_mq.testing.clock import ManualClock

SETTINGS = BrokerSettings(broker_name="broker-gold", cluster="DefaultCluster")


def make(**settings) -> TopicTable:
    return TopicTable(attrs.evolve(SETTINGS, **settings), ManualClock(1_000))


def refused(code, call, *args, **kwargs) -> str:
    with pytest.raises(RequestRefused) as caught:
        call(*args, **kwargs)
    assert caught.value.code == code
    return caught.value.remark


# -- at the start


def test_the_topics_of_a_new_broker_are_those_of_the_release():
    value = jsondialect.loads(golden_stores.read_file("clean", "config/topics.json"))
    theirs = {
        name: (item["readQueueNums"], item["writeQueueNums"], item["perm"])
        for name, item in value["topicConfigTable"].items()
        if not name.startswith(("Gold", "%RETRY%"))
    }
    ours = {t.topic_name: (t.read_queue_nums, t.write_queue_nums, t.perm) for t in make()}
    assert ours == theirs


def test_settings_decide_on_templates_and_trace():
    table = make(
        auto_create_topic_enable=False,
        cluster_topic_enable=False,
        broker_topic_enable=False,
        trace_topic_enable=True,
    )
    assert "TBW102" not in table
    assert table.require("DefaultCluster").perm == 1
    assert table.require("broker-gold").perm == 1
    assert table.require("RMQ_SYS_TRACE_TOPIC").read_queue_nums == 1
    assert make(default_topic_queue_nums=3).require("TBW102").write_queue_nums == 3
    assert "rmq_sys_wheel_timer" not in TopicTable(SETTINGS, ManualClock(), timer=False)


def test_which_topics_are_the_brokers_own():
    table = make()
    for topic in ("TBW102", "broker-gold", "DefaultCluster_REPLY_TOPIC", "rmq_sys_x"):
        assert table.is_system(topic)
    assert not table.is_system("Orders")
    assert "broker-gold" in table.system_names
    assert table.system_names == sorted(table.system_names)


def test_a_missing_topic():
    remark = refused(17, make().require, "T")
    assert "topic T does not exist on broker broker-gold" in remark
    assert make().get("T") is None


# -- created by a send


def test_b009_a_first_send_creates_the_topic_after_the_template():
    """B009: min(4 wanted, 8 of TBW102) queues, permission without inherit."""
    changes = []
    clock = ManualClock(5_000)
    table = TopicTable(SETTINGS, clock, changed=changes.append)
    config = table.for_send("T", "TBW102", 4)
    assert config == TopicConfig("T", 4, 4, 6)
    assert type(config.perm) is int
    assert table.for_send("T", "TBW102", 9) is config
    assert changes == ["T"]
    assert table.version == DataVersion(1, 0, 5_000)
    assert table.revision == 1


def test_the_template_limits_the_queues_and_negative_means_none():
    assert make().for_send("T", "TBW102", 100).write_queue_nums == 8
    assert make().for_send("T", "TBW102", -1).write_queue_nums == 0
    assert make().for_send("T", "broker-gold", 4).write_queue_nums == 1
    assert make().for_send("T", "DefaultCluster", 100).write_queue_nums == 16


def test_unit_mode_marks_the_topic():
    assert make().for_send("T", "TBW102", 4, unit_mode=True).topic_sys_flag == 1
    assert make().for_send("%RETRY%G", "TBW102", 4, unit_mode=True).topic_sys_flag == 2


def test_c103_without_automatic_creation_the_refusal_says_what_to_do(caplog):
    """C103 (broker): code 17, how to create the topic, which setting, and no log for each try."""
    table = make(auto_create_topic_enable=False)
    for _ in range(3):
        remark = refused(17, table.for_send, "Orders", "TBW102", 4)
    for part in ("Orders", "broker-gold", "autoCreateTopicEnable", "mqadmin updateTopic"):
        assert part in remark
    assert "-t Orders" in remark
    assert caplog.text == ""


def test_c103_a_template_saved_by_an_earlier_run_does_not_count():
    """C103: topics.json has TBW102, automatic creation is switched off later."""
    table = make(auto_create_topic_enable=False)
    table.read_json({"topicConfigTable": {"TBW102": {"perm": 7, "topicName": "TBW102"}}})
    refused(17, table.for_send, "Orders", "TBW102", 4)


def test_other_reasons_not_to_create():
    table = make()
    table.update(TopicConfig("Plain", perm=6), None)
    assert "without 1 (inherit)" in refused(17, table.for_send, "T", "Plain", 4)
    assert "template topic None does not" not in refused(17, table.for_send, "T", "Nope", 4)
    assert "Nope does not exist" in refused(17, table.for_send, "T", "Nope", 4)


def test_b018_b019_illegal_and_forbidden_names_come_first():
    """B018, B019."""
    table = make()
    refused(29, table.for_send, "a b", "TBW102", 4)
    refused(29, table.for_send, "a" * 128, "TBW102", 4)
    refused(16, table.for_send, "SELF_TEST_TOPIC", "TBW102", 4)


@pytest.mark.parametrize("length", [127, 128, 255])
def test_c133_one_limit_for_creating_and_sending(length):
    """C133: 127 is fine everywhere, 128 and 255 nowhere, and the remark has both numbers."""
    name = "t" * length
    table = make()
    if length == 127:
        assert table.for_send(name, "TBW102", 4).topic_name == name
        assert not table.update(table.require(name), None)
        return
    for remark in (
        refused(29, table.for_send, name, "TBW102", 4),
        refused(29, table.update, TopicConfig(name), None),
    ):
        assert f"{length} characters" in remark
        assert "at most 127" in remark


def test_a_retry_topic_is_created_even_if_nothing_else_is():
    table = make(auto_create_topic_enable=False)
    assert table.for_send("%RETRY%G", "TBW102", 4) == TopicConfig("%RETRY%G", 1, 1, 6)


def test_create_retry_keeps_what_is_there_but_for_the_order_mark():
    table = make()
    assert table.create_retry("%RETRY%G", 2, unit_sub=True).topic_sys_flag == 2
    assert table.create_retry("%RETRY%G", 5).read_queue_nums == 2
    assert table.revision == 1
    assert table.create_retry("%RETRY%G", 5, order=True).order
    assert table.is_ordered("%RETRY%G")
    assert table.create_retry("%RETRY%G", 5, order=True).read_queue_nums == 2
    assert table.revision == 2
    assert not table.is_ordered("nothing")


def test_create_if_absent():
    table = make()
    config = TopicConfig("TRANS_CHECK_MAX_TIME_TOPIC", 1, 1)
    assert table.create_if_absent(config) == config
    assert table.create_if_absent(attrs.evolve(config, read_queue_nums=9)) == config


# -- administered


def test_update_creates_then_changes_then_does_nothing():
    changes = []
    clock = ManualClock(1)
    table = TopicTable(SETTINGS, clock, changed=changes.append)
    assert table.update(TopicConfig("T", 4, 4), "+message.type=FIFO")
    clock.set(2)
    assert table.update(TopicConfig("T", 8, 8), None)
    assert table.require("T") == TopicConfig("T", 8, 8, attributes={"message.type": "FIFO"})
    before = table.version, table.revision
    assert not table.update(TopicConfig("T", 8, 8), "+message.type=FIFO")
    assert (table.version, table.revision) == before == (DataVersion(2, 0, 2), 2)
    assert changes == ["T", "T"]


def test_what_update_refuses():
    table = make()
    refused(29, table.update, TopicConfig("a b"), None)
    refused(29, table.update, TopicConfig("TBW102"), None)
    refused(29, table.update, TopicConfig("rmq_sys_mine"), None)
    assert "65536" in refused(29, table.update, TopicConfig("T", MAX_QUEUES + 1), None)
    refused(29, table.update, TopicConfig("T", 4, -1), None)
    refused(29, table.update, TopicConfig("T", perm=16), None)
    refused(29, table.update, TopicConfig("T", topic_filter_type="NO_TAG"), None)
    assert "enableMixedMessageType" in refused(
        29, table.update, TopicConfig("T"), "+message.type=MIXED"
    )
    refused(1, table.update, TopicConfig("T"), "+no.such=1")
    assert "T" not in table
    assert make(enable_mixed_message_type=True).update(TopicConfig("T"), "+message.type=MIXED")
    assert make(validate_system_topic=False).update(TopicConfig("TBW102", perm=6), None)


def test_delete():
    changes = []
    table = TopicTable(SETTINGS, ManualClock(), changed=changes.append)
    table.for_send("T", "TBW102", 4)
    assert table.delete("T")
    assert "T" not in table
    assert not table.delete("T")
    assert changes == ["T", "T"]
    assert table.version.counter == 2
    refused(29, table.delete, "TBW102")
    refused(29, table.delete, " ")
    refused(29, table.delete, "../commitlog")
    refused(29, table.delete, "..")


def test_pages_and_wrapper():
    table = make()
    everything = sorted(config.topic_name for config in table)
    assert list(table.page(0, 5)) == everything[:5]
    assert list(table.page(5, 1000)) == everything[5:]
    assert len(table) == len(everything)
    assert table.wrapper().topic_config_table.keys() == set(everything)
    one = table.wrapper({"TBW102": table.require("TBW102")})
    assert list(one.topic_config_table) == ["TBW102"]
    assert one.data_version == table.version


# -- the file


@pytest.mark.parametrize("store", ["clean", "crash"])
def test_the_file_of_a_reference_store_is_kept_exactly(store):
    value = jsondialect.loads(golden_stores.read_file(store, "config/topics.json"))
    table = make()
    table.read_json(value)
    assert jsondialect.loads(jsondialect.dumps(table.to_json())) == value
    assert table.require("GoldBCQ").attributes == {"queue.type": "BatchCQ"}
    assert table.version.counter == 10
    assert table.revision == 0


def test_fields_that_we_do_not_know_are_written_again():
    table = make()
    table.read_json(
        {
            "dataVersion": {"counter": 4, "stateVersion": 0, "timestamp": 9},
            "newInTheFile": [1],
            "topicConfigTable": {"T": {"topicName": "T", "perm": 6, "newInATopic": {"x": 1}}},
        }
    )
    table.update(TopicConfig("T", 3, 3), None)
    written = table.to_json()
    assert written["newInTheFile"] == [1]
    assert written["topicConfigTable"]["T"]["newInATopic"] == {"x": 1}
    assert written["topicConfigTable"]["T"]["readQueueNums"] == 3
    assert written["dataVersion"]["counter"] == 5
    table.delete("T")
    table.for_send("T", "TBW102", 4)
    assert "newInATopic" not in table.to_json()["topicConfigTable"]["T"]


def test_a_sparse_file_is_read_with_defaults():
    table = make()
    table.read_json({"topicConfigTable": {"T": {"attributes": None, "perm": None}}})
    assert table.require("T") == TopicConfig("T")
    table.read_json({})
    assert table.version == DataVersion()


@pytest.mark.parametrize(
    "value",
    [
        [],
        "x",
        {"topicConfigTable": []},
        {"topicConfigTable": {"T": 5}},
        {"topicConfigTable": {"T": {"perm": "many"}}},
        {"dataVersion": {"counter": "x"}},
    ],
)
def test_another_shape_is_an_error_and_changes_nothing(value):
    table = make()
    before = table.to_json()
    with pytest.raises(BodyError):
        table.read_json(value)
    assert table.to_json() == before


# -- following a master


def master_says(*topics, version=(1, 1_000), **fields):
    """Its answer with the topics that it has beside a broker's own."""
    counter, timestamp = version
    return {
        "dataVersion": {"counter": counter, "stateVersion": 0, "timestamp": timestamp},
        "topicConfigTable": {name: {"topicName": name, "perm": 6, **fields} for name in topics},
    }


def test_a_copy_becomes_the_masters_table_at_its_version():
    changed = []
    copy = make()
    copy.changed = changed.append
    own = {config.topic_name for config in copy}
    assert copy.take_over(master_says("A", "B", newField=7)) == 2
    assert {config.topic_name for config in copy} == own | {"A", "B"}
    assert copy.version == DataVersion(1, 0, 1_000)
    assert copy.to_json()["topicConfigTable"]["A"]["newField"] == 7
    assert copy.take_over(master_says("B", version=(2, 2_000), readQueueNums=3)) == 2
    assert "A" not in copy
    assert copy.require("B").read_queue_nums == 3
    assert sorted(changed) == ["A", "A", "B", "B"]
    revision = copy.revision
    assert copy.take_over(master_says("B", version=(2, 2_000), readQueueNums=3)) == 0
    assert copy.revision == revision


def test_what_a_copy_makes_itself_has_no_version():
    copy = make()
    copy.following = True
    copy.take_over(master_says("A"))
    copy.create_retry("%RETRY%G", 1)
    copy.settings_changed()
    assert copy.version == DataVersion(1, 0, 1_000)
    copy.take_over(master_says("A", version=(2, 2_000)))
    assert "%RETRY%G" not in copy


def test_an_answer_of_another_shape_changes_nothing():
    copy = make()
    before = copy.to_json()
    with pytest.raises(BodyError):
        copy.take_over({"topicConfigTable": {"T": {"perm": "many"}}})
    assert copy.to_json() == before
