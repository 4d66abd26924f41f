"""Keys in a SQLite database: the user's own file, or one for this purpose.

SQLite has one writer at a time, so the blocks of a store run one after the other, over all processes. Whoever waits too
long gets `InProgress`.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, TypeVar

from cometmq.client.idempotent.once import InProgress

_T = TypeVar("_T")

#: Seconds that a block waits for the writer before it.
PATIENCE: Final = 30.0

_CREATE = """CREATE TABLE IF NOT EXISTS cometmq_once (
    key TEXT PRIMARY KEY, version INTEGER NOT NULL, done_at REAL NOT NULL) WITHOUT ROWID"""
# A key that is new, or a version that is higher than the one before: one row is changed. Else none.
_CLAIM = """INSERT INTO cometmq_once (key, version, done_at) VALUES (?, ?, ?)
    ON CONFLICT (key) DO UPDATE SET version = excluded.version, done_at = excluded.done_at
    WHERE cometmq_once.version < excluded.version"""


class SqliteStore:
    """Give it the path of a database. `close` it, or use it with `async with`.

    Mutable state: one connection, opened when it is first needed, and who has it.
    """

    def __init__(self, path: Path | str, *, patience: float = PATIENCE) -> None:
        self._path = path
        self._patience = patience
        self._connection: sqlite3.Connection | None = None
        self._turn = asyncio.Lock()

    async def begin(self, key: str, version: int) -> "SqliteTurn":
        await self._take_turn(key)
        try:
            is_first = await _in_thread(lambda: self._claim(key, version))
        except sqlite3.OperationalError as error:
            self._turn.release()
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise InProgress(f"another process writes to {self._path} for over {self._patience:g} s") from error
            raise
        except BaseException:
            self._abandon()
            self._turn.release()
            raise
        assert self._connection is not None
        return SqliteTurn(self._connection, self._turn, is_first)

    async def _take_turn(self, key: str) -> None:
        try:
            async with asyncio.timeout(self._patience):
                await self._turn.acquire()
        except TimeoutError:
            raise InProgress(f"{key} waited {self._patience:g} s for other blocks of this store") from None

    def _claim(self, key: str, version: int) -> bool:
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            claimed = connection.execute(_CLAIM, (key, version, datetime.now(UTC).timestamp()))
            return claimed.rowcount == 1
        except BaseException:
            connection.rollback()
            raise

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            # No transactions but ours; and one thread at a time, though not always the same.
            connection = sqlite3.connect(
                self._path, timeout=self._patience, isolation_level=None, check_same_thread=False
            )
            try:
                connection.execute(_CREATE)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _abandon(self) -> None:
        """After a cancel nobody knows what the thread got to: a new connection begins anew, the old one rolls back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def forget(self, age: timedelta) -> int:
        """Forget keys that were done longer ago than that; how many they were."""
        before = (datetime.now(UTC) - age).timestamp()

        def delete() -> int:
            return self._open().execute("DELETE FROM cometmq_once WHERE done_at < ?", (before,)).rowcount

        async with self._turn:
            return await _in_thread(delete)

    async def close(self) -> None:
        async with self._turn:
            self._abandon()

    async def __aenter__(self) -> "SqliteStore":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class SqliteTurn:
    """A transaction that holds the key, and what the user does on `connection`."""

    def __init__(self, connection: sqlite3.Connection, turn: asyncio.Lock, is_first: bool) -> None:
        self.connection = connection
        self._turn = turn
        self.is_first = is_first

    async def commit(self) -> None:
        await self._end(self.connection.commit)

    async def rollback(self) -> None:
        await self._end(self.connection.rollback)

    async def _end(self, how: Callable[[], None]) -> None:
        try:
            await _in_thread(how)
        except BaseException:
            self.connection.rollback()
            raise
        finally:
            self._turn.release()


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Run something that may wait for a disk or a lock. It is never left alone: a cancel waits for its end."""
    future = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if not future.cancelled():
            future.exception()
        raise
