"""What a broker of this role may do: master, slave, or the slave that stands in for a master that is gone.

In: the settings of replication, and what name servers tell of the other brokers of this name. Out: refusals by request
code, whether services that put messages run, and to which broker a reader is sent. Called by the broker, its faces and
processors. Pure. Source of the rules: Apache SendMessageProcessor.rejectRequest, PullMessageProcessor
(rejectRequest, composeResponseHeader), EndTransactionProcessor, RecallMessageProcessor,
BrokerController.updateMinBroker.

A slave puts nothing into its log: the log is the master's. So it takes no sends, ends no transactions and hands out
no pops (whose check points are messages), and delivers nothing that waits. That holds for a slave that acts as the
master, too: there is no way out to another broker (Apache: EscapeBridge). Where that differs from Apache: a slave that
acts as the master answers pulls whatever `slaveReadEnable` says, since its readers have nobody else; a reader of
a slave whose master is gone is kept there, and one whose offset is outside of the queue then waits, where Apache's
sends it around without a pause; and pops are refused, where Apache's slave hands them out and forgets them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NoReturn

import attrs

from trio_mq.config.ha import HASettings
from trio_mq.errors import RequestRefused
from trio_mq.protocol.bodies import SubscriptionGroupConfig
from trio_mq.protocol.codes import RequestCode, ResponseCode
from trio_mq.store.reader import Found, Messages

MASTER_ID: Final = 0

_SENDS: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
    }
)
_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_PUT_BESIDES: Final[Mapping[int, int]] = {
    RequestCode.END_TRANSACTION: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.RECALL_MESSAGE: ResponseCode.SLAVE_NOT_AVAILABLE,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ResponseCode.SYSTEM_ERROR,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResponseCode.SYSTEM_ERROR,
    RequestCode.POP_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.ACK_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.BATCH_ACK_MESSAGE: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ResponseCode.SERVICE_NOT_AVAILABLE,
    RequestCode.NOTIFICATION: ResponseCode.SERVICE_NOT_AVAILABLE,
}
#: Outcomes of a read after which Apache moves the reader, on a master.
_MOVED: Final = frozenset(
    {
        Found.NO_MATCHED_LOGIC_QUEUE,
        Found.NO_MESSAGE_IN_QUEUE,
        Found.OFFSET_TOO_SMALL,
        Found.OFFSET_OVERFLOW_BADLY,
        Found.OFFSET_FOUND_NULL,
    }
)


@attrs.define(eq=False)
class Role:
    """The role of one broker. Without arguments: a master whose readers stay with it."""

    ha: HASettings = attrs.field(factory=HASettings)
    broker_id: int = MASTER_ID
    #: The smallest id of this name that name servers know, as far as they told.
    min_broker_id: int = MASTER_ID
    #: False once name servers answered that this name has no master. Those that cannot be asked prove nothing.
    master_registered: bool = True
    #: How many brokers of this name live, this one included; None unless name servers are asked for it.
    alive_replicas: int | None = None
    #: Called when any of this has changed.
    changed: list[Callable[[], None]] = attrs.field(factory=list)

    @property
    def is_slave(self) -> bool:
        """Whether the log is another broker's."""
        return self.ha.is_slave

    @property
    def puts(self) -> bool:
        """Whether services may put messages: delay levels, timers, transaction checks, pops that come back."""
        return not self.ha.is_slave

    @property
    def acts_as_master(self) -> bool:
        """Whether this slave answers readers in place of a master that is gone."""
        return (
            self.ha.is_slave
            and self.ha.enable_slave_acting_master
            and self.min_broker_id == self.broker_id
        )

    @property
    def master_is_gone(self) -> bool:
        """Whether name servers say that there is no master now."""
        return self.ha.is_slave and (not self.master_registered or self.min_broker_id != MASTER_ID)

    # -- news ------------------------------------------------------------------------------------------------

    def hear(
        self,
        *,
        master_registered: bool = True,
        min_broker_id: int | None = None,
        alive: int | None = None,
    ) -> None:
        """What name servers know of this name; `min_broker_id` and `alive` are None while they are not asked.

        Only a slave that may act as the master minds the smallest id: with Apache, too, others take no notice.
        """
        if min_broker_id is None or not self.ha.enable_slave_acting_master:
            min_broker_id = MASTER_ID
        before = self.master_registered, self.min_broker_id
        self.master_registered, self.min_broker_id = master_registered, min_broker_id
        self.alive_replicas = alive
        if before != (master_registered, min_broker_id):
            self._tell()

    def _tell(self) -> None:
        for told in self.changed:
            told()

    # -- requests --------------------------------------------------------------------------------------------

    def refusal(self, code: int) -> RequestRefused | None:
        """Why requests with that code are not answered in this role; None when they are."""
        if not self.ha.is_slave:
            return None
        if code in _SENDS:
            return RequestRefused(
                self._send_code(code),
                "this broker is a slave, which takes no messages; send to the master",
            )
        if code in _PULLS:
            if self.ha.slave_read_enable or self.acts_as_master:
                return None
            return RequestRefused(
                ResponseCode.SYSTEM_BUSY,
                "this broker is a slave that answers no pulls (slaveReadEnable=false); pull from the master",
            )
        found = _PUT_BESIDES.get(code)
        if found is None:
            return None
        what = RequestCode(code).name
        return RequestRefused(
            found, f"this broker is a slave, where {what} is not possible; ask the master"
        )

    def _send_code(self, code: int) -> int:
        """Apache's hook turns sends away; with acting masters it does not, and its store or its way out fails."""
        if not self.ha.enable_slave_acting_master:
            return ResponseCode.SYSTEM_BUSY
        if code == RequestCode.CONSUMER_SEND_MSG_BACK:
            return ResponseCode.SYSTEM_ERROR
        return ResponseCode.SERVICE_NOT_AVAILABLE

    # -- reads -----------------------------------------------------------------------------------------------

    def suggest(self, group: SubscriptionGroupConfig, *, lags: bool) -> int:
        """The id of the broker to pull from next; `lags` tells that the last read was far behind the log's end."""
        if self.master_is_gone:
            return self.broker_id
        if not self.ha.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if lags else group.broker_id

    def corrected(self, found: Messages, offset: int) -> int:
        """Where a reader that asked for `offset` goes on: a slave, which may be behind, leaves it where it was."""
        if self.ha.is_slave and not self.ha.offset_check_in_slave and found.found in _MOVED:
            return offset
        return found.next_offset

    def reply_code(self, code: int) -> int:
        """The code of the answer to a pull that found nothing, from that of a master.

        At the end of a queue a reader waits, here as there. One whose offset is outside of it is sent to the master at
        once; without one it waits as if that were the end, for what is missing may still come.
        """
        is_moved = code == ResponseCode.PULL_OFFSET_MOVED
        if not (self.ha.is_slave and is_moved) or self.ha.offset_check_in_slave:
            return code
        if self.master_is_gone:
            return ResponseCode.PULL_NOT_FOUND
        return ResponseCode.PULL_RETRY_IMMEDIATELY


class NoSends:
    """Stands where a slave would have its :class:`.processors.send.Sender`: refuses all."""

    def __init__(self, role: Role) -> None:
        self._role = role
        #: Sends that could not be stored; here there are none.
        self.failures = 0

    def _refuse(self) -> RequestRefused:
        refusal = self._role.refusal(RequestCode.SEND_MESSAGE)
        assert refusal is not None, "only a slave takes no sends"
        return refusal

    def send(self, *_ignored: object) -> NoReturn:
        """Refused."""
        raise self._refuse()

    def send_batch(self, *_ignored: object) -> NoReturn:
        """Refused."""
        raise self._refuse()
