"""Routes: which queues a topic has, at which addresses."""

import attrs
import pytest

from trio_mq.client.routes import RouteTable, TopicRoute
from trio_mq.config import Address
from trio_mq.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRouteData


def data(*, queues=(("b1", 2, 2, 6),), brokers=None, order=None):
    """A route: queues as (broker, read, write, perm)."""
    brokers = brokers or {"b1": {0: "10.0.0.1:10911"}}
    return TopicRouteData(
        queue_datas=tuple(QueueData(name, read, write, perm) for name, read, write, perm in queues),
        broker_datas=tuple(BrokerData("c", name, table) for name, table in brokers.items()),
        order_topic_conf=order,
    )


def route(topic="T", **parts):
    return TopicRoute(topic, data(**parts))


def short(queues):
    return [(queue.broker_name, queue.queue_id) for queue in queues]


TWO = {"b2": {0: "10.0.0.2:10911"}, "b1": {0: "10.0.0.1:10911", 1: "10.0.0.3:10911"}}


def test_queues_of_all_brokers_by_name_and_number():
    found = route(queues=(("b2", 1, 2, 6), ("b1", 2, 1, 6)), brokers=TWO)
    assert short(found.publish_queues) == [("b1", 0), ("b2", 0), ("b2", 1)]
    assert short(found.read_queues) == [("b1", 0), ("b1", 1), ("b2", 0)]
    assert found.publish_queues[0] == MessageQueue("T", "b1", 0)


@pytest.mark.parametrize(
    ("perm", "reads", "writes"), [(6, 2, 2), (4, 2, 0), (2, 0, 2), (0, 0, 0), (7, 2, 2)]
)
def test_what_the_permission_of_a_topic_allows(perm, reads, writes):
    found = route(queues=(("b1", 2, 2, perm),))
    assert (len(found.read_queues), len(found.publish_queues)) == (reads, writes)


def test_a_broker_without_its_master_is_read_and_not_sent_to():
    found = route(brokers={"b1": {1: "10.0.0.3:10911"}})
    assert found.publish_queues == ()
    assert short(found.read_queues) == [("b1", 0), ("b1", 1)]


def test_queues_of_an_ordered_topic_are_those_that_are_configured():
    found = route(order="b1:2;gone:1;broken;b2:x", brokers=TWO)
    assert short(found.publish_queues) == [("b1", 0), ("b1", 1), ("gone", 0)]


def test_an_address_that_does_not_parse_is_left_out(caplog):
    found = route(brokers={"b1": {0: "10.0.0.1:10911", 1: "10.0.0.1:port"}})
    assert found.brokers == {"b1": {0: Address("10.0.0.1", 10911)}}
    assert "route of topic T: address of b1" in caplog.text


@pytest.mark.parametrize(("wanted", "there", "made"), [(4, 8, 4), (4, 2, 2), (1, 8, 1)])
def test_a_new_topic_gets_as_many_queues_as_are_wanted_and_possible(wanted, there, made):
    template = route("TBW102", queues=(("b1", there, there, 7),))
    found = template.for_new_topic("new", wanted)
    assert found.topic == "new"
    assert {queue.topic for queue in found.publish_queues} == {"new"}
    assert len(found.publish_queues) == len(found.read_queues) == made


# -- the table


def test_the_table_says_what_has_changed():
    table = RouteTable()
    assert table.put(route())
    assert not table.put(route())
    assert table.put(route(queues=(("b1", 3, 3, 6),)))
    assert len(table.topics["T"].publish_queues) == 3
    table.drop("T")
    table.drop("T")
    assert table.put(route(queues=(("b1", 3, 3, 6),)))


def test_addresses_of_all_routes():
    table = RouteTable()
    table.put(route("T1"))
    assert table.addresses() == {Address("10.0.0.1", 10911)}
    table.put(route("T2", brokers=TWO))
    assert len(table.addresses()) == 3
    assert table.address("b1") == Address("10.0.0.1", 10911)
    assert table.address("b1", 1) == Address("10.0.0.3", 10911)
    assert table.address("b1", 7) is table.address("b9") is None
    table.drop("T2")
    assert table.address("b2") is None
    assert len(table.addresses()) == 1


def test_a_moved_broker_is_found_at_its_new_address_as_soon_as_one_route_says_so():
    """C100: other topics are not asked for yet and still have the old one."""
    table = RouteTable()
    for topic in ("T1", "T2", "T3"):
        table.put(route(topic))
    table.put(route("T2", brokers={"b1": {0: "10.0.0.9:10911"}}))
    assert table.address("b1") == Address("10.0.0.9", 10911)
    assert table.any_address("b1") == Address("10.0.0.9", 10911)
    table.put(route("T3", brokers={"b1": {0: "10.0.0.9:10911"}}))
    table.put(route("T1", brokers={"b1": {0: "10.0.0.9:10911"}}))
    assert table.addresses() == {Address("10.0.0.9", 10911)}


def test_the_preferred_broker_or_the_first_that_is_there():
    table = RouteTable()
    table.put(route(brokers={"b1": {2: "10.0.0.3:10911", 1: "10.0.0.2:10911"}}))
    assert table.any_address("b1", 2) == Address("10.0.0.3", 10911)
    assert table.any_address("b1", 0) == Address("10.0.0.2", 10911)
    assert table.any_address("b9") is None


def test_routes_are_values():
    assert attrs.evolve(route(), topic="T") == route()


def test_a_broker_id_without_an_address_stands_for_the_next_slave_or_for_any():
    table = RouteTable()
    table.put(route(brokers={"b1": {0: "10.0.0.1:1", 2: "10.0.0.2:1"}, "b2": {3: "10.0.0.3:1"}}))
    found = [table.any_address("b1", number).host for number in (0, 1, 2, 3)]
    assert found == ["10.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.1"]
    assert table.any_address("b2").host == "10.0.0.3"
    assert table.any_address("b3") is None


def test_the_other_broker_of_a_name():
    table = RouteTable()
    table.put(route(brokers={"b1": {0: "10.0.0.1:1", 2: "10.0.0.2:1"}, "b2": {0: "10.0.0.3:1"}}))
    assert [table.other_id("b1", number) for number in (0, 2, 7)] == [2, 0, 0]
    assert [table.other_id(name, 0) for name in ("b2", "b3")] == [0, 0]
