"""What a store was made with, told by its files: so that one of any origin can be looked at without its settings.

In: a disk and a path: a whole store of Apache RocketMQ, RocketMQ-Rust or trio-mq, one that holds the commit log only,
or a folder of log files itself. Out: :class:`Detected` with each size and how it was found, or an error that says why
the path is no store. Reads names, lengths, and a few bytes; changes nothing. Blocking, for worker threads. Called by
whatever looks at a store without serving it. Source: Apache StorePathConfigHelper, MappedFileQueue, IndexFile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from trio_mq.config import StoreSettings
from trio_mq.errors import ForeignFormat, StoreError
from trio_mq.protocol.layout import BATCH_QUEUE_ENTRY_SIZE, QUEUE_ENTRY_SIZE
from trio_mq.recovery.filesizes import (
    END_BYTES,
    FoundFile,
    Rule,
    Size,
    contradictions,
    ends_as_whole,
    find_size,
)
from trio_mq.recovery.indexsizes import (
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    find_split,
    possible,
    usual_splits,
)
from trio_mq.store.disk import Disk
from trio_mq.store.index import NAME_DIGITS as INDEX_NAME_DIGITS
from trio_mq.store.queuetable import BATCH_FOLDER, SIMPLE_FOLDER
from trio_mq.store.segments import NAME_DIGITS, read_file

LOG_FOLDER: Final = "commitlog"
INDEX_FOLDER: Final = "index"
#: One of these in a folder makes it a store. Others, such as `config` and `lock`, may be anybody's.
STORE_NAMES: Final = (
    LOG_FOLDER,
    SIMPLE_FOLDER,
    BATCH_FOLDER,
    INDEX_FOLDER,
    "checkpoint",
    "abort",
    "config/topics.json",
)
#: Folders of a store whose files are named as those of the log are.
_OTHER_ROWS: Final = (SIMPLE_FOLDER, BATCH_FOLDER, "consumequeue_ext", "timerlog", "compaction")
LOG_RULE: Final = Rule("log file", 1, 4096, 1024 * 1024 * 1024)
QUEUE_RULE: Final = Rule("queue file", QUEUE_ENTRY_SIZE, QUEUE_ENTRY_SIZE, 6_000_000)
BATCH_RULE: Final = Rule(
    "batch queue file", BATCH_QUEUE_ENTRY_SIZE, BATCH_QUEUE_ENTRY_SIZE, 13_800_000
)
#: Index files, newest first, whose content is looked at for the number of slots.
_INDEX_FILES_READ: Final = 3


@attrs.frozen
class Detected:
    """What the files of a store show. Sizes are bytes of one file, `index_slots` and `index_entries` numbers.

    `commit_log_only`: there is nothing but the log. `notes` names files that do not fit what was found.
    """

    root: str
    commit_log_dir: str
    commit_log_only: bool
    log_segment: Size
    queue_file: Size
    batch_queue_file: Size
    index_slots: Size
    index_entries: Size
    notes: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Each size and how it was found, a line each."""
        named = (
            ("log files", "bytes", self.log_segment),
            ("queue files", "bytes", self.queue_file),
            ("batch queue files", "bytes", self.batch_queue_file),
            ("index files", "slots", self.index_slots),
            ("index files", "entries", self.index_entries),
        )
        return tuple(f"{what}: {size.value} {unit} ({size.how})" for what, unit, size in named)


def detect(disk: Disk, root: str, *, commit_log_dir: str | None = None) -> Detected:
    """Find out what the store at `root` was made with.

    `root` may be a folder of log files, too; `commit_log_dir` is where the log is when it has a place of its own.
    Raises :class:`ForeignFormat` for what is no store, :class:`StoreError` for what cannot be read.
    """
    root = root.rstrip("/") or root[:1] or "."
    with _readable(root):
        names = _names_in(disk, root)
        is_log = _refuse_others(disk, root, names)
        log_dir = commit_log_dir or (root if is_log else f"{root}/{LOG_FOLDER}")
        log_rows = [list(_log_files(disk, log_dir))]
        queue_rows = [] if is_log else list(_queues(disk, f"{root}/{SIMPLE_FOLDER}"))
        batch_rows = [] if is_log else list(_queues(disk, f"{root}/{BATCH_FOLDER}"))
        log_segment = find_size(log_rows, LOG_RULE)
        queue_file = find_size(queue_rows, QUEUE_RULE)
        batch_queue_file = find_size(batch_rows, BATCH_RULE)
        slots, entries, notes = _index_sizes(disk, f"{root}/{INDEX_FOLDER}", is_log)
        missing = [] if disk.is_dir(log_dir) else [_without_log(log_dir)]
        alone = is_log or not any(
            name != LOG_FOLDER and disk.exists(f"{root}/{name}") for name in STORE_NAMES
        )
    return Detected(
        root=root,
        commit_log_dir=log_dir,
        commit_log_only=alone,
        log_segment=log_segment,
        queue_file=queue_file,
        batch_queue_file=batch_queue_file,
        index_slots=slots,
        index_entries=entries,
        notes=(
            *missing,
            *contradictions(log_rows, log_segment.value, LOG_RULE.what),
            *contradictions(queue_rows, queue_file.value, QUEUE_RULE.what),
            *contradictions(batch_rows, batch_queue_file.value, BATCH_RULE.what),
            *notes,
        ),
    )


def view_settings(detected: Detected, root: str) -> StoreSettings:
    """Settings with the sizes that a store was made with; everything else has its default."""
    inside = detected.commit_log_dir == f"{root.rstrip('/')}/{LOG_FOLDER}"
    return StoreSettings(
        path=root,
        commit_log_path=None if inside else detected.commit_log_dir,
        mapped_file_size_commit_log=detected.log_segment.value,
        mapped_file_size_consume_queue=detected.queue_file.value,
        mapped_file_size_batch_consume_queue=detected.batch_queue_file.value,
        max_hash_slot_num=detected.index_slots.value,
        max_index_num=detected.index_entries.value,
    )


# -- whether it is a store at all ----------------------------------------------------------------------------


@contextmanager
def _readable(root: str) -> Iterator[None]:
    """Turn what the operating system says into an error of ours, with the path."""
    try:
        yield
    except PermissionError as error:
        raise StoreError(
            f"{error.filename or root} cannot be read: {error.strerror}; "
            f"run this as the user that the store belongs to, or let your user read it"
        ) from error
    except OSError as error:
        raise StoreError(
            f"{error.filename or root} cannot be read: {error.strerror}; look at the disk"
        ) from error


def _names_in(disk: Disk, root: str) -> list[str]:
    """What is in the folder that should be a store."""
    if not disk.exists(root):
        try:
            disk.size(root)  # tells a folder that may not be entered from one that is not there
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ForeignFormat(
                f"{root} is no store: nothing is there; look for storePathRootDir in the settings of its broker"
            ) from error
    if not disk.is_dir(root):
        raise ForeignFormat(
            f"{root} is no store: it is a file; name the folder that holds {LOG_FOLDER} and {SIMPLE_FOLDER}"
        )
    names = disk.list_dir(root)
    if not names:
        raise ForeignFormat(
            f"{root} is no store: the folder is empty; name the folder that holds {LOG_FOLDER}"
        )
    return names


def _refuse_others(disk: Disk, root: str, names: list[str]) -> bool:
    """Raise ForeignFormat for a folder that is no store. Returns whether it is one of log files."""
    parts = root.split("/")
    inner = next((n for n in range(len(parts) - 1, 0, -1) if parts[n] in _OTHER_ROWS), None)
    if any(disk.exists(f"{root}/{name}") for name in STORE_NAMES):
        return False
    if inner is not None:
        above = "/".join(parts[:inner]) or "/"
        raise ForeignFormat(f"{root} is a part of a store; name the whole: {above}")
    if any(_is_segment(name) and not disk.is_dir(f"{root}/{name}") for name in names):
        return True
    if parts[-1] == LOG_FOLDER:
        raise ForeignFormat(
            f"{root} is no store: it holds no log files, which have names of {NAME_DIGITS} digits"
        )
    for name in names:
        if disk.is_dir(f"{root}/{name}/{LOG_FOLDER}"):
            raise ForeignFormat(f"{root} is no store, but there is one in it: {root}/{name}")
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    raise ForeignFormat(
        f"{root} is no store: it holds {some}, but neither {LOG_FOLDER} nor {SIMPLE_FOLDER} nor log files; "
        f"look for storePathRootDir in the settings of its broker"
    )


def _without_log(log_dir: str) -> str:
    return (
        f"{log_dir} is not there: without the log there are no messages. When the log has a place of its own, "
        f"see storePathCommitLog"
    )


# -- the files -----------------------------------------------------------------------------------------------


def _is_segment(name: str) -> bool:
    return len(name) == NAME_DIGITS and name.isascii() and name.isdigit()


def _row(disk: Disk, folder: str) -> Iterator[FoundFile]:
    """Files of a folder that are named by an offset, in order. What goes meanwhile is left out."""
    for name in disk.list_dir(folder):
        path = f"{folder}/{name}"
        if not _is_segment(name) or disk.is_dir(path):
            continue
        try:
            yield FoundFile(path, int(name), disk.size(path))
        except FileNotFoundError:
            continue


def _log_files(disk: Disk, folder: str) -> list[FoundFile]:
    """The files of the log; the last one with any bytes is looked at, whether it was cut."""
    files = list(_row(disk, folder)) if disk.is_dir(folder) else []
    for number in reversed(range(len(files))):
        file = files[number]
        if not file.length:
            continue
        tail = read_file(disk, file.path, END_BYTES, max(0, file.length - END_BYTES))
        files[number] = attrs.evolve(file, cut=not ends_as_whole(tail, file.length))
        break
    return files


def _queues(disk: Disk, folder: str) -> Iterator[list[FoundFile]]:
    """The files of each queue below a folder of topics."""
    if not disk.is_dir(folder):
        return
    for topic in disk.list_dir(folder):
        of_topic = f"{folder}/{topic}"
        if not disk.is_dir(of_topic):
            continue
        for name in disk.list_dir(of_topic):
            if name.isascii() and name.isdigit() and disk.is_dir(f"{of_topic}/{name}"):
                yield list(_row(disk, f"{of_topic}/{name}"))


# -- the index -----------------------------------------------------------------------------------------------


def _index_sizes(disk: Disk, folder: str, is_log: bool) -> tuple[Size, Size, list[str]]:
    """Slots and entries of the index files, and notes about files that do not fit."""
    files = [] if is_log else _index_files(disk, folder)
    lengths = Counter(length for _, length in files if possible(length))
    if not lengths:
        how = "no index file tells: Apache's default"
        notes = [f"{path} has {length} bytes, so it is no index file" for path, length in files]
        return _defaults(how, notes)
    length = max(lengths, key=lambda size: (lengths[size], size))
    notes = [
        f"{path} has {other} bytes, expected {length} as of most index files"
        for path, other in files
        if other != length
    ]
    of_length = [path for path, other in reversed(files) if other == length]
    for path in of_length[:_INDEX_FILES_READ]:
        file = disk.open(path, readonly=True)
        try:
            split = find_split(file, length)
        finally:
            file.close()
        if split is not None:
            how = f"by the entries in {path}"
            return Size(split.slots, how), Size(split.entries, how), notes
    for split in usual_splits(length):
        default = split.slots == DEFAULT_SLOTS
        how = (
            "Apache's default, which has that length"
            if default
            else (
                "by the length, with as many entries to a slot as in Apache's default; no entry tells"
            )
        )
        return Size(split.slots, how), Size(split.entries, how), notes
    notes.append(
        f"index files have {length} bytes, and no entry in them tells how many slots that means: a start with "
        f"other settings than they were made with drops them and inserts all keys again"
    )
    return _defaults("no entry in an index file tells: Apache's default", notes)


def _defaults(how: str, notes: list[str]) -> tuple[Size, Size, list[str]]:
    return Size(DEFAULT_SLOTS, how, found=False), Size(DEFAULT_ENTRIES, how, found=False), notes


def _index_files(disk: Disk, folder: str) -> list[tuple[str, int]]:
    """Paths and lengths of the index files, by name."""
    found: list[tuple[str, int]] = []
    for name in disk.list_dir(folder) if disk.is_dir(folder) else ():
        path = f"{folder}/{name}"
        if len(name) == INDEX_NAME_DIGITS and name.isascii() and name.isdigit():
            try:
                found.append((path, disk.size(path)))
            except FileNotFoundError:
                continue
    return found
