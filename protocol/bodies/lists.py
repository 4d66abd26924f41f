"""Lists of names: topics, groups, consumers, producers."""

from cometmq.protocol.bodies.base import Body, Int32, Int64, always, always_new


class TopicList(Body, frozen=True, kw_only=True):
    """Names of topics."""

    broker_addr: str | None = None
    topic_list: list[str] = always_new(list)


class GroupList(Body, frozen=True, kw_only=True):
    """Names of consumer groups."""

    group_list: list[str] = always_new(list)


class GetConsumerListByGroupResponseBody(Body, frozen=True, kw_only=True):
    """The client ids of a group's members. All members must get the same list: they divide the queues by it."""

    consumer_id_list: list[str] = always_new(list)


class ProducerInfo(Body, frozen=True, kw_only=True):
    """A producer's connection."""

    client_id: str = always("")
    language: str | None = None
    last_update_timestamp: Int64 = always(0)
    remote_ip: str = always("", name="remoteIP")
    version: Int32 = always(0)


class ProducerTableInfo(Body, frozen=True, kw_only=True):
    """All producers of a broker by group."""

    data: dict[str, list[ProducerInfo]] = always_new(dict)
