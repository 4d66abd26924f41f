"""Keys in Redis: `SET NX` for the lease while the work runs, and a mark when it is done. Needs `cometmq[redis]`.

What the user does elsewhere is in no transaction with it: a process that dies after its work and before the mark does
the work again when the lease is over. And Redis forgets: marks after `retention`, all of them if it loses its memory.
"""

import logging
import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from cometmq.client.idempotent.once import InProgress

if TYPE_CHECKING:
    import redis.asyncio

log = logging.getLogger(__name__)

LEASE: Final = timedelta(minutes=1)
RETENTION: Final = timedelta(days=7)

# Mark a key as done, unless a later version is, and end the lease, if it is still ours; whether it was. Versions are
# compared by their digits: Lua's numbers are exact up to 2^53 only.
_COMMIT = """
local done = redis.call('GET', KEYS[2])
if not done or #done < #ARGV[2] or (#done == #ARGV[2] and done < ARGV[2]) then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
end
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""
# End the lease, if it is still ours.
_RELEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


class RedisStore:
    """Give it a client (`redis.asyncio.Redis`). `lease` has to be longer than the work takes."""

    def __init__(
        self,
        client: "redis.asyncio.Redis",
        *,
        lease: timedelta = LEASE,
        retention: timedelta = RETENTION,
        prefix: str = "cometmq:once:",
    ) -> None:
        self.client: Any = client
        self._lease = _millis(lease)
        self.retention = _millis(retention)
        self._prefix = prefix

    async def begin(self, key: str, version: int) -> "RedisTurn":
        # The braces keep both on one node of a cluster, which scripts need.
        lease, mark = f"{self._prefix}{{{key}}}:lease", f"{self._prefix}{{{key}}}:done"
        token = secrets.token_hex(16)
        if not await self.client.set(lease, token, nx=True, px=self._lease):
            raise InProgress(f"somebody else works on {key}")
        turn = RedisTurn(self, lease, mark, token, version)
        try:
            done = await self.client.get(mark)
        except BaseException:
            await turn.rollback()
            raise
        turn.is_first = done is None or int(done) < version
        return turn


class RedisTurn:
    """A lease on a key."""

    #: What the work does elsewhere is in no transaction with the key.
    connection = None

    def __init__(self, store: RedisStore, lease: str, mark: str, token: str, version: int) -> None:
        self._store = store
        self._lease, self._mark, self._token, self._version = lease, mark, token, version
        self.is_first = False

    async def commit(self) -> None:
        if not self.is_first:
            await self.rollback()
            return
        kept = await self._store.client.eval(
            _COMMIT, 2, self._lease, self._mark, self._token, self._version, self._store.retention
        )
        if not kept:
            log.warning("the lease %s ended before the work did: others may have done it too", self._lease)

    async def rollback(self) -> None:
        await self._store.client.eval(_RELEASE, 1, self._lease, self._token)


def _millis(time: timedelta) -> int:
    millis = round(time.total_seconds() * 1000)
    if millis <= 0:
        raise ValueError(f"{time} is no time that a key could be kept for")
    return millis
