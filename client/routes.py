"""Where topics live: routes, the queues that follow from them, and the addresses of brokers.

A route is fetched when it is first needed and again every 30 s; who hangs on a topic is told when it has changed. A
topic that vanishes keeps its last route. RocketMQ's MQClientInstance (its tables) and TopicPublishInfo.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable

import msgspec

from cometmq.client.errors import BrokerError, NoBroker, NoNameserver, NoRoute
from cometmq.client.nameservers import Nameservers
from cometmq.client.queues import MessageQueue
from cometmq.protocol import names
from cometmq.protocol.bodies.route import MASTER_ID, BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import ProtocolError
from cometmq.protocol.requests.namesrv import GetRouteInfo
from cometmq.remoting.errors import TransportError

log = logging.getLogger(__name__)

PERM_READ, PERM_WRITE = 4, 2


class TopicRoute(msgspec.Struct, frozen=True):
    """A topic's route and the queues that follow from it."""

    topic: str
    data: TopicRouteData
    #: Where messages can be sent, in the order of the round robin.
    publish: tuple[MessageQueue, ...]
    #: Where messages can be read.
    subscribe: tuple[MessageQueue, ...]
    #: Whether an order configuration prescribes the queues: they stay when a broker is down.
    is_ordered: bool = False
    #: Whether it is that of the template topic: the broker makes the topic on the first message.
    is_template: bool = False


def route_of(topic: str, data: TopicRouteData, *, template_queues: int | None = None) -> TopicRoute:
    """The queues of a route. For a template at most `template_queues` a broker, as the new topic will have."""
    queues = sorted(data.queue_datas, key=lambda each: each.broker_name)
    if template_queues is not None:
        queues = [_capped(each, template_queues) for each in queues]
    masters = {broker.broker_name for broker in data.broker_datas if MASTER_ID in broker.broker_addrs}
    ordered = _ordered_queues(topic, data.order_topic_conf) if data.order_topic_conf else None
    publish = [
        MessageQueue(topic, each.broker_name, queue_id)
        for each in queues
        if each.perm & PERM_WRITE and each.broker_name in masters
        for queue_id in range(each.write_queue_nums)
    ]
    subscribe = [
        MessageQueue(topic, each.broker_name, queue_id)
        for each in queues
        if each.perm & PERM_READ
        for queue_id in range(each.read_queue_nums)
    ]
    return TopicRoute(
        topic,
        data,
        tuple(publish if ordered is None else ordered),
        tuple(subscribe),
        is_ordered=ordered is not None,
        is_template=template_queues is not None,
    )


def _capped(queues: QueueData, most: int) -> QueueData:
    count = min(most, queues.read_queue_nums)
    return msgspec.structs.replace(queues, read_queue_nums=count, write_queue_nums=count)


def _ordered_queues(topic: str, text: str) -> list[MessageQueue]:
    """The queues of an order configuration: `broker-a:4;broker-b:4`."""
    queues = []
    for entry in text.split(";"):
        broker, _, count = entry.rpartition(":")
        if broker and count.isascii() and count.isdigit():
            queues += [MessageQueue(topic, broker, queue_id) for queue_id in range(int(count))]
    return queues


def why_unwritable(route: TopicRoute, topic: str) -> NoRoute:
    """Why a topic that has a route has no queue that can be sent to. `topic` as its user wrote it."""
    data = route.data
    brokers = sorted(each.broker_name for each in data.queue_datas)
    writable = [each for each in data.queue_datas if each.perm & PERM_WRITE]
    if not brokers:
        return NoRoute(f"topic {topic} is on no broker any more", retriable=True)
    if not writable:
        return NoRoute(
            f"topic {topic} may not be written to on {', '.join(brokers)}",
            remedy="allow it again with mqadmin updateTopicPerm (6: read and write), or updateTopic -p 6",
        )
    if not any(each.write_queue_nums for each in writable):
        return NoRoute(
            f"topic {topic} has no write queues on {', '.join(brokers)}",
            remedy="give it some with mqadmin updateTopic -w",
        )
    return NoRoute(
        f"topic {topic} has no master: only slaves of {', '.join(each.broker_name for each in writable)} are up",
        remedy="start the master again, or use a topic on several brokers",
        retriable=True,
    )


class BrokerTable:
    """Broker name -> id -> address, from all routes that are known; and the versions that heartbeats told."""

    def __init__(self) -> None:
        self._brokers: dict[str, dict[int, str]] = {}
        #: By address.
        self.versions: dict[str, int] = {}

    def learn(self, brokers: Iterable[BrokerData]) -> None:
        for broker in brokers:
            self._brokers[broker.broker_name] = dict(broker.broker_addrs)

    def keep_only(self, routes: Iterable[TopicRoute]) -> None:
        """Forget addresses that no route has any more."""
        known: dict[str, set[str]] = {}
        for route in routes:
            for broker in route.data.broker_datas:
                known.setdefault(broker.broker_name, set()).update(broker.broker_addrs.values())
        for name in list(self._brokers):
            self._brokers[name] = {
                number: address for number, address in self._brokers[name].items() if address in known.get(name, ())
            }
            if not self._brokers[name]:
                del self._brokers[name]

    def master(self, name: str) -> str:
        """The address of a master; NoBroker without one."""
        address = self._brokers.get(name, {}).get(MASTER_ID)
        if address is None:
            raise NoBroker(f"broker {name} has no master in the routes")
        return address

    def has(self, name: str) -> bool:
        """Whether a broker has a master in the routes."""
        return MASTER_ID in self._brokers.get(name, {})

    def for_pull(self, name: str, broker_id: int = MASTER_ID) -> tuple[str, bool]:
        """The address to read from, and whether it is a slave's: the one that was suggested, else another."""
        brokers = self._brokers.get(name, {})
        for number in (broker_id, broker_id + 1) if broker_id != MASTER_ID else (broker_id,):
            if number in brokers:
                return brokers[number], number != MASTER_ID
        if not brokers:
            raise NoBroker(f"broker {name} has no address in the routes")
        number, address = random.choice(list(brokers.items()))
        return address, number != MASTER_ID

    def addresses(self, *, masters_only: bool = False) -> list[str]:
        """All addresses, or those of masters: where heartbeats go."""
        return list(
            dict.fromkeys(
                address
                for brokers in self._brokers.values()
                for number, address in brokers.items()
                if number == MASTER_ID or not masters_only
            )
        )

    def name_of(self, address: str) -> str | None:
        return next((name for name, brokers in self._brokers.items() if address in brokers.values()), None)


class Routes:
    """The routes of one client. Mutable state: routes by topic, fetches under way, the broker table."""

    def __init__(self, nameservers: Nameservers, *, request_timeout: float = 3.0) -> None:
        self._nameservers = nameservers
        self._timeout = request_timeout
        self._routes: dict[str, TopicRoute] = {}
        self._fetching: dict[str, asyncio.Task[TopicRoute]] = {}
        self.brokers = BrokerTable()
        #: Told of a topic whose route is new or has changed.
        self.on_changed: list[Callable[[TopicRoute], None]] = []
        #: Told of a topic that does not exist any more.
        self.on_forgotten: list[Callable[[TopicRoute], None]] = []

    def known(self, topic: str) -> TopicRoute | None:
        """The route without asking anybody. Hot: once a send."""
        return self._routes.get(topic)

    @property
    def topics(self) -> list[str]:
        return list(self._routes)

    async def get(self, topic: str) -> TopicRoute:
        """The route, asked for when it is not known. NoRoute says why there is none."""
        route = self._routes.get(topic)
        return route if route is not None and not route.is_template else await self.fetch(topic)

    async def for_send(self, topic: str, *, template: str, template_queues: int) -> TopicRoute:
        """The route to send by; that of the template topic when the topic does not exist yet."""
        try:
            return await self.get(topic)
        except NoRoute as error:
            if topic == template:
                raise
            try:
                data = await self._ask(names.DEFAULT_TOPIC)
            except NoRoute:
                raise await self._why_missing(topic) from error
        route = route_of(topic, data, template_queues=template_queues)
        self._take(route)
        return route

    async def fetch(self, topic: str) -> TopicRoute:
        """Ask for a route now. Callers at the same time share one request."""
        task = self._fetching.get(topic)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(topic))
            self._fetching[topic] = task
            task.add_done_callback(lambda done: self._fetched(topic, done))
        # Who gives up leaves the request to the others.
        return await asyncio.shield(task)

    def _fetched(self, topic: str, task: asyncio.Task[TopicRoute]) -> None:
        self._fetching.pop(topic, None)
        if not task.cancelled():
            task.exception()  # nobody may be left to look at it, and asyncio would complain

    async def refresh(self, topics: Iterable[str]) -> None:
        """Ask for these routes again. A topic that cannot be had keeps its route."""
        for topic in topics:
            try:
                await self.fetch(topic)
            except NoRoute as error:
                if not topic.startswith(names.RETRY_PREFIX) and self._routes.get(topic) is None:
                    log.warning("no route for %s: %s", topic, error)
            except (NoNameserver, BrokerError, TransportError) as error:
                log.warning("the route of %s could not be refreshed: %s", topic, error)
        self.brokers.keep_only(self._routes.values())

    def forget(self, topic: str) -> None:
        """A topic does not exist any more: who needs it asks anew."""
        route = self._routes.pop(topic, None)
        if route is not None:
            for tell in self.on_forgotten:
                tell(route)

    async def close(self) -> None:
        tasks = list(self._fetching.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _fetch(self, topic: str) -> TopicRoute:
        route = route_of(topic, await self._ask(topic))
        return self._take(route)

    async def _ask(self, topic: str) -> TopicRouteData:
        header = GetRouteInfo(topic=topic, accept_standard_json_only=True)
        answer = await self._nameservers.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, timeout=self._timeout)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRoute(f"no nameserver knows the topic {topic}")
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerError.of(answer, "the nameserver")
        return TopicRouteData.decode(answer.body)

    async def _why_missing(self, topic: str) -> NoRoute:
        """Why a topic cannot be sent to that no nameserver knows, nor any that is made on demand."""
        try:
            answer = await self._nameservers.request(RequestCode.GET_BROKER_CLUSTER_INFO, timeout=self._timeout)
            brokers = sorted(ClusterInfo.decode(answer.body).broker_addr_table) if answer.code == 0 else None
        except (NoNameserver, TransportError, ProtocolError) as error:
            log.debug("which brokers there are is not known: %s", error)
            brokers = None
        if brokers is not None and not brokers:
            return NoRoute(
                f"topic {topic} has no route: no broker is registered with the nameserver",
                remedy="start a broker, or check that its namesrvAddr names this nameserver",
                retriable=True,
            )
        where = f"on {', '.join(brokers)}" if brokers else "everywhere"
        return NoRoute(
            f"topic {topic} does not exist, and auto-creation is off {where} (autoCreateTopicEnable)",
            remedy="create the topic (mqadmin updateTopic), or check its name",
        )

    def _take(self, route: TopicRoute) -> TopicRoute:
        self.brokers.learn(route.data.broker_datas)
        old = self._routes.get(route.topic)
        if old is not None and old.is_template == route.is_template and _same(old.data, route.data):
            return old
        self._routes[route.topic] = route
        for tell in self.on_changed:
            tell(route)
        return route


def _same(old: TopicRouteData, new: TopicRouteData) -> bool:
    """Whether two routes say the same, whatever their order."""
    return (
        old.order_topic_conf == new.order_topic_conf
        and sorted(old.queue_datas, key=lambda each: each.broker_name)
        == sorted(new.queue_datas, key=lambda each: each.broker_name)
        and sorted(old.broker_datas, key=lambda each: each.broker_name)
        == sorted(new.broker_datas, key=lambda each: each.broker_name)
    )
