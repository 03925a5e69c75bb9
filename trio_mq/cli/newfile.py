"""A file that a command writes records to: new, and not in the store that they come from.

In: an option and its path, the folder of a store. Out: an open text file. Called by :mod:`trio_mq.cli.recover` and
:mod:`trio_mq.cli.store`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from trio_mq.errors import ConfigError
from trio_mq.store.disk import Naming


@contextmanager
def new_file(option: str, path: str, root: str) -> Iterator[TextIO]:
    """A new file outside of the store at `root`; ConfigError, naming the option, for a path that is none.

    What has to be durable is flushed and synced inside of the block, whose errors name the path.
    """
    real, store = os.path.realpath(path), os.path.realpath(root)
    if real == store or real.startswith(store + os.sep):
        raise ConfigError(
            f"{option} {path}: that is inside of the store; choose a place outside of it"
        )
    try:
        file = open(path, "x", encoding="utf-8", newline="\n")  # noqa: SIM115 - closed below
    except FileExistsError as error:
        raise ConfigError(
            f"{option} {path}: it is there already; nothing is overwritten, choose another name or move it away"
        ) from error
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}") from error
    try:
        with Naming(path):
            yield file
    finally:
        with suppress(OSError):  # what could not be written was told before
            file.close()
