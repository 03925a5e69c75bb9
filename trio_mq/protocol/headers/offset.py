"""Headers about places in queues: consumer offsets, bounds, search by time, resets.

In and out: see :mod:`.core`. Fields are those of the peers' classes of the same names with
``Header`` at the end. Offsets count queue entries; times are ms since the epoch.
"""

from __future__ import annotations

from enum import StrEnum

from trio_mq.protocol.names import wire
from trio_mq.protocol.values import value

from .core import I32, I64


class BoundaryType(StrEnum):
    """Which of two neighbours a search by time takes; any other text means ``LOWER``."""

    LOWER = "lower"
    UPPER = "upper"

    @classmethod
    def _missing_(cls, value: object) -> BoundaryType:
        return cls.UPPER if str(value).lower() == "upper" else cls.LOWER


@value
class QueryConsumerOffsetRequest:
    """QUERY_CONSUMER_OFFSET (14)."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


@value
class QueryConsumerOffsetReply:
    """Answer to 14."""

    offset: I64


@value
class UpdateConsumerOffsetRequest:
    """UPDATE_CONSUMER_OFFSET (15)."""

    consumer_group: str
    topic: str
    queue_id: I32
    commit_offset: I64


@value
class SearchOffsetRequest:
    """SEARCH_OFFSET_BY_TIMESTAMP (29)."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: BoundaryType = BoundaryType.LOWER


@value
class SearchOffsetReply:
    """Answer to 29."""

    offset: I64


@value
class GetMaxOffsetRequest:
    """GET_MAX_OFFSET (30). ``committed``: only what replicas have confirmed."""

    topic: str
    queue_id: I32
    committed: bool = True


@value
class GetMaxOffsetReply:
    """Answer to 30."""

    offset: I64


@value
class GetMinOffsetRequest:
    """GET_MIN_OFFSET (31)."""

    topic: str
    queue_id: I32


@value
class GetMinOffsetReply:
    """Answer to 31."""

    offset: I64


@value
class GetEarliestMsgStoretimeRequest:
    """GET_EARLIEST_MSG_STORETIME (32)."""

    topic: str
    queue_id: I32


@value
class GetEarliestMsgStoretimeReply:
    """Answer to 32; -1 means that there is no message."""

    timestamp: I64


@value
class ResetOffsetRequest:
    """INVOKE_BROKER_TO_RESET_OFFSET (222), RESET_CONSUMER_CLIENT_OFFSET (220).

    ``queue_id`` -1 means all queues; with an ``offset`` the ``timestamp`` does not count.
    """

    group: str
    topic: str
    timestamp: I64
    force: bool = wire("isForce", default=False)
    queue_id: I32 = -1
    offset: I64 | None = None


@value
class GetConsumerStatusRequest:
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), GET_CONSUMER_STATUS_FROM_CLIENT (221)."""

    topic: str
    group: str
    client_addr: str | None = None


@value
class CloneGroupOffsetRequest:
    """CLONE_GROUP_OFFSET (314)."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool = False


@value
class QueryCorrectionOffsetRequest:
    """QUERY_CORRECTION_OFFSET (308). ``filter_groups`` are joined with commas."""

    compare_group: str
    topic: str
    filter_groups: str | None = None
