"""GET_BROKER_RUNTIME_INFO: one table of texts about the load and the store of a broker.

In: the counters of sends and pulls, the store, and what is odd about clients. Out: the texts that
`mqadmin clusterList`, `brokerStatus` and `trio-mq status` print. Called by the remoting face. Rates
are averages since an earlier request, so nothing runs while nobody asks. Rules: Apache
AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService, ClusterListSubCommand.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import attrs
import trio

from trio_mq.broker.locks import QueueLocks
from trio_mq.broker.members import Members
from trio_mq.broker.processors.pull import Puller
from trio_mq.broker.processors.send import Sender
from trio_mq.clock import Clock
from trio_mq.config import Settings
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import KVTable
from trio_mq.protocol.codes import RequestCode
from trio_mq.store.store import Store

RATE_SPANS_MS: Final = (10_000, 60_000, 600_000)
"""The peers give each rate over the last 10 s, 1 min and 10 min."""

SAMPLES: Final = 1000
"""Kept to compute rates from; one is added at most each second."""

SHOWN: Final = 10
"""Most conflicts and lost locks in the table; all of them are in the log."""

_SAMPLE_PERIOD_MS: Final = 1000

_NOT_HERE: Final = {
    # thread pools and timers of the peers: always idle here, but their tools want to see them
    **{
        f"{pool}ThreadPoolQueue{what}": "0"
        for pool in ("send", "pull", "query", "litePull", "ack")
        for what in ("Size", "HeadWaitTimeMills")
    },
    "EndTransactionQueueSize": "0",
    "pageCacheLockTimeMills": "0",
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
    "remainTransientStoreBufferNumbs": "0",
}


@attrs.frozen
class _Sample:
    time_ms: int
    put: int
    got: int
    pulls: int


class Runtime:
    """Answers how a broker is doing; `began_ms` of its clock is when it was made."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        sender: Sender,
        puller: Puller,
        members: Members,
        locks: QueueLocks,
        clock: Clock,
        version: str,
    ) -> None:
        self._settings = settings
        self._members = members
        self._locks = locks
        self._store = store
        self._sender = sender
        self._puller = puller
        self._clock = clock
        self._version = version
        self._samples: deque[_Sample] = deque([self._sample()], maxlen=SAMPLES)
        self.began_ms = self._samples[0].time_ms

    def fill(self, table: RequestTable) -> None:
        """Register the request code."""
        table.add(RequestCode.GET_BROKER_RUNTIME_INFO, None, self.answer)

    def answer(self, _: Call, __: None) -> Reply:
        """GET_BROKER_RUNTIME_INFO (28)."""
        return Reply(body=bodies.encode(KVTable(self.table())))

    def table(self) -> dict[str, str]:
        """The texts by name."""
        now = self._sample()
        if now.time_ms - self._samples[-1].time_ms >= _SAMPLE_PERIOD_MS:
            self._samples.append(now)
        log, store = self._store.log, self._store
        usage = store.parts.disk.usage(store.parts.root)
        run_s = max(0, now.time_ms - self.began_ms) // 1000
        return {
            **_NOT_HERE,
            "brokerVersionDesc": self._version,
            "brokerActive": "true",
            "bootTimestamp": str(self.began_ms),
            "runtime": f"[ {run_s // 86400} days, {run_s // 3600 % 24} hours, "
            f"{run_s // 60 % 60} minutes, {run_s % 60} seconds ]",
            "startAcceptSendRequestTimeStamp": str(
                self._settings.broker.start_accept_send_request_ms
            ),
            "putTps": self._rates(now, "put"),
            "getTransferredTps": self._rates(now, "got"),
            "getTotalTps": self._rates(now, "pulls"),
            # days begin with the process here, so all of it counts as today's
            "msgPutTotalYesterdayMorning": "0",
            "msgPutTotalTodayMorning": "0",
            "msgPutTotalTodayNow": str(now.put),
            "msgGetTotalYesterdayMorning": "0",
            "msgGetTotalTodayMorning": "0",
            "msgGetTotalTodayNow": str(now.got),
            "putMessageSizeTotal": str(self._sender.bytes),
            "commitLogMinOffset": str(log.start if not log.segments.empty else 0),
            "commitLogMaxOffset": str(log.end),
            "dispatchBehindBytes": str(max(0, log.written - store.dispatcher.dispatched)),
            "remainHowManyDataToFlush": f"{max(0, log.written - log.durable.value)} B",
            "commitLogDiskRatio": f"{usage.used / max(1, usage.used + usage.free):.4f}",
            "commitLogDirCapacity": f"Total : {usage.total} B, Free : {usage.free} B.",
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            **self._of_our_own(),
        }

    def _of_our_own(self) -> dict[str, str]:
        """What the peers do not tell; their tools print whatever is in the table."""
        store = self._store
        told = {
            "cleaning": store.cleaner.schedule_text(),  # cases C059, C080
            "appendTimes": store.times.text(),  # case C097
            "flushTimes": store.flusher.times.text(),
        }
        if store.refusal is not None:
            told["notWritable"] = store.refusal  # case C055
        if store.reader.old.damaged:
            told["damagedRecords"] = f"{store.reader.old.damaged} met, see the log"  # case C020
        conflicts = self._members.conflicts[:SHOWN]
        if conflicts:
            told["subscriptionConflicts"] = "; ".join(one.text() for one in conflicts)  # case C116
        losses = list(self._locks.recent_losses)[-SHOWN:]
        if losses:
            now_s = trio.current_time()
            told["lostLocks"] = "; ".join(one.text(now_s) for one in losses)  # case C109
        return told

    def _earliest_ms(self) -> int:
        log = self._store.log
        if log.segments.empty or log.start >= log.written:
            return -1
        return self._store.reader.store_time_ms(log.start)

    def _sample(self) -> _Sample:
        return _Sample(
            self._clock.now_ms(), self._sender.messages, self._puller.messages, self._puller.found
        )

    def _rates(self, now: _Sample, what: str) -> str:
        """Three averages per second, separated by blanks."""
        return " ".join(f"{self._rate(now, what, span_ms):.2f}" for span_ms in RATE_SPANS_MS)

    def _rate(self, now: _Sample, what: str, span_ms: int) -> float:
        """Average since the newest sample that is at least `span_ms` old, or the oldest one."""
        older = [s for s in self._samples if now.time_ms - s.time_ms >= span_ms]
        since = older[-1] if older else self._samples[0]
        count: int = getattr(now, what) - getattr(since, what)
        return count * 1000 / max(1, now.time_ms - since.time_ms)
