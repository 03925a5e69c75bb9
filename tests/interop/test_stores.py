"""Stores that travel: Apache's reference stores, and stores handed from one kind of broker to the other and back."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import attrs
import pytest

from .conftest import Cluster, Workshop
from .drivers import ClientError
from .java_client import Java, Pull, Queue, Received, Sent, text, texts
from .polling import now_ms, wait_for
from .raw import RawClient, loads
from .scenes import exactly, push
from .servers import Kind, Server

GOLDEN = Path(__file__).parent.parent / "golden"
GOLDEN_SETTINGS = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "1200",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "maxMessageSize": "60000",
    "enableBatchConsumeQueue": "true",
    "timerPrecisionMs": "1000",
}
QUERY_OFFSET, VIEW = 14, 33
COMPRESSED = 1
# A topic whose batches stay together in the log.
INNER = "TravelsTogether"


def golden(name: str) -> list[dict[str, Any]]:
    """Every record, as Apache's decoder read it from the store."""
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]


@pytest.fixture(params=["clean", "crash"])
def opened(request: pytest.FixtureRequest, workshop: Workshop) -> tuple[str, Cluster]:
    """A broker that runs on a fresh copy of a reference store."""
    name = request.param
    server = workshop.alone("broker-gold", settings=GOLDEN_SETTINGS)
    server.home.mkdir(parents=True, exist_ok=True)
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(server.home, filter="data")
    (server.home / name).rename(server.store)
    server.start()
    return name, workshop.cluster(server)


def test_reference_stores(opened: tuple[str, Cluster], java: Java) -> None:
    name, cluster = opened
    rows = golden(name)
    committed_offsets(cluster)
    every_record_by_offset(cluster, rows)
    every_queue_by_pull(cluster, java, rows)
    # After a crash Apache drops index files that its checkpoint does not vouch for.
    if name == "clean" or cluster.kind == "trio":
        keys(cluster, rows)
    goes_on(cluster, java, rows)


def committed_offsets(cluster: Cluster) -> None:
    """What the consumers committed before the store was put away."""
    path = cluster.brokers[0].store / "config" / "consumerOffset.json"
    table = loads(path.read_text())["offsetTable"]
    wanted = {k: v for k, v in table.items() if k.endswith(("@GoldGroup", "@GoldFailing"))}
    assert wanted
    with RawClient(cluster.brokers[0].address) as client:
        for key, queues in wanted.items():
            topic, group = key.split("@")
            for queue, offset in queues.items():
                ext = {"consumerGroup": group, "topic": topic, "queueId": str(queue)}
                assert client.call(QUERY_OFFSET, ext).ext["offset"] == str(offset)


def every_record_by_offset(cluster: Cluster, rows: list[dict[str, Any]]) -> None:
    """View by log offset, decoded by the Java client."""
    views = cluster.admin.view_all(cluster.brokers[0].address, [r["offset"] for r in rows])
    for row, seen in zip(rows, views, strict=True):
        assert isinstance(seen, Received), f"record at {row['offset']}: {seen}"
        assert same(row, seen), f"record at {row['offset']}: {row} is not {seen}"


def same(row: dict[str, Any], seen: Received) -> bool:
    """All that the reference list knows; a client takes the compression bit away after it inflated the body."""
    return (
        (row["topic"], row["queueId"], row["queueOffset"], row["offset"], row["size"])
        == (seen.topic, seen.queue, seen.queue_offset, seen.log_offset, seen.store_size)
        and (row["flag"], row["sysFlag"] & ~COMPRESSED, row["reconsumeTimes"])
        == (seen.flag, seen.sys_flag & ~COMPRESSED, seen.reconsume_times)
        and (row["bornTimestamp"], row["storeTimestamp"], row["preparedTransactionOffset"])
        == (seen.born_timestamp, seen.store_timestamp, seen.prepared_transaction_offset)
        and (row["plainBodyLength"], row["plainBodyCRC32"]) == (seen.body_length, seen.body_crc32)
        and row["properties"] == seen.properties
        and row["bornHost"] in seen.born_host
        and row["storeHost"] == seen.store_host
    )


def every_queue_by_pull(cluster: Cluster, java: Java, rows: list[dict[str, Any]]) -> None:
    """Each queue from its first offset, as a pull consumer reads it."""
    queues: dict[Queue, list[dict[str, Any]]] = {}
    for row in rows:
        queue = Queue(row["topic"], "broker-gold", row["queueId"])
        queues.setdefault(queue, []).append(row)
    pull = java.pull(cluster.ns, "GoldReader")
    for queue, wanted in queues.items():
        messages, _ = pull.drain([queue])
        if queue.topic == "GoldBCQ":
            bodies = [f"bcq {b} item {i}" for b in range(2) for i in range(5)]
            assert [m.body for m in messages] == bodies
            assert [m.queue_offset for m in messages] == list(range(10))
            continue
        # Delayed and half messages go on living, so there may be more than when the store was put away.
        offsets = [(r["queueOffset"], r["plainBodyCRC32"]) for r in wanted]
        assert [(m.queue_offset, m.body_crc32) for m in messages][: len(wanted)] == offsets, queue
        shown = [m.properties for m in messages[: len(wanted)]]
        for row, properties in zip(wanted, shown, strict=True):
            assert row["properties"].items() <= properties.items()


def keys(cluster: Cluster, rows: list[dict[str, Any]]) -> None:
    """The key index of the store answers."""
    end = now_ms()
    for row in [r for r in rows if r["topic"] == "GoldNormal" and r["properties"].get("KEYS")][
        ::20
    ]:
        key = row["properties"]["KEYS"].split()[0]
        found = cluster.admin.query("GoldNormal", key, 32, 0, end)
        assert row["offset"] in [m.log_offset for m in found]


def goes_on(cluster: Cluster, java: Java, rows: list[dict[str, Any]]) -> None:
    """New messages follow the old ones."""
    consumer = push(java, cluster, ("GoldNormal", "New"))
    producer = java.producer(cluster.ns)
    for queue in range(4):
        old = [r for r in rows if r["topic"] == "GoldNormal" and r["queueId"] == queue]
        to = Queue("GoldNormal", "broker-gold", queue)
        sent = producer.send_ok([text("GoldNormal", f"new {queue}", tags="New")], to=to)[0]
        assert sent.queue_offset == old[-1]["queueOffset"] + 1
    exactly(consumer, 4)


@attrs.define
class Written:
    """What the owners of the store wrote: bodies by queue and offset, by offset id and by key, and inner batches."""

    bodies: dict[tuple[int, int], str] = attrs.field(factory=dict)
    ids: dict[str, str] = attrs.field(factory=dict)
    keys: dict[str, str] = attrs.field(factory=dict)
    inner: list[str] = attrs.field(factory=list)


def write(java: Java, ns: str, topic: str, phase: int, written: Written) -> None:
    """Plain, tagged, unicode, compressed and batched messages."""
    producer = java.producer(ns)
    plain = [
        text(
            topic, f"{phase} plain {i}", tags="A" if i % 2 else "\u6807\u7b7e", keys=f"key{phase}-{i} all",
            props={"own": "h\u00e9llo \u2603 \U0001d11e"},
        )
        for i in range(40)
    ]  # fmt: skip
    large = text(topic, f"{phase} large {'x' * 4000}", keys=f"large{phase}")
    squeezed = java.producer(ns, compressOver=1000)
    for message, sent in zip(plain, producer.send_ok(plain), strict=True):
        note(written, message, sent)
    note(written, large, squeezed.send_ok([large])[0])
    for n in range(3):
        messages = texts(topic, 10, f"{phase} batch {n}")
        sent = producer.batch(messages, to=Queue(topic, "b1", n))
        for i, message in enumerate(messages):
            written.bodies[n, sent.queue_offset + i] = message["body"]

    for n in range(2):
        messages = texts(INNER, 5, f"{phase} inner {n}")
        sent = producer.batch(messages, to=Queue(INNER, "b1", 0))
        assert sent.queue_offset == len(written.inner)
        written.inner += [m["body"] for m in messages]


def note(written: Written, message: dict[str, Any], sent: Sent) -> None:
    """Keep what was acknowledged."""
    written.bodies[sent.queue, sent.queue_offset] = message["body"]
    written.ids[sent.offset_msg_id] = message["body"]
    written.keys[message["keys"].split()[0]] = message["body"]


def verify(cluster: Cluster, pull: Pull, topic: str, written: Written) -> None:
    """All of it is there: by queue, by id and by key."""
    queues = [Queue(topic, "b1", q) for q in range(4)]
    messages, _ = pull.drain(queues)
    assert {(m.queue, m.queue_offset): m.body for m in messages} == written.bodies
    assert len(messages) == len(written.bodies)
    batches, _ = pull.drain([Queue(INNER, "b1", 0)])
    assert [(m.queue_offset, m.body) for m in batches] == list(enumerate(written.inner))
    address = cluster.brokers[0].address
    offsets = {int(i[16:], 16): body for i, body in written.ids.items()}
    views = cluster.admin.view_all(address, list(offsets))
    assert [v.body for v in views if isinstance(v, Received)] == list(offsets.values())
    end = now_ms()
    for key, body in list(written.keys.items())[::7]:
        found = wait_for(lambda k=key: query(cluster, topic, k, end), f"key {key}", timeout_s=10)
        assert found == [body]


def query(cluster: Cluster, topic: str, key: str, end: int) -> list[str | None]:
    """Bodies that a key finds; empty when the index is not there yet."""
    try:
        return [m.body for m in cluster.admin.query(topic, key, 32, 0, end)]
    except ClientError:
        return []


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize(
    "owners", [("tested", "apache", "tested"), ("apache", "tested")], ids="-".join
)
def test_a_store_changes_hands(
    workshop: Workshop, java: Java, owners: tuple[str, ...], ending: str
) -> None:
    topic, group = "Travels", "TravelGroup"
    written, home, previous = Written(), None, None
    for phase, owner in enumerate(owners):
        kind: Kind = "apache" if owner == "apache" else workshop.kind
        server: Server = workshop.alone(
            kind=kind, flush="sync", settings={"mappedFileSizeCommitLog": "1048576"}
        )
        if home is not None:
            server.home.mkdir(parents=True, exist_ok=True)
            home.rename(server.store)
        home = server.store
        server.start()
        cluster = workshop.cluster(server, kind=kind)
        pull = java.pull(cluster.ns, group)
        first = Queue(topic, "b1", 0)
        if previous is None:
            cluster.admin.topic(topic, 4)
            cluster.admin.topic(INNER, 1, attributes={"queue.type": "BatchCQ"})
            cluster.admin.group(group)
        else:
            assert cluster.admin.route(topic)["queues"] == [
                {"broker": "b1", "read": 4, "write": 4, "perm": 6}
            ]
            if ending == "stop":
                assert pull.committed(first) == previous
            verify(cluster, pull, topic, written)
        write(java, cluster.ns, topic, phase, written)
        previous = 5 + phase
        pull.commit(first, previous)
        wait_for(lambda p=pull, q=first, o=previous: p.committed(q) == o, "the commit")
        java.close()
        if ending == "stop":
            server.stop()
        else:
            server.kill()


def test_a_clean_stop_is_quick_and_leaves_no_abort_file(workshop: Workshop, java: Java) -> None:
    server = workshop.alone()
    server.start()
    cluster = workshop.cluster(server)
    topic = cluster.topic()
    consumer = push(java, cluster, (topic, "*"))
    java.producer(cluster.ns).send_ok(texts(topic, 100))
    exactly(consumer, 100)
    assert (server.store / "abort").exists()
    code, seconds = server.stop()
    assert not (server.store / "abort").exists()
    if workshop.kind == "trio":
        assert code == 0
        assert seconds < 3
