"""What the operating system says about a store's files, as errors of ours that name the path and the way out."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from trio_mq.errors import StoreDamaged, StoreFull

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def explained(root: str) -> Iterator[None]:
    """Turn an OSError into StoreFull or StoreDamaged; `root` is named where it has no path."""
    try:
        yield
    except OSError as error:
        path = error.filename or root
        if error.errno in _NO_ROOM:
            raise StoreFull(
                f"recovery cannot write to {path}: {error.strerror}; free some room on that disk and start again"
            ) from error
        raise StoreDamaged(
            f"recovery cannot use {path}: {error.strerror}; look at the disk and at the rights of the file"
        ) from error
