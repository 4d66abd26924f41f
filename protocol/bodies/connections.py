"""Who is connected, and what a consumer says about itself. Answers of 203, 204, 307 and 309."""

import enum
from collections.abc import Mapping
from typing import ClassVar

import msgspec

from cometmq.protocol.bodies.base import Body, Int32, Int64, always, always_new
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.bodies.message_queue import MessageQueue


class Connection(Body, frozen=True, kw_only=True):
    """A client's connection as the broker sees it."""

    client_addr: str = always("")
    client_id: str = always("")
    language: str | None = None
    version: Int32 = always(0)


class ProducerConnection(Body, frozen=True, kw_only=True):
    """The connections of a producer group."""

    connection_set: list[Connection] = always_new(list)


class ConsumerConnection(Body, frozen=True, kw_only=True):
    """The connections of a consumer group and what it subscribes to."""

    connection_set: list[Connection] = always_new(list)
    consume_from_where: str | None = None
    consume_type: str | None = None
    message_model: str | None = None
    subscription_table: dict[str, SubscriptionData] = always_new(dict)


class ProcessQueueInfo(Body, frozen=True, kw_only=True):
    """What a consumer holds of a queue. `droped` is RocketMQ's spelling; Go writes `dropped`."""

    ALIASES: ClassVar[Mapping[str, str]] = {"dropped": "droped"}

    cached_msg_count: Int32 = always(0)
    cached_msg_max_offset: Int64 = always(0)
    cached_msg_min_offset: Int64 = always(0)
    cached_msg_size_in_mib: Int32 = always(0, name="cachedMsgSizeInMiB")
    commit_offset: Int64 = always(0)
    droped: bool = always(False)
    last_consume_timestamp: Int64 = always(0)
    last_lock_timestamp: Int64 = always(0)
    last_pull_timestamp: Int64 = always(0)
    locked: bool = always(False)
    transaction_msg_count: Int32 = always(0)
    transaction_msg_max_offset: Int64 = always(0)
    transaction_msg_min_offset: Int64 = always(0)
    try_unlock_times: Int64 = always(0)


class PopProcessQueueInfo(Body, frozen=True, kw_only=True):
    """What a popping consumer holds of a queue."""

    ALIASES: ClassVar[Mapping[str, str]] = {"dropped": "droped"}

    droped: bool = always(False)
    last_pop_timestamp: Int64 = always(0)
    wait_ack_count: Int32 = always(0)


class ConsumeStatus(Body, frozen=True, kw_only=True):
    """A consumer's rates and times for a topic."""

    consume_failed_msgs: Int64 = always(0)
    consume_failed_tps: float = always(0.0, name="consumeFailedTPS")
    consume_ok_tps: float = always(0.0, name="consumeOKTPS")
    consume_rt: float = always(0.0, name="consumeRT")
    pull_rt: float = always(0.0, name="pullRT")
    pull_tps: float = always(0.0, name="pullTPS")


class ConsumerRunningInfo(Body, frozen=True, kw_only=True):
    """Everything a consumer tells about itself. A broker forwards the bytes and does not encode them again."""

    PROP_NAMESERVER_ADDR: ClassVar[str] = "PROP_NAMESERVER_ADDR"
    PROP_THREADPOOL_CORE_SIZE: ClassVar[str] = "PROP_THREADPOOL_CORE_SIZE"
    PROP_CONSUME_ORDERLY: ClassVar[str] = "PROP_CONSUMEORDERLY"
    PROP_CONSUME_TYPE: ClassVar[str] = "PROP_CONSUME_TYPE"
    PROP_CLIENT_VERSION: ClassVar[str] = "PROP_CLIENT_VERSION"
    PROP_CONSUMER_START_TIMESTAMP: ClassVar[str] = "PROP_CONSUMER_START_TIMESTAMP"

    jstack: str | None = None
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = always_new(dict)
    mq_table: dict[MessageQueue, ProcessQueueInfo] = always_new(dict)
    properties: dict[str, str] = always_new(dict)
    status_table: dict[str, ConsumeStatus] = always_new(dict)
    subscription_set: list[SubscriptionData] = always_new(list)
    user_consumer_info: dict[str, str] = always_new(dict)


class ConsumeResult(enum.StrEnum):
    """What came of consuming a message directly, in the order of Java's ordinals."""

    SUCCESS = "CR_SUCCESS"
    LATER = "CR_LATER"
    ROLLBACK = "CR_ROLLBACK"
    COMMIT = "CR_COMMIT"
    THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    RETURN_NULL = "CR_RETURN_NULL"


_ORDINALS = {str(ordinal): result.value for ordinal, result in enumerate(ConsumeResult)}


class ConsumeMessageDirectlyResult(Body, frozen=True, kw_only=True):
    """What came of CONSUME_MESSAGE_DIRECTLY."""

    auto_commit: bool = always(True)
    consume_result: str | None = None
    order: bool = always(False)
    remark: str | None = None
    spent_time_mills: Int64 = always(0)

    def __post_init__(self) -> None:
        # Go sends the ordinal.
        if self.consume_result in _ORDINALS:
            msgspec.structs.force_setattr(self, "consume_result", _ORDINALS[self.consume_result])
