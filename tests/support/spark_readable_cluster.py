"""A nameserver, a master and a slave that answer pulls with records, each with bodies of its own: who read from whom,
with which signature and over which connection can be told. Real sockets; nothing is stored.

Codes, offsets and suggestions are those that a RocketMQ 5.3.3 gave: a master, slaves that were started later and so
have only the end of the queue, and slaves behind it, with and without slaveReadEnable and offsetCheckInSlave.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from cometmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.requests.offsets import OffsetAnswer
from cometmq.protocol.requests.pull import PullMessageAnswer
from cometmq.remoting import LATER, HandlerTable, Request, Response, Server, ServerOptions, TlsOptions, format_address
from support.spark_records import Given, encode

MESSAGES = 3
MASTER_ID, SLAVE_ID = 0, 1


@dataclass
class Replica:
    """What one of the brokers has, and what it makes of pulls."""

    broker_id: int
    first: int = 0
    stop: int = MESSAGES
    #: Whether the nameserver knows it.
    is_registered: bool = True
    #: slaveReadEnable.
    is_readable: bool = True
    #: offsetCheckInSlave.
    checks_offsets: bool = False
    #: Whether it knows the topic.
    has_topic: bool = True
    #: So many pulls are never answered.
    swallows: int = 0
    #: Bytes that the body at an offset has at least.
    size: Callable[[int], int] = lambda offset: 0
    pulls: int = 0
    #: Bytes of records that were given.
    given: int = 0

    def pulled(self, offset: int, count: int) -> tuple[int, int]:
        """The code of the answer, and the offset to go on from."""
        corrects = self.broker_id == MASTER_ID or self.checks_offsets
        if not self.has_topic:
            return ResponseCode.TOPIC_NOT_EXIST, 0
        if not self.is_readable:
            return ResponseCode.SYSTEM_BUSY, 0
        if self.first <= offset < self.stop:
            return ResponseCode.SUCCESS, min(offset + count, self.stop)
        if offset == self.stop:
            return ResponseCode.PULL_NOT_FOUND, offset
        if not corrects:
            return ResponseCode.PULL_RETRY_IMMEDIATELY, offset
        return ResponseCode.PULL_OFFSET_MOVED, self.first if offset < self.first else self.stop


class ReadableCluster:
    """A topic of any name has one queue with `MESSAGES` messages, whose bodies are `master` or `slave`.

    Nobody is told whether a filter can be used.
    """

    def __init__(self, tls: TlsOptions | None = None) -> None:
        self.requests: list[Request[Any]] = []
        self._swallowed: list[Request[Any]] = []
        self.master, self.slave = Replica(MASTER_ID), Replica(SLAVE_ID)
        self._servers = {role: self._server(role, tls or TlsOptions()) for role in ("names", "master", "slave")}

    def _server(self, role: str, tls: TlsOptions) -> Server:
        table = HandlerTable()
        if role == "names":
            table.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        else:
            replica = self.master if role == "master" else self.slave
            table.add(RequestCode.PULL_MESSAGE, lambda request: self._pulled(request, role, replica))
            table.add(RequestCode.CHECK_CLIENT_CONFIG, self._swallow)
            table.add(RequestCode.GET_MIN_OFFSET, lambda _: Response(header=OffsetAnswer(offset=replica.first)))
            table.add(RequestCode.GET_MAX_OFFSET, lambda _: Response(header=OffsetAnswer(offset=replica.stop)))
        return Server(table, ServerOptions(host="127.0.0.1", tls=tls))

    def address(self, role: str) -> str:
        return format_address(*self._servers[role].address)

    def _route(self, request: Request[Any]) -> Response:
        self.requests.append(request)
        replicas = {"master": self.master, "slave": self.slave}
        addresses = {each.broker_id: self.address(role) for role, each in replicas.items() if each.is_registered}
        route = TopicRouteData(
            queue_datas=[QueueData(broker_name="broker-a", perm=6, read_queue_nums=1, write_queue_nums=1)],
            broker_datas=[BrokerData(broker_name="broker-a", cluster="DefaultCluster", broker_addrs=addresses)],
        )
        return Response(body=route.encode())

    def _swallow(self, request: Request[Any]) -> Any:
        self._swallowed.append(request)
        return LATER

    def _pulled(self, request: Request[Any], role: str, replica: Replica) -> Any:
        self.requests.append(request)
        replica.pulls += 1
        if replica.pulls <= replica.swallows:
            return self._swallow(request)
        offset = request.header.queue_offset
        code, next_offset = replica.pulled(offset, request.header.max_msg_nums)
        if code == ResponseCode.SYSTEM_BUSY:
            return Response(code, remark="[REJECTREQUEST]system busy, start flow control for a while")
        if code == ResponseCode.TOPIC_NOT_EXIST:
            return Response(code, remark="topic[T] not exist, apply first please!")
        answer = PullMessageAnswer(
            suggest_which_broker_id=MASTER_ID,  # also a slave's, while its master is there
            next_begin_offset=next_offset,
            min_offset=replica.first,
            max_offset=replica.stop,
        )
        if code != ResponseCode.SUCCESS:
            return Response(code, answer)
        records: list[bytes] = []
        room = request.header.max_msg_bytes
        for number in range(offset, next_offset):
            record = encode([Given(role.encode().ljust(replica.size(number), b"."))], first=number)
            if records and len(record) > room:
                break
            records.append(record)
            room -= len(record)
        replica.given += sum(map(len, records))
        answer = msgspec.structs.replace(answer, next_begin_offset=offset + len(records))
        return Response(code, answer, b"".join(records))

    async def __aenter__(self) -> Self:
        for server in self._servers.values():
            await server.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for request in self._swallowed:
            request.connection.cut("the test is over")
        for server in self._servers.values():
            await server.close()
