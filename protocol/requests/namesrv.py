"""Headers of the requests that a nameserver answers, and of the one that it sends.

They mirror RocketMQ's `header.namesrv` package. The zone of a client or broker is no field of these: it is one of the
keys that any request may carry.
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, NoHeader, Operation, field


class GetRouteInfo(Header, frozen=True):
    """Asks where the queues of a topic are."""

    # Without a topic the nameserver answers TOPIC_NOT_EXIST for the topic "null", so this is no error of the header.
    topic: str | None = None
    accept_standard_json_only: bool | None = None


class RegisterBroker(Header, frozen=True):
    """A broker announces itself and its topics."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str
    broker_id: I64
    heartbeat_timeout_millis: I64 | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: I32 = field(name="bodyCrc32", default=0)


class RegisterBrokerAnswer(Header, frozen=True):
    """Tells a slave where its master is."""

    ha_server_addr: str | None = None
    master_addr: str | None = None


class UnregisterBroker(Header, frozen=True):
    """A broker takes its leave."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class QueryDataVersion(Header, frozen=True):
    """A broker asks whether its topics are known in their latest version; also a sign of life."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: I64


class QueryDataVersionAnswer(Header, frozen=True):
    """Whether the broker has to register again."""

    changed: bool


class BrokerHeartbeat(Header, frozen=True):
    """A sign of life of a broker; a controller reads more of it than a nameserver."""

    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: I64 | None = None
    epoch: I32 | None = None
    max_offset: I64 | None = None
    confirm_offset: I64 | None = None
    heartbeat_timeout_mills: I64 | None = None  # spelled otherwise than in a registration
    election_priority: I32 | None = None


class RegisterTopic(Header, frozen=True):
    """A broker announces one topic; the body is a route."""

    topic: str


class GetBrokerMemberGroup(Header, frozen=True):
    """Asks for the master and the slaves of one broker name."""

    cluster_name: str
    broker_name: str


class GetTopicsByCluster(Header, frozen=True):
    """Asks for the topics that any broker of a cluster has."""

    cluster: str


class DeleteTopicInNamesrv(Header, frozen=True):
    """Forgets the route of a topic, everywhere or in one cluster."""

    topic: str
    cluster_name: str | None = None


class PutKvConfig(Header, frozen=True):
    """Sets a value in a namespace of the KV config."""

    # A request without namespace or key has an answer of its own, so all three get as far as the handler.
    namespace: str | None = None
    key: str | None = None
    value: str | None = None


class GetKvConfig(Header, frozen=True):
    """Asks for a value of the KV config."""

    namespace: str
    key: str


class GetKvConfigAnswer(Header, frozen=True):
    """A value of the KV config; absent with QUERY_NOT_FOUND."""

    value: str | None = None


class DeleteKvConfig(Header, frozen=True):
    """Removes a value from the KV config."""

    namespace: str
    key: str


class GetKvList(Header, frozen=True):
    """Asks for all values of a namespace of the KV config."""

    namespace: str


class WipeWritePerm(Header, frozen=True):
    """Takes the write permission of all topics of a broker away."""

    broker_name: str


class WipeWritePermAnswer(Header, frozen=True):
    """How many topics were changed."""

    wipe_topic_count: I32


class AddWritePerm(Header, frozen=True):
    """Gives the write permission of all topics of a broker back."""

    broker_name: str


class AddWritePermAnswer(Header, frozen=True):
    """How many topics were changed."""

    add_topic_count: I32


class NotifyMinBrokerIdChange(Header, frozen=True):
    """Tells the brokers of a name that the lowest id among them is another one now."""

    min_broker_id: I64 | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


_CLIENT = "client → nameserver"
_BROKER = "broker → nameserver"
_ADMIN = "admin → nameserver"

OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfo, NoHeader, _CLIENT),
    Operation(RequestCode.REGISTER_BROKER, RegisterBroker, RegisterBrokerAnswer, _BROKER),
    Operation(RequestCode.UNREGISTER_BROKER, UnregisterBroker, NoHeader, _BROKER),
    Operation(RequestCode.QUERY_DATA_VERSION, QueryDataVersion, QueryDataVersionAnswer, _BROKER),
    Operation(RequestCode.BROKER_HEARTBEAT, BrokerHeartbeat, NoHeader, _BROKER, oneway=True),
    Operation(RequestCode.REGISTER_TOPIC_IN_NAMESRV, RegisterTopic, NoHeader, _BROKER),
    Operation(RequestCode.GET_BROKER_MEMBER_GROUP, GetBrokerMemberGroup, NoHeader, _BROKER),
    Operation(RequestCode.GET_BROKER_CLUSTER_INFO, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_TOPICS_BY_CLUSTER, GetTopicsByCluster, NoHeader, _ADMIN),
    Operation(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_UNIT_TOPIC_LIST, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopicInNamesrv, NoHeader, _ADMIN),
    Operation(RequestCode.PUT_KV_CONFIG, PutKvConfig, NoHeader, _ADMIN),
    Operation(RequestCode.GET_KV_CONFIG, GetKvConfig, GetKvConfigAnswer, _ADMIN),
    Operation(RequestCode.DELETE_KV_CONFIG, DeleteKvConfig, NoHeader, _ADMIN),
    Operation(RequestCode.GET_KVLIST_BY_NAMESPACE, GetKvList, NoHeader, _ADMIN),
    Operation(RequestCode.WIPE_WRITE_PERM_OF_BROKER, WipeWritePerm, WipeWritePermAnswer, _ADMIN),
    Operation(RequestCode.ADD_WRITE_PERM_OF_BROKER, AddWritePerm, AddWritePermAnswer, _ADMIN),
    Operation(RequestCode.UPDATE_NAMESRV_CONFIG, NoHeader, NoHeader, _ADMIN),
    Operation(RequestCode.GET_NAMESRV_CONFIG, NoHeader, NoHeader, _ADMIN),
    Operation(
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, NotifyMinBrokerIdChange, NoHeader, "nameserver → broker", oneway=True
    ),
)
