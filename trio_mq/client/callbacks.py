"""What brokers ask of a consumer, mostly for an administrator who asked them.

In: requests of brokers: GET_CONSUMER_RUNNING_INFO (307), CONSUME_MESSAGE_DIRECTLY (309), RESET_CONSUMER_CLIENT_OFFSET
(220), GET_CONSUMER_STATUS_FROM_CLIENT (221). Out: answers; a reset moves queues. Opened by the consumers that pull
(:mod:`.member`). Source of the rules: Apache ClientRemotingProcessor, MQClientInstance (resetOffset, getConsumerStatus,
consumerRunningInfo, consumeMessageDirectly).

Rates of pulling and consuming are not measured here, and so not told: a table without rows is better than one of
zeros. Failure policy: a request that cannot be read is refused with the reason, or dropped when nobody waits for an
answer; nothing of it ends the consumer.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import anyio
import attrs

from trio_mq.client.assigned import AssignedQueues
from trio_mq.client.concurrent import Handler, outcome_of
from trio_mq.client.functions import called
from trio_mq.client.instance import Instance
from trio_mq.client.messages import Outcome, ReceivedMessage
from trio_mq.client.offsets import OffsetStore
from trio_mq.client.options import without_namespace
from trio_mq.client.processqueue import ProcessQueue
from trio_mq.errors import HandlerError, ProtocolError
from trio_mq.net.link import Link
from trio_mq.protocol import bodies, headers, record
from trio_mq.protocol import properties as props
from trio_mq.protocol.bodies import (
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    ConsumerStatusBody,
    MessageQueue,
    ResetOffsetBody,
)
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.protocol.command import Command
from trio_mq.protocol.topics import retry_topic

log = logging.getLogger("trio_mq.client")

#: What we announce as our release (`VERSION`), as Apache's tools print it.
CLIENT_VERSION: Final = "V5_4_0"
_MIB: Final = 1 << 20


class Run(Protocol):
    """A handler at work: :class:`.HandlerRun`."""

    handler: Handler
    concurrency: int


@attrs.frozen
class Asked:
    """What there is to tell of a consumer; its group and queues are named as on the wire."""

    instance: Instance
    group: str
    assigned: AssignedQueues
    store: OffsetStore
    is_orderly: bool = False
    #: Those that go on now.
    runs: Iterable[Run] = ()


class BrokerQuestions:
    """Answers for one consumer."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._started_ms = asked.instance.clock.now_ms()

    def listen(self) -> None:
        """Answer from now on, as long as the instance lives."""
        for code, answer in (
            (RequestCode.GET_CONSUMER_RUNNING_INFO, self._running_info),
            (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, self._status),
            (RequestCode.CONSUME_MESSAGE_DIRECTLY, self._consume_directly),
            (RequestCode.RESET_CONSUMER_CLIENT_OFFSET, self._reset),
        ):
            self._asked.instance.on_request(code, _safely(answer))

    def _unknown(self, group: str) -> Command | None:
        """The refusal for a group that is not ours."""
        if group == self._asked.group:
            return None
        return Command(
            ResponseCode.SYSTEM_ERROR,
            remark=f"the consumer group {group} does not exist in client {self._asked.instance.client_id}",
        )

    # -- 307

    def _running_info(self, link: Link, command: Command) -> Command:
        header = headers.decode(headers.GetConsumerRunningInfoRequest, command.ext)
        refusal = self._unknown(header.consumer_group)
        if refusal is not None:
            return refusal
        info = self.running_info(stacks=header.jstack_enable)
        return Command(ResponseCode.SUCCESS, body=bodies.encode(info))

    def running_info(self, *, stacks: bool) -> ConsumerRunningInfo:
        """What ``mqadmin consumerStatus`` and ``trio-mq group`` show."""
        asked = self._asked
        data = asked.instance.consumers[asked.group]()
        names = "".join(f"{address};" for address in asked.instance.options.nameservers)
        now_s, now_ms = anyio.current_time(), asked.instance.clock.now_ms()
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": names,
                "PROP_CONSUME_TYPE": data.consume_type.value,
                "PROP_CLIENT_VERSION": CLIENT_VERSION,
                "PROP_CONSUMEORDERLY": "true" if asked.is_orderly else "false",
                "PROP_THREADPOOL_CORE_SIZE": str(sum(run.concurrency for run in asked.runs)),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "messageModel": data.message_model.value,
                "consumeFromWhere": data.consume_from_where.value,
            },
            subscription_set=data.subscription_data_set,
            mq_table={
                queue.queue: queue_state(queue, self._started_ms, now_s, now_ms)
                for queue in asked.assigned.process_queues()
            },
            jstack=thread_stacks() if stacks else None,
        )

    # -- 221

    def _status(self, link: Link, command: Command) -> Command:
        header = headers.decode(headers.GetConsumerStatusRequest, command.ext)
        table = {}
        if header.group == self._asked.group:
            positions = self._asked.assigned.positions()
            table = {queue: at for queue, at in positions.items() if queue.topic == header.topic}
        body = ConsumerStatusBody(message_queue_table=table)
        return Command(ResponseCode.SUCCESS, body=bodies.encode(body))

    # -- 220

    def _reset(self, link: Link, command: Command) -> None:
        header = headers.decode(headers.ResetOffsetRequest, command.ext)
        wanted = bodies.decode(ResetOffsetBody, command.body).offset_table
        if header.group != self._asked.group:
            log.debug("a reset of group %s, which is not ours, is dropped", header.group)
            return
        ours = self._asked.assigned.queues
        moves = {q: at for q, at in wanted.items() if q in ours and q.topic == header.topic}
        self._asked.instance.tasks.start_soon(self._move, moves)

    async def _move(self, moves: Mapping[MessageQueue, int]) -> None:
        """Begin anew at other offsets. Apache's client waits ten seconds first, for what its threads work on; here
        what was handed out before has no effect on the new positions.
        """
        for queue, offset in moves.items():
            if queue in self._asked.assigned.queues:
                self._asked.assigned.seek(queue, offset)
                log.info("%s begins anew at %d: an administrator has reset it", queue, offset)
        for queue, failure in (await self._asked.store.write(moves, wait=True)).items():
            log.warning("the offset to which %s was reset is not stored yet: %s", queue, failure)

    # -- 309

    def _consume_directly(self, link: Link, command: Command) -> Command | None:
        header = headers.decode(headers.ConsumeMessageDirectlyResultRequest, command.ext)
        refusal = self._unknown(header.consumer_group)
        if refusal is not None:
            return refusal
        run = next(iter(self._asked.runs), None)
        if run is None:
            return Command(
                ResponseCode.SYSTEM_ERROR,
                remark=f"the consumer of group {header.consumer_group} handles no messages now: it has no handler "
                f"(run) that could be called for one message",
            )
        message = self._message(header.broker_name or "", command.body)
        self._asked.instance.tasks.start_soon(self._handle, link, command, run.handler, message)
        return None

    def _message(self, broker_name: str, body: bytes) -> ReceivedMessage:
        stored = record.decode(body)
        topic = stored.topic
        if topic == retry_topic(self._asked.group):
            topic = stored.property_map.get(props.RETRY_TOPIC, topic)
        return ReceivedMessage(
            stored,
            MessageQueue(stored.topic, broker_name, stored.queue_id),
            stored.plain_body,
            topic=without_namespace(self._asked.instance.options.namespace, topic),
        )

    async def _handle(
        self, link: Link, command: Command, handler: Handler, message: ReceivedMessage
    ) -> None:
        began_s = anyio.current_time()
        result, remark = await handled(handler, message)
        body = ConsumeMessageDirectlyResult(
            consume_result=result,
            order=self._asked.is_orderly,
            remark=remark,
            spent_time_mills=round((anyio.current_time() - began_s) * 1000),
        )
        link.respond(command, Command(ResponseCode.SUCCESS, body=bodies.encode(body)))


async def handled(handler: Handler, message: ReceivedMessage) -> tuple[str, str | None]:
    """What a handler makes of one message, in the words of Apache's CMResult, and the reason of a failure."""
    try:
        outcome = outcome_of(await called(handler, message), message)
    except HandlerError as error:
        return "CR_THROW_EXCEPTION", str(error)
    except Exception as error:
        log.exception("message %s failed, an administrator had sent it", message.message_id)
        return "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
    return ("CR_SUCCESS" if outcome is Outcome.ACK else "CR_LATER"), None


def queue_state(
    queue: ProcessQueue, started_ms: int, now_s: float, now_ms: int
) -> dict[str, int | bool]:
    """One queue in the words of Apache's ProcessQueueInfo, whose spelling of "dropped" is kept."""

    def wall_ms(at_s: float) -> int:
        """A time of the event loop's clock, on the wall."""
        return now_ms - round((now_s - at_s) * 1000) if 0 < at_s <= now_s else started_ms

    lowest, highest = queue.bounds
    return {
        "commitOffset": queue.position,
        "cachedMsgMinOffset": lowest,
        "cachedMsgMaxOffset": highest,
        "cachedMsgCount": queue.count,
        "cachedMsgSizeInMiB": queue.size_bytes // _MIB,
        "transactionMsgMinOffset": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgCount": 0,
        "locked": queue.locked_until_s > now_s,
        "tryUnlockTimes": 0,
        "lastLockTimestamp": started_ms,
        "droped": queue.dropped,
        "lastPullTimestamp": wall_ms(queue.pulled_at_s),
        "lastConsumeTimestamp": wall_ms(queue.consumed_at_s),
    }


def thread_stacks() -> str:
    """What all threads of the process do now."""
    return "\n".join(
        f"Thread {number}\n" + "".join(traceback.format_stack(frame))
        for number, frame in sys._current_frames().items()
    )


def _safely(
    answer: Callable[[Link, Command], Command | None],
) -> Callable[[Link, Command], Command | None]:
    """A request that cannot be read is refused."""

    def answered(link: Link, command: Command) -> Command | None:
        try:
            return answer(link, command)
        except ProtocolError as error:
            log.warning("%s: request %d cannot be read: %s", link.address, command.code, error)
            return Command(ResponseCode.SYSTEM_ERROR, remark=str(error))

    return answered
