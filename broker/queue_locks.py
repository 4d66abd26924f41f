"""Which client of a group holds which queue, for consumers in order.

A lock lasts 60 s from its last renewal; it is not given back when a connection is lost, or two consumers would work on
one queue while the network flaps. In memory only. RocketMQ's RebalanceLockManager.
"""

from collections.abc import Iterable
from typing import Final

from cometmq.broker.store.clock import Clock
from cometmq.protocol.bodies.message_queue import MessageQueue

#: Seconds that a lock lasts without renewal. Java clients renew each 20 s and give a lock up after 30 s.
LOCK_LIFETIME: Final = 60.0


class _Lock:
    __slots__ = ("client_id", "renewed")

    def __init__(self, client_id: str, renewed: float) -> None:
        self.client_id = client_id
        self.renewed = renewed


class QueueLocks:
    """The locks of all groups."""

    def __init__(self, clock: Clock, lifetime: float = LOCK_LIFETIME) -> None:
        self._clock = clock
        self.lifetime = lifetime
        self._groups: dict[str, dict[MessageQueue, _Lock]] = {}

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Locks or renews what is free, expired or the client's own. Gives the queues that it holds now."""
        now = self._clock.monotonic()
        locks = self._groups.setdefault(group, {})
        held = []
        for queue in queues:
            lock = locks.get(queue)
            if lock is None:
                locks[queue] = _Lock(client_id, now)
            elif lock.client_id == client_id or now - lock.renewed > self.lifetime:
                lock.client_id, lock.renewed = client_id, now
            else:
                continue
            held.append(queue)
        if not locks:
            del self._groups[group]
        return held

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Gives back what the client holds; locks of others stay."""
        locks = self._groups.get(group)
        if locks is None:
            return
        for queue in queues:
            lock = locks.get(queue)
            if lock is not None and lock.client_id == client_id:
                del locks[queue]
        if not locks:
            del self._groups[group]

    def is_group_locked(self, group: str) -> bool:
        """Whether a client of the group holds any queue: it consumes in order then."""
        locks = self._groups.get(group)
        if not locks:
            return False
        now = self._clock.monotonic()
        return any(now - lock.renewed <= self.lifetime for lock in locks.values())

    def holder(self, group: str, queue: MessageQueue) -> str | None:
        """The client that holds a queue; None when nobody does."""
        lock = self._groups.get(group, {}).get(queue)
        if lock is None or self._clock.monotonic() - lock.renewed > self.lifetime:
            return None
        return lock.client_id

    def expire(self) -> int:
        """Forgets locks that have run out, so that names of the past take no room. Gives how many."""
        now = self._clock.monotonic()
        count = 0
        for group, locks in list(self._groups.items()):
            gone = [queue for queue, lock in locks.items() if now - lock.renewed > self.lifetime]
            for queue in gone:
                del locks[queue]
            count += len(gone)
            if not locks:
                del self._groups[group]
        return count

    def __len__(self) -> int:
        return sum(len(locks) for locks in self._groups.values())
