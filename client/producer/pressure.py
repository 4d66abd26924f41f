"""Back-pressure: how many messages, and how many bytes of them, a producer may have on the way at once.

Off by default, as in Java; then only the limits of the connections count. RocketMQ's enableBackpressureForAsyncMode.
"""

import asyncio

import msgspec

from cometmq.client.waiters import Waiters
from cometmq.remoting.errors import TooManyRequests, seconds


class BackPressure(msgspec.Struct, frozen=True):
    """The limits: messages, and bytes of their bodies."""

    messages: int = 1024
    size: int = 100 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.messages < 10 or self.size < 1024 * 1024:
            raise ValueError("back-pressure below 10 messages or 1 MiB would stop a producer rather than slow it")

    @classmethod
    def of(cls, given: "BackPressure | bool | None") -> "BackPressure | None":
        return cls() if given is True else given or None


class Pressure:
    """What is on the way. Mutable state: the counts, and who waits, in the order in which they came."""

    def __init__(self, limits: BackPressure) -> None:
        self._limits = limits
        self._waiters = Waiters()
        self.messages = 0
        self.size = 0

    def _has_room(self, size: int) -> bool:
        # A message larger than the limit goes alone.
        fits = self.size + size <= self._limits.size or not self.messages
        return fits and self.messages < self._limits.messages

    async def enter(self, size: int, budget: float) -> None:
        """Returns when there is room; TooManyRequests when there is none within the budget of seconds."""
        if self._waiters or not self._has_room(size):
            try:
                async with asyncio.timeout(max(budget, 0.0)):
                    await self._wait(size)
            except TimeoutError:
                raise TooManyRequests(
                    f"the message was not sent: {self.messages} messages of {self.size} bytes are on the way,"
                    f" and none ended within {seconds(budget)}"
                ) from None
        self.messages += 1
        self.size += size

    async def _wait(self, size: int) -> None:
        try:
            await self._waiters.wait()
            while not self._has_room(size):
                await self._waiters.wait(first=True)
        finally:
            # A large one that ended made room for several; and behind one that gave up a smaller one may fit.
            self._waiters.wake()

    def leave(self, size: int) -> None:
        """One has ended."""
        self.messages -= 1
        self.size -= size
        self._waiters.wake()
