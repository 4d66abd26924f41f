"""The appends of one turn, encoded with everything final: offsets, store time, checksums.

Here queue offsets and physical offsets are given out, records and blank records are laid out, and what dispatch needs
is noted down. Nothing is written: that is the business of `puts`, and until it has succeeded every number can be taken
back. RocketMQ's `DefaultAppendMessageCallback`.
"""

import logging
from collections.abc import Callable, Sequence
from itertools import accumulate, islice
from struct import error as StructError
from typing import Final

from cometmq.broker.store.batch_records import AsksForTimer, Exploded, PropertiesTooLong, explode_batch
from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.errors import StoreError
from cometmq.broker.store.light_queues import is_light, light_queues, with_offsets
from cometmq.broker.store.log_files import LogFile
from cometmq.broker.store.message import Message, PutStatus, integer_property
from cometmq.broker.store.plain_run import PlainRun
from cometmq.broker.store.scan import schedule_code
from cometmq.broker.store.segments import QueueSlot, Segment
from cometmq.broker.store.text_shape import Facts, learn
from cometmq.broker.store.tickets import Ticket, Watermarks
from cometmq.broker.store.turn import BatchPart
from cometmq.broker.store.unit_log import POINTER
from cometmq.protocol import properties as props
from cometmq.protocol import sysflag
from cometmq.protocol.checksum import CRC_MASK, raw_crc32, reserve_property_crc, seal_property_crc
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.errors import RecordError
from cometmq.protocol.record import BLANK_SIZE, HEAD_V4, encode_blank, encode_record

log = logging.getLogger(__name__)

#: Bytes that one turn takes; what is left over goes with the next one.
GATHER_SIZE: Final = 4 << 20
#: A record may be that much larger than the largest body.
RECORD_OVERHEAD: Final = 64 * 1024
#: How far, in ms, the wall clock may step back without the store times following it.
MAX_STEP_BACK: Final = 1000

_NOT_QUEUED: Final = (sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK)
#: Bits of messages that are not plain. Committed ones go the longer way too, for one test instead of two.
SPECIAL: Final = sysflag.INNER_BATCH | sysflag.TRANSACTION_MASK

_NOT_V6: Final = ~sysflag.HOSTS_V6
_pack_head: Final = HEAD_V4.pack
_pack_unit: Final = POINTER.pack


class Gather:
    """Lays out turns. Its mutable state: queue slots, the turn under way, the time of the last record."""

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
        #: Whether messages may be plain at all.
        self.has_plain = not property_crc and not lmq
        self.max_message_size = 4 << 20
        self.slots: dict[tuple[str, int], QueueSlot] = {}
        #: Store time of the last record that was laid out.
        self.last_time = 0
        self._mark = 0
        # The turn under way: its segments, their bytes so far, and the next byte of the log.
        self._segments: list[Segment] = []
        self._size = 0
        self._end = 0
        self._now = 0

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

    def fill(self, tickets: list[Ticket], now: int) -> tuple[list[Segment], int]:
        """Lay out as many tickets as a turn takes: the segments to write, and how many tickets are in them.

        Refused tickets (those with a `failure`) keep their place. A run that does not fit its file is replaced by the
        tickets of its messages.
        """
        now = self._now = self.store_time(now)
        self._size = 0
        self._end = self._marks.appended
        self._segments = []
        self._begin(self._log.place())
        taken = 0
        while taken < len(tickets):
            run = tickets[taken].run
            if run is not None and tickets[taken].failure is None:
                if self._end + run.size > self._segments[-1].limit:
                    tickets[taken : taken + 1] = run.fall_apart(run)
                    continue
                if self._size and self._size + run.size + BLANK_SIZE > GATHER_SIZE:
                    break
                self._take_run(tickets[taken], run)
                taken += 1
                continue
            if self.has_plain and tickets[taken].facts is not None:
                plain = self._take_plain(tickets, taken, now)
                taken += plain
                if plain:
                    continue
            if not self._lay_out(tickets[taken], now):
                break
            taken += 1
        self._finish()
        return self._segments, taken

    def _take_plain(self, tickets: Sequence[Ticket], first: int, now: int) -> int:
        """Lay out tickets from `first` on as long as they are plain messages that fit file and turn: how many.

        The hot path of every send, written out at length: the bytes are those of `encode_record`, as tests see to.
        Budget: 1.9 us a message with 1 KiB, 0.4 of it zlib's CRC. IPv6 hosts, long texts and numbers that do not fit
        their fields are left to `_lay_out`.
        """
        segment = self._segments[-1]
        turn = segment.turn
        note = turn.parts.append
        members, parts, mark = segment.tickets, segment.parts, segment.mark
        topics, names, places = turn.key_topics, turn.key_names, turn.key_offsets
        own_host = self.store_host
        largest = self.largest
        before = len(members)
        begin = end = self._end
        limit = min(segment.limit, end + GATHER_SIZE - BLANK_SIZE - self._size)
        for ticket in islice(tickets, first, None):
            facts = ticket.facts
            message = ticket.message
            if facts is None or message is None:
                break
            slot: QueueSlot = ticket.slot
            body = message.body or b""
            text = message.properties
            born_host = message.born_host
            host = message.store_host or own_host
            size = slot.size_v4 + len(body) + len(text)
            tail = slot.tails.get(len(text)) or slot.add_tail(len(text))
            if end + size > limit or size > largest or len(born_host) != 8 or len(host) != 8 or tail is None:
                break
            queue_offset = slot.next
            sys_flag = message.sys_flag
            prepared = message.prepared_transaction_offset
            crc = message.body_crc
            if crc is None:
                crc = raw_crc32(body) & CRC_MASK
            try:
                head = _pack_head(
                    size,
                    slot.magic,
                    crc,
                    slot.queue_id,
                    message.flag,
                    queue_offset,
                    end,
                    sys_flag & _NOT_V6,
                    message.born_timestamp,
                    born_host,
                    now,
                    host,
                    message.reconsume_times,
                    prepared,
                    len(body),
                )
            except StructError:
                break
            parts += (head, body, tail, text)
            if slot.mark != mark:
                segment.begin_run(slot, end)
            slot.next = queue_offset + 1
            code, keys, unique = facts
            topic = slot.topic
            if slot.schedule:
                code = schedule_code(self._levels, text, now, code)
            slot.units += _pack_unit(end, size, code)
            note(
                DispatchRequest(
                    topic, slot.queue_id, end, size, code, now, queue_offset, keys, unique, sys_flag, prepared, text
                )
            )
            if keys is not None:
                turn.add_keys(topic, end, unique, keys)
            elif unique:
                topics.append(topic)
                names.append(unique)
                places.append(end)
            ticket.physical_offset = end
            ticket.queue_offset = queue_offset
            ticket.store_timestamp = now
            ticket.store_host = host
            end += size
            ticket.end_offset = end
            members.append(ticket)
        self._size += end - begin
        self._end = end
        return len(members) - before

    def _take_run(self, ticket: Ticket, run: PlainRun) -> None:
        """Lay out a run; there is room for it. The bytes are those of `encode_record`, as tests see to.

        Hotter than anything else: nearly every send comes this way. Budget: 1.2 us a message without its checksum.
        """
        segment = self._segments[-1]
        turn = segment.turn
        parts, mark = segment.parts, segment.mark
        add_topic, add_name, add_place = turn.key_topics.append, turn.key_names.append, turn.key_offsets.append
        number = run.queue_offsets.append
        now, host, born_host = self._now, self.store_host, run.born_host
        begin = end = run.physical_offset = self._end
        for slot, (flag, sys_flag, reconsume_times, code, _), size, body, tail, born, unique, keys, _ in run.messages:
            queue_offset = slot.next
            head = _pack_head(
                size,
                slot.magic,
                raw_crc32(body) & CRC_MASK,
                slot.queue_id,
                flag,
                queue_offset,
                end,
                sys_flag,
                born,
                born_host,
                now,
                host,
                reconsume_times,
                0,
                len(body),
            )
            parts += (head, body, tail)
            if slot.mark != mark:
                segment.begin_run(slot, end)
            slot.next = queue_offset + 1
            slot.units += _pack_unit(end, size, code)
            if keys is None:
                add_topic(slot.topic)
                add_name(unique)
                add_place(end)
            else:
                turn.add_keys(slot.topic, end, unique, keys)
            number(queue_offset)
            end += size
        turn.parts.append(run)
        run.store_timestamp = ticket.store_timestamp = now
        run.store_host = ticket.store_host = host
        ticket.physical_offset = begin
        ticket.end_offset = self._end = end
        self._size += end - begin
        segment.tickets.append(ticket)

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
            except AsksForTimer as error:
                laid = _refuse(ticket, PutStatus.WHEEL_TIMER_MSG_ILLEGAL, str(error))
            except RecordError as error:
                laid = _refuse(ticket, PutStatus.MESSAGE_ILLEGAL, str(error))
            except Exception as error:  # what cannot be laid out must not cost the others of the turn their places
                log.exception("a put for %s-%d failed", message.topic, message.queue_id)
                laid = _refuse(ticket, PutStatus.UNKNOWN_ERROR, f"{type(error).__name__}: {error}")
            if not laid and ticket.failure is None:
                return False
        self._segments[-1].tickets.append(ticket)
        return True

    def _lay_out_single(self, ticket: Ticket, message: Message, now: int) -> bool:
        slot = self.slot(message.topic, message.queue_id)
        host = message.store_host or self.store_host
        body = message.body or b""
        light = light_queues(message) if self._lmq else []
        text = self._final_text(ticket, message, slot, light)
        total = slot.base_size + len(body) + len(text) + len(message.born_host) + len(host)
        if len(text) > props.MAX_PROPERTIES_LENGTH:
            raise PropertiesTooLong(len(text))
        largest = min(self.largest, self.max_message_size) if light else self.largest
        if total > largest:
            return _refuse(ticket, PutStatus.MESSAGE_ILLEGAL, _too_large(total, largest))
        if not self._room(ticket, total):
            return False
        queued = message.sys_flag & sysflag.TRANSACTION_MASK not in _NOT_QUEUED
        queue_offset = slot.next if queued else 0
        encoded = bytearray(total)
        encode_record(
            encoded,
            0,
            slot.queue_id,
            message.flag,
            queue_offset,
            self._end,
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
            seal_property_crc(encoded, 0, total)
        facts = ticket.facts if ticket.facts is not None and text is message.properties else learn(text, ())[0]
        self._note_special(ticket, message, slot, facts, queue_offset, now, total, text)
        segment = self._segments[-1]
        if queued:
            self._advance(segment, slot, ticket.count)
        for name in {name for name in light if is_light(name)}:
            self._advance(segment, self.slot(name, 0), ticket.count)
        self._take(ticket, queue_offset, now, host, encoded)
        return True

    def _final_text(self, ticket: Ticket, message: Message, slot: QueueSlot, light: list[str]) -> bytes:
        """The properties of a message with those that the store adds."""
        text = message.properties
        if message.sys_flag & sysflag.INNER_BATCH:
            ticket.count = integer_property(text, b"INNER_NUM")
            text = props.append(props.remove(text, b"INNER_BASE"), b"INNER_BASE\x01%d\x02" % slot.next)
        if light:
            text = with_offsets(text, light, lambda name: self.slot(name, 0).next)
        return reserve_property_crc(text) if self._property_crc else text

    def _note_special(
        self,
        ticket: Ticket,
        message: Message,
        slot: QueueSlot,
        facts: Facts,
        queue_offset: int,
        now: int,
        total: int,
        text: bytes,
    ) -> None:
        """What dispatch needs to know. It may be in no queue or in several: that is for the dispatchers to see."""
        code, keys, unique = facts
        if slot.schedule:
            code = schedule_code(self._levels, text, now, code)
        turn = self._segments[-1].turn
        turn.plain = False
        turn.parts.append(
            DispatchRequest(
                slot.topic,
                slot.queue_id,
                self._end,
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
        if not self._room(ticket, total):
            return False
        if self._end != end:
            # It goes to the next file: with other physical offsets.
            exploded = self._explode(message, slot, now, host)
        encoded: bytes | bytearray = exploded.encoded
        sizes = exploded.sizes
        *offsets, _ = accumulate(sizes, initial=self._end)
        if self._property_crc:
            encoded = bytearray(encoded)
            for offset, size in zip(offsets, sizes, strict=True):
                seal_property_crc(encoded, offset - self._end, size)
        codes = exploded.codes
        if slot.schedule:
            pairs = zip(exploded.texts(), codes, strict=True)
            codes = tuple(schedule_code(self._levels, text, now, code) for text, code in pairs)
        segment = self._segments[-1]
        queue_offset = slot.next
        ticket.offsets = offsets
        ticket.count = len(offsets)
        self._advance(segment, slot, ticket.count)
        segment.turn.add_batch(
            slot.units,
            BatchPart(slot.topic, slot.queue_id, queue_offset, offsets, codes, exploded, message.sys_flag, now),
        )
        self._take(ticket, queue_offset, now, host, encoded)
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

    def _take(self, ticket: Ticket, queue_offset: int, now: int, host: bytes, encoded: bytes | bytearray) -> None:
        """The ticket has its place."""
        self._segments[-1].parts.append(encoded)
        ticket.physical_offset = self._end
        ticket.queue_offset = queue_offset
        ticket.store_timestamp = now
        ticket.store_host = host
        self._size += len(encoded)
        self._end += len(encoded)
        ticket.end_offset = self._end

    def _room(self, ticket: Ticket, total: int) -> bool:
        """Whether file and turn have room for it. A turn always takes one ticket, however large."""
        return self._room_in_file(ticket, total) and (self._size == 0 or self._size + total + BLANK_SIZE <= GATHER_SIZE)

    def _room_in_file(self, ticket: Ticket, total: int) -> bool:
        """Room for all of it in one file: a batch never spans two. Else a blank record, and the next file."""
        segment = self._segments[-1]
        if self._end + total <= segment.limit:
            return True
        file = segment.file
        start = self._end if file is None else file.end
        try:
            following = self._log.file_at(start)
        except (OSError, StoreError) as error:
            log.error("cannot make the next file of the commit log: %s", error)
            return _refuse(ticket, PutStatus.CREATE_MAPPED_FILE_FAILED, f"the next file cannot be made: {error}")
        if file is not None:
            blank = bytearray(BLANK_SIZE)
            self._size += encode_blank(blank, 0, file.end - self._end)
            segment.parts.append(blank)
        self._finish()
        segment.finish = self._end = start
        self._begin(following)
        return True

    def _begin(self, file: LogFile | None) -> None:
        self._mark += 1
        self._segments.append(Segment(file, self._end, self._mark, self._now))

    def _finish(self) -> None:
        """The last segment has all that it will get."""
        segment = self._segments[-1]
        segment.finish = self._end
        segment.size = self._size - sum(each.size for each in self._segments[:-1])

    def _advance(self, segment: Segment, slot: QueueSlot, count: int) -> None:
        if slot.mark != segment.mark:
            segment.begin_run(slot, self._end)
        slot.next += count


def _too_large(total: int, largest: int) -> str:
    return f"it takes {total} bytes in the log, at most {largest} are allowed"


def _refuse(ticket: Ticket, status: PutStatus, remark: str) -> bool:
    ticket.failure = status
    ticket.remark = remark
    return False
