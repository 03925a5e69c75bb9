"""Settings of replication: the role of a broker, what its stream does, and how many replicas a send waits for.

Defaults are those of Apache RocketMQ 5.4.0 (MessageStoreConfig, BrokerConfig), except where the text of a setting says
otherwise.
"""

from __future__ import annotations

import enum

import attrs

from trio_mq.config import kinds
from trio_mq.config.addresses import Address
from trio_mq.config.declare import setting
from trio_mq.config.kinds import FLAG, integer

MIB = 1024 * 1024


class BrokerRole(enum.Enum):
    """What a broker is to the others of its name."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@attrs.frozen(kw_only=True)
class HASettings:
    """Replication between the brokers of one name."""

    role: BrokerRole = setting(  # noqa: RUF009 - declares a field
        "brokerRole",
        kinds.choice(BrokerRole),
        BrokerRole.ASYNC_MASTER,
        "ASYNC_MASTER, SYNC_MASTER (sends wait for `inSyncReplicas`), or SLAVE, which copies the "
        "log of the master of its name and needs a `brokerId` above 0.",
    )
    listen_port: int = setting(
        "haListenPort",
        kinds.PORT,
        0,
        "Port that slaves connect to. Whoever reaches it can read the whole log: keep it behind "
        "a firewall.",
        default_text="`listenPort` + 1",
    )
    bind_address: str | None = setting(
        "haBindAddress",
        kinds.OPTIONAL_LISTEN_HOST,
        None,
        "Address to listen on for slaves. Apache listens on all.",
        default_text="`bindAddress`",
    )
    advertise_host: str | None = setting(
        "brokerIP2",
        kinds.REACHABLE_HOST,
        None,
        "Host that slaves are told to connect to.",
        default_text="the host that clients are told",
    )
    master_address: Address | None = setting(  # noqa: RUF009 - declares a field
        "haMasterAddress",
        kinds.OPTIONAL_ADDRESS,
        None,
        "For a slave: where the master listens for slaves (`HOST:PORT`); name servers are not asked then.",
        default_text="what name servers tell",
    )
    send_heartbeat_interval_ms: int = setting(
        "haSendHeartbeatInterval",
        integer(1),
        5000,
        "An idle stream carries a heartbeat this often, in both directions (ms).",
    )
    housekeeping_interval_ms: int = setting(
        "haHousekeepingInterval",
        integer(1),
        20_000,
        "A stream from which nothing has come for longer is closed (ms).",
    )
    transfer_batch_size: int = setting(
        "haTransferBatchSize",
        integer(1, 4 * MIB - 12),
        32 * 1024,
        "Most bytes of the log in one piece of the stream. Apache's slaves take 4 MiB less 12 bytes.",
    )
    max_gap_not_in_sync: int = setting(
        "haMaxGapNotInSync",
        integer(0, kinds.LONG_MAX),
        256 * MIB,
        "A slave that is further behind does not count as in sync (bytes).",
        aliases=("haSlaveFallbehindMax",),
    )
    flow_control_enable: bool = setting(
        "haFlowControlEnable", FLAG, False, "Whether the stream to each slave is limited."
    )
    max_transfer_byte_in_second: int = setting(
        "maxHaTransferByteInSecond",
        integer(1, kinds.LONG_MAX),
        100 * MIB,
        "Most bytes per second to each slave, if that is limited.",
    )
    replicate_from_start: bool = setting(
        "haReplicateFromStart",
        FLAG,
        False,
        "Whether an empty slave gets the whole log of this master. Like Apache's, a master "
        "otherwise begins with the newest file of its log.",
        aliases=("haFullSyncForEmptySlave",),
    )
    slave_timeout_ms: int = setting(
        "slaveTimeout",
        integer(1),
        2500,
        "A send that waits longer for replicas is answered with FLUSH_SLAVE_TIMEOUT (ms). Apache: "
        "3000, which is also how long its clients wait.",
    )
    in_sync_replicas: int = setting(
        "inSyncReplicas",
        integer(0, 1000),
        1,
        "With SYNC_MASTER, how many brokers have to have a message before its send is answered, "
        "the master included: 2 waits for one slave.",
    )
    min_in_sync_replicas: int = setting(
        "minInSyncReplicas",
        integer(1, 1000),
        1,
        "With `enableAutoInSyncReplicas`, the least that `inSyncReplicas` is lowered to while slaves "
        "are away; with fewer, sends are refused.",
    )
    all_ack_in_sync_state_set: bool = setting(
        "allAckInSyncStateSet",
        FLAG,
        False,
        "Whether a send waits for all slaves that are in sync. Apache looks at it in controller mode only; "
        "here it holds for SYNC_MASTER.",
    )
    enable_auto_in_sync_replicas: bool = setting(
        "enableAutoInSyncReplicas",
        FLAG,
        False,
        "Whether fewer replicas are waited for while slaves are away. Needs `enableSlaveActingMaster`.",
    )
    slave_read_enable: bool = setting(
        "slaveReadEnable",
        FLAG,
        False,
        "On a slave: whether it answers pulls. On a master: whether consumers that are far behind "
        "are sent to a slave.",
    )
    offset_check_in_slave: bool = setting(
        "offsetCheckInSlave",
        FLAG,
        False,
        "Whether a slave corrects the offset of a pull that is outside of its queue.",
    )
    enable_slave_acting_master: bool = setting(
        "enableSlaveActingMaster",
        FLAG,
        False,
        "Whether the slave with the smallest id answers for a lost master: reads and offsets, no sends. "
        "Name servers need `supportActingMaster`.",
    )
    broker_heartbeat_interval_ms: int = setting(
        "brokerHeartbeatInterval",
        integer(10),
        1000,
        "With `enableSlaveActingMaster`, how often name servers hear that this broker lives (ms).",
    )
    broker_not_active_timeout_ms: int = setting(
        "brokerNotActiveTimeoutMillis",
        integer(10),
        10_000,
        "With `enableSlaveActingMaster`, after how long a silent broker counts as gone (ms).",
    )
    cut_when_ahead: bool = setting(
        "haCutWhenAhead",
        FLAG,
        False,
        "Whether a slave whose log has more than its master's gives up what is more (it is kept in "
        "`quarantine`). Otherwise it stops copying until somebody decides.",
    )

    @property
    def is_slave(self) -> bool:
        """Whether this broker copies another one."""
        return self.role is BrokerRole.SLAVE
