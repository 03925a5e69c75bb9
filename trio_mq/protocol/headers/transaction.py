"""Headers of transactions.

In and out: see :mod:`.core` (Apache: ``EndTransactionRequestHeader``,
``CheckTransactionStateRequestHeader``, ``ResumeCheckHalfMessageRequestHeader``).
"""

from __future__ import annotations

from trio_mq.protocol.names import wire
from trio_mq.protocol.values import value

from .core import I32, I64


@value
class EndTransactionRequest:
    """END_TRANSACTION (37), mostly one-way.

    ``tran_state_table_offset`` is a place in the half queue, ``commit_log_offset`` one in the log;
    ``commit_or_rollback`` is 8 (commit), 12 (roll back) or 0 (not known yet).
    """

    producer_group: str
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    msg_id: str
    from_transaction_check: bool = False
    topic: str | None = None
    transaction_id: str | None = None


@value
class CheckTransactionStateRequest:
    """CHECK_TRANSACTION_STATE (39), broker to client, one-way."""

    tran_state_table_offset: I64
    commit_log_offset: I64
    topic: str | None = None
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = wire("bname", default=None)


@value
class ResumeCheckHalfMessageRequest:
    """RESUME_CHECK_HALF_MESSAGE (323)."""

    topic: str | None = None
    msg_id: str | None = None
