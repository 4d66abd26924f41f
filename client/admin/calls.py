"""What all parts of the admin client stand on: asking a broker, a nameserver, all nameservers; finding brokers.

Names of topics and groups are taken as the servers have them: no namespace is added. RocketMQ's DefaultMQAdminExtImpl
(its private half).
"""

import random
from typing import TYPE_CHECKING, Final, TypeVar

from cometmq.client.admin.errors import UnknownBroker, UnknownCluster
from cometmq.client.errors import BrokerError, NoBroker, NoNameserver
from cometmq.protocol.bodies.base import Body
from cometmq.protocol.bodies.route import MASTER_ID, BrokerData, ClusterInfo, TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.header import Header
from cometmq.protocol.requests.namesrv import GetRouteInfo
from cometmq.remoting.errors import TransportError
from cometmq.remoting.pending import Answer

if TYPE_CHECKING:
    from cometmq.client.client import Client

#: Seconds for one request, and for one that makes a broker look at many queues.
ADMIN_TIMEOUT: Final = 5.0
LONG_TIMEOUT: Final = 15.0

_B = TypeVar("_B", bound=Body)


class AdminCalls:
    """The base of the parts. It keeps nothing: connections and known brokers are the client's."""

    def __init__(self, client: "Client", *, request_timeout: float = ADMIN_TIMEOUT) -> None:
        self._client = client
        self._timeout = request_timeout
        self._long_timeout = max(LONG_TIMEOUT, request_timeout)

    # Asking

    async def _ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the budget of one request
    ) -> Answer:
        """Ask one server; what it refuses is raised as a BrokerError."""
        self._client.check_running()
        answer = await self._client.remoting.request(
            address, code, header, body, timeout=self._timeout if timeout is None else timeout
        )
        return _successful(answer, address)

    async def _get(
        self,
        body_type: type[_B],
        address: str,
        code: int,
        header: Header | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the budget of one request
    ) -> _B:
        answer = await self._ask(address, code, header, timeout=timeout)
        # Go, and old brokers, answer with nothing where there is nothing.
        return body_type.decode(answer.body) if answer.body else body_type()

    async def _ask_nameserver(self, code: int, header: Header | None = None) -> Answer:
        """Ask the nameservers until one answers."""
        self._client.check_running()
        answer = await self._client.nameservers.request(code, header, timeout=self._timeout)
        return _successful(answer, "the nameserver")

    async def _every_nameserver(
        self, code: int, header: Header | None = None, body: bytes = b""
    ) -> dict[str, Answer | BrokerError | TransportError]:
        """Ask all nameservers, for none of them tells the others. Address -> answer, or what went wrong there."""
        outcomes: dict[str, Answer | BrokerError | TransportError] = {}
        for address in await self.nameservers():
            try:
                outcomes[address] = await self._ask(address, code, header, body)
            except (BrokerError, TransportError) as error:
                outcomes[address] = error
        return outcomes

    async def _tell_nameservers(self, code: int, header: Header | None = None, body: bytes = b"") -> dict[str, Answer]:
        """Ask all nameservers; the last failure is raised after all of them were tried."""
        answers: dict[str, Answer] = {}
        failure: BrokerError | TransportError | None = None
        for address, outcome in (await self._every_nameserver(code, header, body)).items():
            if isinstance(outcome, Answer):
                answers[address] = outcome
            else:
                failure = outcome
        if failure is not None:
            raise failure
        return answers

    async def nameservers(self) -> list[str]:
        """The addresses of all nameservers that this client knows."""
        servers = self._client.nameservers
        if not servers.addresses:
            await servers.look_up()
        if not servers.addresses:
            raise NoNameserver("no nameserver was given")
        return sorted(servers.addresses)

    # Finding brokers

    async def topic_route(self, topic: str) -> TopicRouteData:
        """Where a topic lives. TopicNotFound when no nameserver knows it."""
        header = GetRouteInfo(topic=topic, accept_standard_json_only=True)
        answer = await self._ask_nameserver(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        route = TopicRouteData.decode(answer.body)
        self._client.routes.brokers.learn(route.broker_datas)
        return route

    async def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers."""
        answer = await self._ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)
        info = ClusterInfo.decode(answer.body)
        self._client.routes.brokers.learn(info.broker_addr_table.values())
        return info

    async def brokers_of_cluster(self, cluster: str | None = None) -> list[BrokerData]:
        """The brokers of a cluster, or all of them, sorted by name."""
        info = await self.cluster_info()
        wanted = info.cluster_addr_table.get(cluster) if cluster is not None else list(info.broker_addr_table)
        if not wanted:
            raise UnknownCluster(
                "the nameserver knows no broker" if cluster is None else f"there is no cluster {cluster!r}"
            )
        return [info.broker_addr_table[name] for name in sorted(wanted) if name in info.broker_addr_table]

    async def masters(self, cluster: str | None = None) -> list[str]:
        """The addresses of the masters of a cluster, or of all."""
        brokers = await self.brokers_of_cluster(cluster)
        return [broker.broker_addrs[MASTER_ID] for broker in brokers if MASTER_ID in broker.broker_addrs]

    async def all_addresses(self, cluster: str | None = None) -> list[str]:
        """The addresses of masters and slaves of a cluster, or of all."""
        brokers = await self.brokers_of_cluster(cluster)
        return [address for broker in brokers for _, address in sorted(broker.broker_addrs.items())]

    async def master_of(self, broker_name: str) -> str:
        """The address of a master by its name."""
        info = await self.cluster_info()
        broker = info.broker_addr_table.get(broker_name)
        if broker is None:
            raise UnknownBroker(f"there is no broker {broker_name!r}")
        return self._client.routes.brokers.master(broker_name)

    async def _targets(self, broker: str | None, cluster: str | None) -> list[str]:
        """Where a change goes: one broker, or the masters of a cluster, or all masters."""
        return [broker] if broker is not None else await self.masters(cluster)

    async def _addresses_of(self, topic: str) -> list[str]:
        """One address of each broker of a topic: the master, else one of the slaves."""
        route = await self.topic_route(topic)
        addresses = [address for broker in route.broker_datas if (address := chosen_address(broker)) is not None]
        if not addresses:
            raise NoBroker(f"topic {topic} has no broker that could be asked")
        return addresses


def chosen_address(broker: BrokerData) -> str | None:
    """The master's address, else one of a slave."""
    addresses = broker.broker_addrs
    return addresses.get(MASTER_ID) or (random.choice(list(addresses.values())) if addresses else None)


def _successful(answer: Answer, address: str) -> Answer:
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError.of(answer, address)
    return answer
