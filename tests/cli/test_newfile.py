"""Files that commands write records to."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from trio_mq.cli.newfile import new_file
from trio_mq.errors import ConfigError


def test_the_file_is_new_and_outside_of_the_store(tmp_path):
    root = tmp_path / "store"
    root.mkdir()

    def make(path: Path) -> None:
        with new_file("--out", str(path), str(root)) as file:
            file.write("line\n")

    for inside in (root / "file", root / "commitlog" / ".." / "file", root):
        with pytest.raises(ConfigError, match="inside of the store"):
            make(inside)
    (tmp_path / "link").symlink_to(root)
    with pytest.raises(ConfigError, match="inside of the store"):
        make(tmp_path / "link" / "file")
    there = tmp_path / "there"
    there.write_text("precious")
    with pytest.raises(ConfigError, match="it is there already"):
        make(there)
    assert there.read_text() == "precious"
    with pytest.raises(ConfigError, match="No such file"):
        make(tmp_path / "no" / "folder")
    beside = tmp_path / "store-salvaged"
    make(beside)
    assert beside.read_text() == "line\n"


def test_what_cannot_be_written_names_the_file_and_it_is_closed(tmp_path):
    path = tmp_path / "full"
    with pytest.raises(OSError, match="full"), new_file("--out", str(path), "store") as file:
        raise OSError(errno.ENOSPC, "No space left on device")
    assert file.closed
