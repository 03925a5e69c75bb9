"""Behaviours section 10: delay levels (B071, B072); case C079; stores with waiting messages that travel; kills."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from .conftest import Cluster, Workshop
from .failing import failing
from .java_client import Java, texts
from .polling import sleep
from .raw import RawClient, Sender, loads, properties
from .scenes import QUIET_S, stored
from .servers import Kind, Server

#: Level to the range that the delay of each message lies in, ms (behaviours, B071).
RANGES = {1: (1_000, 5_000), 2: (5_000, 10_000), 3: (10_000, 30_000), 4: (30_000, 60_000)}
COUNT = 100
#: The levels of stores that travel: the last one still waits when its next owner starts.
TRAVEL = {"messageDelayLevel": "1s 3s 6s 15s"}


def test_b071_c079_levels_come_after_their_delay(java: Java, cluster: Cluster) -> None:
    """C079 with it: nothing is stored in its own topic before it was due."""
    topics = {level: cluster.topic() for level in RANGES}
    consumers = {level: failing(java, cluster, topic, 0) for level, topic in topics.items()}
    for level, topic in topics.items():
        java.producer(cluster.ns).send_ok(texts(topic, COUNT, delayLevel=level))
    for level, (least_ms, most_ms) in RANGES.items():
        tries = consumers[level].wait_done(COUNT, most_ms / 1000 + 10)
        assert {t.body for t in tries} == {m["body"] for m in texts(topics[level], COUNT)}
        assert len(tries) == COUNT
        delays = [t.at - t.born for t in tries]
        assert least_ms <= min(delays), level
        assert max(delays) <= most_ms, level
        assert all(t.stored - t.born >= least_ms for t in tries)
        assert {t.topic for t in tries} == {topics[level]}


def test_b072_levels_beyond_the_table(workshop: Workshop) -> None:
    """With a table of two levels, so that the last one is soon over."""
    server = workshop.alone(settings={"messageDelayLevel": "1s 2s"})
    server.start()
    with RawClient(server.address) as client:
        sender = Sender(client, "Levels")
        for level in ("19", "1000", "0", "-1"):
            props = properties({"DELAY": level, "UNIQ_KEY": f"u{level}"})
            assert sender.send(level.encode(), props=props).code == 0
        assert {r.body for r in stored(client, "Levels", 2, 1)} == {b"0", b"-1"}
        sleep(1.5)
        assert len(stored(client, "Levels", 2, 1)) == 2, "level 2 and not level 1"
        assert len(stored(client, "Levels", 4, 1)) == 4


def test_progress_is_told(cluster: Cluster) -> None:
    """GET_ALL_DELAY_OFFSET (45), and the runtime information (28)."""
    topic = cluster.topic()
    with RawClient(cluster.brokers[0].address) as client:
        for number in range(3):
            props = properties({"DELAY": "1", "UNIQ_KEY": f"u{number}"})
            assert Sender(client, topic).send(b"m", props=props).code == 0
        stored(client, topic, 3)
        sleep(QUIET_S)
        table = client.call(28).json()["table"]
        delivered, end = table["scheduleMessageOffset_1"].split(",")
        assert int(delivered) == int(end) >= 3
        sleep(1)  # what is told to followers is on the disk first
        answer = client.call(45).json()
        assert answer["offsetTable"][1 if 1 in answer["offsetTable"] else "1"] == int(delivered)
        assert set(answer["dataVersion"]) >= {"counter", "timestamp"}


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("owners", [("tested", "apache"), ("apache", "tested")], ids="-".join)
def test_waiting_messages_travel(
    workshop: Workshop, java: Java, owners: tuple[Kind, Kind], ending: str
) -> None:
    """The next owner delivers what waits, when it is due, and what was delivered only once after a clean stop."""
    home = None
    sent: list[dict[str, object]] = []
    for owner in owners:
        kind: Kind = "apache" if owner == "apache" else workshop.kind
        server: Server = workshop.alone(kind=kind, flush="sync", settings=TRAVEL)
        if home is not None:
            server.home.mkdir(parents=True, exist_ok=True)
            home.rename(server.store)
        home = server.store
        server.start()
        cluster = workshop.cluster(server, kind=kind)
        if not sent:
            cluster.admin.topic("Waits", 4)
            for level in (1, 4):
                messages = texts("Waits", 20, f"level-{level}", delayLevel=level)
                java.producer(cluster.ns).send_ok(messages)
                sent += messages
            with RawClient(server.address) as client:
                stored(client, "Waits", 20, 4)
            sleep(QUIET_S)
            java.close()
            if ending == "stop":
                server.stop()
                table = loads((home / "config/delayOffset.json").read_text())["offsetTable"]
                assert table[1 if 1 in table else "1"] == 20
            else:
                server.kill()
    consumer = failing(java, cluster, "Waits", 0)
    tries = consumer.wait_for(
        lambda tries: {t.body for t in tries} >= {m["body"] for m in sent}, "all", 60
    )
    late = [t.stored - t.born for t in tries if t.body.startswith("level-4")]
    assert min(late) >= 15_000
    # What is in the store counts: a client may get a message again when its queues are shared out.
    with RawClient(server.address) as client:
        counts = Counter(r.body.decode() for r in stored(client, "Waits", len(sent), 4))
    twice = sorted(body for body, count in counts.items() if count > 1)
    assert ending == "kill" or not twice, twice
    assert all(counts[m["body"]] == 1 for m in sent if m["body"].startswith("level-4"))


def test_kill_9_while_messages_fall_due(workshop: Workshop, java: Java) -> None:
    """None is lost, none comes early, and what comes twice is counted."""
    rounds = 4 if workshop.kind == "trio" else 2
    chance = random.Random(int(os.environ.get("TRIO_MQ_FUZZ_SEED", "7")))
    server = workshop.alone(flush="sync")
    server.start()
    cluster = workshop.cluster(server)
    topic = cluster.topic(4)
    producer = java.producer(cluster.ns, timeoutMs=3000)
    sent: set[str] = set()
    for turn in range(rounds):
        messages = texts(topic, 400, f"turn-{turn}", delayLevel=1)
        producer.send_ok(messages)
        sent |= {m["body"] for m in messages}
        sleep(chance.uniform(0.0, 1.2))
        server.kill()
        server.start()
    with RawClient(server.address) as client:
        records = stored(client, topic, 400 * rounds, 4)
        sleep(2)
        records = stored(client, topic, 400 * rounds, 4)
    counts = Counter(r.body.decode() for r in records)
    assert set(counts) == sent
    print(f"{len(sent)} messages, {len(records) - len(sent)} came again")
