"""Messages that were handed out and are not settled: how many there may be, and which of them take too long.

A message whose processing was broken off (its task was cancelled) is neither done nor failed. It stays here, so that
its offset is held back and it comes again, at the close or by the consume timeout; but nobody works on it any more, and
it takes no slot from the others.
"""

from collections.abc import Iterable, Iterator

from cometmq.client.message import ReceivedMessage
from cometmq.client.waiters import Waiters


class Unsettled:
    """The unsettled messages of a consumer. Mutable state: since when, which were broken off, who waits for a slot."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._since: dict[ReceivedMessage, float] = {}
        self._abandoned: set[ReceivedMessage] = set()
        self.waiters = Waiters()

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, message: object) -> bool:
        return message in self._since

    def __iter__(self) -> Iterator[ReceivedMessage]:
        return iter(list(self._since))

    @property
    def is_full(self) -> bool:
        """Nothing more is handed out until something is settled."""
        return len(self._since) - len(self._abandoned) >= self._slots

    def add(self, messages: Iterable[ReceivedMessage], now: float) -> None:
        since = self._since
        for message in messages:
            since[message] = now

    def abandon(self, message: ReceivedMessage) -> None:
        """Nobody works on it any more: its slot is another one's."""
        if message in self._since:
            self._abandoned.add(message)
            self.waiters.wake()

    def settled(self, message: ReceivedMessage) -> None:
        """It is settled, or comes again: nobody's now. Hot."""
        self._since.pop(message, None)
        if self._abandoned:
            self._abandoned.discard(message)
        if self.waiters:
            self.waiters.wake()

    def expired(self, before: float, *, abandoned_only: bool) -> list[tuple[ReceivedMessage, float]]:
        """Those that were handed out before a moment, and when."""
        return [
            (message, since)
            for message, since in self._since.items()
            if since <= before and (not abandoned_only or message in self._abandoned)
        ]
