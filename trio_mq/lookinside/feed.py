"""Records on their way from the log to the checks of queues and index, many at a time.

In: lots of records in log order. Out: calls of the checks. Where numpy is installed and lots come as columns, nothing
is made of a record that has no fault (:mod:`trio_mq.lookinside.bulkfeed`). Called by :mod:`trio_mq.lookinside.verify`.
"""

from __future__ import annotations

from trio_mq.lookinside.verify_index import IndexCheck
from trio_mq.lookinside.verify_queues import QueueCheck
from trio_mq.recovery.lots import Lot

#: Records that are compared at once: queues and index are read in pieces that are worth it.
RECORDS_AT_ONCE = 4096


class Feed:
    """Hands records on, one value for each."""

    def __init__(self, queues: QueueCheck | None, index: IndexCheck) -> None:
        self.queues = queues
        self.index = index
        self._lots: list[Lot] = []
        self._waiting = 0

    def add(self, lot: Lot) -> bool:
        """Take a lot; whether what waited has been handed on."""
        self._lots.append(lot)
        self._waiting += lot.count
        if self._waiting < RECORDS_AT_ONCE:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Hand on what waits."""
        lots, self._lots = self._lots, []
        self._waiting = 0
        if lots:
            self.hand_on(lots)

    def hand_on(self, lots: list[Lot]) -> None:
        """Compare some records."""
        records = [record for lot in lots for record in lot.records()]
        if self.queues is not None:
            self.queues.look(records)
        self.index.look(records)


def make_feed(queues: QueueCheck | None, index: IndexCheck) -> Feed:
    """The faster way where numpy is installed."""
    try:
        from trio_mq.lookinside.bulkfeed import BulkFeed
    except ImportError:
        return Feed(queues, index)
    return BulkFeed(queues, index)
