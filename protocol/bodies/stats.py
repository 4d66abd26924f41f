"""Figures: offsets of topics and groups, rates, the state of replication, the content of a consume queue."""

from cometmq.protocol.bodies.base import Body, Int32, Int64, always, always_new
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.bodies.message_queue import MessageQueue


class TopicOffset(Body, frozen=True, kw_only=True):
    """The ends of a queue."""

    last_update_timestamp: Int64 = always(0)
    max_offset: Int64 = always(0)
    min_offset: Int64 = always(0)


class TopicStatsTable(Body, frozen=True, kw_only=True):
    """The ends of all queues of a topic."""

    offset_table: dict[MessageQueue, TopicOffset] = always_new(dict)
    topic_put_tps: float = always(0.0)


class OffsetWrapper(Body, frozen=True, kw_only=True):
    """How far a group is in a queue."""

    broker_offset: Int64 = always(0)
    consumer_offset: Int64 = always(0)
    last_timestamp: Int64 = always(0)
    pull_offset: Int64 = always(0)


class ConsumeStats(Body, frozen=True, kw_only=True):
    """How far a group is in all its queues."""

    consume_tps: float = always(0.0)
    offset_table: dict[MessageQueue, OffsetWrapper] = always_new(dict)


class ConsumeStatsList(Body, frozen=True, kw_only=True):
    """How far all groups of a broker are: a map of one group a piece."""

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = always_new(list)
    total_diff: Int64 = always(0)
    total_inflight_diff: Int64 = always(0)


class BrokerStatsItem(Body, frozen=True, kw_only=True):
    """A figure over a span of time."""

    avgpt: float = always(0.0)
    sum: Int64 = always(0)
    tps: float = always(0.0)


class BrokerStatsData(Body, frozen=True, kw_only=True):
    """A figure over a day, an hour and a minute."""

    stats_day: BrokerStatsItem | None = None
    stats_hour: BrokerStatsItem | None = None
    stats_minute: BrokerStatsItem | None = None


class QueueTimeSpan(Body, frozen=True, kw_only=True):
    """From when to when the messages of a queue are, and where the group is. The texts repeat the times."""

    consume_time_stamp: Int64 = always(0)
    consume_time_stamp_str: str | None = None
    delay_time: Int64 = always(0)
    max_time_stamp: Int64 = always(0)
    max_time_stamp_str: str | None = None
    message_queue: MessageQueue | None = None
    min_time_stamp: Int64 = always(0)
    min_time_stamp_str: str | None = None


class QueryConsumeTimeSpanBody(Body, frozen=True, kw_only=True):
    """The time spans of all queues of a topic."""

    consume_time_span_set: list[QueueTimeSpan] = always_new(list)


class ConsumeQueueData(Body, frozen=True, kw_only=True):
    """A unit of a consume queue."""

    bit_map: str | None = None
    eval: bool = always(False)
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: Int64 = always(0)
    physic_size: Int32 = always(0)
    tags_code: Int64 = always(0)


class QueryConsumeQueueResponseBody(Body, frozen=True, kw_only=True):
    """Units of a consume queue, for the curious."""

    filter_data: str | None = None
    max_queue_index: Int64 = always(0)
    min_queue_index: Int64 = always(0)
    queue_data: list[ConsumeQueueData] | None = None
    subscription_data: SubscriptionData | None = None


class QuerySubscriptionResponseBody(Body, frozen=True, kw_only=True):
    """What a group subscribes to of a topic."""

    group: str = always("")
    subscription_data: SubscriptionData | None = None
    topic: str = always("")


class HAClientRuntimeInfo(Body, frozen=True, kw_only=True):
    """A slave's side of replication."""

    last_read_timestamp: Int64 = always(0)
    last_write_timestamp: Int64 = always(0)
    master_addr: str | None = None
    master_flush_offset: Int64 = always(0)
    max_offset: Int64 = always(0)
    transferred_byte_in_second: Int64 = always(0)


class HAConnectionRuntimeInfo(Body, frozen=True, kw_only=True):
    """A master's view of one slave."""

    addr: str = always("")
    diff: Int64 = always(0)
    in_sync: bool = always(False)
    slave_ack_offset: Int64 = always(0)
    transfer_from_where: Int64 = always(0)
    transferred_byte_in_second: Int64 = always(0)


class HARuntimeInfo(Body, frozen=True, kw_only=True):
    """The state of replication of a broker."""

    ha_client_runtime_info: HAClientRuntimeInfo = always_new(HAClientRuntimeInfo)
    ha_connection_info: list[HAConnectionRuntimeInfo] = always_new(list)
    in_sync_slave_nums: Int32 = always(0)
    master: bool = always(False)
    master_commit_log_max_offset: Int64 = always(0)


class CheckRocksdbCqWriteResult(Body, frozen=True, kw_only=True):
    """Whether two kinds of consume queues agree: CometMQ has one kind, its tool still asks."""

    check_result: str | None = None
    check_status: Int32 = always(0)
