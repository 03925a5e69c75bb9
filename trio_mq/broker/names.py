"""Names of topics and groups: what is legal, and which names mean something.

In: a name from a request. Out: nothing, or a :class:`RequestRefused` that says what is wrong with
it. Called by the tables and by processors. Rules: Apache TopicValidator of 5.4.0.
"""

from __future__ import annotations

import re
from typing import Final

from trio_mq.errors import RequestRefused
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.topics import AUTO_CREATE_TOPIC
from trio_mq.protocol.topics import DLQ_PREFIX as DLQ_PREFIX
from trio_mq.protocol.topics import RETRY_PREFIX as RETRY_PREFIX
from trio_mq.protocol.topics import dlq_topic as dlq_topic
from trio_mq.protocol.topics import pop_retry_topics as pop_retry_topics
from trio_mq.protocol.topics import retry_topic as retry_topic

TOPIC_MAX_LENGTH: Final = 127
"""Longest topic of an ordinary record, whose length byte is signed."""

INTERNAL_TOPIC_MAX_LENGTH: Final = 255
"""Longest retry or dead letter topic; its records have a length of two bytes."""

GROUP_MAX_LENGTH: Final = 120
"""Longest group: with a prefix it still is a topic, and leaves room for one more topic name."""

LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_PREFIX: Final = "rmq_sys_"

DEFAULT_TEMPLATE: Final = AUTO_CREATE_TOPIC
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TEMPLATE,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_HALF_TOPIC,
        TRACE_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        "CHECKPOINT_TOPIC",
    }
)
"""Topics that are system topics everywhere; each broker adds those named after itself."""

UNSENDABLE_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""Topics that only the broker itself writes to."""

_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_SHOWN_CHARACTERS: Final = 64  # of a name that is too long to be repeated in a remark


def check_topic(name: str) -> None:
    """Refuse an illegal topic name with INVALID_PARAMETER (29)."""
    internal = name.startswith((RETRY_PREFIX, DLQ_PREFIX))
    _check(name, "topic", INTERNAL_TOPIC_MAX_LENGTH if internal else TOPIC_MAX_LENGTH)


def check_group(name: str) -> None:
    """Refuse an illegal group name with INVALID_PARAMETER (29)."""
    _check(name, "group", GROUP_MAX_LENGTH)


def check_sendable(topic: str) -> None:
    """Refuse, with NO_PERMISSION (16), a send to a topic that is the broker's own."""
    if topic in UNSENDABLE_TOPICS:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"topic {topic} is written by the broker only; send to a topic of your own",
        )


def _check(name: str, kind: str, max_length: int) -> None:
    if not name.strip():
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, f"the {kind} name is blank")
    shown = name if len(name) <= _SHOWN_CHARACTERS else f"{name[:_SHOWN_CHARACTERS]}..."
    if not _LEGAL.fullmatch(name):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"{kind} {shown!r} has illegal characters; allowed are letters, digits and % | _ - "
            "(^[%|a-zA-Z0-9_-]+$)",
        )
    if len(name) > max_length:
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER,
            f"{kind} {shown} has {len(name)} characters, at most {max_length} are allowed",
        )
