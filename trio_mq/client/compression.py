"""Bodies made smaller before they are sent.

In: a body and the flags of its message. Out: both, changed or not. Called by :mod:`.sending`. Pure. Source of the
rules: Apache DefaultMQProducerImpl.tryToCompressMessage, ZlibCompressor; the other direction is
:func:`trio_mq.protocol.message.decompress`.
"""

from __future__ import annotations

import zlib
from typing import Final

from trio_mq.protocol.codes import MessageFlag

#: Apache: compressMsgBodyOverHowmuch, MESSAGE_COMPRESS_LEVEL.
COMPRESS_OVER_BYTES: Final = 4096
LEVEL: Final = 5

_COMPRESSED: Final = int(MessageFlag.COMPRESSED)
_ZLIB: Final = int(MessageFlag.COMPRESSED | MessageFlag.COMPRESSION_ZLIB)


def compressed(
    body: bytes, sys_flag: int, over_bytes: int = COMPRESS_OVER_BYTES
) -> tuple[bytes, int]:
    """The body, by ZLIB from `over_bytes` on, and the flags that say so.

    As with Apache's clients a body that grows by it is sent so all the same: size alone decides, so that a reader can
    tell from it. One that is compressed already (forwarded as it was received) stays as it is.
    """
    if len(body) < over_bytes or sys_flag & _COMPRESSED:
        return body, sys_flag
    return zlib.compress(body, LEVEL), sys_flag | _ZLIB
