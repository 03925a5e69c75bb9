"""Message properties: ``name 0x01 value 0x02``, repeated, as one UTF-8 text.

In: the raw property bytes of a record or a request, or a mapping. Out: the other one, or one value.
Called by the record codec, the send and pull processors and the index. On hot paths only the bytes
functions are used (:func:`get`, :func:`append`, :func:`remove`); they agree with :func:`parse` on
every input.

Format: Apache's MessageDecoder (text) and MessageConst (names).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trio_mq.errors import LocalProtocolError

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"

# Names, in the words of Apache's MessageConst.
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_GROUP: Final = "ORIGIN_GROUP"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
BUYER_ID: Final = "BUYER_ID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
UNIQ_KEY: Final = "UNIQ_KEY"
EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
DUP_INFO: Final = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANS_OFFSET: Final = "TRANS_OFFSET"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
INSTANCE_ID: Final = "INSTANCE_ID"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
CLUSTER: Final = "CLUSTER"
MSG_TYPE: Final = "MSG_TYPE"
POP_CK: Final = "POP_CK"
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
SHARDING_KEY: Final = "__SHARDINGKEY"
FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT: Final = "REDIRECT"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
BORN_HOST: Final = "__BORNHOST"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
CRC32: Final = "__CRC32#"
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."

_SEPARATOR_BYTE: Final = 0x02


def parse(data: bytes) -> dict[str, str]:
    """All properties of a raw property text (Apache: MessageDecoder.string2messageProperties).

    The last terminator may be missing. A piece without a name or without a value is dropped, and a
    later property replaces an earlier one of the same name. Bytes that are not UTF-8 become U+FFFD,
    as in Java.
    """
    found: dict[str, str] = {}
    for piece in str(data, "utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, _, value = piece.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            found[name] = value
    return found


def encode(properties: Mapping[str, str | None]) -> bytes:
    """The property text of a mapping, every pair terminated; pairs without a value (None) are left
    out.

    Raises :class:`LocalProtocolError` when a name or value holds a separator, since readers would
    see other properties than were written.
    """
    parts: list[str] = []
    for name, value in properties.items():
        if value is None:
            continue
        if not name or NAME_VALUE_SEPARATOR in name or PROPERTY_SEPARATOR in name + value:
            raise LocalProtocolError(
                f"property {name!r} cannot be stored: its name must not be empty, 0x02 must not "
                "occur, and 0x01 only in the value"
            )
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts).encode("utf-8", "replace")  # a lone surrogate becomes "?", as in Java


def get(data: bytes, name: bytes) -> bytes | None:
    """The value that :func:`parse` would give for ``name``, without parsing the rest; None if there
    is none.

    Searched from the end, because the last of several equal names counts.
    """
    needle = name + b"\x01"
    at = data.rfind(needle)
    while at >= 0:
        if at == 0 or data[at - 1] == _SEPARATOR_BYTE:
            start = at + len(needle)
            end = data.find(b"\x02", start)
            if end < 0:
                end = len(data)
            if end > start:
                return data[start:end]
        # Either the middle of another name or value, or an empty value, which counts as not there.
        at = data.rfind(needle, 0, at + len(needle) - 1)
    return None


def remove(data: bytes, name: bytes) -> bytes:
    """The property text without any pair of that name; all other bytes stay as they are."""
    needle = name + b"\x01"
    at = data.find(needle)
    while at >= 0:
        if at == 0 or data[at - 1] == _SEPARATOR_BYTE:
            end = data.find(b"\x02", at)
            data = data[:at] + (data[end + 1 :] if end >= 0 else b"")
            at = data.find(needle, at)
        else:
            at = data.find(needle, at + 1)
    return data


def append(data: bytes, name: bytes, value: bytes) -> bytes:
    """The property text with one more pair at its end; a missing last terminator is added first.

    The caller has removed older pairs of the name, or knows that there are none.
    """
    if data and data[-1] != _SEPARATOR_BYTE:
        return b"%b\x02%b\x01%b\x02" % (data, name, value)
    return b"%b%b\x01%b\x02" % (data, name, value)
