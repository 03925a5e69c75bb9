"""Every everyday command of Apache's mqadmin, on trio-mq and on Apache's broker under the same load, output by output.

Both brokers run at once, whatever kind is under test. Times, addresses, ids and widths of columns are taken out of the
outputs (:mod:`.mqadmin`), and for a few commands what :data:`DIFFERENCES` lists with its reason; all the rest has to be
equal, and to hold the words that show that the command did its work.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from . import servers
from .conftest import Workshop
from .drivers import Driver
from .java_client import Java, Queue, text, wait_all_queues
from .mqadmin import Mqadmin, plain
from .polling import wait_for
from .raw import RawClient
from .servers import Kind, Server

TOPIC, GROUP, CLONED, SPARE = "MqadminTopic", "MqadminGroup", "MqadminCloned", "MqadminSpare"
PRODUCERS = "MqadminProducers"
QUEUES, MESSAGES = 4, 20
_CAUGHT_UP = rf"(?s)%RETRY%{GROUP} b1 0 0 0 0 0.*Diff Total: 0"
UPDATE_BROKER_CONFIG, GET_BROKER_CONFIG, GET_ROUTE = 25, 26, 105


@attrs.define
class Side:
    """One broker with its clients, and the words that stand for it in arguments."""

    kind: Kind
    server: Server
    tool: Mqadmin
    words: dict[str, str] = attrs.field(factory=dict)
    outputs: dict[str, str] = attrs.field(factory=dict)

    def run(self, command: str, *arguments: str) -> str:
        """A command's output, with this side's addresses and ids put into its arguments."""
        return self.tool.run(command, *(a.format(**self.words) for a in arguments))


@attrs.frozen
class Step:
    """A command, and what its output has to match; `until` is asked again until that is so."""

    name: str
    arguments: tuple[str, ...]
    expected: str
    until: bool = False


def step(name: str, *arguments: str, expected: str, until: bool = False) -> Step:
    """`name` may have a note behind a blank, for commands that are run twice."""
    return Step(name, arguments, expected, until)


BEFORE = (
    step("updateTopic", "-c", "DefaultCluster", "-t", TOPIC, "-r", "4", "-w", "4", expected="create topic to"),
    step("updateTopic broker", "-b", "{broker}", "-t", SPARE, "-r", "2", "-w", "2", "-p", "6", expected="success"),
    step("updateSubGroup", "-c", "DefaultCluster", "-g", GROUP, "-r", "3", expected="create subscription group to"),
    step("updateSubGroup cloned", "-c", "DefaultCluster", "-g", CLONED, expected="success"),
    step("updateSubGroup spare", "-b", "{broker}", "-g", SPARE, expected="success"),
)  # fmt: skip

ONLINE = (
    # first: consumers of the tool may stay for a moment, and clients tell their progress now and then
    step("consumerProgress group", "-g", GROUP, expected=_CAUGHT_UP, until=True),
    # each broker measures rates over windows of its own: until a few messages are less than one a second for both
    step("consumerProgress", expected=rf"{GROUP} 1 V5_4_0 PUSH CLUSTERING 0 0", until=True),
    step("clusterList", expected=r"DefaultCluster b1 0 <address>"),
    step("clusterList more", "-m", expected="#InTotalToday"),
    step("topicList", expected=f"(?m)^{TOPIC}$"),
    step("topicList cluster", "-c", expected=f"DefaultCluster {TOPIC} {GROUP}"),
    step("topicStatus", "-t", TOPIC, expected=rf"b1 3 0 {MESSAGES // QUEUES} <time>"),
    step("topicRoute", "-t", TOPIC, expected='"writeQueueNums":4'),
    step("topicRoute list", "-t", TOPIC, "-l", expected="DefaultCluster b1"),
    step("queryMsgById", "-t", TOPIC, "-i", "{message_id}", expected="Message Body Path:"),
    step("queryMsgByKey", "-t", TOPIC, "-k", "k7", expected="<id> "),
    step("queryMsgByUniqueKey", "-t", TOPIC, "-i", "{unique_id}", expected=rf"Topic: {TOPIC}"),
    step("queryMsgByOffset", "-t", TOPIC, "-b", "b1", "-i", "1", "-o", "2", expected="Queue Offset: 2"),
    step("printMsg", "-t", TOPIC, "-d", "true", expected="BODY: body-7"),
    step("consumerConnection", "-g", GROUP, expected=rf"{TOPIC} \*"),
    step("producerConnection", "-g", PRODUCERS, "-t", TOPIC, expected="<client>"),
    step("producer", "-b", "{broker}", expected=PRODUCERS),
    step("consumerStatus", "-g", GROUP, expected="<client>"),
    step("consumerStatus member", "-g", GROUP, "-i", "{client}", expected="PROP_CONSUMEORDERLY"),
    step("statsAll", "-t", TOPIC, expected=rf"{TOPIC} {GROUP} 0 \S+ \S+ {MESSAGES} {MESSAGES}", until=True),
    step("statsAll active", "-a", expected=TOPIC, until=True),
    step("brokerConsumeStats", "-b", "{broker}", expected=TOPIC),
    step("brokerStatus", "-b", "{broker}", expected="putTps"),
    step("getBrokerConfig", "-b", "{broker}", expected="brokerPermission"),
    step("updateBrokerConfig", "-b", "{broker}", "-k", "fileReservedTime", "-v", "48", expected="success"),
    step("updateBrokerConfig black", "-b", "{broker}", "-k", "brokerConfigPath", "-v", "/x", expected="(?i)CODE: 16"),
    step("updateBrokerConfig unknown", "-b", "{broker}", "-k", "noSuchThing", "-v", "1", expected=""),
    step("sendMessage", "-t", TOPIC, "-p", "sent by hand", "-b", "b1", "-i", "2", expected="b1 2 SEND_OK <id>"),
    step("consumeMessage", "-t", TOPIC, "-b", "b1", "-i", "0", "-o", "0", "-c", "2", expected="body-0"),
    step("updateKvConfig", "-s", "MQADMIN", "-k", "a", "-v", "b", expected="success"),
    step("deleteKvConfig", "-s", "MQADMIN", "-k", "a", expected="success"),
    step("wipeWritePerm", "-b", "b1", expected="wipe write perm of broker"),
    step("topicRoute wiped", "-t", TOPIC, expected='"perm":4'),
    step("addWritePerm", "-b", "b1", expected="add write perm of broker"),
    step("topicRoute added", "-t", TOPIC, expected='"perm":6'),
)  # fmt: skip

OFFLINE = (
    step("consumerProgress offline", "-g", GROUP, expected="Consume Diff Total: 0"),
    step("consumerConnection offline", "-g", GROUP, expected="(?i)not online|CODE: 206"),
    step("resetOffsetByTime", "-g", GROUP, "-t", TOPIC, "-s", "0", expected="b1 3 0"),
    step("consumerProgress reset", "-g", GROUP, expected=f"Consume Diff Total: {MESSAGES + 1}"),
    step("resetOffsetByTime now", "-g", GROUP, "-t", TOPIC, "-s", "now", expected="b1 2 6"),
    step("cloneGroupOffset", "-s", GROUP, "-d", CLONED, "-t", TOPIC, "-o", "true", expected="success"),
    step("brokerConsumeStats cloned", "-b", "{broker}", expected=rf"{TOPIC} {CLONED} b1 2 6 6 0"),
    step("deleteSubGroup", "-b", "{broker}", "-g", SPARE, expected="success"),
    step("deleteTopic", "-c", "DefaultCluster", "-t", SPARE, expected="success"),
    step("topicRoute gone", "-t", SPARE, expected="CODE: 17"),
)  # fmt: skip

STEPS = BEFORE + ONLINE + OFFLINE


@attrs.frozen
class Difference:
    """What is taken out of an output before it is compared, and why it may differ."""

    pattern: str
    reason: str


_WORDS = Difference(r"DESC:.*$", "the code of a refusal is the same, its words say what to do")
_VERSION = Difference(r"trio-mq \S+|V5_4_0", "each broker tells its own version")
_OWN = "appendTimes|brokerRole|cleaning|damagedRecords|flushTimes|haSlaves|lostLocks|notWritable|queueLocks"
DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "clusterList": (_VERSION,),
    "brokerStatus": (
        Difference(
            r"(?<=:).*$|(?<=commitLogDiskRatio_)\S+", "values are measured: names are compared"
        ),
        Difference(rf"^({_OWN}|subscriptionConflicts) :\n", "told beyond Apache's table"),
        Difference(r"^getMessageEntireTimeMax :\n", "not measured"),
    ),
    "producer": (
        Difference(
            r"^producer group \(CLIENT_INNER_PRODUCER\).*\n?", "clients of the tool come and go"
        ),
    ),
    "getBrokerConfig": (Difference(r"(?s).*", "only settings that trio-mq acts on are shown"),),
    "updateBrokerConfig black": (_WORDS,),
    "updateBrokerConfig unknown": (
        Difference(r"(?s).*", "Apache says yes to a key that it does not know; trio-mq refuses it"),
    ),
    "consumerConnection offline": (_WORDS,),
    "topicRoute gone": (_WORDS,),
}

#: Settings whose values are not those of Apache's broker in this test.
OTHER_VALUES = {
    "bindAddress": "a first start of trio-mq is not open to the network",
    "brokerIP2": "as brokerIP1",
    "enablePropertyFilter": "on when there is no file of settings",
    "haListenPort": "one above listenPort",
    "recoverConcurrently": "the result is the same",
    "registerBrokerTimeoutMills": "a name server that hangs is tried again sooner",
    "slaveTimeout": "less than the 3 s after which a client gives up (C067)",
    **dict.fromkeys(
        ("brokerIP1", "diskMaxUsedSpaceRatio", "listenPort", "namesrvAddr"), "given by this suite"
    ),
    **dict.fromkeys(("storePathRootDir", "storePathCommitLog"), "each has its own store"),
}
_SETTING = re.compile(r"^(\S+) = ?(.*)$", re.MULTILINE)


def load(java: Java, side: Side) -> None:
    """The same messages for both; consumed, with clients that stay."""
    at = side.server.nameservers[0]
    # A consumer that starts before its retry topic has a route gets it with a later sharing out, 20 to 40 s on.
    java.admin(at).topic(f"%RETRY%{GROUP}", 1)
    producer = java.producer(at, PRODUCERS)
    consumer = java.push(at, GROUP, (TOPIC, "*"), start="FIRST_OFFSET")
    wait_all_queues([consumer], TOPIC, QUEUES)
    for number in range(MESSAGES):
        message = text(TOPIC, f"body-{number}", keys=f"k{number}", tags=f"tag{number % 2}")
        report = producer.send_all([message], to=Queue(TOPIC, "b1", number % QUEUES))
        if number == 7:
            sent = report.results[0]
            side.words |= {"message_id": sent.offset_msg_id, "unique_id": sent.msg_id}
    wait_for(lambda: len(consumer.bodies()) >= MESSAGES, "all messages are consumed")
    side.words["client"] = consumer.client_id


def run(side: Side, steps: tuple[Step, ...]) -> None:
    """Run commands in their order and keep what they print."""
    for one in steps:
        command = one.name.split()[0]

        def output(one: Step = one, command: str = command) -> bool:
            side.outputs[one.name] = side.run(command, *one.arguments)
            return re.search(one.expected, plain(side.outputs[one.name])) is not None

        if one.until:
            with contextlib.suppress(TimeoutError):  # the test of this command shows what there was
                wait_for(output, f"{one.name} on {side.kind}", timeout_s=45, every_s=0.5)
        else:
            output()


@pytest.fixture(scope="module")
def sides(
    java_driver: Driver, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Kind, Side]]:
    """Both brokers, and what all commands printed on each of them."""
    made: list[servers.Server | servers.ApacheNameServer] = []
    java, found = Java(java_driver), {}
    try:
        for kind in ("trio", "apache"):
            server, nameservers = servers.alone(kind, tmp_path_factory.mktemp(kind))
            made += [server, *nameservers]
            server.start()
            side = Side(kind, server, Mqadmin(java_driver, server), {"broker": server.address})
            found[kind] = side
            run(side, BEFORE)
            load(java, side)
            run(side, ONLINE)
            while java.open:
                java.open.pop().stop()
            run(side, OFFLINE)
        yield found
    finally:
        java.close()
        for server in reversed(made):
            server.discard()


@pytest.mark.parametrize("one", STEPS, ids=lambda one: one.name.replace(" ", "-"))
def test_a_command_prints_what_it_prints_with_apache(sides: dict[Kind, Side], one: Step) -> None:
    """Item by item: the words of success, then the whole output."""
    outputs = {kind: plain(side.outputs[one.name]) for kind, side in sides.items()}
    for kind, output in outputs.items():
        assert re.search(one.expected, output), f"{kind} printed:\n{side_by_side(outputs)}"
    for difference in DIFFERENCES.get(one.name, ()):
        outputs = {
            k: re.sub(difference.pattern, "", o, flags=re.MULTILINE) for k, o in outputs.items()
        }
    assert outputs["trio"] == outputs["apache"], side_by_side(outputs)


def side_by_side(outputs: dict[Kind, str]) -> str:
    """Both outputs, for people."""
    return "\n".join(f"--- {kind}\n{output}" for kind, output in outputs.items())


def test_settings_that_both_brokers_show_have_the_same_values(sides: dict[Kind, Side]) -> None:
    """Apart from those that have a reason."""
    ours, theirs = (
        dict(_SETTING.findall(plain(sides[kind].outputs["getBrokerConfig"])))
        for kind in ("trio", "apache")
    )
    both = ours.keys() & theirs.keys()
    assert len(both) > 100
    assert {key for key in both if ours[key] != theirs[key]} <= OTHER_VALUES.keys()


def test_a_key_that_nobody_knows_is_refused(sides: dict[Kind, Side]) -> None:
    """Apache takes it, and does nothing."""
    assert "unknown key noSuchThing" in sides["trio"].outputs["updateBrokerConfig unknown"]
    assert "success" in sides["apache"].outputs["updateBrokerConfig unknown"]


def test_every_difference_has_a_command_and_is_in_the_documentation() -> None:
    """No leftovers in the table, and no secrets."""
    assert {one.name for one in STEPS} >= DIFFERENCES.keys()
    page = (Path(__file__).parents[2] / "docs" / "howto" / "mqadmin.md").read_text()
    for name, found in DIFFERENCES.items():
        for difference in found:
            row = f"| {name.split()[0]} | {difference.reason} |"
            assert row in page, f"docs/howto/mqadmin.md lacks: {row}"


def test_a_permission_that_was_changed_holds_after_a_kill(workshop: Workshop) -> None:
    """The name server tells it at once; the file of settings is not touched."""
    server = workshop.alone(kind="trio")
    server.start()
    with RawClient(server.address) as client:
        assert client.call(UPDATE_BROKER_CONFIG, body=b"brokerPermission=4").code == 0
    assert route_permission(server) == 4
    server.kill()
    server.start()
    assert route_permission(server) == 4
    with RawClient(server.address) as client:
        assert b"brokerPermission=4" in client.call(GET_BROKER_CONFIG).body.splitlines()
        assert client.call(UPDATE_BROKER_CONFIG, body=b"brokerPermission=6").code == 0
    assert route_permission(server) == 6


def route_permission(server: Server) -> int:
    """What the name server says about a topic that every broker has."""
    with RawClient(server.nameservers[0]) as client:
        reply = client.call(GET_ROUTE, {"topic": "SELF_TEST_TOPIC"})
    return reply.json()["queueDatas"][0]["perm"]
