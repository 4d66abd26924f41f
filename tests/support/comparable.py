"""Answers of a server as values in which only what must be equal is left: no times, addresses, physical places.

What a recorded answer and one of a running server have to share is said here once; what may differ beyond that is said,
with reasons, by the tests. Message records become dicts of their fields, JSON bodies become plain values.
"""

import re
from typing import Any

from cometmq.protocol import fastjson, properties_text
from cometmq.protocol.errors import BodyError
from cometmq.protocol.record import Record, decode_records
from support.wire import plain

PULL_MESSAGE, QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, LITE_PULL_MESSAGE = 11, 12, 33, 361
GET_BROKER_CONFIG = 26
WITH_RECORDS = {PULL_MESSAGE, QUERY_MESSAGE, VIEW_MESSAGE_BY_ID, LITE_PULL_MESSAGE}

#: Fields whose value is a moment.
TIMES = {
    "storeTimestamp",
    "lastUpdateTimestamp",
    "lastTimestamp",
    "timestamp",
    "PUSH_REPLY_TIME",
    "indexLastUpdateTimestamp",
    "earliestMsgStoreTime",
    "earliestTimestamp",
}
#: Fields whose value is a place in the log.
PLACES = {"indexLastUpdatePhyoffset", "commitLogOffset", "physicOffset", "physicalOffset"}

_ADDRESS = re.compile(r"/?(?:\d{1,3}\.){3}\d{1,3}:\d+")
#: An offset message id of an IPv4 broker: address, port and place in the log.
_OFFSET_ID = re.compile(r"\b7F000001[0-9A-F]{24}\b")
_TIME_PROPERTY = re.compile(r"(PUSH_REPLY_TIME|TIMER_OUT_MS|STORE_TIMESTAMP)\x01\d+")


def text(value: str) -> str:
    """A text without addresses of machines and places in a log."""
    value = _OFFSET_ID.sub("<offset id>", value)
    value = _TIME_PROPERTY.sub("\\1\x01<time>", value)
    return _ADDRESS.sub("<address>", value)


def fields(ext: dict[str, str]) -> dict[str, str]:
    """Header fields without moments and places."""
    return {key: f"<{key}>" if key in TIMES | PLACES else text(value) for key, value in ext.items()}


def value(raw: Any) -> Any:
    """A JSON value without moments and places."""
    if isinstance(raw, dict):
        return {key: f"<{key}>" if key in TIMES | PLACES else value(item) for key, item in raw.items()}
    if isinstance(raw, list):
        return [value(item) for item in raw]
    return text(raw) if isinstance(raw, str) else raw


def record(one: Record) -> dict[str, Any]:
    """A message record: what its producer gave, where in its queue it is, and the stored text of its properties."""
    return {
        "topic": one.topic,
        "queue_id": one.queue_id,
        "queue_offset": one.queue_offset,
        "flag": one.flag,
        "sys_flag": one.sys_flag,
        "reconsume_times": one.reconsume_times,
        "prepared_transaction_offset": one.prepared_transaction_offset,
        "body": one.body,
        "body_crc": one.body_crc,
        "properties": text(one.properties.decode()),
    }


def records(body: bytes) -> list[Record]:
    return list(decode_records(body))


def body(code: int, answer_code: int, raw: bytes) -> Any:
    """The body of an answer to a request of that code."""
    if not raw:
        return None
    if answer_code == 0 and code in WITH_RECORDS:
        return [record(one) for one in records(raw)]
    if code == GET_BROKER_CONFIG:
        return properties_text.loads(raw)
    try:
        return value(plain(fastjson.loads(raw)))
    except BodyError:
        return text(raw.decode("utf-8", "replace"))


def answer(request: int, code: int, remark: str | None, ext: dict[str, str], raw: bytes) -> dict[str, Any]:
    """An answer to compare. Remarks on success do not count (ours has none)."""
    return {
        "code": code,
        "remark": None if code == 0 else text(remark or ""),
        "ext": fields(ext),
        "body": body(request, code, raw),
    }
