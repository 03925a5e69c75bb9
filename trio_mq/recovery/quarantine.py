"""What a start cuts from the log is kept here first: nothing that was written is thrown away silently.

In: the log's segments, and where the log ends. Out: one folder per cut, ``quarantine/<time>-<log offset>/`` in the
store, with segment-named files and a ``manifest.json``. Called by :mod:`trio_mq.recovery.apply`; blocking, for worker
threads. Layout: ``docs/reference/store-format.md``. Nothing like it exists in Apache's broker, and its brokers do not
look into the folder.

A power cut at any moment leaves each byte in the log or in a folder. What stays a file of the log is copied; the
copies are synced before the manifest gets its name, and only then the log is changed: whole segments are moved, the
last one first, and the rest is cleared. So a folder without a manifest holds nothing but copies, and one whose
manifest names files that are still in the log is gone on with by the next start.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import attrs

from trio_mq.errors import StoreFull
from trio_mq.recovery.manifest import KeptFile, Manifest, stamp
from trio_mq.store.disk import Disk
from trio_mq.store.segments import NAME_DIGITS, Segments, read_file

log = logging.getLogger("trio_mq.recovery.quarantine")

FOLDER: Final = "quarantine"
MANIFEST: Final = "manifest.json"
#: However little they hold, no more folders than these are kept.
MOST_FOLDERS: Final = 1000
PIECE_BYTES: Final = 64 * 1024
_ZEROS: Final = bytes(PIECE_BYTES)
_PARTIAL: Final = ".tmp"
_NAME: Final = re.compile(rf"[0-9]{{8}}T[0-9]{{9}}-[0-9]{{{NAME_DIGITS}}}", re.ASCII)
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_SECTOR_BYTES: Final = 512


# -- what is there -------------------------------------------------------------------------------------------


@attrs.frozen
class Behind:
    """What one segment holds behind the log's end: `data_bytes` between two log offsets; zeros do not count."""

    segment: int
    begin: int
    end: int
    data_bytes: int


@attrs.frozen
class Kept:
    """A folder of the quarantine. `manifest` is None when there is none or it cannot be read."""

    folder: str
    manifest: Manifest | None


def data_runs(segments: Segments, begin: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """Log offset and bytes of all that is not zero from `begin` to `stop`, both in one segment, piece by piece."""
    at = begin
    while at < stop and (at := segments.next_data(at)) < stop:
        piece = segments.read(min(PIECE_BYTES, stop - at), at)
        if not piece:
            return
        if not _ZEROS.startswith(piece):  # stripping looks at single bytes, this does not
            used = piece.rstrip(b"\0")
            data = used.lstrip(b"\0")
            yield at + len(used) - len(data), data
        at += len(piece)


def measure(segments: Segments, offset: int) -> list[Behind]:
    """What the segments hold from a log offset on, all of them gone through; those with zeros only are left out."""
    found: list[Behind] = []
    for start in segments.starts:
        begin, end, data_bytes = max(start, offset), 0, 0
        for at, data in data_runs(segments, begin, start + segments.segment_bytes):
            end, data_bytes = at + len(data), data_bytes + len(data)
        if data_bytes:
            found.append(Behind(start, begin, end, data_bytes))
    return found


def listed(disk: Disk, root: str) -> list[Kept]:
    """The folders that cuts have left in a store, oldest first; whatever else lies there is passed over."""
    base = f"{root}/{FOLDER}"
    return [
        Kept(f"{base}/{name}", _manifest_in(disk, f"{base}/{name}"))
        for name in disk.list_dir(base)
        if _NAME.fullmatch(name)
    ]


def _manifest_in(disk: Disk, folder: str) -> Manifest | None:
    path = f"{folder}/{MANIFEST}"
    if not disk.exists(path):
        return None
    try:
        return Manifest.decode(read_file(disk, path, disk.size(path), 0))
    except ValueError as error:
        log.warning("%s cannot be read: %s", path, error)
        return None


# -- keeping -------------------------------------------------------------------------------------------------


class Quarantine:
    """The quarantine of one store, bounded to `max_bytes` of data; 0 turns it off, and leaves what is there."""

    def __init__(self, disk: Disk, root: str, max_bytes: int, now_ms: Callable[[], int]) -> None:
        self._disk = disk
        self._root = root
        self._base = f"{root}/{FOLDER}"
        self._max_bytes = max_bytes
        self._now_ms = now_ms

    @property
    def enabled(self) -> bool:
        """Whether anything is kept."""
        return self._max_bytes > 0

    def tidy(self, segments: Segments) -> None:
        """Remove what a start left half done: copies without a manifest. Their originals are in the log."""
        for kept in listed(self._disk, self._root):
            names = self._disk.list_dir(kept.folder)
            if MANIFEST in names:
                for name in names:
                    if name.endswith(_PARTIAL):
                        self._disk.remove(f"{kept.folder}/{name}")
            elif all(self._is_copy(segments, kept.folder, name) for name in names):
                log.info("%s is a copy that was cut short; it is removed", kept.folder)
                self._disk.remove_tree(kept.folder)
            else:
                log.warning("%s has no manifest, but bytes that the log has not got", kept.folder)

    def keep(self, segments: Segments, offset: int, behind: Sequence[Behind], reason: str) -> Kept:
        """Have everything behind a log offset in a folder, durably, but for whole segments: :meth:`take` moves those.

        `behind` is what :func:`measure` found there, not empty. What does not fit in the bound is left out from
        the end. Raises StoreFull when there is no room.
        """
        assert behind
        assert self.enabled
        kept_end = self._kept_end(segments, behind)
        again = self._begun(segments, offset, behind, kept_end)
        if again is not None:
            return again
        now_ms = self._now_ms()
        while self._disk.exists(folder := f"{self._base}/{stamp(now_ms)}-{offset:0{NAME_DIGITS}d}"):
            now_ms += 1
        files, copies = self._shares(segments, offset, behind, kept_end)
        manifest = Manifest(
            offset=offset,
            length=behind[-1].end - offset,
            kept_length=kept_end - offset,
            reason=reason,
            time_ms=now_ms,
            segment_bytes=segments.segment_bytes,
            files=tuple(files),
        )
        with self._room_for(offset, sum(part.data_bytes for part in copies)):
            try:
                self._disk.make_dirs(folder)
                for part in copies:
                    self._copy(segments, folder, part.segment, part.begin, part.end)
                self._write_manifest(folder, manifest)
            except OSError:
                with suppress(OSError):
                    self._disk.remove_tree(folder)
                raise
        return Kept(folder, manifest)

    def take(self, segments: Segments, kept: Kept, segment: int) -> bool:
        """Move a segment that goes from the log into a folder, durably; True when it is there afterwards.

        One that is not in the manifest is only removed, and so is one whose copy is there already.
        """
        assert kept.manifest is not None
        name = f"{segment:0{NAME_DIGITS}d}"
        file = next((file for file in kept.manifest.files if file.name == name), None)
        if file is not None and not self._disk.exists(f"{kept.folder}/{name}"):
            with self._room_for(segment, file.data_bytes):
                try:
                    self._disk.rename(segments.path(segment), f"{kept.folder}/{name}")
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    # The log has a file system of its own (storePathCommitLog).
                    self._copy(segments, kept.folder, segment, segment, file.end)
                self._disk.sync_dir(kept.folder)
        segments.drop_segment(segment)
        self._disk.sync_dir(segments.directory)
        return file is not None

    def trim(self, newest: Kept) -> list[str]:
        """Remove the oldest folders until the rest fits in the bound. Returns notes about what went."""
        folders = listed(self._disk, self._root)
        sizes = {kept.folder: self._size(kept) for kept in folders}
        total, notes = sum(sizes.values()), []
        for kept in folders:
            if total <= self._max_bytes and len(sizes) <= MOST_FOLDERS:
                break
            if kept.folder == newest.folder or kept.manifest is None:
                continue
            size = sizes.pop(kept.folder)
            total -= size
            self._remove(kept)
            notes.append(
                f"{kept.folder} is removed for want of room (quarantineMaxBytes={self._max_bytes}): {size} bytes "
                f"that were cut from the log at offset {kept.manifest.offset}"
            )
        return notes

    # -- the parts of these

    def _is_copy(self, segments: Segments, folder: str, name: str) -> bool:
        """Whether the log has all that a file of a folder holds, which may be a part of what was to be copied."""
        if name.endswith(_PARTIAL):
            return True
        if not (len(name) == NAME_DIGITS and name.isdigit() and segments.has(int(name))):
            return False
        path, segment = f"{folder}/{name}", int(name)
        for at in range(0, self._disk.size(path), PIECE_BYTES):
            piece = read_file(self._disk, path, PIECE_BYTES, at)
            original = segments.read(len(piece), segment + at)
            if piece != original and any(
                sector.strip(b"\0") and sector != original[begin : begin + _SECTOR_BYTES]
                for begin in range(0, len(piece), _SECTOR_BYTES)
                if (sector := piece[begin : begin + _SECTOR_BYTES])
            ):
                return False
        return True

    def _kept_end(self, segments: Segments, behind: Sequence[Behind]) -> int:
        """Log offset up to which data fits in the bound."""
        room = self._max_bytes
        for part in behind:
            if part.data_bytes <= room:
                room -= part.data_bytes
                continue
            for at, data in data_runs(segments, part.begin, part.end):
                if len(data) > room:
                    return at + room
                room -= len(data)
        return behind[-1].end

    def _shares(
        self, segments: Segments, offset: int, behind: Sequence[Behind], kept_end: int
    ) -> tuple[list[KeptFile], list[Behind]]:
        """The files of a folder, and which of them are copied: those whose segment stays, or is kept in part."""
        files: list[KeptFile] = []
        copies: list[Behind] = []
        for part in behind:
            if part.begin >= kept_end:
                break
            end, data_bytes = part.end, part.data_bytes
            if end > kept_end:
                end = kept_end
                data_bytes = sum(len(data) for _, data in data_runs(segments, part.begin, end))
            files.append(KeptFile(f"{part.segment:0{NAME_DIGITS}d}", part.begin, end, data_bytes))
            if part.segment <= offset or part.end > kept_end:
                copies.append(attrs.evolve(part, end=end, data_bytes=data_bytes))
        return files, copies

    def _begun(
        self, segments: Segments, offset: int, behind: Sequence[Behind], kept_end: int
    ) -> Kept | None:
        """The folder of a cut at the same place that did not end, if nothing but moving and clearing is left."""
        ours = [
            kept
            for kept in listed(self._disk, self._root)
            if kept.folder.endswith(f"-{offset:020d}")
        ]
        for kept in reversed(ours):
            manifest = kept.manifest
            if manifest is None or kept_end > offset + manifest.kept_length:
                continue
            if all(self._has(segments, kept.folder, manifest, part) for part in behind):
                return kept
        return None

    def _has(self, segments: Segments, folder: str, manifest: Manifest, part: Behind) -> bool:
        """Whether a folder holds, or is to hold, what the log has there."""
        name = f"{part.segment:0{NAME_DIGITS}d}"
        stop = min(part.end, manifest.offset + manifest.kept_length)
        if part.begin >= stop:
            return True
        if not any(file.name == name for file in manifest.files):
            return False
        path = f"{folder}/{name}"
        if not self._disk.exists(path):
            return part.segment > manifest.offset
        return all(
            read_file(self._disk, path, len(data), at - part.segment) == data
            for at, data in data_runs(segments, part.begin, stop)
        )

    def _copy(self, segments: Segments, folder: str, segment: int, begin: int, end: int) -> None:
        """Copy a part of a segment to its place in a file of the same size, and sync it. Zeros become holes."""
        path = f"{folder}/{segment:0{NAME_DIGITS}d}"
        copy = self._disk.open(path + _PARTIAL, create=True)
        try:
            copy.truncate(0)
            copy.truncate(segments.segment_bytes)
            for at, data in data_runs(segments, begin, end):
                copy.write(data, at - segment)
            copy.sync()
        finally:
            copy.close()
        self._disk.rename(path + _PARTIAL, path)

    def _write_manifest(self, folder: str, manifest: Manifest) -> None:
        """Name a folder complete, once all that it holds is durable, and the way to it."""
        self._disk.sync_dir(folder)
        path = f"{folder}/{MANIFEST}"
        file = self._disk.open(path + _PARTIAL, create=True)
        try:
            file.write(manifest.encode(), 0)
            file.sync()
        finally:
            file.close()
        self._disk.rename(path + _PARTIAL, path)
        for directory in (folder, self._base, self._root):
            self._disk.sync_dir(directory)

    def _size(self, kept: Kept) -> int:
        return sum(file.data_bytes for file in kept.manifest.files) if kept.manifest else 0

    def _remove(self, kept: Kept) -> None:
        """Remove a folder, the manifest last: one without would be taken for a copy that was cut short."""
        for name in self._disk.list_dir(kept.folder):
            if name != MANIFEST:
                self._disk.remove(f"{kept.folder}/{name}")
        self._disk.sync_dir(kept.folder)
        self._disk.remove_tree(kept.folder)
        self._disk.sync_dir(self._base)

    @contextmanager
    def _room_for(self, offset: int, size: int) -> Iterator[None]:
        """Without room, raise what tells the ways out."""
        try:
            yield
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise StoreFull(
                f"{self._base} has no room for the {size} bytes that are cut from the log at offset {offset}: free "
                f"that much on its disk and start again, or start with --set quarantineMaxBytes=0, which throws "
                f"them away"
            ) from error
