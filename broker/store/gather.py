"""The appends of one turn, encoded into one buffer with everything final: offsets, store time, checksums.

Here queue offsets and physical offsets are given out, records and blank records are laid out, and what dispatch needs
is noted down. Nothing is written: that is the business of `puts`, and until it has succeeded every number can be taken
back. RocketMQ's `DefaultAppendMessageCallback`.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.broker.store.batch_records import Exploded, PropertiesTooLong, explode_batch
from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.dispatch import DispatchRequest
from cometmq.broker.store.log_files import LogFile
from cometmq.broker.store.message import Message, PutStatus, integer_property
from cometmq.broker.store.scan import schedule_code
from cometmq.broker.store.segments import QueueSlot, Segment
from cometmq.broker.store.text_shape import learn
from cometmq.broker.store.tickets import Ticket, Watermarks
from cometmq.protocol import names, sysflag
from cometmq.protocol import properties as props
from cometmq.protocol.checksum import reserve_property_crc, seal_property_crc
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.errors import RecordError
from cometmq.protocol.record import BLANK_SIZE, encode_blank, encode_record

log = logging.getLogger(__name__)

#: Bytes that one turn takes; what is left over goes with the next one.
GATHER_SIZE: Final = 4 << 20
#: A record may be that much larger than the largest body.
RECORD_OVERHEAD: Final = 64 * 1024
#: How far, in ms, the wall clock may step back without the store times following it.
MAX_STEP_BACK: Final = 1000

_MAX_TEXT: Final = props.MAX_PROPERTIES_LENGTH
_NOT_QUEUED: Final = (sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK)
#: Bits of messages that are not plain. Committed ones go the longer way too, for one test instead of two.
SPECIAL: Final = sysflag.INNER_BATCH | sysflag.TRANSACTION_MASK


class Gather:
    """Lays out turns. Its mutable state: queue slots, buffer, the turn under way, the time of the last record."""

    def __init__(
        self,
        commit_log: CommitLog,
        marks: Watermarks,
        levels: DelayLevels,
        queue_end: Callable[[str, int], int],
        *,
        store_host: bytes,
        property_crc: bool = False,
        lmq: bool = False,
    ) -> None:
        self._log = commit_log
        self._marks = marks
        self._levels = levels
        self._queue_end = queue_end
        self.store_host = store_host
        self._property_crc = property_crc
        self._lmq = lmq
        self.max_message_size = 4 << 20
        self.slots: dict[tuple[str, int], QueueSlot] = {}
        self.buffer = bytearray(GATHER_SIZE)
        #: Store time of the last record that was laid out.
        self.last_time = 0
        self._mark = 0
        # The turn under way: its segments, the next byte of the buffer and of the log.
        self._segments: list[Segment] = []
        self._at = 0
        self._end = 0

    def slot(self, topic: str, queue_id: int) -> QueueSlot:
        """The slot of a queue; it begins where its consume queue ends."""
        slot = self.slots.get((topic, queue_id))
        if slot is None:
            slot = self.slots[topic, queue_id] = QueueSlot(topic, queue_id, self._queue_end(topic, queue_id))
        return slot

    def forget(self, topic: str | None = None) -> None:
        """Forget the numbering of a topic that was deleted, or all of it: the consume queues know."""
        self.slots = {} if topic is None else {key: slot for key, slot in self.slots.items() if key[0] != topic}

    def forget_shapes(self) -> None:
        """Texts must be searched anew: other names wake the transforms now."""
        for slot in self.slots.values():
            slot.shapes.clear()

    def resume(self, last_time: int) -> None:
        """Go on behind a record of this store time."""
        self.last_time = last_time

    def store_time(self, now: int) -> int:
        """The time of the next records. A clock that steps back a little does not put the log out of order."""
        if not 0 < self.last_time - now <= MAX_STEP_BACK:
            self.last_time = now
        return self.last_time

    def fill(self, tickets: Sequence[Ticket], now: int) -> tuple[list[Segment], int]:
        """Lay out as many tickets as the buffer takes: the segments to write, and how many tickets are in them.

        Refused tickets (those with a `failure`) keep their place. The loop is the hot path of every send: it does
        itself what a plain message needs that fits file and buffer, and leaves all others to `_lay_out`. Budget 4 us
        a message with 1 KiB, half of it `encode_record`.
        """
        now = self.store_time(now)
        self._at = 0
        self._end = self._marks.appended
        self._segments = []
        segment = self._begin(self._log.place())
        own_host = self.store_host
        plain = not self._property_crc and not self._lmq
        largest = self.largest
        buffer = self.buffer
        room = len(buffer) - BLANK_SIZE
        at, end = self._at, self._end
        limit, mark = segment.limit, segment.mark
        requests, members = segment.requests, segment.tickets
        taken = 0
        for ticket in tickets:
            facts = ticket.facts
            message = ticket.message
            if facts is not None and message is not None and plain:
                slot = ticket.slot
                body = message.body or b""
                text = message.properties
                born_host = message.born_host
                host = message.store_host or own_host
                size = slot.base_size + len(body) + len(text) + len(born_host) + len(host)
                if end + size <= limit and at + size <= room and size <= largest and len(text) <= _MAX_TEXT:
                    queue_offset = slot.next
                    sys_flag = message.sys_flag
                    prepared = message.prepared_transaction_offset
                    try:
                        encode_record(
                            buffer,
                            at,
                            slot.queue_id,
                            message.flag,
                            queue_offset,
                            end,
                            sys_flag,
                            message.born_timestamp,
                            born_host,
                            now,
                            host,
                            message.reconsume_times,
                            prepared,
                            body,
                            slot.topic_bytes,
                            text,
                            message.body_crc,
                        )
                    except RecordError as error:
                        _refuse(ticket, PutStatus.MESSAGE_ILLEGAL, str(error))
                        members.append(ticket)
                        taken += 1
                        continue
                    if slot.mark != mark:
                        slot.mark = mark
                        segment.undo.append((slot, queue_offset))
                    slot.next = queue_offset + 1
                    code, keys, unique = facts
                    if slot.schedule:
                        code = schedule_code(self._levels, text, now, code)
                    requests.append(
                        DispatchRequest(
                            slot.topic,
                            slot.queue_id,
                            end,
                            size,
                            code,
                            now,
                            queue_offset,
                            keys,
                            unique,
                            sys_flag,
                            prepared,
                            text,
                        )
                    )
                    ticket.physical_offset = end
                    ticket.queue_offset = queue_offset
                    ticket.store_timestamp = now
                    ticket.store_host = host
                    at += size
                    end += size
                    ticket.end_offset = end
                    members.append(ticket)
                    taken += 1
                    continue
            self._at, self._end = at, end
            more = self._lay_out(ticket, now)
            at, end = self._at, self._end
            segment = self._segments[-1]
            if not more:
                break
            taken += 1
            limit, mark = segment.limit, segment.mark
            requests, members = segment.requests, segment.tickets
            buffer = self.buffer
            room = len(buffer) - BLANK_SIZE
        segment.end = at
        segment.finish = end
        return self._segments, taken

    @property
    def largest(self) -> int:
        """The largest record, in bytes."""
        return min(self.max_message_size + RECORD_OVERHEAD, self._log.file_size - BLANK_SIZE)

    # Everything that is not a plain message with room for it

    def _lay_out(self, ticket: Ticket, now: int) -> bool:
        """Lay out any ticket. False when the buffer is full: it goes with the next turn."""
        message = ticket.message
        if ticket.failure is None and message is not None:
            lay_out = self._lay_out_batch if ticket.batch else self._lay_out_single
            try:
                laid = lay_out(ticket, message, now)
            except PropertiesTooLong as error:
                laid = _refuse(ticket, PutStatus.PROPERTIES_SIZE_EXCEEDED, str(error))
            except RecordError as error:
                laid = _refuse(ticket, PutStatus.MESSAGE_ILLEGAL, str(error))
            if not laid and ticket.failure is None:
                return False
        self._segments[-1].tickets.append(ticket)
        return True

    def _lay_out_single(self, ticket: Ticket, message: Message, now: int) -> bool:
        slot = self.slot(message.topic, message.queue_id)
        host = message.store_host or self.store_host
        body = message.body or b""
        text = self._final_text(ticket, message, slot)
        total = slot.base_size + len(body) + len(text) + len(message.born_host) + len(host)
        if len(text) > _MAX_TEXT:
            raise PropertiesTooLong(len(text))
        largest = self.largest
        light = light_queues(message) if self._lmq else []
        if light:
            largest = min(largest, self.max_message_size)
        if total > largest:
            return _refuse(ticket, PutStatus.MESSAGE_ILLEGAL, _too_large(total, largest))
        if not self._room_in_file(ticket, total) or not self._room_in_buffer(total):
            return False
        at, end = self._at, self._end
        queued = message.sys_flag & sysflag.TRANSACTION_MASK not in _NOT_QUEUED
        queue_offset = slot.next if queued else 0
        encode_record(
            self.buffer,
            at,
            slot.queue_id,
            message.flag,
            queue_offset,
            end,
            message.sys_flag,
            message.born_timestamp,
            message.born_host,
            now,
            host,
            message.reconsume_times,
            message.prepared_transaction_offset,
            body,
            slot.topic_bytes,
            text,
            message.body_crc,
        )
        if self._property_crc:
            seal_property_crc(self.buffer, at, total)
        (code, keys, unique), _, _ = learn(text, ())
        if slot.schedule:
            code = schedule_code(self._levels, text, now, code)
        segment = self._segments[-1]
        segment.requests.append(
            DispatchRequest(
                slot.topic,
                slot.queue_id,
                end,
                total,
                code,
                now,
                queue_offset,
                keys,
                unique,
                message.sys_flag,
                message.prepared_transaction_offset,
                text,
                ticket.count,
            )
        )
        if queued:
            self._advance(segment, slot, ticket.count)
        for name in {name for name in light if is_light(name)}:
            self._advance(segment, self.slot(name, 0), ticket.count)
        self._take(ticket, queue_offset, now, host, total)
        return True

    def _final_text(self, ticket: Ticket, message: Message, slot: QueueSlot) -> bytes:
        """The properties of a message with those that the store adds."""
        text = message.properties
        if message.sys_flag & sysflag.INNER_BATCH:
            ticket.count = integer_property(text, b"INNER_NUM")
            text = props.append(props.remove(text, b"INNER_BASE"), b"INNER_BASE\x01%d\x02" % slot.next)
        if self._lmq and (targets := light_queues(message)):
            offsets = ",".join(str(self.slot(name, 0).next) if is_light(name) else "" for name in targets)
            text = props.remove(text, b"INNER_MULTI_QUEUE_OFFSET")
            text = props.append(text, b"INNER_MULTI_QUEUE_OFFSET\x01%s\x02" % offsets.encode())
        return reserve_property_crc(text) if self._property_crc else text

    def _lay_out_batch(self, ticket: Ticket, message: Message, now: int) -> bool:
        slot = self.slot(message.topic, message.queue_id)
        host = message.store_host or self.store_host
        exploded = self._explode(message, slot, now, host)
        if not exploded.sizes:
            return _refuse(ticket, PutStatus.MESSAGE_ILLEGAL, "the batch is empty")
        total = len(exploded.encoded)
        if total > self.largest:
            # RocketMQ answers a batch that is too large with a system error.
            return _refuse(ticket, PutStatus.UNKNOWN_ERROR, _too_large(total, self.largest))
        end = self._end
        if not self._room_in_file(ticket, total) or not self._room_in_buffer(total):
            return False
        if self._end != end:
            # It goes to the next file: with other physical offsets.
            exploded = self._explode(message, slot, now, host)
        at, end, queue_offset = self._at, self._end, slot.next
        self.buffer[at : at + total] = exploded.encoded
        segment = self._segments[-1]
        requests = segment.requests
        topic, queue_id, sys_flag = slot.topic, slot.queue_id, message.sys_flag
        offsets = ticket.offsets = []
        for size, text, (code, keys, unique) in zip(exploded.sizes, exploded.texts, exploded.facts, strict=True):
            if self._property_crc:
                seal_property_crc(self.buffer, at + end - self._end, size)
            if slot.schedule:
                code = schedule_code(self._levels, text, now, code)
            requests.append(
                DispatchRequest(topic, queue_id, end, size, code, now, queue_offset, keys, unique, sys_flag, 0, text)
            )
            offsets.append(end)
            end += size
            queue_offset += 1
        ticket.count = len(offsets)
        first = slot.next
        self._advance(segment, slot, ticket.count)
        self._take(ticket, first, now, host, total)
        return True

    def _explode(self, message: Message, slot: QueueSlot, now: int, host: bytes) -> Exploded:
        return explode_batch(
            message.body or b"",
            message.properties,
            slot.queue_id,
            slot.next,
            self._end,
            message.sys_flag,
            message.born_timestamp,
            message.born_host,
            now,
            host,
            message.reconsume_times,
            slot.topic_bytes,
            shapes=slot.batch_shapes,
            property_crc=self._property_crc,
        )

    def _take(self, ticket: Ticket, queue_offset: int, now: int, host: bytes, total: int) -> None:
        """The ticket has its place."""
        ticket.physical_offset = self._end
        ticket.queue_offset = queue_offset
        ticket.store_timestamp = now
        ticket.store_host = host
        self._at += total
        self._end += total
        ticket.end_offset = self._end

    def _room_in_buffer(self, total: int) -> bool:
        if self._at + total + BLANK_SIZE > len(self.buffer):
            if self._at:
                return False
            self.buffer = bytearray(total + GATHER_SIZE)
        return True

    def _room_in_file(self, ticket: Ticket, total: int) -> bool:
        """Room for all of it in one file: a batch never spans two. Else a blank record, and the next file."""
        segment = self._segments[-1]
        if self._end + total <= segment.limit:
            return True
        file = segment.file
        start = self._end if file is None else file.end
        try:
            following = self._log.file_at(start)
        except OSError as error:
            log.error("cannot make the next file of the commit log: %s", error)
            return _refuse(ticket, PutStatus.CREATE_MAPPED_FILE_FAILED, f"the next file cannot be made: {error}")
        if file is not None:
            self._at += encode_blank(self.buffer, self._at, file.end - self._end)
        segment.end, segment.finish = self._at, start
        self._end = start
        self._begin(following)
        return True

    def _begin(self, file: LogFile | None) -> Segment:
        self._mark += 1
        segment = Segment(file, self._end, self._at, self._mark)
        self._segments.append(segment)
        return segment

    @staticmethod
    def _advance(segment: Segment, slot: QueueSlot, count: int) -> None:
        if slot.mark != segment.mark:
            slot.mark = segment.mark
            segment.undo.append((slot, slot.next))
        slot.next += count


def is_light(name: str) -> bool:
    """Whether a queue named in INNER_MULTI_DISPATCH is a light one, which gets an offset of its own."""
    return name.startswith(names.LMQ_PREFIX)


def light_queues(message: Message) -> list[str]:
    """The queues that a message also goes to, as INNER_MULTI_DISPATCH names them."""
    topic = message.topic
    if topic.startswith((names.RETRY_PREFIX, names.SYSTEM_TOPIC_PREFIX)) or topic == names.SCHEDULE_TOPIC:
        return []
    value = props.find(message.properties, b"INNER_MULTI_DISPATCH")
    return value.decode("utf-8", "replace").split(",") if value else []


def _too_large(total: int, largest: int) -> str:
    return f"it takes {total} bytes in the log, at most {largest} are allowed"


def _refuse(ticket: Ticket, status: PutStatus, remark: str) -> bool:
    ticket.failure = status
    ticket.remark = remark
    return False
