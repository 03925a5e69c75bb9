"""A third recovery, as simple as can be: what a log says from an offset on, and what queues have to hold then.

Shares no code with ``recovery/`` or ``protocol/verdict.py``: fields are read one after the other, every rule is an
``if``. Slow, and without any of the outer world (no checkpoint, no queues that exist already).
Rules: Apache CommitLog.checkMessageAndReturnSize, and the two of ours (place of a record, properties that end in NUL).
"""

from __future__ import annotations

import struct
import zlib

import attrs

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
Queue = tuple[str, int]


@attrs.frozen
class Read:
    """A record as the model reads it."""

    offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    count: int
    sys_flag: int
    has_entry: bool


class Cursor:
    """Reads fields; an IndexError where the record ends."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count < 0 or self.at + count > len(self.data):
            raise IndexError
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> int:
        return struct.unpack(">" + form, self.take(struct.calcsize(form)))[0]


def read_record(segment: bytes, at: int, offset: int) -> Read | None:
    """The record at a position of a segment; None for anything else."""
    room = len(segment) - at
    if room < 8:
        return None
    size, magic = struct.unpack_from(">iI", segment, at)
    if magic not in (V1, V2) or not 0 < size <= room:
        return None
    cursor = Cursor(segment[at : at + size])
    try:
        return _fields(cursor, size, magic, offset)
    except (IndexError, ValueError):
        return None


def _fields(cursor: Cursor, size: int, magic: int, offset: int) -> Read | None:
    cursor.take(8)
    crc, queue_id, _flag = cursor.number("i"), cursor.number("i"), cursor.number("i")
    queue_offset, place, sys_flag = cursor.number("q"), cursor.number("q"), cursor.number("i")
    cursor.take(8 + (20 if sys_flag & 0x10 else 8) + 8 + (20 if sys_flag & 0x20 else 8) + 4 + 8)
    body = cursor.take(max(0, cursor.number("i")))
    topic_length = cursor.number("b" if magic == V1 else "h")
    topic = cursor.take(topic_length).decode("utf-8", "replace")
    data = cursor.take(max(0, cursor.number("h")))
    if cursor.at != size or place != offset:
        return None
    if body and zlib.crc32(body) & 0x7FFFFFFF != crc:
        return None
    if data and data[-1] == 0:
        return None
    pairs = [pair.partition(b"\x01") for pair in data.split(b"\x02")]
    values = {name: value for name, _, value in pairs if value}
    if topic == "SCHEDULE_TOPIC_XXXX" and b"DELAY" in values:
        int(values[b"DELAY"])
    count = 1
    if b"INNER_NUM" in values and b"INNER_BASE" in values:
        base, inner = int(values[b"INNER_BASE"]), int(values[b"INNER_NUM"])
        if sys_flag & 0x80:
            queue_offset, count = base, inner
    return Read(
        *(offset, size, topic, queue_id, queue_offset, count, sys_flag),
        has_entry=sys_flag & 0xC in (0, 8),
    )


def read_log(segments: dict[int, bytes], begin: int) -> tuple[list[Read], int]:
    """All records from `begin` on, and where the log ends. Segments by their first offset."""
    records: list[Read] = []
    offset, gap = begin, None
    for start in sorted(segments):
        data = segments[start]
        if start + len(data) <= offset:
            continue
        if start > offset:
            gap, offset = offset, start
        over = True
        while offset < start + len(data):
            record = read_record(data, offset - start, offset)
            if record is None:
                over = data[offset - start + 4 : offset - start + 8] != struct.pack(">I", BLANK)
                break
            records.append(record)
            offset += record.size
            gap = None
        else:
            over = False
        if over:
            return records, offset if gap is None else gap
        if start != max(segments):
            offset = start + len(data)
    return records, offset
