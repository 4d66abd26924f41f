"""The one handler table, and the values that handlers get and give.

A handler is found by request code and gets a `Request` with its typed header. It is

- a plain function that returns a `Response`, or
- a coroutine function; its task belongs to the server, which awaits it at shutdown, or
- a function that returns `LATER`, keeps the request, and has somebody call `request.reply(response)` exactly once.

`NO_ANSWER` in place of a response is for the few requests that get none although somebody may wait. The table's rows
also carry the permission that a request needs: dispatcher, access check and documentation read the same rows. Nothing
here touches a socket. It mirrors NettyRequestProcessor and the processorTable of RocketMQ.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from cometmq.protocol.codec import read_ext
from cometmq.protocol.codes import request_name
from cometmq.protocol.command import FLAG_ONEWAY, Command, SerializeType
from cometmq.protocol.header import Header

if TYPE_CHECKING:
    from cometmq.remoting.connection import Connection

#: What a body may be made of. Large buffers go to the socket as they are.
Buffer = bytes | bytearray | memoryview
Body = Buffer | list[Buffer] | tuple[Buffer, ...]

H_co = TypeVar("H_co", bound=Header | None, covariant=True)


class Outcome(Enum):
    """What a handler may return besides a response."""

    LATER = "somebody calls request.reply"
    NO_ANSWER = "nobody is told anything"


LATER: Final = Outcome.LATER
NO_ANSWER: Final = Outcome.NO_ANSWER

Action = Literal["Pub", "Sub", "Create", "Update", "Delete", "Get", "List"]
Resource = Literal["Topic", "Group", "Cluster"]


class Permission(NamedTuple):
    """What the sender of a request must be allowed to do, in the words of RocketMQ's access rules."""

    action: Action
    resource: Resource
    #: The header's field that names the resource; None for the cluster, or when only the body names it.
    field: str | None = None


class Response(msgspec.Struct, frozen=True):
    """An answer. A remark belongs to failures: on success there is none."""

    code: int = 0
    header: Header | None = None
    body: Body = b""
    remark: str | None = None
    #: Keys besides the typed header's.
    ext: Mapping[str, str] | None = None


class Request(msgspec.Struct, Generic[H_co], eq=False, weakref=True):
    """A request while it is served. A struct, because one is made for each frame."""

    # A request is new inside its handler, open once the handler has returned without an answer, done after it.
    NEW: ClassVar = 0
    OPEN: ClassVar = 1
    DONE: ClassVar = 2

    connection: "Connection"
    command: Command
    header: H_co
    kind: SerializeType
    raw_header: bytes
    body: bytes
    #: When its bytes were read, on the monotonic clock of the server.
    received: float
    state: int = 0
    _ext: dict[str, str] | None = None

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def version(self) -> int:
        """The protocol version of the sender."""
        return self.command.version

    @property
    def is_oneway(self) -> bool:
        return self.command.flag & FLAG_ONEWAY != 0

    @property
    def is_answered(self) -> bool:
        return self.state == Request.DONE

    @property
    def ext(self) -> dict[str, str]:
        """All keys of the header as text: signatures, zones and other keys that no typed header declares."""
        if self._ext is None:
            self._ext = read_ext(self.kind, self.raw_header)
        return self._ext

    def reply(self, response: Response | Literal[Outcome.NO_ANSWER]) -> None:
        """Answers the request, once. Nothing is sent when it was oneway or when its connection has gone."""
        state = self.state
        if state == Request.DONE:
            raise RuntimeError(f"{self} has been answered already")
        self.state = Request.DONE
        connection = self.connection
        if response is not NO_ANSWER and not self.command.flag & FLAG_ONEWAY:
            connection.send_response(self.kind, self.command.opaque, response)
        if state == Request.OPEN:
            connection.reply_settled()

    def __str__(self) -> str:
        return f"{request_name(self.command.code)} #{self.command.opaque} of {self.connection}"


Result = Response | Outcome
Handler = Callable[[Request[Any]], Result | Awaitable[Result]]


class Entry(NamedTuple):
    """A row of the table."""

    code: int
    header: type[Header]
    handler: Handler
    permission: Permission | None = None


#: Looks at a request before its handler; a response refuses it.
Before = Callable[[Request[Any], Entry], Response | None]
#: Is told once that nothing more will come from a connection.
ConnectionObserver = Callable[["Connection"], None]


class Lane(Protocol):
    """A shorter way for requests that look alike, beside the table: see `HandlerTable.lane`."""

    def take(self, connection: "Connection", chunk: bytes, position: int, end: int, received: float) -> int:
        """Serves the frames from `position` on as long as they are of its kind; the position of the first that is not.

        It is asked about a connection once that has a `lane_memory`. Whatever it takes it answers in time, as a handler
        does that returns LATER.
        """


class HandlerTable:
    """Request code -> typed header -> handler -> permission.

    `before` and `on_connection_lost` are plain lists; whoever builds the table appends to them. The observers are
    called when a peer has closed its side, be it while its last requests are still being answered.
    """

    def __init__(self) -> None:
        self._entries: dict[int, Entry] = {}
        self.before: list[Before] = []
        self.on_connection_lost: list[ConnectionObserver] = []
        #: Looks at what was read before it is decoded. Nothing of `before` sees what it takes.
        self.lane: Lane | None = None

    def add(self, code: int, handler: Handler, *, permission: Permission | None = None) -> None:
        """Adds the handler of a code; its header type is the protocol's."""
        from cometmq.protocol.requests.operations import OPERATIONS  # all headers: for those who are asked something

        code = int(code)
        if code in self._entries:
            raise ValueError(f"{request_name(code)} has a handler already")
        operation = OPERATIONS.get(code)
        if operation is None:
            raise ValueError(f"the protocol has no request code {code}")
        if permission is not None and permission.field is not None:
            names = operation.request.__struct_fields__
            if permission.field not in names:
                raise ValueError(
                    f"{operation.request.__name__} has no field {permission.field!r} to ask permission for"
                )
        self._entries[code] = Entry(code, operation.request, handler, permission)

    def get(self, code: int) -> Entry | None:
        return self._entries.get(code)

    @property
    def entries(self) -> Mapping[int, Entry]:
        """The rows by code; the dispatcher looks them up here."""
        return self._entries

    def __contains__(self, code: int) -> bool:
        return code in self._entries

    def __iter__(self) -> Iterator[Entry]:
        """The rows in the order of their codes."""
        return iter(sorted(self._entries.values(), key=lambda entry: entry.code))

    def __len__(self) -> int:
        return len(self._entries)
