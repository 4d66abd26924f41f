"""Headers of what a broker knows about its clients: heartbeats, groups, and the locks of orderly consumers.

Heartbeat, locks and the check of a subscription have their content in the body.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import Header, NoHeader, Operation, field


class HeartBeatAnswer(Header, frozen=True):
    """Whether the broker understands short heartbeats, and whether it wants a full one. Before 5.x both are absent."""

    is_support_heart_beat_v2: bool | None = field(name="IS_SUPPORT_HEART_BEAT_V2", default=None)
    is_sub_change: bool | None = field(name="IS_SUB_CHANGE", default=None)


class UnregisterClient(Header, frozen=True):
    """A client leaves a group."""

    client_id: str = field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GetConsumerListByGroup(Header, frozen=True):
    """Asks for the ids of the clients that consume in a group."""

    consumer_group: str


OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.HEART_BEAT, NoHeader, HeartBeatAnswer),
    Operation(RequestCode.UNREGISTER_CLIENT, UnregisterClient, NoHeader),
    Operation(RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroup, NoHeader),
    Operation(RequestCode.LOCK_BATCH_MQ, NoHeader, NoHeader),
    Operation(RequestCode.UNLOCK_BATCH_MQ, NoHeader, NoHeader),
    Operation(RequestCode.CHECK_CLIENT_CONFIG, NoHeader, NoHeader),
    Operation(RequestCode.GET_CLIENT_CONFIG, NoHeader, NoHeader),
)
