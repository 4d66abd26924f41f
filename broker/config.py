"""The configuration of a broker: every key of RocketMQ's broker.conf, its default and what it does here.

The values are frozen; an update makes a new object. The store's keys are `config.store`; keys that have no meaning
here at all are a table of text in `config_keys`. Attributes are the snake case of the keys. Mirrors BrokerConfig,
NettyServerConfig and MessageStoreConfig, which RocketMQ fills from one `.properties` file.
"""

import dataclasses
import functools
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from cometmq.broker.config_keys import WITHOUT_MEANING
from cometmq.broker.store.errors import OptionError
from cometmq.broker.store.options import KEYS as STORE_KEYS
from cometmq.broker.store.options import BrokerRole, StoreOptions
from cometmq.options import ConfigError, ConfigRefused, Options, default_of, option, options_of
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.errors import ProtocolError

__all__ = ["BrokerConfig", "ConfigError", "ConfigRefused", "from_sources"]

LONG_MAX = 2**63 - 1

#: Keys of other versions of RocketMQ that name a file, a class, a command or another machine: one of them in the stored
#: configuration could become code, or a way out, at the next start of whatever reads it.
_DANGEROUS = re.compile(
    r"path|dir$|home|class|command|plugin|listener|script|filterserver|^tls|^haMaster|^dLeger", re.IGNORECASE
)

#: Old spellings that RocketMQ's documents still show.
SPELLINGS = {"pollNameServerInteval": "updateNameServerAddrPeriod"}


@functools.cache
def local_address() -> str:
    """The address by which other machines reach this one; 127.0.0.1 when it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: the system only looks up the route
            address: str = probe.getsockname()[0]
        except OSError:
            return "127.0.0.1"
    return address if address != "0.0.0.0" else "127.0.0.1"


def _host_name() -> str:
    return socket.gethostname() or "DEFAULT_BROKER"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Options):
    """One broker's settings, grouped by what they steer. Times are milliseconds unless the name says otherwise."""

    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = frozenset(
        {"configBlackList", "brokerConfigPath", "configStorePath", "rocketmqHome"}
    )

    # Who it is
    broker_cluster_name: str = option("brokerClusterName", "DefaultCluster")
    broker_name: str = option("brokerName", factory=_host_name)
    broker_id: int = option("brokerId", 0, low=0, high=LONG_MAX)
    #: The addresses that clients and slaves are told.
    broker_ip1: str = option("brokerIP1", factory=local_address)
    broker_ip2: str = option("brokerIP2", factory=local_address)
    region_id: str = option("regionId", "DefaultRegion", dynamic=True)

    # Files
    rocketmq_home: str = option("rocketmqHome", "", effect=False)
    #: Where remote updates are written; `config/broker.properties` of the store when no file was given.
    broker_config_path: str = option("brokerConfigPath", "", shown=False)
    log_dir: str = option("logDir", "", shown=False)  # empty: the log goes to stdout

    # Listening
    listen_port: int = option("listenPort", 10911, low=0, high=65535)
    bind_address: str = option("bindAddress", "0.0.0.0")
    ha_listen_port: int = option("haListenPort", 0, low=0, high=65535)  # 0: the one after listenPort
    server_socket_backlog: int = option("serverSocketBacklog", 1024, low=1)
    server_channel_max_idle_time_seconds: int = option("serverChannelMaxIdleTimeSeconds", 120, low=1)
    write_buffer_high_water_mark: int = option("writeBufferHighWaterMark", 0, low=0)
    write_buffer_low_water_mark: int = option("writeBufferLowWaterMark", 0, low=0)
    enable_shutdown_gracefully: bool = option("enableShutdownGracefully", False)
    shutdown_wait_time_seconds: int = option("shutdownWaitTimeSeconds", 30, low=0)

    # Nameservers
    namesrv_addr: str = option("namesrvAddr", "")
    fetch_namesrv_addr_by_address_server: bool = option("fetchNamesrvAddrByAddressServer", False, effect=False)
    update_name_server_addr_period: int = option("updateNameServerAddrPeriod", 120_000, effect=False)
    register_name_server_period: int = option("registerNameServerPeriod", 30_000, dynamic=True)
    register_broker_timeout_mills: int = option("registerBrokerTimeoutMills", 24_000, low=1, dynamic=True)
    force_register: bool = option("forceRegister", True, dynamic=True)
    compressed_register: bool = option("compressedRegister", False, effect=False)
    enable_single_topic_register: bool = option("enableSingleTopicRegister", False, dynamic=True)
    enable_split_registration: bool = option("enableSplitRegistration", False, dynamic=True)
    split_registration_size: int = option("splitRegistrationSize", 800, low=1, dynamic=True)
    enable_slave_acting_master: bool = option("enableSlaveActingMaster", False)
    broker_heartbeat_interval: int = option("brokerHeartbeatInterval", 1000, low=100)
    broker_not_active_timeout_millis: int = option("brokerNotActiveTimeoutMillis", 10_000, low=1)
    send_heartbeat_timeout_millis: int = option("sendHeartbeatTimeoutMillis", 1000, low=1, dynamic=True)
    compatible_with_old_name_srv: bool = option("compatibleWithOldNameSrv", True)

    # Topics and groups
    broker_permission: int = option("brokerPermission", 6, low=0, high=7, dynamic=True)
    default_topic_queue_nums: int = option("defaultTopicQueueNums", 8, low=1, dynamic=True)
    auto_create_topic_enable: bool = option("autoCreateTopicEnable", True, dynamic=True)
    auto_create_subscription_group: bool = option("autoCreateSubscriptionGroup", True, dynamic=True)
    enable_create_sys_group: bool = option("enableCreateSysGroup", True, dynamic=True)
    cluster_topic_enable: bool = option("clusterTopicEnable", True)
    broker_topic_enable: bool = option("brokerTopicEnable", True)
    trace_topic_enable: bool = option("traceTopicEnable", False)
    msg_trace_topic_name: str = option("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC")
    revive_queue_num: int = option("reviveQueueNum", 8, low=1, effect=False)
    trace_on: bool = option("traceOn", True, dynamic=True)
    validate_system_topic_when_update_topic: bool = option("validateSystemTopicWhenUpdateTopic", True, dynamic=True)
    clear_retry_topic_when_delete_topic: bool = option("clearRetryTopicWhenDeleteTopic", True, dynamic=True)
    enable_mixed_message_type: bool = option("enableMixedMessageType", False, dynamic=True)

    # Sending
    start_accept_send_request_time_stamp: int = option(
        "startAcceptSendRequestTimeStamp", 0, low=0, high=LONG_MAX, dynamic=True
    )
    reject_transaction_message: bool = option("rejectTransactionMessage", False, dynamic=True)
    store_reply_message_enable: bool = option("storeReplyMessageEnable", True, dynamic=True)
    recall_message_enable: bool = option("recallMessageEnable", False, effect=False)

    # Overload. What waits in a queue of threads in RocketMQ waits for the loop, the log or the disk here.
    broker_fast_failure_enable: bool = option("brokerFastFailureEnable", True, dynamic=True)
    send_thread_pool_queue_capacity: int = option("sendThreadPoolQueueCapacity", 10_000, low=1, dynamic=True)
    pull_thread_pool_queue_capacity: int = option("pullThreadPoolQueueCapacity", 100_000, low=1, dynamic=True)
    wait_time_mills_in_send_queue: int = option("waitTimeMillsInSendQueue", 200, low=1, dynamic=True)
    wait_time_mills_in_pull_queue: int = option("waitTimeMillsInPullQueue", 5000, low=1, dynamic=True)
    wait_time_mills_in_lite_pull_queue: int = option("waitTimeMillsInLitePullQueue", 5000, low=1, dynamic=True)

    # Pulling and filters
    long_polling_enable: bool = option("longPollingEnable", True, dynamic=True)
    short_polling_time_mills: int = option("shortPollingTimeMills", 1000, low=1, dynamic=True)
    lite_pull_message_enable: bool = option("litePullMessageEnable", True, dynamic=True)
    reject_pull_consumer_enable: bool = option("rejectPullConsumerEnable", False, dynamic=True)
    slave_read_enable: bool = option("slaveReadEnable", False, dynamic=True)
    enable_property_filter: bool = option("enablePropertyFilter", False, effect=False)
    enable_calc_filter_bit_map: bool = option("enableCalcFilterBitMap", False, effect=False)
    expect_consumer_num_use_filter: int = option("expectConsumerNumUseFilter", 32, low=1, effect=False)
    max_error_rate_of_bloom_filter: int = option("maxErrorRateOfBloomFilter", 20, low=1, high=99, effect=False)
    filter_data_clean_time_span: int = option("filterDataCleanTimeSpan", 86_400_000, effect=False)
    filter_support_retry: bool = option("filterSupportRetry", False, effect=False)

    # Offsets
    flush_consumer_offset_interval: int = option("flushConsumerOffsetInterval", 5000, low=1, dynamic=True)
    consumer_offset_update_version_step: int = option("consumerOffsetUpdateVersionStep", 500, low=1, dynamic=True)
    delay_offset_update_version_step: int = option("delayOffsetUpdateVersionStep", 200, low=1, dynamic=True)
    use_server_side_reset_offset: bool = option("useServerSideResetOffset", True, dynamic=True)
    enable_broadcast_offset_store: bool = option("enableBroadcastOffsetStore", True, effect=False)
    broadcast_offset_expire_second: int = option("broadcastOffsetExpireSecond", 120, effect=False)
    broadcast_offset_expire_max_second: int = option("broadcastOffsetExpireMaxSecond", 300, effect=False)
    enable_clean_expired_offset: bool = option("enableCleanExpiredOffset", False, dynamic=True)

    # Clients
    notify_consumer_ids_changed_enable: bool = option("notifyConsumerIdsChangedEnable", True, dynamic=True)
    real_time_notify_consumer_change: bool = option("realTimeNotifyConsumerChange", True, dynamic=True)
    channel_expired_timeout: int = option("channelExpiredTimeout", 120_000, low=1, dynamic=True)
    subscription_expired_timeout: int = option("subscriptionExpiredTimeout", 600_000, low=1, dynamic=True)
    enable_register_producer: bool = option("enableRegisterProducer", True, effect=False)
    disable_consume_if_consumer_read_slowly: bool = option("disableConsumeIfConsumerReadSlowly", False, effect=False)
    consumer_fallbehind_threshold: int = option(
        "consumerFallbehindThreshold", 16 * 1024**3, low=0, high=LONG_MAX, effect=False
    )

    # Statistics
    enable_detail_stat: bool = option("enableDetailStat", True, dynamic=True)
    auto_delete_unused_stats: bool = option("autoDeleteUnusedStats", True, dynamic=True)
    account_stats_enable: bool = option("accountStatsEnable", True, effect=False)

    # Remote updates
    config_black_list: str = option("configBlackList", "configBlackList;brokerConfigPath")

    #: What the store is told.
    store: StoreOptions = dataclasses.field(default_factory=StoreOptions)
    #: Keys without a meaning here that were given another value than RocketMQ's default.
    meaningless: Mapping[str, str] = dataclasses.field(default_factory=dict)

    # What follows from the values

    @property
    def is_master(self) -> bool:
        return self.store.broker_role is not BrokerRole.SLAVE

    @property
    def is_writable(self) -> bool:
        """Whether `brokerPermission` lets clients send."""
        return self.broker_permission & 2 != 0

    @property
    def is_readable(self) -> bool:
        """Whether `brokerPermission` lets clients pull."""
        return self.broker_permission & 4 != 0

    @property
    def ha_port(self) -> int:
        """The port of replication, as it is registered."""
        return self.ha_listen_port or (self.listen_port + 1 if self.listen_port else 0)

    @property
    def register_period(self) -> float:
        """Seconds between registrations: RocketMQ takes nothing below 10 and above 60."""
        return min(max(self.register_name_server_period, 10_000), 60_000) / 1000

    # Properties

    def black_list(self) -> str:
        return self.config_black_list

    def known(self) -> dict[str, str]:
        # Not super(): a dataclass with slots is made anew, and what super() holds on to is the old class.
        shown = Options.known(self)
        shown["haListenPort"] = str(self.ha_port)
        store = self.store.to_properties()
        default_paths = {"storePathRootDir": self.store.root, "storePathCommitLog": f"{self.store.root}/commitlog"}
        for key, field in STORE_KEYS.items():
            if field.metadata["shown"] or getattr(self.store, field.name) != default_of(field):
                shown[key] = store[key] or default_paths.get(key, "")
        return {**WITHOUT_MEANING, **self.meaningless, **shown}

    def is_dynamic(self, key: str) -> bool | None:
        if key in STORE_KEYS:
            return bool(STORE_KEYS[key].metadata["dynamic"])
        if key in WITHOUT_MEANING or (key not in options_of(BrokerConfig) and _DANGEROUS.search(key)):
            return False
        return Options.is_dynamic(self, key)

    def check(self, key: str, text: str) -> None:
        if key in STORE_KEYS:
            _store_options(self.store, {key: text})
        else:
            Options.check(self, key, text)

    def with_properties(self, properties: Mapping[str, str]) -> Self:
        """These settings changed by a configuration file; `ConfigError` names the first value that cannot be used."""
        named = {SPELLINGS.get(key, key): text for key, text in properties.items()}
        own = {key: text for key, text in named.items() if key not in WITHOUT_MEANING and key not in STORE_KEYS}
        meaningless = {**self.meaningless, **{key: text for key, text in named.items() if key in WITHOUT_MEANING}}
        return dataclasses.replace(
            Options.with_properties(self, own),
            store=_store_options(self.store, named),
            meaningless={key: text for key, text in meaningless.items() if text.strip() != WITHOUT_MEANING[key]},
        )

    def without_effect(self) -> list[str]:
        store = (
            key
            for key, field in STORE_KEYS.items()
            if not field.metadata["effect"] and getattr(self.store, field.name) != default_of(field)
        )
        return sorted({*self.meaningless, *store, *Options.without_effect(self)})


def _is_host(text: str) -> bool:
    """Whether clients can be told this; whether there is such a host is not asked."""
    if ":" not in text:
        return bool(text) and not any(letter.isspace() or letter in "/;,[]@" for letter in text)
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _store_options(options: StoreOptions, properties: Mapping[str, str]) -> StoreOptions:
    try:
        return options.updated(properties)
    except OptionError as error:
        raise ConfigError(error.key, error.value, error.expected) from None


def from_sources(
    file: Mapping[str, str], overrides: Mapping[str, str], *, path: str | None = None, rocketmq_home: str = ""
) -> BrokerConfig:
    """The settings of a configuration file (its path is where updates are written) and of what stands above it."""
    config = BrokerConfig(rocketmq_home=rocketmq_home).with_properties(file)
    if path is not None:
        config = dataclasses.replace(config, broker_config_path=path)
    config = config.with_properties(overrides)
    changes: dict[str, Any] = {}
    if config.is_master:
        changes["broker_id"] = 0  # as RocketMQ does: the role decides
    elif config.broker_id == 0:
        raise ConfigError("brokerId", "0", "a number above 0, because brokerRole is SLAVE")
    if config.broker_ip1 != local_address() and "brokerIP2" not in {**file, **overrides}:
        changes["broker_ip2"] = config.broker_ip1
    for key, host in (("brokerIP1", config.broker_ip1), ("brokerIP2", config.broker_ip2)):
        if not _is_host(host):
            raise ConfigError(key, host, "an address or a host name, without a port")
    if not config.broker_name.strip():
        raise ConfigError("brokerName", config.broker_name, "a name")
    if not config.broker_cluster_name.strip():
        raise ConfigError("brokerClusterName", config.broker_cluster_name, "a name")
    try:
        DelayLevels.parse(config.store.message_delay_level)
    except ProtocolError as error:
        raise ConfigError("messageDelayLevel", config.store.message_delay_level, f"delays ({error})") from error
    store = dataclasses.replace(
        config.store,
        store_path_root_dir=os.path.expanduser(config.store.store_path_root_dir),
        store_path_commit_log=os.path.expanduser(config.store.store_path_commit_log),
    )
    written = config.broker_config_path or f"{store.root}/config/broker.properties"
    return dataclasses.replace(config, store=store, broker_config_path=os.path.expanduser(written), **changes)
