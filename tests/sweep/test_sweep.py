"""The sweep itself: it repeats itself, a sample of it holds, and it notices what it is there to notice."""

from __future__ import annotations

import logging
from collections import Counter
from functools import cache

import attrs
import pytest

from tests.sweep import faults
from tests.sweep.__main__ import main
from tests.sweep.checks import check_saves, check_store, differences
from tests.sweep.ledger import Moment
from tests.sweep.runner import FAULTS_PERCENT, fault_once
from tests.sweep.sweep import (
    OUTCOMES,
    Crashed,
    Failure,
    Recovered,
    check_cut,
    check_faulty_starts,
    crash,
    crash_seed_of,
    kind_of,
    start,
)
from tests.sweep.workload import ROOT, Recording, deterministically, record
from trio_mq.recovery.paths import Path

pytestmark = pytest.mark.slow

SEED, CUTS_EVERY = 2, 30


@pytest.fixture(autouse=True)
def quiet():
    """A broker tells a lot about crashes. The recording has an event loop of its own, so it is made here."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    recording()
    yield
    logging.disable(before)


@cache
def recording() -> Recording:
    return record(SEED, lambda number: number % CUTS_EVERY == 0)


def crashed_at(moment: Moment, outcome: int = 0) -> Crashed:
    crash_seed = crash_seed_of(SEED, moment.number, outcome)
    return Crashed(SEED, moment.number, crash_seed, kind_of(crash_seed))


# -- the workload


def test_a_seed_gives_the_same_operations_and_the_same_bytes_each_time():
    first, again = recording(), record(SEED, lambda _: False)
    assert again.disk.operations == first.disk.operations
    assert differences(again.disk.files(), first.disk.files(), ("abort",)) == []
    other = record(SEED + 1, lambda _: False)
    assert other.disk.operations != first.disk.operations


def test_the_workload_does_all_that_a_broker_does_to_its_disk():
    done = recording()
    made = Counter(
        operation.path.rpartition("/")[0]
        for operation in done.disk.operations
        if operation.kind == "create"
    )
    assert made[f"{ROOT}/commitlog"] >= 10
    assert made[f"{ROOT}/index"] >= 3
    assert made[f"{ROOT}/consumequeue/Simple/0"] >= 2
    removed = [o.path for o in done.disk.operations if o.kind in ("remove", "remove_tree")]
    assert f"{ROOT}/commitlog/{0:020d}" in removed
    assert f"{ROOT}/consumequeue/Doomed" in removed
    for name in ("topics", "subscriptionGroup", "consumerOffset"):
        assert len(done.ledger.saves[f"{ROOT}/config/{name}.json"]) >= 2
    assert len(done.ledger.acked) == len(done.ledger.sent) > 100
    assert done.ledger.refused == []
    assert done.ledger.expired_to > 0
    assert done.ledger.deleted.keys() == {"Doomed"}
    batches = [sent for sent in done.ledger.acked if len(sent.bodies) > 1]
    assert {sent.topic for sent in batches} == {"Simple", "Batches"}
    unsafe = [sent for sent in done.ledger.acked if not sent.durable_at_reply]
    assert 10 < len(unsafe) < len(done.ledger.acked)


# -- a sample of the sweep


@pytest.mark.parametrize("outcome", range(2))
async def test_some_power_cuts(outcome: int):
    for moment in recording().moments[outcome::2]:
        await check_cut(recording(), moment, crashed_at(moment, outcome))


async def test_power_cuts_during_one_recovery_and_disks_that_fail_it():
    moment = recording().moments[len(recording().moments) // 2]
    assert await check_cut(recording(), moment, crashed_at(moment), again=True) > 5
    assert await check_faulty_starts(recording(), moment, crashed_at(moment)) > 10


@pytest.mark.parametrize("name", faults.FAULTS)
def test_some_faults(name: str):
    plain = Recording(SEED, lambda _: False, percent=FAULTS_PERCENT)
    deterministically(SEED, plain.run)
    numbers = [n for found, n in faults.worth_trying(plain.disk.operations) if found == name]
    for number in numbers[5 :: len(numbers) // 3]:
        assert fault_once(SEED, name, number) is None


def test_a_save_whose_rename_failed_is_not_expected_whatever_is_saved_next():
    plain = Recording(SEED, lambda _: False, percent=FAULTS_PERCENT)
    deterministically(SEED, plain.run)
    renames = [
        operation.number
        for operation in plain.disk.operations
        if operation.kind == "rename" and operation.path.endswith("/consumerOffset.json")
    ]
    assert len(renames) > 1
    for number in renames:
        assert fault_once(SEED, "error_once", number) is None


def test_a_power_cut_after_a_kill_may_lose_what_was_not_synced():
    kill, some = OUTCOMES.index("kill"), OUTCOMES.index("some")
    assert not Crashed(SEED, 1, kill, "kill").is_power_cut
    assert Crashed(SEED, 1, some, "some").is_power_cut
    second = [Crashed(SEED, 1, kill, "kill", number) for number in range(1, 1 + len(OUTCOMES))]
    assert [one.is_power_cut for one in second] == [True] * (len(OUTCOMES) - 1) + [False]


# -- what the checks notice


async def recovered(moment: Moment, kind: str = "kill") -> Recovered:
    disk = moment.disk.clone()
    crash(disk, OUTCOMES.index(kind))
    return await start(disk, SEED, moment.now_ms, Path.BATCH)


def damaged(found: Recovered, folder: str, number: int, at: int) -> dict[str, bytes]:
    """The files, with one bit of one file in a folder flipped."""
    files = found.disk.files()
    path = sorted(path for path in files if path.startswith(f"{ROOT}/{folder}/"))[number]
    data = bytearray(files[path])
    data[at] ^= 1
    return {**files, path: bytes(data)}


def check(found: Recovered, moment: Moment, files: dict[str, bytes], *, power_cut: bool) -> None:
    ledger = recording().ledger
    check_store(files, found.store(), ledger, moment, power_cut=power_cut, holes=False)


async def test_a_bit_that_is_wrong_in_log_or_queue_is_noticed():
    moment = recording().moments[-2]
    found = await recovered(moment)
    check(found, moment, found.disk.files(), power_cut=False)
    for folder, number, at in (
        ("commitlog", 1, 0),
        ("commitlog", 1, 100),
        ("commitlog", -1, 4095),
        ("consumequeue/Simple/0", 0, 20 * 60 + 7),
        ("consumequeue/Simple/0", -1, 1291),
        ("batchconsumequeue/Batches/0", -1, 40),
    ):
        with pytest.raises((AssertionError, ValueError)):
            check(found, moment, damaged(found, folder, number, at), power_cut=False)
    found.parts.release()


async def test_a_message_that_is_lost_unsent_or_elsewhere_is_noticed():
    moment = recording().moments[-2]
    found = await recovered(moment)
    files = found.disk.files()
    with pytest.raises(AssertionError, match="not sent yet"):
        check(found, attrs.evolve(moment, sent=moment.sent - 5), files, power_cut=False)
    found.parts.release()
    early = recording().moments[len(recording().moments) // 3]
    fewer = await recovered(early)
    later = attrs.evolve(early, sent=moment.sent, acked=moment.acked, durable=moment.durable)
    for power_cut in (True, False):
        with pytest.raises(AssertionError, match="promised and lost"):
            check(fewer, later, fewer.disk.files(), power_cut=power_cut)
    fewer.parts.release()


async def test_keys_that_are_lost_are_noticed():
    moment = recording().moments[-2]
    found = await recovered(moment)
    found.parts.index.truncate(found.parts.log.end - 2000)
    with pytest.raises(AssertionError, match="found at"):
        check(found, moment, found.disk.files(), power_cut=False)
    found.parts.release()


def test_a_state_file_that_is_older_than_its_last_save_is_noticed():
    moment, ledger = recording().moments[-2], recording().ledger
    files = moment.disk.files()
    check_saves(files, moment, ledger)
    path = f"{ROOT}/config/topics.json"
    for bad in ({**files, path: ledger.saves[path][0]}, {**files, path: b"{}"}):
        with pytest.raises(AssertionError, match="not saved last"):
            check_saves(bad, moment, ledger)
    gone = {name: data for name, data in files.items() if not name.startswith(path)}
    with pytest.raises(AssertionError, match="is gone"):
        check_saves(gone, moment, ledger)


# -- the command


def test_a_failure_names_the_line_that_repeats_it(capsys):
    moment = recording().moments[4]
    crashed = attrs.evolve(crashed_at(moment), second_cut=3)
    failure = Failure(crashed, moment, AssertionError("what is wrong"))
    line = f"python -m tests.sweep --seed {SEED} --cut {moment.number} --crash {crashed.crash_seed}"
    assert str(failure).startswith(f"{line} --second 3: power cut")
    assert str(failure).endswith("what is wrong")
    assert main([*str(crashed).split()]) == 0
    assert main(["--seed", str(SEED), "--fault", "error_once", "--at", "40"]) == 0
    assert capsys.readouterr().out == "nothing fails\n" * 2
