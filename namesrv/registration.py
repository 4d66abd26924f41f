"""How a broker's registration changes the route tables.

One function, atomic because it never awaits; the steps are those of RouteInfoManager.registerBroker. Decoding the
request and sending the answer are the business of `handlers`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from cometmq.namesrv.routes import PERM_WRITE, BrokerAddress, BrokerLive, MinIdChange, Routes
from cometmq.protocol.bodies.registration import DataVersion, TopicConfig
from cometmq.protocol.bodies.route import MASTER_ID, BrokerData
from cometmq.protocol.bodies.static_topic import TopicQueueMappingInfo

#: A broker that does not say how long its silence means its end is given this long.
DEFAULT_HEARTBEAT_TIMEOUT_MILLIS = 120_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_server_addr: str
    zone_name: str | None = None
    heartbeat_timeout_millis: int | None = None
    #: None: a broker from before acting masters.
    enable_acting_master: bool | None = None
    data_version: DataVersion = field(default_factory=DataVersion)
    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    mappings: Mapping[str, TopicQueueMappingInfo] = field(default_factory=dict)
    filter_servers: Sequence[str] | None = None
    channel: object | None = None


class Registered(NamedTuple):
    """What a broker is told, and who else should know."""

    master_addr: str | None = None
    ha_server_addr: str | None = None
    min_id_change: MinIdChange | None = None


def register(routes: Routes, broker: Registration, *, now: float, prune: bool = False) -> Registered | None:
    """Enter a broker and its topics; None when it has to register all of its topics first.

    With `prune` (deleteTopicWithBrokerRegistration) the topics that it does not bring are dropped for it.
    """
    name, key = broker.broker_name, BrokerAddress(broker.cluster, broker.address)
    known = routes.brokers.get(name)
    addresses = dict(known.broker_addrs) if known else {}
    if broker.broker_id not in addresses and len(broker.topics) == 1:
        # One topic is an incremental registration, and nobody is there to increment. Refused before anything is
        # touched, so that no name without addresses stays behind.
        log.warning("refused %s: its first registration brings one topic only", key)
        return None

    # An empty group counts as 0, so that the first slave is no change.
    min_id_lowered = broker.broker_id < min(addresses, default=0)
    # A process that changed its role is known by its address.
    for id_ in [i for i, address in addresses.items() if address == broker.address and i != broker.broker_id]:
        del addresses[id_]

    holder = addresses.get(broker.broker_id)
    is_stale = holder is not None and holder != broker.address and _is_newer(routes, broker, holder)
    is_first = holder is None
    if not is_stale:
        addresses[broker.broker_id] = broker.address
    routes.join_cluster(name, broker.cluster)
    routes.put_broker(_broker_data(broker, known, addresses))
    if is_stale:
        log.warning("ignored %s: %s holds id %d with a newer state", key, holder, broker.broker_id)
        routes.drop_live(key)
        return Registered()

    is_master = broker.broker_id == MASTER_ID
    is_prime_slave = not is_master and broker.enable_acting_master is not None and broker.broker_id == min(addresses)
    if is_master or is_prime_slave:
        _enter_topics(
            routes,
            broker,
            is_first=is_first,
            prune=prune,
            read_only=is_prime_slave and bool(broker.enable_acting_master),
        )

    if is_first or key not in routes.live:
        log.info("new broker %s id %d at %s, %d topics", name, broker.broker_id, key, len(broker.topics))
    timeout = broker.heartbeat_timeout_millis
    timeout = DEFAULT_HEARTBEAT_TIMEOUT_MILLIS if timeout is None else timeout
    routes.put_live(key, BrokerLive(now, timeout / 1000, broker.data_version, broker.channel, broker.ha_server_addr))
    if broker.filter_servers is not None:
        routes.put_filter_servers(key, broker.filter_servers)

    master_addr = ha_server_addr = None
    if not is_master and (address := addresses.get(MASTER_ID)) is not None:
        master = routes.live.get(BrokerAddress(broker.cluster, address))
        if master is not None:
            master_addr, ha_server_addr = address, master.ha_server_addr
    change = routes.min_id_change(name, offline=None, ha=broker.ha_server_addr) if min_id_lowered else None
    return Registered(master_addr, ha_server_addr, change)


def _is_newer(routes: Routes, broker: Registration, holder: str) -> bool:
    """Whether the present holder of an id has seen a later state of its group than the broker that wants the id."""
    live = routes.live.get(BrokerAddress(broker.cluster, holder))
    return live is not None and live.data_version.state_version > broker.data_version.state_version


def _broker_data(broker: Registration, known: BrokerData | None, addresses: dict[int, str]) -> BrokerData:
    enable_acting_master = bool(broker.enable_acting_master)
    if known is None:
        return BrokerData(
            broker_addrs=addresses,
            broker_name=broker.broker_name,
            cluster=broker.cluster,
            enable_acting_master=enable_acting_master,
            zone_name=broker.zone_name,
        )
    return msgspec.structs.replace(
        known, broker_addrs=addresses, enable_acting_master=enable_acting_master, zone_name=broker.zone_name
    )


def _enter_topics(routes: Routes, broker: Registration, *, is_first: bool, prune: bool, read_only: bool) -> None:
    name, topics = broker.broker_name, broker.topics
    own = routes.topics_of(name)
    if prune and not broker.mappings:
        routes.drop_queue_data(name, [topic for topic in own if topic not in topics])

    live = routes.live.get(BrokerAddress(broker.cluster, broker.address))
    is_changed = is_first or live is None or live.data_version != broker.data_version
    # The usual case, a broker that repeats itself every 30 s, ends with this difference of two sets.
    for topic in topics if is_changed else topics.keys() - own:
        config = topics[topic]
        perm = config.perm & ~PERM_WRITE if read_only else config.perm
        routes.put_queue_data(
            config.topic_name or topic,
            routes.queue_data(name, perm, config.read_queue_nums, config.write_queue_nums, config.topic_sys_flag),
        )
    if is_changed:
        routes.put_mappings(broker.mappings)
