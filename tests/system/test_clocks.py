"""Zones of a whole process: the hour at which old files go, and the times in its log (case C080)."""

from __future__ import annotations

import re

import pytest

from tests.system.processes import Starter

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("zone", "offset", "name"), [("UTC", "+00:00", "UTC"), ("Asia/Shanghai", "+08:00", "CST")]
)
def test_c080_a_start_tells_zone_and_next_cleaning(
    serve: Starter, monkeypatch: pytest.MonkeyPatch, zone: str, offset: str, name: str
) -> None:
    """C080: hour 04 is that of the process's zone; the log and the status say which one that is."""
    monkeypatch.setenv("TZ", zone)
    running = serve("--set", "deleteWhen=04")
    expected = rf"\(deleteWhen\); next time 20\d\d-\d\d-\d\dT04:\d\d{re.escape(offset)} \({name}\)"
    (line,) = [line for line in running.log.splitlines() if "deleteWhen" in line]
    assert re.search(expected, line)
    assert all(
        re.match(rf"20\S+T\S+\.\d{{3}}{re.escape(offset)} ", each)
        for each in running.log.splitlines()
    )
    assert running.stop().code == 0
