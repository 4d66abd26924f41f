"""A TCP relay that behaves badly, by a seed: it delays, splits, cuts, half-closes, goes silent and turns callers away.

What passes stays in order and whole until a connection ends: this is what TCP gives under a bad network. A silence ends
with the connection, as when a router has lost its table.
"""

import asyncio
import contextlib
import random
from collections import Counter
from typing import Self


class FaultyLink:
    """Listens on an address and relays to another one. Nothing goes wrong while `is_faulty` is False."""

    #: Fault -> how often it comes for a piece of data.
    CHANCES = {"delay": 0.05, "split": 0.05, "cut": 0.002, "half_close": 0.001, "silence": 0.001}
    #: How often a new connection is turned away.
    REFUSE = 0.2

    def __init__(self, listen: str, target: str, seed: int) -> None:
        self._listen, self._target = listen.rsplit(":", 1), target.rsplit(":", 1)
        self._random = random.Random(seed)
        self.is_faulty = False
        self.counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        return ":".join(str(part) for part in self._server.sockets[0].getsockname()[:2])

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, self._listen[0], int(self._listen[1]))
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        self.cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_faulty and self._random.random() < self.REFUSE:
            self.counts["refused"] += 1
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(self._target[0], int(self._target[1]))
        except OSError:
            writer.transport.abort()
            return
        both = (writer, far_writer)
        self._writers.update(both)
        directions = [
            asyncio.ensure_future(self._relay(reader, far_writer)),
            asyncio.ensure_future(self._relay(far_reader, writer)),
        ]
        for task in directions:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        # One direction at its end takes the other with it; a half-close is a fault and says when it is over.
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for task in directions:
            task.cancel()
        for each in both:
            each.transport.abort()
            self._writers.discard(each)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if not await self._pass(data, writer):
                    return

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter) -> bool:
        """Send it on, with what may happen by the way; False when that was the end."""
        fault = self._fault()
        if fault is None:
            writer.write(data)
            return True
        self.counts[fault] += 1
        rng = self._random
        if fault == "delay":
            await asyncio.sleep(rng.uniform(0.01, 0.2))
            writer.write(data)
            return True
        some = rng.randrange(len(data))
        if fault == "split":
            for piece in (data[:some], data[some : some + 1], data[some + 1 :]):
                writer.write(piece)
                await asyncio.sleep(0.002)
            return True
        if fault == "cut":
            writer.write(data[:some])
        elif fault == "half_close":
            writer.write_eof()
            await asyncio.sleep(rng.uniform(0.1, 0.5))
        else:
            await asyncio.sleep(rng.uniform(0.5, 2.0))
        return False

    def _fault(self) -> str | None:
        if not self.is_faulty:
            return None
        drawn = self._random.random()
        for fault, chance in self.CHANCES.items():
            drawn -= chance
            if drawn < 0:
                return fault
        return None
