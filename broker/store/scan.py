"""Walking over the records of the log: what dispatch and recovery read from it.

A scan takes nothing on trust and never raises for what the bytes say: it stops, and says where and why. It decodes no
more than dispatch needs, so it is written out at length; `protocol.record.decode_record` is the readable twin.
RocketMQ's `CommitLog.checkMessageAndReturnSize`.
"""

import enum
import logging
from struct import Struct, error, unpack_from
from typing import Final, NamedTuple, TypeAlias

from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.message import integer_property
from cometmq.broker.store.text_shape import TextShape, look
from cometmq.protocol import names, sysflag
from cometmq.protocol.checksum import crc32, verify_property_crc
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.record import MAGIC_BLANK, MAGIC_V1, MAGIC_V2

log = logging.getLogger(__name__)

# totalSize, magic, bodyCRC, queueId, queueOffset, physicalOffset, sysFlag, storeTimestamp, preparedTransactionOffset,
# bodyLength; flag, born time, hosts and reconsumeTimes are passed over. The key is the two host bits of sysFlag.
_HEADS: Final = {
    0: Struct(">iiii4xqqi8x8xq8x4xqi"),
    sysflag.BORN_HOST_V6: Struct(">iiii4xqqi8x20xq8x4xqi"),
    sysflag.STORE_HOST_V6: Struct(">iiii4xqqi8x8xq20x4xqi"),
    sysflag.HOSTS_V6: Struct(">iiii4xqqi8x20xq20x4xqi"),
}
_HEAD_V4: Final = _HEADS[0]
#: Of a record without body, topic and properties: it has their lengths.
_SHORTEST: Final = _HEAD_V4.size + 3
#: Of what follows a body: the longest topic, the longest properties, and their lengths.
_LONGEST_REST: Final = 2 + 0x7FFF + 2 + 0x7FFF
#: Records that are walked over before their requests are made.
_AT_ONCE: Final = 4096
#: Where the store time stands when the born host is IPv4, and what an IPv6 one adds.
STORE_TIME_POSITION: Final = 56
_V6_ADDS: Final = 12
_SYS_FLAG_POSITION: Final = 36

#: What a disk writes at once, at least.
_SECTOR: Final = bytes(512)

#: Names of topics as they were decoded; one store has some thousands.
MAX_TOPICS: Final = 100_000

#: The bit of half and rollback records of the old kind: they are in no queue.
_NOT_QUEUED: Final = sysflag.TRANSACTION_PREPARED


class Verify(enum.Enum):
    """What a scan checks beside the structure."""

    NOTHING = enum.auto()
    BODY_CRC = enum.auto()
    #: The checksum of the whole record instead of the body's; a record without one is bad.
    PROPERTY_CRC = enum.auto()


class Stop(enum.Enum):
    """Why a scan ended."""

    #: As many records as were asked for, or exactly the end of what may be read.
    ENOUGH = enum.auto()
    #: The record goes on beyond what may be read.
    CUT = enum.auto()
    #: The blank record that closes a file.
    BLANK = enum.auto()
    #: No record: a wrong magic (zeros too), lengths that do not fit, a wrong checksum.
    BAD = enum.auto()


class Scanned(NamedTuple):
    """Where a scan ended, as a position in the file."""

    position: int
    stop: Stop
    reason: str = ""
    #: BAD: the length that the record claims when its magic is right, else 0.
    claimed: int = 0
    #: Physical offset and store time of the last record that was read, also when it was passed over.
    last: tuple[int, int] | None = None


#: totalSize, magic, bodyCRC, queueId, queueOffset, physicalOffset, sysFlag, storeTimestamp, preparedTransactionOffset,
#: bodyLength; then what follows the body, and where in that topic and properties begin.
Head: TypeAlias = tuple[tuple[int, ...], bytes, int, int]


class _NoName(Exception):
    """Is raised and caught here when a topic cannot be the name of a directory."""


class Scanner:
    """Reads records of one store. Its mutable state is what it remembers of topics."""

    def __init__(self, levels: DelayLevels) -> None:
        self._levels = levels
        #: Names as they were decoded, and the shapes of their properties.
        self._topics: dict[bytes, tuple[str, list[TextShape]]] = {}

    def scan(
        self,
        view: memoryview,
        base: int,
        position: int,
        limit: int,
        out: list[DispatchRequest],
        *,
        count: int = 1 << 62,
        verify: Verify = Verify.NOTHING,
        torn: bool = False,
        skim_before: int = -1,
        seen: dict[tuple[bytes, int], int] | None = None,
    ) -> Scanned:
        """Read records of a file that begins at offset `base`, from `position`, all of them ending before `limit`.

        Requests are appended to `out` until it has `count`. With `torn` a record whose properties were lost by a crash
        is bad: no checksum covers them. Records that begin before the offset `skim_before` are
        checked and passed over; `seen` learns the last queue offset of each queue among them.

        Hot path of every recovery. Budget: 2.7 us a record with 1 KiB of body and its checksum, 1.3 us when skimmed.
        """
        last: tuple[int, int] | None = None
        while True:
            heads: list[Head] = []
            skims = base + position < skim_before
            result = _walk(
                view,
                base,
                position,
                min(limit, skim_before - base) if skims else limit,
                limit,
                heads,
                count=min(_AT_ONCE, 1 << 62 if skims else count - len(out)),
                verify=verify,
                torn=torn,
            )
            if heads:
                if skims:
                    _skim(heads, seen)
                else:
                    taken, reason = self._take(heads, out)
                    if taken < len(heads):
                        if taken:
                            last = heads[taken - 1][0][5], heads[taken - 1][0][7]
                        bad = heads[taken][0]
                        return Scanned(bad[5] - base, Stop.BAD, reason, bad[0], last)
                head = heads[-1][0]
                last = head[5], head[7]
            position = result.position
            if result.stop is not Stop.ENOUGH or position >= limit or len(out) >= count:
                return result._replace(last=last)

    def _take(self, heads: list[Head], out: list[DispatchRequest]) -> tuple[int, str]:
        """Make requests of records; how many could be made, and what was wrong with the one after them."""
        topics = self._topics
        before = len(out)
        try:
            for head, rest, topic_start, text_start in heads:
                size, _, _, queue_id, queue_offset, physical, sys_flag, store_time, prepared, _ = head
                raw_topic, text = rest[topic_start : text_start - 2], rest[text_start:]
                topic, shapes = topics.get(raw_topic) or self._topic(raw_topic)
                facts = shapes[0].match(text) if shapes else None
                if facts is None:
                    facts, _ = look(shapes, text, ())
                tags_code, keys, unique = facts
                if topic == names.SCHEDULE_TOPIC:
                    tags_code = schedule_code(self._levels, text, store_time, tags_code)
                out.append(
                    DispatchRequest(
                        topic,
                        queue_id,
                        physical,
                        size,
                        tags_code,
                        store_time,
                        queue_offset,
                        keys,
                        unique,
                        sys_flag,
                        prepared,
                        text,
                        integer_property(text, b"INNER_NUM") or 1 if sys_flag & 0x80 else 1,
                    )
                )
        except UnicodeDecodeError:
            return len(out) - before, "the topic is not UTF-8"
        except _NoName:
            return len(out) - before, "the topic cannot be a name"
        return len(heads), ""

    def _topic(self, raw: bytes) -> tuple[str, list[TextShape]]:
        if len(self._topics) >= MAX_TOPICS:
            self._topics.clear()
        topic = raw.decode()
        # It is going to be a directory: a flipped bit must not lead out of the store.
        if topic in ("", ".", "..") or "/" in topic or "\0" in topic:
            raise _NoName
        known: tuple[str, list[TextShape]] = (topic, [])
        self._topics[raw] = known
        return known


def _walk(
    view: memoryview,
    base: int,
    position: int,
    until: int,
    limit: int,
    heads: list[Head],
    *,
    count: int,
    verify: Verify,
    torn: bool,
) -> Scanned:
    """Go from record to record, as long as they begin before `until`, and check them: what `Scanner.scan` says.

    Appends to `heads` up to `count` records. Budget: 1 us a record with 1 KiB of body, half of it the checksum.
    """
    unpack_v4 = _HEAD_V4.unpack_from
    check_body = verify is Verify.BODY_CRC
    check_all = verify is Verify.PROPERTY_CRC
    start = position
    try:
        for _ in range(count):
            start = position
            if position >= until:
                return Scanned(position, Stop.ENOUGH)
            if position + _SHORTEST > limit:
                return _short(view, position, limit)
            head = unpack_v4(view, position)
            size, magic, body_crc, _, _, physical, sys_flag, _, _, body_length = head
            if magic != MAGIC_V1 and magic != MAGIC_V2:
                return _short(view, position, limit)
            end = position + size
            if end > limit:
                return Scanned(position, Stop.CUT, f"a record of {size} bytes, {limit - position} are left", size)
            body_start = position + 88
            if sys_flag & 0x30:
                longer = _HEADS[sys_flag & 0x30]
                head = longer.unpack_from(view, position)
                body_length = head[9]
                body_start = position + longer.size
            body_end = body_start + body_length
            if body_length < 0 or body_end + 3 > end:
                return Scanned(position, Stop.BAD, f"a body of {body_length} bytes in a record of {size}", size)
            if end - body_end > _LONGEST_REST:
                return Scanned(position, Stop.BAD, f"lengths do not add up to {size} bytes", size)
            rest = bytes(view[body_end:end])
            topic_length = rest[0]
            topic_start = 1
            if magic == MAGIC_V2:
                topic_length = topic_length << 8 | rest[1]
                topic_start = 2
                if topic_length > 0x7FFF:
                    return Scanned(position, Stop.BAD, f"a topic of {topic_length} bytes", size)
            elif topic_length > 127:
                return Scanned(position, Stop.BAD, f"a topic of {topic_length} bytes in a V1 record", size)
            text_start = topic_start + topic_length + 2
            text_length = len(rest) - text_start
            if text_length < 0:
                return Scanned(position, Stop.BAD, f"a topic of {topic_length} bytes in a record of {size}", size)
            if (rest[text_start - 2] << 8 | rest[text_start - 1]) != text_length or text_length > 0x7FFF:
                return Scanned(position, Stop.BAD, f"lengths do not add up to {size} bytes", size)
            if physical != base + position:
                return Scanned(position, Stop.BAD, f"the record says that it stands at {physical}", size)
            if check_body:
                if body_length and crc32(view[body_start:body_end]) != body_crc:
                    return Scanned(position, Stop.BAD, "the checksum of the body is wrong", size)
            elif check_all and not verify_property_crc(view, position, size):
                return Scanned(position, Stop.BAD, "the checksum of the record is wrong or missing", size)
            if torn and text_length and (rest[-1] == 0 or _SECTOR in rest):
                # A whole sector of it, or the end.
                return Scanned(position, Stop.BAD, "its properties are missing", size)
            heads.append((head, rest, topic_start, text_start))
            position = end
        return Scanned(position, Stop.ENOUGH)
    except (error, IndexError):
        return Scanned(start, Stop.BAD, "a record that is cut off")


def _short(view: memoryview, position: int, limit: int) -> Scanned:
    """What stands where no whole record can: less than the shortest one is left, or its magic is not a record's."""
    if position + 8 > limit:
        if position < limit:
            return Scanned(position, Stop.CUT, "fewer than 8 bytes are left")
        return Scanned(position, Stop.ENOUGH)
    size, magic = unpack_from(">ii", view, position)
    if magic == MAGIC_BLANK:
        return Scanned(position, Stop.BLANK)
    if magic not in (MAGIC_V1, MAGIC_V2):
        what = "nothing is written there" if not size and not magic else f"magic {magic & 0xFFFFFFFF:#x}"
        return Scanned(position, Stop.BAD, f"no record: {what}")
    if position + size > limit:
        return Scanned(position, Stop.CUT, f"a record of {size} bytes, {limit - position} are left", size)
    return Scanned(position, Stop.BAD, f"a record of {size} bytes", size)


def _skim(heads: list[Head], seen: dict[tuple[bytes, int], int] | None) -> None:
    if seen is not None:
        for head, rest, topic_start, text_start in heads:
            if not head[6] & _NOT_QUEUED:
                seen[rest[topic_start : text_start - 2], head[3]] = head[4]


def schedule_code(levels: DelayLevels, text: bytes, store_time: int, otherwise: int) -> int:
    """The tags code of a record in the schedule topic: when it is due."""
    level = integer_property(text, b"DELAY")
    return levels.deliver_time(level, store_time) if level > 0 else otherwise


def store_time_at(view: memoryview, position: int) -> int:
    """The store time of the record at a position; -1 when the file ends before it."""
    try:
        (sys_flag,) = unpack_from(">i", view, position + _SYS_FLAG_POSITION)
        at = position + STORE_TIME_POSITION + (_V6_ADDS if sys_flag & sysflag.BORN_HOST_V6 else 0)
        return int(unpack_from(">q", view, at)[0])
    except error:
        return -1


class LogScan:
    """Reads requests out of the log for dispatch: no checksums, and around what cannot be read."""

    def __init__(self, commit_log: CommitLog, scanner: Scanner, *, replica: bool = False) -> None:
        self._log = commit_log
        self._scanner = scanner
        #: A replica waits at what it cannot read: the rest may come. A master passes over it.
        self.replica = replica

    def requests(self, start: int, end: int, count: int) -> tuple[list[DispatchRequest], int]:
        """Up to `count` requests from `start`, and where to go on; never beyond `end`."""
        out: list[DispatchRequest] = []
        start = max(start, self._log.min_offset)
        while start < end and len(out) < count:
            found = self._log.read(start, end - start)
            if found is None:
                # No file there: it has expired in the meantime.
                return out, max(start, min(end, self._log.min_offset))
            with found:
                file = found.file
                limit = found.start + found.length - file.start
                result = self._scanner.scan(file.view(), file.start, start - file.start, limit, out, count=count)
            start = file.start + result.position
            if result.stop is Stop.ENOUGH:
                continue
            if end < file.end and result.stop in (Stop.BLANK, Stop.CUT):
                # Only a part of it is there: the rest comes later.
                return out, start
            if result.stop is Stop.BLANK:
                start = file.end
            elif result.stop is Stop.BAD and result.claimed > 0:
                start = min(start + result.claimed, file.end, end)
            elif self.replica and end < file.end:
                return out, start
            else:
                log.error("dispatch passes over %d to %d: %s", start, min(file.end, end), result.reason)
                start = min(file.end, end)
        return out, start
