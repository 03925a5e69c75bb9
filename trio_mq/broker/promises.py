"""What the properties of a message ask of the broker beyond storing it, and what of that a batch cannot have.

In: raw property bytes of sends and of the messages in a batch. Out: a quick look whether there is anything special, a
refusal of what a batch cannot do, and properties without what the broker must not pass on. Called by the send
processor. Rules: Apache HookUtils.checkBeforePutMessage, handleScheduleMessage, Message.isWaitStoreMsgOK.
"""

from __future__ import annotations

import re
from typing import Final

from trio_mq.errors import RequestRefused
from trio_mq.protocol import properties
from trio_mq.protocol.codes import MessageFlag, ResponseCode
from trio_mq.protocol.layout import MAX_PROPERTIES_BYTES
from trio_mq.protocol.message import BatchItem

#: Names that say something about the way through a broker, which ends here.
DROPPED: Final = (b"__CRC32#", b"POP_CK", b"INNER_MULTI_QUEUE_OFFSET")
#: Names that the broker sets itself; a message that brings one of them has it replaced.
OWN: Final = (b"MSG_REGION", b"TRACE_ON", b"CLUSTER")
#: Bits of a sysFlag that mark a part of a transaction. A plain int: & with an enumeration costs half a microsecond.
TRANSACTION: Final = int(MessageFlag.TRANSACTION_ROLLBACK)
#: The byte that ends a property.
TERMINATOR: Final = 2
_TIMERS: Final = (
    properties.TIMER_DELAY_SEC,
    properties.TIMER_DELAY_MS,
    properties.TIMER_DELIVER_MS,
)


# All names that need a closer look, as one expression: one search of it takes a third of the time of ten searches for
# plain bytes. Behind the first byte come the rests of DELAY, TIMER_..., TRAN_MSG, TRACE_ON, POP_CK, __CRC32#,
# _SYS_MSG_PRIORITY_, INNER_NUM, MSG_REGION and CLUSTER.
_NAMES: Final = (
    rb"[DTP_IMC](?:ELAY\x01|IMER_|RA(?:N_MSG|CE_ON)\x01|OP_CK\x01|_CRC32#\x01|SYS_MSG_PRIORITY_\x01"
    rb"|NNER_(?:NUM|MULTI_DISPATCH|MULTI_QUEUE_OFFSET)\x01|SG_REGION\x01|LUSTER\x01)"
)
_begins_special: Final = re.compile(_NAMES).match
_goes_on_special: Final = re.compile(rb"\x02" + _NAMES).search


def is_special(props: bytes) -> bool:
    """Whether properties may hold a name that needs a closer look; any other message takes the short way."""
    return _goes_on_special(props) is not None or _begins_special(props) is not None


def wants_to_wait(props: bytes) -> bool:
    """Whether a sender wants its answer after the sync (Apache: Message.isWaitStoreMsgOK)."""
    wait = properties.get(props, b"WAIT")
    return wait is None or wait.lower() == b"true"


def check_size(props: bytes) -> None:
    """Refuse properties that do not fit into a record, with what the broker added."""
    if len(props) > MAX_PROPERTIES_BYTES:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message properties have {len(props)} bytes with those of the broker, "
            f"{MAX_PROPERTIES_BYTES} are allowed; use fewer or shorter properties",
        )


def cleaned(number: int, item: BatchItem) -> BatchItem:
    """A message of a batch with properties that end where the next reader expects it (case C124)."""
    props = item.properties
    refuse_what_waits(props, 0)
    for name in DROPPED:
        props = properties.remove(props, name)
    if props and props[-1] != TERMINATOR:
        props += b"\x02"
    if len(props) > MAX_PROPERTIES_BYTES:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"message {number} of the batch has {len(props)} bytes of properties with their last "
            f"separator, {MAX_PROPERTIES_BYTES} are allowed; use fewer or shorter properties",
        )
    return item._replace(properties=props)


def is_half(props: bytes, reconsume_times: int) -> bool:
    """Whether a message is the first part of a transaction; one that is retried after a while is not."""
    mark = properties.get(props, b"TRAN_MSG")
    if mark is None or mark.lower() != b"true":
        return False
    return not (reconsume_times > 0 and properties.get(props, b"DELAY") is not None)


def refuse_what_waits(props: bytes, sys_flag: int) -> None:
    """Refuse a batch, or one of its messages, that is to be seen later: a batch is stored as a whole (case C139)."""
    found = properties.parse(props)
    level = found.get(properties.DELAY, "0")
    if _number(level, otherwise=1) > 0:
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"delay level {level}: messages of a batch cannot be delayed; send them one by one",
        )
    for name in _TIMERS:
        if name in found:
            raise RequestRefused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"property {name}: messages of a batch cannot wait for a time; send them one by one",
            )
    if sys_flag & TRANSACTION or found.get(properties.TRAN_MSG, "").lower() == "true":
        raise RequestRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "a batch cannot be part of a transaction; send its messages one by one",
        )


def _number(text: str, *, otherwise: int) -> int:
    try:
        return int(text)
    except ValueError:
        return otherwise
