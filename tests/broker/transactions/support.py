"""A producer of transactions on a broker without sockets: half messages, decisions, answers to checks."""

from __future__ import annotations

import itertools

import attrs
import trio

from tests.broker.support import TOPIC, Bench, FakePeer, oneway, props, request, send
from trio_mq.broker.names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from trio_mq.broker.transactions.transactions import GROUP
from trio_mq.protocol import headers
from trio_mq.protocol.bodies import HeartbeatData, ProducerData
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.headers.transaction import (
    CheckTransactionStateRequest,
    EndTransactionRequest,
)
from trio_mq.protocol.message import parse_offset_message_id
from trio_mq.protocol.record import StoredMessage, decode

COMMIT, ROLL_BACK, UNKNOWN = 8, 12, 0
PRODUCERS = "PG"
_numbers = itertools.count(1)


@attrs.frozen
class Sent:
    """What a producer knows of a half message that it has sent."""

    queue_offset: int
    log_offset: int
    unique_id: str


@attrs.frozen
class Check:
    """A check as a producer gets it."""

    header: CheckTransactionStateRequest
    message: StoredMessage


class Producer:
    """One producer on one connection."""

    def __init__(self, bench: Bench, group: str = PRODUCERS) -> None:
        self.bench, self.group = bench, group
        self.peer = FakePeer()

    def start(self) -> None:
        """Let the broker know of it, now and every 30 s."""
        self.beat()
        self.bench.nursery.start_soon(self._beat)

    def beat(self) -> None:
        """Let the broker know of it."""
        data = HeartbeatData(f"producer@{self.peer.address.port}", (ProducerData(self.group),), ())
        self.bench.hand(self.peer, request(RequestCode.HEART_BEAT, body=data))

    async def _beat(self) -> None:
        while not self.peer.closed:
            await trio.sleep(30)
            self.beat()

    def half(self, body: bytes = b"half", topic: str = TOPIC, queue_id: int = 0, **more) -> Sent:
        """Send a half message."""
        unique_id = f"UID{next(_numbers):05}"
        pairs = {"TRAN_MSG": "true", "PGROUP": self.group, "UNIQ_KEY": unique_id} | more
        now_ms = self.bench.clock.now_ms()
        frame = send(
            topic,
            body,
            queue_id=queue_id,
            producer_group=self.group,
            properties=props(**pairs),
            sys_flag=4,
            born_timestamp=now_ms,
        )
        reply = self.bench.ask(frame)
        assert reply.code == ResponseCode.SUCCESS, reply
        assert reply.ext["transactionId"] == unique_id
        assert int(reply.ext["queueId"]) == queue_id
        log_offset = parse_offset_message_id(reply.ext["msgId"])[1]
        return Sent(int(reply.ext["queueOffset"]), log_offset, unique_id)

    def end_frame(self, at: Sent | Check, decision: int, **changes):
        """The frame of a decision."""
        if isinstance(at, Check):
            offsets = (at.header.tran_state_table_offset, at.header.commit_log_offset)
            unique_id = at.header.msg_id
        else:
            offsets, unique_id = (at.queue_offset, at.log_offset), at.unique_id
        header = EndTransactionRequest(
            producer_group=self.group,
            tran_state_table_offset=offsets[0],
            commit_log_offset=offsets[1],
            commit_or_rollback=decision,
            msg_id=unique_id,
            from_transaction_check=isinstance(at, Check),
            transaction_id=unique_id,
        )
        return request(RequestCode.END_TRANSACTION, attrs.evolve(header, **changes))

    def end(self, at: Sent | Check, decision: int) -> None:
        """Decide, as clients do: nobody waits for an answer."""
        self.bench.hand(self.peer, oneway(self.end_frame(at, decision)))

    def asked(self, at: Sent | Check, decision: int, **changes):
        """Decide, and hear what becomes of it."""
        return self.bench.ask(self.end_frame(at, decision, **changes))

    def checks(self) -> list[Check]:
        """The checks that came since the last look."""
        found = []
        for command in self.peer.take():
            if command.is_response:  # to a heartbeat
                continue
            assert command.code == RequestCode.CHECK_TRANSACTION_STATE
            assert command.is_oneway
            header = headers.decode(CheckTransactionStateRequest, command.ext)
            found.append(Check(header, decode(command.body)))
        return found


def stored(bench: Bench, topic: str) -> list[StoredMessage]:
    """All records of a topic."""
    return [message for message in bench.stored() if message.topic == topic]


def halves(bench: Bench) -> list[StoredMessage]:
    """All half messages, copies included."""
    return stored(bench, HALF_TOPIC)


def ops(bench: Bench) -> list[bytes]:
    """The bodies of all op records."""
    return [message.body for message in stored(bench, OP_HALF_TOPIC)]


def given_up(bench: Bench) -> list[StoredMessage]:
    """What was moved away."""
    return stored(bench, CHECK_MAX_TIME_TOPIC)


def delivered(bench: Bench, topic: str = TOPIC) -> list[bytes]:
    """Bodies on a real topic."""
    return [message.body for message in stored(bench, topic)]


def progress(bench: Bench) -> tuple[int | None, int | None]:
    """The saved progress in half and op queue; None before there is any."""
    return (
        bench.offsets.query(GROUP, HALF_TOPIC, 0),
        bench.offsets.query(GROUP, OP_HALF_TOPIC, 0),
    )
