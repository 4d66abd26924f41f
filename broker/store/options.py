"""The options of a store, each with RocketMQ's key beside it: the part of MessageStoreConfig that has a meaning here.

Values come from `.properties` text and are checked when they are read. Defaults are RocketMQ's but where a comment
says otherwise. Keys of other parts, and tuning keys without a meaning here, are not an error: see `KEYS`.
"""

import dataclasses
import enum
import os
from collections.abc import Mapping
from typing import Any, Self

from cometmq.broker.store.errors import OptionError
from cometmq.options import INT_MAX, ConfigError, check_range, option, options_of, parse, text_of

KIB, MIB, GIB = 1024, 1024**2, 1024**3

#: Bytes of a unit of a consume queue, and of a batch consume queue.
UNIT_SIZE, BATCH_UNIT_SIZE = 20, 46


class FlushDiskType(enum.StrEnum):
    """When a message is acknowledged: as soon as it is written, or when it is on the disk."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.StrEnum):
    """Whether the store takes messages of its own or copies those of a master."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


def _option(
    key: str,
    default: Any,
    *,
    low: int = 0,
    high: int = INT_MAX,
    dynamic: bool = False,
    effect: bool = True,
    shown: bool = True,
) -> Any:
    """An option with its key and, for a number, its range. A dynamic one may change while the store runs."""
    return option(key, default, low=low, high=high, dynamic=dynamic, effect=effect, shown=shown)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store works. Times are milliseconds, sizes bytes, unless the name says otherwise."""

    # Where
    store_path_root_dir: str = _option("storePathRootDir", "")
    #: Several paths are separated by commas; empty: `commitlog` under the root.
    store_path_commit_log: str = _option("storePathCommitLog", "")

    # Files. Nothing in the files tells their geometry: it must be the same as when they were written.
    mapped_file_size_commit_log: int = _option("mappedFileSizeCommitLog", GIB, low=1)
    mapped_file_size_consume_queue: int = _option("mappedFileSizeConsumeQueue", 300_000 * UNIT_SIZE, low=1)
    enable_consume_queue_ext: bool = _option("enableConsumeQueueExt", False)
    mapped_file_size_consume_queue_ext: int = _option("mappedFileSizeConsumeQueueExt", 48 * MIB, low=64)
    #: Bits of the filter map of an extension unit; the broker sets it from its bloom filter.
    bit_map_length_consume_queue_ext: int = _option("bitMapLengthConsumeQueueExt", 64, effect=False)
    #: RocketMQ's spelling.
    mapper_file_size_batch_consume_queue: int = _option(
        "mapperFileSizeBatchConsumeQueue", 300_000 * BATCH_UNIT_SIZE, low=BATCH_UNIT_SIZE
    )
    max_hash_slot_num: int = _option("maxHashSlotNum", 5_000_000, low=1)
    max_index_num: int = _option("maxIndexNum", 5_000_000 * 4, low=2)
    message_index_enable: bool = _option("messageIndexEnable", True)
    message_index_safe: bool = _option("messageIndexSafe", False)
    #: Open files of consume queues that are kept; the least used ones are closed. A key of our own.
    max_open_consume_queue_files: int = _option("maxOpenConsumeQueueFiles", 1024, low=1, shown=False)
    #: Blocks that are reserved ahead of the writer at a time. A key of our own.
    commit_log_reserve_step: int = _option("commitLogReserveStep", 16 * MIB, shown=False)

    # Role
    broker_role: BrokerRole = _option("brokerRole", BrokerRole.ASYNC_MASTER)  # noqa: RUF009
    duplication_enable: bool = _option("duplicationEnable", False)
    offset_check_in_slave: bool = _option("offsetCheckInSlave", False, dynamic=True)
    slave_timeout: int = _option("slaveTimeout", 3000, effect=False)
    total_replicas: int = _option("totalReplicas", 1, low=1, effect=False)
    in_sync_replicas: int = _option("inSyncReplicas", 1, low=1, effect=False)
    min_in_sync_replicas: int = _option("minInSyncReplicas", 1, low=1, effect=False)

    # Flush
    flush_disk_type: FlushDiskType = _option("flushDiskType", FlushDiskType.ASYNC_FLUSH)  # noqa: RUF009
    flush_interval_commit_log: int = _option("flushIntervalCommitLog", 500, low=1, dynamic=True)
    #: RocketMQ has 4: fewer dirty pages wait for the thorough interval, 10 s. Here all of them are flushed each time.
    flush_commit_log_least_pages: int = _option("flushCommitLogLeastPages", 0, dynamic=True)
    flush_commit_log_thorough_interval: int = _option("flushCommitLogThoroughInterval", 10_000, dynamic=True)
    flush_interval_consume_queue: int = _option("flushIntervalConsumeQueue", 1000, low=1, dynamic=True)
    flush_consume_queue_least_pages: int = _option("flushConsumeQueueLeastPages", 2, dynamic=True)
    flush_consume_queue_thorough_interval: int = _option("flushConsumeQueueThoroughInterval", 60_000, dynamic=True)
    sync_flush_timeout: int = _option("syncFlushTimeout", 5000, low=1, dynamic=True)
    put_message_timeout: int = _option("putMessageTimeout", 8000, low=1, dynamic=True)
    #: RocketMQ's spelling.
    os_page_cache_busy_time_out_mills: int = _option("osPageCacheBusyTimeOutMills", 1000, dynamic=True)
    read_uncommitted: bool = _option("readUnCommitted", False)

    # Messages
    max_message_size: int = _option("maxMessageSize", 4 * MIB, dynamic=True)
    check_crc_on_recover: bool = _option("checkCRCOnRecover", True)
    enabled_append_prop_crc: bool = _option("enabledAppendPropCRC", False)
    force_verify_prop_crc: bool = _option("forceVerifyPropCRC", False)
    auto_message_version_on_topic_len: bool = _option("autoMessageVersionOnTopicLen", True, effect=False)
    enable_lmq: bool = _option("enableLmq", False)
    enable_multi_dispatch: bool = _option("enableMultiDispatch", False)
    max_lmq_consume_queue_num: int = _option("maxLmqConsumeQueueNum", 20_000, effect=False)
    message_delay_level: str = _option(
        "messageDelayLevel", "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    )
    flush_delay_offset_interval: int = _option("flushDelayOffsetInterval", 10_000, low=1, dynamic=True)

    # Timers
    timer_wheel_enable: bool = _option("timerWheelEnable", True, effect=False)
    timer_precision_ms: int = _option("timerPrecisionMs", 1000, low=1, effect=False)
    timer_max_delay_sec: int = _option("timerMaxDelaySec", 3 * 24 * 3600, effect=False)
    timer_roll_window_slot: int = _option("timerRollWindowSlot", 2 * 24 * 3600, effect=False)
    mapped_file_size_timer_log: int = _option("mappedFileSizeTimerLog", 100 * MIB, low=1, effect=False)

    # Reading. RocketMQ's limits are 32 messages or 256 KiB hot, 8 or 64 KiB cold: a client that asks for more gets
    # more here, and one that asks for 32 still gets 32.
    max_transfer_bytes_on_message_in_memory: int = _option(
        "maxTransferBytesOnMessageInMemory", 4 * MIB, low=1, dynamic=True
    )
    max_transfer_count_on_message_in_memory: int = _option(
        "maxTransferCountOnMessageInMemory", 4096, low=1, dynamic=True
    )
    max_transfer_bytes_on_message_in_disk: int = _option("maxTransferBytesOnMessageInDisk", MIB, low=1, dynamic=True)
    max_transfer_count_on_message_in_disk: int = _option("maxTransferCountOnMessageInDisk", 4096, low=1, dynamic=True)
    access_message_in_memory_max_ratio: int = _option("accessMessageInMemoryMaxRatio", 40, high=100, dynamic=True)
    max_filter_message_size: int = _option("maxFilterMessageSize", 16_000, low=UNIT_SIZE, dynamic=True)
    travel_cq_file_num_when_get_message: int = _option("travelCqFileNumWhenGetMessage", 1, low=1, dynamic=True)
    max_msgs_num_batch: int = _option("maxMsgsNumBatch", 64, low=1, dynamic=True)
    default_query_max_num: int = _option("defaultQueryMaxNum", 32, low=1, dynamic=True)
    pull_batch_max_message_count: int = _option("pullBatchMaxMessageCount", 160, low=1, effect=False)

    # Cleaning
    #: Hours of the day, local time, separated by `;`.
    delete_when: str = _option("deleteWhen", "04", dynamic=True)
    #: Hours.
    file_reserved_time: int = _option("fileReservedTime", 72, dynamic=True)
    clean_resource_interval: int = _option("cleanResourceInterval", 10_000, low=1)
    disk_max_used_space_ratio: int = _option("diskMaxUsedSpaceRatio", 75, dynamic=True)
    disk_space_clean_forcibly_ratio: int = _option("diskSpaceCleanForciblyRatio", 85, dynamic=True)
    disk_space_warning_level_ratio: int = _option("diskSpaceWarningLevelRatio", 90, dynamic=True)
    clean_file_forcibly_enable: bool = _option("cleanFileForciblyEnable", True, dynamic=True)
    delete_file_batch_max: int = _option("deleteFileBatchMax", 10, low=1, dynamic=True)
    delete_commit_log_files_interval: int = _option("deleteCommitLogFilesInterval", 100, dynamic=True)
    delete_consume_queue_files_interval: int = _option("deleteConsumeQueueFilesInterval", 100, dynamic=True)
    #: RocketMQ's spelling.
    destroy_maped_file_interval_forcibly: int = _option("destroyMapedFileIntervalForcibly", 120_000, dynamic=True)
    #: RocketMQ's spelling.
    redelete_hanged_file_interval: int = _option("redeleteHangedFileInterval", 120_000, effect=False)

    def __post_init__(self) -> None:
        try:
            for field in dataclasses.fields(self):
                if type(value := getattr(self, field.name)) is int:
                    check_range(field, value)
        except ConfigError as error:
            raise OptionError(error.key, error.value, error.expected) from None
        _hours(self.delete_when)

    # What follows from the values

    @property
    def root(self) -> str:
        """The directory of the store: `storePathRootDir`, or `store` in the home directory."""
        return self.store_path_root_dir or os.path.join(os.path.expanduser("~"), "store")

    def commit_log_folder(self, root: str) -> str:
        """Where the log of the store at `root` is. RocketMQ can spread one over several paths; we refuse that."""
        folder = self.store_path_commit_log or f"{root}/commitlog"
        if "," in folder:
            raise OptionError("storePathCommitLog", folder, "one path: a log over several is not supported")
        return folder

    @property
    def consume_queue_file_size(self) -> int:
        """Rounded up to whole units."""
        return -(-self.mapped_file_size_consume_queue // UNIT_SIZE) * UNIT_SIZE

    @property
    def index_file_size(self) -> int:
        return 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of the day at which expired files are removed."""
        return _hours(self.delete_when)

    @property
    def disk_max_used_ratio(self) -> float:
        """Above this, expired files are removed at any hour."""
        return _clamp(self.disk_max_used_space_ratio, 10, 95)

    @property
    def disk_clean_forcibly_ratio(self) -> float:
        """Above this, the oldest files are removed although they have not expired."""
        return _clamp(self.disk_space_clean_forcibly_ratio, 30, 85)

    @property
    def disk_warning_ratio(self) -> float:
        """Above this, no message is taken."""
        return _clamp(self.disk_space_warning_level_ratio, 35, 90)

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    # Properties

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """The options that `.properties` text gives. Keys of other parts are passed over."""
        return cls().updated(properties)

    def updated(self, properties: Mapping[str, str]) -> Self:
        """The same options with some changed. Whether a key may change on the run is asked elsewhere."""
        changes = {}
        try:
            for key, text in properties.items():
                if (field := KEYS.get(key)) is not None:
                    changes[field.name] = parse(field, text.strip())
        except ConfigError as error:
            raise OptionError(error.key, error.value, error.expected) from None
        # A size below 10 is what RocketMQ takes for a slip of the pen.
        if changes.get("max_message_size", 10) < 10:
            del changes["max_message_size"]
        return dataclasses.replace(self, **changes)

    def to_properties(self) -> dict[str, str]:
        """All keys with their values, as the broker shows them."""
        return {key: text_of(getattr(self, field.name)) for key, field in KEYS.items()}


#: RocketMQ's key -> the option.
KEYS: Mapping[str, "dataclasses.Field[Any]"] = options_of(StoreOptions)
#: Keys whose value may change while the store runs.
DYNAMIC_KEYS = frozenset(key for key, field in KEYS.items() if field.metadata["dynamic"])


def _hours(text: str) -> frozenset[int]:
    hours = set()
    for part in text.split(";"):
        if not part.strip():
            continue
        if not (part.strip().isascii() and part.strip().isdigit() and int(part) < 24):
            raise OptionError("deleteWhen", text, "hours from 00 to 23, separated by ;")
        hours.add(int(part))
    return frozenset(hours)


def _clamp(percent: int, low: int, high: int) -> float:
    return min(max(percent, low), high) / 100
