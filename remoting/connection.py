"""One connection, as asyncio sees it: bytes in to the reader, answers and requests out.

Server and client share it: on every connection requests travel both ways, and bit 0 of the flag alone tells a response
from a request. What splits frames is in `reader`, what gathers writes in `output`, what waits for answers in `pending`;
here they meet asyncio, and here is how a connection comes to its end. It mirrors a Netty channel of RocketMQ.

The mutable state is how far it is on its way to the end (`_ended`, `_finishing`, `is_lost`) and the count of answers
that it is owed.
"""

import array
import asyncio
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from cometmq.protocol.codec import encode_request, encode_response
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import SerializeType
from cometmq.protocol.errors import FrameError
from cometmq.protocol.header import Header
from cometmq.remoting.address import format_address
from cometmq.remoting.dispatch import Body, Response
from cometmq.remoting.errors import ConnectionLost, Timeout, seconds
from cometmq.remoting.output import Output, body_length
from cometmq.remoting.pending import Answer, PendingRequests
from cometmq.remoting.reader import FrameReader
from cometmq.remoting.roster import Roster
from cometmq.remoting.scratch import OWN_SIZE, scratch_of

if TYPE_CHECKING:
    from cometmq.remoting.serving import Dispatcher

if sys.platform != "win32":
    import fcntl
    import termios

logger = logging.getLogger(__name__)

_SYSTEM_ERROR = int(ResponseCode.SYSTEM_ERROR)


class Connection(asyncio.BufferedProtocol):
    """A connection to a peer. Identity is what counts: two connections of one peer are two."""

    __slots__ = (
        "__weakref__",
        "_clock",
        "_dispatcher",
        "_ended",
        "_finishing",
        "_loop",
        "_roster",
        "_scratch",
        "_spare",
        "_transport",
        "_writable",
        "attributes",
        "end_reason",
        "has_begun",
        "is_accepted",
        "is_lost",
        "is_tls",
        "kind",
        "lane_memory",
        "last_read",
        "local_address",
        "open_replies",
        "output",
        "pending",
        "reader",
        "remote_address",
    )

    _transport: asyncio.Transport
    reader: FrameReader
    output: Output
    pending: PendingRequests

    def __init__(
        self,
        roster: Roster,
        dispatcher: "Dispatcher",
        *,
        is_accepted: bool,
        remote_address: tuple[str, int] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        self._roster = roster
        self._dispatcher = dispatcher
        self._loop = roster.loop
        self._clock = roster.clock
        self._scratch = scratch_of(roster.loop)
        self._spare: memoryview | None = None
        self._finishing = False
        self._ended = False
        self._writable: list[asyncio.Future[None]] = []
        #: Whether the peer opened the connection (we serve) or we did.
        self.is_accepted = is_accepted
        self.is_tls = False
        #: asyncio has called `connection_made`, and `connection_lost`.
        self.has_begun = False
        self.is_lost = False
        #: Why it ended, for logs and errors; empty while it lives.
        self.end_reason = ""
        #: The peer's address; behind a balancer that speaks the PROXY protocol, the address that it gave.
        self.remote_address: tuple[str, int] = remote_address or ("", 0)
        self.local_address: tuple[str, int] = ("", 0)
        #: What the PROXY protocol told about the connection; handlers may keep their own things here too.
        self.attributes: dict[str, Any] = dict(attributes) if attributes else {}
        #: Header form of the requests that we send here.
        self.kind = SerializeType.JSON
        #: Answers that handlers still owe to this peer.
        self.open_replies = 0
        self.last_read = 0.0
        #: What the lane of the server knows of this connection; None until it knows something. See `dispatch.Lane`.
        self.lane_memory: Any = None

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        limits = self._roster.limits
        transport = self._transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(high=limits.high_water, low=limits.low_water)
        peer = transport.get_extra_info("peername")
        if not self.remote_address[1] and peer:
            self.remote_address = (peer[0], peer[1])
        local = transport.get_extra_info("sockname")
        if local:
            self.local_address = (local[0], local[1])
        self.is_tls = transport.get_extra_info("ssl_object") is not None
        self.last_read = self._clock()
        self.reader = FrameReader(self, self._roster, self._dispatcher)
        self.output = Output(self._loop, transport, self._clock, limits.unsent, self._overflowed)
        self.pending = PendingRequests(self._loop, self._clock, str(self), self._timed_out)
        self.has_begun = True
        self._roster.enter(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._scratch.is_busy:
            # Closing a TLS transport may read from it at once, in the middle of another connection's frames.
            self._spare = memoryview(bytearray(OWN_SIZE))
            return self._spare
        return self._scratch.view

    def buffer_updated(self, nbytes: int) -> None:
        reader = self.reader
        if reader.is_over:
            return
        now = self.last_read = self._clock()
        scratch = self._scratch
        if scratch.is_busy:
            spare, self._spare = self._spare, None
            assert spare is not None
            reader.take(spare[:nbytes], now)
            return
        scratch.is_busy = True
        try:
            reader.take(scratch.view[:nbytes], now)
        finally:
            scratch.is_busy = False

    def eof_received(self) -> bool:
        """The peer sends nothing more. It may still read, so what it is owed is sent before the connection closes."""
        reason = "the peer closed it"
        if self.reader.kept:
            reason += f" in the middle of a frame, after {self.reader.kept} bytes of it"
        self._end(reason)
        self.output.flush()
        self._roster.closing.setdefault(self, self._clock())
        # asyncio cannot keep the sending side of TLS open.
        self._finishing = self.is_accepted and not self.is_tls and self.open_replies > 0
        return self._finishing

    def pause_writing(self) -> None:
        self.output.is_paused = True
        self._roster.stalled[self] = (self._clock(), self.output.taken)
        # Only who serves stops reading: if both sides did, each would wait for the other.
        if self.is_accepted:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self.output.is_paused = False
        self.output.last_write = self._clock()
        self._roster.stalled.pop(self, None)
        for waiter in self._writable:
            if not waiter.done():
                waiter.set_result(None)
        self._writable.clear()
        if self.is_accepted:
            self._loop.call_soon(self._read_on)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        self._end(str(exc) if exc else "closed")
        self._roster.leave(self)
        owed, self.open_replies = self.open_replies, 0
        if owed:
            self._dispatcher.settled(owed)

    def _read_on(self) -> None:
        if self.reader.is_over or self.output.is_paused:
            return
        self.reader.read_on(self._clock())
        if not self.output.is_paused and not self.reader.is_over:
            self._transport.resume_reading()

    # Sending.

    def send_response(self, kind: SerializeType, opaque: int, response: Response) -> None:
        """Answers a request of the peer; nothing happens when the connection has gone."""
        if self.is_lost:
            return
        body = response.body
        length = body_length(body)
        try:
            head = encode_response(
                kind, opaque, response.code, response.header, response.remark, length, ext=response.ext
            )
        except Exception as error:
            # A response that cannot be encoded, or is longer than a frame: the peer must not wait in vain.
            logger.exception("a response for %s could not be encoded", self)
            body, length = b"", 0
            head = encode_response(kind, opaque, _SYSTEM_ERROR, None, f"{type(error).__name__}: {error}", 0)
        self.output.put(head, body, length)

    def request(
        self,
        code: int,
        header: Header | None = None,
        body: Body = b"",
        *,
        timeout: float,
        ext: Mapping[str, str] | None = None,
    ) -> asyncio.Future[Answer]:
        """Sends a request; await the future for the answer. Timeout and ConnectionLost come out of it too."""
        if not self.is_open:
            raise self.lost_error()
        length = body_length(body)
        opaque, future = self.pending.add(code, timeout)
        try:
            head = encode_request(self.kind, code, opaque, header, length, ext=ext)
        except BaseException:
            self.pending.forget(opaque)
            raise
        self.output.put(head, body, length)
        return future

    def send_oneway(
        self, code: int, header: Header | None = None, body: Body = b"", *, ext: Mapping[str, str] | None = None
    ) -> None:
        """Sends a request that gets no answer."""
        if not self.is_open:
            raise self.lost_error()
        length = body_length(body)
        head = encode_request(self.kind, code, self.pending.next_opaque(), header, length, oneway=True, ext=ext)
        self.output.put(head, body, length)

    async def writable(self, timeout: float) -> None:  # noqa: ASYNC109 - part of a budget that the error names
        """Returns when the peer reads fast enough for more to be sent."""
        if self.output.is_paused and self.is_open:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._writable.append(waiter)
            try:
                async with asyncio.timeout(timeout):
                    await waiter
            except TimeoutError:
                raise Timeout(f"{self} did not read what was sent to it within {seconds(timeout)}") from None
        if not self.is_open:
            raise self.lost_error()

    def reply_settled(self) -> None:
        """A handler has answered (or will not); called by the request."""
        if self.is_lost:
            return  # its answers were counted off when it went
        self.open_replies -= 1
        self._dispatcher.settled(1)
        if self._finishing and not self.open_replies:
            self._close_soon()

    def reply_room(self) -> int:
        """How many more requests may wait for their answers."""
        return self._dispatcher.open_reply_limit - self._dispatcher.open_replies

    def replies_opened(self, count: int) -> None:
        """So many requests wait for their answers from now on."""
        self.open_replies += count
        self._dispatcher.open_replies += count

    def send_answers(self, frames: list[bytes], settled: int) -> None:
        """Sends answers that were encoded already, by templates, and counts off the requests that they settle."""
        if self.is_lost:
            return  # its answers were counted off when it went
        self.output.send_frames(frames)
        self.open_replies -= settled
        self._dispatcher.settled(settled)
        if self._finishing and not self.open_replies:
            self._close_soon()

    def waiting_bytes(self) -> int:
        """How many bytes of the peer lie in the kernel, unread; 0 where the system does not tell."""
        sock = None if self.is_lost else self._transport.get_extra_info("socket")
        if sys.platform == "win32" or sock is None:
            return 0
        count = array.array("i", [0])
        try:
            fcntl.ioctl(sock.fileno(), termios.FIONREAD, count)
        except (OSError, ValueError):  # closed a moment ago
            return 0
        return count[0]

    # The end.

    @property
    def is_open(self) -> bool:
        """Whether the peer may still be asked something."""
        return not self._ended

    @property
    def last_active(self) -> float:
        """When a byte was last read or written."""
        return max(self.last_read, self.output.last_write)

    def close(self, reason: str = "closed by this side") -> None:
        """Sends what is gathered and closes. What waits for an answer of the peer fails at once."""
        self._end(reason)
        if not self.is_lost:
            self._roster.closing.setdefault(self, self._clock())
            self._close_soon()

    def finish(self) -> None:
        """Closes as soon as the requests that wait for the peer's answers have them; for a peer that said GO_AWAY."""
        if len(self.pending):
            self.pending.on_empty = self._go_away
        else:
            self._go_away()

    def end_output(self) -> None:
        """Tells the peer that nothing more comes and leaves the closing to it.

        A socket that is closed with unread requests in it takes the last answers with it (the kernel resets the
        connection); so at shutdown those who were just talking get this instead of `close`.
        """
        if self.is_tls or self.is_lost:
            self.close("the server shuts down")
            return
        self._end("the server shuts down")
        self.output.flush()
        self.output.is_over = True
        self._roster.closing.setdefault(self, self._clock())
        if not self._transport.is_closing():
            self._transport.resume_reading()  # requests that come now are read and dropped, the peer's end is seen
            try:
                self._transport.write_eof()
            except OSError:  # the peer has gone, and asyncio has not noticed yet
                self._transport.abort()

    def abort(self, reason: str) -> None:
        """Closes an offender without sending anything more."""
        if not self.is_lost:
            logger.warning("connection of %s cut: %s", self, reason)
        self.cut(reason)

    def cut(self, reason: str) -> None:
        """Closes without sending anything more."""
        if not self.is_lost:
            self._end(reason)
            self._transport.abort()

    def abandon(self) -> None:
        """Its setting up was cancelled or failed. uvloop then says nothing more, even to one that has begun."""
        if self.has_begun:
            self.connection_lost(None)

    def lost_error(self) -> ConnectionLost:
        return ConnectionLost(f"connection with {self} has ended: {self.end_reason}")

    def _end(self, reason: str) -> None:
        """Nothing of the peer counts from here on. Runs once, whichever way the end comes."""
        self.reader.end()
        if self._ended:
            return
        self._ended = True
        self.end_reason = reason
        logger.debug("connection of %s ends: %s", self, reason)
        self.pending.fail_all(reason)
        for waiter in self._writable:
            if not waiter.done():
                waiter.set_exception(self.lost_error())
        self._writable.clear()
        self._dispatcher.connection_ended(self)

    def _go_away(self) -> None:
        self.close("the server asked to go away")

    def _close_soon(self) -> None:
        # Not at once: a handler may be on the stack, and closing a TLS transport reads from it.
        self._loop.call_soon(self._close_now)

    def _close_now(self) -> None:
        if not self.is_lost:
            self.output.flush()
            self._transport.close()

    def refuse(self, error: FrameError) -> None:
        """The peer sent what is no frame: the stream is lost."""
        logger.info("connection of %s closed: %s", self, error)
        self.close(str(error))

    def _overflowed(self) -> None:
        self.abort(f"it does not read: more than {self._roster.limits.unsent} bytes wait for it")

    def _timed_out(self, sent: float) -> None:
        """A request that was sent then has had no answer."""
        silence = self._roster.limits.silence_timeout
        if self.is_accepted or not silence or self._ended:
            return
        now = self._clock()
        # At most equal: the clock of uvloop ticks in milliseconds.
        if now - sent >= silence and self.last_read <= sent:
            self.close(f"no byte came for {seconds(now - sent)} while answers were due")

    def __str__(self) -> str:
        return format_address(*self.remote_address)

    def __repr__(self) -> str:
        return f"<Connection of {self}{' lost' if self.is_lost else ''}>"
