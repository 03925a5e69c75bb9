"""What a slave asks its master, and what it makes of the answers."""

import pytest

from tests.ha.histories import NOT_SUPPORTED, Asked, history
from trio_mq.errors import PeerUnavailable
from trio_mq.ha.masterasks import Bounds, MasterAsks, MasterRun, Unanswered
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command


def answering(*answers):
    """Answers one after the other, and keeps the questions."""
    asked = []

    async def ask(command):
        asked.append(command)
        return answers[len(asked) - 1]

    master = MasterAsks(ask)
    return master, asked


async def test_the_run_of_a_master():
    told = {"masterFlushOffset": "116884", "masterHaAddress": "192.0.2.2:14232"}
    master, asked = answering(Command(0, {**told, "masterAddress": "127.0.0.1:14231"}))
    assert await master.run() == MasterRun(116884, "192.0.2.2:14232")
    assert [(command.code, command.ext) for command in asked] == [(906, {})]


@pytest.mark.parametrize("answer", [Command(0), Command(NOT_SUPPORTED)])
async def test_no_master_and_an_old_one_tell_no_run(answer):
    """A slave answers 906 with nothing in it."""
    master, _ = answering(answer)
    assert await master.run() is None


@pytest.mark.parametrize("code", [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR])
async def test_a_master_that_is_starting_tells_nothing(code):
    master, _ = answering(Command(code, remark="starting"), Command(0, {"masterFlushOffset": "x"}))
    for _ in range(2):
        with pytest.raises(Unanswered):
            await master.run()


async def test_records_are_told_as_apache_does():
    log = await history()
    asked = Asked(log)
    master = MasterAsks(asked)
    second = log.ends[0]
    assert await master.record(second) == log.log[second : log.ends[1]]
    assert await master.record(log.end) is None
    assert await master.record(second + 4) is None
    asked.instead[RequestCode.VIEW_MESSAGE_BY_ID] = Command(0)  # in the middle of zeros
    assert await master.record(second + 200) is None


async def test_the_bounds_of_a_log_and_the_own_end_that_is_told_along():
    log = await history()
    answer = Asked(log, start=4096)
    asked = []

    async def ask(command):
        asked.append((command.code, dict(command.ext)))
        return await answer(command)

    assert await MasterAsks(ask).bounds(777) == Bounds(4096, log.end)
    assert asked == [(907, {"slaveLogEnd": "777"}), (28, {})]


async def test_bounds_that_a_master_does_not_know():
    """Apache's, before its first message: 28 fails."""
    master, _ = answering(
        Command(0, body=b'{"master":true,"masterCommitLogMaxOffset":0}'),
        Command(ResponseCode.SYSTEM_ERROR, remark="java.util.NoSuchElementException"),
    )
    assert await master.bounds(1) == Bounds(None, 0)


@pytest.mark.parametrize(
    ("body", "size"),
    [
        (b"haListenPort=14232\nmappedFileSizeCommitLog=65536\n", 65536),
        (b"mappedFileSizeCommitLog = 1073741824\r\n", 1 << 30),
        (b"mappedFileSizeCommitLog=\n", None),
        (b"\xff\xfe", None),
    ],
)
async def test_the_size_of_files(body, size):
    master, _ = answering(Command(0, body=body))
    assert await master.segment_bytes() == size


async def test_nobody_answers():
    async def ask(_):
        raise PeerUnavailable("nobody at 10.0.0.1:10911")

    master = MasterAsks(ask)
    for call in (
        master.run,
        lambda: master.record(0),
        lambda: master.bounds(0),
        master.segment_bytes,
    ):
        with pytest.raises(Unanswered, match="nobody at"):
            await call()
