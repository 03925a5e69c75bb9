"""Timers that wait while their store changes hands: from Apache's broker to ours and back, after a stop and a kill."""

from __future__ import annotations

from collections import Counter

import pytest

from .conftest import Workshop
from .polling import now_ms, sleep, wait_for
from .pops import create_topic
from .raw import RawClient, Record, pull_fields, records
from .servers import Kind, Server
from .timers import raw_recall, raw_send

PULL, MAX_OFFSET = 11, 30
TOPIC = "Waits"
SETTINGS = {
    "mappedFileSizeCommitLog": "1048576",
    "recallMessageEnable": "true",
    # Messages that wait longer go round: they are on the move, too.
    "timerRollWindowSlot": "10",
    # Apache's broker refuses what had to wait for 200 ms, as on a busy machine.
    "waitTimeMillsInSendQueue": "5000",
}
COUNT = 60


def in_topic(client: RawClient, topic: str) -> list[Record]:
    """All that is in queue 0 of a topic."""
    reply = client.call(MAX_OFFSET, {"topic": topic, "queueId": "0"})
    end = int(reply.ext["offset"]) if reply.code == 0 else 0
    found: list[Record] = []
    while len(found) < end:
        reply = client.call(PULL, pull_fields("Reader", topic, 0, len(found)))
        assert reply.code == 0, reply.remark
        found += records(reply.body)
    return found


def fill(client: RawClient) -> dict[str, int]:
    """Send messages that are due in 6 to 21 s, some of which are taken back: when the others are due."""
    due: dict[str, int] = {}
    begin = now_ms() + 6000
    for number in range(COUNT):
        body, ms = f"m{number}", begin + 250 * number
        reply = raw_send(client, TOPIC, body, f"ID{number}", TIMER_DELIVER_MS=ms)
        assert reply.code == 0, reply.remark
        if number % 10 == 9:
            assert raw_recall(client, TOPIC, reply.ext["recallHandle"]).code == 0
        else:
            due[body] = ms
        if number == COUNT - 10:
            sleep(2.5)  # what came before is in the files of the timer, the rest perhaps not
    return due


@pytest.mark.parametrize("ending", ["stop", "kill"])
@pytest.mark.parametrize("owners", [("apache", "tested"), ("tested", "apache")], ids="-".join)
def test_timers_change_hands(workshop: Workshop, owners: tuple[str, str], ending: str) -> None:
    kinds: list[Kind] = ["apache" if one == "apache" else workshop.kind for one in owners]
    first: Server = workshop.alone(kind=kinds[0], flush="sync", settings=SETTINGS)
    first.start()
    with RawClient(first.address) as client:
        create_topic(client, TOPIC, 1)
        due = fill(client)
    if ending == "stop":
        first.stop()
    else:
        first.kill()
    second: Server = workshop.alone(kind=kinds[1], flush="sync", settings=SETTINGS)
    second.home.mkdir(parents=True, exist_ok=True)
    first.store.rename(second.store)
    second.start()
    with RawClient(second.address) as client:
        found: list[Record] = []

        def all_came() -> bool:
            found[:] = in_topic(client, TOPIC)
            return {one.body.decode() for one in found} >= due.keys()

        wait_for(all_came, "all that waited", timeout_s=60, every_s=0.3)
        sleep(max(0.0, (max(due.values()) - now_ms()) / 1000) + 2)
        found[:] = in_topic(client, TOPIC)
        came = Counter(one.body.decode() for one in found)
        # Apache drops a recall that was on its round when its message had been due while no broker ran.
        if kinds[1] == "trio":
            assert came.keys() == due.keys(), "those that were taken back do not come"
        assert max(came.values()) == 1 or ending == "kill"
        for one in found:
            if (at := due.get(one.body.decode())) is not None:
                assert int(one.properties["TIMER_DEQUEUE_MS"]) >= at - 1
        reply = raw_send(client, TOPIC, "new", TIMER_DELAY_MS=1500)
        assert reply.code == 0
        wait_for(lambda: in_topic(client, TOPIC)[-1].body == b"new", "a new one", timeout_s=10)
