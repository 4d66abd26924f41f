"""A whole broker for the tests of operators' requests: with messages, groups, offsets, and clients on real sockets."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig
from cometmq.broker.hooks import Hooks
from cometmq.broker.store.clock import Clock
from cometmq.broker.store.message import Message
from cometmq.protocol.bodies.groups import SubscriptionGroupConfig
from cometmq.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from cometmq.protocol.bodies.registration import TopicConfig
from support.raw_peer import Frame, RawPeer, request
from support.small_broker import SMALL
from support.store_kit import message


class AdminBroker:
    """One broker without a nameserver, in the test's own loop. `async with` starts and ends it."""

    def __init__(self, folder: Path | str, *, clock: Clock | None = None, **properties: str) -> None:
        own = {"storePathRootDir": str(folder), "listenPort": "0"}
        self.broker = Broker(BrokerConfig().with_properties(SMALL | own | properties), clock=clock, hooks=Hooks())
        self._peers: list[RawPeer] = []

    async def __aenter__(self) -> Self:
        await self.broker.start()
        self.state = self.broker.state
        self.store = self.state.store
        self.clock = self.state.clock
        self._operator = await self.peer()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for peer in self._peers:
            await peer.close()
        await self.broker.close()

    async def peer(self) -> RawPeer:
        """A connection to it; closed with the broker."""
        peer = await RawPeer.open(("127.0.0.1", self.broker.port), limit=1 << 24)
        self._peers.append(peer)
        return peer

    async def ask(self, code: int, ext: Mapping[str, object] | None = None, body: bytes = b"", **header: Any) -> Frame:
        """What an operator gets for a request."""
        fields = {key: str(value) for key, value in (ext or {}).items()}
        return await self._operator.ask(request(code, fields, body, **header))

    # What there is to ask about

    def topic(self, name: str, queues: int = 4, **fields: Any) -> None:
        self.state.topics.update(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **fields)
        )

    def group(self, name: str, **fields: Any) -> None:
        self.state.groups.update(SubscriptionGroupConfig(group_name=name, **fields))

    async def put(self, topic: str, count: int = 1, *, queues: int = 1, body: bytes = b"x", **properties: str) -> None:
        """Stores messages, one after the other, round the queues."""
        for number in range(count):
            await self.put_message(message(topic, number % queues, body, **properties))

    async def put_message(self, message: Message) -> int:
        """Stores a message and waits until it can be read; gives its physical offset."""
        ticket = await self.store.put(message).future()
        async with asyncio.timeout(5):
            while self.store.dispatch.behind:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        return ticket.physical_offset

    async def consumer(self, group: str, *topics: str, client_id: str = "c1", **header: Any) -> RawPeer:
        """A member of a consumer group that is online."""
        data = ConsumerData(
            group_name=group,
            consume_type="CONSUME_PASSIVELY",
            message_model="CLUSTERING",
            consume_from_where="CONSUME_FROM_LAST_OFFSET",
            subscription_data_set=[SubscriptionData(topic=topic, sub_string="*", sub_version=1) for topic in topics],
        )
        return await self._client(HeartbeatData(client_id=client_id, consumer_data_set=[data]).encode(), **header)

    async def producer(self, group: str, client_id: str = "p1", **header: Any) -> RawPeer:
        """A member of a producer group that is online."""
        body = {"clientID": client_id, "producerDataSet": [{"groupName": group}], "consumerDataSet": []}
        return await self._client(json.dumps(body).encode(), **header)

    async def _client(self, heartbeat: bytes, **header: Any) -> RawPeer:
        peer = await self.peer()
        await peer.send(request(34, {}, heartbeat, opaque=1000, **header))
        # The group's change of members is told on the same connection, before or after the answer.
        while (answer := await peer.frame()).opaque != 1000 or not answer.header["flag"] & 1:
            assert answer.code == 40, answer
        assert answer.code == 0, answer
        return peer


async def next_frame(peer: RawPeer) -> Frame:
    """What a client is told next, but that the members of its group have changed."""
    while (frame := await peer.frame()).code == 40:
        pass
    return frame
