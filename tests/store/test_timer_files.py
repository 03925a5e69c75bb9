"""The timer's files: their bytes as Apache writes them, full files, slots that are used again; a model of them."""

from __future__ import annotations

import errno
from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trio_mq.errors import ForeignFormat
from trio_mq.store.segments import ColdData
from trio_mq.store.timercheck import TimerCheckFile, TimerCheckpoint
from trio_mq.store.timerlog import DELETE, NO_UNIT, PLAIN, UNIT_SIZE, TimerLog
from trio_mq.store.timerwheel import SLOT_SIZE, Slot, TimerWheel
from trio_mq.testing.disk import MemoryDisk

T0 = 1_700_000_000_000
FILE_BYTES = 10 * UNIT_SIZE + 20


@pytest.fixture
def disk():
    disk = MemoryDisk()
    disk.make_dirs("/s")
    return disk


def log_on(disk, end=0):
    made = TimerLog(disk, "/s/timerlog", FILE_BYTES)
    made.load(mend=True)
    made.open_at(end)
    return made


def wheel_on(disk, window=100, precision_ms=1000):
    made = TimerWheel(disk, "/s/timerwheel", precision_ms, window)
    made.load()
    for slot in made.stored():
        made.use(slot)
    return made


def append(log, prev=NO_UNIT, place=5, size=100, magic=PLAIN, delay_ms=9000):
    log.make_room()
    return log.append(prev, magic, T0, delay_ms, place, size, 77)


def save(wheel):
    call, _ = wheel.save_call()
    call()
    wheel.saved()


# -- the log -------------------------------------------------------------------------------------------------


def test_bytes_of_a_unit(disk):
    log = log_on(disk)
    append(log, prev=-1, place=0x1234, size=300, delay_ms=9000)
    log.write()
    data = disk.files()["/s/timerlog/" + 20 * "0"]
    assert len(data) == FILE_BYTES
    assert data[:52].hex(" ", 4) == (
        "00000034 ffffffff ffffffff 00000001 0000018b cfe56800 00002328 00000000 00001234 0000012c 0000004d "
        "00000000 00000000"
    )
    assert not any(data[52:])


def test_a_file_ends_with_a_blank_and_the_next_one_follows(disk):
    log = log_on(disk)
    places = [append(log, place=number) for number in range(25)]
    log.write()
    assert places[:11] == [*range(0, 10 * UNIT_SIZE, UNIT_SIZE), FILE_BYTES]
    files = disk.files()
    first = files["/s/timerlog/" + 20 * "0"]
    assert first[10 * UNIT_SIZE :].hex() == "00000014" + 16 * "0" + "cbd43194" + 8 * "0"
    assert sorted(files) == [f"/s/timerlog/{n * FILE_BYTES:020d}" for n in range(3)]
    found = list(log.scan(0))
    assert [at for at, _ in found] == places
    assert [unit.log_offset for _, unit in found] == list(range(25))
    assert [at for at, _ in log.scan(FILE_BYTES + 1)] == places[11:]
    assert log.behind(places[9]) == FILE_BYTES
    assert log.behind(places[24]) == log.end


def test_units_are_read_before_and_after_they_are_written(disk):
    log = log_on(disk)
    first = append(log, place=1)
    assert log.unit(first).log_offset == 1
    log.write()
    second = append(log, prev=first, place=2)
    assert [log.unit(at).log_offset for at in (first, second)] == [1, 2]
    assert log.unit(second).time_ms == T0 + 9000
    assert log.unit(log.end) is None
    assert log.unit(-52) is None
    log.write()
    disk.cold = True
    log = log_on(disk, log.end)
    with pytest.raises(ColdData):
        log.unit(first)


def test_what_is_no_unit_ends_the_log(disk):
    log = log_on(disk)
    for number in range(5):
        append(log, place=number)
    log.write()
    file = disk.open("/s/timerlog/" + 20 * "0")
    file.write(b"\x00\x00\x00\x33", 3 * UNIT_SIZE)
    assert [unit.log_offset for _, unit in log.scan(0)] == [0, 1, 2]
    log = log_on(disk, 3 * UNIT_SIZE)
    assert not any(disk.files()["/s/timerlog/" + 20 * "0"][3 * UNIT_SIZE :])
    assert append(log, place=9) == 3 * UNIT_SIZE


def test_a_full_disk_changes_nothing(disk):
    log = log_on(disk)
    for number in range(10):
        append(log, place=number)
    disk.fail_when(lambda _: True, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        log.make_room()
    assert log.end == 10 * UNIT_SIZE
    disk.heal()
    assert append(log, place=10) == FILE_BYTES
    log.write()
    assert len(list(log.scan(0))) == 11


def test_files_expire_with_their_messages(disk):
    log = log_on(disk)
    for number in range(25):
        append(log, place=100 * number)
    log.write()
    assert log.expired(10_000) == []  # nothing is durable yet
    log.sync_call()()
    assert log.expired(900) == []
    assert log.expired(901) == [0]
    assert log.expired(10_000) == [0, FILE_BYTES]  # the last one stays
    log.segments.drop_segment(0)
    assert log.unit(0) is None
    assert next(at for at, _ in log.scan(0)) == FILE_BYTES


# -- the wheel -----------------------------------------------------------------------------------------------


def test_bytes_of_a_slot(disk):
    wheel = wheel_on(disk)
    wheel.put(Slot(T0, 52, 104, 2))
    save(wheel)
    data = disk.files()["/s/timerwheel"]
    number = T0 // 1000 % 200
    assert len(data) == 200 * SLOT_SIZE
    assert data[number * SLOT_SIZE :][:SLOT_SIZE].hex(" ", 4) == (
        "00000000 6553f100 00000000 00000034 00000000 00000068 00000002 00000000"
    )
    assert data.count(0) == len(data) - 6
    wheel = wheel_on(disk)
    assert wheel.get(T0 + 999) == Slot(T0, 52, 104, 2)
    assert wheel.get(T0 + 1000) is None
    wheel.clear(wheel.get(T0))
    assert wheel.get(T0) is None
    save(wheel)
    assert not any(disk.files()["/s/timerwheel"])


def test_slots_are_used_again_a_turn_later(disk):
    wheel = wheel_on(disk)
    wheel.put(Slot(T0, 0, 0, 1))
    assert wheel.get(T0 + wheel.span_ms) is None
    assert wheel.occupant(T0 + wheel.span_ms) == Slot(T0, 0, 0, 1)


def test_the_next_slot(disk):
    wheel = wheel_on(disk)
    assert wheel.next(T0) is None
    for seconds in (5, 150, 70):
        wheel.put(Slot(T0 + 1000 * seconds, 0, 0, 1))
    asked = [wheel.next(T0 + 1000 * seconds) for seconds in (0, 5, 6, 71)]
    assert [(slot.time_ms - T0) // 1000 for slot in asked] == [5, 5, 70, 150]
    assert wheel.next(T0 + 151_000) is None
    assert (
        wheel.next(T0 - 500_000).time_ms == T0 + 5000
    )  # the clock was set back by more than a turn


def test_a_failed_save_is_repeated_whole(disk):
    wheel = wheel_on(disk)
    wheel.put(Slot(T0, 0, 0, 1))
    call, failed = wheel.save_call()
    wheel.put(Slot(T0, 0, 52, 2))
    wheel.put(Slot(T0 + 1000, 104, 104, 1))
    assert wheel.get(T0).waiting == 2
    disk.fail_when(lambda _: True)
    with pytest.raises(OSError, match="Input/output"):
        call()
    failed()
    disk.heal()
    save(wheel)
    again = wheel_on(disk)
    assert (again.get(T0), again.get(T0 + 1000)) == (
        Slot(T0, 0, 52, 2),
        Slot(T0 + 1000, 104, 104, 1),
    )


def test_another_wheel_is_refused(disk):
    save_me = wheel_on(disk)
    save_me.put(Slot(T0, 0, 0, 1))
    save(save_me)
    with pytest.raises(ForeignFormat, match="6400 bytes, a timer wheel has 12800"):
        wheel_on(disk, window=200)


# -- the checkpoint ------------------------------------------------------------------------------------------


def test_bytes_of_the_checkpoint(disk):
    check = TimerCheckFile(disk, "/s/config/timercheck")
    check.load()
    assert (check.known, check.value) == (False, TimerCheckpoint())
    value = TimerCheckpoint(T0, 520, 10, 11, 0, T0 + 5, 3)
    check.save(value)
    data = disk.files()["/s/config/timercheck"]
    assert len(data) == 4096
    assert data[:56] == value.pack()
    assert data[:56].hex(" ", 8) == (
        "0000018bcfe56800 0000000000000208 000000000000000a 000000000000000b 0000000000000000 0000018bcfe56805 "
        "0000000000000003"
    )
    again = TimerCheckFile(disk, "/s/config/timercheck")
    again.load()
    assert (again.known, again.value) == (True, value)


@pytest.mark.parametrize("size", [0, 55, 4096])
def test_an_empty_checkpoint_says_nothing(disk, size):
    disk.open("/s/timercheck", create=True).truncate(size)
    check = TimerCheckFile(disk, "/s/timercheck")
    check.load()
    assert not check.known


# -- a model -------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 30), st.booleans()),
        st.tuples(st.just("fire"), st.integers(0, 30), st.booleans()),
        st.tuples(st.just("reopen"), st.integers(0, 30), st.booleans()),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_wheel_and_log_hold_what_a_dictionary_holds(steps):
    disk = MemoryDisk()
    disk.make_dirs("/s")
    log, wheel = log_on(disk), wheel_on(disk, window=20)
    model: dict[int, list[int]] = defaultdict(list)
    number = 0
    for what, seconds, flag in steps:
        time_ms = T0 + 1000 * seconds
        if what == "put":
            slot = wheel.get(time_ms)
            number += 1
            log.make_room()
            magic = PLAIN | (DELETE if flag else 0)
            last = NO_UNIT if slot is None else slot.last
            at = log.append(last, magic, T0, time_ms - T0, number, 100, 0)
            first = at if slot is None else slot.first
            wheel.put(Slot(time_ms, first, at, 1 if slot is None else slot.waiting + 1))
            model[time_ms].append(number)
        elif what == "fire":
            slot = wheel.next(time_ms)
            times = [t for t, numbers in model.items() if numbers and t >= time_ms]
            assert (slot is None) == (not times)
            if slot is not None:
                assert slot.time_ms == min(times)
                wheel.clear(slot)
                del model[slot.time_ms]
        else:
            log.write()
            save(wheel)
            log, wheel = log_on(disk, log.end), wheel_on(disk, window=20)
        for at_ms, numbers in model.items():
            slot = wheel.get(at_ms)
            assert chain(log, slot) == numbers
            assert slot is None or slot.waiting == len(numbers)


def chain(log, slot):
    """What the units of a slot are about, oldest first."""
    found, at = [], NO_UNIT if slot is None else slot.last
    while at != NO_UNIT:
        unit = log.unit(at)
        found.append(unit.log_offset)
        at = unit.prev
    return found[::-1]
