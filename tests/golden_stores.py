"""The stores in ``tests/golden``, which Apache RocketMQ 5.4.0 wrote: unpacked, walked, and as its decoder saw them.

``tests/golden/README.md`` tells how they were made.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parent / "golden"
NAMES = ("clean", "crash")
SEGMENT_SIZE = 65_536
QUEUE_FILE_SIZE = 1_200
HASH_SLOTS = 500
MAX_INDEX_NUM = 2_000


def unpack(name: str, tmp_path: Path) -> Path:
    """A fresh copy of the store ``clean`` or ``crash`` under ``tmp_path``; returns its root directory."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / name


def read_files(name: str, folder: str) -> dict[str, bytes]:
    """The files below one folder of a store (``commitlog``, ``index``, …) by their path in it, without unpacking."""
    prefix = f"{name}/{folder}/"
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        return {
            member.name.removeprefix(prefix): _content(archive, member)
            for member in archive
            if member.isfile() and member.name.startswith(prefix)
        }


def read_file(name: str, path: str) -> bytes:
    """One file of a store."""
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        return _content(archive, archive.getmember(f"{name}/{path}"))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None
    return file.read()


def segments(name: str) -> list[tuple[int, bytes]]:
    """Start offset and content of each commit log segment, in order."""
    return [(int(path), data) for path, data in sorted(read_files(name, "commitlog").items())]


def decoded(name: str) -> list[dict[str, Any]]:
    """Every record as Apache's decoder read it, in log order."""
    lines = (GOLDEN / f"{name}.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def raw_records(name: str) -> Iterator[tuple[int, bytes]]:
    """Log offset and bytes of every record, placed by the decoder's list and not by our own codec."""
    log = dict(segments(name))
    for row in decoded(name):
        start = row["offset"] - row["offset"] % SEGMENT_SIZE
        at = row["offset"] - start
        yield row["offset"], log[start][at : at + row["size"]]
