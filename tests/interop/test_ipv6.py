"""A broker at an IPv6 address: routes, message ids and hosts in records."""

from __future__ import annotations

from .conftest import Workshop
from .java_client import Java, texts
from .raw import RawClient
from .scenes import bodies, exactly, got, push, stored

STORE_HOST_V6 = 0x20
BORN_HOST_V6 = 0x10


def test_the_main_job_over_ipv6(workshop: Workshop, java: Java) -> None:
    nameserver = workshop.nameserver()
    server = workshop.joining("b1", nameserver.address, host="::1")
    server.start()
    cluster = workshop.cluster(server)
    topic = cluster.topic(4)
    consumer = push(java, cluster, (topic, "*"))
    messages = texts(topic, 20)
    sent = java.producer(cluster.ns).send_ok(messages)
    exactly(consumer, 20)
    assert got(consumer) == bodies(messages)
    assert {len(s.offset_msg_id) for s in sent} == {56}
    for s, message in zip(sent[:3], messages, strict=False):
        assert cluster.admin.view(topic, s.offset_msg_id).body == message["body"]
    with RawClient(server.address) as client:
        record = stored(client, topic, 20, queues=4)[0]
    assert record.sys_flag & STORE_HOST_V6
    assert record.sys_flag & BORN_HOST_V6
    assert record.store_host == ("::1", server.port)
