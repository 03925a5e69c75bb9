"""Timers and crashes: kill -9 and power cuts between all steps of a save (case C143), and files that are gone."""

from __future__ import annotations

import random
import struct
import tarfile
from collections import Counter
from pathlib import Path

import attrs
import pytest
import trio

from tests.broker.timer_support import SETTINGS, T0, timers_on
from trio_mq.broker.timerstate import out_time_ms
from trio_mq.config import StoreSettings
from trio_mq.errors import ForeignFormat
from trio_mq.protocol.record import decode
from trio_mq.store.timerwheel import WINDOW_SLOTS
from trio_mq.testing.clock import TrioClock
from trio_mq.testing.disk import MemoryDisk

pytestmark = pytest.mark.slow

MESSAGES = 200
OVER_MS = 60_000
WINDOW = 3600


@pytest.fixture
def clock():
    return TrioClock(T0)


@pytest.fixture
def disk():
    return MemoryDisk()


@attrs.frozen
class Moment:
    """A disk as it was when something was about to be done to it, and the wall clock then."""

    disk: MemoryDisk
    ms: int
    what: str


class Camera:
    """Keeps copies of a disk before operations on the timer's files while it is on."""

    def __init__(self, disk: MemoryDisk, clock: TrioClock) -> None:
        self.moments: list[Moment] = []
        self.on = False

        def before(operation):
            if self.on and "timer" in operation.path:
                what = f"{operation.kind} {operation.path.removeprefix('/store/')}"
                self.moments.append(Moment(disk.clone(), clock.now_ms(), what))

        disk.before = before


async def moments_of_a_run(disk, clock) -> list[Moment]:
    """200 messages over a minute, with copies of the disk from two saves at its begin and one in its middle."""
    camera = Camera(disk, clock)
    async with timers_on(disk, clock, window=WINDOW) as rig:
        camera.on = True
        for number in range(MESSAGES):
            rig.send(str(number), TIMER_DELIVER_MS=T0 + 3000 + number * OVER_MS // MESSAGES)
            if number == MESSAGES // 2:
                await trio.sleep(1.5)
        await trio.sleep(1.2)
        camera.on = False
        await trio.sleep(20)
        camera.on = True
        await trio.sleep(2)
        camera.on = False
    return camera.moments


async def ends_well(moment: Moment, left: MemoryDisk) -> Counter[str]:
    """Start again, wait until all is over, and see what came: how often each message came twice."""
    clock = TrioClock(moment.ms + 300)
    async with timers_on(left, clock, window=WINDOW) as rig:
        queue = rig.store.queue("rmq_sys_wheel_timer", 0)
        wanted = {}
        for offset in range(queue.min_offset, queue.max_offset):
            record = decode(rig.store.reader.messages(queue, offset, 1, None).data)
            wanted[record.body.decode()] = out_time_ms(record.properties)
        await trio.sleep(OVER_MS / 1000 + 10)
        came = Counter(one.body for one in rig.out())
        lost = wanted.keys() - came.keys()
        assert not lost, f"lost after a crash before {moment.what}: {sorted(lost)}"
        for one in rig.out():
            due_ms = int(one.record.property_map["TIMER_DELIVER_MS"])
            assert one.ms >= due_ms, f"early after a crash before {moment.what}"
        assert rig.state.waiting == 0
    return Counter({body: count - 1 for body, count in came.items() if count > 1})


async def test_c143_kill_between_all_steps_of_a_save(autojump_clock, disk, clock):
    moments = await moments_of_a_run(disk, clock)
    steps = {moment.what.partition(" ")[2].partition("/")[0] for moment in moments}
    assert steps >= {"timerlog", "timerwheel", "config"}
    for moment in moments[:: max(1, len(moments) // 16)]:
        moment.disk.kill()
        twice = await ends_well(moment, moment.disk)
        # At most what went out since the last save was noted, and what of a slot had gone out: two seconds.
        assert sum(twice.values()) <= 2.5 * MESSAGES / (OVER_MS / 1000), moment.what


@pytest.mark.parametrize("keep", ["some", "none", "all"])
async def test_c143_power_cuts_between_all_steps_of_a_save(autojump_clock, disk, clock, keep):
    moments = await moments_of_a_run(disk, clock)
    for number, moment in enumerate(moments[:: max(1, len(moments) // 8)]):
        moment.disk.crash(number, keep=keep, reorder_names=keep == "some")
        await ends_well(moment, moment.disk)


async def test_a_recall_survives_a_crash(autojump_clock, disk, clock):
    async with timers_on(disk, clock, window=WINDOW) as rig:
        for number in range(10):
            rig.send(str(number), TIMER_DELAY_MS=9500)
        await trio.sleep(3)
        for number in range(5):
            rig.recall(str(number), T0 + 9001)
        await trio.sleep(0.1)
        killed = disk.clone()
    killed.kill()
    async with timers_on(killed, clock, window=WINDOW) as rig:
        await trio.sleep(20)
        assert rig.bodies() == ["5", "6", "7", "8", "9"]


@pytest.mark.parametrize("gone", ["timerwheel", "config/timercheck", "timerlog", "all"])
async def test_files_that_are_gone_are_made_again(autojump_clock, disk, clock, gone):
    async with timers_on(disk, clock, window=WINDOW) as rig:
        for number in range(150):
            rig.send(str(number), TIMER_DELAY_MS=20_000 + 100 * number)
        await trio.sleep(3)
    for name in ("timerwheel", "config/timercheck", "timerlog"):
        if gone in (name, "all"):
            disk.remove_tree(f"/store/{name}")
            if not disk.is_dir(f"/store/{name}"):
                disk.remove(f"/store/{name}")
    async with timers_on(disk, clock, window=WINDOW) as rig:
        await trio.sleep(60)
        came = rig.bodies()
    assert sorted(came, key=int) == [str(number) for number in range(150)]


async def test_a_torn_end_of_the_timer_log_is_cut(autojump_clock, disk, clock, caplog):
    async with timers_on(disk, clock, window=WINDOW) as rig:
        for number in range(50):
            rig.send(str(number), TIMER_DELAY_MS=20_000 + 100 * number)
        await trio.sleep(3)
        end = rig.state.log.end
        for number in range(50, 60):
            rig.send(str(number), TIMER_DELAY_MS=20_000 + 100 * number)
        await trio.sleep(0.1)
        killed = disk.clone()
    killed.kill()
    file = killed.open("/store/timerlog/" + "0" * 20)
    file.write(bytes(8), end + 4 * 52 + 28)  # where the fifth message behind the checkpoint is
    file.close()
    async with timers_on(killed, clock, window=WINDOW) as rig:
        assert rig.state.log.end == end + 4 * 52
        await trio.sleep(60)
        assert rig.bodies() == [str(number) for number in range(60)]
    assert "the timer log is cut" in caplog.text


async def test_a_wheel_that_is_ahead_of_its_log_is_made_anew(autojump_clock, disk, clock):
    """As after a power cut of an Apache broker, which may save the wheel before units that are in it."""
    async with timers_on(disk, clock, window=WINDOW) as rig:
        for number in range(20):
            rig.send(str(number), TIMER_DELIVER_MS=T0 + 20_500)
        await trio.sleep(3)
        before = disk.clone()
        for number in range(20, 30):
            rig.send(str(number), TIMER_DELIVER_MS=T0 + 20_500)
        await trio.sleep(3)
        wheel = disk.files()["/store/timerwheel"]
    before.kill()
    file = before.open("/store/timerwheel")
    file.write(wheel, 0)
    file.close()
    async with timers_on(before, clock, window=WINDOW) as rig:
        assert rig.state.waiting == 20
        await trio.sleep(60)
        assert rig.bodies() == [str(number) for number in range(20)]


async def test_a_wheel_of_another_size_is_refused(autojump_clock, disk, clock):
    disk.make_dirs("/store")
    file = disk.open("/store/timerwheel", create=True)
    file.truncate(1000)
    file.close()
    with pytest.raises(BaseExceptionGroup) as refused:
        async with timers_on(disk, clock, window=WINDOW):
            pass
    assert refused.group_contains(ForeignFormat, match="timer wheel has")


async def test_sends_and_crashes_in_any_order(autojump_clock, disk, clock):
    """A long run of sends, recalls, clean stops and kills: what waits always comes, and never early."""
    chance = random.Random(7)
    settings = attrs.evolve(SETTINGS, timer_roll_window_slot=20)
    sent: dict[str, int] = {}
    recalled: set[str] = set()
    for turn in range(12):
        async with timers_on(disk, clock, settings, window=WINDOW) as rig:
            for _ in range(40):
                body = str(len(sent))
                sent[body] = clock.now_ms() + chance.randrange(1, 90_000)
                rig.send(body, TIMER_DELIVER_MS=sent[body])
                candidates = [one for one in sent if sent[one] - clock.now_ms() > 3000]
                if candidates and chance.random() < 0.2:
                    body = chance.choice(candidates)
                    rig.recall(body, (sent[body] - 1) // 1000 * 1000 + 1)
                    recalled.add(body)
                await trio.sleep(chance.random() * 0.3)
            left = disk.clone()
        if turn % 2:
            left.kill()
            disk = left
    async with timers_on(disk, clock, settings, window=WINDOW) as rig:
        await trio.sleep(100)
        out = rig.out()
        assert {one.body for one in out} == sent.keys() - recalled
        assert all(one.ms >= sent[one.body] for one in out)
        assert rig.state.waiting == 0


GOLDEN = Path(__file__).parent.parent / "golden"
CHUNK = 4096


def golden_disk(name: str) -> MemoryDisk:
    """A store that Apache's broker left behind, with holes where its files have zeros."""
    disk = MemoryDisk()
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        for member in archive:
            path = f"/store/{member.name.partition('/')[2]}"
            data = archive.extractfile(member)
            if data is None:
                disk.make_dirs(path)
                continue
            file = disk.open(path, create=True)
            file.truncate(member.size)
            for at in range(0, member.size, CHUNK):
                if any(chunk := data.read(CHUNK)):
                    file.write(chunk, at)
    return disk


@pytest.mark.parametrize("name", ["clean", "crash"])
async def test_what_waits_in_a_store_of_apache_comes(autojump_clock, name):
    """Two of four messages were due when the store was put away, the others an hour after they were sent."""
    disk = golden_disk(name)
    read_ms, _, taken, _ = struct.unpack(">4q", disk.files()["/store/config/timercheck"][:32])
    clock = TrioClock(read_ms + 2000)
    golden = attrs.evolve(
        SETTINGS,
        mapped_file_size_commit_log=65_536,
        mapped_file_size_consume_queue=1_200,
        mapped_file_size_timer_log=StoreSettings().mapped_file_size_timer_log,
        max_hash_slot_num=500,
    )
    async with timers_on(
        disk, clock, golden, window=WINDOW_SLOTS, batch_topics=("GoldBCQ",)
    ) as rig:
        assert (rig.state.waiting, taken) == (2, 4)
        slot = rig.state.wheel.next(clock.now_ms())
        queue = rig.store.queue("rmq_sys_wheel_timer", 0)
        wanted = [
            decode(rig.store.reader.messages(queue, offset, 1, None).data) for offset in range(4)
        ]
        topic = wanted[0].property_map["REAL_TOPIC"]
        before = sum(len(rig.out(topic, number)) for number in range(8))
        await trio.sleep((slot.time_ms - clock.now_ms()) / 1000 - 1)
        assert sum(len(rig.out(topic, number)) for number in range(8)) == before
        await trio.sleep(3)
        came = [one.record for number in range(8) for one in rig.out(topic, number)]
        late = [one for one in came if one.store_timestamp_ms > read_ms]
        assert {one.body for one in late} == {one.body for one in wanted[2:]}
        assert all(one.store_timestamp_ms > slot.time_ms for one in late)
        assert rig.state.waiting == 0
