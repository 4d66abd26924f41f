"""The asyncio shell around the protocol: servers, client connections, TLS. The only place with sockets.

Start reading at `server` and `client`; both are made of connections (`connection`), which serve requests through the
one handler table (`dispatch`). Nothing here knows what a request means. The names are loaded when they are used: a
client needs no server.
"""

from typing import TYPE_CHECKING

from cometmq import lazy

if TYPE_CHECKING:
    from cometmq.remoting.address import format_address, parse_address, parse_addresses
    from cometmq.remoting.client import ClientOptions, ExtHook, RemotingClient
    from cometmq.remoting.connection import Connection
    from cometmq.remoting.dispatch import (
        LATER,
        NO_ANSWER,
        Before,
        Body,
        Entry,
        Handler,
        HandlerTable,
        Permission,
        Request,
        Response,
    )
    from cometmq.remoting.limits import Limits
    from cometmq.remoting.pending import Answer
    from cometmq.remoting.server import Server, ServerOptions
    from cometmq.remoting.tls import ClientAuth, ClientTlsOptions, TlsMode, TlsOptions

#: Name -> the module that it lives in.
_HOMES = lazy.homes(
    __name__,
    address="format_address parse_address parse_addresses",
    client="ClientOptions ExtHook RemotingClient",
    connection="Connection",
    dispatch="LATER NO_ANSWER Before Body Entry Handler HandlerTable Permission Request Response",
    limits="Limits",
    pending="Answer",
    server="Server ServerOptions",
    tls="ClientAuth ClientTlsOptions TlsMode TlsOptions",
)

__all__ = [
    "LATER",
    "NO_ANSWER",
    "Answer",
    "Before",
    "Body",
    "ClientAuth",
    "ClientOptions",
    "ClientTlsOptions",
    "Connection",
    "Entry",
    "ExtHook",
    "Handler",
    "HandlerTable",
    "Limits",
    "Permission",
    "RemotingClient",
    "Request",
    "Response",
    "Server",
    "ServerOptions",
    "TlsMode",
    "TlsOptions",
    "format_address",
    "parse_address",
    "parse_addresses",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy.exports(__name__, _HOMES)
