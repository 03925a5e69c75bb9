"""Headers of pulling.

In and out: see :mod:`.core`. Fields are those of the peers' classes ``PullMessageRequestHeader``
and ``PullMessageResponseHeader``.
"""

from __future__ import annotations

from trio_mq.protocol.values import value

from .core import I32, I64


@value
class PullMessageRequest:
    """PULL_MESSAGE (11), LITE_PULL_MESSAGE (361).

    ``sys_flag`` is a :class:`~trio_mq.protocol.codes.PullFlag`; ``queue_offset`` the first wanted
    place in the queue; ``commit_offset`` counts only with its flag.
    """

    consumer_group: str
    topic: str
    queue_id: I32
    queue_offset: I64
    max_msg_nums: I32
    sys_flag: I32
    commit_offset: I64
    suspend_timeout_millis: I64
    sub_version: I64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: I32 | None = None
    request_source: I32 | None = None
    # The peers' spelling.
    proxy_froward_client_id: str | None = None


@value
class PullMessageReply:
    """Answer to 11 and 361, with every code: the peers unbox the first four before anything
    else."""

    suggest_which_broker_id: I64
    next_begin_offset: I64
    min_offset: I64
    max_offset: I64
    offset_delta: I64 | None = None
    topic_sys_flag: I32 | None = None
    group_sys_flag: I32 | None = None
    forbidden_type: I32 | None = None
