"""Offsets of broadcasting consumers, in a file of this machine, in the Java client's format.

In: positions. Out: ``offsets.json`` and ``offsets.json.bak`` in ``<directory>/<client id>/<group>``; the directory is
``~/.rocketmq_offsets`` as with Java, or the variable ROCKETMQ_CLIENT_LOCAL_OFFSET_DIR, in place of Java's system
property. Called by :mod:`.assigned`, in place of :class:`.RemoteOffsets`. Source of the rules: Apache
LocalFileOffsetStore, OffsetSerializeWrapper, MixAll.string2File.

Failure policy: a file that cannot be read is kept aside, with a warning, and its backup counts; without one, the
consumer begins where it is told to. A file that cannot be written is logged, and written with the next round. Offsets
are never forgotten: a broker that was away for a while is gone on with where it was left.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import anyio

from trio_mq.errors import BodyError, ClientError, TrioMQError
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import MessageQueue

log = logging.getLogger("trio_mq.client")

#: In place of Java's system property ``rocketmq.client.localOffsetStoreDir``.
DIRECTORY_VARIABLE = "ROCKETMQ_CLIENT_LOCAL_OFFSET_DIR"
FILE_NAME = "offsets.json"
BACKUP_SUFFIX = ".bak"
ASIDE_SUFFIX = ".damaged"
_NEW_SUFFIX = ".tmp"

#: Runs a plain function where it may block.
InThread = Callable[..., Awaitable[Any]]


def offsets_file(directory: str | os.PathLike[str] | None, client_id: str, group: str) -> Path:
    """Where the offsets of a group are."""
    base = directory or os.environ.get(DIRECTORY_VARIABLE) or Path.home() / ".rocketmq_offsets"
    return Path(base) / client_id / group / FILE_NAME


def decode_offsets(data: bytes) -> dict[MessageQueue, int]:
    """The offsets in a file; BodyError when it is damaged."""
    # The peers' class of this file and the body of a reset have the same one field.
    return dict(bodies.decode(bodies.ResetOffsetBody, data).offset_table)


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The file's text: a map whose keys are objects, as Java writes it."""
    return bodies.encode(bodies.ResetOffsetBody(dict(sorted(offsets.items()))))


class LocalOffsets:
    """See the module. Made by :meth:`load`."""

    def __init__(self, path: Path, offsets: dict[MessageQueue, int], in_thread: InThread) -> None:
        self.path = path
        self._offsets = offsets
        self._in_thread = in_thread
        self._written: dict[MessageQueue, int] = dict(offsets)
        self._lock = anyio.Lock()

    @classmethod
    async def load(cls, path: Path, in_thread: InThread | None = None) -> LocalOffsets:
        """Read what is there."""
        run = in_thread or anyio.to_thread.run_sync
        return cls(path, await run(read_offsets, path), run)

    async def read(self, queue: MessageQueue) -> int | None:
        """The position, None without one. Never fails."""
        return self._offsets.get(queue)

    async def write(
        self, positions: Mapping[MessageQueue, int], *, wait: bool
    ) -> dict[MessageQueue, TrioMQError]:
        """Keep positions, and the file if any is new. It is always waited for: the file is small and near."""
        self._offsets.update(positions)
        async with self._lock:
            if self._offsets == self._written:
                return {}
            now = dict(self._offsets)
            try:
                await self._in_thread(write_offsets, self.path, now)
            except OSError as error:
                failure = ClientError(f"{self.path}: {error.strerror}; make room, or let us write")
                return dict.fromkeys(positions, failure)
            self._written = now
            return {}


# -- the file; these block


def read_offsets(path: Path) -> dict[MessageQueue, int]:
    """The offsets in a file, or else in its backup; none without both. Damaged files are kept aside."""
    for candidate in (path, path.with_name(path.name + BACKUP_SUFFIX)):
        try:
            data = candidate.read_bytes()
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning(
                "%s cannot be read, its offsets do not count: %s", candidate, error.strerror
            )
            continue
        if not data.strip():
            continue  # Java makes such a file when the disk is full
        try:
            return decode_offsets(data)
        except BodyError as error:
            aside = candidate.with_name(candidate.name + ASIDE_SUFFIX)
            with contextlib.suppress(OSError):
                candidate.replace(aside)
            log.warning("%s is damaged (%s); it is kept as %s, and its offsets do not count",
                        candidate, error, aside.name)  # fmt: skip
    return {}


def write_offsets(path: Path, offsets: Mapping[MessageQueue, int]) -> None:
    """Replace the file at once; what it was becomes the backup."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + _NEW_SUFFIX)
    with new.open("wb") as file:
        file.write(encode_offsets(offsets))
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name(path.name + BACKUP_SUFFIX))  # which is read when it stops here
    new.replace(path)
