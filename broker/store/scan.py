"""Walking over the records of the log: what dispatch and recovery read from it.

A scan takes nothing on trust and never raises for what the bytes say: it stops, and says where and why. It decodes no
more than dispatch needs, so it is written out at length; `protocol.record.decode_record` is the readable twin.
RocketMQ's `CommitLog.checkMessageAndReturnSize`.
"""

import enum
import logging
from struct import Struct, error, unpack_from
from typing import Final, NamedTuple

from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.dispatch import DispatchRequest
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
#: Where the store time stands when the born host is IPv4, and what an IPv6 one adds.
STORE_TIME_POSITION: Final = 56
_V6_ADDS: Final = 12
_SYS_FLAG_POSITION: Final = 36

#: What a disk writes at once, at least.
_SECTOR: Final = bytes(512)

#: Names of topics as they were decoded; one store has some thousands.
MAX_TOPICS: Final = 100_000

_DISPATCHED: Final = (sysflag.TRANSACTION_NOT, sysflag.TRANSACTION_COMMIT)


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

        Hot path of every recovery. Budget: 3 us a record with 1 KiB of body and its checksum, 1.6 us when skimmed.
        """
        topics = self._topics
        unpack_v4 = _HEAD_V4.unpack_from
        check_body = verify is Verify.BODY_CRC
        start = position
        try:
            while True:
                start = position
                if position + 8 > limit or len(out) >= count:
                    if len(out) < count and position < limit:
                        return Scanned(position, Stop.CUT, "fewer than 8 bytes are left")
                    return Scanned(position, Stop.ENOUGH)
                size, magic = unpack_from(">ii", view, position)
                if magic != MAGIC_V1 and magic != MAGIC_V2:
                    if magic == MAGIC_BLANK:
                        return Scanned(position, Stop.BLANK)
                    what = "nothing is written there" if not size and not magic else f"magic {magic & 0xFFFFFFFF:#x}"
                    return Scanned(position, Stop.BAD, f"no record: {what}")
                end = position + size
                if end > limit:
                    return Scanned(position, Stop.CUT, f"a record of {size} bytes, {limit - position} are left", size)
                (
                    _,
                    _,
                    body_crc,
                    queue_id,
                    queue_offset,
                    physical,
                    sys_flag,
                    store_time,
                    prepared,
                    body_length,
                ) = unpack_v4(view, position)
                body_start = position + 88
                if sys_flag & 0x30:
                    head = _HEADS[sys_flag & 0x30]
                    _, _, body_crc, queue_id, queue_offset, physical, _, store_time, prepared, body_length = (
                        head.unpack_from(view, position)
                    )
                    body_start = position + head.size
                body_end = body_start + body_length
                if body_length < 0 or body_end + 3 > end:
                    return Scanned(position, Stop.BAD, f"a body of {body_length} bytes in a record of {size}", size)
                if magic == MAGIC_V1:
                    topic_start = body_end + 1
                    topic_length = view[body_end]
                    if topic_length > 127:
                        return Scanned(position, Stop.BAD, f"a topic of {topic_length} bytes in a V1 record", size)
                else:
                    topic_start = body_end + 2
                    (topic_length,) = unpack_from(">h", view, body_end)
                topic_end = topic_start + topic_length
                if topic_length < 0 or topic_end + 2 > end:
                    return Scanned(position, Stop.BAD, f"a topic of {topic_length} bytes in a record of {size}", size)
                text_start = topic_end + 2
                if (view[topic_end] << 8 | view[topic_end + 1]) != end - text_start or end - text_start > 0x7FFF:
                    return Scanned(position, Stop.BAD, f"lengths do not add up to {size} bytes", size)
                if physical != base + position:
                    return Scanned(position, Stop.BAD, f"the record says that it stands at {physical}", size)
                if check_body:
                    if body_length and crc32(view[body_start:body_end]) != body_crc:
                        return Scanned(position, Stop.BAD, "the checksum of the body is wrong", size)
                elif verify is Verify.PROPERTY_CRC and not verify_property_crc(view, position, size):
                    return Scanned(position, Stop.BAD, "the checksum of the record is wrong or missing", size)
                if torn and end > text_start and (view[end - 1] == 0 or _has_hole(view, text_start, end)):
                    return Scanned(position, Stop.BAD, "its properties are missing", size)
                raw_topic = bytes(view[topic_start:topic_end])
                position = end
                if physical < skim_before:
                    if seen is not None and sys_flag & 0xC in _DISPATCHED:
                        seen[raw_topic, queue_id] = queue_offset
                    continue
                topic, shapes = topics.get(raw_topic) or self._topic(raw_topic)
                text = bytes(view[text_start:end])
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
        except (error, IndexError):
            return Scanned(start, Stop.BAD, "a record that is cut off")
        except UnicodeDecodeError:
            return Scanned(start, Stop.BAD, "the topic is not UTF-8")
        except _NoName:
            return Scanned(start, Stop.BAD, "the topic cannot be a name")

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


def _has_hole(view: memoryview, start: int, end: int) -> bool:
    """Whether a whole sector of property text is missing."""
    return end - start >= len(_SECTOR) and _SECTOR in bytes(view[start:end])


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
