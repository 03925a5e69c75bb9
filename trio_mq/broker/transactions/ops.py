"""Op records: which halves are done, written some at a time.

In: places of halves that were decided or given up. Out: records in the op topic, the progress of that queue. Owns one
task, :meth:`Ops.run`. What is not written yet when the broker is killed is found again by
:mod:`trio_mq.broker.transactions.loading`. Apache: TransactionalOpBatchService, TransactionalMessageServiceImpl
(batchSendOpMessage, getOpMessage).
"""

from __future__ import annotations

import logging
from typing import Final

import trio

from trio_mq.broker.put import Put, Putter
from trio_mq.broker.transactions.half import op_letter
from trio_mq.broker.transactions.ledger import OpProgress
from trio_mq.clock import Clock
from trio_mq.config import BrokerSettings
from trio_mq.errors import StoreFull

log = logging.getLogger("trio_mq.broker.transactions")

#: Time until op records that could not be written are tried again.
RETRY_S: Final = 1.0


class Ops:
    """Halves that are done and not written down yet."""

    def __init__(self, putter: Putter, settings: BrokerSettings, clock: Clock, host: bytes) -> None:
        self.progress = OpProgress()
        self._putter = putter
        self._clock = clock
        self._host = host
        self._max_bytes = settings.transaction_op_msg_max_size
        self._interval_s = settings.transaction_op_batch_interval_ms / 1000
        self._pending: list[int] = []
        self._pending_bytes = 0
        self._some = trio.Event()
        self._enough = trio.Event()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, offset: int) -> None:
        """Let a half be written down as done, soon."""
        self._pending.append(offset)
        self._pending_bytes += len(str(offset)) + 1
        self._some.set()
        if self._pending_bytes >= self._max_bytes:
            self._enough.set()

    def write(self) -> Put | None:
        """Write all that waits, now; where the last record lies. StoreFull when it has to go on waiting."""
        put = None
        while self._pending:
            lot = self._lot()
            put = self._putter.put(op_letter(lot, self._clock.now_ms(), self._host))
            del self._pending[: len(lot)]
            self._pending_bytes -= sum(len(str(offset)) + 1 for offset in lot)
            self.progress.add(put.queue_offset, lot)
        return put

    def _lot(self) -> list[int]:
        """As many of the oldest as one record takes."""
        size = count = 0
        for offset in self._pending:
            if count and size >= self._max_bytes:
                break
            size += len(str(offset)) + 1
            count += 1
        return self._pending[:count]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write until cancelled, and the rest then. A store that is full is tried again: nothing is dropped."""
        task_status.started()
        try:
            while True:
                await self._some.wait()
                with trio.move_on_after(self._interval_s):
                    await self._enough.wait()
                self._some, self._enough = trio.Event(), trio.Event()
                if not self._written():
                    await trio.sleep(RETRY_S)
                    self._some.set()
        finally:
            self._written()

    def _written(self) -> bool:
        try:
            self.write()
        except StoreFull as full:
            log.warning(
                "%d decisions about transactions cannot be written down yet: %s",
                *(len(self._pending), full),
            )
            return False
        return True
