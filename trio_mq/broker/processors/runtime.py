"""GET_BROKER_RUNTIME_INFO: one table of texts about the load and the store of a broker.

In: the broker's statistics, the store, and what is odd about clients. Out: the texts that `mqadmin
clusterList`, `brokerStatus` and `trio-mq status` print. Called by the remoting face. Rules: Apache
AdminBrokerProcessor.prepareRuntimeInfo, StoreStatsService, ClusterListSubCommand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import trio

from trio_mq.broker.locks import QueueLocks
from trio_mq.broker.members import Members
from trio_mq.broker.processors.send import Sender
from trio_mq.broker.stats import BrokerStats
from trio_mq.clock import Clock
from trio_mq.config import Settings
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import KVTable
from trio_mq.protocol.codes import RequestCode
from trio_mq.store.store import Store
from trio_mq.store.times import BOUNDS_MS, Times

RATE_SPANS_S: Final = (10, 60, 600)
"""The peers give each rate over the last 10 s, 1 min and 10 min."""

SHOWN: Final = 10
"""Most conflicts and lost locks in the table; all of them are in the log."""

_NOT_HERE: Final = {
    # thread pools of the peers, and timers where they are off: always idle, but the peers' tools want to see them
    **{
        f"{pool}ThreadPoolQueue{what}": "0"
        for pool in ("send", "pull", "query", "litePull", "ack")
        for what in ("Size", "Capacity", "HeadWaitTimeMills")
    },
    "EndTransactionQueueSize": "0",
    "EndTransactionThreadPoolQueueCapacity": "0",
    "pageCacheLockTimeMills": "0",
    "timerReadBehind": "0",
    "timerOffsetBehind": "0",
    "timerCongestNum": "0",
    "timerEnqueueTps": "0.0",
    "timerDequeueTps": "0.0",
    "remainTransientStoreBufferNumbs": "0",
}


#: Buckets of Apache's table of put times, and the bound of ours (ms) that ends each.
_PUT_TIMES: Final = (
    ("<=0ms", 1),
    ("0~10ms", 10),
    ("10~50ms", 50),
    ("50~100ms", 100),
    ("100~200ms", 200),
    ("200~500ms", 500),
    ("500ms~1s", 1000),
    ("1~2s", 2000),
    ("2~5s", 5000),
    ("5s~", None),
)


class Runtime:
    """Answers how a broker is doing; `began_ms` of its clock is when it was made."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        sender: Sender,
        stats: BrokerStats,
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
        self._stats = stats
        self._clock = clock
        self._version = version
        self.began_ms = clock.now_ms()
        #: Services that have something to tell, too.
        self.sources: list[Callable[[], Mapping[str, str]]] = []

    def fill(self, table: RequestTable) -> None:
        """Register the request code."""
        table.add(RequestCode.GET_BROKER_RUNTIME_INFO, None, self.answer)

    def answer(self, _: Call, __: None) -> Reply:
        """GET_BROKER_RUNTIME_INFO (28)."""
        table = self.table()
        for source in self.sources:
            table |= source()
        return Reply(body=bodies.encode(KVTable(table)))

    def table(self) -> dict[str, str]:
        """The texts by name."""
        log, store = self._store.log, self._store
        usage = store.parts.disk.usage(store.parts.root)
        ratio = f"{usage.used / max(1, usage.used + usage.free):.4f}"
        return {
            **_NOT_HERE,
            "brokerVersionDesc": self._version,
            "brokerActive": "true",
            "bootTimestamp": str(self.began_ms),
            "runtime": self._runtime(),
            "startAcceptSendRequestTimeStamp": str(
                self._settings.broker.start_accept_send_request_ms
            ),
            **self._load(),
            "commitLogMinOffset": str(log.start if not log.segments.empty else 0),
            "commitLogMaxOffset": str(log.end),
            "dispatchBehindBytes": str(max(0, log.written - store.dispatcher.dispatched)),
            "dispatchMaxBuffer": str(store.dispatcher.index_backlog),
            "remainHowManyDataToFlush": f"{max(0, log.written - log.durable.value)} B",
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{self._settings.store.commit_log_dir}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {usage.total} B, Free : {usage.free} B.",
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            **self._of_our_own(),
        }

    def _runtime(self) -> str:
        run_s = max(0, self._clock.now_ms() - self.began_ms) // 1000
        return (
            f"[ {run_s // 86400} days, {run_s // 3600 % 24} hours, "
            f"{run_s // 60 % 60} minutes, {run_s % 60} seconds ]"
        )

    def _load(self) -> dict[str, str]:
        """Messages in and out: totals, rates, sizes and times."""
        stats, times = self._stats, self._store.times
        now, today, yesterday = stats.totals(), stats.today, stats.yesterday
        asked = zip(self._rates("found"), self._rates("missed"), strict=True)
        return {
            "putTps": _joined(self._rates("put")),
            "getTransferredTps": _joined(self._rates("got")),
            "getFoundTps": _joined(self._rates("found")),
            "getMissTps": _joined(self._rates("missed")),
            "getTotalTps": _joined(found + missed for found, missed in asked),
            "msgPutTotalYesterdayMorning": str(yesterday.users_put),
            "msgPutTotalTodayMorning": str(today.users_put),
            "msgPutTotalTodayNow": str(now.users_put),
            "msgGetTotalYesterdayMorning": str(yesterday.users_got),
            "msgGetTotalTodayMorning": str(today.users_got),
            "msgGetTotalTodayNow": str(now.users_got),
            "putMessageTimesTotal": str(max(1, now.put)),
            "putMessageFailedTimes": str(self._sender.failures),
            "putMessageSizeTotal": str(now.put_bytes),
            "putMessageAverageSize": str(now.put_bytes / max(1, now.put)),
            "putMessageEntireTimeMax": str(int(1000 * times.slowest_s)),
            "putMessageDistributeTime": _distribution(times),
            "putLatency99": f"{times.percentile_ms(0.99):.2f}",
            "putLatency999": f"{times.percentile_ms(0.999):.2f}",
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
        holders = self._locks.holders(trio.current_time())
        if holders:
            shown = [one.text(trio.current_time()) for one in holders[:SHOWN]]
            more = [f"and {len(holders) - SHOWN} more"] if len(holders) > SHOWN else []
            told["queueLocks"] = "; ".join([*shown, *more])
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

    def _rates(self, what: str) -> list[float]:
        return [self._stats.rate(what, span_s) for span_s in RATE_SPANS_S]


def _joined(rates: Iterable[float]) -> str:
    """Three averages per second, separated by blanks."""
    return " ".join(f"{rate:.2f}" for rate in rates)


def _distribution(times: Times) -> str:
    """How many writes to the log took how long, in Apache's words."""
    found, below = [], 0
    for name, bound in _PUT_TIMES:
        upto = sum(times.counts[: BOUNDS_MS.index(bound) + 1]) if bound else times.count
        found.append(f"[{name}]:{upto - below}")
        below = upto
    return " ".join(found)
