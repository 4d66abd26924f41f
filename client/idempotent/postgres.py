"""Keys in a PostgreSQL database: a unique key in the transaction of the user's own work. Needs `cometmq[postgres]`.

Two that come with one key at the same time: the second waits until the first one's transaction has ended.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncpg

_CREATE = """CREATE TABLE IF NOT EXISTS cometmq_once (
    key text PRIMARY KEY, version bigint NOT NULL, done_at timestamptz NOT NULL DEFAULT now())"""
# A key that is new, or a version that is higher than the one before: gives a row. Else none.
_CLAIM = """INSERT INTO cometmq_once AS known (key, version) VALUES ($1, $2)
    ON CONFLICT (key) DO UPDATE SET version = excluded.version, done_at = now()
    WHERE known.version < excluded.version RETURNING 1"""


class PostgresStore:
    """Give it the pool of the user's database (`asyncpg.create_pool`). The table is made when it is missing."""

    def __init__(self, pool: "asyncpg.Pool[Any]") -> None:
        self._pool = pool
        self._is_made = False

    async def begin(self, key: str, version: int) -> "PostgresTurn":
        connection = await self._pool.acquire()
        try:
            await self._make(connection)
            transaction = connection.transaction()
            await transaction.start()
            is_first = await connection.fetchval(_CLAIM, key, version) is not None
        except BaseException:
            # The pool rolls back whatever an unfinished transaction left.
            await self._pool.release(connection)
            raise
        return PostgresTurn(self._pool, connection, transaction, is_first)

    async def _make(self, connection: Any) -> None:
        if not self._is_made:
            # Two that make one table at once: PostgreSQL lets one of them fail. A lock on any number helps.
            async with connection.transaction():
                await connection.execute("SELECT pg_advisory_xact_lock(7303014, 1)")
                await connection.execute(_CREATE)
            self._is_made = True

    async def forget(self, age: timedelta) -> int:
        """Forget keys that were done longer ago than that; how many they were."""
        async with self._pool.acquire() as connection:
            await self._make(connection)
            status = await connection.execute("DELETE FROM cometmq_once WHERE done_at < now() - $1::interval", age)
        return int(status.split()[-1])


class PostgresTurn:
    """A transaction that holds the key, and what the user does on `connection`."""

    def __init__(self, pool: Any, connection: Any, transaction: Any, is_first: bool) -> None:
        self._pool = pool
        self.connection = connection
        self._transaction = transaction
        self.is_first = is_first

    async def commit(self) -> None:
        try:
            await self._transaction.commit()
        finally:
            await self._pool.release(self.connection)

    async def rollback(self) -> None:
        try:
            if not self.connection.is_closed():
                await self._transaction.rollback()
        finally:
            await self._pool.release(self.connection)
