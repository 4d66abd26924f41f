"""Headers of looking for single messages, by key or by their place in the commit log."""

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.header import I32, I64, Header, NoHeader, Operation, field


class QueryMessage(Header, frozen=True):
    """Asks for messages by a key, or by their unique key, in a range of store times."""

    topic: str
    key: str
    max_num: I32
    begin_timestamp: I64
    end_timestamp: I64
    unique_key_query: bool | None = field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryMessageAnswer(Header, frozen=True):
    """How far the index goes; comes with 0 and with QUERY_NOT_FOUND."""

    index_last_update_timestamp: I64
    index_last_update_phyoffset: I64


class ViewMessage(Header, frozen=True):
    """Asks for the message at an offset of the commit log."""

    offset: I64
    topic: str | None = None


OPERATIONS: tuple[Operation, ...] = (
    Operation(RequestCode.QUERY_MESSAGE, QueryMessage, QueryMessageAnswer),
    Operation(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage, NoHeader),
    Operation(RequestCode.QUERY_BROKER_OFFSET, NoHeader, NoHeader),
)
