"""The records of a message trace in RocketMQ's form: fields joined by 0x01, a record ended by 0x02.

Text and values only. RocketMQ's TraceDataEncoder.
"""

import enum
from collections.abc import Iterable
from typing import NamedTuple

FIELD, END = "\x01", "\x02"


class MessageType(enum.IntEnum):
    """What kind of message was sent."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeCode(enum.IntEnum):
    """How processing ended."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceRecord(NamedTuple):
    """A record, and by which keys it shall be found."""

    #: Of the message; records of one topic go together.
    topic: str
    text: str
    keys: tuple[str, ...]


def _record(topic: str, fields: Iterable[object], keys: Iterable[str]) -> TraceRecord:
    # Java writes "null" for what is not there, and its readers expect it.
    text = FIELD.join("null" if value is None else str(value) for value in fields)
    return TraceRecord(topic, text + END, tuple(key for key in keys if key))


def _flag(value: bool) -> str:
    return "true" if value else "false"


def sent(
    *,
    time: int,
    region: str,
    group: str,
    topic: str,
    message_id: str,
    tag: str | None,
    keys: str | None,
    address: str,
    body_size: int,
    cost: int,
    kind: MessageType,
    offset_message_id: str,
    success: bool,
) -> TraceRecord:
    """A message was sent. Times are milliseconds."""
    fields = (
        "Pub",
        time,
        region,
        group,
        topic,
        message_id,
        tag,
        keys,
        address,
        body_size,
        cost,
        int(kind),
        offset_message_id,
        _flag(success),
    )
    return _record(topic, fields, (message_id, *(keys or "").split()))


def before_consume(
    *, time: int, region: str, group: str, topic: str, request_id: str, message_id: str, retries: int, keys: str | None
) -> TraceRecord:
    """A message is about to be processed."""
    fields = ("SubBefore", time, region, group, request_id, message_id, retries, keys)
    return _record(topic, fields, (message_id, *(keys or "").split()))


def after_consume(
    *,
    time: int,
    group: str,
    topic: str,
    request_id: str,
    message_id: str,
    cost: int,
    success: bool,
    keys: str | None,
    code: ConsumeCode,
) -> TraceRecord:
    """It has been. `cost` is its share of the time."""
    fields = ("SubAfter", request_id, message_id, cost, _flag(success), keys, int(code), time, group)
    return _record(topic, fields, (message_id, *(keys or "").split()))
