"""Behaviours section on traces: B130, B131."""

from __future__ import annotations

import base64
import time

from .calls import trace_records, traced, traced_consumer
from .conftest import Cluster, Workshop
from .java_client import Java, text, unique
from .polling import holds_for, wait_for
from .raw import RawClient
from .scenes import stored, total, wait_total


def _records(cluster: Cluster, trace_topic: str) -> list[list[str]]:
    with RawClient(cluster.brokers[0].address) as client:
        found = stored(client, trace_topic, 0, queues=1)
    return [record for message in found for record in trace_records(message.stored_body.decode())]


def test_b130_a_recall_is_traced(java: Java, workshop: Workshop) -> None:
    server = workshop.alone("b1", settings={"recallMessageEnable": "true"})
    server.start()
    cluster = workshop.cluster(server)
    trace_topic, topic, group = cluster.topic(1), cluster.topic(1), unique("P")
    producer = traced(java, cluster.ns, group, trace_topic)
    message_id = "7F0000010A2B18B4AAC2" + "0" * 12
    parts = ("v1", topic, "b1", str(time.time_ns() // 1_000_000 + 30_000), message_id)
    handle = base64.urlsafe_b64encode(" ".join(parts).encode()).decode()
    assert producer.recall(topic, handle) == message_id
    (record,) = wait_for(
        lambda: [r for r in _records(cluster, trace_topic) if r[0] == "Recall"],
        "the trace of the recall",
        timeout_s=15,
        every_s=0.2,
    )
    assert (record[3], record[4], record[5], record[6]) == (group, topic, message_id, "true")


def test_b131_sending_and_consuming_are_traced(java: Java, cluster: Cluster) -> None:
    trace_topic, topic = cluster.topic(1), cluster.topic()
    group, producers = cluster.group(), unique("P")
    traced_consumer(java, cluster.ns, group, topic, trace_topic)
    producer = traced(java, cluster.ns, producers, trace_topic)
    sent = producer.send(text(topic, "seen", tags="T", keys="k"))
    wait_total(cluster, topic, 1)

    def all_three() -> list[list[str]] | None:
        found = _records(cluster, trace_topic)
        return found if {r[0] for r in found} == {"Pub", "SubBefore", "SubAfter"} else None

    found = wait_for(all_three, "all three kinds of records", timeout_s=20, every_s=0.2)
    by_kind = {record[0]: record for record in found}
    pub, before, after = (by_kind[kind] for kind in ("Pub", "SubBefore", "SubAfter"))
    assert (pub[2], pub[3], pub[4], pub[5]) == ("DefaultRegion", producers, topic, sent.msg_id)
    assert (before[3], before[5]) == (group, sent.msg_id)
    assert (after[2], after[4], after[1]) == (sent.msg_id, "true", before[4])
    # The traces themselves are sent by a client that does not trace.
    count = total(cluster, trace_topic)
    holds_for(lambda: total(cluster, trace_topic) == count, "no trace of a trace", seconds=6)
