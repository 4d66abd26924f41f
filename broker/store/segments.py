"""Where the appends of a turn go: the next offset of each queue, and what is written to one file at once.

Plain state of `gather`; nothing here encodes or writes. The slots are the topic-queue table of RocketMQ's
QueueOffsetOperator.
"""

from cometmq.broker.store.dispatch import DispatchRequest
from cometmq.broker.store.log_files import LogFile
from cometmq.broker.store.text_shape import TextShape
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol import names
from cometmq.protocol.record import BLANK_SIZE, record_size


class QueueSlot:
    """The next offset of a queue, and what is always the same for its records."""

    __slots__ = ("base_size", "batch_shapes", "mark", "next", "queue_id", "schedule", "shapes", "topic", "topic_bytes")

    def __init__(self, topic: str, queue_id: int, following: int) -> None:
        self.topic = topic
        self.topic_bytes = topic.encode("utf-8", "replace")
        self.queue_id = queue_id
        #: The offset of the next message.
        self.next = following
        #: The segment that changed it last: the first change of each is noted for taking back.
        self.mark = 0
        self.schedule = topic == names.SCHEDULE_TOPIC
        #: Shapes of the property texts that the queue saw.
        self.shapes: list[TextShape] = []
        #: And of batch items with what their wrappers gave them.
        self.batch_shapes: list[TextShape] = []
        #: A record without body, properties and hosts.
        self.base_size = record_size(0, len(self.topic_bytes), 0, 0)


class Segment:
    """What goes into one file with one write."""

    __slots__ = ("begin", "end", "file", "finish", "limit", "mark", "requests", "start", "tickets", "undo")

    def __init__(self, file: LogFile | None, start: int, begin: int, mark: int) -> None:
        self.file = file
        #: Offsets in the log.
        self.start = start
        self.finish = start
        #: Records must end here: a blank record always finds room behind them. Without a file nothing fits.
        self.limit = -1 if file is None else file.end - BLANK_SIZE
        #: Positions in the buffer.
        self.begin = begin
        self.end = begin
        self.mark = mark
        self.tickets: list[Ticket] = []
        self.requests: list[DispatchRequest] = []
        self.undo: list[tuple[QueueSlot, int]] = []

    def take_back(self) -> None:
        """The segment was not written: its queue offsets are free again."""
        for slot, following in self.undo:
            slot.next = following
