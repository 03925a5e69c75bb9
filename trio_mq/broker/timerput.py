"""Puts what timers let go: many messages with one write, or one by one when that does not work.

In: messages that are due, packed ahead of time or as letters. Out: records in their topics, and how many those are.
Called by :mod:`trio_mq.broker.timers`. Source: Apache TimerMessageStore.doPut, which repeats a whole lot (case C148).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from trio_mq.broker.put import Letter, Putter
from trio_mq.errors import LocalProtocolError, StoreFull
from trio_mq.store.packed import Packed
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.broker.timers")


class Stopped(StoreFull):
    """A letter could not be put; `done` of them were."""

    def __init__(self, text: str, done: int) -> None:
        super().__init__(text)
        self.done = done


class DuePutter:
    """Puts messages of one store."""

    def __init__(self, store: Store, putter: Putter) -> None:
        self._store = store
        self._putter = putter

    def put(self, several: Sequence[Packed | Letter], now_ms: int) -> int:
        """Put messages with one write, or one by one when that does not work; returns how many.

        :class:`Stopped` when one cannot be put.
        """
        packed = [one for one in several if isinstance(one, Packed)]
        done = self._put_packed(packed, now_ms) if len(packed) == len(several) else 0
        for one in several[done:]:
            try:
                if isinstance(one, Packed):
                    if not self._put_packed([one], now_ms):
                        raise StoreFull(self._store.refusal or "a message cannot be written")
                else:
                    self._putter.put(one)
            except StoreFull as error:
                raise Stopped(str(error), done) from error
            except LocalProtocolError as error:
                log.error("a message for %s cannot be delivered: %s", one.topic, error)
            done += 1
        return done

    def _put_packed(self, packed: Sequence[Packed], now_ms: int) -> int:
        """Put the first of some messages with one write; how many that are, 0 if they could not be written.

        LocalProtocolError when a single one does not fit into a segment of the log.
        """
        store, token, count = self._store, object(), 0
        size = sum(len(one.record) for one in packed)
        if len(packed) > 1 and size >= store.log.segments.segment_bytes // 2:
            return 0
        obtain = store.queues.obtain
        try:
            store.make_room(size)  # else a part of them may be written when the rest fails
            for one in packed:
                queue = obtain(one.topic, one.queue_id)
                store.append_packed(queue, one, token=token, now_ms=now_ms)
                count += 1
        except StoreFull:
            pass
        store.commit()
        if token in store.failed:
            store.failed = [failed for failed in store.failed if failed is not token]
            return 0
        return count
