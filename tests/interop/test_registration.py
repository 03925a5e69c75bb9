"""Behaviours section 19: routes and the registration of topics (B135, B136; static topics are not ours)."""

from __future__ import annotations

import pytest

from .conftest import Cluster, MakeCluster
from .drivers import ClientError
from .java_client import unique
from .polling import holds_for, wait_for
from .raw import RawClient

DELETE_TOPIC_IN_BROKER = 215


def shown(cluster: Cluster, topic: str) -> list[str]:
    """Brokers in the route of a topic; each has all its queues."""
    try:
        route = cluster.admin.route(topic)
    except ClientError:
        return []
    assert all((q["read"], q["write"]) == (8, 8) for q in route["queues"])
    assert sorted(b["name"] for b in route["brokers"]) == sorted(
        q["broker"] for q in route["queues"]
    )
    return sorted(b["name"] for b in route["brokers"])


@pytest.fixture(scope="module", params=["enableSingleTopicRegister", "enableSplitRegistration"])
def registering(request: pytest.FixtureRequest, make_cluster: MakeCluster) -> Cluster:
    """Three masters with one of the settings."""
    return make_cluster(3, {request.param: "true", "splitRegistrationSize": "4"})


def test_b135_new_topics_are_in_the_routes_at_once(registering: Cluster) -> None:
    topics = [unique("T") for _ in range(10)]
    for topic in topics:
        registering.admin.topic(
            topic, 8
        )  # waits for the statistics of all queues, so for the route
    for topic in topics:
        wait_for(lambda: shown(registering, topic) == ["b1", "b2", "b3"], "the route", timeout_s=5)  # noqa: B023


def test_b136_a_deleted_topic_leaves_the_route_and_others_stay(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(
        3,
        {
            "enableSingleTopicRegister": "true",
            "deleteTopicWithBrokerRegistration": "true",
            "registerNameServerPeriod": "10000",
        },  # Apache's shortest: the row says what the next registration does
    )
    gone, stays = unique("T"), unique("T")
    for topic in (gone, stays):
        cluster.admin.topic(topic, 8)
        wait_for(lambda: shown(cluster, topic) == ["b1", "b2", "b3"], "the route", timeout_s=5)  # noqa: B023
    with RawClient(cluster.brokers[0].address) as client:
        assert client.call(DELETE_TOPIC_IN_BROKER, {"topic": gone}).code == 0
    wait_for(lambda: shown(cluster, gone) == ["b2", "b3"], "b1 leaves the route", timeout_s=25)
    holds_for(lambda: shown(cluster, stays) == ["b1", "b2", "b3"], "the other one stays", seconds=1)
