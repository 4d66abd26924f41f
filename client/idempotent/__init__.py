"""Work that is done once for each key, however often its message comes. RocketMQ delivers at least once and leaves
this to its users.

    store = SqliteStore("orders.db")
    async with once(store, f"billing/{message.message_id}") as turn:
        if turn.is_first:
            turn.connection.execute("INSERT INTO bills ...")

The key is remembered when the block ends well, and forgotten when it raises. In SQLite and PostgreSQL that happens in
one transaction with what the block does on `turn.connection`, so both count or neither. Redis has no such transaction:
there the key is leased while the block runs, and a process that dies in it lets others try when the lease is over.
"""

from cometmq.client.idempotent.once import InProgress, Store, Turn, once
from cometmq.client.idempotent.postgres import PostgresStore
from cometmq.client.idempotent.redis import RedisStore
from cometmq.client.idempotent.sqlite import SqliteStore

__all__ = ["InProgress", "PostgresStore", "RedisStore", "SqliteStore", "Store", "Turn", "once"]
