"""The route table, rule by rule; time is a number, connections are plain objects."""

import attrs
import pytest

from trio_mq.config.nameserver import NameServerSettings
from trio_mq.nameserver.outcomes import Refused, Registered, Registration
from trio_mq.nameserver.routes import RouteTable
from trio_mq.protocol.bodies import (
    BrokerData,
    DataVersion,
    QueueData,
    TopicConfig,
    TopicConfigSerializeWrapper,
)

A, B, C = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"
CONNECTION_1, CONNECTION_2, CONNECTION_3 = object(), object(), object()
TOPICS = (TopicConfig("T", 4, 4, 6), TopicConfig("TBW102", 8, 8, 7))


def wrapper(*topics, counter=1, state_version=0, mappings=None):
    return TopicConfigSerializeWrapper(
        {topic.topic_name: topic for topic in topics or TOPICS},
        DataVersion(counter, state_version, 1_700_000_000_000),
        topic_queue_mapping_info_map=mappings or {},
    )


def registration(address=A, broker_id=0, name="b-a", cluster="c1", topics=None, **fields):
    return Registration(
        cluster,
        name,
        broker_id,
        address,
        address.replace("10911", "10912"),
        topics or wrapper(),
        **fields,
    )


def table(**settings):
    return RouteTable(NameServerSettings(**settings))


def register(routes, *args, token=CONNECTION_1, now_s=0.0, **fields):
    return routes.register(registration(*args, **fields), token, now_s)


# --- registration and routes


def test_master_and_its_topics_are_in_the_route():
    routes = table()
    assert register(routes) == Registered()
    route = routes.route("T")
    assert route.broker_datas == (BrokerData("c1", "b-a", {0: A}),)
    assert route.queue_datas == (QueueData("b-a", 4, 4, 6, 0),)
    assert routes.route("TBW102").queue_datas[0].perm == 7
    assert routes.route("unknown") is None


def test_two_brokers_share_a_topic():
    routes = table()
    register(routes, A, name="b-a")
    register(routes, B, name="b-b", token=CONNECTION_2)
    route = routes.route("T")
    assert [broker.broker_name for broker in route.broker_datas] == ["b-a", "b-b"]
    assert [queue.broker_name for queue in route.queue_datas] == ["b-a", "b-b"]


def test_slave_is_told_its_master_and_brings_no_topics():
    routes = table()
    register(routes)
    outcome = register(
        routes,
        B,
        1,
        topics=wrapper(TopicConfig("ONLY_SLAVE"), TopicConfig("T", 1, 1)),
        token=CONNECTION_2,
    )
    assert outcome == Registered(master_address=A, ha_address="10.0.0.1:10912")
    assert routes.route("ONLY_SLAVE") is None
    assert routes.route("T").queue_datas[0].write_queue_nums == 4
    assert routes.route("T").broker_datas[0].broker_addrs == {0: A, 1: B}


def test_slave_before_its_master_is_told_nothing():
    routes = table()
    assert register(routes, B, 1) == Registered()


def test_changed_data_version_replaces_queue_data():
    routes = table()
    register(routes)
    changed = (TopicConfig("T", 16, 16, 4), TopicConfig("TBW102"))
    register(routes, topics=wrapper(*changed))  # the same version: not looked at
    assert routes.route("T").queue_datas[0].write_queue_nums == 4
    register(routes, topics=wrapper(*changed, counter=2))
    assert routes.route("T").queue_datas == (QueueData("b-a", 16, 16, 4),)


def test_c074_a_data_version_of_the_past_is_a_changed_one():
    routes = table()
    register(routes, topics=wrapper(*TOPICS, counter=99))
    register(routes, topics=wrapper(TopicConfig("T", 1, 1), TopicConfig("NEW"), counter=1))
    assert routes.route("T").queue_datas[0].write_queue_nums == 1
    assert routes.route("NEW") is not None


def test_new_topic_of_an_unchanged_version_is_taken():
    routes = table()
    register(routes)
    register(routes, topics=wrapper(*TOPICS, TopicConfig("NEW")))
    assert routes.route("NEW") is not None


def test_first_registration_with_exactly_one_topic_is_refused():
    routes = table()
    outcome = register(routes, topics=wrapper(TopicConfig("T")))
    assert isinstance(outcome, Refused)
    assert "exactly one topic" in outcome.reason
    assert routes.route("T") is None
    assert routes.cluster_info().broker_addr_table == {}
    # The same is a plain update afterwards.
    register(routes)
    assert isinstance(register(routes, topics=wrapper(TopicConfig("NEW"), counter=2)), Registered)
    assert routes.route("NEW") is not None
    assert routes.route("T") is not None


def test_registration_without_topics_is_taken():
    routes = table()
    empty = TopicConfigSerializeWrapper()
    assert register(routes, topics=empty) == Registered()
    assert routes.cluster_info().broker_addr_table["b-a"].broker_addrs == {0: A}


def test_address_moves_when_its_id_changes():
    routes = table()
    register(routes, A, 1)
    register(routes, A, 0)
    assert routes.cluster_info().broker_addr_table["b-a"].broker_addrs == {0: A}


def test_id_with_a_higher_state_version_keeps_its_address():
    routes = table()
    register(routes, A, topics=wrapper(state_version=5))
    outcome = register(routes, B, topics=wrapper(state_version=4), token=CONNECTION_2)
    assert outcome == Registered(ignored=True)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: A}
    # An equal or newer one takes the id over.
    register(routes, B, topics=wrapper(state_version=5), token=CONNECTION_2)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: B}


def test_state_version_of_a_broker_that_is_gone_blocks_nobody():
    routes = table()
    register(routes, A, topics=wrapper(state_version=5))
    register(routes, C, 1, token=CONNECTION_3)
    routes.disconnected(CONNECTION_1)
    assert not register(routes, B, topics=wrapper(state_version=4)).ignored
    assert routes.route("T").broker_datas[0].broker_addrs == {0: B, 1: C}


def test_ignored_address_leaves_its_old_id():
    routes = table()
    register(routes, A, topics=wrapper(state_version=5))
    register(routes, B, 1, token=CONNECTION_2)
    register(routes, B, 0, topics=wrapper(state_version=4), token=CONNECTION_2)
    assert routes.cluster_info().broker_addr_table["b-a"].broker_addrs == {0: A}
    assert routes.disconnected(CONNECTION_2) == []
    assert routes.route("T").broker_datas[0].broker_addrs == {0: A}


def test_broker_that_comes_back_with_another_name_leaves_nothing_behind():
    routes = table()
    register(routes, A, name="old")
    register(routes, A, name="new", token=CONNECTION_2)
    assert list(routes.cluster_info().broker_addr_table) == ["new"]
    assert [broker.broker_name for broker in routes.route("T").broker_datas] == ["new"]
    assert routes.disconnected(CONNECTION_1) == []
    assert routes.route("T") is not None


def test_broker_that_comes_back_in_another_cluster_is_there_only():
    routes = table()
    register(routes, A, cluster="c1")
    register(routes, A, cluster="c2", token=CONNECTION_2)
    assert routes.cluster_info().cluster_addr_table == {"c2": ("b-a",)}
    routes.disconnected(CONNECTION_1)
    assert routes.route("T").broker_datas[0].cluster == "c2"


def test_topics_that_a_registration_lacks_stay_or_go_as_the_setting_says():
    other = wrapper(TopicConfig("X"), TopicConfig("Y"), counter=2)
    for deletes in (False, True):
        routes = table(delete_topic_with_broker_registration=deletes)
        register(routes)
        register(routes, B, name="b-b", token=CONNECTION_2)
        register(routes, topics=other)
        names = [queue.broker_name for queue in routes.route("T").queue_datas]
        assert names == (["b-b"] if deletes else ["b-a", "b-b"])
        register(routes, B, name="b-b", topics=other, token=CONNECTION_2)
        assert (routes.route("T") is None) is deletes


def test_static_topic_mappings_are_handed_on_until_the_broker_goes():
    routes = table()
    mapping = {"topic": "T", "bname": "b-a", "totalQueues": 8}
    register(routes, topics=wrapper(mappings={"T": mapping}))
    assert routes.route("T").topic_queue_mapping_by_broker == {"b-a": mapping}
    assert routes.route("TBW102").topic_queue_mapping_by_broker is None
    routes.disconnected(CONNECTION_1)
    register(routes)
    assert routes.route("T").topic_queue_mapping_by_broker is None


def test_filter_servers_are_in_the_route_of_their_broker():
    routes = table()
    register(routes, filter_servers=("10.0.0.1:3000",))
    register(routes, B, name="b-b", token=CONNECTION_2)
    assert routes.route("T").filter_server_table == {A: ("10.0.0.1:3000",)}


# --- acting master, zones


def acting(broker_id, address, token, **fields):
    return {
        "broker_id": broker_id,
        "address": address,
        "token": token,
        "enable_acting_master": True,
    } | fields


def test_smallest_slave_stands_in_for_a_lost_master_and_topics_lose_write():
    routes = table(support_acting_master=True)
    register(routes, **acting(0, A, CONNECTION_1))
    register(routes, **acting(1, B, CONNECTION_2))
    register(routes, **acting(2, C, CONNECTION_3))
    assert routes.route("T").broker_datas[0].broker_addrs == {0: A, 1: B, 2: C}
    routes.disconnected(CONNECTION_1)
    route = routes.route("T")
    assert route.queue_datas[0].perm == 4
    assert route.broker_datas[0].broker_addrs == {0: B, 2: C}
    # What the slave with the smallest id registers now counts, without W.
    register(routes, **acting(1, B, CONNECTION_2, topics=wrapper(TopicConfig("NEW"), *TOPICS)))
    assert routes.route("NEW").queue_datas[0].perm == 4
    # The master is back, and so is W.
    register(routes, **acting(0, A, CONNECTION_1, topics=wrapper(*TOPICS, counter=3)))
    assert routes.route("T").queue_datas[0].perm == 6
    assert routes.route("T").broker_datas[0].broker_addrs == {0: A, 1: B, 2: C}


def test_acting_master_is_shown_only_when_the_name_server_supports_it():
    routes = table()
    register(routes, **acting(1, B, CONNECTION_2))
    assert routes.route("T").queue_datas[0].perm == 4
    assert routes.route("T").broker_datas[0].broker_addrs == {1: B}


def test_member_topics_never_show_an_acting_master():
    topic = "rmq_sys_SYNC_BROKER_MEMBER_b-a"
    routes = table(support_acting_master=True)
    register(routes, **acting(1, B, CONNECTION_2, topics=wrapper(TopicConfig(topic), *TOPICS)))
    assert routes.route(topic).broker_datas[0].broker_addrs == {1: B}
    assert routes.route("T").broker_datas[0].broker_addrs == {0: B}


def test_slave_of_an_old_release_never_brings_topics():
    routes = table(support_acting_master=True)
    register(routes, B, 1)
    assert routes.route("T") is None


def test_slaves_without_the_acting_flag_keep_the_perm():
    routes = table(support_acting_master=True)
    register(routes, A, 0, enable_acting_master=False)
    register(routes, B, 1, token=CONNECTION_2, enable_acting_master=False)
    routes.disconnected(CONNECTION_1)
    assert routes.route("T").queue_datas[0].perm == 6
    assert routes.route("T").broker_datas[0].broker_addrs == {1: B}


def test_zone_filter_keeps_the_zone_and_names_without_a_master():
    routes = table()
    register(routes, A, name="near", zone="Z1")
    register(routes, B, name="far", zone="z2", token=CONNECTION_2)
    register(routes, C, name="nowhere", token=CONNECTION_3)
    near = routes.route("T", zone="z1")
    assert [broker.broker_name for broker in near.broker_datas] == ["near"]
    assert [queue.broker_name for queue in near.queue_datas] == ["near"]
    assert len(routes.route("T").broker_datas) == 3
    # A far broker that lost its master is shown: its slaves can be read.
    register(routes, "10.0.0.4:10911", 1, name="far", zone="z2")
    routes.disconnected(CONNECTION_2)
    assert [b.broker_name for b in routes.route("T", zone="z1").broker_datas] == ["near", "far"]


# --- liveness


def test_c101_end_of_an_old_connection_removes_nothing_that_registered_again():
    routes = table()
    register(routes, token=CONNECTION_1)
    register(routes, token=CONNECTION_2, now_s=1.0)
    assert routes.disconnected(CONNECTION_1) == []
    assert routes.route("T").broker_datas[0].broker_addrs == {0: A}
    (removed,) = routes.disconnected(CONNECTION_2)
    assert (removed.broker_name, removed.address, removed.token) == ("b-a", A, CONNECTION_2)
    assert routes.route("T") is None


def test_c101_brokers_that_share_a_connection_go_together_and_others_stay():
    routes = table()
    register(routes, A, name="b-a")
    register(routes, B, name="b-b")
    register(routes, C, name="b-c", token=CONNECTION_2)
    assert {removed.address for removed in routes.disconnected(CONNECTION_1)} == {A, B}
    assert list(routes.cluster_info().broker_addr_table) == ["b-c"]


def test_taken_over_id_survives_the_end_of_the_old_connection():
    routes = table()
    register(routes, A, token=CONNECTION_1)
    register(routes, B, token=CONNECTION_2)
    routes.disconnected(CONNECTION_1)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: B}


def test_c091_broker_that_tells_a_new_address_leaves_the_old_one():
    routes = table()
    register(routes, A)
    register(routes, B)
    assert routes.route("T").broker_datas[0].broker_addrs == {0: B}
    # Nothing of the old address is left to expire and to take the connection along.
    assert [removed.address for removed in routes.expire(1000.0)] == [B]


def test_silent_broker_expires_after_its_own_timeout():
    routes = table()
    register(routes, A, name="b-a", now_s=100.0, timeout_s=10.0)
    register(routes, B, name="b-b", now_s=100.0, token=CONNECTION_2)
    assert routes.expire(110.0) == []
    (removed,) = routes.expire(110.1)
    assert (removed.address, removed.token) == (A, CONNECTION_1)
    assert routes.expire(220.0) == []
    assert [removed.address for removed in routes.expire(220.1)] == [B]
    assert routes.cluster_info().broker_addr_table == {}


def test_heartbeat_and_version_query_keep_a_broker_alive():
    routes = table()
    register(routes, now_s=0.0, timeout_s=10.0)
    routes.heartbeat(A, 8.0)
    assert routes.expire(15.0) == []
    routes.compare_version(A, DataVersion(), 16.0)
    assert routes.expire(25.0) == []
    routes.heartbeat("10.9.9.9:1", 25.0)  # unknown: means nothing
    assert len(routes.expire(26.1)) == 1


def test_version_query_compares_all_three_parts():
    routes = table()
    same = wrapper().data_version
    assert routes.compare_version(A, same, 0.0) == (True, None)
    register(routes)
    assert routes.compare_version(A, same, 0.0) == (False, same)
    for other in (
        attrs.evolve(same, counter=2),
        attrs.evolve(same, timestamp=1),
        attrs.evolve(same, state_version=1),
    ):
        assert routes.compare_version(A, other, 0.0) == (True, same)


def test_unregister_takes_the_address_the_name_and_the_topics():
    routes = table()
    register(routes, A)
    register(routes, B, 1, token=CONNECTION_2)
    assert routes.unregister("b-a", A).token is CONNECTION_1
    assert routes.route("T").broker_datas[0].broker_addrs == {1: B}
    routes.unregister("b-a", B)
    assert routes.route("T") is None
    assert routes.cluster_info().cluster_addr_table == {}
    assert routes.unregister("b-a", B) is None


def test_unregister_under_a_wrong_name_does_nothing():
    routes = table()
    register(routes, A)
    assert routes.unregister("b-x", A) is None
    assert routes.route("T") is not None


# --- notices of the smallest id


def test_others_hear_of_a_new_smallest_id():
    routes = table()
    register(routes, B, 1, token=CONNECTION_2)
    register(routes, C, 2, token=CONNECTION_3)
    change = register(routes, A, 0, token=CONNECTION_1).change
    assert (change.broker_name, change.min_id, change.min_address) == ("b-a", 0, A)
    assert (change.offline_address, change.ha_address) == (None, "10.0.0.1:10912")
    assert set(change.notify) == {CONNECTION_2, CONNECTION_3}
    assert register(routes, A, 0).change is None


def test_all_that_are_left_hear_when_the_smallest_id_goes():
    routes = table()
    for broker_id, address, token in (
        (0, A, CONNECTION_1),
        (1, B, CONNECTION_2),
        (2, C, CONNECTION_3),
    ):
        register(routes, address, broker_id, token=token)
    (removed,) = routes.disconnected(CONNECTION_1)
    change = removed.change
    assert (change.min_id, change.min_address, change.offline_address) == (1, B, A)
    assert set(change.notify) == {CONNECTION_2, CONNECTION_3}
    (removed,) = routes.disconnected(CONNECTION_3)
    assert removed.change is None  # not the smallest
    (removed,) = routes.disconnected(CONNECTION_2)
    assert removed.change is None  # nobody is left


# --- topics


def test_wiped_write_permission_stays_until_a_changed_table():
    routes = table()
    register(routes)
    register(routes, B, name="b-b", token=CONNECTION_2)
    assert routes.wipe_write_perm("b-a") == 2
    assert [queue.perm for queue in routes.route("T").queue_datas] == [4, 6]
    assert [queue.perm for queue in routes.route("TBW102").queue_datas] == [5, 7]
    register(routes)
    assert routes.route("T").queue_datas[0].perm == 4
    register(routes, topics=wrapper(counter=2))
    assert routes.route("T").queue_datas[0].perm == 6


def test_write_permission_can_be_given_back():
    routes = table()
    register(routes)
    routes.wipe_write_perm("b-a")
    assert routes.add_write_perm("b-a") == 2
    assert [routes.route(t).queue_datas[0].perm for t in ("T", "TBW102")] == [6, 6]
    assert routes.add_write_perm("unknown") == 0


def test_deleted_topic_goes_everywhere_or_in_one_cluster():
    routes = table()
    register(routes, A, name="b-a", cluster="c1")
    register(routes, B, name="b-b", cluster="c2", token=CONNECTION_2)
    routes.delete_topic("T", "c1")
    assert [queue.broker_name for queue in routes.route("T").queue_datas] == ["b-b"]
    routes.delete_topic("T", "c9")
    assert routes.route("T") is not None
    routes.delete_topic("T")
    routes.delete_topic("T")
    assert routes.route("T") is None


def test_registered_topic_is_set_at_known_brokers_only():
    routes = table()
    register(routes)
    unknown = routes.register_topic("NEW", (QueueData("b-a", 2, 2, 6), QueueData("b-x", 2, 2, 6)))
    assert unknown == ["b-x"]
    assert routes.route("NEW").queue_datas == (QueueData("b-a", 2, 2, 6),)


# --- lists


def test_lists_by_cluster_and_of_system_topics():
    routes = table()
    register(routes, A, name="b-a", cluster="c1")
    register(
        routes, B, name="b-b", cluster="c2", topics=wrapper(TopicConfig("U"), TopicConfig("V"))
    )
    assert set(routes.topics().topic_list) == {"T", "TBW102", "U", "V"}
    assert set(routes.topics_of_cluster("c2").topic_list) == {"U", "V"}
    assert routes.topics_of_cluster("c9").topic_list == ()
    assert routes.system_topics().topic_list == ("c1", "b-a", "c2", "b-b")
    assert routes.system_topics().broker_addr == A
    assert table().system_topics().broker_addr is None


@pytest.mark.parametrize(
    ("flags", "without", "expected"),
    [(1, 0, {"UNIT", "BOTH"}), (2, 0, {"SUB", "BOTH"}), (2, 1, {"SUB"})],
)
def test_unit_topics(flags, without, expected):
    routes = table()
    topics = [
        TopicConfig(name, topic_sys_flag=flag)
        for name, flag in (("PLAIN", 0), ("UNIT", 1), ("SUB", 2), ("BOTH", 3))
    ]
    register(routes, topics=wrapper(*topics))
    assert set(routes.topics_with_flags(flags, without).topic_list) == expected


def test_member_group():
    routes = table()
    register(routes, B, 1)
    register(routes, A, 0)
    group = routes.member_group("c1", "b-a")
    assert (group.cluster, group.broker_name, group.broker_addrs) == ("c1", "b-a", {0: A, 1: B})
    assert routes.member_group("c1", "b-x").broker_addrs == {}
