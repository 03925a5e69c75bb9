"""The properties of a record in the log, without the rest of it.

In: a way to read the log, and where the record is. Out: raw properties. Called by the reader, for filters that look
at properties. Format: :mod:`trio_mq.protocol.record`; Apache: MessageDecoder.decodeProperties.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from trio_mq.protocol.layout import MAGIC_V2

#: Read at first: most records are whole in it, so they are read once.
FIRST_BYTES: Final = 4096
_SYS_FLAG_AT: Final = 36
_BODY_LENGTH_AT: Final = 84  # with two IPv4 hosts
_V6_LONGER: Final = 12
_BORN_V6: Final = 0x10
_STORE_V6: Final = 0x20
_MAGIC_V2_BYTES: Final = MAGIC_V2.to_bytes(4, "big", signed=True)


def record_properties(read: Callable[[int, int], bytes], log_offset: int, size: int) -> bytes:
    """Raw properties of the record of `size` bytes at `log_offset`; empty when it has none, or is damaged.

    `read` takes a size and a log offset; what it raises gets out.
    """
    data = read(min(size, FIRST_BYTES), log_offset)
    if len(data) < _BODY_LENGTH_AT + 4:
        return b""
    sys_flag = int.from_bytes(data[_SYS_FLAG_AT : _SYS_FLAG_AT + 4], "big")
    at = _BODY_LENGTH_AT
    at += _V6_LONGER if sys_flag & _BORN_V6 else 0
    at += _V6_LONGER if sys_flag & _STORE_V6 else 0
    at += 4 + max(0, int.from_bytes(data[at : at + 4], "big", signed=True))
    if at >= size:
        return b""
    # Of a long record, the body is not wanted: what follows it is.
    rest = data[at:] if size <= len(data) else read(size - at, log_offset + at)
    wide = 2 if data[4:8] == _MAGIC_V2_BYTES else 1
    at = wide + int.from_bytes(rest[:wide], "big")
    length = int.from_bytes(rest[at : at + 2], "big", signed=True)
    return rest[at + 2 : at + 2 + length] if length > 0 else b""
