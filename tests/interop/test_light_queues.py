"""One message in several queues (LMQ): offsets, entries, pulls, a restart, a kill, the store in the other's hands."""

from __future__ import annotations

import pytest

from .conftest import Workshop
from .polling import wait_for
from .raw import RawClient, Record, Sender, properties, pull_fields, records
from .servers import Kind

SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true"}
PULL, COMMIT, QUERY_OFFSET = 11, 15, 14


def read(client: RawClient, topic: str, count: int) -> list[Record]:
    """All of queue 0 of a topic, once there are so many."""

    def found() -> list[Record]:
        got: list[Record] = []
        while True:
            reply = client.call(PULL, pull_fields("TOOLS_CONSUMER", topic, 0, len(got)))
            if reply.code != 0:
                return got
            got += records(reply.body)

    return wait_for(
        lambda: got if len(got := found()) >= count else None, f"{count} in {topic}", timeout_s=15
    )


def bodies(found: list[Record]) -> list[str]:
    """Texts, in order."""
    return [record.body.decode() for record in found]


def fill(client: RawClient, topic: str, numbers: range) -> None:
    """Each number to %LMQ%all, every third one to %LMQ%third, too; and one between that is in no light queue."""
    hand = Sender(client, topic)
    for number in numbers:
        names = "%LMQ%all,%LMQ%third" if number % 3 == 0 else "%LMQ%all"
        props = properties({"INNER_MULTI_DISPATCH": names})
        assert hand.send(str(number).encode(), 0, props).code == 0
        assert hand.send(b"between", 0).code == 0


def check(client: RawClient, count: int) -> None:
    """Both light queues hold what they should."""
    assert bodies(read(client, "%LMQ%all", count)) == [str(n) for n in range(count)]
    third = read(client, "%LMQ%third", (count + 2) // 3)
    assert bodies(third) == [str(n) for n in range(0, count, 3)]
    assert third[1].properties["INNER_MULTI_QUEUE_OFFSET"] == "3,1"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_light_queues_and_a_restart(workshop: Workshop, how: str) -> None:
    server = workshop.alone(settings=SETTINGS)
    server.start()
    topic = workshop.cluster(server).topic(1)
    with RawClient(server.address) as client:
        fill(client, topic, range(20))
        check(client, 20)
        group = {"consumerGroup": "%LMQ%reader", "topic": "%LMQ%all", "queueId": "0"}
        assert client.call(COMMIT, {**group, "commitOffset": "7"}).code == 0
        # the file of the offsets is written every 5 s; a kill before leaves what was there then
        told = client.call(QUERY_OFFSET, group)
        assert (told.code, told.ext["offset"]) == (0, "7")
    server.stop() if how == "stop" else server.kill()
    server.start()
    with RawClient(server.address) as client:
        check(client, 20)
        fill(client, topic, range(20, 30))
        check(client, 30)
        if how == "stop":
            assert client.call(QUERY_OFFSET, group).ext["offset"] == "7"


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("first", ["apache", "trio"])
def test_light_queues_move_with_the_store(workshop: Workshop, first: Kind, how: str) -> None:
    one = workshop.alone(kind=first, settings=SETTINGS)
    one.start()
    topic = workshop.cluster(one).topic(1)
    with RawClient(one.address) as client:
        fill(client, topic, range(20))
        check(client, 20)
    one.stop() if how == "stop" else one.kill()
    second: Kind = "trio" if first == "apache" else "apache"
    other = workshop.alone(one.name, kind=second, settings=SETTINGS)
    other.home.mkdir(parents=True, exist_ok=True)
    one.store.rename(other.store)
    other.start()
    with RawClient(other.address) as client:
        check(client, 20)
        fill(client, topic, range(20, 30))
        check(client, 30)
