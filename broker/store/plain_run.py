"""A run: plain messages of one sender that came together and are put together, with one ticket for all of them.

Most sends come many at a time and differ only in queue, time, keys and body. What they have in common is looked at
once (`PlainKind`), and each message is a tuple (`PlainMessage`) from the reading of its frame to its answer: no object
of its own. A run that finds no room in its file falls apart into tickets of their own. RocketMQ has no such thing.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cometmq.broker.store.dispatch_request import DispatchRequest

if TYPE_CHECKING:
    from cometmq.broker.store.segments import QueueSlot
    from cometmq.broker.store.tickets import Ticket

#: A run takes no more once its records have so many bytes: a turn takes several runs.
RUN_SIZE: Final = 1 << 20


class PlainKind(NamedTuple):
    """What the messages of a kind have in common. None of them wakes a transform, and each waits for the flush."""

    flag: int
    sys_flag: int
    reconsume_times: int
    tags_code: int
    #: Whatever the putter knows of the kind.
    context: Any


class PlainMessage(NamedTuple):
    """One message of a run. Made and taken apart as a plain tuple: once for every send."""

    slot: "QueueSlot"
    kind: PlainKind
    #: Bytes of its record.
    size: int
    body: bytes
    #: All that stands behind the body: `QueueSlot.tail_for` and the properties.
    tail: bytes
    #: In ms.
    born_timestamp: int
    unique: bytes
    keys: bytes | None
    #: Whatever the putter needs to answer it.
    context: Any


class PlainRun:
    """The messages of a run. Mutable state: they grow until the turn, which gives them their places."""

    __slots__ = (
        "born_host",
        "context",
        "fall_apart",
        "messages",
        "physical_offset",
        "queue_offsets",
        "size",
        "store_host",
        "store_timestamp",
    )

    def __init__(self, born_host: bytes, fall_apart: Callable[["PlainRun"], "list[Ticket]"], context: Any) -> None:
        #: Of all of them: an IPv4 address, packed.
        self.born_host = born_host
        #: The same messages as tickets of their own.
        self.fall_apart = fall_apart
        self.context = context
        self.messages: list[PlainMessage] = []
        #: Bytes of all records.
        self.size = 0
        # Once they are laid out: the offset of the first record (the others follow it), and each one's in its queue.
        self.physical_offset = -1
        self.queue_offsets: list[int] = []
        self.store_timestamp = 0
        self.store_host = b""

    def __len__(self) -> int:
        return len(self.messages)

    def places(self) -> Iterator[tuple[PlainMessage, int, int]]:
        """Each message with queue offset and physical offset, once they are laid out."""
        physical_offset = self.physical_offset
        for message, queue_offset in zip(self.messages, self.queue_offsets, strict=True):
            yield message, queue_offset, physical_offset
            physical_offset += message[2]

    def requests(self) -> list[DispatchRequest]:
        """What dispatchers learn of the records, for those that look at each."""
        now = self.store_timestamp
        requests = []
        for message, queue_offset, physical_offset in self.places():
            slot, kind, size, _, tail, _, unique, keys, _ = message
            requests.append(
                DispatchRequest(
                    slot.topic,
                    slot.queue_id,
                    physical_offset,
                    size,
                    kind.tags_code,
                    now,
                    queue_offset,
                    keys,
                    unique,
                    kind.sys_flag,
                    0,
                    tail[slot.tail_size :],
                )
            )
        return requests
