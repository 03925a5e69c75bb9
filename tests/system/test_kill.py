"""kill -9 of whole processes, idle and busy, and what the next start makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.system.client import Client, Gone, send_header
from tests.system.processes import SMALL_FILES, Serving, Starter, wait_for
from tests.system.stores import RawStore
from trio_mq.protocol import command, headers
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command

pytestmark = pytest.mark.slow

QUEUES = 4


def body_of(number: int) -> bytes:
    """The message with a number; lengths differ."""
    return b"%d:" % number + b"x" * (number % 700)


def load(client: Client, topic: str) -> Iterator[tuple[int, int]]:
    """Send without end, many at a time: number and queue offset of what is acknowledged."""

    def frames() -> Iterator[bytes]:
        number = 0
        while True:
            ext = headers.encode(send_header(topic, number % QUEUES, f"KEYS\x01k{number}\x02"))
            request = Command(RequestCode.SEND_MESSAGE_V2, ext, body_of(number), opaque=number)
            yield command.encode(request)
            number += 1

    for answer in client.pipeline(frames(), window=64):
        assert answer.code == ResponseCode.SUCCESS, answer
        yield answer.opaque, int(answer.ext["queueOffset"])


def check(running: Serving, topic: str, acked: dict[int, int]) -> None:
    """Every acknowledged message is at its offset, each message is there once, and new ones go on behind."""
    found: dict[int, int] = {}
    with running.client() as client:
        for queue_id in range(QUEUES):
            stored = client.all_of(topic, queue_id)
            assert [m.queue_offset for m in stored] == list(range(len(stored)))
            for message in stored:
                number = int(message.body.partition(b":")[0])
                assert message.body == body_of(number)
                assert number not in found, "it is there twice"
                found[number] = message.queue_offset
            assert client.sent(topic, body_of(10**6 + queue_id), queue_id) == len(stored)
    assert {number: found.get(number) for number in acked} == acked


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_kill_under_load_loses_nothing_that_was_acknowledged(serve: Starter, flush: str) -> None:
    """Twice on one store whose files are small, so that they roll all the time."""
    options = ("--flush", flush, *SMALL_FILES)
    rounds: list[dict[int, int]] = []
    for enough in (150, 700):
        running = serve(*options)
        acked: dict[int, int] = {}
        topic = f"T{len(rounds)}"
        with running.client() as client:
            client.create(topic, QUEUES)
            try:
                for number, offset in load(client, topic):
                    acked[number] = offset
                    if len(acked) == enough:
                        running.kill()
            except Gone:
                pass
        assert len(acked) >= enough
        rounds.append(acked)
    running = serve(*options)
    assert not running.recovery["clean"]
    assert "the abort marker is there" in running.log
    for number, acked in enumerate(rounds):
        check(running, f"T{number}", acked)


def test_a_kill_of_an_idle_broker(serve: Starter) -> None:
    """Everything is there, progress of groups included once it was saved."""
    running = serve("--set", "flushConsumerOffsetInterval=50")
    with running.client() as client:
        client.create("T")
        for number in range(10):
            client.sent("T", b"%d" % number)
        client.pull("T")
        header = headers.UpdateConsumerOffsetRequest(
            consumer_group="CG", topic="T", queue_id=0, commit_offset=7
        )
        assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, header).code == ResponseCode.SUCCESS
        saved = serve.store / "config" / "consumerOffset.json"
        wait_for(lambda: saved.exists() and b'"T@CG":{0:7}' in saved.read_bytes(), "it is saved")
    running.kill()
    again = serve()
    assert not again.recovery["clean"]
    with again.client() as client:
        assert [m.body for m in client.all_of("T")] == [b"%d" % number for number in range(10)]
        asked = headers.QueryConsumerOffsetRequest(consumer_group="CG", topic="T", queue_id=0)
        answer = client.call(RequestCode.QUERY_CONSUMER_OFFSET, asked)
        assert answer.ext["offset"] == "7"
    assert again.stop().code == 0
    assert not (serve.store / "abort").exists()


def test_c014_a_stop_during_a_long_replay_keeps_the_marker(serve: Starter) -> None:
    """C014: nothing is served before a replay ends; SIGTERM ends it soon, and the next start begins it again."""
    store = RawStore(serve.store)
    store.fill(100_000, ["T"], QUEUES, b"x" * 40)
    store.close(crashed=True, with_queues=False)
    options = ("--set", "messageIndexEnable=false")
    child = serve.begin(*options)
    wait_for(
        lambda: any("/commitlog/" in name for name in child.open_files()),
        "the log is read",
        every_s=0.002,
    )
    ended = child.stop()
    assert ended.code == 0
    assert ended.out == "", "it was never ready"
    assert (serve.store / "abort").exists()
    assert ended.seconds < 5
    running = serve(*options)
    assert running.recovery["records"] == 100_000
    assert not running.recovery["clean"]
    with running.client() as client:
        assert [client.max_offset("T", queue_id) for queue_id in range(QUEUES)] == [25_000] * QUEUES
    running.stop()
    assert not (serve.store / "abort").exists()
