"""Ways to damage the stores in ``tests/golden``.

A store is a plain table here: content of a file by its path below the store's folder. A :class:`Damage` changes such a
table, and knows nothing of trio_mq. What is left of a damaged store says ``tests/damage_model.py``.
Used by ``tests/recovery/test_damaged_golden.py`` (trio-mq) and by ``tests/interop/test_damaged_golden.py`` (Apache's
broker beside it); ``docs/explanation/damage-and-apache.md`` has every damage in a row.
"""

from __future__ import annotations

import struct
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import attrs

from tests.golden_stores import GOLDEN, SEGMENT_SIZE, decoded

Files = dict[str, bytes]
Queue = tuple[str, int]
Row = dict[str, Any]

#: Files of features that recovery does not touch; the timer's wheel has 38 MB.
_LEFT_OUT = ("timerwheel", "timerlog/", "lock", "abort.bak", "compaction/")
#: The file of the batch queue, 13.8 MB of zeros but for two entries, is made this short for speed; a start needs
#: the setting mapperFileSizeBatchConsumeQueue then.
BATCH_QUEUE_FILE_SIZE = 4_600
BLANK_MAGIC = struct.pack(">i", -875286124)
V1_MAGIC = struct.pack(">i", -626843481)
HALF, NORMAL = "RMQ_SYS_TRANS_HALF_TOPIC", "GoldNormal"


@cache
def _original(name: str) -> Files:
    found: Files = {}
    with tarfile.open(GOLDEN / f"{name}.tar.xz") as archive:
        for member in archive:
            path = member.name.removeprefix(f"{name}/")
            if member.isfile() and not path.startswith(_LEFT_OUT):
                file = archive.extractfile(member)
                assert file is not None
                found[path] = file.read()
                if path.startswith("batchconsumequeue/"):
                    found[path] = found[path][:BATCH_QUEUE_FILE_SIZE]
    return found


def golden(name: str) -> Files:
    """A store to be damaged."""
    return dict(_original(name))


@cache
def rows(name: str) -> tuple[Row, ...]:
    """All records of a store, in the order of the log."""
    return tuple(decoded(name))


def segment_path(offset: int) -> str:
    """The log file that holds an offset."""
    return f"commitlog/{offset - offset % SEGMENT_SIZE:020d}"


def queue_path(topic: str, queue_id: int, kind: str = "consumequeue") -> str:
    """The only file of a queue: none of them has more entries than one file takes."""
    return f"{kind}/{topic}/{queue_id}/{0:020d}"


def read_log(files: Files, offset: int, size: int) -> bytes:
    """Bytes of the log, which lie in one file; fewer where it has fewer, or is gone."""
    at = offset % SEGMENT_SIZE
    return files.get(segment_path(offset), b"")[at : at + size]


def write(files: Files, path: str, at: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    old = files[path]
    files[path] = old[:at] + data + old[at + len(data) :]


def write_log(files: Files, offset: int, data: bytes) -> None:
    """Overwrite bytes of the log."""
    write(files, segment_path(offset), offset % SEGMENT_SIZE, data)


def remove(files: Files, prefix: str) -> None:
    """Remove a file, or all files of a folder."""
    for path in [p for p in files if p == prefix or p.startswith(prefix.rstrip("/") + "/")]:
        del files[path]


# -- records -------------------------------------------------------------------------------------------------


def fields(row: Row, files: Files) -> dict[str, tuple[int, int]]:
    """Place and size of each field of a record with IPv4 hosts and a short topic (version 1)."""
    base = row["offset"]
    (body,) = struct.unpack(">i", read_log(files, base + 84, 4))
    topic = len(row["topic"].encode())
    sizes = {
        "size": 4, "magic": 4, "bodyCRC": 4, "queueId": 4, "flag": 4, "queueOffset": 8, "physicalOffset": 8,
        "sysFlag": 4, "bornTimestamp": 8, "bornHost": 8, "storeTimestamp": 8, "storeHost": 8, "reconsumeTimes": 4,
        "preparedTransactionOffset": 8, "bodyLength": 4, "body": body, "topicLength": 1, "topic": topic,
        "propertiesLength": 2, "properties": row["size"] - 91 - body - topic,
    }  # fmt: skip
    found, at = {}, base
    for name, size in sizes.items():
        found[name] = (at, size)
        at += size
    assert at == base + row["size"]
    return found


def flip(files: Files, offset: int, bit: int = 1) -> None:
    """Change one bit of the log."""
    write_log(files, offset, bytes([read_log(files, offset, 1)[0] ^ bit]))


def flip_field(files: Files, row: Row, name: str, *, sign: bool = False) -> None:
    """Change the lowest bit of a field, or its highest, which makes numbers negative and text no UTF-8."""
    at, size = fields(row, files)[name]
    if sign:
        flip(files, at, 0x80)
    else:
        flip(files, at + size - 1)


# -- damages -------------------------------------------------------------------------------------------------


@attrs.frozen
class Damage:
    """One way to damage a store; `name` is what tests and the docs page call it.

    `unseen`: no start can notice it, since no checksum covers the field, or since nothing is read there after a clean
    stop. `moves`: the record before the last says that it belongs to another queue now, and gets an entry there, too.
    `refused`: a start has to say this instead of recovering.
    """

    name: str
    harm: Callable[[Files], None]
    store: str = "crash"
    unseen: bool = False
    moves: tuple[str, int] | None = None
    refused: str | None = None

    def files(self) -> Files:
        """The damaged store."""
        files = golden(self.store)
        self.harm(files)
        return files


LAST, BEFORE_LAST = rows("crash")[-1], rows("crash")[-2]
END = LAST["offset"] + LAST["size"]
#: Offset of the last file with records, and of the file that Apache's broker had prepared behind it.
LAST_SEGMENT, PREPARED = 2 * SEGMENT_SIZE, 3 * SEGMENT_SIZE
#: A record in the middle of the second segment, and the last one of the first.
MIDDLE = next(r for r in rows("crash") if r["offset"] > 96_000 and r["topic"] == NORMAL)
OLD = next(r for r in rows("crash") if r["offset"] > 40_000 and r["topic"] == NORMAL)


def _tail(at: int) -> Callable[[Files], None]:
    """Zeros from a byte of the last two records on."""

    def harm(files: Files) -> None:
        tear(files, BEFORE_LAST["offset"] + at)

    return harm


def tear(files: Files, offset: int) -> None:
    """Make the log zeros from an offset to the end of that file."""
    at = offset % SEGMENT_SIZE
    write(files, segment_path(offset), at, bytes(SEGMENT_SIZE - at))


def _torn() -> Iterator[Damage]:
    """Cuts at the borders and in the middle of what a record consists of; the sweep in the tests takes every byte."""
    places = fields(LAST, golden("crash"))
    base = LAST["offset"]
    for name, offset in {
        "behind-one-record": base,
        "in-size": base + 2,
        "behind-head": base + 8,
        "in-head": places["storeTimestamp"][0] + 3,
        "in-body": places["body"][0] + 1,
        "in-topic": places["topic"][0] + 5,
        "in-properties": places["properties"][0] + 100,
        "at-last-byte": base + LAST["size"] - 1,
        "in-record-before": BEFORE_LAST["offset"] + 40,
    }.items():
        yield Damage(f"torn-{name}", _tail(offset - BEFORE_LAST["offset"]))


#: Fields that no rule and no checksum covers. The offset of the record in the log is checked by trio-mq only.
UNCOVERED = (
    "queueId", "flag", "queueOffset", "sysFlag", "bornTimestamp", "bornHost", "storeTimestamp", "storeHost",
    "reconsumeTimes", "preparedTransactionOffset", "topic", "properties",
)  # fmt: skip


def _flips() -> Iterator[Damage]:
    moves = {
        "flip-queueId": (HALF, 1),
        "flip-topic": (HALF[:-1] + "B", 0),
        # What is no UTF-8 reads as U+FFFD.
        "sign-topic": ("\ufffd" + HALF[1:], 0),
    }
    for kind in ("flip", "sign"):
        for field in fields(BEFORE_LAST, golden("crash")):
            yield Damage(
                name := f"{kind}-{field}",
                lambda f, n=field, s=kind == "sign": flip_field(f, BEFORE_LAST, n, sign=s),
                unseen=field in UNCOVERED,
                moves=moves.get(name),
            )


def _zeros(offset: int, size: int) -> Callable[[Files], None]:
    return lambda files: write_log(files, offset, bytes(size))


def _record_behind_end(files: Files) -> None:
    write_log(files, END, read_log(files, MIDDLE["offset"], MIDDLE["size"]))


def _whole_segment_again(files: Files) -> None:
    files[segment_path(LAST_SEGMENT)] = files[segment_path(SEGMENT_SIZE)]


def _head_of_segment_prepared(files: Files) -> None:
    write_log(files, PREPARED, read_log(files, 0, 4096))


def _blank_at_end(files: Files) -> None:
    write_log(files, END, struct.pack(">i", PREPARED - END) + BLANK_MAGIC)


def _blank_at_end_of_all(files: Files) -> None:
    _blank_at_end(files)
    remove(files, segment_path(PREPARED))


def _behind_end(size: int) -> Callable[[Files], None]:
    return lambda files: write_log(files, END, struct.pack(">i", size) + V1_MAGIC + b"\1" * 100)


def _garbage_behind_end(files: Files) -> None:
    write_log(files, END, bytes(n * 7 % 251 + 1 for n in range(3000)))


def _segments() -> Iterator[Damage]:
    def without(*offsets: int) -> Callable[[Files], None]:
        return lambda files: [remove(files, segment_path(o)) for o in offsets] and None

    def emptied(offset: int) -> Callable[[Files], None]:
        def harm(files: Files) -> None:
            remove(files, segment_path(PREPARED))
            files[segment_path(offset)] = b""

        return harm

    def zeroed(files: Files) -> None:
        files[segment_path(LAST_SEGMENT)] = bytes(SEGMENT_SIZE)

    def short(files: Files) -> None:
        remove(files, segment_path(PREPARED))
        files[segment_path(LAST_SEGMENT)] = read_log(files, LAST_SEGMENT, END - LAST_SEGMENT)

    yield Damage("segment-first-missing", without(0))
    yield Damage("segment-middle-missing", without(SEGMENT_SIZE))
    yield Damage("segment-last-missing", without(LAST_SEGMENT))
    yield Damage("segment-prepared-missing", without(PREPARED))
    yield Damage("segment-last-and-prepared-missing", without(LAST_SEGMENT, PREPARED))
    yield Damage("segments-all-missing", without(0, SEGMENT_SIZE, LAST_SEGMENT, PREPARED))
    yield Damage(
        "segment-prepared-of-zero-bytes", lambda f: f.update({segment_path(PREPARED): b""})
    )
    yield Damage("segment-last-of-zero-bytes", emptied(LAST_SEGMENT))
    yield Damage(
        "segment-middle-of-zero-bytes",
        lambda f: f.update({segment_path(SEGMENT_SIZE): b""}),
        refused=f"{SEGMENT_SIZE:020d} has 0 bytes",
    )
    yield Damage("segment-last-all-zeros", zeroed)
    yield Damage(
        "segment-last-short", short, refused=f"{LAST_SEGMENT:020d} has {END - LAST_SEGMENT} bytes"
    )


def _after_clean_stop() -> Iterator[Damage]:
    last = rows("clean")[-1]
    middle = next(r for r in rows("clean") if r["offset"] > 96_000 and r["topic"] == NORMAL)
    end = last["offset"] + last["size"]

    def old_record(files: Files) -> None:
        write_log(files, end, read_log(files, middle["offset"], middle["size"]))

    for name, harm in {
        "torn-in-body": lambda f: tear(f, fields(last, f)["body"][0] + 1),
        "torn-in-properties": lambda f: tear(f, fields(last, f)["properties"][0] + 100),
        "body-flip-in-last-record": lambda f: flip_field(f, last, "body"),
        "body-flip-in-middle-segment": lambda f: flip_field(f, middle, "body"),
        "old-record-behind-end": old_record,
        "segment-middle-missing": lambda f: remove(f, segment_path(SEGMENT_SIZE)),
        "segment-last-missing": lambda f: remove(f, segment_path(LAST_SEGMENT)),
    }.items():
        unseen = name == "body-flip-in-middle-segment"
        yield Damage(f"{name}-after-clean-stop", harm, "clean", unseen=unseen)


def _queues() -> Iterator[Damage]:
    normal, half = queue_path(NORMAL, 1), queue_path(HALF, 0)

    def short(files: Files) -> None:
        files[normal] = files[normal][: 20 * 20]

    def zeroed(files: Files) -> None:
        write(files, normal, 40 * 20, bytes(20 * 5))

    def beyond(files: Files) -> None:
        write(files, half, 18 * 20, struct.pack(">qiq", END + 10_000, 453, 0))

    def no_queues(files: Files) -> None:
        remove(files, "consumequeue")
        remove(files, "batchconsumequeue")

    for store in ("crash", "clean"):
        end = "" if store == "crash" else "-after-clean-stop"
        yield Damage(
            f"queue-folder-missing{end}", lambda f: remove(f, f"consumequeue/{NORMAL}/1"), store
        )
        yield Damage(f"queues-all-missing{end}", no_queues, store)
    yield Damage("topic-folder-missing", lambda f: remove(f, f"consumequeue/{NORMAL}"))
    yield Damage("queue-file-empty", lambda f: f.update({normal: b""}))
    yield Damage("queue-file-all-zeros", lambda f: f.update({normal: bytes(1200)}))
    yield Damage("queue-file-short", short)
    yield Damage("queue-entries-zeroed", zeroed)
    yield Damage("queue-entry-beyond-the-log", beyond)
    yield Damage("batch-queue-folder-missing", lambda f: remove(f, "batchconsumequeue/GoldBCQ"))


def _small_files() -> Iterator[Damage]:
    def emptied(*paths: str) -> Callable[[Files], None]:
        return lambda files: files.update(dict.fromkeys(paths, b""))

    def broken(*paths: str) -> Callable[[Files], None]:
        return lambda files: files.update({p: files[p][: len(files[p]) // 2] for p in paths})

    for store in ("crash", "clean"):
        end = "" if store == "crash" else "-after-clean-stop"
        yield Damage(f"checkpoint-empty{end}", emptied("checkpoint"), store)
        yield Damage(f"checkpoint-missing{end}", lambda f: remove(f, "checkpoint"), store)
    yield Damage("abort-missing", lambda f: remove(f, "abort"))
    yield Damage("abort-after-clean-stop", lambda f: f.update({"abort": b"1"}), "clean")
    for name in ("topics", "consumerOffset", "subscriptionGroup"):
        path = f"config/{name}.json"
        yield Damage(f"{name}-empty", emptied(path))
        yield Damage(f"{name}-broken", broken(path))
        for how, harm in {"empty": emptied, "broken": broken}.items():
            yield Damage(
                f"{name}-and-backup-{how}",
                harm(path, f"{path}.bak"),
                refused=f"{name}.json.bak (is empty|cannot be read)",
            )
    others = [f"config/{n}.json" for n in ("delayOffset", "consumerFilter", "consumerOrderInfo")]
    yield Damage("other-json-and-backups-empty", emptied(*others, *(f"{p}.bak" for p in others)))
    yield Damage("checkpoint-short", lambda f: f.update({"checkpoint": f["checkpoint"][:20]}))
    yield Damage("index-missing", lambda f: remove(f, "index"))
    yield Damage(
        "index-short",
        lambda f: f.update({p: d[:1000] for p, d in f.items() if p.startswith("index/")}),
    )


DAMAGES: tuple[Damage, ...] = (
    Damage("nothing", lambda files: None),
    Damage("nothing-after-clean-stop", lambda files: None, "clean"),
    *_torn(),
    *_flips(),
    Damage("zeros-in-last-record", _zeros(LAST["offset"] + 100, 200)),
    Damage("zeros-over-record-before-last", _zeros(BEFORE_LAST["offset"], BEFORE_LAST["size"])),
    Damage("zeros-in-middle-segment", _zeros(MIDDLE["offset"] + 100, 4096)),
    Damage("zeros-in-first-segment", _zeros(OLD["offset"] + 100, 4096), unseen=True),
    Damage("body-flip-in-middle-segment", lambda f: flip_field(f, MIDDLE, "body")),
    Damage("body-flip-in-first-segment", lambda f: flip_field(f, OLD, "body"), unseen=True),
    *_segments(),
    *_after_clean_stop(),
    *_queues(),
    *_small_files(),
    Damage("old-record-behind-end", _record_behind_end),
    Damage("old-segment-again", _whole_segment_again),
    Damage("old-records-in-prepared-segment", _head_of_segment_prepared),
    Damage("blank-at-end", _blank_at_end),
    Damage("blank-at-end-without-next-segment", _blank_at_end_of_all),
    Damage("negative-size-behind-end", _behind_end(-453)),
    Damage("huge-size-behind-end", _behind_end(0x7FFF_FFFF)),
    Damage("size-zero-behind-end", _behind_end(0)),
    Damage("garbage-behind-end", _garbage_behind_end),
)
BY_NAME = {damage.name: damage for damage in DAMAGES}
