"""Both ways through the log, with numpy and without, held against each other and against a naive third one.

Stores are built, damaged and recovered by every way from the same bytes. All of them have to leave the same files, the
same table of queues, the same report. What spec and users ask of the result is computed by ``naive.py``.
"""

from __future__ import annotations

import random

import attrs
import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from trio_mq.errors import StoreError
from trio_mq.protocol.layout import PRE_BLANK_SIZE, QUEUE_ENTRY, QUEUE_ENTRY_SIZE
from trio_mq.recovery import feed, foreign, iterators
from trio_mq.recovery.paths import Path
from trio_mq.recovery.recover import Choices, recover
from trio_mq.testing.disk import MemoryDisk

from . import naive
from .stores import World

WAYS = [
    (Path.SEQUENTIAL, False, False),
    (Path.BATCH, False, True),
    (Path.BATCH, True, True),
    (Path.BATCH, True, False),
]
DAMAGES = (
    "flip",
    "zero",
    "garbage",
    "swap",
    "cut queue",
    "lose queue",
    "lose file",
    "lose segment",
)
DAMAGES += ("no checkpoint", "no index", "no list", "stale", "clear marks")


@attrs.frozen
class Plan:
    """A store to build: its seed decides about messages and places."""

    seed: int
    messages: int
    crashed: bool
    damages: tuple[str, ...]


PLANS = st.builds(
    Plan,
    seed=st.integers(0, 1 << 30),
    messages=st.integers(0, 150),
    crashed=st.booleans(),
    damages=st.lists(st.sampled_from(DAMAGES), max_size=3).map(tuple),
)


async def build(plan: Plan) -> World:
    """A store with all that a log can have, closed or killed, then damaged."""
    rng = random.Random(plan.seed)
    world = World.make(MemoryDisk(), "store")
    world.batch_topics.add("B")
    async with world.life(kill=plan.crashed) as store:
        for number in range(plan.messages):
            world.clock.advance(rng.choice((0, 1, 1000)))
            body = rng.randbytes(rng.choice((0, 1, 30, 30, 30, 700)))
            roll = rng.random()
            if roll < 0.05:
                world.send_batch(store, [body + b"1", b"2", b"3"])
            elif roll < 0.1:
                more = {"DELAY": str(rng.randint(1, 3))}
                world.send(store, body, "SCHEDULE_TOPIC_XXXX", rng.randint(0, 2), more=more)
            elif roll < 0.14:
                flag = rng.choice((4, 8, 12))
                world.send(store, body, "T", 1, sys_flag=flag, count=int(flag == 8))
            elif roll < 0.2:
                world.send(store, body, "L" * 200, 0, keys=f"long{number}")
            else:
                world.send(
                    store, body, rng.choice("TU"), rng.randint(0, 2), tags="a", keys=f"k{number}"
                )
            if rng.random() < 0.3:
                store.commit()
        store.commit()
    if plan.crashed:
        world.crash()
    for damage in plan.damages:
        spoil(world, damage, rng)
    return world


def spoil(world: World, damage: str, rng: random.Random) -> None:
    """Do one kind of harm somewhere."""
    logs = [world.path(f"commitlog/{n}") for n in world.disk.list_dir(world.path("commitlog"))]
    folders = [
        world.path(f"consumequeue/{t}/{q}")
        for t in world.disk.list_dir(world.path("consumequeue"))
        for q in world.disk.list_dir(world.path(f"consumequeue/{t}"))
    ]
    files = [f"{folder}/{name}" for folder in folders for name in world.disk.list_dir(folder)]
    if damage in ("flip", "zero", "garbage", "swap") and logs:
        path = rng.choice(logs)
        data = world.read(path)
        used = max(1, len(data.rstrip(b"\0")))
        at = rng.randrange(used)
        size = min(rng.choice((1, 20, 600)), len(data) - at)
        new = {
            "flip": bytes([data[at] ^ (1 << rng.randrange(8))]),
            "zero": bytes(size),
            "garbage": rng.randbytes(size),
            "swap": data[:size],
        }[damage]
        world.write(path, new[: len(data) - at], at)
    elif damage == "stale" and len(logs) > 1:
        world.write(logs[-1], world.read(logs[0]))
    elif damage == "lose segment" and logs:
        world.disk.remove(rng.choice(logs))
    elif damage == "cut queue" and files:
        path = rng.choice(files)
        at = QUEUE_ENTRY_SIZE * rng.randrange(10)
        world.write(path, bytes(rng.choice((20, 100, 7))), at)
    elif damage == "lose file" and files:
        world.disk.remove(rng.choice(files))
    elif damage == "lose queue" and folders:
        world.disk.remove_tree(rng.choice(folders))
    elif damage == "no index":
        world.disk.remove_tree(world.path("index"))
    elif damage in ("no checkpoint", "no list"):
        world.disk.remove(
            world.path("checkpoint" if damage == "no checkpoint" else "queuelist.json")
        )
    elif damage == "clear marks" and world.disk.exists(world.path("checkpoint")):
        world.write(world.path("checkpoint"), bytes(24), 40)


@attrs.frozen
class Outcome:
    """What a recovery came to: files, next and minimum offset of all queues, the report; or the refusal."""

    files: dict[str, bytes]
    queues: dict[tuple[str, int], tuple[int, int, int]]
    report: dict[str, object]
    refusal: str | None


async def outcome(world: World, path: Path, *, concurrently: bool) -> Outcome:
    world = attrs.evolve(world, disk=world.disk.clone())
    queues: dict[tuple[str, int], tuple[int, int, int]] = {}
    report: dict[str, object] = {}
    refusal = None
    parts = world.open_parts()
    try:
        found = await recover(parts, Choices(path=path, concurrently=concurrently))
        report = found.as_dict()
        del report["seconds"]
        queues = {
            (q.topic, q.queue_id): (q.min_offset, q.next_offset, q.indexed_to) for q in parts.queues
        }
    except StoreError as error:
        refusal = str(error)
    finally:
        parts.release()
    return Outcome(world.files(), queues, report, refusal)


async def recovered_by_all(world: World, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """The outcome of every way, which has to be the same."""
    outcomes = []
    for path, fast, concurrently in WAYS:
        with monkeypatch.context() as patch:
            if not fast:
                patch.setattr(iterators, "_scan", [None])
                patch.setattr(feed, "bulk_replay", lambda *args, **how: None)
            # Whether an index can be looked through depends on numpy, not on the way.
            patch.setattr(foreign, "_is_sound", lambda parts, offset: False)
            outcomes.append(await outcome(world, path, concurrently=concurrently))
    for other in outcomes[1:]:
        assert other.refusal == outcomes[0].refusal
        assert other.report == outcomes[0].report
        assert other.queues == outcomes[0].queues
        assert other.files.keys() == outcomes[0].files.keys()
        for name, data in outcomes[0].files.items():
            assert other.files[name] == data, name
    return outcomes[0]


def log_segments(files: dict[str, bytes]) -> dict[int, bytes]:
    return {int(p[-20:]): d for p, d in files.items() if p.startswith("commitlog/") and d}


def check_against_model(before: dict[str, bytes], found: Outcome) -> None:
    """The log ends where the model says; each record that was read has its entry, none leads behind the end."""
    report = found.report
    begin, end = int(str(report["walked_from"])), int(str(report["log_end"]))
    segments = log_segments(before)
    if not segments:
        return
    records, model_end = naive.read_log(segments, begin)
    notes = " ".join(map(str, report["notes"]))  # type: ignore[call-overload]
    if "cannot be read up to" not in notes:
        assert end == model_end
    records = [record for record in records if record.offset < end]
    entries = {
        (p.split("/")[1], int(p.split("/")[2]), int(p.split("/")[3]) // QUEUE_ENTRY_SIZE): d
        for p, d in found.files.items()
        if p.startswith("consumequeue/")
    }
    by_place: dict[tuple[str, int, int], tuple[int, int]] = {}
    for (topic, queue_id, first), data in entries.items():
        for number, (offset, size, _) in enumerate(QUEUE_ENTRY.iter_unpack(data), first):
            if size not in (0, PRE_BLANK_SIZE):
                by_place[topic, queue_id, number] = (offset, size)
    assert all(offset + size <= end for offset, size in by_place.values())
    leading = set(by_place.values())
    for record in records:
        no_folder = not record.topic or "/" in record.topic or "\0" in record.topic
        odd = record.topic == "B" or no_folder or record.queue_id < 0
        if (
            record.has_entry
            and not odd
            and "are put" not in notes
            and "it is put there" not in notes
        ):
            min_offset = found.queues[record.topic, record.queue_id][0]
            assert (record.offset, record.size) in leading or record.queue_offset < min_offset


def ends_astray(name: str, found: Outcome) -> bool:
    """Whether the last entry of a queue file leads to a record that now says another queue: no CRC covers that.

    Behind it was an entry that showed it to be no torn one; once that is cut off, the next start cannot tell.
    """
    if not name.startswith("consumequeue/"):
        return False
    topic, queue_id = name.split("/")[1:3]
    entries = [e for e in QUEUE_ENTRY.iter_unpack(found.files[name]) if e[1] > 0]
    records, _ = naive.read_log(log_segments(found.files), int(str(found.report["log_start"])))
    said = {record.offset: (record.topic, str(record.queue_id)) for record in records}
    return bool(entries) and said.get(entries[-1][0], (topic, queue_id)) != (topic, queue_id)


@settings(
    max_examples=35, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(plan=PLANS)
@example(
    plan=Plan(14304, 43, crashed=True, damages=("flip",))
)  # a batch entry that leads to damage
@example(
    plan=Plan(2057698, 18, crashed=True, damages=("flip", "flip"))
)  # a record that says another queue, and then the log's end
def test_every_way_comes_to_the_same_and_to_what_the_model_says(plan, monkeypatch):
    async def run() -> None:
        world = await build(plan)
        before = world.files()
        found = await recovered_by_all(world, monkeypatch)
        # After a clean stop entries are trusted; what harms them then is found by a verification.
        if found.refusal is None and (plan.crashed or "cut queue" not in plan.damages):
            check_against_model(before, found)
        # And once more: nothing is left to do.
        again = attrs.evolve(world, disk=MemoryDisk())
        again.disk.make_dirs("store")
        for path, data in found.files.items():
            if path == "abort" and not plan.crashed:
                continue  # who recovers closes, too
            again.write(again.path(path), data)
        # After a clean stop a start reads no more than it has to: what it has not seen, a later one may see.
        seen = plan.crashed or len(plan.damages) < 2
        if found.refusal is None and seen and "lose segment" not in plan.damages:
            second = await outcome(again, Path.BATCH, concurrently=True)
            assert second.refusal is None
            assert second.report["log_end"] == found.report["log_end"]
            for name, data in found.files.items():
                if name.startswith(("commitlog/", "consumequeue/", "batchconsumequeue/")) and (
                    "SCHEDULE" not in name  # the builder gave them no due time
                    and not ends_astray(name, found)
                ):
                    assert second.files[name] == data, name

    trio.run(run, clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("size", [65_536, 65_537, 65_535, 200_000])
def test_records_around_and_above_the_size_of_a_window(size: int, monkeypatch):
    """One that exactly fills a window, straddles it, or is larger."""

    async def run() -> None:
        world = World.make(
            MemoryDisk(), "store", mapped_file_size_commit_log=1 << 20, max_message_size=1 << 19
        )
        async with world.life(kill=True) as store:
            fixed = 91 + len("T")
            for number in range(6):
                world.send(store, b"x" * (size - fixed if number % 2 else 10), "T", number % 3)
            store.commit()
        world.crash()
        world.disk.remove_tree("store/consumequeue")
        before = world.files()
        found = await recovered_by_all(world, monkeypatch)
        check_against_model(before, found)
        assert found.report["records"] == 6

    trio.run(run, clock=MockClock(autojump_threshold=0))


def test_a_log_of_many_usual_records_is_taken_over_at_once(monkeypatch):
    """Else the fast way would never be taken, and nobody would notice."""
    pytest.importorskip("numpy")
    from trio_mq.recovery import bulk

    taken = []
    real = bulk.BulkReplay.apply
    monkeypatch.setattr(
        bulk.BulkReplay,
        "apply",
        lambda self, lots: (
            taken.append((real(self, lots), sum(x.count for x in lots))) or taken[-1][0]
        ),
    )

    async def run() -> None:
        world = World.make(MemoryDisk(), "store", mapped_file_size_commit_log=1 << 20)
        await world.filled(3000, kill=True)
        world.crash()
        world.disk.remove_tree("store/consumequeue")
        await world.restart()
        assert world.report.records == 3000

    trio.run(run, clock=MockClock(autojump_threshold=0))
    assert sum(count for ok, count in taken if ok) > 2900
