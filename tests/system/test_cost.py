"""What a process costs: memory at rest and under load, processor time of a start, files that it opens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.system.client import Client, pull_header, send_header
from tests.system.processes import Starter
from tests.system.stores import GIB, RawStore
from trio_mq.protocol import command, headers
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.frames import FrameReader

pytestmark = pytest.mark.slow

MB = 1_000_000
IDLE_LIMIT_BYTES = 80 * MB
BUSY_LIMIT_BYTES = 120 * MB
#: Processor time up to the ready line, of modules that were compiled before: 0.3 s on a quiet machine.
START_LIMIT_CPU_S = 0.9
#: And for each queue: 60 µs on a quiet machine, 1.2 s for 20,000; a slow one takes some times as much.
QUEUE_LIMIT_CPU_S = 300e-6
MESSAGES = 100_000
QUEUES = 4


def replies(client: Client, requests: list[bytes], window: int) -> Iterator[bytes]:
    """Raw headers of the answers, `window` requests at a time: costs the client next to nothing."""
    reader = FrameReader()
    for begin in range(0, len(requests), window):
        some = requests[begin : begin + window]
        client.write(b"".join(some))
        left = len(some)
        while left:
            frames = reader.feed(client.socket.recv(1 << 20))
            left -= len(frames)
            for _, header, _ in frames:
                yield header


def test_c170_a_start_is_cheap_and_memory_stays_small_under_100_000_messages(
    serve: Starter,
) -> None:
    """C170: 100 MB in and out with default settings; at rest and at the peak far below 256 MiB."""
    running = serve()
    assert running.child.cpu_s() < START_LIMIT_CPU_S, "processor time, for the machine may be busy"
    peak = idle = running.child.anonymous_bytes()
    assert idle < IDLE_LIMIT_BYTES
    with running.client() as client:
        client.create("T", QUEUES)
        body = bytes(range(256)) * 4
        frames = []
        for queue_id in range(QUEUES):
            ext = headers.encode(
                send_header("T", queue_id, "UNIQ_KEY\x0101020304\x02KEYS\x01k\x02")
            )
            frames.append(command.encode(Command(RequestCode.SEND_MESSAGE_V2, ext, body)))
        sends = frames * (MESSAGES // QUEUES)
        for number, header in enumerate(replies(client, sends, 256)):
            assert b'"code":0' in header
            if number % 5000 == 0:
                peak = max(peak, running.child.anonymous_bytes())
        for queue_id in range(QUEUES):
            assert client.max_offset("T", queue_id) == MESSAGES // QUEUES
            offset = 0
            while offset < MESSAGES // QUEUES:
                header = pull_header("T", queue_id, offset)
                answer = client.call(RequestCode.PULL_MESSAGE, header)
                assert answer.code == ResponseCode.SUCCESS
                assert len(answer.body) >= 1024
                offset = int(answer.ext["nextBeginOffset"])
            peak = max(peak, running.child.anonymous_bytes())
    assert peak < BUSY_LIMIT_BYTES, f"{peak // MB} MB"
    assert running.stop().code == 0


@pytest.fixture(autouse=True, scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """One start before those that are measured: the first one compiles."""
    starter = Starter(tmp_path_factory.mktemp("compiled"))
    try:
        assert starter().stop().code == 0
    finally:
        starter.close()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A folder for many files, in memory where that is possible: a disk takes long to make and remove them."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if shared.is_dir() else tmp_path) as folder:
        yield Path(folder)


def test_c172_many_queues_cost_a_start_little_each(serve: Starter, room: Path) -> None:
    """C172: time by phase is in the ready line; of long queues only the ends are opened, not what is between."""
    queues = 3200
    store = RawStore(room / "store", queue_file_bytes=4000)
    store.fill(8 * 900, ["Long"], 8, b"x" * 40)
    store.fill(2 * queues, [f"T{number}" for number in range(queues // 8)], 8, b"x" * 40)
    store.close()
    options = ("--set", "messageIndexEnable=false", "--set", "mappedFileSizeConsumeQueue=4000")
    running = serve(*options, store=store.root)
    found = running.recovery
    assert (found["clean"], found["queues"], found["records"]) == (True, queues + 8, 1)
    assert found["seconds"].keys() == {"load", "tails", "log", "queues", "settle"}
    assert running.child.cpu_s() < START_LIMIT_CPU_S + queues * QUEUE_LIMIT_CPU_S
    opened = {name for name in running.child.open_files() if "/Long/" in name}
    assert {name[-5:] for name in opened} <= {"00000", "16000"}
    with running.client() as client:
        assert client.max_offset("T7", 7) == 2
        assert client.max_offset("Long", 7) == 900
    assert running.stop().code == 0


def test_c173_a_clean_start_reads_only_the_end_of_a_large_log(serve: Starter) -> None:
    """C173: 300 segments of 1 GiB."""
    store = RawStore(serve.store)
    for number in range(300):
        store.at = number * GIB
        store.fill(QUEUES if number < 299 else 400, ["T"], QUEUES, b"x" * 100)
    store.close()
    running = serve("--set", "messageIndexEnable=false")
    found = running.recovery
    assert (found["clean"], found["records"], found["notes"]) == (True, 1, [])
    assert found["log_end"] - found["walked_from"] < 4096
    assert running.child.cpu_s() < START_LIMIT_CPU_S
    segments = {name for name in running.child.open_files() if "commitlog" in name}
    assert segments == {str(store.root / "commitlog" / f"{299 * GIB:020d}")}
    with running.client() as client:
        assert len(client.all_of("T", 0, 299)) == 100
        assert client.sent("T", b"more") == 399
    assert running.stop().code == 0
