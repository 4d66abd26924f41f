"""The two identifiers of a message, and the packed form of a host that both are made of.

The *offset message id* says where a broker stored a message: store host and physical offset. The *unique key*
(property UNIQ_KEY) is made by the producer: its address, process, time and a counter. Both are 32 hex digits for IPv4
and 56 for IPv6, so their length never tells them apart. RocketMQ's `MessageId` and `MessageClientIDSetter`.
"""

import itertools
import time
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import islice
from struct import Struct, pack
from typing import Final

import msgspec

from cometmq.protocol.errors import RecordError

# A host in a record or an id: the raw address and the port as i32 (not i16).
HOST_V4_LENGTH: Final = 8
HOST_V6_LENGTH: Final = 20
_MAX_PORT: Final = 65_535
_ID_LENGTHS: Final = (32, 56)


def pack_address(ip: str) -> bytes:
    """An IP address as 4 or 16 bytes. An IPv4 address inside an IPv6 one comes out as IPv4, as in Java."""
    try:
        address = ip_address(ip)
    except ValueError:
        raise RecordError(f"{ip!r} is not an IP address") from None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


# One entry for each peer address that is in use; a busy broker has some thousands of connections.
@lru_cache(maxsize=4096)
def pack_host(ip: str, port: int) -> bytes:
    """A host as records hold it: 8 bytes for IPv4, 20 for IPv6."""
    if not 0 <= port <= _MAX_PORT:
        raise RecordError(f"{port} is not a port")
    return pack_address(ip) + port.to_bytes(4, "big")


@lru_cache(maxsize=4096)
def unpack_host(host: bytes) -> tuple[str, int]:
    """The IP address and the port of a packed host. The port is what the bytes say, sound or not."""
    if len(host) not in (HOST_V4_LENGTH, HOST_V6_LENGTH):
        raise RecordError(f"a host takes 8 or 20 bytes, not {len(host)}")
    return _address(host[:-4]), int.from_bytes(host[-4:], "big", signed=True)


def _address(packed: bytes) -> str:
    return str(IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed))


def _unhex(text: str, what: str) -> bytes:
    # bytes.fromhex() passes over blanks, so the length of its result is checked too.
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(text) not in _ID_LENGTHS or len(raw) * 2 != len(text):
        raise RecordError(f"{text[:60]!r} is not {what}: 32 or 56 hex digits")
    return raw


class MessageId(msgspec.Struct, frozen=True):
    """Where a message is stored."""

    host: str
    port: int
    physical_offset: int


def encode_message_id(store_host: bytes, physical_offset: int) -> str:
    """The offset message id: packed store host and physical offset in upper-case hex."""
    return f"{store_host.hex().upper()}{physical_offset:016X}"


def decode_message_id(text: str) -> MessageId:
    """The place that an offset message id names. A unique key mostly fails here, but not always."""
    raw = _unhex(text, "an offset message id")
    host, port = unpack_host(raw[:-8])
    offset = int.from_bytes(raw[-8:], "big", signed=True)
    if not 0 <= port <= _MAX_PORT or offset < 0:
        raise RecordError(f"{text!r} is not an offset message id: port {port}, offset {offset}")
    return MessageId(host, port, offset)


_TAIL: Final = Struct(">HIIH")

#: How far a sender's clock may run ahead of the reader's before its time is taken for one of the month before.
CLOCK_SKEW: Final = timedelta(minutes=1)


class UniqueKey(msgspec.Struct, frozen=True):
    """What a producer put into a unique key."""

    host: str
    #: The low 16 bits of the process id.
    pid: int
    #: Java's class loader hash; 0 from Go.
    hash_code: int
    #: Milliseconds since the sender's month began, in the sender's time zone. Go counts whole seconds.
    month_millis: int
    counter: int

    def sent_at(self, now: datetime) -> datetime:
        """When the key was made, seen from `now`, whose time zone is taken for the sender's.

        The key does not hold the month, so the answer is the latest month in which the time fits and is not after
        `now`: right for keys that are less than a month old, made in the same time zone.
        """
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
        span = timedelta(milliseconds=self.month_millis)
        for _ in range(12):
            # Aware datetimes add up in wall-clock time; the span is real time, so it goes through the epoch.
            sent = datetime.fromtimestamp(start.timestamp() + span.total_seconds(), start.tzinfo)
            if sent < _next_month(start) and sent <= now + CLOCK_SKEW:
                return sent
            start = (start - timedelta(days=1)).replace(day=1)
        raise RecordError(f"{self.month_millis} ms do not fit into a month")


def _next_month(start: datetime) -> datetime:
    return (start + timedelta(days=32)).replace(day=1)


def decode_unique_key(text: str) -> UniqueKey:
    """Take a unique key apart; hex digits of either case (Go writes the last 12 of them in lower case)."""
    raw = _unhex(text, "a unique key")
    pid, hash_code, month_millis, counter = _TAIL.unpack(raw[-12:])
    return UniqueKey(_address(raw[:-12]), pid, hash_code, month_millis, counter)


def wall_millis() -> int:
    """The wall clock in epoch milliseconds."""
    return time.time_ns() // 1_000_000


class UniqueKeyGenerator:
    """Makes unique keys: ip, pid, hash, milliseconds since the month began, counter.

    Two generators of one process need different hashes (a random one each will do), or they make the same keys.
    Tasks and threads may share one: its mutable state is a counter that CPython steps atomically, and the bounds of
    the month and the last moment, each replaced as one tuple. After a fork the pid is wrong: make a new generator.
    """

    __slots__ = ("_clock", "_counter", "_last", "_month", "_prefix", "_zone")

    def __init__(
        self,
        ip: str,
        pid: int,
        hash_code: int,
        *,
        clock: Callable[[], int] = wall_millis,
        zone: tzinfo | None = None,
    ) -> None:
        """`clock` gives epoch milliseconds; `zone` is where months begin, the local one by default as in Java."""
        fixed = pack_address(ip) + (pid & 0xFFFF).to_bytes(2, "big") + (hash_code & 0xFFFFFFFF).to_bytes(4, "big")
        self._prefix = fixed.hex().upper()
        self._clock = clock
        self._zone = zone
        self._counter = itertools.count()
        self._month = self._month_of(clock())
        #: The last millisecond, and what all its keys begin with: a busy sender makes many in one.
        self._last = (-1, "")

    def __call__(self) -> str:
        """A new key, upper-case hex."""
        return self.at(self._clock())

    def at(self, now: int) -> str:
        """A new key of this moment, in epoch milliseconds."""
        last, text = self._last
        if now != last:
            text = self._start_at(now)
        return f"{text}{next(self._counter) & 0xFFFF:04X}"

    def many(self, now: int, count: int) -> list[str]:
        """New keys of this moment. Budget: 0.1 us a key."""
        text = self._start_at(now)
        # One pass in C, which no other thread interrupts: the numbers follow each other but for the overflow.
        numbers = list(islice(self._counter, count))
        if not numbers or (first := numbers[0] & 0xFFFF) + count > 0x10000:
            return [f"{text}{number & 0xFFFF:04X}" for number in numbers]
        digits = pack(f">{count}H", *range(first, first + count)).hex().upper()
        return [text + digits[at : at + 4] for at in range(0, 4 * count, 4)]

    def _start_at(self, now: int) -> str:
        """What all keys of a moment begin with."""
        start, end = self._month
        if not start <= now < end:
            self._month = start, end = self._month_of(now)
        text = f"{self._prefix}{now - start:08X}"
        self._last = (now, text)
        return text

    def _month_of(self, millis: int) -> tuple[int, int]:
        moment = datetime.fromtimestamp(millis / 1000, self._zone)
        start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
        return int(start.timestamp() * 1000), int(_next_month(start).timestamp() * 1000)
