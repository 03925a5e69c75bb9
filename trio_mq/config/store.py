"""Settings of the store: where it is, how large its files are, when they are synced and when they
go.

Defaults are those of Apache RocketMQ 5.4.0 (MessageStoreConfig), except where the text of a setting
says otherwise. Sizes and file names are described by the page on file formats.
"""

from __future__ import annotations

import enum
import os
from typing import Final

import attrs

from trio_mq.config import kinds
from trio_mq.config.declare import setting
from trio_mq.config.kinds import FLAG, delay_levels_ms, integer

MIB: Final = 1024 * 1024
CQ_ENTRY_BYTES: Final = 20


class FlushDiskType(enum.Enum):
    """When a send is answered: after the sync that covers it, or before."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@attrs.frozen(kw_only=True)
class StoreSettings:
    """Where the store is, how large its files are, when they are synced and when they go."""

    path: str = setting(
        "storePathRootDir",
        kinds.PATH,
        "./trio-mq-store",
        "Directory of the store; it is created. Apache's default is `store` in the home directory.",
    )
    commit_log_path: str | None = setting(
        "storePathCommitLog",
        kinds.COMMIT_LOG_PATH,
        None,
        "Directory of the commit log, for a disk of its own.",
        default_text="`commitlog` in the store",
    )
    mapped_file_size_commit_log: int = setting(
        "mappedFileSizeCommitLog",
        integer(4096),
        1024 * MIB,
        "Bytes of a commit log file. It cannot be changed for an existing store.",
        aliases=("mapedFileSizeCommitLog",),
    )
    mapped_file_size_consume_queue: int = setting(
        "mappedFileSizeConsumeQueue",
        integer(CQ_ENTRY_BYTES, 2_000_000_000),
        300_000 * CQ_ENTRY_BYTES,
        "Bytes of a consume queue file, rounded up to whole entries of 20. Not to be changed for "
        "an existing store.",
        aliases=("mapedFileSizeConsumeQueue",),
    )
    mapped_file_size_batch_consume_queue: int = setting(
        "mapperFileSizeBatchConsumeQueue",
        integer(46),
        300_000 * 46,
        "Bytes of a batch consume queue file. Not to be changed for an existing store.",
        aliases=("mappedFileSizeBatchConsumeQueue",),
    )
    message_index_enable: bool = setting(
        "messageIndexEnable",
        FLAG,
        True,
        "Whether messages can be found by key: writes index files.",
    )
    max_hash_slot_num: int = setting(
        "maxHashSlotNum",
        integer(1),
        5_000_000,
        "Hash slots of an index file. Not to be changed for an existing store.",
    )
    max_index_num: int = setting(
        "maxIndexNum",
        integer(2),
        20_000_000,
        "Entries of an index file. Not to be changed for an existing store.",
    )
    max_message_size: int = setting(
        "maxMessageSize",
        integer(1, 16 * MIB),
        4 * MIB,
        "Longest body in bytes; a longer one is refused.",
    )
    check_crc_on_recover: bool = setting(
        "checkCRCOnRecover",
        FLAG,
        True,
        "Whether a start compares the checksums of the last messages.",
    )
    use_optimized_recovery: bool = setting(
        "useOptimizedRecovery",
        FLAG,
        True,
        "Whether a start reads the log in windows of 64 KiB instead of record by record. The result is "
        "the same.",
        environment="ROCKETMQ_USE_OPTIMIZED_RECOVERY",
    )
    recover_concurrently: bool = setting(
        "recoverConcurrently",
        FLAG,
        True,
        "Whether a start looks at many queues at the same time. The result is the same.",
    )
    flush_disk_type: FlushDiskType = setting(  # noqa: RUF009 - declares a field
        "flushDiskType",
        kinds.choice(FlushDiskType),
        FlushDiskType.ASYNC_FLUSH,
        "SYNC_FLUSH answers a send after its record is synced; ASYNC_FLUSH syncs in the "
        "background.",
    )
    sync_flush_timeout_ms: int = setting(
        "syncFlushTimeout",
        integer(1),
        5000,
        "A send that waits longer for its sync is answered with a time-out (ms).",
    )
    flush_interval_commit_log_ms: int = setting(
        "flushIntervalCommitLog",
        integer(1),
        500,
        "How often the commit log is synced with ASYNC_FLUSH (ms).",
    )
    flush_commit_log_thorough_interval_ms: int = setting(
        "flushCommitLogThoroughInterval",
        integer(1),
        10_000,
        "How often it is synced however little is new (ms).",
    )
    flush_commit_log_least_pages: int = setting(
        "flushCommitLogLeastPages",
        integer(0),
        4,
        "Pages of 4096 bytes that must be new for a sync in between.",
    )
    flush_interval_consume_queue_ms: int = setting(
        "flushIntervalConsumeQueue", integer(1), 1000, "How often consume queues are synced (ms)."
    )
    file_reserved_time_hours: int = setting(
        "fileReservedTime",
        integer(1, what="whole hours"),
        72,
        "Files older than this are deleted (hours).",
    )
    delete_when: tuple[int, ...] = setting(
        "deleteWhen",
        kinds.HOURS,
        (4,),
        "Hours of the day, in the time zone of the process, when old files go.",
    )
    clean_resource_interval_ms: int = setting(
        "cleanResourceInterval",
        integer(10),
        10_000,
        "How often age of files and use of the disk are looked at (ms).",
    )
    delete_file_batch_max: int = setting(
        "deleteFileBatchMax", integer(1), 10, "Most files of the commit log that one look deletes."
    )
    disk_max_used_space_ratio: int = setting(
        "diskMaxUsedSpaceRatio",
        integer(0, 100, what="percent", clamp=(10, 95)),
        75,
        "Use of the disk (percent) from which old files go at any hour.",
    )
    disk_space_clean_forcibly_ratio: int = setting(
        "diskSpaceCleanForciblyRatio",
        integer(0, 100, what="percent", clamp=(1, 85)),
        85,
        "Use of the disk (percent) from which files go whatever their age. Apache takes less "
        "than 30 as 30.",
    )
    disk_space_warning_level_ratio: int = setting(
        "diskSpaceWarningLevelRatio",
        integer(0, 100, what="percent", clamp=(1, 90)),
        90,
        "Use of the disk (percent) from which sends are refused. Apache takes less than 35 as 35.",
    )
    clean_file_forcibly_enable: bool = setting(
        "cleanFileForciblyEnable",
        FLAG,
        True,
        "Whether files may go before their age when the disk is nearly full.",
    )
    message_delay_level: str = setting(
        "messageDelayLevel",
        kinds.DELAY_LEVELS,
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "Delay of each level; retries use the levels from 3 on.",
    )
    flush_delay_offset_interval_ms: int = setting(
        "flushDelayOffsetInterval",
        integer(10),
        10_000,
        "How often the progress of the delay levels is written to delayOffset.json (ms).",
    )
    timer_wheel_enable: bool = setting(
        "timerWheelEnable",
        FLAG,
        True,
        "Whether messages can wait for any time (TIMER_DELIVER_MS and its kin), and be popped.",
    )
    timer_precision_ms: int = setting(
        "timerPrecisionMs",
        integer(100, 60_000),
        1000,
        "Milliseconds that a slot of the timer wheel covers. Not to be changed for an existing store.",
    )
    timer_max_delay_sec: int = setting(
        "timerMaxDelaySec",
        integer(1, 2_147_483),
        259_200,
        "Longest time that a message may wait for a timer, in seconds.",
    )
    timer_roll_window_slot: int = setting(
        "timerRollWindowSlot",
        integer(0),
        172_800,
        "Slots of the timer wheel that a message is put ahead at once; a longer wait takes several rounds.",
    )
    timer_flush_interval_ms: int = setting(
        "timerFlushIntervalMs",
        integer(10),
        1000,
        "How often the timer's files are synced while something changes (ms).",
    )
    timer_congest_num_each_slot: int = setting(
        "timerCongestNumEachSlot",
        integer(1),
        2_147_483_647,
        "Messages that may wait for one slot; more are refused, at random up to twice as many, then always.",
    )
    timer_stop_enqueue: bool = setting(
        "timerStopEnqueue", FLAG, False, "Whether messages stay in the timer's queue for now."
    )
    timer_stop_dequeue: bool = setting(
        "timerStopDequeue", FLAG, False, "Whether no timer fires for now."
    )
    mapped_file_size_timer_log: int = setting(
        "mappedFileSizeTimerLog",
        integer(1024, 1024 * MIB),
        100 * MIB,
        "Bytes of each file of the timer log. Not to be changed for an existing store.",
    )
    append_topic_for_timer_delete_key: bool = setting(
        "appendTopicForTimerDeleteKey",
        FLAG,
        False,
        "Whether a recall takes back only messages of its own topic; else any with its id at its time.",
    )
    enable_lmq: bool = setting(
        "enableLmq",
        FLAG,
        False,
        "Whether a message may be in further queues (`%LMQ%...`) that its property INNER_MULTI_DISPATCH names.",
    )
    enable_multi_dispatch: bool = setting(
        "enableMultiDispatch",
        FLAG,
        False,
        "Whether such queues get entries, so that they can be read. Needs `enableLmq`.",
    )
    max_lmq_consume_queue_num: int = setting(
        "maxLmqConsumeQueueNum", integer(1), 20_000, "Most queues of that kind."
    )
    max_transfer_bytes_in_memory: int = setting(
        "maxTransferBytesOnMessageInMemory",
        integer(1),
        256 * 1024,
        "Most bytes of one pull of recent messages.",
    )
    max_transfer_count_in_memory: int = setting(
        "maxTransferCountOnMessageInMemory",
        integer(1),
        32,
        "Most messages of one pull of recent messages.",
    )
    max_transfer_bytes_in_disk: int = setting(
        "maxTransferBytesOnMessageInDisk",
        integer(1),
        64 * 1024,
        "Most bytes of one pull of old messages.",
    )
    max_transfer_count_in_disk: int = setting(
        "maxTransferCountOnMessageInDisk",
        integer(1),
        8,
        "Most messages of one pull of old messages.",
    )
    access_message_in_memory_max_ratio: int = setting(
        "accessMessageInMemoryMaxRatio",
        integer(0, 100, what="percent"),
        40,
        "Share of the machine's memory that counts as holding recent messages (percent).",
    )
    default_query_max_num: int = setting(
        "defaultQueryMaxNum",
        integer(1),
        32,
        "Most messages that a query by key returns when it names no limit.",
    )
    max_msgs_num_batch: int = setting(
        "maxMsgsNumBatch",
        integer(1),
        64,
        "Most messages that a query by key returns, whatever it asks for.",
    )
    quarantine_max_bytes: int = setting(
        "quarantineMaxBytes",
        integer(0, kinds.LONG_MAX),
        1024 * MIB,
        "Most bytes that `quarantine` in the store keeps of what starts cut from the log; the oldest "
        "go first. With 0 nothing is kept.",
    )

    @property
    def commit_log_dir(self) -> str:
        """Directory of the commit log."""
        return self.commit_log_path or os.path.join(self.path, "commitlog")

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of each level in ms; the first is level 1."""
        return delay_levels_ms(self.message_delay_level)
