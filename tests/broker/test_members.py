"""Who is connected, who has to be told, and members that subscribe differently."""

from __future__ import annotations

import logging

import attrs
import pytest

from trio_mq.broker.conflicts import NOTHING
from trio_mq.broker.members import Members
from trio_mq.protocol.bodies import (
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from trio_mq.protocol.message import Host


@attrs.define(eq=False)
class FakePeer:
    port: int
    closed: bool = False

    @property
    def address(self) -> Host:
        return Host("10.0.0.1", self.port)

    def write(self, data: bytes) -> None:
        raise AssertionError("members never write")

    def close(self) -> None:
        self.closed = True


def sub(topic: str, text: str = "*", version: int = 1, kind: str = "TAG") -> SubscriptionData:
    return SubscriptionData(topic, text, sub_version=version, expression_type=kind)


def consumer(group: str, *subs: SubscriptionData, model=MessageModel.CLUSTERING) -> ConsumerData:
    return ConsumerData(group, message_model=model, subscription_data_set=subs)


def beat(members, peer, client_id, *data, producers=(), now_s=0.0, **more):
    return members.heartbeat(
        HeartbeatData(
            client_id,
            tuple(ProducerData(group) for group in producers),
            data,
            **{k: v for k, v in more.items() if k != "accepts"},
        ),
        peer,
        language=0,
        version=493,
        now_s=now_s,
        **{k: v for k, v in more.items() if k == "accepts"},
    )


@pytest.fixture
def members():
    return Members()


P1, P2, P3 = FakePeer(1), FakePeer(2), FakePeer(3)


# -- what has to be told


def test_a_new_member_is_news_and_the_next_heartbeat_is_not(members):
    assert beat(members, P1, "c1", consumer("G", sub("T"))).notify == ("G",)
    assert beat(members, P1, "c1", consumer("G", sub("T"))).notify == ()
    assert beat(members, P2, "c2", consumer("G", sub("T"))).notify == ("G",)
    assert members.client_ids("G") == ["c1", "c2"]


def test_a_topic_added_or_dropped_is_news_a_newer_version_is_not(members):
    beat(members, P1, "c1", consumer("G", sub("T", "A")))
    assert beat(members, P1, "c1", consumer("G", sub("T", "B", 2))).notify == ()
    assert members.subscription("G", "T").sub_string == "B"
    assert beat(members, P1, "c1", consumer("G", sub("T", "A", 1))).notify == ()
    assert members.subscription("G", "T").sub_string == "B"
    added = consumer("G", sub("T", "B", 2), sub("U"))
    assert beat(members, P1, "c1", added).notify == ("G",)
    assert beat(members, P1, "c1", consumer("G", sub("U"))).notify == ("G",)
    assert members.subscription("G", "T") is None


def test_broadcasting_members_are_not_told(members):
    data = consumer("G", sub("T"), model=MessageModel.BROADCASTING)
    assert beat(members, P1, "c1", data).notify == ()
    beat(members, P2, "c2", data)
    assert members.remove_peer(P1).notify == ()
    assert members.client_ids("G") == ["c2"]


def test_the_last_heartbeat_says_how_the_group_consumes(members):
    beat(members, P1, "c1", consumer("G", sub("T")))
    data = attrs.evolve(consumer("G", sub("T")), consume_type=ConsumeType.CONSUME_ACTIVELY)
    beat(members, P2, "c2", data)
    assert members.consumer_group("G").consume_type is ConsumeType.CONSUME_ACTIVELY


def test_groups_that_are_not_accepted_are_skipped(members):
    changes = beat(
        members,
        P1,
        "c1",
        consumer("G", sub("T")),
        consumer("H", sub("T")),
        accepts=lambda data: data.group_name == "H",
    )
    assert changes.notify == ("H",)
    assert members.consumer_group("G") is None


# -- heartbeats of version 2


def test_version_1_always_counts_as_changed(members):
    assert beat(members, P1, "c1", consumer("G", sub("T"))).subscription_changed
    assert beat(members, P1, "c1", consumer("G", sub("T"))).subscription_changed


def test_version_2_refreshes_without_subscriptions(members):
    assert not beat(
        members, P1, "c1", consumer("G", sub("T")), heartbeat_fingerprint=7
    ).subscription_changed
    again = beat(
        members, P1, "c1", consumer("G"), heartbeat_fingerprint=7, without_sub=True, now_s=100.0
    )
    assert not again.subscription_changed
    assert again.notify == ()
    assert members.subscription("G", "T") is not None
    assert members.expire(200.0).gone == ()


def test_version_2_with_another_fingerprint_asks_for_the_whole(members):
    beat(members, P1, "c1", consumer("G", sub("T")), heartbeat_fingerprint=7)
    changes = beat(members, P1, "c1", consumer("G"), heartbeat_fingerprint=8, without_sub=True)
    assert changes.subscription_changed
    assert members.subscription("G", "T") is not None


def test_version_2_after_a_restart_asks_for_the_whole_until_it_comes(members):
    """A broker that knows nothing must not believe a heartbeat that leaves the topics out."""
    short = {"heartbeat_fingerprint": 7, "without_sub": True}
    for _ in range(2):
        assert beat(members, P1, "c1", consumer("G"), **short).subscription_changed
    whole = beat(members, P1, "c1", consumer("G", sub("T")), heartbeat_fingerprint=7)
    assert not whole.subscription_changed
    assert whole.notify == ("G",)
    assert not beat(members, P1, "c1", consumer("G"), **short).subscription_changed


# -- leaving


def test_unregister(members):
    beat(members, P1, "c1", consumer("G", sub("T")), producers=["PG"])
    beat(members, P2, "c2", consumer("G", sub("T")))
    assert members.unregister(P1, consumer_group="G").notify == ("G",)
    assert members.unregister(P1, consumer_group="G").notify == ()
    assert members.unregister(P1, producer_group="PG").notify == ()
    assert members.producers("PG") == []
    assert members.unregister(P2, consumer_group="G").notify == ()  # nobody is left to be told
    assert members.consumer_group("G") is None


def test_b050_a_closed_connection_leaves_all_its_groups_at_once(members):
    """B050: others are told."""
    beat(members, P1, "c1", consumer("G", sub("T")), consumer("H", sub("T")), producers=["PG"])
    beat(members, P2, "c2", consumer("G", sub("T")))
    assert members.remove_peer(P1).notify == ("G",)
    assert members.client_ids("G") == ["c2"]
    assert members.consumer_group("H") is None
    assert members.producer_groups == []
    assert members.remove_peer(P1).notify == ()
    assert members.remove_peer(P3).notify == ()


def test_a_late_close_of_an_old_connection_does_not_remove_the_new_one(members):
    beat(members, P1, "c1", consumer("G", sub("T")))
    beat(members, P2, "c1", consumer("G", sub("T")))
    assert members.client_ids("G") == ["c1"]
    assert members.remove_peer(P1).notify == ("G",)
    assert members.client_ids("G") == ["c1"]
    assert members.consumer("G", "c1").peer is P2


def test_silence_for_120_seconds_is_the_end(members):
    beat(members, P1, "c1", consumer("G", sub("T")), producers=["PG"])
    beat(members, P2, "c2", consumer("G", sub("T")), now_s=30.0)
    assert members.expire(120.0).gone == ()
    changes = members.expire(121.0)
    assert [client.client_id for client in changes.gone] == ["c1"]
    assert changes.notify == ("G",)
    assert members.client_ids("G") == ["c2"]
    assert members.producers("PG") == []
    assert members.expire(151.0).notify == ()
    assert members.consumer_groups == []


def test_a_connection_that_changes_its_client_id(members, caplog):
    beat(members, P1, "c1", consumer("G", sub("T")))
    assert beat(members, P1, "c9", consumer("G", sub("T"))).notify == ()
    assert members.client_ids("G") == ["c9"]
    assert "c9" in caplog.text


# -- looking up


def test_look_ups(members):
    beat(members, P1, "c1", consumer("G", sub("T")), consumer("H", sub("T"), sub("U")))
    client = members.consumer("G", "c1")
    assert (client.peer, client.language, client.version) == (P1, 0, 493)
    assert members.consumer("G", "c2") is None
    assert members.consumer("X", "c1") is None
    assert [c.client_id for c in members.consumers("G")] == ["c1"]
    assert members.subscribers("T") == ["G", "H"]
    assert members.subscribers("U") == ["H"]
    assert members.client_ids("X") == []
    assert members.subscription("X", "T") is None
    assert members.consumer_group("H").subscription("U").topic == "U"


def test_producers_take_turns_and_closed_ones_are_passed_over(members):
    closed = FakePeer(9, closed=True)
    for peer, name in ((P1, "p1"), (P2, "p2"), (closed, "p3")):
        beat(members, peer, name, producers=["PG"])
    assert {members.any_producer("PG").client_id for _ in range(4)} == {"p1", "p2"}
    assert len(members.producers("PG")) == 3
    assert members.any_producer("none") is None
    assert members.producer_groups == ["PG"]


# -- members that disagree


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_c116_the_last_heartbeat_wins_and_the_conflict_is_told_once_per_change(members, caplog):
    """C116: client 1 with tag A, client 2 with *."""
    beat(members, P1, "c1", consumer("G", sub("T", "A", 1)))
    beat(members, P2, "c2", consumer("G", sub("T", "*", 2)))
    for _ in range(3):
        beat(members, P1, "c1", consumer("G", sub("T", "A", 1)))
        beat(members, P2, "c2", consumer("G", sub("T", "*", 2)))
    (told,) = warnings(caplog)
    for part in ("group G", "subscribe T differently", "c1: A", "c2: *"):
        assert part in told
    assert members.subscription("G", "T").sub_string == "*"
    (conflict,) = members.conflicts
    assert (conflict.group, conflict.topic) == ("G", "T")
    assert conflict.expressions == {"c1": "A", "c2": "*"}
    beat(members, P1, "c1", consumer("G", sub("T", "B", 3)))
    assert len(warnings(caplog)) == 2
    assert members.subscription("G", "T").sub_string == "B"


def test_c116_the_conflict_ends_when_they_agree_or_one_leaves(members, caplog):
    """C116: status lists conflicts of connected members only."""
    caplog.set_level(logging.INFO)
    beat(members, P1, "c1", consumer("G", sub("T", "A", 1)))
    beat(members, P2, "c2", consumer("G", sub("T", "B", 2)))
    beat(members, P1, "c1", consumer("G", sub("T", "B", 3)))
    assert members.conflicts == []
    assert "agree about T again" in caplog.text
    beat(members, P2, "c2", consumer("G", sub("T", "C", 4)))
    assert len(members.conflicts) == 1
    members.remove_peer(P2)
    assert members.conflicts == []


def test_c116_a_topic_that_only_some_subscribe_is_a_conflict_too(members):
    """C116: each heartbeat drops the topics of the other one."""
    beat(members, P1, "c1", consumer("G", sub("T")))
    assert beat(members, P2, "c2", consumer("G", sub("U"))).notify == ("G",)
    assert {(c.topic, c.expressions["c1"], c.expressions["c2"]) for c in members.conflicts} == {
        ("T", "*", NOTHING),
        ("U", NOTHING, "*"),
    }


def test_c116_types_of_expressions_differ_too(members):
    """C116."""
    beat(members, P1, "c1", consumer("G", sub("T", "a > 1", 1, "SQL92")))
    beat(members, P2, "c2", consumer("G", sub("T", "a > 1", 2)))
    assert members.conflicts[0].expressions == {"c1": "SQL92: a > 1", "c2": "a > 1"}


def test_c116_a_member_on_two_connections_is_one_member(members):
    """C116: reconnecting is no conflict, and the old connection's end does not hide one."""
    beat(members, P1, "c1", consumer("G", sub("T", "A", 1)))
    beat(members, P2, "c1", consumer("G", sub("T", "B", 2)))
    assert members.conflicts == []
    beat(members, P3, "c2", consumer("G", sub("T", "A", 3)))
    members.remove_peer(P1)
    assert len(members.conflicts) == 1


def test_c125_an_sql_text_as_a_tag_is_warned_about_once(members, caplog):
    """C125 (broker)."""
    for version in (1, 2, 3):
        beat(members, P1, "c1", consumer("G", sub("T", "Tag=test AND creator=xx", version)))
    beat(members, P1, "c1", consumer("H", sub("T", "a = 1", 1, "SQL92")))
    (told,) = warnings(caplog)
    assert "Tag=test AND creator=xx" in told
    assert "SQL92" in told


def test_a_producer_is_found_by_its_client_id_while_it_is_connected():
    """Who replies to a request names the client only, not its group."""
    members = Members()
    old, new, other = FakePeer(1), FakePeer(2), FakePeer(3)
    beat(members, old, "p1", producers=("P", "Q"))
    beat(members, other, "p2", producers=("P",))
    assert members.producer("p1").peer is old
    beat(members, new, "p1", producers=("P",))
    assert members.producer("p1").peer is new  # it has reconnected
    new.close()
    assert members.producer("p1").peer is old
    members.remove_peer(new)
    members.unregister(old, producer_group="P")
    assert members.producer("p1").peer is old  # still in another group
    members.unregister(old, producer_group="Q")
    assert members.producer("p1") is None
    members.expire(1000.0)
    assert members.producer("p2") is None
    assert members.producer("nobody") is None


def test_a_connection_that_changes_its_client_id_has_only_the_new_one():
    members = Members()
    peer = FakePeer(1)
    beat(members, peer, "p1", producers=("P",))
    beat(members, peer, "p2", producers=("P",))
    assert members.producer("p1") is None
    assert members.producer("p2").peer is peer
