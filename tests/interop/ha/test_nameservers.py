"""A slave that stands in for a lost master: name servers and brokers of both kinds, mixed.

That a name server has told a slave of a new smallest id (905) shows in an Apache slave's log, and in where a slave of
ours sends its readers: to a living master, or to itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from tests.interop import servers
from tests.interop.java_client import unique
from tests.interop.polling import wait_for
from tests.interop.raw import RawClient, Reply
from tests.interop.servers import Kind

from .conftest import Bench
from .pairs import Pair

SEND, PULL, QUERY_OFFSET, COMMIT, MAX_OFFSET = 10, 11, 14, 15, 30
ROUTE, CREATE_TOPIC, MEMBERS = 105, 17, 901
NAMES = {"supportActingMaster": "true", "notifyMinBrokerIdChanged": "true"}
ACTING = {"enableSlaveActingMaster": "true", "registerNameServerPeriod": "10000"}
CLUSTER = "DefaultCluster"


@attrs.define
class Group:
    """A pair at one name server; the master is killed and comes back."""

    pair: Pair
    nameserver: str
    topic: str

    def route(self) -> tuple[dict[int, str], int]:
        """Addresses by id, and the permission of the topic, as clients are told; nothing without a route."""
        with RawClient(self.nameserver) as client:
            reply = client.call(ROUTE, {"topic": self.topic})
        if reply.code != 0:
            return {}, 0
        route = reply.json()
        (broker,), (queues,) = route["brokerDatas"], route["queueDatas"]
        return {int(n): at for n, at in broker["brokerAddrs"].items()}, queues["perm"]

    def members(self) -> dict[int, str]:
        """By request 901."""
        with RawClient(self.nameserver) as client:
            reply = client.call(MEMBERS, {"clusterName": CLUSTER, "brokerName": self.pair.name})
        group = reply.json()["brokerMemberGroup"]
        return {int(n): at for n, at in group["brokerAddrs"].items()}

    def send(self, address: str, text: str) -> int:
        """The code of the answer."""
        fields = {
            "producerGroup": "PG", "topic": self.topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
            "queueId": "0", "sysFlag": "0", "bornTimestamp": "1", "flag": "0", "reconsumeTimes": "0",
            "unitMode": "false", "batch": "false", "properties": "",
        }  # fmt: skip
        with RawClient(address) as client:
            return client.call(SEND, fields, text.encode()).code

    def pull(self, offset: int) -> Reply:
        """At the slave."""
        fields = {
            "consumerGroup": "CG", "topic": self.topic, "queueId": "0", "queueOffset": str(offset),
            "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "subscription": "*", "subVersion": "1",
            "suspendTimeoutMillis": "0", "expressionType": "TAG",
        }  # fmt: skip
        with RawClient(self.pair.slave.address) as client:
            return client.call(PULL, fields)

    def max_offset(self, address: str) -> int:
        """Of the queue."""
        with RawClient(address) as client:
            reply = client.call(MAX_OFFSET, {"topic": self.topic, "queueId": "0"})
        return int(reply.ext["offset"]) if reply.code == 0 else -1

    def has_heard(self, broker_id: int) -> bool:
        """Whether the slave knows that this is the smallest id now."""
        if isinstance(self.pair.slave, servers.ApacheBroker):
            logs = "".join(f.read_text() for f in self.pair.slave.home.rglob("broker.log"))
            changes = re.findall(r"Min broker changed, old: .*, new (\d+)-", logs)
            return bool(changes) and int(changes[-1]) == broker_id
        reply = self.pull(0)
        return reply.code == 0 and int(reply.ext["suggestWhichBrokerId"]) == broker_id


@pytest.fixture
def names(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Address of a name server of its own process, of the kind given, that supports acting masters."""
    kind: Kind = request.param
    if kind == "trio":
        server, _ = servers.alone("trio", tmp_path, unique("names"), settings=NAMES)
        server.start()
        yield server.nameservers[0]
        server.discard()
        return
    apache = servers.ApacheNameServer(home=tmp_path / "names", settings=NAMES)
    apache.start()
    yield apache.address
    apache.discard()


@pytest.fixture
def group(request: pytest.FixtureRequest, bench: Bench, names: str) -> Group:
    """It runs, with three messages in its topic that both have."""
    settings = {**ACTING, "slaveReadEnable": "true"}
    pair = bench.pair(request.param, through_proxy=False, settings=settings, nameservers=[names])
    pair.start()
    topic = unique("Acting")
    with RawClient(pair.master.address) as client:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert client.call(CREATE_TOPIC, fields).code == 0
    found = Group(pair, names, topic)
    both = {0: pair.master.address, 1: pair.slave.address}
    wait_for(lambda: found.route() == (both, 6), "the topic has its route", timeout_s=15)
    assert [found.send(pair.master.address, f"m{n}") for n in range(3)] == [0, 0, 0]
    pair.wait_caught_up()
    # The slave has the topic only when it has copied the master's tables; Apache's does that once a minute.
    wait_for(lambda: found.pull(0).code == 0, "the slave may be read", timeout_s=75)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "group"),
    [
        ("apache", "trio-trio"),
        ("trio", "trio-trio"),
        ("trio", "apache-apache"),
        ("trio", "trio-apache"),
        ("apache", "apache-trio"),
    ],
    indirect=True,
)
def test_the_slave_stands_in_for_a_lost_master(group: Group) -> None:
    pair = group.pair
    master, slave = pair.master.address, pair.slave.address
    assert group.members() == {0: master, 1: slave}
    assert group.pull(0).code == 0
    pair.master.kill()
    wait_for(lambda: group.route() == ({0: slave}, 4), "it is shown as the master", timeout_s=20)
    assert group.members() == {1: slave}
    wait_for(lambda: group.has_heard(1), "it knows, too", timeout_s=20)
    assert group.pull(0).code == 0
    with RawClient(slave) as client:
        place = {"consumerGroup": "CG", "topic": group.topic, "queueId": "0"}
        assert client.call(COMMIT, {**place, "commitOffset": "2"}).code == 0
        assert client.call(QUERY_OFFSET, place).ext["offset"] == "2"
    assert group.send(slave, "no") in (2, 14)
    assert group.max_offset(slave) == 3
    pair.master.start()
    both = {0: master, 1: slave}
    wait_for(lambda: group.route() == (both, 6), "the master is back", timeout_s=20)
    wait_for(lambda: group.has_heard(0), "the slave knows that it is", timeout_s=20)
    assert group.send(master, "again") == 0
    pair.wait_caught_up(60)
