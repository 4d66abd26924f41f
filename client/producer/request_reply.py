"""Request and reply: a message that is answered by whoever consumes it.

The request carries an id and the client that waits; the reply is a message to the reply topic of the cluster, which the
broker pushes to that client. The broker must know the client by a heartbeat for that. RocketMQ's RequestFutureHolder
and MessageUtil.createReplyMessage.
"""

import asyncio
import logging
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec

from cometmq.client.errors import BrokerError, CannotReply, NoBroker, NoRoute, ReplyTimeout, SendFailed
from cometmq.client.message import Message, ReceivedMessage, SendReceipt
from cometmq.client.producer.outgoing import SEND_REPLY, Outgoing
from cometmq.client.routes import TopicRoute
from cometmq.protocol import properties as props
from cometmq.protocol import sysflag
from cometmq.protocol.compression import decompress
from cometmq.protocol.message_id import wall_millis
from cometmq.protocol.requests.callbacks import PushReply
from cometmq.remoting.errors import TransportError, seconds

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)


class Reply(msgspec.Struct, frozen=True):
    """What came back for a request."""

    body: bytes
    properties: Mapping[str, str]
    flag: int
    #: When it was sent, by the clock of who replied, and when the broker had it.
    born_time: datetime
    stored_time: datetime
    born_host: str
    store_host: str

    @property
    def tag(self) -> str | None:
        return self.properties.get(props.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(props.KEYS, "").split()


class Replies:
    """Who waits for replies to the requests of one client, by the id of the request."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[Reply]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self) -> tuple[str, "asyncio.Future[Reply]"]:
        """An id for a new request, and the future of its reply."""
        correlation = str(uuid.uuid4())
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[correlation] = future
        return correlation, future

    def forget(self, correlation: str) -> None:
        self._waiting.pop(correlation, None)

    def arrived(self, header: PushReply, body: bytes) -> None:
        """A broker brings a reply."""
        properties = props.parse_properties(header.properties or "")
        correlation = properties.get(props.CORRELATION_ID, "")
        future = self._waiting.pop(correlation, None)
        if future is None or future.done():
            log.warning("a reply to the request %s came too late, or nobody asked: it is dropped", correlation or "-")
            return
        if header.sys_flag & sysflag.COMPRESSED:
            body = decompress(body, sysflag.compression_type(header.sys_flag))
        properties[props.ARRIVE_TIME] = str(wall_millis())
        future.set_result(
            Reply(
                body,
                properties,
                header.flag,
                datetime.fromtimestamp(header.born_timestamp / 1000, UTC),
                datetime.fromtimestamp(header.store_timestamp / 1000, UTC),
                header.born_host,
                header.store_host,
            )
        )


async def wait_for_reply(future: "asyncio.Future[Reply]", topic: str, budget: float, began: float) -> Reply:
    """The reply, within what is left of the budget."""
    try:
        async with asyncio.timeout_at(began + budget):
            return await future
    except TimeoutError:
        raise ReplyTimeout(f"no reply to the request to {topic} came within {seconds(budget)}") from None


async def make_known(client: "Client", route: TopicRoute) -> None:
    """See to it that every broker that may get the reply knows this client."""
    for cluster in {broker.cluster for broker in route.data.broker_datas}:
        topic = reply_topic(cluster)
        if client.routes.known(topic) is None:
            try:
                await client.routes.fetch(topic)
            except (NoRoute, BrokerError, TransportError) as error:
                log.debug("the reply topic of %s has no route: %s", cluster, error)
    await client.heartbeats.introduce(client.routes.brokers.addresses(masters_only=True))


def reply_topic(cluster: str) -> str:
    return f"{cluster}_REPLY_TOPIC"


async def send_reply(client: "Client", request: ReceivedMessage, reply: Message) -> SendReceipt:
    """Answer a message that came by `producer.request`; by the same broker if possible, which knows the asker."""
    given = request.properties
    missing = [name for name in (props.CLUSTER, props.CORRELATION_ID, props.REPLY_TO_CLIENT) if not given.get(name)]
    if missing:
        raise CannotReply(f"{request!r} is no request: it has no {', '.join(missing)}")
    extra = {
        props.MSG_TYPE: props.REPLY_MESSAGE,
        props.CORRELATION_ID: given[props.CORRELATION_ID],
        props.REPLY_TO_CLIENT: given[props.REPLY_TO_CLIENT],
        props.TTL: given.get(props.TTL, "3000"),
    }
    producer = await client.inner_producer()
    topic = reply_topic(given[props.CLUSTER])
    outgoing: Outgoing = producer.pack(topic, reply, extra)
    outgoing.code = SEND_REPLY
    try:
        near = [queue for queue in await producer.queues(topic) if queue.broker_name == request.queue.broker_name]
        if near:
            return await producer.send_prepared(outgoing, near[0])
    except (SendFailed, NoBroker) as error:
        log.info("the broker of %r took no reply: %s", request, error)
    return await producer.send_prepared(outgoing)
