"""The buffer that connections read into: one for each loop, so that an idle connection owns none."""

import asyncio
import sys
import weakref

#: Bytes of the buffer that all connections of a loop share: some hundred requests, and large bodies in few steps.
SHARED_SIZE = 256 * 1024
#: Bytes of a buffer of one connection alone, where sharing is not possible.
OWN_SIZE = 64 * 1024


class Scratch:
    """A buffer to read into. Busy while the frames in it are being served."""

    __slots__ = ("is_busy", "view")

    def __init__(self, size: int) -> None:
        self.view = memoryview(bytearray(size))
        self.is_busy = False


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Scratch] = weakref.WeakKeyDictionary()


def scratch_of(loop: asyncio.AbstractEventLoop) -> Scratch:
    """The buffer for a new connection of the loop.

    Loops that wait for readiness read and then call `buffer_updated` in one go, so one buffer serves all. Windows'
    proactor reads while other connections run: there each connection has its own.
    """
    if sys.platform == "win32" and isinstance(loop, asyncio.ProactorEventLoop):
        return Scratch(OWN_SIZE)
    scratch = _shared.get(loop)
    if scratch is None:
        scratch = _shared[loop] = Scratch(SHARED_SIZE)
    return scratch
