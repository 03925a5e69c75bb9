"""What others may ask about replication: requests 906, 907 and 908, and rows of the runtime information.

In: typed requests, the master's side of this broker, and on a slave how its own copying goes. Out: replies as `mqadmin
haStatus` and Apache's slaves read them, and texts for `trio-mq status`. Filled into the broker's request table by
:mod:`trio_mq.system`. Rules: Apache AdminBrokerProcessor.getBrokerHaStatus, updateBrokerHaInfo,
resetMasterFlushOffset; DefaultHAService.getRuntimeInfo.

Where that differs from Apache: a difference is never negative, and slaves that are ahead or too old say so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import attrs

from trio_mq.broker.follow import ItemState, ItemView
from trio_mq.clock import Clock
from trio_mq.config.ha import HASettings
from trio_mq.ha.primary import Primary, SlaveView
from trio_mq.ha.states import LinkState
from trio_mq.net.requests import Call, Reply, RequestTable
from trio_mq.protocol import bodies
from trio_mq.protocol.bodies import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo
from trio_mq.protocol.codes import RequestCode
from trio_mq.protocol.headers import (
    ExchangeHAInfoReply,
    ExchangeHAInfoRequest,
    ResetMasterFlushOffsetRequest,
)
from trio_mq.store.store import Store

log = logging.getLogger("trio_mq.ha")

#: A number with as many digits may not fit into 64 bits.
LONG_DIGITS: Final = 19
#: Most slaves in a row of the runtime information; 907 has all.
SHOWN: Final = 10


class Copying(Protocol):
    """How copying goes on a slave (:class:`trio_mq.ha.replica.ReplicaView`). Ages are seconds."""

    @property
    def master(self) -> str | None:
        """Where the master listens for slaves, as far as that is known."""
        ...

    @property
    def state(self) -> LinkState:
        """The state of the link."""
        ...

    @property
    def reason(self) -> str:
        """Why it is in this state."""
        ...

    @property
    def max_offset(self) -> int:
        """Where the own log ends."""
        ...

    @property
    def bytes_per_s(self) -> int:
        """How fast it grows."""
        ...

    @property
    def read_age_s(self) -> float | None:
        """Time since the master sent anything."""
        ...

    @property
    def write_age_s(self) -> float | None:
        """Time since the last report."""
        ...

    @property
    def reconnects(self) -> int:
        """Connections after the first one."""
        ...


@attrs.frozen
class SlaveSide:
    """What a slave has to tell and can be told."""

    view: Callable[[], Copying]
    #: The master's address for slaves and, if it was told, the one for clients are these now.
    adopt: Callable[[str, str | None], None]
    #: Where the master's log ended when it was asked last; None if it cannot be asked.
    master_end: Callable[[], int | None] = lambda: None
    #: How it goes with the tables that follow the master's.
    tables: Callable[[], Sequence[ItemView]] = tuple


class HARuntime:
    """See the module. `ha_address` and `address` are what others are told of this broker, ``host:port``."""

    def __init__(
        self,
        settings: HASettings,
        store: Store,
        primary: Primary,
        clock: Clock,
        *,
        ha_address: str,
        address: str,
        slave: SlaveSide | None = None,
    ) -> None:
        self._settings = settings
        self._store = store
        self._primary = primary
        self._clock = clock
        self._ha_address = ha_address
        self._address = address
        self._slave = slave

    def fill(self, table: RequestTable) -> None:
        """Register the request codes of this family."""
        table.add(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHAInfoRequest, self.exchange)
        table.add(RequestCode.GET_BROKER_HA_STATUS, None, self.status)
        table.add(
            RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffsetRequest, self.reset_flushed
        )

    # -- requests ----------------------------------------------------------------------------------------------

    def exchange(self, _: Call, request: ExchangeHAInfoRequest) -> Reply:
        """EXCHANGE_BROKER_HA_INFO (906): a slave asks the master for its addresses, or is told them."""
        told = request.master_ha_address
        if told is not None:
            if self._slave is not None:
                self._slave.adopt(told, request.master_address)
            else:
                log.warning("told to follow the master %s, but this broker is a master", told)
            return Reply()
        if self._slave is not None:
            return Reply()
        return Reply(
            header=ExchangeHAInfoReply(
                master_ha_address=self._ha_address,
                master_flush_offset=self._primary.began_at,
                master_address=self._address,
            )
        )

    def status(self, call: Call, _: None) -> Reply:
        """GET_BROKER_HA_STATUS (907). A slave of ours that suspects to be ahead says how far its log goes (C062)."""
        told = call.command.ext.get("slaveLogEnd", "")
        if self._slave is None and told.isascii() and told.isdecimal() and len(told) < LONG_DIGITS:
            self._primary.told_ahead(call.peer.address, int(told))
        return Reply(body=bodies.encode(self.info()))

    def reset_flushed(self, _: Call, request: ResetMasterFlushOffsetRequest) -> Reply:
        """RESET_MASTER_FLUSH_OFFSET (908): a slave notes what its master has on disk; nothing here acts on it."""
        if self._slave is not None:
            checkpoint = self._store.parts.checkpoint
            checkpoint.value = attrs.evolve(
                checkpoint.value, master_flushed_offset=request.master_flush_offset
            )
        return Reply()

    def info(self) -> HARuntimeInfo:
        """What 907 tells."""
        if self._slave is not None:
            return HARuntimeInfo(ha_client_runtime_info=self._client_info(self._slave.view()))
        slaves = self._primary.slaves
        return HARuntimeInfo(
            master=True,
            master_commit_log_max_offset=self._store.log.written,
            in_sync_slave_nums=sum(slave.in_sync for slave in slaves),
            ha_connection_info=tuple(map(_connection_info, slaves)),
        )

    def _client_info(self, view: Copying) -> HAClientRuntimeInfo:
        return HAClientRuntimeInfo(
            master_addr=view.master,
            transferred_byte_in_second=view.bytes_per_s,
            max_offset=view.max_offset,
            last_read_timestamp=self._ms_ago(view.read_age_s),
            last_write_timestamp=self._ms_ago(view.write_age_s),
            master_flush_offset=self._store.parts.checkpoint.value.master_flushed_offset,
            activated=view.state is LinkState.TRANSFER,
        )

    def _ms_ago(self, age_s: float | None) -> int:
        return 0 if age_s is None else max(0, self._clock.now_ms() - round(1000 * age_s))

    # -- texts -------------------------------------------------------------------------------------------------

    def rows(self) -> Mapping[str, str]:
        """Rows of GET_BROKER_RUNTIME_INFO (28): the role, and how replication goes."""
        told = {"brokerRole": self._settings.role.value}
        if self._slave is not None:
            told |= self._copying_rows(self._slave)
        slaves = self._primary.slaves
        if self._slave is None or slaves:
            told["haSlaves"] = slaves_text(slaves)
        if self._primary.ahead_count:
            told["haSlavesAhead"] = f"refused {self._primary.ahead_count} times"  # case C062
        return told

    def _copying_rows(self, slave: SlaveSide) -> dict[str, str]:
        view, end = slave.view(), slave.master_end()
        told = {
            "haMaster": view.master or "not known yet",
            "haState": f"{view.state.name}: {view.reason}" if view.reason else view.state.name,
            "haTransfer": f"{view.bytes_per_s} B/s, {view.reconnects} reconnects",
        }
        if view.read_age_s is not None:
            told["haTransfer"] += f", heard from {view.read_age_s:.1f} s ago"
        if end is not None:
            told["haLag"] = f"{max(0, end - view.max_offset)} bytes"
        tables = slave.tables()
        if tables:
            told["haTables"] = tables_text(tables)
        return told


def _connection_info(slave: SlaveView) -> HAConnectionRuntimeInfo:
    return HAConnectionRuntimeInfo(
        addr=str(slave.address),
        slave_ack_offset=slave.reported if slave.ahead else slave.ack_offset,
        diff=slave.behind_bytes,
        in_sync=slave.in_sync,
        transferred_byte_in_second=slave.transferred_per_s,
        transfer_from_where=slave.transfer_from,
        slave_ahead=slave.ahead,
        slave_too_old=slave.too_old,
    )


def slaves_text(slaves: tuple[SlaveView, ...]) -> str:
    """How many there are, and how each does."""
    if not slaves:
        return "none"
    connected = [slave for slave in slaves if not slave.ahead]
    shown = "; ".join(f"{slave.address} {slave.text}" for slave in slaves[:SHOWN])
    more = f"; and {len(slaves) - SHOWN} more" if len(slaves) > SHOWN else ""
    in_sync = sum(slave.in_sync for slave in slaves)
    return f"{len(connected)} connected, {in_sync} in sync: {shown}{more}"


def tables_text(tables: Sequence[ItemView]) -> str:
    """How many follow, how old the oldest copy is, and what is wrong with the others."""
    good = [table for table in tables if table.state in (ItemState.GOOD, ItemState.WAITING)]
    ages_s = [table.age_s for table in tables if table.age_s is not None]
    oldest = f", the oldest {max(ages_s):.1f} s ago" if ages_s else ""
    wrong = [
        f"{table.name} {table.state.value}" + (f" ({table.last_error})" if table.last_error else "")
        for table in tables
        if table not in good
    ]
    return "; ".join([f"{len(good)} of {len(tables)} copied{oldest}", *wrong])
