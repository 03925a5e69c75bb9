"""The body that tells how replication goes.

In and out: see :mod:`.converter`. Shapes are those of the peers' ``HARuntimeInfo`` and its inner classes, plus the two
fields that say so. Offsets and differences are bytes of the log, rates bytes per second, times ms since the epoch.
"""

from __future__ import annotations

import attrs

from trio_mq.protocol.values import value


@value
class HAConnectionRuntimeInfo:
    """One slave, as its master sees it."""

    addr: str
    slave_ack_offset: int = 0
    diff: int = 0
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0
    #: Not the peers': its log has more than the master's, and it is refused.
    slave_ahead: bool = False
    #: Not the peers': it lacks what the master's log does not have any more.
    slave_too_old: bool = False


@value
class HAClientRuntimeInfo:
    """What a slave says of itself. `activated` is whether it copies now."""

    master_addr: str | None = None
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    activated: bool = False


@value
class HARuntimeInfo:
    """Answer to GET_BROKER_HA_STATUS (907). `in_sync_slave_nums` does not count the master."""

    master: bool = False
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: tuple[HAConnectionRuntimeInfo, ...] = ()
    ha_client_runtime_info: HAClientRuntimeInfo = attrs.field(factory=HAClientRuntimeInfo)
