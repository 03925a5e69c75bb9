"""Apache's broker and trio-mq on copies of the same damaged store: the same end of the log, the same queues.

Every damage of ``tests/damages.py`` is given to both. Apache's broker is run in one JVM up to the end of its recovery
(``java/Stores.java``), and for some damages as a whole process that is asked over the wire. ``tests/apache_model.py``
has all that Apache does otherwise; ``docs/explanation/damage-and-apache.md`` says why we do not do the same.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from tests.apache_model import OTHERWISE, ApacheEnd
from tests.damage_model import Expected
from tests.damages import (
    BATCH_QUEUE_FILE_SIZE,
    BEFORE_LAST,
    BY_NAME,
    DAMAGES,
    END,
    LAST_SEGMENT,
    NORMAL,
    PREPARED,
    Damage,
    Files,
    Queue,
    golden,
    read_log,
    rows,
    segment_path,
)
from tests.recovered import Recovered, recovered
from trio_mq.store.disk import RealDisk

from . import peers
from .drivers import Driver
from .polling import wait_for
from .raw import RawClient
from .servers import ApacheBroker, Process, Server, TrioServer

GET_MAX_OFFSET, GET_MIN_OFFSET = 30, 31
SETTINGS = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "1200",
    "mapperFileSizeBatchConsumeQueue": str(BATCH_QUEUE_FILE_SIZE),
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "maxMessageSize": "60000",
    "enableBatchConsumeQueue": "true",
    # Timer messages of the store are due; what the broker makes of them is no part of recovery.
    "timerWheelEnable": "false",
}
#: A broker makes a certificate at each start, which takes seconds.
NO_TLS = "-Dtls.server.mode=disabled"
#: Delayed messages of the store are due, so a broker that runs adds some to this topic.
GROWS = "GoldDelay"


# -- both brokers --------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Recoveries in this process tell what they find."""
    logging.getLogger("trio_mq").setLevel(logging.CRITICAL)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A JVM that recovers stores with Apache's broker."""
    home = tmp_path_factory.mktemp("stores")
    classes = peers.compiled(peers.HERE / "java")
    jvm = (*peers.FAST_JVM, "-Xmx768m", "-Xss512k", NO_TLS)
    command = peers.java(home, classes, "Driver", jvm=jvm)
    driver = Driver(command, home / "driver.log", {"ROCKETMQ_HOME": str(home)})
    yield driver
    driver.process.kill()  # a hundred brokers were begun in it, and to end them one by one takes long
    driver.close()


@attrs.define
class Apache:
    """How Apache's broker ended; `entries` are queue offset, log offset and size, blank ones left out."""

    loaded: bool
    log_end: int = 0
    queues: dict[Queue, tuple[int, int]] = attrs.field(factory=dict)
    entries: dict[Queue, list[tuple[int, int, int]]] = attrs.field(factory=dict)


def put(files: Files, store: Path) -> None:
    """Write a store to a folder."""
    for path, content in files.items():
        (store / path).parent.mkdir(parents=True, exist_ok=True)
        (store / path).write_bytes(content)


def recovered_by_apache(driver: Driver, files: Files, home: Path, **settings: str) -> Apache:
    """What Apache's broker makes of a store, before it serves."""
    store = home / "apache"
    put(files, store)
    server = ApacheBroker(name="broker-gold", home=home, nameservers=[], settings=SETTINGS)
    places = {"storePathRootDir": str(store), "storePathCommitLog": str(store / "commitlog")}
    server.settings = {**SETTINGS, **settings, **places}
    server.command()  # writes broker.conf
    found: dict[str, Any] = driver.call("store.recover", conf=str(home / "broker.conf"))
    if not found["loaded"]:
        return Apache(False)
    result = Apache(True, found["logEnd"])
    for queue in found["queues"]:
        key = queue["topic"], queue["queue"]
        entries = [tuple(e) for e in queue["entries"] if e[2] != 0x7FFF_FFFF]
        # Queues of delay levels are there from the start on, and are empty.
        if queue["max"]:
            result.queues[key], result.entries[key] = (queue["min"], queue["max"]), entries
    return result


def recovered_by_us(files: Files, home: Path) -> Recovered:
    """What trio-mq makes of another copy, queues without any message left out."""
    result = trio.run(recovered, files, RealDisk(), str(home / "ours"))
    result.queues = {key: bounds for key, bounds in result.queues.items() if bounds[1]}
    result.entries = {key: result.entries[key] for key in result.queues}
    return result


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda d: d.name)
def test_apache_and_we_end_at_the_same_place(
    damage: Damage, apache: Driver, tmp_path: Path
) -> None:
    files = damage.files()
    theirs = recovered_by_apache(apache, files, tmp_path)
    ours = recovered_by_us(files, tmp_path)
    shutil.rmtree(tmp_path)  # many small files, which pytest would keep
    assert (ours.refused is not None) is (damage.refused is not None)
    if ours.refused is None:
        expected = Expected.of(damage)
        assert (ours.report.log_end, ours.queues) == (expected.log_end, expected.queues)
    wanted = ApacheEnd.of(damage)
    assert theirs.loaded is wanted.starts
    assert (theirs.log_end, theirs.queues) == (wanted.log_end, wanted.queues)
    same = (theirs.loaded, theirs.log_end, theirs.queues, theirs.entries) == (
        ours.refused is None, ours.report.log_end, ours.queues, ours.entries
    )  # fmt: skip
    assert same is (damage.name not in OTHERWISE), "the table of differences is the whole truth"


# -- what is left in the files -------------------------------------------------------------------------------


def test_apache_leaves_what_it_cut_in_the_file_and_we_do_not(
    apache: Driver, tmp_path: Path
) -> None:
    files = BY_NAME["flip-body"].files()
    recovered_by_apache(apache, files, tmp_path)
    ours = recovered_by_us(files, tmp_path)
    behind = read_log(files, BEFORE_LAST["offset"], END - BEFORE_LAST["offset"])
    left = (tmp_path / "apache" / segment_path(LAST_SEGMENT)).read_bytes()
    assert left[BEFORE_LAST["offset"] - LAST_SEGMENT :].startswith(behind)
    after = read_log(ours.files, BEFORE_LAST["offset"], PREPARED - BEFORE_LAST["offset"])
    assert not after.strip(b"\0")
    assert any(
        behind in data for path, data in ours.files.items() if path.startswith("quarantine/")
    )


def test_apache_drops_the_index_after_a_crash_and_we_fill_it_again(
    apache: Driver, tmp_path: Path
) -> None:
    files = golden("crash")
    old = {path for path in files if path.startswith("index/")}
    recovered_by_apache(apache, files, tmp_path)
    assert not {path for path in old if (tmp_path / "apache" / path).exists()}
    assert recovered_by_us(files, tmp_path).unkeyed == []


def test_apache_deletes_a_state_file_that_it_cannot_read_and_we_keep_it(
    apache: Driver, tmp_path: Path
) -> None:
    files = BY_NAME["topics-broken"].files()
    recovered_by_apache(apache, files, tmp_path)
    kept = {p.read_bytes() for p in (tmp_path / "apache" / "config").iterdir()}
    assert files["config/topics.json"] not in kept
    ours = recovered_by_us(files, tmp_path)
    (aside,) = [p for p in ours.files if p.startswith("config/topics.json.bad-")]
    assert ours.files[aside] == files["config/topics.json"]


def test_apache_shifts_the_offsets_of_a_queue_whose_entries_are_lost(
    apache: Driver, tmp_path: Path
) -> None:
    files = BY_NAME["queue-file-all-zeros"].files()
    theirs = recovered_by_apache(apache, files, tmp_path).entries[NORMAL, 1]
    by_offset = {r["offset"]: r["queueOffset"] for r in rows("crash")}
    assert [(number, by_offset[at]) for number, at, _ in theirs] == [(n, n + 33) for n in range(19)]
    ours = recovered_by_us(files, tmp_path).entries[NORMAL, 1]
    assert [(number, by_offset[at]) for number, at, _ in ours] == [(n, n) for n in range(52)]


def test_apache_goes_back_some_files_only(apache: Driver, tmp_path: Path) -> None:
    """Ten (commitLogRecoverMaxNum), whatever the checkpoint says: here three, the prepared one among them."""
    files = BY_NAME["queues-all-missing"].files()
    del files["checkpoint"]
    theirs = recovered_by_apache(apache, files, tmp_path, commitLogRecoverMaxNum="3")
    assert theirs.queues[NORMAL, 0] == (33, 52)
    assert recovered_by_apache(apache, files, tmp_path / "all").queues[NORMAL, 0] == (0, 52)


# -- whole processes -----------------------------------------------------------------------------------------

#: A start of Apache's broker takes seconds, so these are few: one of each kind.
PROCESSES = (
    "torn-in-body",
    "zeros-in-middle-segment",
    "segment-first-missing",
    "segment-last-missing",
    "queue-folder-missing",
    "old-record-behind-end",
)
_LOAD_OVER = re.compile(r"load over, and the max phy offset = (\d+)")


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Brokers of one test, killed at its end."""
    made: list[Server] = []
    yield made
    for server in made:
        server.discard()


def over_the_wire(server: Server, queues: list[Queue]) -> dict[Queue, tuple[int, int]]:
    """What clients are told of some queues."""
    found = {}
    with RawClient(server.address) as client:
        for topic, number in queues:
            ext = {"topic": topic, "queueId": str(number)}
            replies = [client.call(code, ext) for code in (GET_MIN_OFFSET, GET_MAX_OFFSET)]
            assert all(r.code == 0 for r in replies), (server.name, topic, number, replies)
            ends = [
                client.call(code, ext).ext["offset"] for code in (GET_MIN_OFFSET, GET_MAX_OFFSET)
            ]
            found[topic, number] = (int(ends[0]), int(ends[1]))
    return found


@pytest.mark.parametrize("name", PROCESSES)
def test_brokers_that_run_say_the_same(name: str, servers: list[Server], tmp_path: Path) -> None:
    damage = BY_NAME[name]
    expected, wanted = Expected.of(damage), ApacheEnd.of(damage)
    asked = [key for key in expected.queues if key[0] != GROWS]
    theirs = ApacheBroker(
        name="broker-gold", home=tmp_path / "apache", nameservers=[], settings=SETTINGS
    )
    theirs.jvm = (*theirs.jvm, NO_TLS)
    ours = TrioServer(name="broker-gold", home=tmp_path / "ours", nameservers=[], settings=SETTINGS)
    for server in (theirs, ours):
        servers.append(server)
        put(damage.files(), server.store)
        server.start()
    # While it recovers, ours answers already, but not such questions.
    wait_for(lambda: '{"nameserver"' in ours.process.log.read_text(), "ours serves")
    assert over_the_wire(ours, asked) == {key: expected.queues[key] for key in asked}
    assert ours.ready_line()["recovery"]["log_end"] == expected.log_end
    assert over_the_wire(theirs, asked) == {key: wanted.queues[key] for key in asked}
    log = wait_for(
        lambda: next(theirs.home.glob("**/store.log"), None), "Apache's log of the store"
    )
    said = wait_for(lambda: _LOAD_OVER.findall(log.read_text()), "Apache's end of the log")
    assert int(said[-1]) == wanted.log_end


def test_brokers_refuse_to_start(servers: list[Server], tmp_path: Path) -> None:
    for kind in (ApacheBroker, TrioServer):
        home = tmp_path / kind.__name__
        server = kind(name="broker-gold", home=home, nameservers=[], settings=SETTINGS)
        put(BY_NAME["segment-last-short"].files(), server.store)
        servers.append(server)
        server.process = Process(server.command(), home, "refused", server.environment())
        assert server.process.popen.wait(60) != 0
