"""A nameserver and brokers that do what a test tells them: for what a real broker does only when something is wrong.

Real sockets and frames by `remoting.Server`; nothing is stored. Each send takes the next entry of its broker's script:

- a response code, with which it is answered (0 and the other codes of a stored message get a place),
- `HANG`: never answered, `CUT`: the connection ends instead.

An empty script means that everything is stored.
"""

import asyncio
from collections import deque
from typing import Any, Final, Self

from cometmq.protocol.bodies.message_queue import MessageQueue
from cometmq.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from cometmq.protocol.bodies.stats import TopicOffset, TopicStatsTable
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.offsets import OffsetAnswer
from cometmq.protocol.requests.send import SendMessageAnswer
from cometmq.remoting import LATER, HandlerTable, Request, Response, Server, ServerOptions, TlsOptions, format_address

HANG: Final = "hang"
CUT: Final = "cut"
STORED: Final = (0, 10, 11, 12)


class FakeBroker:
    """One broker. Everything that it was sent is in `sends`, in order of arrival."""

    def __init__(self, name: str, shared: deque[int | str], tls: TlsOptions | None = None) -> None:
        self.name = name
        self.script: deque[int | str] = deque()
        self._shared = shared
        self.delay = 0.0
        #: While it is not set, sends wait for their answers; `most_unanswered` is how many bytes did so at once.
        self.gate = asyncio.Event()
        self.gate.set()
        self.unanswered = self.most_unanswered = 0
        #: The end of every queue.
        self.max_offset = 0
        self.sends: list[Request[Any]] = []
        self._hung: list[Request[Any]] = []
        self.asked: list[int] = []
        table = HandlerTable()
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            table.add(code, self._send)
        for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            table.add(code, self._well)
        table.add(RequestCode.GET_MAX_OFFSET, self._max_offset)
        #: How many queues it lists when it is asked about a topic.
        self.listed = 2
        table.add(RequestCode.GET_TOPIC_STATS_INFO, self._topic_stats)
        #: The offsets of groups, by group and topic, and what they came with: "asked" or "told".
        self.offsets: dict[tuple[str, str], dict[int, int]] = {}
        self.offset_requests: list[str] = []
        self.offset_gate = asyncio.Event()
        self.offset_gate.set()
        table.add(RequestCode.UPDATE_CONSUMER_OFFSET, self._update_offset)
        self.server = Server(table, ServerOptions(host="127.0.0.1", tls=tls or TlsOptions()))

    @property
    def address(self) -> str:
        return format_address(*self.server.address)

    def _well(self, request: Request[Any]) -> Response:
        self.asked.append(request.code)
        return Response()

    def _max_offset(self, request: Request[Any]) -> Response:
        self.asked.append(request.code)
        return Response(header=OffsetAnswer(offset=self.max_offset))

    def _topic_stats(self, request: Request[Any]) -> Response:
        ends = TopicOffset(min_offset=0, max_offset=self.max_offset, last_update_timestamp=1000)
        queues = [
            MessageQueue(topic=request.header.topic, broker_name=self.name, queue_id=n) for n in range(self.listed)
        ]
        return Response(body=TopicStatsTable(offset_table=dict.fromkeys(queues, ends)).encode())

    async def _update_offset(self, request: Request[Any]) -> Response:
        """As RocketMQ's brokers do it: who finds no table of a group and a topic makes one, others may too."""
        self.offset_requests.append("told" if request.is_oneway else "asked")
        await self.offset_gate.wait()
        header = request.header
        key = (header.consumer_group, header.topic)
        found = self.offsets.get(key)
        await asyncio.sleep(0.01)  # another thread has its turn
        if found is None:
            self.offsets[key] = {header.queue_id: header.commit_offset}
        else:
            found[header.queue_id] = header.commit_offset
        return Response()

    async def _send(self, request: Request[Any]) -> Any:
        self.sends.append(request)
        script = self.script or self._shared
        what = script.popleft() if script else 0
        if self.delay:
            await asyncio.sleep(self.delay)
        self.unanswered += len(request.body)
        self.most_unanswered = max(self.most_unanswered, self.unanswered)
        await self.gate.wait()
        self.unanswered -= len(request.body)
        if what == HANG:
            self._hung.append(request)
            return LATER
        if what == CUT:
            request.connection.cut("the script says so")
            return LATER
        assert isinstance(what, int)
        if what not in STORED:
            return Response(what, remark="the script says so")
        number = len(self.sends)
        return Response(what, SendMessageAnswer(f"7F000001{number:024X}", request.header.queue_id, number))

    async def close(self) -> None:
        for request in self._hung:
            request.connection.cut("the test is over")
        await self.server.close(grace=0.1)


class FakeCluster:
    """Brokers of the given names behind one nameserver that knows every topic, with two queues on each broker."""

    def __init__(self, *names: str, tls: TlsOptions | None = None) -> None:
        #: For whichever broker is sent something next, when it has no script of its own.
        self.script: deque[int | str] = deque()
        self.brokers = {name: FakeBroker(name, self.script, tls) for name in names}
        #: What the nameserver says; a topic in `missing` does not exist.
        self.order_conf: str | None = None
        self.missing: set[str] = set()
        self.known = set(names)
        #: Brokers elsewhere that the nameserver names in the place of ours.
        self.addresses: dict[str, str] = {}
        self.asked: list[str] = []
        self.queries: list[Request[Any]] = []
        table = HandlerTable()
        table.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route)
        table.add(RequestCode.GET_BROKER_CLUSTER_INFO, self._brokers)
        self._nameserver = Server(table, ServerOptions(host="127.0.0.1", tls=tls or TlsOptions()))

    def __getitem__(self, name: str) -> FakeBroker:
        return self.brokers[name]

    @property
    def nameserver(self) -> str:
        return format_address(*self._nameserver.address)

    @property
    def sends(self) -> int:
        return sum(len(broker.sends) for broker in self.brokers.values())

    def _route(self, request: Request[Any]) -> Response:
        topic = request.header.topic
        self.asked.append(topic)
        self.queries.append(request)
        if topic in self.missing:
            return Response(17, remark="no such topic")
        known = [broker for name, broker in self.brokers.items() if name in self.known]
        route = TopicRouteData(
            order_topic_conf=self.order_conf,
            queue_datas=[
                QueueData(broker_name=broker.name, perm=6, read_queue_nums=2, write_queue_nums=2) for broker in known
            ],
            broker_datas=[
                BrokerData(
                    broker_name=broker.name,
                    cluster="DefaultCluster",
                    broker_addrs={0: self.addresses.get(broker.name, broker.address)},
                )
                for broker in known
            ],
        )
        return Response(body=route.encode())

    def _brokers(self, request: Request[Any]) -> Response:
        table = {
            name: BrokerData(broker_name=name, cluster="DefaultCluster", broker_addrs={0: self.brokers[name].address})
            for name in self.known
        }
        return Response(body=ClusterInfo(broker_addr_table=table).encode())

    async def __aenter__(self) -> Self:
        await self._nameserver.start()
        for broker in self.brokers.values():
            await broker.server.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for broker in self.brokers.values():
            await broker.close()
        await self._nameserver.close(grace=0.1)
