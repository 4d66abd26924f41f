"""Headers of offsets: what a group has committed, and how far a queue goes.

Here are the requests that clients make while they consume; resetting and cloning offsets is the admin's (`admin`).
"""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, NoHeader, Operation


class QueryConsumerOffset(Header, frozen=True):
    """Asks for the committed offset of a group in a queue."""

    consumer_group: str
    topic: str
    queue_id: I32
    set_zero_if_not_found: bool | None = None


class UpdateConsumerOffset(Header, frozen=True):
    """Commits an offset of a group in a queue."""

    consumer_group: str
    topic: str
    # Without one of these a broker answers INVALID_PARAMETER, so they must get as far as the handler.
    queue_id: I32 | None = None
    commit_offset: I64 | None = None


class SearchOffset(Header, frozen=True):
    """Asks for the first offset (or, with boundary UPPER, the last) of the messages stored at a time."""

    topic: str
    queue_id: I32
    timestamp: I64
    boundary_type: str | None = None


class GetMaxOffset(Header, frozen=True):
    """Asks for the offset that the next message of a queue will get."""

    topic: str
    queue_id: I32
    committed: bool | None = None


class GetMinOffset(Header, frozen=True):
    """Asks for the offset of the oldest message that a queue still has."""

    topic: str
    queue_id: I32


class GetEarliestMsgStoreTime(Header, frozen=True):
    """Asks when the oldest message of a queue was stored."""

    topic: str
    queue_id: I32


class OffsetAnswer(Header, frozen=True):
    """An offset in a queue."""

    offset: I64


class GetEarliestMsgStoreTimeAnswer(Header, frozen=True):
    """A store time in milliseconds; -1 when the queue is empty or unknown."""

    timestamp: I64


OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffset, OffsetAnswer),
    Operation(RequestCode.UPDATE_CONSUMER_OFFSET, UpdateConsumerOffset, NoHeader),
    Operation(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, SearchOffset, OffsetAnswer),
    Operation(RequestCode.GET_MAX_OFFSET, GetMaxOffset, OffsetAnswer),
    Operation(RequestCode.GET_MIN_OFFSET, GetMinOffset, OffsetAnswer),
    Operation(RequestCode.GET_EARLIEST_MSG_STORETIME, GetEarliestMsgStoreTime, GetEarliestMsgStoreTimeAnswer),
)
