"""Behaviours section 16: transactions (B124 to B129), cases C151, C152 and C155; moves, kills, and the Go client.

Checks come every second here, from an age of 2 s on; the numbers of checks are Apache's. Decisions are written down
sooner than that: an Apache broker asks again about transactions whose decision is not written yet.
"""

from __future__ import annotations

from collections import Counter

import pytest

from .conftest import STANDARD, Cluster, MakeCluster, Workshop
from .go_client import Go
from .java_client import Java, unique
from .polling import holds_for, wait_for
from .raw import RawClient, Record, Reply, Sender, properties, pull_fields, records
from .scenes import push
from .servers import Kind, Server
from .transactions import (
    COMMIT,
    ROLL_BACK,
    UNKNOWN,
    Transactional,
    go_transactional,
    planned,
    transactional,
)

QUICK_CHECKS = {
    "transactionCheckInterval": "1000",
    "transactionTimeOut": "2000",
    "transactionOpBatchInterval": "200",
}
END_TRANSACTION, PULL = 37, 11
MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
PLANS = (
    (COMMIT,),
    (ROLL_BACK,),
    (UNKNOWN, COMMIT),
    (UNKNOWN, ROLL_BACK),
    (UNKNOWN, UNKNOWN),
)


@pytest.fixture(scope="module")
def quick(make_cluster: MakeCluster) -> Cluster:
    """One master that checks often."""
    return make_cluster(1, {**STANDARD, **QUICK_CHECKS})


def test_b124_b125_what_is_committed_arrives_and_nothing_else(java: Java, quick: Cluster) -> None:
    topic = quick.topic()
    consumer = push(java, quick, (topic, "*"))
    producer = transactional(java, quick.ns)
    messages = [planned(topic, f"{number}", *PLANS[number % 5]) for number in range(120)]
    results = producer.send(*messages)
    assert all(sent.ok for sent in results)
    assert all(sent.transaction_id == sent.msg_id for sent in results)
    consumer.wait(48, 60)
    wanted = {m["body"] for n, m in enumerate(messages) if n % 5 in (0, 2)}
    assert set(consumer.bodies()) == wanted

    def asked() -> Counter[str]:
        return Counter(check.body for check in producer.checks())

    # Those that nobody decides about are asked about again and again, the others once at most.
    wait_for(lambda: min(asked()[str(n)] for n in range(4, 120, 5)) >= 3, "three checks of each")
    counts = asked()
    assert all(counts[str(n)] == 1 for n in range(120) if n % 5 in (2, 3))
    assert all(counts[str(n)] == 0 for n in range(120) if n % 5 in (0, 1))
    assert {check.topic for check in producer.checks()} == {topic}
    assert len(consumer.bodies()) == 48


def test_b126_nothing_is_there_before_the_decision(java: Java, quick: Cluster) -> None:
    topic = quick.topic(4)
    producer = transactional(java, quick.ns)
    sending = producer.begin(planned(topic, "x", COMMIT, local_ms=1500))
    holds_for(
        lambda: all(row["max"] == 0 for row in quick.admin.stats(topic)), "nothing", seconds=1.0
    )
    (sent,) = sending.results()
    assert sent.ok
    assert sent.transaction_id == sent.msg_id
    consumer = java.pull(quick.ns, quick.group())
    queue = next(q for q in consumer.queues(topic) if q.queue == sent.queue)
    wait_for(lambda: quick.admin.max(queue) == 1, "the commit")
    (message,), _ = consumer.drain([queue])
    assert message.body == "x"
    assert message.sys_flag & 0xC == 8
    (half,) = quick.admin.view_all(quick.brokers[0].address, [message.prepared_transaction_offset])
    assert (half.topic, half.body) == ("RMQ_SYS_TRANS_HALF_TOPIC", "x")
    assert "REAL_TOPIC" not in message.properties


def test_b127_what_nobody_decides_is_given_up_after_15_checks(java: Java, quick: Cluster) -> None:
    topic = quick.topic()
    producer = transactional(java, quick.ns)
    (sent,) = producer.send(planned(topic, unique("given-up"), UNKNOWN))
    producer.wait_checks(15, 60)

    def moved() -> list[str]:
        with RawClient(quick.brokers[0].address) as client:
            return [record.properties["UNIQ_KEY"] for record in everything(client, MAX_TIME_TOPIC)]

    wait_for(lambda: sent.msg_id in moved(), "the move", timeout_s=20)
    holds_for(lambda: len(producer.checks()) == 15, "no check after that", seconds=2.5)
    assert all(row["max"] == 0 for row in quick.admin.stats(topic))


def everything(client: RawClient, topic: str) -> list[Record]:
    """All records of queue 0 of a topic."""
    found: list[Record] = []
    while True:
        reply = client.call(PULL, pull_fields("RawReaders", topic, 0, len(found)))
        if reply.code != 0:
            return found
        found += records(reply.body)


def test_b128_another_producer_of_the_group_is_asked(java: Java, quick: Cluster) -> None:
    topic, group = quick.topic(), unique("TP")
    consumer = push(java, quick, (topic, "*"))
    first = transactional(java, quick.ns, group)
    first.send(planned(topic, "x", UNKNOWN, COMMIT))
    first.stop()
    second = transactional(java, quick.ns, group)
    # A producer that has sent nothing has no connection to the broker but its heartbeat's.
    second.send(planned(topic, "own", COMMIT))
    consumer.wait(2, 40)
    assert sorted(consumer.bodies()) == ["own", "x"]
    assert [check.body for check in second.checks()] == ["x"]


# -- B129: by hand


def half(sender: Sender, key: str, group: str = "RawTP", **more: str) -> Reply:
    """Send a half message."""
    props = {"TRAN_MSG": "true", "PGROUP": group, "UNIQ_KEY": key, "WAIT": "true", **more}
    return sender.send(b"raw", 0, properties(props), sysFlag="4", producerGroup=group)


def end(client: RawClient, sent: Reply, decision: int, **changes: str) -> Reply:
    """Decide, and wait for the answer."""
    fields = {
        "producerGroup": "RawTP",
        "tranStateTableOffset": sent.ext["queueOffset"],
        "commitLogOffset": str(int(sent.ext["msgId"][16:], 16)),
        "commitOrRollback": str(decision),
        "fromTransactionCheck": "false",
        "msgId": sent.ext["transactionId"],
        "transactionId": sent.ext["transactionId"],
    }
    return client.call(END_TRANSACTION, {**fields, **changes})


def test_b129_ends_that_are_refused(quick: Cluster) -> None:
    topic = quick.topic(1)
    with RawClient(quick.brokers[0].address) as client:
        sender = Sender(client, topic)
        sent = half(sender, "B129A")
        assert sent.ext["transactionId"] == "B129A"
        assert end(client, sent, 8, producerGroup="Other").code == 1
        assert end(client, sent, 8, tranStateTableOffset="4711").code == 1
        assert end(client, sent, 8, commitLogOffset="99999999999").code == 1
        assert end(client, sent, 8).code == 0
        wait_for(lambda: len(everything(client, topic)) == 1, "the message")
        # It is born long ago, so its time is over.
        old = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3"}
        props = {"TRAN_MSG": "true", "PGROUP": "RawTP", "UNIQ_KEY": "B129B", **old}
        late = sender.send(
            b"raw", 0, properties(props), sysFlag="4", producerGroup="RawTP", bornTimestamp="1"
        )
        assert end(client, late, 8).code == 604
        assert end(client, late, 12).code == 604
        assert end(client, late, 12, fromTransactionCheck="true").code == 0


def test_b129_a_broker_may_refuse_transactions(workshop: Workshop) -> None:
    server = workshop.alone(settings={"rejectTransactionMessage": "true"})
    server.start()
    with RawClient(server.address) as client:
        reply = half(Sender(client, unique("Refused")), "B129C")
        assert reply.code == 16


# -- Go


def test_go_transactions(go: Go, java: Java, quick: Cluster) -> None:
    topic = quick.topic()
    consumer = push(java, quick, (topic, "*"))
    producer = go_transactional(go, quick.ns)
    producer.send(*[planned(topic, f"{number}", *PLANS[number % 5]) for number in range(20)])
    consumer.wait(8, 60)
    assert sorted(int(body) for body in consumer.bodies()) == [
        n for n in range(20) if n % 5 in (0, 2)
    ]
    assert {int(check.body) % 5 for check in producer.checks()} <= {2, 3, 4}


# -- stores that change hands, and kills


def opened(
    workshop: Workshop, kind: Kind, previous: Server | None, **settings: str
) -> tuple[Server, Cluster]:
    """A broker on the store of the one before, which has ended."""
    server = workshop.alone(kind=kind, settings={**QUICK_CHECKS, **settings})
    if previous is not None:
        server.home.mkdir(parents=True, exist_ok=True)
        previous.store.rename(server.store)
    server.start()
    return server, workshop.cluster(server, kind=kind)


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_open_transactions_move_to_apache_and_back(
    workshop: Workshop, java: Java, ending: str
) -> None:
    topic, group = "TravelsHalf", "TravellersTP"
    server = None
    bodies: list[str] = []
    for phase, kind in enumerate((workshop.kind, "apache", workshop.kind)):
        server, cluster = opened(workshop, kind, server)
        cluster.admin.topic(topic, 4)
        producer = transactional(java, cluster.ns, group)
        producer.send(
            planned(topic, f"{phase}-commit", COMMIT),
            planned(topic, f"{phase}-rollback", ROLL_BACK),
        )
        # The plans count checks of one producer, and this one is new: the open ones are decided by the first.
        if ending == "stop":
            wait_delivered(cluster, topic, len(bodies) + 1, 40)
        else:  # Apache, killed, forgets which of its copies of a half message it has settled
            wait_for(lambda: delivered(cluster, topic) > len(bodies), "all", timeout_s=40)  # noqa: B023
        assert all(check.body in bodies for check in producer.checks())
        # Two decisions of this phase and two about those that were open; without their op records the next owner would
        # ask again, and a commit would be there twice.
        wait_for(lambda: decided(cluster) >= 2 + 4 * phase, "op records", timeout_s=20)  # noqa: B023
        producer.send(
            planned(topic, f"{phase}-open", UNKNOWN, COMMIT),
            planned(topic, f"{phase}-open2", UNKNOWN, COMMIT),
        )
        bodies += [f"{phase}-commit", f"{phase}-open", f"{phase}-open2"]
        if phase < 2:
            java.close()
            server.stop() if ending == "stop" else server.kill()
    consumer = push(java, cluster, (topic, "*"), start="FIRST_OFFSET")
    wait_for(lambda: set(consumer.bodies()) >= set(bodies), "all", timeout_s=60)
    counts = Counter(consumer.bodies())
    assert counts.keys() == set(bodies)
    # What Apache decided before it was killed may come again, here as there.
    twice = {body for body, count in counts.items() if count > 1}
    assert twice <= ({"0-open", "0-open2", "1-commit"} if ending == "kill" else set())


def decided(cluster: Cluster) -> int:
    """Half messages that op records name: each body is a list of queue offsets."""
    with RawClient(cluster.brokers[0].address) as client:
        ops = everything(client, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    return len({at for op in ops for at in op.body.decode().split(",") if at})


def delivered(cluster: Cluster, topic: str) -> int:
    """Messages in a topic."""
    return sum(row["max"] for row in cluster.admin.stats(topic))


def wait_delivered(cluster: Cluster, topic: str, count: int, timeout_s: float) -> None:
    """Until there are so many, and no more."""
    wait_for(lambda: delivered(cluster, topic) >= count, f"{count} in {topic}", timeout_s=timeout_s)
    assert delivered(cluster, topic) == count


def test_c151_only_what_is_open_is_checked_after_a_restart(workshop: Workshop, java: Java) -> None:
    """2000 transactions from 5 tasks, half of them unknown, one restart."""
    server = workshop.alone(kind="trio", settings={"transactionCheckInterval": "4000"})
    server.start()
    cluster = workshop.cluster(server, kind="trio")
    cluster.admin.topic("C151", 8)
    group = unique("TP")
    producer = transactional(java, cluster.ns, group)
    load = producer.load("C151", 2000, [COMMIT, UNKNOWN, ROLL_BACK, UNKNOWN], threads=5).result()
    assert load.errors == {}
    server.stop()
    server.start()
    unknown = load.bodies(UNKNOWN)
    wait_for(
        lambda: {check.body for check in producer.checks()} >= unknown, "the checks", timeout_s=60
    )
    assert {check.body for check in producer.checks()} == unknown
    assert delivered(cluster, "C151") == 500


def test_c152_c155_late_commits(java: Java, workshop: Workshop) -> None:
    """Local work of 10 s: checked each second meanwhile, without a decision or with a roll back."""
    server = workshop.alone(kind="trio", settings=QUICK_CHECKS)
    server.start()
    cluster = workshop.cluster(server, kind="trio")
    topics = [cluster.topic(1), cluster.topic(1)]
    producers = [transactional(java, cluster.ns) for _ in topics]
    sending = [
        producers[0].begin(planned(topics[0], "c152", COMMIT, UNKNOWN, local_ms=8000)),
        producers[1].begin(planned(topics[1], "c155", COMMIT, ROLL_BACK, local_ms=8000)),
    ]
    for one in sending:
        assert one.results()[0].ok
    wait_for(lambda: delivered(cluster, topics[0]) == 1, "the late commit", timeout_s=2)
    asked = [len(producer.checks()) for producer in producers]
    assert asked[0] >= 4
    assert asked[1] == 1
    holds_for(
        lambda: (
            [len(producer.checks()) for producer in producers] == asked
            and delivered(cluster, topics[0]) == 1
            and delivered(cluster, topics[1]) == 0
        ),
        "no check and no message more",
        seconds=3,
    )


def test_nothing_is_lost_by_a_kill_under_load(workshop: Workshop, java: Java) -> None:
    settings = {**QUICK_CHECKS, "transactionOpBatchInterval": "3000"}
    server = workshop.alone(kind="trio", settings=settings)
    server.start()
    cluster = workshop.cluster(server, kind="trio")
    cluster.admin.topic("KillTP", 8)
    producer: Transactional = transactional(java, cluster.ns)
    loading = producer.load("KillTP", 20_000, [COMMIT, ROLL_BACK, f"{UNKNOWN},{COMMIT}"], threads=8)
    wait_for(lambda: delivered(cluster, "KillTP") > 2000, "a part of the load", timeout_s=60)
    server.kill()
    server.start()
    load = loading.result()
    consumer = push(java, cluster, ("KillTP", "*"), start="FIRST_OFFSET")
    wanted = load.bodies(COMMIT) | load.bodies(f"{UNKNOWN},{COMMIT}")
    wait_for(lambda: set(consumer.bodies()) >= wanted, "all that was committed", timeout_s=60)
    counts = Counter(consumer.bodies())
    assert not load.bodies(ROLL_BACK) & counts.keys()
    twice = [body for body, count in counts.items() if count > 1]
    assert twice == []
