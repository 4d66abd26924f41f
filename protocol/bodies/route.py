"""Routes: which brokers serve a topic, and at which addresses. The nameserver's answers 105, 106 and 901."""

from cometmq.protocol.bodies.base import Body, Int32, Int64, always, always_new
from cometmq.protocol.bodies.static_topic import TopicQueueMappingInfo

#: The id of a master among the brokers of one name.
MASTER_ID = 0


class QueueData(Body, frozen=True, kw_only=True):
    """The queues of a topic on one broker."""

    broker_name: str = always("")
    perm: Int32 = always(0)
    read_queue_nums: Int32 = always(0)
    topic_sys_flag: Int32 = always(0)
    write_queue_nums: Int32 = always(0)


class BrokerData(Body, frozen=True, kw_only=True):
    """The brokers of one name: a master and its slaves."""

    #: Broker id -> "ip:port"; id 0 is the master.
    broker_addrs: dict[Int64, str] = always_new(dict)
    broker_name: str = always("")
    cluster: str = always("")
    enable_acting_master: bool = always(False)
    zone_name: str | None = None


class TopicRouteData(Body, frozen=True, kw_only=True):
    """Where a topic lives: the answer of GET_ROUTEINFO_BY_TOPIC."""

    broker_datas: list[BrokerData] = always_new(list)
    filter_server_table: dict[str, list[str]] = always_new(dict)
    #: "broker-a:4;broker-b:4" for ordered topics.
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = always_new(list)
    #: Static topics only: broker name -> mapping.
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


class ClusterInfo(Body, frozen=True, kw_only=True):
    """All brokers and clusters that a nameserver knows."""

    #: Broker name -> its addresses.
    broker_addr_table: dict[str, BrokerData] = always_new(dict)
    #: Cluster name -> broker names.
    cluster_addr_table: dict[str, list[str]] = always_new(dict)


class BrokerMemberGroup(Body, frozen=True, kw_only=True):
    """The brokers of one name, as a broker asks for its own group."""

    broker_addrs: dict[Int64, str] = always_new(dict)
    broker_name: str = always("")
    cluster: str = always("")


class GetBrokerMemberGroupResponseBody(Body, frozen=True, kw_only=True):
    """The answer of GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMemberGroup | None = None
