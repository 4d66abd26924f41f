"""Everything that a handler can reach: the settings, the store, the tables and the live clients of one broker.

The parts are plain; this is where they meet, and where a change of the settings reaches them. `Broker` builds it, and
so do tests, with a fake clock and disk. Nothing here knows of sockets. Mirrors what RocketMQ's BrokerController holds
together.
"""

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from cometmq.broker import remote_changes
from cometmq.broker.config import BrokerConfig
from cometmq.broker.hooks import Hooks
from cometmq.broker.overload import Overload
from cometmq.protocol.bodies.registration import DataVersion
from cometmq.protocol.message_id import pack_host
from cometmq.remoting.address import format_address

if TYPE_CHECKING:
    from cometmq.broker.consumers import Consumers
    from cometmq.broker.groups import GroupTable
    from cometmq.broker.held_pulls import HeldPulls
    from cometmq.broker.offsets import ConsumerOffsets
    from cometmq.broker.producers import Producers
    from cometmq.broker.queue_locks import QueueLocks
    from cometmq.broker.schedule import DelayDelivery
    from cometmq.broker.stats import BrokerStats
    from cometmq.broker.store.clock import Clock
    from cometmq.broker.store.config_files import ConfigFiles
    from cometmq.broker.store.runner import Runner
    from cometmq.broker.store.store import Store
    from cometmq.broker.topics import TopicTable
    from cometmq.remoting.dispatch import Lane

log = logging.getLogger(__name__)


class BrokerState:
    """The state that handlers read and change. Attributes without a value are set by whoever builds it."""

    files: "ConfigFiles"
    store: "Store"
    topics: "TopicTable"
    groups: "GroupTable"
    offsets: "ConsumerOffsets"
    consumers: "Consumers"
    producers: "Producers"
    locks: "QueueLocks"
    stats: "BrokerStats"
    held_pulls: "HeldPulls"
    delay: "DelayDelivery"

    def __init__(self, config: BrokerConfig, clock: "Clock", runner: "Runner", *, hooks: Hooks | None = None) -> None:
        self.config = config
        self.clock = clock
        self.runner = runner
        self.hooks = hooks or Hooks()
        self.boot_time = clock.wall()
        #: Told of new settings after `config` was replaced: for hot paths that keep a copy of a value.
        self.on_config: list[Callable[[BrokerConfig], None]] = []
        #: What to await until the nameservers know of all topics as they are now; None when nobody is to be told.
        self.announcement: Callable[[], Awaitable[None] | None] = lambda: None
        self.data_version_of_config = DataVersion(timestamp=self.boot_time)
        self._updating = asyncio.Lock()
        #: When requests are turned away because the broker is too slow for them.
        self.overload = Overload(self)
        #: The short way of plain sends; None when plug-ins want to see each.
        self.send_lane: Lane | None = None
        self.listens_on(config.listen_port)

    def listens_on(self, port: int, ip: str | None = None) -> None:
        """The port is known: with it the address that is registered, and written into every message.

        `ip` is for a `brokerIP1` that is a name: messages hold numbers.
        """
        host = self.config.broker_ip1
        #: `brokerIP1:listenPort` as registered.
        self.address = format_address(host, port)
        #: The same, packed.
        self.store_host = pack_host(ip or (host if is_ip(host) else "127.0.0.1"), port)

    async def update_config(self, properties: Mapping[str, str]) -> None:
        """Change settings from remote and keep them on disk. Raises `ConfigRefused` for keys that may not change."""
        async with self._updating:
            config, problems = self.config.updated(properties)
            for problem in problems:
                log.warning("update of the configuration: %s; kept the old value", problem)
            await asyncio.to_thread(remote_changes.save, config, properties)
            self.apply(config)
        shown = ", ".join(sorted(properties))
        log.info("an update of the configuration was taken: %s", shown if len(shown) < 2000 else f"{shown[:2000]}...")

    def apply(self, config: BrokerConfig) -> None:
        """New settings for everybody."""
        version = self.data_version_of_config
        self.data_version_of_config = DataVersion(
            counter=version.counter + 1, state_version=version.state_version, timestamp=self.clock.wall()
        )
        self.config = config
        self.store.configure(config.store)
        for tell in self.on_config:
            tell(config)


def is_ip(host: str) -> bool:
    """Whether a host is an address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
