"""How a broker makes itself known: it registers with every nameserver, again by the clock, and at once when a topic
changes.

Nameservers know nothing of each other, so each has a task of its own that brings it up to date: one that is down delays
nobody, and gets everything when it is back. What a registration says is built here; what a nameserver makes of it is
its business. RocketMQ's BrokerController.registerBrokerAll and BrokerOuterAPI.
"""

import asyncio
import logging
from collections.abc import Awaitable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from cometmq.broker.config import BrokerConfig
from cometmq.broker.state import BrokerState
from cometmq.protocol.bodies.registration import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
)
from cometmq.protocol.bodies.route import QueueData, TopicRouteData
from cometmq.protocol.checksum import crc32
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.errors import ProtocolError
from cometmq.protocol.requests import namesrv as headers
from cometmq.remoting.address import format_address, parse_addresses
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.errors import TransportError
from cometmq.remoting.pending import Answer

if TYPE_CHECKING:
    from cometmq.remoting.connection import Connection

#: Seconds until a nameserver that could not be reached is tried again.
RETRY = 3.0
#: Seconds that the farewell to a nameserver may take, and the question for its version.
ASK_TIMEOUT = 3.0
#: Seconds that whoever makes a topic waits for the nameservers: the client may ask them for it next.
ANNOUNCE_WAIT = 1.0
#: Seconds that a start waits for the nameservers: those that are there know the broker when it says that it is ready.
FIRST_WAIT = 3.0

_READ_WRITE = 6

log = logging.getLogger(__name__)


class RegistrationRefused(ProtocolError):
    """Raised when a nameserver answers a registration with an error."""


class Registration:
    """The registrations of one broker. `start` once it listens, `close` before it stops listening."""

    def __init__(self, state: BrokerState, client: RemotingClient) -> None:
        self.state = state
        self.client = client
        self._permission = state.config.broker_permission
        addresses = [format_address(*address) for address in parse_addresses(state.config.namesrv_addr)]
        self.nameservers = [_Nameserver(address, self) for address in dict.fromkeys(addresses)]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Register everywhere; returns when every nameserver was tried once, or soon when one does not answer."""
        self.state.topics.on_changed.append(self._topic_changed)
        self.state.on_config.append(self._config_changed)
        self.state.announcement = self._announcement
        self.client.dispatcher.table.on_connection_lost.append(self._connection_lost)
        for nameserver in self.nameservers:
            self._tasks.append(asyncio.create_task(nameserver.run(), name=f"registration with {nameserver.address}"))
        if self.state.config.enable_slave_acting_master and self.nameservers:
            self._tasks.append(asyncio.create_task(self._beat(), name="heartbeats to the nameservers"))
        try:
            async with asyncio.timeout(FIRST_WAIT):
                for nameserver in self.nameservers:
                    await nameserver.tried.wait()
        except TimeoutError:
            late = [nameserver.address for nameserver in self.nameservers if not nameserver.tried.is_set()]
            log.warning("no answer of the nameservers %s yet; the broker starts without", ";".join(late))

    async def close(self) -> None:
        """Take leave of all nameservers that can be reached."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if tasks:
            self.client.dispatcher.table.on_connection_lost.remove(self._connection_lost)
            await asyncio.gather(*(nameserver.unregister() for nameserver in self.nameservers))

    def _announcement(self) -> Awaitable[None] | None:
        waits = [wait for nameserver in self.nameservers if (wait := nameserver.told()) is not None]
        return _Told(waits) if waits else None

    def register_all(self) -> None:
        """Send everything to everybody, soon."""
        for nameserver in self.nameservers:
            nameserver.ask_for_all()

    # What is sent

    def header(self, body: bytes) -> headers.RegisterBroker:
        config = self.state.config
        acting = config.enable_slave_acting_master
        return headers.RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=self.state.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self._ha_address(),
            broker_id=config.broker_id,
            heartbeat_timeout_millis=config.broker_not_active_timeout_millis if acting else None,
            enable_acting_master=acting,
            compressed=False,
            body_crc32=crc32(body) & 0x7FFFFFFF,
        )

    def bodies(self) -> list[bytes]:
        """The whole table: one body, or several where the configuration says so."""
        config, topics = self.state.config, self.state.topics
        table = list(topics.table.values())
        if not config.enable_split_registration or len(table) <= config.split_registration_size:
            return [self.body(table, topics.data_version)]
        size = config.split_registration_size
        bodies = []
        for start in range(0, len(table), size):
            # A nameserver takes changes of a new version only, so each part has one.
            topics.bump_version()
            bodies.append(self.body(table[start : start + size], topics.data_version))
        return bodies

    def body(self, topics: Iterable[TopicConfig], version: DataVersion) -> bytes:
        permission = self.state.config.broker_permission
        if permission & _READ_WRITE != _READ_WRITE:
            topics = [msgspec.structs.replace(topic, perm=topic.perm & permission) for topic in topics]
        wrapper = TopicConfigAndMappingSerializeWrapper(
            data_version=version,
            mapping_data_version=DataVersion(timestamp=self.state.clock.wall()),
            topic_config_table={topic.topic_name: topic for topic in topics},
        )
        return RegisterBrokerBody(topic_config_serialize_wrapper=wrapper).encode(standard=True)

    def _ha_address(self) -> str:
        config = self.state.config
        port = int(self.state.address.rpartition(":")[2])
        return format_address(config.broker_ip2, config.ha_listen_port or port + 1)

    # What makes them necessary

    def _topic_changed(self, topic: TopicConfig) -> None:
        for nameserver in self.nameservers:
            nameserver.ask_for(topic.topic_name)

    def _config_changed(self, config: BrokerConfig) -> None:
        if config.broker_permission != self._permission:
            self._permission = config.broker_permission
            self.state.topics.bump_version()
            self.register_all()

    def _connection_lost(self, connection: "Connection") -> None:
        for nameserver in self.nameservers:
            nameserver.connection_lost(connection)

    async def _beat(self) -> None:
        """Signs of life each second, by which a nameserver notices soon that the broker has gone."""
        config = self.state.config
        while True:
            for nameserver in self.nameservers:
                await nameserver.beat()
            await asyncio.sleep(config.broker_heartbeat_interval / 1000)


class _Told:
    """Awaits that nameservers were told, or an end of patience.

    Unlike a coroutine it may be dropped: the send that asked for it may be refused after all.
    """

    __slots__ = ("_waits",)

    def __init__(self, waits: "list[asyncio.Future[None]]") -> None:
        self._waits = waits

    def __await__(self) -> Generator[Any, None, None]:
        yield from asyncio.wait(self._waits, timeout=ANNOUNCE_WAIT).__await__()


class _Nameserver:
    """What one nameserver knows of this broker, and the task that keeps it up to date."""

    def __init__(self, address: str, registration: Registration) -> None:
        self.address = address
        self._registration = registration
        self._state = registration.state
        self._client = registration.client
        #: Topics that it has not been told of yet.
        self._topics: dict[str, None] = {}
        #: Whether it needs the whole table, at once.
        self._all = True
        self._wake = asyncio.Event()
        #: Set when it was tried once.
        self.tried = asyncio.Event()
        #: Resolved when it has been told what it has to be told now.
        self._waiting: list[asyncio.Future[None]] = []
        self._connection: Connection | None = None
        self.is_reachable: bool | None = None

    def ask_for_all(self) -> None:
        self._all = True
        self._wake.set()

    def ask_for(self, topic: str) -> None:
        self._topics[topic] = None
        self._wake.set()

    def told(self) -> "asyncio.Future[None] | None":
        """Resolved when it knows all topics as they are now, or when that failed; None when it is up to date."""
        if self.is_reachable is not True or not (self._topics or self._all):
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def connection_lost(self, connection: "Connection") -> None:
        # It forgets a broker whose connection has gone; a restarted one knows nothing at all.
        if connection is self._connection:
            self._connection = None
            self.ask_for_all()

    async def run(self) -> None:
        by_time = True
        while True:
            # All topics that change in one turn of the loop go together.
            await asyncio.sleep(0)
            # What comes from here on is for the next time: the topics may be encoded already.
            self._wake.clear()
            forced, self._all = self._all, False
            topics, self._topics = list(self._topics), {}
            waiting, self._waiting = self._waiting, []
            try:
                if forced or by_time:
                    await self._register_all(forced=forced or bool(topics))
                else:
                    await self._register(topics)
            except (TransportError, ProtocolError) as error:
                self._failed(error)
                delay = RETRY
            else:
                self._succeeded()
                delay = self._state.config.register_period
            for future in waiting:
                if not future.done():
                    future.set_result(None)
            self.tried.set()
            by_time = not await self._woken(delay)

    async def _woken(self, delay: float) -> bool:
        """Whether something changed before the time was over. One that cannot be reached is left alone so long."""
        if self.is_reachable is False:
            await asyncio.sleep(delay)
            return True
        try:
            async with asyncio.timeout(delay):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    async def _register_all(self, *, forced: bool) -> None:
        if not forced and not self._state.config.force_register and not await self._is_outdated():
            return
        for body in self._registration.bodies():
            await self._send(body)

    async def _register(self, topics: list[str]) -> None:
        table: Mapping[str, TopicConfig] = self._state.topics.table
        changed = [table[name] for name in topics if name in table]
        if not changed:
            return  # deleted meanwhile: that is not told
        if self._state.config.enable_single_topic_register:
            for topic in changed:
                await self._send_single(topic)
        else:
            await self._send(self._registration.body(changed, self._state.topics.data_version))

    async def _send(self, body: bytes) -> None:
        timeout = self._state.config.register_broker_timeout_mills / 1000
        header = self._registration.header(body)
        answer = await self._client.request(self.address, RequestCode.REGISTER_BROKER, header, body, timeout=timeout)
        self._check(answer)
        self._connection = self._client.connections.get(self.address)
        if answer.body:
            self._state.topics.mark_order_topics(KVTable.decode(answer.body).table)

    async def _send_single(self, topic: TopicConfig) -> None:
        config = self._state.config
        queues = QueueData(
            broker_name=config.broker_name,
            perm=topic.perm & config.broker_permission if config.broker_permission & 6 != 6 else topic.perm,
            read_queue_nums=topic.read_queue_nums,
            write_queue_nums=topic.write_queue_nums,
            topic_sys_flag=topic.topic_sys_flag,
        )
        header, body = headers.RegisterTopic(topic=topic.topic_name), TopicRouteData(queue_datas=[queues]).encode()
        code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
        self._check(await self._client.request(self.address, code, header, body, timeout=ASK_TIMEOUT))

    async def _is_outdated(self) -> bool:
        """Whether the nameserver has another version of the table; it counts as a sign of life, too."""
        code, body = RequestCode.QUERY_DATA_VERSION, self._state.topics.data_version.encode(standard=True)
        answer = await self._client.request(self.address, code, self._query(), body, timeout=ASK_TIMEOUT)
        self._check(answer)
        return answer.header(headers.QueryDataVersionAnswer).changed

    def _query(self) -> headers.QueryDataVersion:
        config = self._state.config
        return headers.QueryDataVersion(
            broker_name=config.broker_name,
            broker_addr=self._state.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )

    async def beat(self) -> None:
        """A sign of life, as nameservers of both generations understand it."""
        config, timeout = self._state.config, self._state.config.send_heartbeat_timeout_millis / 1000
        if self.is_reachable is not True:
            return
        try:
            if config.compatible_with_old_name_srv:
                body = self._state.topics.data_version.encode(standard=True)
                code: RequestCode = RequestCode.QUERY_DATA_VERSION
                await self._client.send_oneway(self.address, code, self._query(), body, timeout=timeout)
            else:
                header = headers.BrokerHeartbeat(
                    cluster_name=config.broker_cluster_name,
                    broker_addr=self._state.address,
                    broker_name=config.broker_name,
                    broker_id=config.broker_id,
                )
                code = RequestCode.BROKER_HEARTBEAT
                await self._client.send_oneway(self.address, code, header, timeout=timeout)
        except TransportError as error:
            self._failed(error)

    async def unregister(self) -> None:
        config = self._state.config
        header = headers.UnregisterBroker(
            broker_name=config.broker_name,
            broker_addr=self._state.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        if self.is_reachable is not True:
            return
        try:
            code = RequestCode.UNREGISTER_BROKER
            self._check(await self._client.request(self.address, code, header, timeout=ASK_TIMEOUT))
        except (TransportError, ProtocolError) as error:
            log.warning("could not take leave of the nameserver %s: %s", self.address, error)
        else:
            log.info("unregistered from the nameserver %s", self.address)

    def _check(self, answer: Answer) -> None:
        if answer.code != 0:
            raise RegistrationRefused(f"it answered {answer.code}: {answer.remark or 'without a reason'}")

    def _failed(self, error: Exception) -> None:
        if self.is_reachable is not False:
            self.is_reachable = False
            log.warning("cannot register with the nameserver %s, which is tried again: %s", self.address, error)
        self._all = True

    def _succeeded(self) -> None:
        if self.is_reachable is not True:
            self.is_reachable = True
            log.info("registered with the nameserver %s", self.address)
