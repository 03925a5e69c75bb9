"""Bad files are kept under another name, so that nobody has to ask what was in them.

In: a file that cannot be read. Out: its new name. Called when state files are loaded. Blocking.
"""

from __future__ import annotations

import posixpath

from trio_mq.store.disk import Disk


def keep_aside(disk: Disk, path: str, now_ms: int) -> str:
    """Rename `path` to ``<path>.bad-<ms>``, durably; never replaces another one. The new path."""
    while disk.exists(f"{path}.bad-{now_ms}"):
        now_ms += 1
    aside = f"{path}.bad-{now_ms}"
    disk.rename(path, aside)
    disk.sync_dir(posixpath.dirname(path))
    return aside
