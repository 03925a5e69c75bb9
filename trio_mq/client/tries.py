"""The tries of one send: when there is another one, and what is told when there is none.

In: receipts and failures as they come. Out: go on, done, or the error. Called by :mod:`.sending` and :mod:`.pipeline`.
Pure: the time is an argument. Source of the rules: Apache DefaultMQProducerImpl.sendDefaultImpl,
MQClientAPIImpl.processSendResponse.
"""

from __future__ import annotations

from typing import Final

import attrs

from trio_mq.client.messages import SendReceipt, SendStatus
from trio_mq.client.outgoing import Outgoing
from trio_mq.config.addresses import Address
from trio_mq.errors import PeerRefused, RequestRefused, SendFailed, TrioMQError
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import MessageQueue
from trio_mq.protocol.codes import ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.message import parse_offset_message_id

#: Apache: DefaultMQProducer.retryResponseCodes.
RETRY_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)

_STATUSES: Final = {int(status.value): status for status in SendStatus}
_SHOWN_CHARACTERS: Final = 80


@attrs.frozen
class Sent:
    """A receipt, and the broker that gave it: the end of a transaction has to reach the same one."""

    receipt: SendReceipt
    address: Address

    @property
    def log_offset(self) -> int:
        """Where the message is in that broker's commit log."""
        return parse_offset_message_id(self.receipt.offset_message_id.partition(",")[0])[1]


@attrs.define
class Tries:
    """State of one send. `left` counts the tries that may still follow."""

    outgoing: Outgoing
    left: int
    began_s: float
    timeout_s: float
    insists_on_ok: bool = False
    failed_broker: str | None = None
    failures: list[TrioMQError] = attrs.field(factory=list)
    best: Sent | None = None

    def left_s(self, now_s: float) -> float:
        """What is left of the time for all tries; a thousandth at least, so that a try can begin."""
        return max(0.001, self.began_s + self.timeout_s - now_s)

    def done(self, sent: Sent) -> bool:
        """Whether this is the end of it. A status other than OK is, unless another broker shall be tried."""
        self.best = sent
        if sent.receipt.status is SendStatus.OK or not self.insists_on_ok:
            return True
        self.failed_broker = sent.receipt.queue.broker_name
        return False

    def failed(self, broker_name: str, error: TrioMQError) -> None:
        """Note a failed try; raises the error itself when no other broker would say otherwise."""
        if isinstance(error, RequestRefused) and error.code not in RETRY_CODES:
            raise error
        self.failed_broker = broker_name
        self.failures.append(error)

    def another(self, now_s: float) -> bool:
        """Whether a further try may begin."""
        return self.left > 0 and now_s < self.began_s + self.timeout_s

    def result(self, now_s: float) -> Sent:
        """What it comes to when no try follows: the last that was stored, or SendFailed."""
        if self.best is not None:
            return self.best
        count = "1 try" if len(self.failures) == 1 else f"{len(self.failures)} tries"
        raise SendFailed(
            f"topic {self.outgoing.given_topic}: message {self.outgoing.message_id[:_SHOWN_CHARACTERS]} was not sent "
            f"in {count} and {now_s - self.began_s:.1f} s: {' | '.join(map(str, self.failures))}; where no answer "
            f"came it may be stored all the same: send it again, consumers tell copies by its id",
            failures=tuple(self.failures),
        )


def receipt_of(
    reply: Command, outgoing: Outgoing, broker_name: str, address: Address
) -> SendReceipt:
    """What an answer says; PeerRefused for one that says no, RemoteProtocolError for one that cannot be read."""
    status = _STATUSES.get(reply.code)
    if status is None:
        what = f"{outgoing.code.name} ({outgoing.code.value}) for topic {outgoing.given_topic}"
        raise PeerRefused(reply.code, reply.remark, address=str(address), what=what)
    ext = reply.ext
    try:
        offset_id, queue_id, queue_offset = (
            ext["msgId"],
            int(ext["queueId"]),
            int(ext["queueOffset"]),
        )
    except (KeyError, ValueError):
        headers.decode(headers.SendMessageReply, ext)  # says which field is missing or bad
        raise
    return SendReceipt(
        ext.get("batchUniqId") or outgoing.message_id,
        offset_id,
        MessageQueue(outgoing.given_topic, broker_name, queue_id),
        queue_offset,
        status,
        ext.get("transactionId"),
        ext.get("recallHandle"),
    )
