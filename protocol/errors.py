"""The root of the error tree, and what can be wrong with bytes.

Every error of CometMQ is a `CometMQError`; the ones that belong to sockets live in `cometmq.remoting.errors`.
Decoders raise nothing but `ProtocolError`: whatever bytes a peer sends, its kinds tell the caller what to do.
"""


class CometMQError(Exception):
    """Root of all errors raised by CometMQ."""

    #: The RocketMQ response code that belongs to this error, if there is one.
    code: int | None = None
    #: Whether the same call may succeed when it is tried again.
    retriable: bool = False
    #: What the user can do about it.
    remedy: str = ""


class ProtocolError(CometMQError):
    """Raised when bytes or values do not follow the protocol."""


class FrameError(ProtocolError):
    """Raised when a frame cannot be split or its header not be read: the stream is lost, close the connection."""

    remedy = "check that the peer speaks RocketMQ's remoting protocol on this port"


class HeaderError(ProtocolError):
    """Raised when a frame is sound but a field of its typed header is missing or malformed."""

    code = 1
    remedy = "send the field in the form that docs/protocol.md gives for the request"

    def __init__(self, request: str, field: str | None, reason: str) -> None:
        self.request = request
        self.field = field
        self.reason = reason
        where = f"{request}: field {field!r} {reason}" if field else f"{request}: {reason}"
        super().__init__(where)


class BodyError(ProtocolError):
    """Raised when the body of a request or response is not what its code asks for."""

    code = 1


class RecordError(ProtocolError):
    """Raised when a stored message or a batch item cannot be decoded or encoded."""

    code = 13
