"""Decisions about room: when messages are refused, which segments expire, and when."""

from __future__ import annotations

import time

import attrs
import pytest

from trio_mq.config import StoreSettings
from trio_mq.store.disk import DiskUsage
from trio_mq.store.retention import (
    HOUR_MS,
    Pressure,
    expired_segments,
    is_cleaning_hour,
    judge_usage,
    next_cleaning,
    worse,
    write_refusal,
)

SETTINGS = StoreSettings()
NOW_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z


def used(percent: float) -> DiskUsage:
    return DiskUsage(100_000, int(percent * 1000), 100_000 - int(percent * 1000))


@pytest.fixture
def zone(monkeypatch):
    def set_zone(name: str) -> None:
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


# -- the disk's usage


@pytest.mark.parametrize(
    ("percent", "clean", "forced", "refuse"),
    [
        (50, False, False, False),
        (75, False, False, False),
        (75.5, True, False, False),  # not rounded away
        (85, True, False, False),
        (86, True, True, False),
        (90, True, True, False),
        (90.1, True, True, True),
        (100, True, True, True),
    ],
)
def test_limits_are_those_of_apache(percent, clean, forced, refuse):
    pressure = judge_usage(used(percent), "/data", SETTINGS)
    assert (pressure.clean, pressure.forced) == (clean, forced)
    assert (pressure.refuse is not None) == refuse


def test_a_refusal_names_path_share_limit_and_key_c055():
    settings = attrs.evolve(SETTINGS, disk_space_warning_level_ratio=1)
    text = judge_usage(used(42), "/data/store", settings).refuse
    assert text == (
        "disk full: /data/store is 42 % used, the limit is 1 % (diskSpaceWarningLevelRatio); "
        "free some room or raise the limit"
    )


def test_a_warning_level_below_the_forced_one_forces_as_well():
    settings = attrs.evolve(SETTINGS, disk_space_warning_level_ratio=50)
    assert judge_usage(used(60), "/d", settings).forced
    settings = attrs.evolve(settings, clean_file_forcibly_enable=False)
    pressure = judge_usage(used(60), "/d", settings)
    assert pressure.clean
    assert not pressure.forced


def test_of_two_disks_the_fuller_one_counts():
    calm, full = Pressure(), Pressure(clean=True, forced=True, refuse="full")
    assert worse(calm, full) == worse(full, calm) == full
    assert worse(calm, calm) == calm


def test_a_failed_write_is_told_with_path_and_reason_c055():
    text = write_refusal("/data/x", "No space left on device", used(97), SETTINGS)
    assert text == (
        "the store cannot write to /data/x: No space left on device (that disk is 97 % used; messages are "
        "refused above 90 %, diskSpaceWarningLevelRatio); free some room on that disk, messages are taken "
        "again within 10 s"
    )
    assert "(" not in write_refusal("/x", "No space left on device", None, SETTINGS)
    other = write_refusal("/x", "Input/output error", used(50), SETTINGS, full=False)
    assert other == (
        "the store cannot write to /x: Input/output error; messages are taken again when a write works, which is "
        "tried every 10 s"
    )


# -- segments


def ages(*hours: float) -> list[tuple[int, int]]:
    return [(n * 100, int(NOW_MS - hour * HOUR_MS)) for n, hour in enumerate(hours)]


CALM, CLEAN, FORCED = Pressure(), Pressure(clean=True), Pressure(clean=True, forced=True)


@pytest.mark.parametrize(
    ("hours", "pressure", "on_schedule", "expected"),
    [
        ((100, 90, 1), CALM, False, []),
        ((100, 90, 1), CALM, True, [0, 100]),
        ((100, 90, 1), CLEAN, False, [0, 100]),
        ((100, 71.9, 90, 1), CALM, True, [0]),  # stops at the first that is young
        ((72, 1), CALM, True, [0]),
        ((71.99, 1), CALM, True, []),
        ((100,), CALM, True, []),  # the last one stays
        ((100,), FORCED, True, []),
        ((2, 1, 0), FORCED, False, [0, 100]),
        ((2, 1, 0), CLEAN, False, []),
        ((), FORCED, True, []),
    ],
)
def test_which_segments_expire(hours, pressure, on_schedule, expected):
    found = expired_segments(
        ages(*hours), NOW_MS, pressure, on_schedule=on_schedule, settings=SETTINGS
    )
    assert found == expected


def test_only_some_go_at_once():
    found = expired_segments(ages(*[100] * 50), NOW_MS, CALM, on_schedule=True, settings=SETTINGS)
    assert len(found) == SETTINGS.delete_file_batch_max == 10


# -- hours


def test_the_hour_is_that_of_the_zone_c080(zone):
    zone("UTC")
    assert is_cleaning_hour(NOW_MS, (22,))
    assert not is_cleaning_hour(NOW_MS, (4, 6))
    zone("Asia/Shanghai")
    assert is_cleaning_hour(NOW_MS, (4, 6))
    assert not is_cleaning_hour(NOW_MS, (22,))


@pytest.mark.parametrize(
    ("name", "hours", "expected"),
    [
        ("UTC", (4,), "2023-11-15T04:00+00:00 (UTC)"),
        ("UTC", (4, 23), "2023-11-14T23:00+00:00 (UTC)"),
        ("UTC", (22,), "2023-11-14T22:13+00:00 (UTC)"),  # right now
        ("Asia/Shanghai", (4,), "2023-11-16T04:00+08:00 (CST)"),
        ("Asia/Kolkata", (4,), "2023-11-15T04:00+05:30 (IST)"),
    ],
)
def test_the_next_cleaning_is_told_with_its_zone_c059(zone, name, hours, expected):
    zone(name)
    assert next_cleaning(NOW_MS, hours) == expected


def test_a_skipped_hour_is_met_on_the_next_day(zone):
    zone("Europe/Berlin")  # 2024-03-31 has no hour 2
    before_ms = 1_711_839_600_000  # 2024-03-31T00:00+01:00
    assert next_cleaning(before_ms, (2,)) == "2024-04-01T02:00+02:00 (CEST)"
    assert next_cleaning(before_ms, (3,)) == "2024-03-31T03:00+02:00 (CEST)"
    assert next_cleaning(before_ms, ()) == "never"
