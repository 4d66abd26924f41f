"""What clients and tools are told about the routes: values and bytes made of the tables, no change to them.

The answer to the one frequent request, where the queues of a topic are, is kept encoded per topic and dialect until the
topic's route changes. Mirrors `pickupTopicRouteData` and the lists of RouteInfoManager, and ZoneRouteRPCHook.
"""

from collections.abc import Callable, Iterable

import msgspec

from cometmq.namesrv.routes import FLAG_UNIT, FLAG_UNIT_SUB, PERM_WRITE, BrokerAddress, Routes
from cometmq.protocol.bodies.lists import TopicList
from cometmq.protocol.bodies.route import MASTER_ID, BrokerData, BrokerMemberGroup, ClusterInfo, TopicRouteData

#: Bytes of encoded routes that are kept. A topic on 50 brokers takes 10 KiB, so this holds 6,000 of such topics; what
#: does not fit is encoded again when it is asked for.
MAX_ENCODED_BYTES = 64 * 1024 * 1024

#: Topics by which brokers find the members of their own group: they must see it as it is, without an acting master.
SYNC_BROKER_MEMBER_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


class RouteAnswers:
    """Routes as clients see them."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._acting_master = False
        self._order_conf: Callable[[str], str | None] | None = None
        # topic -> [fastjson's dialect, standard JSON]; in the order of their making, oldest first.
        self._encoded: dict[str, list[bytes | None]] = {}
        self._bytes = 0

    def configure(self, *, acting_master: bool, order_conf: Callable[[str], str | None] | None) -> None:
        """Whether a slave may appear as the master of its group, and where the order of a topic is looked up."""
        self._acting_master = acting_master
        self._order_conf = order_conf
        self._encoded.clear()
        self._bytes = 0

    def encoded(self, topic: str, *, standard: bool) -> bytes | None:
        """The body of a route; None when there is no route. This is the hot path: one lookup."""
        if self._routes.changed:
            self.forget(self._routes.changed)
            self._routes.changed.clear()
        kept = self._encoded.get(topic)
        if kept is not None and (body := kept[standard]) is not None:
            return body
        return self._encode(topic, standard=standard)

    def forget(self, topics: Iterable[str]) -> None:
        """Encode these routes again when they are asked for."""
        for topic in topics:
            if (kept := self._encoded.pop(topic, None)) is not None:
                self._bytes -= _size(kept)

    def _encode(self, topic: str, *, standard: bool) -> bytes | None:
        route = self.route(topic)
        if route is None:
            return None
        body = route.encode(standard=standard)
        self._encoded.setdefault(topic, [None, None])[standard] = body
        self._bytes += len(body)
        while self._bytes > MAX_ENCODED_BYTES:
            self.forget((next(iter(self._encoded)),))
        return body

    def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic; None when it has no queues or none of their brokers is known."""
        routes = self._routes
        queues = routes.topics.get(topic)
        brokers = [routes.brokers[name] for name in queues if name in routes.brokers] if queues else []
        if not queues or not brokers:
            return None
        if self._acting_master and not topic.startswith(SYNC_BROKER_MEMBER_PREFIX):
            brokers = [
                broker if queues[broker.broker_name].perm & PERM_WRITE else _with_acting_master(broker)
                for broker in brokers
            ]
        return TopicRouteData(
            broker_datas=brokers,
            filter_server_table=self._filter_servers(brokers),
            order_topic_conf=self._order_conf(topic) if self._order_conf else None,
            queue_datas=list(queues.values()),
            topic_queue_mapping_by_broker=routes.mappings.get(topic),
        )

    def _filter_servers(self, brokers: Iterable[BrokerData]) -> dict[str, list[str]]:
        table = self._routes.filter_servers
        if not table:
            return {}
        keys = (BrokerAddress(broker.cluster, addr) for broker in brokers for addr in broker.broker_addrs.values())
        return {key.address: table[key] for key in keys if key in table}


def _size(kept: Iterable[bytes | None]) -> int:
    return sum(len(body) for body in kept if body is not None)


def _with_acting_master(broker: BrokerData) -> BrokerData:
    """A group without its master shows its lowest slave as one, so that clients can go on reading."""
    addresses = broker.broker_addrs
    if MASTER_ID in addresses or not broker.enable_acting_master or not addresses:
        return broker
    lowest = min(addresses)
    renamed = {(MASTER_ID if id_ == lowest else id_): address for id_, address in addresses.items()}
    return msgspec.structs.replace(broker, broker_addrs=renamed)


def in_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """A route without the brokers of other zones. A group without master stays: reading elsewhere beats nothing."""
    wanted = zone.casefold()
    removed = [
        broker
        for broker in route.broker_datas
        if MASTER_ID in broker.broker_addrs and (broker.zone_name or "").casefold() != wanted
    ]
    if not removed:
        return route
    names = {broker.broker_name for broker in removed}
    addresses = {address for broker in removed for address in broker.broker_addrs.values()}
    return msgspec.structs.replace(
        route,
        broker_datas=[broker for broker in route.broker_datas if broker.broker_name not in names],
        queue_datas=[queues for queues in route.queue_datas if queues.broker_name not in names],
        filter_server_table={
            address: servers for address, servers in route.filter_server_table.items() if address not in addresses
        },
    )


def cluster_info(routes: Routes) -> ClusterInfo:
    """All brokers as they registered, acting masters or not."""
    return ClusterInfo(
        broker_addr_table=routes.brokers,
        cluster_addr_table={cluster: list(names) for cluster, names in routes.clusters.items()},
    )


def member_group(routes: Routes, cluster: str, broker_name: str) -> BrokerMemberGroup:
    """Master and slaves of a broker name; nobody when it is unknown."""
    broker = routes.brokers.get(broker_name)
    return BrokerMemberGroup(
        cluster=cluster, broker_name=broker_name, broker_addrs=broker.broker_addrs if broker else {}
    )


def all_topics(routes: Routes) -> TopicList:
    return TopicList(topic_list=list(routes.topics))


def topics_of_cluster(routes: Routes, cluster: str) -> TopicList:
    """Topics with queues on any broker of a cluster; none when the cluster is unknown."""
    found: dict[str, None] = {}
    for name in routes.clusters.get(cluster, ()):
        found.update(dict.fromkeys(routes.topics_of(name)))
    return TopicList(topic_list=list(found))


def system_topics(routes: Routes) -> TopicList:
    """The names of clusters and brokers, each of which is a topic too, and the address of some broker."""
    names = [name for cluster, brokers in routes.clusters.items() for name in (cluster, *brokers)]
    some = next((addr for broker in routes.brokers.values() for addr in broker.broker_addrs.values()), None)
    return TopicList(topic_list=names, broker_addr=some)


def unit_topics(routes: Routes) -> TopicList:
    return _by_flag(routes, lambda flag: flag & FLAG_UNIT != 0)


def unit_sub_topics(routes: Routes) -> TopicList:
    return _by_flag(routes, lambda flag: flag & FLAG_UNIT_SUB != 0)


def unit_sub_un_unit_topics(routes: Routes) -> TopicList:
    """Topics of no unit that have subscribers in a unit."""
    return _by_flag(routes, lambda flag: flag & FLAG_UNIT == 0 and flag & FLAG_UNIT_SUB != 0)


def _by_flag(routes: Routes, matches: Callable[[int], bool]) -> TopicList:
    """The first broker of a topic speaks for it."""
    return TopicList(
        topic_list=[
            topic for topic, queues in routes.topics.items() if matches(next(iter(queues.values())).topic_sys_flag)
        ]
    )
