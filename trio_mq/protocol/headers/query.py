"""Headers of looking at single messages and queue entries.

In and out: see :mod:`.core`. Fields are those of the peers' classes of the same names with
``Header`` at the end.
"""

from __future__ import annotations

from trio_mq.protocol.names import wire
from trio_mq.protocol.values import value

from .core import I32, I64


@value
class QueryMessageRequest:
    """QUERY_MESSAGE (12). ``index_type`` is ``K`` (key), ``U`` (unique key) or ``T`` (tag).

    Times are ms since the epoch; ``unique_key`` searches for the unique key only.
    """

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    unique_key: bool = wire("_UNIQUE_KEY_QUERY", default=False)
    index_type: str | None = None
    last_key: str | None = None


@value
class QueryMessageReply:
    """Answer to 12: time (ms) and log offset of the newest indexed message."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


@value
class ViewMessageRequest:
    """VIEW_MESSAGE_BY_ID (33). ``offset`` is a place in the log."""

    offset: I64
    topic: str | None = None


@value
class QueryConsumeQueueRequest:
    """QUERY_CONSUME_QUEUE (321): ``count`` entries from ``index`` on."""

    queue_id: I32 = 0
    index: I64 = 0
    count: I32 = 0
    topic: str | None = None
    consumer_group: str | None = None
