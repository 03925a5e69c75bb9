"""The two ways to go through the log; which one is taken changes the time of a start and nothing else.

In: a setting. Out: :class:`Path`. Called by everybody who starts a walk. Source of the switch: RocketMQ-Rust
LocalFileMessageStore (``ROCKETMQ_USE_OPTIMIZED_RECOVERY``).
"""

from __future__ import annotations

from enum import Enum


class Path(Enum):
    """How the records of the log are read: one by one, or many at a time out of windows of 64 KiB."""

    SEQUENTIAL = "sequential"
    BATCH = "batch"

    @classmethod
    def of(cls, *, optimized: bool) -> Path:
        """The path that a setting stands for."""
        return cls.BATCH if optimized else cls.SEQUENTIAL
