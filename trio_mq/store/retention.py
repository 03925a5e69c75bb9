"""Room on the disk: which segments expire, and when the store has to refuse messages.

In: the time, the disk's usage, the segments' ages. Out: removed segments, and a reason when no message can be
taken. Called by the store's cleaner task; the decisions are pure functions. Rules: Apache
DefaultMessageStore.CleanCommitLogService, CleanConsumeQueueService.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

import attrs

from trio_mq.config import StoreSettings
from trio_mq.store.disk import DiskUsage

log = logging.getLogger("trio_mq.store.retention")

HOUR_MS = 3_600_000


@attrs.frozen
class Pressure:
    """What the disk's usage asks for: `clean` for room, whatever the age if `forced`; `refuse` has the reason."""

    clean: bool = False
    forced: bool = False
    refuse: str | None = None


def judge_usage(usage: DiskUsage, path: str, settings: StoreSettings) -> Pressure:
    """What a disk that is this full means for the store at `path` (Apache: isSpaceToDelete)."""
    percent = usage.used_percent
    refuse = None
    if percent > settings.disk_space_warning_level_ratio:
        refuse = (
            f"disk full: {path} is {percent} % used, the limit is "
            f"{settings.disk_space_warning_level_ratio} % (diskSpaceWarningLevelRatio); "
            f"free some room or raise the limit"
        )
    forced = settings.clean_file_forcibly_enable and percent > min(
        settings.disk_space_clean_forcibly_ratio, settings.disk_space_warning_level_ratio
    )
    return Pressure(
        clean=percent > settings.disk_max_used_space_ratio or refuse is not None or forced,
        forced=forced,
        refuse=refuse,
    )


def expired_segments(
    segments: Sequence[tuple[int, int]],
    now_ms: int,
    pressure: Pressure,
    *,
    on_schedule: bool,
    settings: StoreSettings,
) -> list[int]:
    """Segments to remove now, oldest first, out of (start, time of last change in ms) pairs in order.

    The last segment always stays. Age decides when the hour has come or room is short; when room is very short,
    age does not matter, but only a few segments go at a time.
    """
    if not (on_schedule or pressure.clean):
        return []
    result: list[int] = []
    reserved_ms = settings.file_reserved_time_hours * HOUR_MS
    for start, modified_ms in segments[:-1]:
        if len(result) >= settings.delete_file_batch_max:
            break
        if now_ms - modified_ms < reserved_ms and not pressure.forced:
            break
        result.append(start)
    return result


def is_cleaning_hour(now_ms: int, hours: Sequence[int]) -> bool:
    """Whether the hour of the local time is one of `deleteWhen`."""
    return datetime.fromtimestamp(now_ms / 1000).astimezone().hour in hours


def next_cleaning(now_ms: int, hours: Sequence[int]) -> str:
    """The next time when segments expire by age, local time with its zone."""
    now = datetime.fromtimestamp(now_ms / 1000).astimezone()
    start = now.replace(minute=0, second=0, microsecond=0)
    for ahead in range(1, 25):
        if (start + timedelta(hours=ahead)).hour in hours:
            return (start + timedelta(hours=ahead)).isoformat(timespec="minutes")
    return "never"
