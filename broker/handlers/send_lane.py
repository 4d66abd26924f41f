"""The lane of plain sends: from the bytes of many requests to one put, and from its end to the bytes of the answers.

A producer's requests look alike. Once one of them has gone the usual way (`send`), the lane knows its shape, and those
that fit it are taken from what was read without being decoded, a run at a time: one ticket for all of them, one write
of all answers. Everything that a usual send is refused or delayed for is checked here too, or leaves the lane: a
request that does not fit goes the usual way, in its turn.

Mutable state: the shapes of each connection, kept with it. RocketMQ has no such thing.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable
from operator import itemgetter
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from cometmq.broker.header_shape import PLAIN_KEYS, HeaderShape, shape_of
from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.plain_run import RUN_SIZE, PlainKind, PlainMessage, PlainRun
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol import json_header, sysflag
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.command import FLAG_ONEWAY, Command, SerializeType
from cometmq.protocol.frame import LENGTH_SIZE, PREFIX_SIZE
from cometmq.protocol.message_id import HOST_V4_LENGTH
from cometmq.protocol.properties import MAX_PROPERTIES_LENGTH
from cometmq.protocol.requests.send import SendMessage, SendMessageAnswer
from cometmq.remoting.dispatch import Request

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState
    from cometmq.broker.store.segments import QueueSlot
    from cometmq.remoting.connection import Connection

log = logging.getLogger(__name__)

#: Shapes that are remembered for a connection: tags, and digits of opaque and keys, times each other.
MAX_SHAPES: Final = 64
#: Learning a shape has to be worth it: so many requests shall take the lane for each.
WORTH: Final = 16
#: How many shapes may be learned before the first one is.
MAX_ATTEMPTS: Final = 64

_PUT_OK: Final = PutStatus.PUT_OK
_PREFIX: Final = Struct(">II")
_ZERO: Final = ord("0")


class Known(NamedTuple):
    """What the usual way has found out about a request: enough for all of its shape."""

    request: Request[SendMessage]
    topic: TopicConfig
    queues: int
    needles: tuple[bytes, ...]
    #: Added to the flag of the request.
    sys_flag: int
    tags_code: int
    unique: str
    keys: str
    #: The text to be stored, and whether the put waits for the flush.
    stored: bytes
    waits: bool


class _Shape:
    """One shape with all that its messages have in common."""

    __slots__ = (
        "header",
        "is_oneway",
        "kind",
        "properties",
        "queues",
        "request",
        "shape",
        "slots",
        "text_size",
        "topic",
        "valid_for",
        "width",
    )

    def __init__(
        self, known: Known, shape: HeaderShape, properties: tuple[bytes, bytes, bytes], pieces: tuple[bytes, ...]
    ) -> None:
        self.shape = shape
        #: The properties before the unique key, behind it, and behind the keys.
        self.properties = properties
        self.text_size = len(known.stored)
        self.request = known.request.command
        self.header = known.request.header
        self.width = shape.width
        self.is_oneway = bool(self.request.flag & FLAG_ONEWAY)
        self.topic = known.topic
        self.queues = known.queues
        sys_flag = (self.header.sys_flag | known.sys_flag) & ~sysflag.HOSTS_V6
        self.kind = PlainKind(self.header.flag, sys_flag, self.header.reconsume_times, known.tags_code, self)
        #: Text of a queue id -> its slot, all that stands between body and unique key, and the size of an empty record.
        self.slots: dict[bytes, tuple[QueueSlot, bytes, int]] = {}
        #: Needles and slots of the store that it was made for, and pieces of answers: new settings have new ones.
        self.valid_for: tuple[object, object, object] = (known.needles, None, pieces)


class _Memory:
    """What the lane knows of one connection."""

    __slots__ = ("_all", "_count", "_debt", "born_host", "shapes")

    def __init__(self, born_host: bytes) -> None:
        self.born_host = born_host
        #: By the length of their headers: the one that was last seen.
        self.shapes: dict[int, _Shape] = {}
        #: All of them.
        self._all: dict[int, list[_Shape]] = {}
        self._count = 0
        #: Shapes that were learned and have not been worth it yet.
        self._debt = 0.0

    @property
    def is_full(self) -> bool:
        """Whether there is no use in learning more: too few requests fit what was learned."""
        return self._debt >= MAX_ATTEMPTS

    def tried(self) -> None:
        """Something was learned, or nothing could be."""
        self._debt += 1

    def took(self, count: int) -> None:
        """So many requests took the lane."""
        if self._debt:
            self._debt = max(0.0, self._debt - count / WORTH)

    def add(self, length: int, shape: _Shape) -> None:
        if self._count >= MAX_SHAPES:
            self.shapes.clear()
            self._all.clear()
            self._count = 0
        self._count += 1
        self._all.setdefault(length, []).append(shape)
        self.shapes[length] = shape

    def remove(self, length: int, shape: _Shape) -> None:
        """What was checked for a shape does not hold any more."""
        self._all[length].remove(shape)
        self._count -= 1
        if self._all[length]:
            self.shapes[length] = self._all[length][-1]
        else:
            del self.shapes[length]

    def find(self, length: int, chunk: bytes, start: int) -> bool:
        """Looks for another shape of this length that the header at `start` fits; the next look is at that one."""
        for shape in self._all[length]:
            if shape.shape.cut.unpack_from(chunk, start)[::2] == shape.shape.around:
                self.shapes[length] = shape
                return True
        return False


class SendLane:
    """The lane. `usual` settles tickets of single requests, `end_one` answers one whose put has ended somehow."""

    def __init__(
        self,
        state: "BrokerState",
        *,
        usual: Callable[[list[Ticket]], None],
        end_one: Callable[[Request[SendMessage], str, int, str, Ticket], None],
        id_prefix: Callable[[bytes], str],
    ) -> None:
        self._puts = state.store.puts
        self._stats = state.stats
        self._overload = state.overload
        self._topic = state.topics.get
        self._usual = usual
        self._end_one = end_one
        self._id_prefix = id_prefix
        self._sent = self._sent_all  # one object, so that the store knows it again
        self._fall_apart = self._tickets_of
        self.max_body = 0
        self._pieces: tuple[bytes, ...] = ()
        self._prefixes: dict[int, bytes] = {}

    def configure(self, max_body: int, **fixed: str | bool | None) -> None:
        """Takes over what the configuration says: `fixed` are fields of the answer that are always the same.

        Whatever was learned before is checked anew: it was checked, and stamped, by other settings.
        """
        self.max_body = max_body
        template = json_header.response_template(SendMessageAnswer, plain=("msg_id",), **fixed)
        # The fixed fields come first, and whatever they say, there is no control character in it.
        frame = template("OPAQUE", "\0MSGID", "QUEUEID", "QUEUEOFFSET", "TRANSACTION")[PREFIX_SIZE:]
        pieces = []
        for hole in (b"\0MSGID", b"QUEUEID", b"QUEUEOFFSET", b"TRANSACTION", b"OPAQUE"):
            before, _, frame = frame.partition(hole)
            pieces.append(before)
        self._pieces = (*pieces, frame)

    # Learning

    def learn(self, known: Known) -> None:
        """A request went the usual way: those that look like it need not."""
        request = known.request
        connection = request.connection
        memory: _Memory | None = connection.lane_memory
        if memory is None:
            born_host = connection.attributes["born_host"]
            memory = connection.lane_memory = _Memory(born_host)
        if memory.is_full or len(memory.born_host) != HOST_V4_LENGTH or not known.waits:
            return
        memory.tried()
        raw = bytes(request.raw_header)
        shape = shape_of(raw, request.header, known.unique, known.keys, request.command.opaque)
        if shape is None or len(known.stored) > MAX_PROPERTIES_LENGTH:
            return
        unique, keys = known.unique.encode(), known.keys.encode()
        before, _, rest = known.stored.partition(b"UNIQ_KEY\x01" + unique)
        between, after = rest, b""
        if keys:
            between, _, after = rest.partition(b"KEYS\x01" + keys + b"\x02")
            between += b"KEYS\x01"
            after = b"\x02" + after
        if before + b"UNIQ_KEY\x01" + unique + between + keys + after != known.stored:
            return  # the keys come first, or a name ends like one of these
        memory.add(len(raw), _Shape(known, shape, (before + b"UNIQ_KEY\x01", between, after), self._pieces))

    def _is_valid(self, shape: _Shape) -> bool:
        """Whether what was checked for a shape still holds. Once a read, not once a message."""
        puts = self._puts
        if shape.topic is not self._topic(shape.header.topic):
            return False
        needles, slots, pieces = shape.valid_for
        if needles is not puts.needles or pieces is not self._pieces:
            return False
        if slots is not puts.slots:
            shape.slots.clear()
            shape.valid_for = (needles, puts.slots, pieces)
        return True

    def _slot(self, shape: _Shape, queue_id: bytes) -> "tuple[QueueSlot, bytes, int] | None":
        """The slot of a queue that is written as number; None when the usual way has to see to it."""
        if not queue_id.isdigit() or (queue_id[0] == _ZERO and len(queue_id) > 1):
            return None
        number = int(queue_id)
        slot = self._puts.slots.get((shape.header.topic, number)) if number < shape.queues else None
        if slot is None or slot.schedule or (tail := slot.add_tail(shape.text_size)) is None:
            return None
        entry = shape.slots[queue_id] = (slot, tail + shape.properties[0], slot.size_v4 + shape.text_size)
        return entry

    # Taking

    def take(self, connection: "Connection", chunk: bytes, position: int, end: int, received: float) -> int:
        """Puts the requests from `position` on as long as they fit; the position of the first that does not.

        Budget: 1.6 us a message.
        """
        memory: _Memory = connection.lane_memory
        overload, puts = self._overload, self._puts
        if received > overload.sends.deadline or not puts.takes_runs:
            return position
        room = min(overload.capacity - overload.open_sends, connection.reply_room())
        known, max_body = memory.shapes.get, self.max_body
        unpack = _PREFIX.unpack_from
        shape: _Shape | None = None
        keys: bytes | None
        last_born, born_timestamp = b"", 0
        run = self._run_of(connection, memory, received)
        taken: list[Any] = []
        size = 0
        while end - position >= PREFIX_SIZE and len(taken) < room:
            length, word = unpack(chunk, position)
            start = position + PREFIX_SIZE
            body_start = start + word
            stop = position + LENGTH_SIZE + length
            found = known(word)
            if found is None or stop > end or not 0 < stop - body_start <= max_body:
                break
            if found is not shape:
                if not self._is_valid(found):
                    memory.remove(word, found)
                    continue
                shape = found
                (cut, around, pick, has_keys, _, (least, most)), slots, kind = shape.shape, shape.slots.get, shape.kind
                _, between, after = shape.properties
                unpack_pieces, keys = cut.unpack_from, None
            pieces = unpack_pieces(chunk, start)
            if pieces[::2] != around:
                if memory.find(word, chunk, start):
                    continue
                break
            if has_keys:
                queue_id, born, unique, opaque, keys = pick(pieces)
                if keys.translate(None, PLAIN_KEYS):
                    break
            else:
                queue_id, born, unique, opaque = pick(pieces)
            if born != last_born:
                if not born.isdigit():
                    break
                last_born, born_timestamp = born, int(born)
            place = slots(queue_id) or self._slot(shape, queue_id)
            if place is None or not opaque.isdigit() or not least <= opaque <= most or not unique.isalnum():
                break
            slot, before, record = place
            record += stop - body_start
            tail = before + unique + between
            if keys is not None:
                tail += keys + after
            taken.append(
                (
                    slot,
                    kind,
                    record,
                    chunk[body_start:stop],
                    tail,
                    born_timestamp,
                    unique,
                    keys,
                    (queue_id, opaque),
                )
            )
            size += record
            position = stop
            if size > RUN_SIZE:
                break
        if taken:
            count = len(taken)
            memory.took(count)
            run.messages += taken
            run.size += size
            if run is not puts.last_run:
                puts.put_run(run, self._sent)
            overload.open_sends += count
            connection.replies_opened(count)
        return position

    def _run_of(self, connection: "Connection", memory: _Memory, received: float) -> PlainRun:
        """The run that new messages join: the last one that was put, if it is of this connection; else a new one."""
        run = self._puts.last_run
        if run is not None and run.context[0] is connection and run.size < RUN_SIZE:
            return run
        return PlainRun(memory.born_host, self._fall_apart, (connection, received))

    # Answering

    def _sent_all(self, tickets: list[Ticket]) -> None:
        """Runs have ended. Budget: 0.8 us a message."""
        for ticket in tickets:
            run = ticket.run
            assert run is not None
            self._overload.open_sends -= len(run)
            try:
                answers = self._answers(run) if ticket.status is _PUT_OK else None
            except Exception:  # what cannot be answered together must not cost anybody an answer
                log.exception("the answers to %d sends of %s failed", len(run), run.context[0])
                answers = None
            if answers is not None:
                run.context[0].send_answers(answers, len(run))
                self._count(run)
                continue
            for single in self._singles(run, ticket):
                request, unique = single.context
                self._end_one(request, request.header.topic, request.header.queue_id, unique, single)

    def _answers(self, run: PlainRun) -> list[bytes]:
        """The frames of all answers, in one piece."""
        first, second, third, fourth, fifth, sixth = self._pieces
        first += self._id_prefix(run.store_host).encode()
        fixed = len(first) + 16 + len(second) + len(third) + len(fourth) + len(fifth) + len(sixth)
        prefixes = self._prefixes
        frames: list[bytes] = []
        physical_offset = run.physical_offset
        for (_, kind, size, _, _, _, unique, _, context), queue_offset in zip(
            run.messages, run.queue_offsets, strict=True
        ):
            shape = kind[4]
            if not shape.is_oneway:
                queue_id, opaque = context
                number = b"%d" % queue_offset
                length = fixed + shape.width + len(number)
                frames += (
                    prefixes.get(length) or self._prefix(length),
                    first,
                    b"%016X" % physical_offset,
                    second,
                    queue_id,
                    third,
                    number,
                    fourth,
                    unique,
                    fifth,
                    opaque,
                    sixth,
                )
            physical_offset += size
        return [b"".join(frames)] if frames else frames

    def _count(self, run: PlainRun) -> None:
        sizes: defaultdict[QueueSlot, int] = defaultdict(int)
        for message in run.messages:
            sizes[message[0]] += message[2]
        counts = Counter(map(itemgetter(0), run.messages))
        for slot, size in sizes.items():
            self._stats.put(slot.topic, slot.queue_id, counts[slot], size, counts[slot])

    def _prefix(self, length: int) -> bytes:
        prefix = self._prefixes[length] = _PREFIX.pack(4 + length, length)
        return prefix

    # The usual way, late

    def _tickets_of(self, run: PlainRun) -> list[Ticket]:
        """A run that does not fit its file: the same messages, one by one."""
        tickets = []
        for message in run.messages:
            slot, kind, _, body, tail, born, unique, keys, _ = message
            text = tail[slot.tail_size :]
            single = Message(
                slot.topic,
                slot.queue_id,
                body,
                text,
                kind.flag,
                kind.sys_flag,
                born,
                run.born_host,
                None,
                kind.reconsume_times,
            )
            facts = (kind.tags_code, keys, unique)
            context = (_request(run, message), unique.decode())
            tickets.append(Ticket(single, None, self._usual, context, slot=slot, facts=facts))
        return tickets

    def _singles(self, run: PlainRun, ticket: Ticket) -> list[Ticket]:
        """The end of a run as that of each of its messages."""
        singles = []
        if not run.queue_offsets:  # given up before it had its places
            run.queue_offsets = [-1] * len(run)
        for message, queue_offset, physical_offset in run.places():
            single = Ticket(None, context=(_request(run, message), message[6].decode()))
            single.status, single.remark = ticket.status, ticket.remark
            single.queue_offset, single.physical_offset = queue_offset, physical_offset
            single.end_offset = physical_offset + message[2]
            single.store_timestamp, single.store_host = run.store_timestamp, run.store_host
            singles.append(single)
        return singles


def _request(run: PlainRun, message: PlainMessage) -> Request[SendMessage]:
    """The request that a message came with, as the usual way would have made it."""
    _, kind, _, body, _, born, _, _, (queue_id, opaque) = message
    shape: _Shape = kind.context
    connection, received = run.context
    header = msgspec.structs.replace(shape.header, queue_id=int(queue_id), born_timestamp=born)
    like = shape.request
    command = Command(
        code=like.code, flag=like.flag, opaque=int(opaque), version=like.version, language=like.language, header=header
    )
    request = Request(connection, command, header, SerializeType.JSON, b"", body, received)
    request.state = Request.OPEN
    return request
