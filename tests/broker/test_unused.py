"""State files that are not used here: what is said of them, and that they stay as they are (cases C043, C046)."""

from __future__ import annotations

import logging

import pytest

from trio_mq.broker.unused import NAMES, tell_spoilt
from trio_mq.testing.disk import MemoryDisk

GOOD = b'{"offsetTable":{1:6,18:0,}}'


def disk_with(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_dirs("/s/config")
    for name, data in files.items():
        file = disk.open(f"/s/config/{name}", create=True)
        file.write(data, 0)
        file.close()
    return disk


@pytest.mark.parametrize(
    ("main", "backup", "spoilt"),
    [
        (None, None, False),
        (None, b"", False),
        (GOOD, None, False),
        (GOOD, bytes(9), False),
        (b"", GOOD, False),
        (bytes(180), GOOD, False),
        (b"", None, True),
        (b"", b"", True),
        (bytes(180), bytes(180), True),
        (b"\xff\xfe{", b"no JSON", True),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_spoilt_when_its_backup_is_no_help(
    name: str,
    main: bytes | None,
    backup: bytes | None,
    spoilt: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = {name: main, f"{name}.bak": backup}
    disk = disk_with({name: data for name, data in files.items() if data is not None})
    operations = len(disk.operations)
    tell_spoilt(disk, "/s/config")
    assert (f"/s/config/{name}" in caplog.text) is spoilt
    assert len(disk.operations) == operations, "nothing is changed"


def test_several_share_one_line(caplog: pytest.LogCaptureFixture) -> None:
    tell_spoilt(disk_with(dict.fromkeys(NAMES, bytes(7))), "/s/config")
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert all(f"/s/config/{name}" in record.getMessage() for name in NAMES)


def test_without_a_folder_there_is_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    tell_spoilt(MemoryDisk(), "/nowhere/config")
    assert caplog.records == []
