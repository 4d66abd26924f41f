"""How the members of a group share the queues of a topic. Pure functions: sorted queues and sorted ids in, mine out.

All members must use the same strategy, whatever their language: the rules are Java's to the letter, but for `Sticky`,
which is our own. RocketMQ's AllocateMessageQueueStrategy.
"""

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from cometmq.client.queues import MessageQueue

#: Points of a client on the ring of the consistent hash.
VIRTUAL_NODES: Final = 10


class Strategy(Protocol):
    """A way to share."""

    #: What the broker's tools show.
    name: str

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        """The queues of one member. A member that is not in the list gets none."""


class Averagely:
    """Neighbouring queues to each, the first members one more. The default."""

    name = "AVG"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in clients:
            return []
        index = clients.index(client_id)
        share, rest = divmod(len(queues), len(clients))
        start = index * share + min(index, rest)
        return list(queues[start : start + share + (index < rest)])


class AveragelyByCircle:
    """Queues are dealt like cards."""

    name = "AVG_BY_CIRCLE"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        return list(queues[clients.index(client_id) :: len(clients)]) if client_id in clients else []


class ByConfig:
    """The same queues always, as the user says."""

    name = "CONFIG"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = list(queues)

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        return [queue for queue in self._queues if not queues or queue.topic == queues[0].topic]


class MachineRoom:
    """Queues of brokers in these rooms only (`<room>@<broker>`), neighbouring ones to each, what is left one by one."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = frozenset(rooms)

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in clients:
            return []
        near = [queue for queue in queues if _room_of(queue) in self._rooms]
        share, rest = divmod(len(near), len(clients))
        index = clients.index(client_id)
        mine = near[index * share : (index + 1) * share]
        if index < rest:
            mine.append(near[share * len(clients) + index])
        return mine


def _room_of(queue: MessageQueue) -> str | None:
    room, at, _ = queue.broker_name.partition("@")
    return room if at else None


class MachineRoomNearby:
    """Queues are shared inside each room; rooms without a member are shared by all."""

    def __init__(
        self,
        inner: Strategy,
        room_of_queue: Callable[[MessageQueue], str],
        room_of_client: Callable[[str], str],
    ) -> None:
        self._inner = inner
        self._room_of_queue = room_of_queue
        self._room_of_client = room_of_client
        self.name = f"MACHINE_ROOM_NEARBY-{inner.name}"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in clients:
            return []
        by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_room.setdefault(_named(self._room_of_queue(queue), queue), []).append(queue)
        members: dict[str, list[str]] = {}
        for client in clients:
            members.setdefault(_named(self._room_of_client(client), client), []).append(client)
        own = self._room_of_client(client_id)
        mine = self._inner(group, client_id, by_room.pop(own, []), members[own])
        for room in sorted(by_room):
            if room not in members:
                mine += self._inner(group, client_id, by_room[room], clients)
        return mine


def _named(room: str, what: object) -> str:
    if not room:
        raise ValueError(f"{what} has no machine room")
    return room


class ConsistentHash:
    """A ring: when a member comes or goes, only its neighbours' queues move."""

    name = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        self._virtual_nodes = virtual_nodes

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in clients:
            return []
        ring = sorted((_md5(f"{client}-{n}"), client) for client in clients for n in range(self._virtual_nodes))
        points = [point for point, _ in ring]
        return [queue for queue in queues if ring[bisect_left(points, _md5(str(queue))) % len(ring)][1] == client_id]


def _md5(text: str) -> int:
    """The first four bytes of the digest, unsigned: Java's MD5Hash."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


class Sticky:
    """Equal shares, and as few queues move as possible. Our own: every member of the group has to use it.

    Members know nothing of each other's past, so each works it out from the list alone: queues choose members by
    rendezvous hashing, and a member that has its share sends the next one on to its second choice.
    """

    name = "STICKY"

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
    ) -> list[MessageQueue]:
        if client_id not in clients:
            return []
        share, rest = divmod(len(queues), len(clients))
        taken: dict[str, int] = dict.fromkeys(clients, 0)
        generous = rest
        mine = []
        for queue in queues:
            text = str(queue)
            for client in sorted(clients, key=lambda each: _md5(f"{each}|{text}")):
                count = taken[client]
                if count < share or (count == share and generous > 0):
                    generous -= count == share
                    taken[client] += 1
                    if client == client_id:
                        mine.append(queue)
                    break
        return mine
