"""Headers of what slaves ask their master for, and of brokers among themselves.

The log itself is copied over a connection of its own that knows no commands.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, NoHeader, Operation


class GetAllTopicConfig(Header, frozen=True):
    """Asks for all topics; up to 5.3.3 without keys, later page by page."""

    topic_seq: I32 | None = None
    max_topic_num: I32 | None = None
    data_version: str | None = None


class GetAllTopicConfigAnswer(Header, frozen=True):
    """How many topics there are; absent where everything comes at once."""

    total_topic_num: I32 | None = None


class GetAllGroupConfig(Header, frozen=True):
    """Asks for all consumer groups; up to 5.3.3 without keys, later page by page."""

    group_seq: I32 | None = None
    max_group_num: I32 | None = None
    data_version: str | None = None


class GetAllGroupConfigAnswer(Header, frozen=True):
    """How many groups there are; absent where everything comes at once."""

    total_group_num: I32 | None = None


class ExchangeHaInfo(Header, frozen=True):
    """With keys a master tells a slave where it is; without, a slave asks. The answer has the same keys."""

    master_ha_address: str | None = None
    master_flush_offset: I64 | None = None
    master_address: str | None = None


class ResetMasterFlushOffset(Header, frozen=True):
    """Sets the flush offset that a slave believes its master to have."""

    master_flush_offset: I64


_SLAVE = "slave → master"

OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.GET_ALL_TOPIC_CONFIG, GetAllTopicConfig, GetAllTopicConfigAnswer, _SLAVE),
    Operation(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, GetAllGroupConfig, GetAllGroupConfigAnswer, _SLAVE),
    Operation(RequestCode.GET_ALL_CONSUMER_OFFSET, NoHeader, NoHeader, _SLAVE),
    Operation(RequestCode.GET_ALL_DELAY_OFFSET, NoHeader, NoHeader, _SLAVE),
    Operation(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, NoHeader, NoHeader, _SLAVE),
    Operation(RequestCode.GET_TIMER_CHECK_POINT, NoHeader, NoHeader, _SLAVE),
    Operation(RequestCode.GET_TIMER_METRICS, NoHeader, NoHeader, _SLAVE),
    Operation(RequestCode.EXCHANGE_BROKER_HA_INFO, ExchangeHaInfo, ExchangeHaInfo, "broker → broker"),
    Operation(RequestCode.GET_BROKER_HA_STATUS, NoHeader, NoHeader, "admin → broker"),
    Operation(RequestCode.RESET_MASTER_FLUSH_OFFSET, ResetMasterFlushOffset, NoHeader, "admin → broker"),
    Operation(RequestCode.ADD_BROKER, NoHeader, NoHeader, "admin → container"),
    Operation(RequestCode.REMOVE_BROKER, NoHeader, NoHeader, "admin → container"),
)
