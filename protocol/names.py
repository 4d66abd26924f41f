"""Names of topics and groups: which are valid, which belong to the system, and the ones derived from a group.

Only the names; which topics exist and who may use them is known elsewhere. RocketMQ's `TopicValidator` and the name
part of its `MixAll`.
"""

import re
from typing import Final

from cometmq.protocol.errors import ProtocolError

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
REPLY_TOPIC_POSTFIX: Final = "REPLY_TOPIC"

#: In characters. A V1 record counts the topic in a signed byte.
MAX_TOPIC_LENGTH: Final = 127
#: In characters, for retry and dead letter topics: they hold a group's name and may need a V2 record.
MAX_RETRY_TOPIC_LENGTH: Final = 255
#: In characters. Java 4 and Go clients allow 255; a Java 5 broker does not.
MAX_GROUP_LENGTH: Final = 120

DEFAULT_TOPIC: Final = "TBW102"  # the template of topics that are created on their first message
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

#: Topics that nobody may create or delete; a broker adds its own name, its cluster's and what hangs on them.
SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRACE_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        CHECKPOINT_TOPIC,
    }
)

#: Topics that clients may not send to.
SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
    }
)

#: Groups that every broker has.
BUILT_IN_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }
)

# The | is one of the characters.
_VALID: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
ALLOWED_CHARACTERS: Final = "^[%|a-zA-Z0-9_-]+$"


class InvalidName(ProtocolError):
    """Raised when a topic or a group has a name that RocketMQ does not allow; the text is RocketMQ's remark."""

    code = 29
    remedy = f"use letters, digits and the characters % | _ -, at most {MAX_TOPIC_LENGTH} for a topic"


def validate_topic(topic: str) -> None:
    """Refuse a topic name that is blank, has other characters, or is too long."""
    longest = MAX_RETRY_TOPIC_LENGTH if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else MAX_TOPIC_LENGTH
    _validate(topic, "topic", longest)


def validate_group(group: str, *, longest: int = MAX_GROUP_LENGTH) -> None:
    """Refuse a group name that is blank, has other characters, or is too long."""
    _validate(group, "group", longest)


def _validate(name: str, kind: str, longest: int) -> None:
    if not name or name.isspace():
        raise InvalidName(f"The specified {kind} is blank.")
    if not _VALID.fullmatch(name):
        raise InvalidName(f"The specified {kind} contains illegal characters, allowing only {ALLOWED_CHARACTERS}")
    if len(name) > longest:
        raise InvalidName(f"The specified {kind} is longer than {kind} max length.")


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)


def retry_topic(group: str) -> str:
    """Where the messages of a group wait for their next try."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Where the messages of a group end after their last try."""
    return DLQ_PREFIX + group


def group_of(topic: str) -> str | None:
    """The group of a retry or dead letter topic; None for other topics."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None


def reply_topic(cluster: str) -> str:
    """Where consumers of a cluster send their replies."""
    return f"{cluster}_{REPLY_TOPIC_POSTFIX}"
