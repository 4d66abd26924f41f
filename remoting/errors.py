"""What can go wrong between two processes: the branch of the error tree that belongs to sockets.

What can be wrong with bytes is in `cometmq.protocol.errors`; what a server answered is no error here. The classes
mirror RocketMQ's RemotingConnectException, RemotingTimeoutException, RemotingSendRequestException and
RemotingTooMuchRequestException.
"""

from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.errors import CometMQError


class TransportError(CometMQError):
    """Root of the errors that happen on the way to a peer."""

    retriable = True


class BadAddress(TransportError, ValueError):
    """Raised when a text is not an address of the form host:port."""

    retriable = False
    remedy = "write the address as host:port, for IPv6 as [::1]:port"


class ConnectFailed(TransportError):
    """Raised when no connection to an address could be opened."""

    remedy = "check that the server runs, that the address can be reached from here and that both sides agree on TLS"


class Timeout(TransportError, TimeoutError):
    """Raised when an answer did not come in time; the server may still have done what was asked."""

    remedy = "check the load of the server and the network, or allow more time"


class ConnectionLost(TransportError):
    """Raised when a connection ended before the answer came; the server may still have done what was asked."""

    remedy = "try again: the next request opens a new connection"


class GoneAway(TransportError):
    """Raised when a server that shuts down refused a request again after a reconnect."""

    code = int(ResponseCode.GO_AWAY)
    remedy = "try another server, or this one when it is back"


class TooManyRequests(TransportError):
    """Raised when the limit of requests in flight was not left in time."""

    remedy = "send slower, or raise the limit of requests in flight"


class ClientClosed(TransportError):
    """Raised when a client is used after its close."""

    retriable = False
    remedy = "open a new client"


class ListenFailed(TransportError):
    """Raised when a server cannot listen on its address."""

    retriable = False
    remedy = "choose another port, or stop the process that has it"


class TlsSetupFailed(TransportError):
    """Raised when a certificate, a key or a trust file cannot be used."""

    retriable = False
    remedy = "check the paths, the password of the key, and that certificate and key belong together"


def seconds(value: float) -> str:
    """A time for a message: rounded, because a budget that was used up in part is an odd number."""
    return f"{round(value, 2 if value >= 1 else 3):g} s"
