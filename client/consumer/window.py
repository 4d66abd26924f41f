"""The sliding window of a queue: what was pulled and is not settled yet, and the offset that may be committed.

Messages are added in the order of their offsets and settled in any. One that is never settled holds the offset back:
at least once. Plain state. RocketMQ's ProcessQueue.
"""

from collections import deque
from collections.abc import Iterable, Iterator

from cometmq.client.message import ReceivedMessage


class Window:
    """The unsettled messages of one queue."""

    __slots__ = ("_messages", "_order", "end", "size")

    def __init__(self) -> None:
        self._messages: dict[int, ReceivedMessage] = {}
        #: Offsets as they came; settled ones leave when they are the first.
        self._order: deque[int] = deque()
        #: One more than the highest offset that ever came; -1 before the first.
        self.end = -1
        #: Bytes of the bodies.
        self.size = 0

    def __len__(self) -> int:
        return len(self._messages)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(list(self._messages.values()))

    def __contains__(self, offset: int) -> bool:
        return offset in self._messages

    @property
    def first(self) -> ReceivedMessage | None:
        """The unsettled message with the lowest offset."""
        return self._messages[self._order[0]] if self._messages else None

    @property
    def span(self) -> int:
        """How far apart the first and the last unsettled message are."""
        return self._order[-1] - self._order[0] if self._messages else 0

    def add(self, messages: Iterable[ReceivedMessage]) -> list[ReceivedMessage]:
        """Take in what was pulled; gives those that are new. A repeated offset is passed over."""
        new = []
        for message in messages:
            offset = message.queue_offset
            if offset < self.end:
                continue
            self._messages[offset] = message
            self._order.append(offset)
            self.end = offset + 1
            self.size += len(message.body)
            new.append(message)
        return new

    def settle(self, offset: int) -> int | None:
        """A message is done: the offset that may be committed now, None when it was not here (any more)."""
        message = self._messages.pop(offset, None)
        if message is None:
            return None
        self.size -= len(message.body)
        order, messages = self._order, self._messages
        while order and order[0] not in messages:
            order.popleft()
        return order[0] if order else self.end

    def clear(self) -> None:
        """Forget everything: the queue is read anew from elsewhere."""
        self._messages.clear()
        self._order.clear()
        self.end = -1
        self.size = 0
