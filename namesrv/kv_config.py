"""The KV config of a nameserver: namespaces of key and value, the only thing it keeps on disk.

The table changes after the file has: what was acknowledged survives a crash. Sockets and requests do not belong here.
Mirrors RocketMQ's KVConfigManager and its `kvConfig.json`.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from cometmq.files import read_or_backup, write_atomically
from cometmq.protocol import fastjson

#: Topics with a global order: key = topic, value = `broker-a:4;broker-b:4`.
ORDER_TOPIC_CONFIG = "ORDER_TOPIC_CONFIG"

log = logging.getLogger(__name__)

Table = Mapping[str, Mapping[str, str]]


class KVConfig:
    """The tables of all namespaces, and the file behind them (none without a path)."""

    def __init__(self, path: Path | str | None = None) -> None:
        self._path = Path(path) if path else None
        self._table: dict[str, dict[str, str]] = {}
        self._writing = asyncio.Lock()

    def load(self) -> None:
        """Read the file; a missing one is an empty table. Raises `FileDamaged` when its `.bak` is unreadable too."""
        if self._path is not None:
            self._table = read_or_backup(self._path, decode) or {}

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """The keys of a namespace; None when it was never used."""
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value and wait until it is on disk."""
        async with self._writing:
            old = self._table.get(namespace, {})
            await self._store({**self._table, namespace: {**old, key: value}})
        log.info("%s %s/%s = %s", "updated" if key in old else "created", namespace, key, value)

    async def delete(self, namespace: str, key: str) -> bool:
        """Remove a value and wait until that is on disk; False when there was none."""
        async with self._writing:
            old = self._table.get(namespace, {})
            if key not in old:
                return False
            # The namespace stays, empty: it has been used.
            await self._store({**self._table, namespace: {k: v for k, v in old.items() if k != key}})
        log.info("deleted %s/%s", namespace, key)
        return True

    async def _store(self, table: dict[str, dict[str, str]]) -> None:
        if self._path is not None:
            await asyncio.to_thread(write_atomically, self._path, encode(table))
        self._table = table


def encode(table: Table) -> bytes:
    """The content of `kvConfig.json`."""
    return fastjson.dumps({"configTable": table})


def decode(data: bytes) -> dict[str, dict[str, str]]:
    """The table in a file; ValueError or BodyError when it is not one."""
    content = fastjson.loads(data)
    table = content.get("configTable") if isinstance(content, dict) else None
    if table is None or not isinstance(table, dict):
        raise ValueError("no configTable in it")
    for namespace, entries in table.items():
        if not isinstance(entries, dict) or not all(isinstance(value, str) for value in entries.values()):
            raise ValueError(f"namespace {namespace!r} is not a map of text")
    return {str(namespace): {str(key): value for key, value in entries.items()} for namespace, entries in table.items()}
