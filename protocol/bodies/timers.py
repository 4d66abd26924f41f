"""What a slave copies of its master's timers. Answers of 60 and 61."""

import struct
from typing import Self

from cometmq.protocol.bodies.base import Body, Int64, always, always_new
from cometmq.protocol.bodies.registration import DataVersion
from cometmq.protocol.errors import BodyError

_CHECKPOINT = struct.Struct(">7q")


class TimerCheckpoint(Body, frozen=True, kw_only=True):
    """How far the timers are. Seven 64-bit numbers in this order, and no JSON."""

    last_read_time_ms: Int64 = always(0)
    last_timer_log_flush_pos: Int64 = always(0)
    last_timer_queue_offset: Int64 = always(0)
    master_timer_queue_offset: Int64 = always(0)
    state_version: Int64 = always(0)
    timestamp: Int64 = always(0)
    counter: Int64 = always(0)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        if len(data) < _CHECKPOINT.size:
            raise BodyError(f"TimerCheckpoint: {len(data)} of {_CHECKPOINT.size} bytes")
        numbers = _CHECKPOINT.unpack_from(data)
        return cls(**dict(zip(cls.__struct_fields__, numbers, strict=True)))

    def encode(self, *, standard: bool = False) -> bytes:
        return _CHECKPOINT.pack(*(getattr(self, name) for name in self.__struct_fields__))


class TimerMetric(Body, frozen=True, kw_only=True):
    """How many timers of a topic wait."""

    count: Int64 = always(0)
    time_stamp: Int64 = always(0)


class TimerMetrics(Body, frozen=True, kw_only=True):
    """How many timers wait, by topic."""

    data_version: DataVersion = always_new(DataVersion)
    timing_count: dict[str, TimerMetric] = always_new(dict)
