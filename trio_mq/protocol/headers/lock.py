"""Headers of queue locks: empty, the locks are in the bodies.

In and out: see :mod:`.core` (Apache: ``LockBatchMqRequestHeader``, ``UnlockBatchMqRequestHeader``).
"""

from __future__ import annotations

from trio_mq.protocol.values import value


@value
class LockBatchMqRequest:
    """LOCK_BATCH_MQ (41)."""


@value
class UnlockBatchMqRequest:
    """UNLOCK_BATCH_MQ (42)."""
