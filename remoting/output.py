"""The output of one connection: gathers what a turn of the loop brings and hands it over in one write.

Budget: a response costs two list appends here; joining and the system call are shared by the whole turn. Small pieces
are joined (a copy of a few KiB is cheaper than a long vector, and one TLS record is cheaper than many); large ones go
to the transport as they are, without a copy of ours.
"""

import asyncio
from collections.abc import Callable, Sequence

from cometmq.remoting.dispatch import Body, Buffer

#: Up to this size a turn's output is joined into one piece (bytes).
JOIN_LIMIT = 64 * 1024
#: In larger output, pieces below this size are joined with their neighbours (bytes).
SMALL_PIECE = 16 * 1024


class Output:
    """Pieces on their way to a transport. The mutable state: the pieces of this turn, and counters."""

    __slots__ = (
        "_clock",
        "_limit",
        "_loop",
        "_on_overflow",
        "_pieces",
        "_transport",
        "_vectored",
        "gathered",
        "handed",
        "is_over",
        "is_paused",
        "last_write",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        clock: Callable[[], float],
        limit: int,
        on_overflow: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._clock = clock
        self._limit = limit
        self._on_overflow = on_overflow
        self._pieces: list[Buffer] = []
        # uvloop writes a list of buffers as it is. asyncio's writelines joins it (3.11) or forgets to pause the
        # writer (early 3.12), so there each large piece is a write of its own.
        self._vectored = type(transport).__module__.startswith("uvloop")
        #: Bytes gathered and not yet handed to the transport.
        self.gathered = 0
        #: Bytes handed to the transport, ever.
        self.handed = 0
        #: The transport's buffer is above its high-water mark.
        self.is_paused = False
        #: Nothing more may be written.
        self.is_over = False
        self.last_write = clock()

    def put(self, head: bytes, body: Body, body_length: int) -> None:
        """Adds a frame. It is sent at the end of this turn of the loop."""
        pieces = self._pieces
        if not pieces:
            self._loop.call_soon(self.flush)
        pieces.append(head)
        if body_length:
            if body.__class__ is not bytes and isinstance(body, list | tuple):
                pieces.extend(piece for piece in body if piece)
            else:
                pieces.append(body)
        self.gathered += len(head) + body_length

    def send_frames(self, frames: list[bytes]) -> None:
        """Adds whole frames and sends everything now: for whoever has all that a turn brings."""
        self._pieces += frames
        self.gathered += sum(map(len, frames))
        self.flush()

    def flush(self) -> None:
        """Hands everything gathered to the transport."""
        pieces = self._pieces
        if not pieces:
            return
        size = self.gathered
        self._pieces = []
        self.gathered = 0
        transport = self._transport
        if self.is_over or transport.is_closing():
            return
        if self.is_paused and transport.get_write_buffer_size() > self._limit:
            self._on_overflow()
            return
        self.handed += size
        self.last_write = self._clock()
        if len(pieces) == 1:
            transport.write(pieces[0])
        elif size <= JOIN_LIMIT:
            transport.write(b"".join(pieces))
        elif self._vectored:
            transport.writelines(joined(pieces))
        else:
            for piece in joined(pieces):
                transport.write(piece)

    @property
    def unsent(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self.gathered + self._transport.get_write_buffer_size()

    @property
    def taken(self) -> int:
        """Bytes that the kernel has taken, ever: grows as long as the peer reads."""
        return self.handed - self._transport.get_write_buffer_size()


def joined(pieces: Sequence[Buffer]) -> list[Buffer]:
    """The same bytes with small neighbours joined; large pieces are passed through."""
    result: list[Buffer] = []
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < SMALL_PIECE:
            small.append(piece)
            continue
        if small:
            result.append(b"".join(small))
            small = []
        result.append(piece)
    if small:
        result.append(b"".join(small))
    return result


def body_length(body: Body) -> int:
    """Bytes of a body, whatever it is made of."""
    if isinstance(body, list | tuple):
        return sum(map(len, body))
    return len(body)
