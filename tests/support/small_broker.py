"""A broker in the test's own process: real sockets, the real handlers that a test names, a real store.

    async with SmallBroker(tmp_path, [send.rows]) as broker:
        peer = await broker.peer()

It knows no nameserver and runs no services: what is tested is the way of a request.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Self

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups import GroupTable
from cometmq.broker.handlers import handler_table
from cometmq.broker.handlers.row import Row
from cometmq.broker.queue_locks import QueueLocks
from cometmq.broker.state import BrokerState
from cometmq.broker.stats import BrokerStats
from cometmq.broker.store.clock import Clock, SystemClock
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.disk import Disk, RealDisk
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.topics import TopicTable
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.record import Record
from cometmq.remoting import Server, ServerOptions
from support.raw_peer import RawPeer
from support.store_kit import read_queue

#: Small files, so that a store costs little.
SMALL = {
    "brokerIP1": "127.0.0.1",
    "brokerName": "broker-a",
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "waitTimeMillsInSendQueue": "20000",  # busy cores shall be slow, not refused
}


class SmallBroker:
    """One broker on any port. `async with` starts and ends it."""

    def __init__(
        self,
        folder: Path | str,
        modules: list[Callable[[BrokerState], list[Row]]],
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        **properties: str,
    ) -> None:
        self.folder = str(folder)
        self.config = BrokerConfig().with_properties(SMALL | properties)
        self.disk = disk or RealDisk()
        self.clock = clock or SystemClock()
        self._modules = modules

    async def __aenter__(self) -> Self:
        config, clock = self.config, self.clock
        self.runner = AsyncioRunner()
        self.state = state = BrokerState(config, clock, self.runner)
        state.files = files = ConfigFiles(self.disk, self.folder)
        state.topics = TopicTable(config, files.topics, clock)
        state.topics.load()
        state.groups = GroupTable(config, files.subscription_groups, clock)
        state.groups.load()
        state.locks = QueueLocks(clock)
        state.stats = BrokerStats(config.broker_cluster_name, clock)
        state.store = self.store = Store(
            self.folder,
            config.store,
            runner=self.runner,
            disk=self.disk,
            clock=clock,
            topics=state.topics,
            store_host=state.store_host,
        )
        self.store.open()
        self.store.start()
        rows = [row for module in self._modules for row in module(state)]
        table = handler_table(rows)
        table.lane = state.send_lane
        self.server = Server(table, ServerOptions(host="127.0.0.1"))
        await self.server.start()
        self._peers: list[RawPeer] = []
        return self

    async def __aexit__(self, *exception: object) -> None:
        for peer in self._peers:
            await peer.close()
        await self.server.close()
        self.state.overload.close()
        self.store.close()
        self.runner.close()

    @property
    def address(self) -> tuple[str, int]:
        return self.server.address

    async def peer(self) -> RawPeer:
        """A connection to it; closed with the broker."""
        peer = await RawPeer.open(self.address, limit=1 << 24)
        self._peers.append(peer)
        return peer

    def topic(self, name: str, queues: int = 4, **fields: object) -> TopicConfig:
        """Makes a topic."""
        config = TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, **fields)  # type: ignore[arg-type]
        self.state.topics.update(config)
        return config

    def records(self, topic: str, queue_id: int = 0) -> list[Record]:
        """All that a queue holds."""
        return read_queue(self.store, topic, queue_id)
