"""The configuration of a nameserver: every key of RocketMQ's namesrv.conf, its type, its default and what it does here.

The values are frozen; an update makes a new object. Reading and writing files is the caller's business.
Mirrors NamesrvConfig and NettyServerConfig. Keys that steer threads and buffers of the JVM are kept and shown, so that
an existing namesrv.conf works unchanged, but they have no effect.
"""

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from cometmq.options import ConfigError, ConfigRefused, Options, option, options_of

__all__ = ["OPTIONS", "ConfigError", "ConfigRefused", "NamesrvConfig", "from_sources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamesrvConfig(Options):
    """One nameserver's settings, grouped by what they steer."""

    #: They move or widen the reach of an update from remote itself.
    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = frozenset(
        {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
    )
    LENIENT_BOOLEANS: ClassVar[bool] = True

    # Files. An empty path means: nothing is kept on disk.
    rocketmq_home: str = option("rocketmqHome", "", effect=False)
    kv_config_path: str = option("kvConfigPath", "~/namesrv/kvConfig.json")
    config_store_path: str = option("configStorePath", "~/namesrv/namesrv.properties")

    log_dir: str = option("logDir", "", shown=False)  # empty: the log goes to stdout

    # Listening
    listen_port: int = option("listenPort", 9876, low=0, high=65535)
    bind_address: str = option("bindAddress", "0.0.0.0")
    server_socket_backlog: int = option("serverSocketBacklog", 1024, low=1)
    server_channel_max_idle_time_seconds: int = option("serverChannelMaxIdleTimeSeconds", 120, low=1)
    write_buffer_high_water_mark: int = option("writeBufferHighWaterMark", 0, low=0)  # bytes; 0: the server's default
    write_buffer_low_water_mark: int = option("writeBufferLowWaterMark", 0, low=0)

    # Brokers and their liveness
    #: ms; more than an hour would turn the expiry off.
    scan_not_active_broker_interval: int = option(
        "scanNotActiveBrokerInterval", 5000, low=1, high=3_600_000, dynamic=True
    )
    delete_topic_with_broker_registration: bool = option("deleteTopicWithBrokerRegistration", False, dynamic=True)
    notify_min_broker_id_changed: bool = option("notifyMinBrokerIdChanged", False, dynamic=True)
    return_order_topic_config_to_broker: bool = option("returnOrderTopicConfigToBroker", True, dynamic=True)

    # Answers to clients
    order_message_enable: bool = option("orderMessageEnable", False, dynamic=True)
    support_acting_master: bool = option("supportActingMaster", False, dynamic=True)
    enable_all_topic_list: bool = option("enableAllTopicList", True, dynamic=True)
    enable_topic_list: bool = option("enableTopicList", True, dynamic=True)
    need_wait_for_service: bool = option("needWaitForService", False, dynamic=True)
    wait_seconds_for_service: int = option("waitSecondsForService", 45, dynamic=True)

    # Remote updates and shutdown
    config_black_list: str = option("configBlackList", "configBlackList;configStorePath;kvConfigPath")
    enable_shutdown_gracefully: bool = option("enableShutdownGracefully", False)
    shutdown_wait_time_seconds: int = option("shutdownWaitTimeSeconds", 30, low=0)

    # Features that this version does not have
    cluster_test: bool = option("clusterTest", False, effect=False)
    product_env_name: str = option("productEnvName", "center", effect=False)
    enable_controller_in_namesrv: bool = option("enableControllerInNamesrv", False, effect=False)

    # Threads, queues and buffers of the JVM: one event loop does all of it here
    client_request_thread_pool_nums: int = option("clientRequestThreadPoolNums", 8, effect=False)
    client_request_queue_capacity: int = option("clientRequestThreadPoolQueueCapacity", 50000, effect=False)
    default_thread_pool_nums: int = option("defaultThreadPoolNums", 16, effect=False)
    default_queue_capacity: int = option("defaultThreadPoolQueueCapacity", 10000, effect=False)
    un_register_broker_queue_capacity: int = option("unRegisterBrokerQueueCapacity", 3000, effect=False)
    server_async_semaphore_value: int = option("serverAsyncSemaphoreValue", 64, effect=False)
    server_callback_executor_threads: int = option("serverCallbackExecutorThreads", 0, effect=False)
    server_netty_worker_group_enable: bool = option("serverNettyWorkerGroupEnable", True, effect=False)
    server_oneway_semaphore_value: int = option("serverOnewaySemaphoreValue", 256, effect=False)
    server_pooled_allocator_enable: bool = option("serverPooledByteBufAllocatorEnable", True, effect=False)
    server_selector_threads: int = option("serverSelectorThreads", 3, effect=False)
    server_socket_rcv_buf_size: int = option("serverSocketRcvBufSize", 0, effect=False)
    server_socket_snd_buf_size: int = option("serverSocketSndBufSize", 0, effect=False)
    server_worker_threads: int = option("serverWorkerThreads", 8, effect=False)
    use_epoll_native_selector: bool = option("useEpollNativeSelector", False, effect=False)

    def black_list(self) -> str:
        return self.config_black_list


#: RocketMQ's key -> the option.
OPTIONS = options_of(NamesrvConfig)


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
