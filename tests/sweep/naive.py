"""What is in a store's files, read in the plainest way: no code of the store or of recovery takes part.

In: the files of a disk in memory. Out: the records of the log, and what consume queues have to hold for them.
Format: ``docs/reference/store-format.md``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY, QUEUE_ENTRY
from trio_mq.protocol.message import tags_code

#: Total size, magic, checksum, queue id, flag, queue offset, log offset, sysFlag, born time and host, stored time and
#: host, reconsume times, prepared offset, length of the body. (IPv4 hosts only.)
_HEAD = struct.Struct(">iIIiiqqiq8sq8siqi")
_MAGIC, _BLANK = 0xDAA320A7, 0xCBD43194
_INNER_BATCH = 0x80


class Record(NamedTuple):
    """One record of the log, with its properties parsed."""

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    size: int
    stored_ms: int
    body: bytes
    properties: dict[str, str]
    is_batch: bool

    @property
    def count(self) -> int:
        """Messages in it."""
        return int(self.properties["INNER_NUM"]) if self.is_batch else 1

    @property
    def entry(self) -> bytes:
        """Its entry in its queue."""
        code = tags_code(self.properties.get("TAGS"))
        if self.is_batch:
            return BATCH_QUEUE_ENTRY.pack(
                *(self.log_offset, self.size, code, self.stored_ms, self.queue_offset),
                *(self.count, -1, 0),
            )
        return QUEUE_ENTRY.pack(self.log_offset, self.size, code)


def record_in(data: bytes, at: int, log_offset: int) -> Record:
    """The record at a place of a segment; AssertionError for anything else."""
    size, magic, crc, queue_id, _, queue_offset, place, sys_flag, _, _, ms, _, _, _, length = (
        _HEAD.unpack_from(data, at)
    )
    assert magic == _MAGIC, f"offset {log_offset}: no record"
    assert place == log_offset, f"offset {log_offset}: a record of offset {place}"
    body_at = at + _HEAD.size
    body = data[body_at : body_at + length]
    topic_at = body_at + length
    topic_end = topic_at + 1 + data[topic_at]
    props_at = topic_end + 2
    props_end = props_at + int.from_bytes(data[topic_end:props_at], "big")
    assert props_end == at + size, f"offset {log_offset}: the lengths do not add up"
    assert zlib.crc32(body) & 0x7FFF_FFFF == crc, f"offset {log_offset}: a wrong checksum"
    text = data[props_at:props_end].decode()
    pairs = (pair.partition("\x01") for pair in text.split("\x02") if pair)
    return Record(
        data[topic_at + 1 : topic_end].decode(),
        queue_id,
        queue_offset,
        log_offset,
        size,
        ms,
        body,
        {name: value for name, _, value in pairs},
        bool(sys_flag & _INNER_BATCH),
    )


def folder(files: Mapping[str, bytes], path: str) -> dict[int, bytes]:
    """The segment files of a folder, by offset, in order."""
    return {
        int(name.rpartition("/")[2]): data
        for name, data in sorted(files.items())
        if name.rpartition("/")[0] == path and len(name.rpartition("/")[2]) == 20
    }


def log_of(files: Mapping[str, bytes], path: str, *, holes: bool) -> tuple[list[Record], int]:
    """All records of a log in order, and where it ends: there are nothing but zeros behind that.

    With `holes`, what is no record may lie in the middle: then the next one is looked for.
    """
    records: list[Record] = []
    segments = folder(files, path)
    last_used = max((start for start, data in segments.items() if any(data)), default=-1)
    end = min(segments, default=0)
    for start, data in segments.items():
        if start > last_used and end != start:
            break  # prepared for later
        at = 0
        while at < len(data) and any(data[at:]):
            if int.from_bytes(data[at + 4 : at + 8], "big") == _BLANK:
                # the head of the last one may be torn: the next record goes over it
                is_whole = int.from_bytes(data[at : at + 4], "big") == len(data) - at
                assert is_whole or start == max(segments), f"offset {start + at}: a torn blank"
                assert not any(data[at + 8 :]), f"offset {start + at}: something behind a blank"
                break
            try:
                found = record_in(data, at, start + at)
            except (AssertionError, struct.error, IndexError, ValueError):
                if not holes:
                    raise
                at += 1
                continue
            records.append(found)
            at += found.size
        end = start + at
        is_end = at == len(data) or any(data[at:])
        if is_end and start != max(segments):
            end = start + len(data)  # without a next file, the next record goes where the blank is
        else:
            assert start >= last_used or holes, f"offset {end}: nothing here, but behind it"
    return records, end


def entries_of(
    files: Mapping[str, bytes], path: str, entry: struct.Struct
) -> Iterator[tuple[int, bytes]]:
    """Position and bytes of each entry of a queue that is not all zeros."""
    empty = bytes(entry.size)
    for start, data in folder(files, path).items():
        for at in range(0, len(data), entry.size):
            if data[at : at + entry.size] != empty:
                yield start + at, data[at : at + entry.size]
