"""Everything that one nameserver knows: its settings, the routes, the KV config.

The parts are plain; this is where they meet: a change of the settings or of an ordered topic reaches the answers that
are kept encoded. Nothing here knows of sockets. Mirrors what RocketMQ's NamesrvController holds together.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from cometmq.files import write_atomically
from cometmq.namesrv.answers import RouteAnswers
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.kv_config import ORDER_TOPIC_CONFIG, KVConfig
from cometmq.namesrv.routes import Routes

log = logging.getLogger(__name__)


class NamesrvState:
    """The state that handlers read and change. `clock` is monotonic, in seconds."""

    def __init__(self, config: NamesrvConfig, *, clock: Callable[[], float]) -> None:
        self.config = config
        self.clock = clock
        self.started = clock()
        self.routes = Routes()
        self.answers = RouteAnswers(self.routes)
        self.kv = KVConfig(_path(config.kv_config_path))
        self._updating = asyncio.Lock()
        #: Set by every update from remote; whoever waits by a setting clears it and looks again.
        self.config_changed = asyncio.Event()
        self._apply(config)

    @property
    def is_warming_up(self) -> bool:
        """Whether clients have to wait until the brokers had time to register."""
        config = self.config
        return config.need_wait_for_service and self.clock() - self.started < config.wait_seconds_for_service

    async def update_config(self, properties: Mapping[str, str]) -> None:
        """Change settings from remote and keep them on disk. Raises `ConfigRefused` for keys that may not change."""
        async with self._updating:
            config, problems = self.config.updated(properties)
            for problem in problems:
                log.warning("update of the configuration: %s; kept the old value", problem)
            if (path := _path(config.config_store_path)) is not None:
                await asyncio.to_thread(write_atomically, path, config.to_text().encode())
            self._apply(config)
        self.config_changed.set()
        log.info("configuration updated: %s", ", ".join(properties))

    async def put_kv(self, namespace: str, key: str, value: str | None) -> None:
        """Set a value of the KV config. Without a value the key has none, as if it were deleted."""
        if value is None:
            await self.kv.delete(namespace, key)
        else:
            await self.kv.put(namespace, key, value)
        self._kv_changed(namespace, key)

    async def delete_kv(self, namespace: str, key: str) -> None:
        await self.kv.delete(namespace, key)
        self._kv_changed(namespace, key)

    def _kv_changed(self, namespace: str, key: str) -> None:
        if namespace == ORDER_TOPIC_CONFIG:
            self.answers.forget((key,))

    def _apply(self, config: NamesrvConfig) -> None:
        self.config = config
        self.answers.configure(
            acting_master=config.support_acting_master,
            order_conf=self._order_of if config.order_message_enable else None,
        )

    def _order_of(self, topic: str) -> str | None:
        return self.kv.get(ORDER_TOPIC_CONFIG, topic)


def _path(text: str) -> Path | None:
    return Path(text).expanduser() if text else None
