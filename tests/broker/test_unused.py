"""State files that are not used here: spoilt ones get another name, the others stay (cases C043, C046)."""

from __future__ import annotations

import errno
import logging

import pytest

from trio_mq.broker.unused import NAMES, keep_spoilt_aside
from trio_mq.testing.disk import MemoryDisk

GOOD = b'{"offsetTable":{1:6,18:0,}}'


def disk_with(files: dict[str, bytes]) -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_dirs("/s/config")
    for name, data in files.items():
        file = disk.open(f"/s/config/{name}", create=True)
        file.write(data, 0)
        file.sync()
        file.close()
    for path in ("/s/config", "/s", "/"):
        disk.sync_dir(path)
    return disk


@pytest.mark.parametrize(
    ("main", "backup", "spoilt"),
    [
        (None, None, False),
        (None, b"", True),
        (None, bytes(180), True),
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
    keep_spoilt_aside(disk, "/s/config", 1234)
    assert (f"/s/config/{name}" in caplog.text) is spoilt
    expected = {
        f"{there}.bad-1234" if spoilt else there: data
        for there, data in files.items()
        if data is not None
    }
    disk.crash(1, keep="none")
    assert disk.list_dir("/s/config") == sorted(expected)
    if not spoilt:
        assert len(disk.operations) == operations, "nothing is changed"
        return
    for kept, data in expected.items():
        assert disk.open(f"/s/config/{kept}").read(1000, 0) == data


def test_several_share_one_line(caplog: pytest.LogCaptureFixture) -> None:
    keep_spoilt_aside(disk_with(dict.fromkeys(NAMES, bytes(7))), "/s/config", 1)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert all(f"/s/config/{name}" in record.getMessage() for name in NAMES)


def test_without_a_folder_there_is_nothing_to_say(caplog: pytest.LogCaptureFixture) -> None:
    keep_spoilt_aside(MemoryDisk(), "/nowhere/config", 1)
    assert caplog.records == []


def test_an_earlier_one_is_not_replaced() -> None:
    disk = disk_with({"consumerFilter.json": bytes(9), "consumerFilter.json.bad-1": b"first"})
    keep_spoilt_aside(disk, "/s/config", 1)
    assert disk.list_dir("/s/config") == ["consumerFilter.json.bad-1", "consumerFilter.json.bad-2"]
    assert disk.open("/s/config/consumerFilter.json.bad-1").read(9, 0) == b"first"


def test_one_that_cannot_be_renamed_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    disk = disk_with({"consumerFilter.json": bytes(9)})
    disk.fail_when(lambda op: op.kind == "rename", errno.EROFS)
    keep_spoilt_aside(disk, "/s/config", 1)
    assert "consumerFilter.json cannot be read, nor renamed" in caplog.text
    assert disk.list_dir("/s/config") == ["consumerFilter.json"]
