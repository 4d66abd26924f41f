"""Headers of what operators ask of a broker: configuration, statistics, connections, and offsets of whole groups.

Topics and groups are in `topics`, users and access rules in `auth`. Requests that brokers no longer answer, or that
are known by their number only, stand at the end with no keys.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, NoHeader, Operation, field


class GetBrokerConfigAnswer(Header, frozen=True):
    """The data version of the configuration, as JSON text."""

    version: str


class GetTopicStats(Header, frozen=True):
    """Asks for the offsets and last store times of all queues of a topic."""

    topic: str


class GetConsumeStats(Header, frozen=True):
    """Asks how far a group is, in one topic, in some (joined by `;`) or in all."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


class GetConsumerConnectionList(Header, frozen=True):
    """Asks for the connected clients of a consumer group and what they subscribe to."""

    consumer_group: str


class GetProducerConnectionList(Header, frozen=True):
    """Asks for the connected clients of a producer group."""

    producer_group: str


class QueryTopicConsumeByWho(Header, frozen=True):
    """Asks which groups consume a topic."""

    topic: str


class QueryTopicsByConsumer(Header, frozen=True):
    """Asks which topics a group consumes."""

    group: str


class QuerySubscription(Header, frozen=True):
    """Asks for the subscription of a group to a topic."""

    group: str
    topic: str


class QueryConsumeTimeSpan(Header, frozen=True):
    """Asks how old the messages are that a group has yet to consume."""

    topic: str
    group: str


class QueryCorrectionOffset(Header, frozen=True):
    """Asks for the lowest offsets among the groups of a topic, to correct another group by."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class CloneGroupOffset(Header, frozen=True):
    """Copies the offsets of one group to another, in one topic or in all."""

    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


class ViewBrokerStats(Header, frozen=True):
    """Asks for one item of the statistics."""

    stats_name: str
    stats_key: str


class GetBrokerConsumeStats(Header, frozen=True):
    """Asks how far all groups are; either the orderly ones or the others."""

    is_order: bool


class QueryConsumeQueue(Header, frozen=True):
    """Asks for entries of a consume queue, and which of them a group's filter would take."""

    topic: str
    queue_id: I32
    index: I64
    count: I32
    consumer_group: str | None = None


class GetConsumerStatus(Header, frozen=True):
    """Has the broker ask the clients of a group for their offsets; `client_addr` is a client id."""

    topic: str
    group: str
    client_addr: str | None = None


class ResetOffset(Header, frozen=True):
    """Moves the offsets of a group to a time (-1: the end) or, with `offset`, to a place."""

    group: str
    topic: str
    timestamp: I64
    is_force: bool
    queue_id: I32 = -1  # all queues
    offset: I64 = -1  # by time


class CheckRocksdbCqWriteProgress(Header, frozen=True):
    """Compares the consume queues of two kinds of stores."""

    topic: str | None = None
    check_store_time: I64 | None = None


class SetCommitLogReadMode(Header, frozen=True):
    """Chooses between reading ahead (0) and not (1)."""

    read_ahead_mode: I32 | None = field(name="READ_AHEAD_MODE", default=None)


_ADMIN = "admin → broker"

_WITH_KEYS: tuple[Operation, ...] = (
    Operation(RequestCode.GET_BROKER_CONFIG, NoHeader, GetBrokerConfigAnswer, _ADMIN),
    Operation(RequestCode.GET_TOPIC_STATS_INFO, GetTopicStats, NoHeader, _ADMIN),
    Operation(RequestCode.GET_CONSUME_STATS, GetConsumeStats, NoHeader, _ADMIN),
    Operation(RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnectionList, NoHeader, _ADMIN),
    Operation(RequestCode.GET_PRODUCER_CONNECTION_LIST, GetProducerConnectionList, NoHeader, _ADMIN),
    Operation(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, QueryTopicConsumeByWho, NoHeader, _ADMIN),
    Operation(RequestCode.QUERY_TOPICS_BY_CONSUMER, QueryTopicsByConsumer, NoHeader, _ADMIN),
    Operation(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, QuerySubscription, NoHeader, _ADMIN),
    Operation(RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpan, NoHeader, _ADMIN),
    Operation(RequestCode.QUERY_CORRECTION_OFFSET, QueryCorrectionOffset, NoHeader, _ADMIN),
    Operation(RequestCode.CLONE_GROUP_OFFSET, CloneGroupOffset, NoHeader, _ADMIN),
    Operation(RequestCode.VIEW_BROKER_STATS_DATA, ViewBrokerStats, NoHeader, _ADMIN),
    Operation(RequestCode.GET_BROKER_CONSUME_STATS, GetBrokerConsumeStats, NoHeader, _ADMIN),
    Operation(RequestCode.QUERY_CONSUME_QUEUE, QueryConsumeQueue, NoHeader, _ADMIN),
    Operation(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, GetConsumerStatus, NoHeader, _ADMIN),
    Operation(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffset, NoHeader, _ADMIN),
    Operation(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, CheckRocksdbCqWriteProgress, NoHeader, _ADMIN),
    Operation(RequestCode.SET_COMMITLOG_READ_MODE, SetCommitLogReadMode, NoHeader, _ADMIN),
)

# Everything is in the body, or there is nothing to say.
_WITHOUT_KEYS = (
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
)

# Numbers that no broker of 4.9 or 5.x answers.
_UNANSWERED = (
    RequestCode.TRIGGER_DELETE_FILES,
    RequestCode.SUSPEND_CONSUMER,
    RequestCode.RESUME_CONSUMER,
    RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
    RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
    RequestCode.ADJUST_CONSUMER_THREAD_POOL,
    RequestCode.WHO_CONSUME_THE_MESSAGE,
    RequestCode.REGISTER_FILTER_SERVER,
    RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
)

OPERATIONS: tuple[Operation, ...] = _WITH_KEYS + tuple(
    Operation(code, NoHeader, NoHeader, _ADMIN) for code in _WITHOUT_KEYS + _UNANSWERED
)
