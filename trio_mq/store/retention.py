"""Room on the disk: which segments expire, and when the store has to refuse messages.

In: the time, the disk's usage, the segments' ages. Out: decisions, as values; :class:`trio_mq.store.cleaner.Cleaner`
carries them out. Pure. Rules: Apache DefaultMessageStore.CleanCommitLogService.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

import attrs

from trio_mq.config import StoreSettings
from trio_mq.store.disk import DiskUsage

HOUR_MS = 3_600_000
#: How far a cleaning hour is looked for: two days, since a clock change skips an hour once.
_SEARCH_HOURS = 50


@attrs.frozen
class Pressure:
    """What the disk's usage asks for: `clean` for room, whatever the age if `forced`; `refuse` has the reason."""

    clean: bool = False
    forced: bool = False
    refuse: str | None = None


@attrs.frozen
class RaisedMinimum:
    """A queue whose first messages expired: offsets from `old_offset` up to `new_offset` are gone."""

    topic: str
    queue_id: int
    old_offset: int
    new_offset: int


@attrs.frozen
class Expired:
    """Log segments that were removed, from `log_begin` to `log_end`, and what queues lost (case C058).

    Groups that had not consumed up to a new minimum miss messages; who keeps consumer offsets can name them.
    """

    log_begin: int
    log_end: int
    forced: bool
    raised: tuple[RaisedMinimum, ...] = ()


def judge_usage(usage: DiskUsage, path: str, settings: StoreSettings) -> Pressure:
    """What a disk that is this full means for the store at `path` (Apache: isSpaceToDelete)."""
    warning = settings.disk_space_warning_level_ratio
    refuse = None
    if _above(usage, warning):
        refuse = (
            f"disk full: {path} is {usage.used_percent} % used, the limit is {warning} % "
            f"(diskSpaceWarningLevelRatio); free some room or raise the limit"
        )
    forced = settings.clean_file_forcibly_enable and _above(
        usage, min(settings.disk_space_clean_forcibly_ratio, warning)
    )
    return Pressure(
        clean=_above(usage, settings.disk_max_used_space_ratio) or refuse is not None or forced,
        forced=forced,
        refuse=refuse,
    )


def _above(usage: DiskUsage, percent: int) -> bool:
    """Whether more than `percent` is used, without rounding."""
    return 100 * usage.used > percent * max(1, usage.used + usage.free)


def worse(one: Pressure, other: Pressure) -> Pressure:
    """Of two disks that a store uses, what the fuller one asks for."""
    return Pressure(
        one.clean or other.clean, one.forced or other.forced, one.refuse or other.refuse
    )


def write_refusal(
    path: str, reason: str, usage: DiskUsage | None, settings: StoreSettings, *, full: bool = True
) -> str:
    """What senders are told after a write has failed (case C055); `full` when for want of room."""
    again_s = settings.clean_resource_interval_ms / 1000
    if not full:
        return (
            f"the store cannot write to {path}: {reason}; messages are taken again when a write works, which is "
            f"tried every {again_s:g} s"
        )
    used = ""
    if usage is not None:
        used = (
            f" (that disk is {usage.used_percent} % used; messages are refused above "
            f"{settings.disk_space_warning_level_ratio} %, diskSpaceWarningLevelRatio)"
        )
    return (
        f"the store cannot write to {path}: {reason}{used}; free some room on that disk, "
        f"messages are taken again within {again_s:g} s"
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
    return time.localtime(now_ms / 1000).tm_hour in hours


def next_cleaning(now_ms: int, hours: Sequence[int]) -> str:
    """The next moment when segments expire by age (now, within such an hour), local time with its zone (C080)."""
    local = time.localtime(now_ms / 1000)
    hour_ms = now_ms - (local.tm_min * 60 + local.tm_sec) * 1000
    moments = [now_ms, *(hour_ms + ahead * HOUR_MS for ahead in range(1, _SEARCH_HOURS))]
    at_ms = next((ms for ms in moments if is_cleaning_hour(ms, hours)), None)
    if at_ms is None:
        return "never"
    at = datetime.fromtimestamp(at_ms / 1000).astimezone()
    return f"{at.isoformat(timespec='minutes')} ({at.tzname()})"
