"""GET_ALL_DELAY_OFFSET: how far the delay levels are, for brokers that follow this one.

In: nothing. Out: the content of ``delayOffset.json``. Called by the remoting face. Source: Apache
AdminBrokerProcessor.getAllDelayOffset.
"""

from __future__ import annotations

from collections.abc import Callable

from trio_mq.broker.delayoffsets import DelayOffsets
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol import jsondialect
from trio_mq.protocol.codes import RequestCode


class DelayRequests:
    """Answers requests about delay levels; `settle` brings their table up to date."""

    def __init__(self, offsets: DelayOffsets, settle: Callable[[], None]) -> None:
        self._offsets = offsets
        self._settle = settle

    def fill(self, table: RequestTable) -> None:
        """Register the request code."""
        table.add(RequestCode.GET_ALL_DELAY_OFFSET, None, self.all_offsets)

    def all_offsets(self, _: Call, __: None) -> Reply:
        """GET_ALL_DELAY_OFFSET (45)."""
        self._settle()
        return Reply(body=jsondialect.dumps(self._offsets.to_json()))
