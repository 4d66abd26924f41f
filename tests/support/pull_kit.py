"""A broker that only pulls and knows offsets: the real store, tables and sockets, without nameservers and producers.

async with PullBroker(tmp_path) as broker, connect(broker.port) as wire:
    broker.topic("T")
    broker.put("T", 0, b"x", TAGS="a")
    reply = await wire.call(11, pull("G", "T", 0, 0))
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cometmq.broker.channels import ClientChannel
from cometmq.broker.config import BrokerConfig
from cometmq.broker.consumers import Consumers
from cometmq.broker.groups import GroupTable
from cometmq.broker.handlers import handler_table
from cometmq.broker.handlers import offsets as offset_handlers
from cometmq.broker.handlers import pull as pull_handlers
from cometmq.broker.held_pulls import HeldPulls
from cometmq.broker.offsets import ConsumerOffsets
from cometmq.broker.state import BrokerState
from cometmq.broker.stats import BrokerStats
from cometmq.broker.store.clock import Clock, SystemClock
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.dispatch import TellArrivals
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.tables import SavedTable
from cometmq.broker.topics import TopicTable
from cometmq.protocol.bodies.groups import SubscriptionGroupConfig
from cometmq.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel, SubscriptionData
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.remoting.connection import Connection
from cometmq.remoting.server import Server, ServerOptions
from support.store_kit import SMALL, message

#: Bits of a pull's sysFlag.
COMMIT, SUSPEND, SUBSCRIPTION, LITE = 1, 2, 4, 16


def pull(
    group: str, topic: str, queue_id: int, offset: int, flags: int = SUBSCRIPTION, **over: object
) -> dict[str, object]:
    """The keys of a pull request."""
    keys: dict[str, object] = {
        "consumerGroup": group,
        "topic": topic,
        "queueId": queue_id,
        "queueOffset": offset,
        "maxMsgNums": 32,
        "sysFlag": flags,
        "commitOffset": 0,
        "suspendTimeoutMillis": 15_000,
        "subscription": "*",
        "subVersion": 0,
        "expressionType": "TAG",
    }
    keys.update(over)
    return {key: value for key, value in keys.items() if value is not None}


class PullBroker:
    """The state of a broker and a server for its pulls and offsets."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock | None = None,
        memory: int = 1 << 30,
        held_limit: int = 100_000,
        open_reply_limit: int = 100_000,
        **properties: str,
    ) -> None:
        self._folder = folder
        self._clock = clock or SystemClock()
        self._memory = memory
        self._held_limit = held_limit
        self._open_reply_limit = open_reply_limit
        self._properties = {**SMALL, "brokerIP1": "127.0.0.1", **properties}

    async def __aenter__(self) -> Self:
        config = BrokerConfig().with_properties(self._properties)
        self.runner = AsyncioRunner()
        self.state = state = BrokerState(config, self._clock, self.runner)
        disk = RealDisk()
        state.files = files = ConfigFiles(disk, str(self._folder))
        state.topics = TopicTable(config, files.topics, self._clock)
        state.topics.load()
        state.groups = GroupTable(config, files.subscription_groups, self._clock)
        state.groups.load()
        state.on_config += [state.topics.configure, state.groups.configure]
        state.consumers = Consumers()
        state.stats = BrokerStats(config.broker_cluster_name, self._clock)
        state.offsets = ConsumerOffsets(files, self._clock, lmq=config.store.enable_lmq)
        state.offsets.load()
        self.saved = SavedTable[Any](
            files.consumer_offsets,
            state.offsets.snapshot,
            self.runner,
            lambda: state.config.flush_consumer_offset_interval / 1000,
            lambda: state.offsets.changes,
        )
        self.store = state.store = Store(
            self._folder, config.store, runner=self.runner, clock=self._clock, topics=state.topics, memory=self._memory
        )
        self.store.open()
        self.store.start()
        state.held_pulls = HeldPulls(
            self._clock,
            self.runner,
            self.store.max_offset,
            limit=self._held_limit,
            multi_dispatch=config.store.enable_multi_dispatch,
        )
        self.held: HeldPulls = state.held_pulls
        self.store.dispatch.append(TellArrivals(self.held.arrived))
        table = handler_table([*pull_handlers.rows(state), *offset_handlers.rows(state)])
        table.on_connection_lost.append(self.held.drop_connection)
        self.server = Server(table, ServerOptions(host="127.0.0.1", open_reply_limit=self._open_reply_limit))
        await self.server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.held.close()
        async with asyncio.timeout(10):
            while self.server.open_replies:  # noqa: ASYNC110
                await asyncio.sleep(0)
        # Nobody reads last answers here, and nobody should wait for that.
        await self.server.close(grace=0)
        self.saved.close()
        self.store.close()
        self.runner.close()

    @property
    def port(self) -> int:
        return self.server.address[1]

    # What other handlers would do

    def topic(self, name: str, queues: int = 4, **over: Any) -> None:
        self.state.topics.update(
            TopicConfig(**{"topic_name": name, "read_queue_nums": queues, "write_queue_nums": queues, **over})
        )

    def group(self, name: str, **over: Any) -> None:
        self.state.groups.update(SubscriptionGroupConfig(group_name=name, **over))

    def configure(self, **properties: str) -> None:
        self.state.apply(self.state.config.with_properties(properties))

    def heartbeat(
        self,
        group: str,
        *subscriptions: SubscriptionData,
        model: str = MessageModel.CLUSTERING.value,
        kind: str = ConsumeType.PASSIVELY.value,
        connection: Connection | None = None,
    ) -> None:
        data = ConsumerData(
            group_name=group, consume_type=kind, message_model=model, subscription_data_set=list(subscriptions)
        )
        self.state.consumers.register(ClientChannel(connection or self.connection(), f"{group}@1"), data)

    def connection(self, index: int = -1) -> Connection:
        """A connection of a client, the last one unless said otherwise."""
        return list(self.server.connections)[index]

    def put(self, topic: str, queue_id: int, *bodies: bytes, **properties: str) -> None:
        """Messages, in one turn of the loop, which has to come yet."""
        for body in bodies:
            self.store.put(message(topic, queue_id, body, **properties))

    async def filled(self, topic: str, queue_id: int, *bodies: bytes, **properties: str) -> None:
        """Messages that can be pulled when this returns."""
        end = self.store.max_offset(topic, queue_id) + len(bodies)
        self.put(topic, queue_id, *bodies, **properties)
        async with asyncio.timeout(10):
            while self.store.max_offset(topic, queue_id) < end:  # noqa: ASYNC110
                await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def broker_with_topic(folder: Path, **options: Any) -> AsyncIterator[PullBroker]:
    """A broker with the topic T."""
    async with PullBroker(folder, **options) as broker:
        broker.topic("T")
        yield broker
