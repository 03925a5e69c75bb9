"""A disk that fills up while a broker serves: what senders are told, and that it heals by itself (cases C055, C056)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.system.client import Client
from tests.system.processes import Starter, wait_for
from tests.system.rooms import SMALL, MemoryRoom, MountedRoom, Room, mounted
from trio_mq.protocol import bodies
from trio_mq.protocol.codes import RequestCode, ResponseCode

pytestmark = pytest.mark.slow  # whole processes

QUEUES = 3
BODY = b"x" * 3000


@pytest.fixture(params=["mounted", "in memory"])
def room(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    serve: Starter,
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Room]:
    """A small disk. Where nothing may be mounted both are in memory."""
    caplog.set_level("INFO", "trio_mq")
    with mounted(tmp_path / "small") as permitted:
        if request.param == "mounted" and permitted:
            yield MountedRoom(tmp_path / "small", serve)
            serve.close()
        else:
            yield MemoryRoom(lambda: caplog.text)


class Producer:
    """Sends round robin and keeps what was acknowledged: bodies by queue, in the order of offsets."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sent = 0
        self.acked: list[list[bytes]] = [[] for _ in range(QUEUES)]
        client.create("T", QUEUES)

    def try_one(self) -> str | None:
        """Send one message; why it was refused, None when it was taken."""
        queue_id = self._sent % QUEUES
        self._sent += 1
        body = b"%d " % self._sent + BODY
        answer = self._client.send("T", body, queue_id, f"KEYS\x01k{self._sent}\x02")
        if answer.code == ResponseCode.SUCCESS:
            assert int(answer.ext["queueOffset"]) == len(self.acked[queue_id]), "no gap"
            self.acked[queue_id].append(body)
            return None
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE == 14
        assert answer.remark
        return answer.remark

    def send(self, count: int) -> None:
        """Send some that have to be taken."""
        assert [self.try_one() for _ in range(count)] == [None] * count

    def check(self) -> None:
        """What was acknowledged is there, once and in order, and nothing else."""
        for queue_id, expected in enumerate(self.acked):
            assert [m.body for m in self._client.all_of("T", queue_id)] == expected


def status(client: Client) -> Mapping[str, str]:
    """What an administrator sees of the broker."""
    answer = client.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    return bodies.decode(bodies.KVTable, answer.body).table


def test_c055_c056_above_the_limit_sends_are_refused_until_there_is_room(room: Room) -> None:
    """C055, C056: code 14 with path, percent, limit and key; consumers go on; no restart is needed."""
    remarks: list[str] = []

    def scenario(client: Client) -> None:
        producer = Producer(client)
        producer.send(30)
        room.fill(70)
        remarks.append(str(wait_for(producer.try_one, "sends are refused")))
        remarks.extend(str(producer.try_one()) for _ in range(20))
        producer.check()
        assert status(client)["notWritable"] in remarks
        room.empty()
        wait_for(lambda: producer.try_one() is None, "sends are taken again", limit_s=2)
        assert "notWritable" not in status(client)
        producer.send(30)
        producer.check()

    log = room.run(
        {**SMALL, "diskSpaceWarningLevelRatio": "50", "cleanResourceInterval": "20"}, scenario
    )
    for remark in remarks:
        assert room.path in remark
        found = re.search(r"(\d+) % used.* 50 %", remark)
        assert found, remark
        assert 50 <= int(found[1]) <= 71, "the first ones came while it filled up"
        assert "diskSpaceWarningLevelRatio" in remark
    assert log.count("disk full: ") == 1, "the log says so once"
    assert log.count("there is room again") == 1


def test_c056_without_a_byte_of_room_nothing_is_half_written(room: Room) -> None:
    """C056: writes that fail are refused with path and reason; queues and index have no gap afterwards."""
    remarks: list[str] = []

    def scenario(client: Client) -> None:
        producer = Producer(client)
        producer.send(30)
        room.fill(100)
        remarks.append(str(wait_for(producer.try_one, "sends are refused")))
        remarks.extend(str(producer.try_one()) for _ in range(20))
        producer.check()
        room.empty()
        wait_for(lambda: producer.try_one() is None, "sends are taken again", limit_s=3)
        producer.send(60)
        producer.check()

    room.run({**SMALL, "cleanResourceInterval": "500"}, scenario)
    for remark in remarks:
        assert room.path in remark
        assert "% used" in remark
        assert "diskSpaceWarningLevelRatio" in remark
    assert any("No space left" in remark for remark in remarks)


def test_a_kill_and_a_start_on_a_full_disk(room: Room) -> None:
    """C056: the start says what it lacks, exit code 23; with room again everything acknowledged is there."""
    acked: list[list[bytes]] = []

    def before(client: Client) -> None:
        producer = Producer(client)
        producer.send(40)
        room.fill(100)
        wait_for(producer.try_one, "sends are refused")
        acked.extend(producer.acked)

    def after(client: Client) -> None:
        for queue_id, expected in enumerate(acked):
            assert [m.body for m in client.all_of("T", queue_id)] == expected
            assert client.sent("T", b"more", queue_id) == len(expected)

    room.run(SMALL, before, kill=True)
    code, text = room.refused(SMALL)
    assert code == 23
    assert room.path in text
    assert "free some room" in text
    room.empty()
    assert "the abort marker is there" in room.run(SMALL, after)
