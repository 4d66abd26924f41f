"""A command: the decoded header of a request or a response (RocketMQ's RemotingCommand without its body)."""

from enum import IntEnum
from typing import Any

import msgspec
from msgspec import field

from cometmq.protocol.errors import HeaderError
from cometmq.protocol.header import I32

#: Bit 0 of `flag`: this is a response.
FLAG_RESPONSE = 1
#: Bit 1 of `flag`: nobody waits for an answer to this request, so it gets none, not even an error.
FLAG_ONEWAY = 2


class SerializeType(IntEnum):
    """How the header of a frame is encoded: the top byte of the header word."""

    JSON = 0
    ROCKETMQ = 1
    MSGPACK = 2  # of our own; spoken only after both sides have announced it


class Command(msgspec.Struct, rename="camel", gc=False):
    """What a header says. Absent keys mean what Java assumes for them.

    `header` holds the typed header of a request with a known code. Of other commands it is None, or the keys of an
    answer as they came (`json_header.envelope_decoder`); `codec.read_header` or `codec.read_ext` read them on demand.
    """

    code: I32 = 0
    flag: I32 = 0
    opaque: I32 = 0
    version: I32 = 0
    language: str | None = "JAVA"
    remark: str | None = None
    header: Any = field(name="extFields", default=None)

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0


class BadHeader(HeaderError):
    """Raised for a request whose envelope is sound, so that it can be answered, but whose typed header is not."""

    def __init__(self, command: Command, kind: SerializeType, cause: HeaderError) -> None:
        super().__init__(cause.request, cause.field, cause.reason)
        self.command = command
        self.kind = kind
