"""Message properties: their text form, and the names that RocketMQ gives a meaning.

The text is `name 0x01 value 0x02` for each pair, UTF-8. It travels as `str` in send headers and as `bytes` in records
and batch items, so both forms are served. `find`, `append` and `remove` work on the bytes without building a dict:
they are what a broker's hot path needs. What a property does is decided elsewhere. RocketMQ's `MessageConst` and the
property half of its `MessageDecoder`.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from cometmq.protocol.errors import RecordError
from cometmq.protocol.hashing import hash_code

#: The longest property text in bytes: a record counts it in a signed i16.
MAX_PROPERTIES_LENGTH: Final = 32_767

# What users set through the arguments of a message.
KEYS: Final = "KEYS"  # index keys, separated by KEY_SEPARATOR
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"  # "false": do not wait for flush and replication
DELAY: Final = "DELAY"  # delay level, from 1
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
BUYER_ID: Final = "BUYER_ID"
SHARDING_KEY: Final = "__SHARDINGKEY"
SHARDING_KEY_GO: Final = "SHARDING_KEY"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"  # light message queues, separated by ","
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
START_DELIVER_TIME: Final = "__STARTDELIVERTIME"

# What clients add.
UNIQ_KEY: Final = "UNIQ_KEY"  # the client's message id
EXTEND_UNIQ_INFO: Final = "EXTEND_UNIQ_INFO"
INSTANCE_ID: Final = "INSTANCE_ID"  # the namespace
PGROUP: Final = "PGROUP"  # producer group of a transaction
TRAN_MSG: Final = "TRAN_MSG"  # "true": a half message
TRANSACTION_ID: Final = "__transactionId__"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"  # milliseconds from Java, seconds from Go
MSG_TYPE: Final = "MSG_TYPE"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"

# What a consumer adds to its own copy.
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
POP_CK: Final = "POP_CK"
POP_CK_OFFSET: Final = "POP_CK_OFFSET"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
#: Names with this prefix live in a consumer's memory and are never stored.
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."

# What the broker adds.
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
CLUSTER: Final = "CLUSTER"
REAL_TOPIC: Final = "REAL_TOPIC"  # the target of a half, delayed or timer message
REAL_QID: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"  # the first topic of a retried message
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
DUP_INFO: Final = "DUP_INFO"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DELAY_LEVEL: Final = "TIMER_DELAY_LEVEL"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
CRC32: Final = "__CRC32#"  # checksum of the record, always its last 20 bytes

# Proxies, traces, and what is left of older versions.
FORWARD_QUEUE_ID: Final = "PROPERTY_FORWARD_QUEUE_ID"
REDIRECT: Final = "REDIRECT"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
BORN_HOST: Final = "__BORNHOST"
TRANSFER_FLAG: Final = "TRANSFER_FLAG"
CORRECTION_FLAG: Final = "CORRECTION_FLAG"
MQ2_FLAG: Final = "MQ2_FLAG"

#: The value of MSG_TYPE of a reply.
REPLY_MESSAGE: Final = "reply"
KEY_SEPARATOR: Final = " "

# fmt: off
#: Every name with a meaning.
WELL_KNOWN: Final = frozenset({
    KEYS, TAGS, WAIT, DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, BUYER_ID, SHARDING_KEY,
    SHARDING_KEY_GO, INNER_MULTI_DISPATCH, CHECK_IMMUNITY_TIME_IN_SECONDS, START_DELIVER_TIME, UNIQ_KEY,
    EXTEND_UNIQ_INFO, INSTANCE_ID, PGROUP, TRAN_MSG, TRANSACTION_ID, RECONSUME_TIME, MAX_RECONSUME_TIMES,
    CORRELATION_ID, REPLY_TO_CLIENT, TTL, MSG_TYPE, ARRIVE_TIME, PUSH_REPLY_TIME, MIN_OFFSET, MAX_OFFSET,
    CONSUME_START_TIME, POP_CK, POP_CK_OFFSET, FIRST_POP_TIME, MSG_REGION, TRACE_ON, CLUSTER, REAL_TOPIC, REAL_QID,
    RETRY_TOPIC, ORIGIN_MESSAGE_ID, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID, INNER_NUM, INNER_BASE,
    INNER_MULTI_QUEUE_OFFSET, DUP_INFO, TRANSACTION_CHECK_TIMES, TRAN_PREPARED_QUEUE_OFFSET, TIMER_OUT_MS,
    TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_DELAY_LEVEL, TIMER_DEL_UNIQKEY, CRC32,
    FORWARD_QUEUE_ID, REDIRECT, TRACE_CONTEXT, BORN_TIMESTAMP, BORN_HOST, TRANSFER_FLAG, CORRECTION_FLAG, MQ2_FLAG,
})
#: Names with a meaning that RocketMQ's users set as user properties, because there is no other way to them.
USER_SETTABLE: Final = frozenset({
    SHARDING_KEY, SHARDING_KEY_GO, INNER_MULTI_DISPATCH, CHECK_IMMUNITY_TIME_IN_SECONDS, START_DELIVER_TIME,
    TRACE_CONTEXT,
})
# fmt: on
#: Names that a user property may not have.
RESERVED: Final = WELL_KNOWN - USER_SETTABLE


def is_reserved(name: str) -> bool:
    """Whether a user may not choose this name for a property."""
    return name in RESERVED or name.startswith(TRANSIENT_PREFIX)


def parse_properties(text: str) -> dict[str, str]:
    """Property text as a dict, as lenient as Java.

    The last terminator may be missing, a pair without name or value is passed over, a later duplicate wins.
    """
    found: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            found[name] = value
    return found


def decode_properties(raw: bytes) -> dict[str, str]:
    """`parse_properties` of stored bytes.

    Bytes that are not UTF-8 become U+FFFD, as in Java: one odd property must not make a message unreadable.
    """
    return parse_properties(raw.decode("utf-8", "replace"))


def format_properties(pairs: Mapping[str, str]) -> str:
    """Property text of a dict, every pair terminated. An empty value is written, though no reader will see it."""
    parts = []
    for name, value in pairs.items():
        if not name or "\x01" in name or "\x02" in name or "\x02" in value:
            raise RecordError(f"property {name!r} is empty or holds one of the separators 0x01 and 0x02")
        parts.append(f"{name}\x01{value}\x02")
    return "".join(parts)


@lru_cache(maxsize=4096)
def _spread_hash(name: str) -> int:
    """A name's hash as Java's HashMap mixes it."""
    number = hash_code(name) & 0xFFFFFFFF
    return number ^ number >> 16


def in_java_order(pairs: Mapping[str, str]) -> dict[str, str]:
    """The same pairs in the order in which a Java broker writes them: that of a HashMap made for 128 entries.

    Readers do not care; but a record with its properties in this order is the very one that RocketMQ stores.
    """
    capacity = 128
    while len(pairs) > capacity * 3 // 4:
        capacity *= 2
    mask = capacity - 1
    return dict(sorted(pairs.items(), key=lambda pair: _spread_hash(pair[0]) & mask))


def encode_properties(pairs: Mapping[str, str]) -> bytes:
    """Property text of a dict as it is stored; refused above the limit."""
    return encode_text(format_properties(pairs))


def encode_text(text: str) -> bytes:
    """Property text of a send header as it is stored; refused above the limit.

    A lone surrogate, which JSON can bring and UTF-8 cannot carry, becomes `?` as in Java.
    """
    raw = text.encode("utf-8", "replace")
    check_length(raw)
    return raw


def check_length(raw: bytes) -> None:
    """Refuse property text that a record cannot hold."""
    if len(raw) > MAX_PROPERTIES_LENGTH:
        raise RecordError(f"properties take {len(raw)} bytes, a record holds at most {MAX_PROPERTIES_LENGTH}")


def find(raw: bytes, name: bytes) -> bytes | None:
    """The value of one property, or None: the same answer as `decode_properties` gives, in a third of the time.

    Looks from the end, because the last duplicate wins, and passes over empty values.
    """
    end = len(raw)
    needle = b"\x02" + name + b"\x01"
    width = len(needle)
    while (at := raw.rfind(needle, 0, end)) >= 0:
        start = at + width
        stop = raw.find(b"\x02", start)
        value = raw[start:] if stop < 0 else raw[start:stop]
        if value:
            return value
        end = at
    if raw.startswith(needle[1:]):
        start = width - 1
        stop = raw.find(b"\x02", start)
        return (raw[start:] if stop < 0 else raw[start:stop]) or None
    return None


def append(raw: bytes, addition: bytes) -> bytes:
    """Two property texts as one. What is added wins over what was there; Java 4 leaves the last terminator out."""
    if raw and addition and not raw.endswith(b"\x02"):
        return raw + b"\x02" + addition
    return raw + addition


def remove(raw: bytes, name: bytes) -> bytes:
    """Property text without one property, duplicates too."""
    head = name + b"\x01"
    if head not in raw:
        return raw
    kept = [pair for pair in raw.split(b"\x02") if not pair.startswith(head)]
    # The text ended in a terminator when split() gave an empty last piece; it keeps that ending.
    if kept and kept[-1] and raw.endswith(b"\x02"):
        kept.append(b"")
    return b"\x02".join(kept)
