"""The input of one connection: splits bytes into frames and hands each to who must have it.

It mirrors RocketMQ's NettyDecoder. The hot path (split, decode, dispatch) makes no task and no future; its budget
is in bench/remoting.py. Memory stays bounded:

- Only the beginning of a frame that has not come whole is kept. It grows by what really arrives, not by what the
  length word promises; but for a large answer, which we have asked for, the room is made once, because growing costs
  ten times as much as the bytes themselves.
- A prefix that no frame can have ends the connection before anything is kept for it.
- When the peer does not read its answers, the frames that were read already wait here until it does.
"""

import sys
from struct import Struct
from typing import TYPE_CHECKING

from cometmq.protocol.codec import decode
from cometmq.protocol.command import BadHeader, Command, SerializeType
from cometmq.protocol.errors import FrameError
from cometmq.protocol.frame import LENGTH_SIZE, PREFIX_SIZE, frame_length
from cometmq.protocol.json_header import BROKEN, USUAL, envelope_decoder, request_decoders
from cometmq.remoting.output import JOIN_LIMIT
from cometmq.remoting.roster import Roster

if TYPE_CHECKING:
    from cometmq.remoting.connection import Connection
    from cometmq.remoting.serving import Dispatcher

_PREFIX = Struct(">iI")
_MAX_WORD = max(SerializeType) << 24 | 0xFFFFFF
#: In place of the bytes needed, while whole frames wait for the peer to read.
_HELD = sys.maxsize
#: Up to this size what was read is copied once, because slices of bytes cost half of those of a view (bytes).
_COPIED = 256 * 1024
#: The same for answers: those to sends are small, those to pulls are large and come one by one (bytes).
_COPIED_ANSWERS = 128 * 1024
_JSON = SerializeType.JSON


class FrameReader:
    """Frames out of bytes. The mutable state: what is kept of the stream, and whether it is over."""

    __slots__ = ("_answer", "_connection", "_dispatcher", "_filled", "_need", "_partial", "_roster", "is_over")

    def __init__(self, connection: "Connection", roster: Roster, dispatcher: "Dispatcher") -> None:
        self._connection = connection
        self._roster = roster
        self._dispatcher = dispatcher
        self._partial: bytearray | None = None
        #: With so many bytes it is worth looking at `_partial` again.
        self._need = 0
        #: In place of `_partial`: a large answer that has come in part, in a buffer of its size, and how much of it.
        self._answer: bytearray | None = None
        self._filled = 0
        #: Whatever comes now is not looked at.
        self.is_over = False

    @property
    def kept(self) -> int:
        """Bytes kept because a frame is incomplete, or because the peer does not read."""
        return len(self._partial) if self._partial is not None else self._filled

    def take(self, data: memoryview, now: float) -> None:
        """Serves the frames that are complete with these bytes and keeps the rest."""
        partial = self._partial
        if self._answer is not None:
            used = self._fill(self._answer, data, now)
            if used == len(data):
                return
            data = data[used:]
        elif partial is not None:
            partial += data
            self._roster.partial_grew(len(data))
            if self.is_over or len(partial) < self._need:
                return  # the usual end for a piece of a large frame: nothing is looked at twice
            self._forget()
            data = memoryview(partial)
        used = self._split(data, now)
        if used < len(data) and not self.is_over:
            if not self._connection.is_accepted and self._need > _COPIED_ANSWERS:
                self._answer = bytearray(self._need)
                self._roster.partials[self._connection] = now
                self._fill(self._answer, data[used:], now)
                return
            self._partial = bytearray(data[used:])
            # Frames that wait for the peer to read are complete: they cannot be late.
            self._roster.partials[self._connection] = float("inf") if self._need == _HELD else now
            self._roster.partial_grew(len(self._partial))

    def _fill(self, answer: bytearray, data: memoryview, now: float) -> int:
        """Takes what belongs to the answer that is under way, and serves it when it is whole; the bytes used."""
        filled = self._filled
        used = min(len(answer) - filled, len(data))
        answer[filled : filled + used] = data[:used]
        self._filled = filled + used
        self._roster.partial_grew(used)
        if self._filled == len(answer) and not self.is_over:
            self._forget()
            self._split(memoryview(answer), now)
        return used

    def read_on(self, now: float) -> None:
        """The peer reads again: serves what was held back."""
        if self._partial is None:
            return
        if self._need == _HELD:
            data = memoryview(self._partial)
            self._forget()
            self.take(data, now)
        else:
            # While nothing was read, the rest of the frame could not come.
            self._roster.partials[self._connection] = now

    def end(self) -> None:
        """Nothing more is looked at."""
        self.is_over = True
        self._forget()

    def _split(self, data: memoryview, now: float) -> int:
        """Serves the whole frames at the start of `data`; the number of bytes used.

        Requests with a JSON header that is as clients write it, and answers with a JSON header, are decoded here: the
        hot path. All others go through `codec.decode`, which takes the same steps.
        """
        connection = self._connection
        is_accepted = connection.is_accepted
        output = connection.output
        dispatch = self._dispatcher.dispatch
        settle = connection.pending.settle
        limit = self._roster.limits.frame - LENGTH_SIZE
        early = min(self._roster.limits.high_water, JOIN_LIMIT)
        position = 0
        end = len(data)
        chunk = bytes(data) if end <= (_COPIED if is_accepted else _COPIED_ANSWERS) else b""
        decoders = request_decoders
        unpack = _PREFIX.unpack_from
        lane = self._dispatcher.lane if chunk and is_accepted and end <= limit else None
        try:
            while end - position >= PREFIX_SIZE:
                if lane is not None and connection.lane_memory is not None:
                    position = lane.take(connection, chunk, position, end, now)
                    if end - position < PREFIX_SIZE:
                        break
                length: int
                word: int
                length, word = unpack(data, position)
                if word & 0xFFFFFF > length - 4 or length > limit or word > _MAX_WORD:
                    raise self._prefix_error(data, position, length, word)
                stop = position + LENGTH_SIZE + length
                if stop > end:
                    self._need = LENGTH_SIZE + length
                    return position
                command: Command | None = None
                if chunk and word <= 0xFFFFFF:
                    start = position + PREFIX_SIZE
                    raw = chunk[start : start + word]
                    try:
                        command = decoders[raw[:USUAL]](raw) if is_accepted else envelope_decoder.decode(raw)
                    except BROKEN:
                        pass
                    else:
                        if is_accepted:
                            dispatch(connection, (command, _JSON, raw, chunk[start + word : stop]), now)
                        elif command.flag & 1:
                            settle((command, _JSON, raw, chunk[start + word : stop]))
                        else:
                            command = None  # the server asks something
                if command is None:
                    self._serve(data[position + LENGTH_SIZE : stop], now)
                position = stop
                if self.is_over:
                    return end
                if output.gathered >= early:
                    output.flush()
                if output.is_paused and is_accepted:
                    self._need = _HELD
                    return position
            if end - position >= LENGTH_SIZE:
                frame_length(data, position, limit=self._roster.limits.frame)
        except FrameError as error:
            connection.refuse(error)
            return end
        self._need = PREFIX_SIZE
        return position

    def _serve(self, frame: memoryview, now: float) -> None:
        """Serves any frame, without its length word."""
        connection = self._connection
        try:
            decoded = decode(frame, expect_response=not connection.is_accepted)
        except BadHeader as error:
            self._dispatcher.refuse_header(connection, error)
        else:
            if decoded[0].flag & 1:
                connection.pending.settle(decoded)
            else:
                self._dispatcher.dispatch(connection, decoded, now)

    def _prefix_error(self, data: memoryview, position: int, length: int, word: int) -> FrameError:
        try:
            frame_length(data, position, limit=self._roster.limits.frame)
        except FrameError as error:
            return error
        if word & 0xFFFFFF > length - 4:
            return FrameError(f"header claims {word & 0xFFFFFF} bytes, the frame has {length - 4}")
        return FrameError(f"unknown serialize type {word >> 24}")

    def _forget(self) -> None:
        if self._partial is not None or self._answer is not None:
            self._roster.partials.pop(self._connection, None)
            self._roster.partial_bytes -= self.kept
            self._partial = self._answer = None
            self._filled = 0
