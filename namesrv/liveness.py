"""Which brokers are alive, and what happens to the route tables when one is not.

Plain functions on `Routes`, with the time as an argument. Mirrors the heartbeat half of RouteInfoManager and its
batch unregistration; there is no queue in between: a change that never awaits is a batch of its own.
"""

import logging
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from cometmq.namesrv.routes import PERM_WRITE, BrokerAddress, MinIdChange, Routes
from cometmq.protocol.bodies.registration import DataVersion
from cometmq.protocol.bodies.route import MASTER_ID

log = logging.getLogger(__name__)


class Departure(NamedTuple):
    """A broker process that is to be forgotten."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str


def heartbeat(routes: Routes, key: BrokerAddress, *, now: float) -> None:
    """A sign of life; of an unknown broker it means nothing."""
    if (live := routes.live.get(key)) is not None:
        live.last_update = now


def is_changed(routes: Routes, key: BrokerAddress, version: DataVersion | None) -> bool:
    """Whether a broker has to register again for its topics to be known in this version."""
    live = routes.live.get(key)
    return live is None or live.data_version != version


def expired(routes: Routes, *, now: float) -> list[BrokerAddress]:
    """Who was silent for longer than it promised."""
    return [key for key, live in routes.live.items() if live.last_update + live.timeout < now]


def departures(routes: Routes, keys: Iterable[BrokerAddress]) -> list[Departure]:
    """The brokers that are gone with these processes, by every name that has their address.

    An address that belongs to no name any more (another process took its id) leaves nothing but its live entry, which
    is dropped here.
    """
    found = []
    for key in keys:
        gone = [
            Departure(key.cluster, name, id_, key.address)
            for name, broker in routes.brokers.items()
            if broker.cluster == key.cluster
            for id_, address in broker.broker_addrs.items()
            if address == key.address
        ]
        found += gone
        if not gone:
            routes.drop_live(key)
            routes.put_filter_servers(key, ())
    return found


def unregister(routes: Routes, batch: Iterable[Departure]) -> list[MinIdChange]:
    """Forget brokers, all in one step; who has to know about a new lowest id among the rest."""
    reduced: set[str] = set()
    lowered: dict[str, str] = {}
    for gone in batch:
        key = BrokerAddress(gone.cluster, gone.address)
        routes.put_filter_servers(key, ())
        if routes.drop_live(key) is not None:
            log.info("broker %s id %d at %s is gone", gone.broker_name, gone.broker_id, key)
        broker = routes.brokers.get(gone.broker_name)
        if broker is None:
            continue
        if gone.broker_id == min(broker.broker_addrs, default=None):
            lowered[gone.broker_name] = gone.address
        rest = {id_: address for id_, address in broker.broker_addrs.items() if address != gone.address}
        if rest:
            routes.put_broker(msgspec.structs.replace(broker, broker_addrs=rest))
            reduced.add(gone.broker_name)
        else:
            routes.drop_broker(gone.broker_name)

    changes = []
    for name in reduced:
        broker = routes.brokers.get(name)
        if broker is None or not broker.enable_acting_master:
            continue
        if MASTER_ID not in broker.broker_addrs:
            # The slaves that are left serve reads only.
            routes.set_perm(name, keep=~PERM_WRITE, add=0)
        if name in lowered and (change := routes.min_id_change(name, offline=lowered[name], ha=None)):
            changes.append(change)
    return changes
