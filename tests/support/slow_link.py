"""A TCP relay that delays what comes back from the target: a broker that is far away, or slow."""

import asyncio
import contextlib
from typing import Self


class SlowLink:
    """Listens on an address and relays to another one; `delay` (seconds) holds back each piece of an answer."""

    def __init__(self, listen: str, target: str) -> None:
        self._listen, self._target = listen.rsplit(":", 1), target.rsplit(":", 1)
        self.delay = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, self._listen[0], int(self._listen[1]))
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(self._target[0], int(self._target[1]))
        except OSError:
            writer.close()
            return
        self._writers.update((writer, far_writer))
        for task in (self._relay(reader, far_writer, False), self._relay(far_reader, writer, True)):
            spawned = asyncio.ensure_future(task)
            self._tasks.add(spawned)
            spawned.add_done_callback(self._tasks.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_slow: bool) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                if is_slow and self.delay:
                    # Pieces are held back each on its own, as by distance: they do not add up.
                    loop.call_later(self.delay, self._write, writer, data)
                else:
                    self._write(writer, data)
        writer.close()

    def _write(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if not writer.is_closing():
            writer.write(data)
