"""A nameserver, a master and a slave that answer pulls with records, each with bodies of its own: who read from whom,
with which signature and over which connection can be told. Real sockets; nothing is stored.
"""

from typing import Any, Self

from cometmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.pull import PullMessageAnswer
from cometmq.remoting import HandlerTable, Request, Response, Server, ServerOptions, TlsOptions, format_address
from support.spark_records import Given, encode

MESSAGES = 3


class ReadableCluster:
    """A topic of any name has one queue with `MESSAGES` messages, whose bodies are `master` or `slave`."""

    def __init__(self, tls: TlsOptions | None = None) -> None:
        self.requests: list[Request[Any]] = []
        #: Whether the slave answers pulls.
        self.has_slave = True
        self._servers = {role: self._server(role, tls or TlsOptions()) for role in ("names", "master", "slave")}

    def _server(self, role: str, tls: TlsOptions) -> Server:
        table = HandlerTable()
        if role == "names":
            table.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        else:
            table.add(RequestCode.PULL_MESSAGE, lambda request: self._pulled(request, role))
        return Server(table, ServerOptions(host="127.0.0.1", tls=tls))

    def address(self, role: str) -> str:
        return format_address(*self._servers[role].address)

    def _route(self, request: Request[Any]) -> Response:
        self.requests.append(request)
        addresses = {0: self.address("master")} | ({1: self.address("slave")} if self.has_slave else {})
        route = TopicRouteData(
            queue_datas=[QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)],
            broker_datas=[BrokerData(broker_name="broker-a", cluster="DefaultCluster", broker_addrs=addresses)],
        )
        return Response(body=route.encode())

    def _pulled(self, request: Request[Any], role: str) -> Response:
        self.requests.append(request)
        offset = request.header.queue_offset
        records = [Given(role.encode())] * (MESSAGES - offset)
        answer = PullMessageAnswer(
            suggest_which_broker_id=0, next_begin_offset=MESSAGES, min_offset=0, max_offset=MESSAGES
        )
        return Response(header=answer, body=encode(records, first=offset))

    async def __aenter__(self) -> Self:
        for server in self._servers.values():
            await server.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for server in self._servers.values():
            await server.close()
