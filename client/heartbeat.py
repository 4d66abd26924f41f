"""Heartbeats: brokers hear every 30 s which groups this client has, and whenever that changes.

The answer tells the broker's version, and whether it speaks our own compact header. RocketMQ's
sendHeartbeatToAllBroker.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from cometmq.client.errors import BrokerError
from cometmq.protocol.bodies.heartbeat import HeartbeatData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.command import SerializeType
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import TransportError

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)

#: The key by which we offer the compact header on a connection, and by which a broker of ours agrees.
HEADER_KEY, MSGPACK = "hdr", "msgpack"


class Heartbeats:
    """The heartbeats of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        #: Addresses whose last heartbeat failed: told once.
        self._silent: set[str] = set()
        #: Addresses that were told about us, or are being told.
        self._told: set[str] = set()
        #: Who has heard of which members, on which connection.
        self._heard: dict[str, tuple[Connection, frozenset[str]]] = {}
        #: Introductions under way, by address: many queues of one broker need one.
        self._introducing: dict[str, asyncio.Task[None]] = {}

    def data(self) -> HeartbeatData:
        """What brokers are told."""
        client = self._client
        return HeartbeatData(
            client_id=client.client_id,
            producer_data_set=[member.heartbeat() for member in client.producers.values()],
            consumer_data_set=[member.heartbeat() for member in client.consumers.values()],
        )

    async def beat(self, addresses: Iterable[str] | None = None) -> None:
        """Tell these brokers, or all that are known. Who does not answer is logged once, and asked again next time."""
        client = self._client
        if not client.producers and not client.consumers:
            return
        if addresses is None:
            addresses = self._all()
            self._told.intersection_update(addresses)
        body = self.data().encode()
        await asyncio.gather(*(self._tell(address, body) for address in addresses))

    def strangers(self) -> list[str]:
        """Brokers that have not heard of us; from now on they count as told."""
        strangers = [address for address in self._all() if address not in self._told]
        self._told.update(strangers)
        return strangers

    def _all(self) -> list[str]:
        client = self._client
        return client.routes.brokers.addresses(masters_only=not client.consumers)

    async def introduce(self, addresses: Iterable[str]) -> None:
        """Tell those who do not know all members, or knew them on a connection that has ended."""
        unknown = [address for address in addresses if not self.is_known(address)]
        if unknown and (self._client.producers or self._client.consumers):
            await asyncio.wait([self._introduced(address) for address in unknown])

    def _introduced(self, address: str) -> asyncio.Task[None]:
        task = self._introducing.get(address)
        if task is None:
            work = self._tell(address, self.data().encode())
            task = self._client.scheduler.spawn(work, f"heartbeat to {address}")
            self._introducing[address] = task
            task.add_done_callback(lambda _: self._introducing.pop(address, None))
        return task

    def is_heard(self, address: str) -> bool:
        """Whether a broker was told of us on the connection that is in use. Hot: once a pull."""
        heard = self._heard.get(address)
        return heard is not None and heard[0] is self._client.remoting.ready_now(address)

    def forget(self, address: str) -> None:
        """A broker does not know us any more, whatever it was told: it has to hear it again."""
        self._heard.pop(address, None)

    def is_known(self, address: str) -> bool:
        """Whether a broker knows all members of this client, on the connection that is in use."""
        heard = self._heard.get(address)
        in_use = self._client.remoting.connections.get(address)
        return heard is not None and heard[0] is in_use and heard[1] >= self._members()

    def _members(self) -> frozenset[str]:
        return frozenset((*self._client.producers, *self._client.consumers))

    async def _tell(self, address: str, body: bytes) -> None:
        client = self._client
        members = self._members()
        try:
            connection = await client.remoting.connect(address, timeout=client.request_timeout)
            offer = {HEADER_KEY: MSGPACK} if connection.kind is SerializeType.JSON else None
            answer = await client.remoting.request(
                address, RequestCode.HEART_BEAT, None, body, timeout=client.request_timeout, ext=offer
            )
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerError.of(answer, address)
        except (TransportError, BrokerError) as error:
            self._told.discard(address)
            level = logging.DEBUG if address in self._silent else logging.WARNING
            self._silent.add(address)
            log.log(level, "heartbeat to %s failed: %s", address, error)
            return
        self._silent.discard(address)
        self._heard[address] = (connection, members)
        client.routes.brokers.versions[address] = answer.version
        if offer and answer.ext.get(HEADER_KEY) == MSGPACK:
            _speak_msgpack(client.remoting.connections.get(address), connection)


def _speak_msgpack(now: Connection | None, asked: Connection) -> None:
    """Both agreed, on this connection alone: a new one to the same address begins with JSON again."""
    if now is asked:
        asked.kind = SerializeType.MSGPACK
