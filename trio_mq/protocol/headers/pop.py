"""Headers of pop consumption.

In and out: see :mod:`.core`. Fields are those of the peers' classes ``PopMessageRequestHeader``,
``AckMessageRequestHeader`` and their kin. Times are in ms; the codes do not fit the binary header.
"""

from __future__ import annotations

from trio_mq.protocol.values import value

from .core import I32, I64


@value
class PopMessageRequest:
    """POP_MESSAGE (200050). ``queue_id`` -1 means all; ``init_mode`` 0 is the oldest, 1 the
    newest."""

    consumer_group: str
    topic: str
    queue_id: I32
    max_msg_nums: I32
    invisible_time: I64
    poll_time: I64
    born_time: I64
    init_mode: I32
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


@value
class PopMessageReply:
    """Answer to 200050."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32
    rest_num: I64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


@value
class AckMessageRequest:
    """ACK_MESSAGE (200051). ``extra_info`` is the receipt."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64


@value
class ChangeInvisibleTimeRequest:
    """CHANGE_MESSAGE_INVISIBLETIME (200053)."""

    consumer_group: str
    topic: str
    queue_id: I32
    extra_info: str
    offset: I64
    invisible_time: I64


@value
class ChangeInvisibleTimeReply:
    """Answer to 200053."""

    pop_time: I64
    invisible_time: I64
    revive_qid: I32


@value
class NotificationRequest:
    """NOTIFICATION (200054)."""

    consumer_group: str
    topic: str
    queue_id: I32
    poll_time: I64
    born_time: I64 = 0
    order: bool = False
    attempt_id: str | None = None


@value
class NotificationReply:
    """Answer to 200054."""

    has_msg: bool
    polling_full: bool = False


@value
class PollingInfoRequest:
    """POLLING_INFO (200055)."""

    consumer_group: str
    topic: str
    queue_id: I32


@value
class PollingInfoReply:
    """Answer to 200055."""

    polling_num: I32


@value
class PeekMessageRequest:
    """PEEK_MESSAGE (200052)."""

    topic: str
    queue_id: I32
    max_msg_nums: I32
    consumer_group: str
