"""Routes and nameservers: which queues follow from a route, who is asked, and what is said when nobody answers."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from cometmq.client.addresses import configured_addresses, lookup_url
from cometmq.client.errors import NoBroker, NoNameserver, NoRoute
from cometmq.client.nameservers import Nameservers
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import Routes, TopicRoute, route_of, why_unwritable
from cometmq.namesrv.address_server import AddressServer
from cometmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.remoting import HandlerTable, RemotingClient, Request, Response, Server, ServerOptions
from cometmq.remoting.errors import BadAddress
from support.wire import until

DATA = TopicRouteData(
    broker_datas=[
        BrokerData(broker_name="b", broker_addrs={0: "h:2", 1: "h:3"}, cluster="C"),
        BrokerData(broker_name="a", broker_addrs={0: "h:1"}, cluster="C"),
        BrokerData(broker_name="slave-only", broker_addrs={1: "h:4"}, cluster="C"),
    ],
    queue_datas=[
        QueueData(broker_name="b", perm=6, read_queue_nums=1, write_queue_nums=2),
        QueueData(broker_name="a", perm=4, read_queue_nums=2, write_queue_nums=2),
        QueueData(broker_name="slave-only", perm=6, read_queue_nums=1, write_queue_nums=1),
    ],
)


def queues(topic: str, *places: tuple[str, int]) -> tuple[MessageQueue, ...]:
    return tuple(MessageQueue(topic, broker, number) for broker, number in places)


def test_queues_of_a_route() -> None:
    route = route_of("T", DATA)
    assert route.publish == queues("T", ("b", 0), ("b", 1)), "writable, with a master"
    assert route.subscribe == queues("T", ("a", 0), ("a", 1), ("b", 0), ("slave-only", 0)), "readable"


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        (None, "is on no broker any more"),
        (QueueData(broker_name="b", perm=4, read_queue_nums=1, write_queue_nums=1), "may not be written to on b"),
        (QueueData(broker_name="b", perm=6, read_queue_nums=1, write_queue_nums=0), "has no write queues on b"),
        (
            QueueData(broker_name="slave-only", perm=6, read_queue_nums=1, write_queue_nums=1),
            "has no master: only slaves",
        ),
    ],
)
def test_why_a_topic_with_a_route_cannot_be_written_to(place: QueueData | None, cause: str) -> None:
    data = TopicRouteData(broker_datas=DATA.broker_datas, queue_datas=[place] if place else [])
    route = route_of("NS%T", data)
    assert not route.publish
    error = why_unwritable(route, "T")
    assert cause in str(error)
    assert error.remedy


def test_an_order_configuration_prescribes_the_queues() -> None:
    data = TopicRouteData(order_topic_conf="b:1;a:2", queue_datas=DATA.queue_datas, broker_datas=DATA.broker_datas)
    route = route_of("T", data)
    assert route.is_ordered
    assert route.publish == queues("T", ("b", 0), ("a", 0), ("a", 1))


def test_a_template_gives_as_many_queues_as_the_new_topic_will_have() -> None:
    data = TopicRouteData(
        broker_datas=DATA.broker_datas[:1],
        queue_datas=[QueueData(broker_name="b", perm=7, read_queue_nums=8, write_queue_nums=8)],
    )
    assert len(route_of("New", data, template_queues=4).publish) == 4


class Nameserver:
    """A nameserver that knows what it is told."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicRouteData] = {}
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        table = HandlerTable()
        table.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        self.server = Server(table, ServerOptions(host="127.0.0.1"))

    async def _route(self, request: Request) -> Response:  # type: ignore[type-arg]
        self.asked += 1
        await self.gate.wait()
        data = self.topics.get(request.header.topic)
        if data is None:
            return Response(int(ResponseCode.TOPIC_NOT_EXIST), remark="no such topic")
        return Response(body=data.encode())

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.address[1]}"


@pytest.fixture
async def nameserver() -> AsyncIterator[Nameserver]:
    made = Nameserver()
    async with made.server:
        yield made


@pytest.fixture
async def remoting() -> AsyncIterator[RemotingClient]:
    async with RemotingClient() as client:
        yield client


async def test_callers_at_the_same_time_share_one_request(nameserver: Nameserver, remoting: RemotingClient) -> None:
    nameserver.topics["T"] = DATA
    routes = Routes(Nameservers(remoting, [nameserver.address]))
    found = await asyncio.gather(*(routes.get("T") for _ in range(20)))
    assert nameserver.asked == 1
    assert all(route is found[0] for route in found)
    assert routes.brokers.master("b") == "h:2"
    with pytest.raises(NoBroker, match="slave-only has no master"):
        routes.brokers.master("slave-only")
    assert routes.brokers.for_pull("b", 1) == ("h:3", True)
    assert sorted(routes.brokers.addresses(masters_only=True)) == ["h:1", "h:2"]


async def test_a_failure_that_nobody_waits_for_is_nobodys_concern(
    nameserver: Nameserver, remoting: RemotingClient
) -> None:
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    routes = Routes(Nameservers(remoting, [nameserver.address]))
    nameserver.gate.clear()
    waiting = asyncio.create_task(routes.get("T"))
    await until(lambda: nameserver.asked == 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    nameserver.gate.set()
    await until(lambda: not routes._fetching)
    gc.collect()
    assert not complaints


async def test_who_hangs_on_a_topic_hears_of_changes_only(nameserver: Nameserver, remoting: RemotingClient) -> None:
    nameserver.topics["T"] = DATA
    routes = Routes(Nameservers(remoting, [nameserver.address]))
    told: list[TopicRoute] = []
    routes.on_changed.append(told.append)
    await routes.get("T")
    await routes.refresh(["T"])
    assert len(told) == 1
    nameserver.topics["T"] = TopicRouteData(broker_datas=DATA.broker_datas, queue_datas=DATA.queue_datas[:1])
    await routes.refresh(["T"])
    assert [len(route.subscribe) for route in told] == [4, 1]
    del nameserver.topics["T"]
    await routes.refresh(["T"])
    assert routes.known("T") is told[-1], "a topic that vanished keeps its last route"


async def test_unknown_topics(nameserver: Nameserver, remoting: RemotingClient) -> None:
    routes = Routes(Nameservers(remoting, [nameserver.address]))
    with pytest.raises(NoRoute, match="no nameserver knows the topic T"):
        await routes.get("T")
    with pytest.raises(NoRoute, match="auto-creation is off everywhere"):
        await routes.for_send("T", template="TBW102", template_queues=4)
    nameserver.topics["TBW102"] = DATA
    route = await routes.for_send("T", template="TBW102", template_queues=4)
    assert route.is_template
    nameserver.topics["T"] = DATA
    assert not (await routes.get("T")).is_template, "the real route replaces that of the template"


async def test_another_nameserver_is_asked_within_the_same_time(
    nameserver: Nameserver, remoting: RemotingClient, unused_tcp_port: int
) -> None:
    nameserver.topics["T"] = DATA
    servers = Nameservers(remoting, [f"127.0.0.1:{unused_tcp_port}", nameserver.address])
    for _ in range(4):
        servers._chosen = 0
        assert (await Routes(servers).get("T")).publish
    servers.update([f"127.0.0.1:{unused_tcp_port}"])
    with pytest.raises(NoNameserver, match=rf"no nameserver answered \(127.0.0.1:{unused_tcp_port}: .+\)"):
        await Routes(servers).get("T")


async def test_without_any_nameserver_the_error_names_the_ways_to_give_one(remoting: RemotingClient) -> None:
    with pytest.raises(NoNameserver, match="no nameserver was given") as caught:
        await Routes(Nameservers(remoting, [])).get("T")
    assert "NAMESRV_ADDR" in caught.value.remedy


def test_where_addresses_come_from() -> None:
    environ = {"NAMESRV_ADDR": "n:1", "ROCKETMQ_NAMESRV_ADDR": "r:1;s:2"}
    assert configured_addresses("a:1;b:2,a:1", environ) == ["a:1", "b:2"]
    assert configured_addresses(["a:1", "http://b:2"], environ) == ["a:1", "b:2"]
    assert configured_addresses(None, environ) == ["r:1", "s:2"]
    assert configured_addresses(None, {"NAMESRV_ADDR": "n:1"}) == ["n:1"]
    assert configured_addresses(None, {}) == []
    with pytest.raises(BadAddress, match="localhost"):
        configured_addresses("localhost", {})


def test_the_url_of_the_address_server() -> None:
    assert lookup_url({}) is None
    assert lookup_url({"ROCKETMQ_NAMESRV_DOMAIN": "mq.example"}) == "http://mq.example:8080/rocketmq/nsaddr"
    environ = {"ROCKETMQ_NAMESRV_DOMAIN": "mq.example:81", "ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP": "own"}
    assert lookup_url(environ, "unit") == "http://mq.example:81/rocketmq/own-unit?nofix=1"


async def test_the_list_of_an_address_server_is_followed(remoting: RemotingClient) -> None:
    addresses = ["a:1"]
    server = AddressServer(lambda _: ";".join(addresses), host="127.0.0.1")
    await server.start()
    try:
        servers = Nameservers(remoting, [], url=f"http://127.0.0.1:{server.port}/rocketmq/nsaddr")
        await servers.look_up()
        assert servers.addresses == ["a:1"]
        addresses[:] = ["b:2", "c:3"]
        await servers.look_up()
        assert sorted(servers.addresses) == ["b:2", "c:3"]
        addresses[:] = ["nonsense"]
        await servers.look_up()
        assert sorted(servers.addresses) == ["b:2", "c:3"], "what cannot be read changes nothing"
    finally:
        await server.close()
    await servers.look_up()
    assert sorted(servers.addresses) == ["b:2", "c:3"]
