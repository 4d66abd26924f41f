"""The route tables of a nameserver: which broker has which queues of which topic.

Plain state: no sockets, no clock, nothing awaits, so every change is atomic for the handlers. How registrations and
lost brokers change the tables is in `registration` and `liveness`; what clients are told is in `answers`. All mutable
state of the routes is in the attributes of `Routes`. Mirrors the tables of RocketMQ's RouteInfoManager.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from cometmq.protocol.bodies.registration import DataVersion
from cometmq.protocol.bodies.route import BrokerData, QueueData
from cometmq.protocol.bodies.static_topic import TopicQueueMappingInfo

#: Bits of QueueData.perm.
PERM_READ, PERM_WRITE = 4, 2

#: Bits of QueueData.topicSysFlag.
FLAG_UNIT, FLAG_UNIT_SUB = 1, 2

#: Distinct queue settings of one broker that are shared between topics; far above what a real broker has.
MAX_SHARED_QUEUE_DATA = 4096


class BrokerAddress(NamedTuple):
    """What a live broker process is known by."""

    cluster: str
    address: str

    def __str__(self) -> str:
        return f"{self.address} of {self.cluster}"


@dataclass(slots=True)
class BrokerLive:
    """When and how a broker process was last heard of."""

    last_update: float  # seconds, on the clock of whoever calls
    timeout: float  # seconds
    data_version: DataVersion
    channel: object | None  # the connection it registered on
    ha_server_addr: str


class MinIdChange(NamedTuple):
    """The lowest id of a broker name is another one now, and these addresses should be told."""

    broker_name: str
    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None
    ha_broker_addr: str | None
    recipients: tuple[str, ...]


class Routes:
    """The tables. Readers use the attributes; the methods keep them consistent with each other."""

    def __init__(self) -> None:
        #: topicQueueTable: topic -> broker name -> queues.
        self.topics: dict[str, dict[str, QueueData]] = {}
        #: brokerAddrTable. The values are replaced, never changed, so that answers may share them.
        self.brokers: dict[str, BrokerData] = {}
        #: clusterAddrTable: cluster -> broker names, a set that keeps its order.
        self.clusters: dict[str, dict[str, None]] = {}
        #: brokerLiveTable.
        self.live: dict[BrokerAddress, BrokerLive] = {}
        #: filterServerTable; empty with brokers of our time.
        self.filter_servers: dict[BrokerAddress, list[str]] = {}
        #: topicQueueMappingInfoTable, for static topics: topic -> broker name -> mapping.
        self.mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}

        # Two indexes: nothing below walks over all topics or all live brokers to find a few of them.
        self._topics_of: dict[str, set[str]] = {}
        self._live_on: dict[object, set[BrokerAddress]] = {}
        # Most topics of a broker have the same queues; one value for all of them saves the memory of the others.
        self._shared: dict[str, dict[tuple[int, int, int, int], QueueData]] = {}
        #: Topics whose route may have changed; whoever keeps answers takes them out.
        self.changed: set[str] = set()

    # Brokers

    def put_broker(self, data: BrokerData) -> None:
        """Set what is known of a broker name."""
        name = data.broker_name
        if self.brokers.get(name) != data:
            self.brokers[name] = data
            self.changed.update(self._topics_of.get(name, ()))

    def drop_broker(self, name: str) -> None:
        """Forget a broker name, its queues, and its topics and cluster when they had no other broker."""
        self.brokers.pop(name, None)
        self._shared.pop(name, None)
        for cluster in [cluster for cluster, names in self.clusters.items() if name in names]:
            del self.clusters[cluster][name]
            if not self.clusters[cluster]:
                del self.clusters[cluster]
        self.drop_queue_data(name, self.topics_of(name))
        self._topics_of.pop(name, None)

    def join_cluster(self, name: str, cluster: str) -> None:
        self.clusters.setdefault(cluster, {})[name] = None

    def min_id_change(self, name: str, *, offline: str | None, ha: str | None) -> MinIdChange | None:
        """Who has to know that the lowest id of a broker name changed; None when nobody is left.

        A newcomer is not told about itself unless it is alone; when somebody left, all others are told.
        """
        data = self.brokers.get(name)
        if data is None or not data.broker_addrs:
            return None
        lowest = min(data.broker_addrs)
        everybody = offline is not None or len(data.broker_addrs) == 1
        recipients = tuple(addr for id_, addr in data.broker_addrs.items() if everybody or id_ != lowest)
        return MinIdChange(name, lowest, data.broker_addrs[lowest], offline, ha, recipients)

    # Live processes

    def put_live(self, key: BrokerAddress, live: BrokerLive) -> None:
        self.drop_live(key)
        self.live[key] = live
        if live.channel is not None:
            self._live_on.setdefault(live.channel, set()).add(key)

    def drop_live(self, key: BrokerAddress) -> BrokerLive | None:
        live = self.live.pop(key, None)
        if live is not None and live.channel is not None:
            keys = self._live_on[live.channel]
            keys.discard(key)
            if not keys:
                del self._live_on[live.channel]
        return live

    def live_on(self, channel: object) -> tuple[BrokerAddress, ...]:
        """Who registered last on this very connection."""
        return tuple(self._live_on.get(channel, ()))

    def put_filter_servers(self, key: BrokerAddress, servers: Sequence[str]) -> None:
        if list(servers) == self.filter_servers.get(key, []):
            return
        if servers:
            self.filter_servers[key] = list(servers)
        else:
            del self.filter_servers[key]
        for name, data in self.brokers.items():
            if key.address in data.broker_addrs.values():
                self.changed.update(self.topics_of(name))

    # Topics

    def topics_of(self, broker_name: str) -> AbstractSet[str]:
        """The topics that have queues on a broker name."""
        return self._topics_of.get(broker_name, frozenset())

    def queue_data(self, broker_name: str, perm: int, read: int, write: int, flag: int) -> QueueData:
        """Queues of a broker, the same object for the same settings."""
        shared = self._shared.setdefault(broker_name, {})
        data = shared.get((perm, read, write, flag))
        if data is None:
            if len(shared) >= MAX_SHARED_QUEUE_DATA:
                shared.clear()
            data = shared[perm, read, write, flag] = QueueData(
                broker_name=broker_name, perm=perm, read_queue_nums=read, write_queue_nums=write, topic_sys_flag=flag
            )
        return data

    def put_queue_data(self, topic: str, data: QueueData) -> bool:
        """Set the queues of a topic on a broker; False when nothing was different."""
        name = data.broker_name
        queues = self.topics.get(topic)
        if queues is not None:
            old = queues.get(name)
            if old is data or old == data:
                return False
        topic = sys.intern(topic)  # every broker brings a string of its own for it
        if queues is None:
            queues = self.topics[topic] = {}
        queues[name] = data
        self._topics_of.setdefault(name, set()).add(topic)
        self.changed.add(topic)
        return True

    def drop_queue_data(self, broker_name: str, topics: Iterable[str]) -> None:
        """Forget the queues that topics have on a broker, and the topics that have no other."""
        own = self._topics_of.get(broker_name, set())
        for topic in list(topics):
            queues = self.topics.get(topic)
            if queues is None or queues.pop(broker_name, None) is None:
                continue
            own.discard(topic)
            self.changed.add(topic)
            if not queues:
                del self.topics[topic]

    def set_perm(self, broker_name: str, *, keep: int, add: int) -> int:
        """Change the permission of all queues on a broker to `perm & keep | add`; how many topics have queues there."""
        topics = self.topics_of(broker_name)
        for topic in topics:
            old = self.topics[topic][broker_name]
            perm = old.perm & keep | add
            if perm != old.perm:
                self.topics[topic][broker_name] = self.queue_data(
                    broker_name, perm, old.read_queue_nums, old.write_queue_nums, old.topic_sys_flag
                )
                self.changed.add(topic)
        return len(topics)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, or its queues on the brokers of one cluster. The brokers may announce it again."""
        names = self.topics.get(topic, {}) if cluster is None else self.clusters.get(cluster, {})
        for name in list(names):
            self.drop_queue_data(name, (topic,))

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> bool:
        """Set queues one by one until a broker name is unknown: then the rest is dropped, and a new topic wholly."""
        is_new = topic not in self.topics
        accepted = []
        for data in queues:
            if data.broker_name not in self.brokers:
                if not is_new:
                    break
                return False
            accepted.append(data)
        for data in accepted:
            self.put_queue_data(topic, data)
        return bool(accepted)

    def put_mappings(self, mappings: Mapping[str, TopicQueueMappingInfo]) -> None:
        """Merge the mappings of static topics, each under the broker name that it gives itself."""
        for topic, info in mappings.items():
            table = self.mappings.setdefault(topic, {})
            name = info.bname
            if table.get(name) != info:
                table[name] = info
                self.changed.add(topic)
