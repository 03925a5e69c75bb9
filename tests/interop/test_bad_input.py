"""Bad input: frames that lie, headers and bodies that do not parse, illegal names, and starts that must fail.

Each gets a clear answer in the peers' codes (or a closed connection, or one line on the terminal), and
the other clients stay served.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Iterator

import pytest

from tests.ports import free_port

from .conftest import Cluster, Workshop
from .java_client import Java, texts
from .raw import FLAG_ONEWAY, RawClient, Sender, frame, json_frame, pull_fields
from .scenes import exactly, push, sender, stored, total
from .servers import Server, expect_failure

ROUTE, CLUSTER_INFO, HEART_BEAT, MAX_OFFSET, REGISTER_BROKER, SEND = 105, 106, 34, 30, 103, 10
GOOD_HEADER = b'{"code":106,"flag":0,"language":"JAVA","opaque":1,"version":493}'

LIES = {
    "longer than any frame may be": struct.pack(">I", 16 * 1024 * 1024 + 1) + bytes(100),
    "four gigabytes": b"\xff\xff\xff\xff" + bytes(100),
    "negative": struct.pack(">i", -8) + bytes(100),
    "shorter than its own header word": struct.pack(">II", 2, 0) + bytes(20),
    "header longer than the frame": struct.pack(">II", 20, 5000) + bytes(16),
    "unknown serialization": frame(GOOD_HEADER, serialize_type=2),
    "header is no JSON": frame(b"this is no header at all"),
    "header is cut JSON": frame(GOOD_HEADER[:-5]),
    "header is no UTF-8": frame(b'{"code":106,"remark":"\xff\xfe"' + b"}"[:0]),
    "binary header is cut": frame(b"\x00\x6a\x00\x01", serialize_type=1),
    "binary header lies about a string": frame(
        struct.pack(">hBhiiii", 106, 0, 493, 1, 0, 1 << 30, 0), serialize_type=1
    ),
    "a browser": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(64),
}


@pytest.fixture(params=["nameserver", "broker", "fast"])
def port(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """Each listening address of a broker and its name server."""
    broker = cluster.brokers[0]
    if request.param == "fast":
        return f"127.0.0.1:{broker.port - 2}"
    return cluster.ns if request.param == "nameserver" else broker.address


@pytest.fixture
def neighbour(port: str) -> Iterator[RawClient]:
    """Another connection to the same port, which must not notice anything."""
    with RawClient(port) as client:
        assert client.call(99_999).code == 3
        yield client
        assert client.call(99_999).code == 3


@pytest.mark.parametrize("lie", LIES, ids=[k.replace(" ", "_") for k in LIES])
def test_a_frame_that_lies_costs_its_connection_only(
    port: str, neighbour: RawClient, lie: str
) -> None:
    with RawClient(port) as client:
        client.send(LIES[lie])
        assert client.closed_within(5), f"{lie}: the connection is closed"


def test_good_frames_before_a_bad_one_are_answered(port: str, neighbour: RawClient) -> None:
    with RawClient(port) as client:
        client.send(json_frame(99_999, None, opaque=5) + json_frame(99_998, None, opaque=6))
        client.send(LIES["four gigabytes"])
        assert client.closed_within(5)
    with RawClient(port) as client:
        whole = json_frame(99_999, None, opaque=7)
        for at in range(len(whole)):
            client.send(whole[at : at + 1])
        assert client.reply(7).code == 3, "any split of the bytes will do"


def test_a_connection_that_ends_inside_a_frame(port: str, neighbour: RawClient) -> None:
    for cut in (1, 3, 4, 7, 8, 30):
        with RawClient(port) as client:
            client.send(json_frame(CLUSTER_INFO, None)[:cut])


def test_an_unknown_code_is_named(port: str) -> None:
    with RawClient(port) as client:
        reply = client.call(98_765)
        assert reply.code == 3
        assert "98765" in (reply.remark or "")


def test_a_one_way_request_is_never_answered(port: str) -> None:
    with RawClient(port) as client:
        client.send(json_frame(98_765, None, flag=FLAG_ONEWAY))
        client.send(json_frame(SEND, {"topic": "nothing else"}, flag=FLAG_ONEWAY))
        assert client.silent_for(0.4)
        assert client.call(98_765).code == 3


def test_an_answer_that_nobody_asked_for_is_ignored(port: str) -> None:
    with RawClient(port) as client:
        client.send(json_frame(0, None, flag=1, opaque=123_456))
        assert client.silent_for(0.3)
        assert client.call(98_765).code == 3


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (MAX_OFFSET, {"topic": "T"}),
        (MAX_OFFSET, {"topic": "T", "queueId": "three"}),
        (MAX_OFFSET, None),
        (11, {"topic": "T", "queueId": "0"}),
        (SEND, {"topic": "T"}),
        (15, {"topic": "TBW102", "consumerGroup": "TOOLS_CONSUMER", "queueId": "0"}),
    ],
)
def test_headers_that_lack_a_field(cluster: Cluster, code: int, ext: dict[str, str] | None) -> None:
    with RawClient(cluster.brokers[0].address) as client:
        reply = client.call(code, ext, b"body")
        assert reply.code in (1, 29), reply
        if cluster.kind == "trio":
            assert reply.remark, "the remark names the field"
        assert client.call(98_765).code == 3, "the connection stays usable"


@pytest.mark.parametrize("body", [b"", b"no JSON", b'{"clientID":', b"[1,2", b"\xff\xfe", b"null"])
def test_heartbeats_that_do_not_parse(cluster: Cluster, body: bytes) -> None:
    with RawClient(cluster.brokers[0].address) as client:
        assert client.call(HEART_BEAT, body=body).code == 1
        assert client.call(98_765).code == 3


def test_a_registration_that_does_not_decompress(cluster: Cluster) -> None:
    ext = {
        "brokerName": "liar", "brokerAddr": "127.0.0.1:1", "clusterName": "C", "haServerAddr": "127.0.0.1:2",
        "brokerId": "0", "compressed": "true",
    }  # fmt: skip
    with RawClient(cluster.ns) as client:
        assert client.call(REGISTER_BROKER, ext, b"this is not compressed").code == 1
        assert client.call(REGISTER_BROKER, {**ext, "bodyCrc32": "7"}, b"other bytes").code == 1
        assert "liar" not in client.call(CLUSTER_INFO).json()["brokerAddrTable"]


def test_a_body_that_does_not_decompress_is_the_readers_matter(
    java: Java, cluster: Cluster
) -> None:
    topic = cluster.topic(1)
    by_hand = sender(cluster, topic)
    assert by_hand.send(b"not deflated", sysFlag="1").code == 0
    record = stored(by_hand.client, topic, 1, queues=1)[0]
    assert (record.sys_flag & 1, record.stored_body) == (1, b"not deflated")
    consumer = push(java, cluster, (other := cluster.topic(1), "*"))
    java.producer(cluster.ns).send_ok(texts(other, 5))
    exactly(consumer, 5)


def test_illegal_names_everywhere(cluster: Cluster) -> None:
    with RawClient(cluster.brokers[0].address) as client:
        for name in ("", " ", "a b", "a/b", "x" * 128):
            ext = {
                "topic": name, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
                "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
            }  # fmt: skip
            assert client.call(17, ext).code == 29, name
            body = json.dumps({"groupName": name}).encode()
            assert client.call(200, body=body).code == 29, name
        ext["topic"] = "SCHEDULE_TOPIC_XXXX"
        assert client.call(17, ext).code == 29


def test_pulls_that_cannot_be_answered(cluster: Cluster) -> None:
    topic, group = cluster.topic(2), cluster.group()
    with RawClient(cluster.brokers[0].address) as client:

        def pull(**overrides: str) -> int:
            return client.call(11, {**pull_fields(group, topic, 0, 0), **overrides}).code

        assert pull(topic=f"{topic}_unknown") == 17
        assert pull(queueId="2") == 29
        assert pull(queueId="-1") == 29
        assert pull(subscription="||") == 23
        assert pull(sysFlag="0") == 24, "no live consumer, and no subscription in the request"
        assert pull() == 19


def test_a_body_over_the_frame_limit_closes(cluster: Cluster) -> None:
    topic = cluster.topic(1)
    with RawClient(cluster.brokers[0].address) as client:
        fields = Sender(client, topic).fields(0, "")
        data = json_frame(SEND, fields, bytes(17 * 1024 * 1024))
        try:
            client.send(data)
        except ConnectionError:
            return
        assert client.closed_within(5)
    assert total(cluster, topic) == 0


def served(server: Server, topic: str) -> None:
    """It takes a message."""
    with RawClient(server.address) as client:
        assert Sender(client, topic).send(b"still here").code == 0


def one_line(said: str) -> str:
    """What a failed start of ours says beside its log: one line, no traceback."""
    assert "Traceback" not in said
    lines = [x for x in said.splitlines() if x.strip() and not re.match(r"\d{4}-\d\d-\d\dT", x)]
    assert len(lines) == 1, said
    return lines[0]


def test_a_second_process_on_the_same_store(workshop: Workshop) -> None:
    first = workshop.alone()
    first.start()
    served(first, "Taken")
    second = workshop.joining("b2", first.nameservers[0])
    second.home = first.home
    before = (first.store / "lock").exists()
    code, said = expect_failure(second)
    assert code != 0
    if workshop.kind == "trio":
        assert code == 21
        assert str(first.store) in one_line(said)
    assert before
    served(first, "Taken")


def test_a_store_with_another_segment_size(workshop: Workshop) -> None:
    first = workshop.alone(settings={"mappedFileSizeCommitLog": "1048576"})
    first.start()
    served(first, "Small")
    if workshop.kind == "trio":
        first.stop()
    else:
        first.kill()
    copy = workshop.home / "copy"
    shutil.copytree(first.store, copy)
    first.settings = {"mappedFileSizeCommitLog": "2097152"}
    code, said = expect_failure(first)
    assert code != 0
    if workshop.kind == "trio":
        assert code == 24
        said = one_line(said)
        assert "1048576" in said
        assert "2097152" in said
    segment = "commitlog/00000000000000000000"
    assert (first.store / segment).read_bytes() == (copy / segment).read_bytes(), (
        "nothing is touched"
    )
    first.settings = {"mappedFileSizeCommitLog": "1048576"}
    first.start()
    served(first, "Small")


def test_a_port_in_use(workshop: Workshop) -> None:
    first = workshop.alone()
    first.start()
    second = workshop.joining("b2", first.nameservers[0])
    second.port = first.port
    code, said = expect_failure(second)
    assert code != 0
    if workshop.kind == "trio":
        assert code == 31
        assert str(first.port) in one_line(said)
    served(first, "Port")
    second.port = free_port()
    second.start()
    served(second, "Port")
