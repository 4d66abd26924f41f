"""The configuration of a nameserver: every key of RocketMQ's namesrv.conf, its type, its default and what it does here.

The values are frozen; an update makes a new object. Reading and writing files is the caller's business.
Mirrors NamesrvConfig and NettyServerConfig. Keys that steer threads and buffers of the JVM are kept and shown, so that
an existing namesrv.conf works unchanged, but they have no effect.
"""

import dataclasses
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cometmq.protocol import properties_text
from cometmq.protocol.errors import CometMQError

#: Never updatable from remote, whatever `configBlackList` says: they move or widen the reach of the update itself.
ALWAYS_BLACK_LISTED = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})


class ConfigError(CometMQError):
    """Raised when a configuration value cannot be used."""

    remedy = "correct the value, or remove the key to get the default"


class ConfigRefused(CometMQError):
    """Raised when a remote update names a key that must not, or cannot, change while the nameserver runs."""

    code = 16
    remedy = "change the key in the configuration file and restart the nameserver"


def _option(key: str, default: Any, *, dynamic: bool = False, effect: bool = True) -> Any:
    """A field with RocketMQ's key. `dynamic`: may change at run time. Without `effect` it is only kept and shown."""
    return field(default=default, metadata={"key": key, "dynamic": dynamic, "effect": effect})


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig:
    """One nameserver's settings, grouped by what they steer."""

    # Files. An empty path means: nothing is kept on disk.
    rocketmq_home: str = _option("rocketmqHome", "", effect=False)
    kv_config_path: str = _option("kvConfigPath", "~/namesrv/kvConfig.json")
    config_store_path: str = _option("configStorePath", "~/namesrv/namesrv.properties")

    log_dir: str = _option("logDir", "")  # empty: the log goes to stdout

    # Listening
    listen_port: int = _option("listenPort", 9876)
    bind_address: str = _option("bindAddress", "0.0.0.0")
    server_socket_backlog: int = _option("serverSocketBacklog", 1024)
    server_channel_max_idle_time_seconds: int = _option("serverChannelMaxIdleTimeSeconds", 120)
    write_buffer_high_water_mark: int = _option("writeBufferHighWaterMark", 0)  # bytes; 0: the server's default
    write_buffer_low_water_mark: int = _option("writeBufferLowWaterMark", 0)

    # Brokers and their liveness
    scan_not_active_broker_interval: int = _option("scanNotActiveBrokerInterval", 5000, dynamic=True)  # ms
    delete_topic_with_broker_registration: bool = _option("deleteTopicWithBrokerRegistration", False, dynamic=True)
    notify_min_broker_id_changed: bool = _option("notifyMinBrokerIdChanged", False, dynamic=True)
    return_order_topic_config_to_broker: bool = _option("returnOrderTopicConfigToBroker", True, dynamic=True)

    # Answers to clients
    order_message_enable: bool = _option("orderMessageEnable", False, dynamic=True)
    support_acting_master: bool = _option("supportActingMaster", False, dynamic=True)
    enable_all_topic_list: bool = _option("enableAllTopicList", True, dynamic=True)
    enable_topic_list: bool = _option("enableTopicList", True, dynamic=True)
    need_wait_for_service: bool = _option("needWaitForService", False, dynamic=True)
    wait_seconds_for_service: int = _option("waitSecondsForService", 45, dynamic=True)

    # Remote updates and shutdown
    config_black_list: str = _option("configBlackList", "configBlackList;configStorePath;kvConfigPath")
    enable_shutdown_gracefully: bool = _option("enableShutdownGracefully", False)
    shutdown_wait_time_seconds: int = _option("shutdownWaitTimeSeconds", 30)

    # Features that this version does not have
    cluster_test: bool = _option("clusterTest", False, effect=False)
    product_env_name: str = _option("productEnvName", "center", effect=False)
    enable_controller_in_namesrv: bool = _option("enableControllerInNamesrv", False, effect=False)

    # Threads, queues and buffers of the JVM: one event loop does all of it here
    client_request_thread_pool_nums: int = _option("clientRequestThreadPoolNums", 8, effect=False)
    client_request_queue_capacity: int = _option("clientRequestThreadPoolQueueCapacity", 50000, effect=False)
    default_thread_pool_nums: int = _option("defaultThreadPoolNums", 16, effect=False)
    default_queue_capacity: int = _option("defaultThreadPoolQueueCapacity", 10000, effect=False)
    un_register_broker_queue_capacity: int = _option("unRegisterBrokerQueueCapacity", 3000, effect=False)
    server_async_semaphore_value: int = _option("serverAsyncSemaphoreValue", 64, effect=False)
    server_callback_executor_threads: int = _option("serverCallbackExecutorThreads", 0, effect=False)
    server_netty_worker_group_enable: bool = _option("serverNettyWorkerGroupEnable", True, effect=False)
    server_oneway_semaphore_value: int = _option("serverOnewaySemaphoreValue", 256, effect=False)
    server_pooled_allocator_enable: bool = _option("serverPooledByteBufAllocatorEnable", True, effect=False)
    server_selector_threads: int = _option("serverSelectorThreads", 3, effect=False)
    server_socket_rcv_buf_size: int = _option("serverSocketRcvBufSize", 0, effect=False)
    server_socket_snd_buf_size: int = _option("serverSocketSndBufSize", 0, effect=False)
    server_worker_threads: int = _option("serverWorkerThreads", 8, effect=False)
    use_epoll_native_selector: bool = _option("useEpollNativeSelector", False, effect=False)

    #: Keys that nobody knows here: kept, shown and written back.
    unknown: Mapping[str, str] = field(default_factory=dict)

    def to_properties(self) -> dict[str, str]:
        """All keys as text, sorted by key."""
        known = {key: _text(getattr(self, option.name)) for key, option in OPTIONS.items()}
        if not self.log_dir:  # a key of ours: not among RocketMQ's until it is set
            del known["logDir"]
        return dict(sorted({**self.unknown, **known}.items()))

    def to_text(self) -> str:
        """The form of GET_NAMESRV_CONFIG and of the stored file."""
        return properties_text.dumps(self.to_properties())

    def with_properties(self, properties: Mapping[str, str]) -> "NamesrvConfig":
        """These settings changed by a configuration file; ConfigError names the first value that cannot be used."""
        values: dict[str, Any] = {}
        unknown = dict(self.unknown)
        for key, text in properties.items():
            option = OPTIONS.get(key)
            if option is None:
                unknown[key] = text
            else:
                values[option.name] = _parse(key, option, text)
        return dataclasses.replace(self, unknown=unknown, **values)

    def updated(self, properties: Mapping[str, str]) -> "tuple[NamesrvConfig, list[str]]":
        """These settings changed from remote, and what is wrong with the values that were left alone.

        ConfigRefused when a key may not be changed: then nothing is. A value that does not parse spoils only its own
        key, as in RocketMQ.
        """
        black_list = ALWAYS_BLACK_LISTED.union(part.strip() for part in self.config_black_list.split(";"))
        if not black_list.isdisjoint(properties):
            raise ConfigRefused("Can not update config in black list.")
        fixed = [key for key in properties if key in OPTIONS and not OPTIONS[key].metadata["dynamic"]]
        if fixed:
            raise ConfigRefused(f"Can not update config at run time: {', '.join(sorted(fixed))}")
        accepted: dict[str, str] = {}
        problems = []
        for key, text in properties.items():
            if option := OPTIONS.get(key):
                try:
                    _parse(key, option, text)
                except ConfigError as error:
                    problems.append(str(error))
                    continue
            accepted[key] = text
        return self.with_properties(accepted), problems

    def without_effect(self) -> list[str]:
        """The keys that were set to something and do nothing here, for one line in the log."""
        return sorted(
            key
            for key, option in OPTIONS.items()
            if not option.metadata["effect"] and key != "rocketmqHome" and getattr(self, option.name) != option.default
        )


OPTIONS: Mapping[str, "dataclasses.Field[Any]"] = {
    option.metadata["key"]: option for option in dataclasses.fields(NamesrvConfig) if "key" in option.metadata
}

#: Smallest and largest value of an integer key, where RocketMQ's own type is not the limit.
_RANGES = {
    "listenPort": (0, 65535),  # 0: any free port
    "scanNotActiveBrokerInterval": (1, 3_600_000),  # ms; longer would turn the expiry off
    "serverSocketBacklog": (1, 2**31 - 1),
    "serverChannelMaxIdleTimeSeconds": (1, 2**31 - 1),
    "writeBufferHighWaterMark": (0, 2**31 - 1),
    "writeBufferLowWaterMark": (0, 2**31 - 1),
    "shutdownWaitTimeSeconds": (0, 2**31 - 1),
}


def _parse(key: str, option: "dataclasses.Field[Any]", text: str) -> Any:
    if option.type is bool:
        # Java's Boolean.parseBoolean: anything but "true" is false.
        return text.strip().lower() == "true"
    if option.type is int:
        low, high = _RANGES.get(key, (-(2**31), 2**31 - 1))
        digits = text.strip()
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", digits, re.ASCII):
            raise ConfigError(f"{key}={text}: expected an integer")
        value = int(digits)
        if not low <= value <= high:
            raise ConfigError(f"{key}={text}: expected an integer from {low} to {high}")
        return value
    return text


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def from_sources(
    file: Mapping[str, str], overrides: Mapping[str, str], *, path: str | None = None, rocketmq_home: str = ""
) -> NamesrvConfig:
    """The settings of a configuration file (its path becomes `configStorePath`) and of what stands above it."""
    config = NamesrvConfig(rocketmq_home=rocketmq_home).with_properties(file)
    if path is not None:  # the file may have been moved since it was written
        config = dataclasses.replace(config, config_store_path=path)
    config = config.with_properties(overrides)
    return dataclasses.replace(
        config,
        kv_config_path=os.path.expanduser(config.kv_config_path),
        config_store_path=os.path.expanduser(config.config_store_path),
    )
