"""Where the appends of a turn go: the next offset of each queue, and what is written to one file at once.

Plain state of `gather`; nothing here encodes or writes. The slots are the topic-queue table of RocketMQ's
QueueOffsetOperator.
"""

from typing import Final

from cometmq.broker.store.log_files import LogFile
from cometmq.broker.store.text_shape import TextShape
from cometmq.broker.store.tickets import Ticket
from cometmq.broker.store.turn import Run, Turn
from cometmq.protocol import names
from cometmq.protocol.message_id import HOST_V4_LENGTH
from cometmq.protocol.properties import MAX_PROPERTIES_LENGTH
from cometmq.protocol.record import BLANK_SIZE, magic_of, record_size, topic_part

#: Lengths of property text for which a slot remembers the bytes before it.
_MAX_TAILS: Final = 512


class QueueSlot:
    """The next offset of a queue, and what is always the same for its records."""

    __slots__ = (
        "_topic_part",
        "base_size",
        "batch_shapes",
        "magic",
        "mark",
        "next",
        "queue_id",
        "schedule",
        "shapes",
        "size_v4",
        "tail_size",
        "tails",
        "topic",
        "topic_bytes",
        "units",
    )

    def __init__(self, topic: str, queue_id: int, following: int) -> None:
        self.topic = topic
        self.topic_bytes = topic.encode("utf-8", "replace")
        self.queue_id = queue_id
        #: The offset of the next message.
        self.next = following
        #: The segment that changed it last: the first change of each is noted for taking back.
        self.mark = 0
        #: The units of its messages in that segment.
        self.units = bytearray()
        self.schedule = topic == names.SCHEDULE_TOPIC
        #: Shapes of the property texts that the queue saw.
        self.shapes: list[TextShape] = []
        #: And of batch items with what their wrappers gave them.
        self.batch_shapes: list[TextShape] = []
        #: A record without body, properties and hosts; and with two IPv4 hosts.
        self.base_size = record_size(0, len(self.topic_bytes), 0, 0)
        self.size_v4 = self.base_size + 2 * HOST_V4_LENGTH
        self.magic = magic_of(self.topic_bytes)
        self._topic_part = topic_part(self.topic_bytes)
        #: What stands between the body and the properties, by the length of these; and how long that is.
        self.tails: dict[int, bytes] = {}
        self.tail_size = len(self._topic_part) + 2

    def add_tail(self, length: int) -> bytes | None:
        """A new entry of `tails`; None when no record can have such properties."""
        if length > MAX_PROPERTIES_LENGTH:
            return None
        if len(self.tails) >= _MAX_TAILS:
            self.tails.clear()
        tail = self.tails[length] = self._topic_part + length.to_bytes(2, "big")
        return tail


class Segment:
    """What goes into one file with one write."""

    __slots__ = ("file", "finish", "limit", "mark", "parts", "size", "start", "tickets", "turn", "undo")

    def __init__(self, file: LogFile | None, start: int, mark: int, now: int) -> None:
        self.file = file
        #: Offsets in the log.
        self.start = start
        self.finish = start
        #: Records must end here: a blank record always finds room behind them. Without a file nothing fits.
        self.limit = -1 if file is None else file.end - BLANK_SIZE
        #: The bytes to write, and how many they are.
        self.parts: list[bytes | bytearray] = []
        self.size = 0
        self.mark = mark
        self.tickets: list[Ticket] = []
        self.turn = Turn(start, now)
        self.undo: list[tuple[QueueSlot, int]] = []

    def begin_run(self, slot: QueueSlot, physical_offset: int) -> None:
        """The queue gets its first message of the segment, with this offset."""
        slot.mark = self.mark
        slot.units = bytearray()
        self.undo.append((slot, slot.next))
        self.turn.runs.append(Run(slot.topic, slot.queue_id, slot.next, physical_offset, slot.units))

    def take_back(self) -> None:
        """The segment was not written: its queue offsets are free again."""
        for slot, following in self.undo:
            slot.next = following
