"""Headers of queue locks: empty, the locks are in the bodies.

In and out: see :mod:`.core` (Apache: ``LockBatchMqRequestHeader``, ``UnlockBatchMqRequestHeader``).
"""

from __future__ import annotations

import attrs


@attrs.frozen
class LockBatchMqRequest:
    """LOCK_BATCH_MQ (41)."""


@attrs.frozen
class UnlockBatchMqRequest:
    """UNLOCK_BATCH_MQ (42)."""
