"""A client as one of its groups sees it: the connection, the name that the client gave itself, when it was last heard.

The connection's identity is the channel's: a client with two connections is two channels. RocketMQ's ClientChannelInfo.
"""

from cometmq.remoting.connection import Connection

#: What a member of a group asks for: (topic, language of the filter, filter), without its retry topic.
Signature = frozenset[tuple[str, str, str]]


class ClientChannel:
    """A member of a consumer group or a producer group. Each group has its own: a client may leave one and not all."""

    __slots__ = ("client_id", "connection", "language", "last_update", "signature", "version")

    def __init__(
        self, connection: Connection, client_id: str, language: str = "JAVA", version: int = 0, last_update: float = 0.0
    ) -> None:
        self.connection = connection
        self.client_id = client_id
        #: The name of the SDK's language.
        self.language = language
        self.version = version
        #: Seconds of the monotonic clock.
        self.last_update = last_update
        #: None until the channel has told its subscriptions; producers never do.
        self.signature: Signature | None = None

    def copy(self) -> "ClientChannel":
        """A channel of the same client for another group."""
        return ClientChannel(self.connection, self.client_id, self.language, self.version, self.last_update)

    def take(self, other: "ClientChannel") -> None:
        """The client has been heard again, and says this about itself."""
        self.client_id = other.client_id
        self.language = other.language
        self.version = other.version
        self.last_update = other.last_update

    def __str__(self) -> str:
        return f"{self.client_id}[{self.connection}]"
