"""RECALL_MESSAGE, GET_TIMER_CHECK_POINT and GET_TIMER_METRICS: taking a waiting message back, and how timers stand.

In: typed requests. Out: a message in the timer's queue that names the one to take back; the timer's checkpoint and
its counts. A recall succeeds whether or not there is such a message: that shows only when its time has come.
Rules: Apache RecallMessageProcessor, AdminBrokerProcessor.getTimerCheckPoint, getTimerMetrics.
"""

from __future__ import annotations

from typing import Final

from trio_mq.broker.put import Letter, Putter
from trio_mq.broker.timers import Timers
from trio_mq.broker.topics import TopicTable
from trio_mq.clock import Clock
from trio_mq.config import Settings
from trio_mq.errors import BodyError, RequestRefused, StoreFull
from trio_mq.net.requests import Call, Deferred, Reply, RequestTable
from trio_mq.protocol import jsondialect, properties
from trio_mq.protocol.codes import Perm, RequestCode, ResponseCode
from trio_mq.protocol.headers import RecallMessageReply, RecallMessageRequest
from trio_mq.protocol.recall import RecallHandle, parse_recall_handle

_TAG: Final = "_RECALL_TAG_"


class Recalls:
    """Takes messages back, and tells how the timers stand. `timers` is None in a broker that has none."""

    def __init__(
        self,
        putter: Putter,
        timers: Timers | None,
        topics: TopicTable,
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._putter = putter
        self._timers = timers
        self._topics = topics
        self._settings = settings
        self._clock = clock

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.RECALL_MESSAGE, RecallMessageRequest, self.recall)
        table.add(RequestCode.GET_TIMER_CHECK_POINT, None, self.checkpoint)
        table.add(RequestCode.GET_TIMER_METRICS, None, self.metrics)

    def recall(self, call: Call, request: RecallMessageRequest) -> Reply | Deferred:
        """Let a message that waits not be delivered."""
        mine = self._settings.broker
        if not mine.recall_message_enable:
            raise RequestRefused(
                ResponseCode.NO_PERMISSION,
                "messages cannot be recalled from this broker; set recallMessageEnable=true",
            )
        now_ms = self._clock.now_ms()
        writeable = (
            mine.broker_permission & Perm.WRITE or mine.allow_recall_when_broker_not_writeable
        )
        if now_ms < mine.start_accept_send_request_ms or not writeable:
            raise RequestRefused(
                ResponseCode.SERVICE_NOT_AVAILABLE, "this broker takes no messages now"
            )
        if self._topics.get(request.topic) is None:
            raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"there is no topic {request.topic}")
        handle = self._checked(request, now_ms)
        letter = self._letter(call, request, handle, now_ms)
        self._putter.check_replicas()
        try:
            put = self._putter.deliver(letter)
        except StoreFull as error:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR, f"the recall was not stored: {error}"
            ) from error
        reply = Reply(
            header=RecallMessageReply(handle.message_id), ext={"MSG_REGION": mine.region_id}
        )
        return self._putter.answer(call, put.end, reply)

    def _checked(self, request: RecallMessageRequest, now_ms: int) -> RecallHandle:
        """The handle of a request if it may be used here and now."""
        try:
            handle = parse_recall_handle(request.recall_handle)
        except BodyError as error:
            raise _illegal(str(error)) from error
        if handle.topic != request.topic:
            raise _illegal(
                f"the recall handle is of topic {handle.topic}, the request of {request.topic}"
            )
        if handle.broker_name != self._settings.broker.broker_name:
            raise _illegal(f"the recall handle is of broker {handle.broker_name}; recall it there")
        left_ms = handle.deliver_ms - now_ms
        longest_ms = self._settings.store.timer_max_delay_sec * 1000
        if not 0 < left_ms < longest_ms:
            raise _illegal(
                f"the message of the recall handle is due in {left_ms} ms; it can be recalled while that is "
                f"between 0 and {longest_ms} (timerMaxDelaySec)"
            )
        return handle

    def _letter(
        self, call: Call, request: RecallMessageRequest, handle: RecallHandle, now_ms: int
    ) -> Letter:
        key = handle.message_id
        if self._settings.store.append_topic_for_timer_delete_key:
            key = f"{handle.topic}+{key}"
        found = {
            properties.TAGS: _TAG,
            properties.TIMER_DEL_UNIQKEY: key,
            properties.UNIQ_KEY: handle.message_id,
            properties.TIMER_DELIVER_MS: str(handle.deliver_ms),
            properties.BORN_TIMESTAMP: str(now_ms),
            properties.PGROUP: request.producer_group or None,
        }
        host = call.peer.address.packed
        return Letter(handle.topic, 0, b"0", properties.encode(found), now_ms, host)

    def checkpoint(self, _call: Call, _request: None) -> Reply:
        """The timer's checkpoint as it is in its file."""
        return Reply(body=self._needed().state.checkpoint.pack())

    def metrics(self, _call: Call, _request: None) -> Reply:
        """How many messages of each topic wait."""
        return Reply(body=jsondialect.dumps(self._needed().metrics.to_json()))

    def _needed(self) -> Timers:
        if self._timers is None:
            raise RequestRefused(
                ResponseCode.SYSTEM_ERROR,
                "timers are off in this broker; set timerWheelEnable=true",
            )
        return self._timers


def _illegal(text: str) -> RequestRefused:
    return RequestRefused(ResponseCode.ILLEGAL_OPERATION, text)
