"""A client: one set of connections, one route cache, one heartbeat, one id; producers and consumers hang on it.

`connect` makes one and does no I/O; `async with` (or `start` and `close`) gives it its life. Here are the shared
parts and the members; what members do is in `producer` and `consumer`. RocketMQ's MQClientInstance.
"""

import asyncio
import logging
import os
import random
import weakref
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self, cast

from cometmq.client.addresses import configured_addresses, lookup_url
from cometmq.client.errors import BrokerError, ClientError, Closed, GroupInUse
from cometmq.client.heartbeat import Heartbeats
from cometmq.client.identity import client_id, local_address, own_instance_name
from cometmq.client.nameservers import Nameservers
from cometmq.client.requests import Credentials, RequestKeys, fixed_keys
from cometmq.client.routes import Routes, TopicRoute
from cometmq.client.scheduler import Scheduler
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.message_id import UniqueKeyGenerator
from cometmq.protocol.requests.clients import UnregisterClient
from cometmq.remoting.client import ClientOptions, RemotingClient
from cometmq.remoting.dispatch import HandlerTable
from cometmq.remoting.errors import TransportError

if TYPE_CHECKING:
    from cometmq.client.admin import Admin
    from cometmq.client.consumer.handling import Handler
    from cometmq.client.consumer.pull import PullConsumer
    from cometmq.client.consumer.push import PushConsumer
    from cometmq.client.consumer.subscriptions import Subscription
    from cometmq.client.members import ConsumerMember, Member, ProducerMember
    from cometmq.client.message import SendReceipt
    from cometmq.client.producer import Producer
    from cometmq.client.producer.outgoing import Outgoing
    from cometmq.client.producer.request_reply import Replies
    from cometmq.client.server_requests import ServerRequests
    from cometmq.remoting.tls import ClientTlsOptions

log = logging.getLogger(__name__)

#: Seconds between two refreshes of all routes (pollNameServerInterval).
ROUTE_INTERVAL = 30.0
#: Seconds between two heartbeats to all brokers (heartbeatBrokerInterval).
HEARTBEAT_INTERVAL = 30.0
#: Seconds between two questions to an address server.
LOOKUP_INTERVAL = 120.0
#: Seconds for route queries, heartbeats and the like (mqClientApiTimeout).
API_TIMEOUT = 3.0
#: The group of messages that a client sends by itself.
INNER_PRODUCER = "CLIENT_INNER_PRODUCER"


#: All clients of this process, for the child of a fork.
_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Client:
    """One client of a cluster. Made by `cometmq.connect`.

    Mutable state: the members by group, and whether it runs; routes, connections and tasks are its parts'.
    """

    def __init__(
        self,
        nameservers: str | Iterable[str] | None = None,
        *,
        credentials: Credentials | None = None,
        tls: "ClientTlsOptions | bool | None" = None,
        namespace: str = "",
        namespace_v2: str = "",
        instance_name: str | None = None,
        unit_name: str = "",
        client_ip: str | None = None,
        request_timeout: float = API_TIMEOUT,
        route_interval: float = ROUTE_INTERVAL,
        heartbeat_interval: float = HEARTBEAT_INTERVAL,
        lookup_interval: float = LOOKUP_INTERVAL,
    ) -> None:
        self._given = nameservers
        self.namespace = namespace
        self._tls = _tls_options(tls)
        self.request_timeout = request_timeout
        self._route_interval = route_interval
        self._heartbeat_interval = heartbeat_interval
        self._lookup_interval = lookup_interval
        self.address = client_ip or local_address()
        self.instance_name = instance_name
        self.unit_name = unit_name
        self.client_id = client_id(self.address, instance_name or own_instance_name(), unit_name)
        self.new_unique_key = UniqueKeyGenerator(self.address, os.getpid(), random.getrandbits(32))
        keys = RequestKeys(
            fixed_keys(
                namespace_v2=namespace_v2,
                zone=os.environ.get("ROCKETMQ_ZONE", ""),
                zone_mode=os.environ.get("ROCKETMQ_ZONE_MODE", ""),
            ),
            credentials,
        )
        self._ext_hook = keys if keys.is_needed else None
        self.producers: dict[str, ProducerMember] = {}
        self.consumers: dict[str, ConsumerMember] = {}
        self._inner_producer: Producer | None = None
        self._server_requests: ServerRequests | None = None
        self._state = "new"
        _clients.add(self)

    # Its life

    async def start(self) -> None:
        """Take up work. Nothing is asked before somebody needs it."""
        if self._state != "new":
            raise Closed(f"the client is {self._state}: it starts once")
        self._closed = asyncio.Event()
        self._handlers = HandlerTable()
        self.remoting = RemotingClient(
            ClientOptions(request_timeout=self.request_timeout, tls=self._tls),
            table=self._handlers,
            ext_hook=self._ext_hook,
        )
        addresses = configured_addresses(self._given)
        # Addresses that were given count: the address server is for those who have none.
        url = None if addresses else lookup_url(unit=self.unit_name)
        self.nameservers = Nameservers(self.remoting, addresses, url=url)
        self.routes = Routes(self.nameservers, request_timeout=self.request_timeout)
        self.heartbeats = Heartbeats(self)
        self.routes.on_changed.append(self._route_changed)
        self.scheduler = Scheduler()
        self._state = "running"
        self.scheduler.every(self._route_interval, self._refresh_routes, "refresh of the routes")
        self.scheduler.every(self._heartbeat_interval, self.heartbeats.beat, "heartbeat")
        if self.nameservers.is_looked_up:
            every = self._lookup_interval
            self.scheduler.every(every, self.nameservers.look_up, "lookup of the nameservers", first=min(10.0, every))

    async def close(self) -> None:
        """Close the members in good order, then everything else. Nothing is left behind, also when it is cancelled.

        Who closes it a second time waits for the end of the first close.
        """
        if self._state == "closing":
            await self._closed.wait()
            return
        if self._state != "running":
            self._state = "closed"
            return
        self._state = "closing"
        async with AsyncExitStack() as rest:
            rest.callback(self._end)
            rest.push_async_callback(self.remoting.close)
            rest.push_async_callback(self.routes.close)
            rest.push_async_callback(self.scheduler.close)
            # Consumers first: what they give back goes out by a producer.
            rest.push_async_callback(self._close_all, self.producers)
            await self._close_all(self.consumers)

    async def _close_all(self, members: "Mapping[str, Member]") -> None:
        cancelled: asyncio.CancelledError | None = None
        for member in list(members.values()):
            try:
                await member.close()
            except asyncio.CancelledError as error:
                cancelled = error  # the others have tasks and locks too
            except Exception:
                log.exception("%s of group %s did not close well", type(member).__name__, member.group)
        if cancelled is not None:
            raise cancelled

    def _end(self) -> None:
        self._state = "closed"
        self._closed.set()

    @property
    def is_running(self) -> bool:
        return self._state in ("running", "closing")

    def check_running(self) -> None:
        if self._state == "forked":
            raise ClientError("this client was made before a fork: make a new one in the child process")
        if self._state not in ("running", "closing"):
            raise Closed(f"the client is {self._state}")

    def forked(self) -> None:
        """The process was forked, and this is the child: sockets and loop belong to the parent."""
        self._state = "forked"
        for producer in self.producers.values():
            producer.forked()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # Members

    def producer(self, group: str, **options: Any) -> "Producer":
        """A producer of a group; start it with `async with`."""
        from cometmq.client.producer import Producer

        return Producer(self, group, **options)

    def push_consumer(
        self,
        group: str,
        subscriptions: "Mapping[str, Subscription]",
        handler: "Handler | None" = None,
        **options: Any,
    ) -> "PushConsumer":
        """A consumer of a group that gets its messages by itself; start it with `async with`."""
        from cometmq.client.consumer.push import PushConsumer

        return PushConsumer(self, group, subscriptions, handler, **options)

    def pull_consumer(self, group: str, **options: Any) -> "PullConsumer":
        """A consumer of a group that asks for its messages; start it with `async with`."""
        from cometmq.client.consumer.pull import PullConsumer

        return PullConsumer(self, group, **options)

    def admin(self, **options: Any) -> "Admin":
        """What an administrator may ask of the cluster. It needs no start and no close of its own."""
        from cometmq.client.admin import Admin

        return Admin(self, **options)

    async def inner_producer(self) -> "Producer":
        """The producer for messages of the client's own: retries and replies."""
        if self._inner_producer is None:
            self._inner_producer = self.producer(INNER_PRODUCER)
            await self._inner_producer.start()
        return self._inner_producer

    async def send_internally(self, outgoing: "Outgoing") -> "SendReceipt":
        """Send a message of the client's own: one that a consumer tries again."""
        return await (await self.inner_producer()).send_prepared(outgoing)

    @property
    def replies(self) -> "Replies":
        """Who waits for replies; made by the first request."""
        requests = self._serve_brokers()
        if requests.replies is None:
            from cometmq.client.producer.request_reply import Replies

            requests.replies = Replies()
        return cast("Replies", requests.replies)

    @property
    def is_signing(self) -> bool:
        """Whether keys are added to every request: then none goes the short way."""
        return self._ext_hook is not None

    def add_producer(self, member: "ProducerMember") -> None:
        self.check_running()
        if member.group in self.producers:
            raise GroupInUse(f"this client has a producer of the group {member.group} already")
        self.producers[member.group] = member
        self._serve_brokers()

    def add_consumer(self, member: "ConsumerMember") -> None:
        self.check_running()
        if member.group in self.consumers:
            raise GroupInUse(f"this client has a consumer of the group {member.group} already")
        self.consumers[member.group] = member
        self._serve_brokers()

    def _serve_brokers(self) -> "ServerRequests":
        """Answer what brokers ask of members, from the first one on: before, it concerns nobody."""
        if self._server_requests is None:
            from cometmq.client.server_requests import ServerRequests

            self._server_requests = ServerRequests(self)
            self._server_requests.add_to(self._handlers)
        return self._server_requests

    async def remove_producer(self, member: "ProducerMember") -> None:
        """A producer leaves; the brokers hear of it if they can."""
        if self.producers.get(member.group) is member:
            del self.producers[member.group]
            await self._unregister(UnregisterClient(self.client_id, producer_group=member.group))

    async def remove_consumer(self, member: "ConsumerMember") -> None:
        """A consumer leaves; the brokers hear of it if they can, so that others take over its queues at once."""
        if self.consumers.get(member.group) is member:
            del self.consumers[member.group]
            await self._unregister(UnregisterClient(self.client_id, consumer_group=member.group))

    async def _unregister(self, header: UnregisterClient) -> None:
        connected = [address for address in self.routes.brokers.addresses() if address in self.remoting.connections]

        async def tell(address: str) -> None:
            try:
                await self.remoting.request(
                    address, RequestCode.UNREGISTER_CLIENT, header, timeout=self.request_timeout
                )
            except (TransportError, BrokerError) as error:
                log.debug("%s did not hear that a member left: %s", address, error)

        await asyncio.gather(*(tell(address) for address in connected))

    # Keeping up

    def _route_changed(self, route: TopicRoute) -> None:
        """Brokers that a new route brings hear of us at once, not with the next heartbeat."""
        strangers = self.heartbeats.strangers()
        if strangers:
            self.scheduler.spawn(self.heartbeats.beat(strangers), "heartbeat to new brokers")

    async def _refresh_routes(self) -> None:
        topics = {topic for member in (*self.producers.values(), *self.consumers.values()) for topic in member.topics()}
        await self.routes.refresh(sorted(topics))


def _tls_options(tls: "ClientTlsOptions | bool | None") -> "ClientTlsOptions | None":
    if not tls:
        return None
    from cometmq.remoting.tls import ClientTlsOptions

    return ClientTlsOptions() if tls is True else tls


def connect(nameservers: str | Iterable[str] | None = None, **options: Any) -> Client:
    """A client of the cluster that these nameservers know: `host:port`, several separated by `;` or in a list.

    Without them `ROCKETMQ_NAMESRV_ADDR` or `NAMESRV_ADDR` of the environment count, or the HTTP address server that
    `ROCKETMQ_NAMESRV_DOMAIN` names. Nothing is sent before it is used; use it with `async with`.
    """
    return Client(nameservers, **options)
