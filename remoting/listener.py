"""The accept loop, and the wait for the first byte of each connection.

The first byte tells what a peer speaks: 0x16 is TLS, `P` and 0x0D are the PROXY protocol, 0x00 and 0x01 begin a plain
frame (no frame is longer than 16 MiB), and nothing else is ours. It is only peeked at, so whoever serves the
connection finds every byte. Until it comes, a connection costs a socket and a `Greeting`: no task, no transport, no
buffer. It mirrors the HandshakeHandler and TlsModeHandler of RocketMQ's NettyRemotingServer.

asyncio's own server is not used because it makes a transport at once, and a transport cannot give bytes back.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable

from cometmq.remoting import preamble
from cometmq.remoting.address import format_address
from cometmq.remoting.errors import ListenFailed
from cometmq.remoting.preamble import PreambleError, Proxied

logger = logging.getLogger(__name__)

#: Connections accepted in one turn of the loop: others get their turn too.
ACCEPTS_PER_TURN = 128
#: How long no connection is accepted when the process has no file descriptor or memory left for one (seconds).
ACCEPT_PAUSE = 0.5
#: A full server says so, at most, once in this time (seconds).
LOG_INTERVAL = 1.0
#: Bytes looked at while a preamble comes in.
PEEK_SIZE = 4096

_TLS_HELLO = 0x16

#: Gets each connection whose first byte is there: its socket, whether it speaks TLS, and what a balancer said.
Ready = Callable[[socket.socket, bool, Proxied | None], None]


async def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets for a host (a name may have several addresses) and a port; 0 means any, the same for all.

    They do not listen yet: whoever connects is refused.
    """
    sockets: list[socket.socket] = []
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, proto, _, address in dict.fromkeys(infos):
            sock = socket.socket(family, kind, proto)
            sockets.append(sock)
            sock.setblocking(False)
            if sys.platform != "win32":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # `::` alone serves both families; beside an IPv4 socket of the same host it must not.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != "::")
            sock.bind((address[0], port or sockets[0].getsockname()[1], *address[2:]))
    except (OSError, UnicodeError) as error:  # the latter: a name that no resolver would take
        raise _given_up(sockets, host, port, error) from error
    return sockets


def listen(sockets: list[socket.socket], host: str, backlog: int) -> None:
    """From now on the sockets take connections. Closes them when that cannot be."""
    try:
        for sock in sockets:
            sock.listen(backlog)
    except OSError as error:
        raise _given_up(sockets, host, sockets[0].getsockname()[1], error) from error


def _given_up(sockets: list[socket.socket], host: str, port: int, error: Exception) -> ListenFailed:
    for sock in sockets:
        sock.close()
    reason = getattr(error, "strerror", None) or str(error)
    return ListenFailed(f"cannot listen on {format_address(host, port)}: {reason}")


class Greeting:
    """An accepted connection whose first byte has not been seen."""

    __slots__ = ("_listener", "_preamble", "_proxied", "_waits", "deadline", "socket")

    def __init__(self, listener: "Listener", sock: socket.socket, deadline: float) -> None:
        self._listener = listener
        self.socket = sock
        self.deadline = deadline
        self._preamble = b""
        self._proxied: Proxied | None = None
        self._waits = False

    def look(self) -> None:
        """Looks at what has come. Called at once, and whenever there is something to read."""
        try:
            while True:
                if self._preamble:
                    self._read_preamble()
                first = self.socket.recv(1, socket.MSG_PEEK)
                if not first:
                    self.drop("closed by the peer before its first byte")
                    return
                if not (first in b"P\r" and self._listener.proxy_protocol and self._proxied is None):
                    self._listener.greeted(self, first[0], self._proxied)
                    return
                # A preamble begins. What was read of it must not wake us again, so it is consumed as it comes.
                self._preamble = self.socket.recv(1)
                self.deadline = min(self.deadline, self._listener.clock() + self._listener.handshake_timeout)
        except (BlockingIOError, InterruptedError):
            pass
        except PreambleError as error:
            self.drop(str(error))
            return
        except OSError as error:
            self.drop(error.strerror or str(error))
            return
        except Exception:
            # Whatever it is: the reader must not be called for the same bytes again and again.
            logger.exception("the first bytes of %s could not be looked at", peer_of(self.socket))
            self.drop("an error of our own")
            return
        if not self._waits:
            self._waits = True
            self._listener.loop.add_reader(self.socket.fileno(), self.look)

    def _read_preamble(self) -> None:
        """Consumes a preamble, or what is there of it, and never a byte behind it. BlockingIOError asks for more."""
        while not preamble.is_complete(self._preamble):
            peeked = self.socket.recv(PEEK_SIZE, socket.MSG_PEEK)
            if not peeked:
                raise PreambleError("closed by the peer in the middle of a PROXY preamble")
            self._preamble += self.socket.recv(preamble.need(self._preamble, peeked))
        self._proxied = preamble.parse(self._preamble)
        self._preamble = b""

    def drop(self, reason: str) -> None:
        logger.debug("connection of %s closed: %s", peer_of(self.socket), reason)
        self.stop_waiting()
        self._listener.greetings.pop(self, None)
        self.socket.close()

    def stop_waiting(self) -> None:
        if self._waits:
            self._waits = False
            self._listener.loop.remove_reader(self.socket.fileno())


class Listener:
    """Accepts connections. The mutable state: the listening sockets and the greetings, oldest first."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        *,
        ready: Ready,
        has_room: Callable[[], bool],
        first_byte_timeout: float,
        handshake_timeout: float,
        proxy_protocol: bool,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.handshake_timeout = handshake_timeout
        self.proxy_protocol = proxy_protocol
        self.sockets: list[socket.socket] = []
        self.greetings: dict[Greeting, None] = {}
        self._ready = ready
        self._has_room = has_room
        self._first_byte_timeout = first_byte_timeout
        self._resume: dict[socket.socket, asyncio.TimerHandle] = {}
        self._next_log = float("-inf")
        self._unlogged = 0

    def start(self, sockets: list[socket.socket]) -> None:
        self.sockets = sockets
        for sock in sockets:
            self.loop.add_reader(sock.fileno(), self._accept, sock)

    def stop(self) -> None:
        """Accepts no more, and closes those that have not said anything yet."""
        for timer in self._resume.values():
            timer.cancel()
        self._resume.clear()
        for sock in self.sockets:
            self.loop.remove_reader(sock.fileno())
            sock.close()
        self.sockets = []
        for greeting in list(self.greetings):
            greeting.drop("the server shuts down")

    def sweep(self, now: float) -> None:
        """Closes the connections whose first byte or preamble did not come in time."""
        for greeting in [greeting for greeting in self.greetings if greeting.deadline <= now]:
            greeting.drop("its first bytes did not come in time")

    def greeted(self, greeting: Greeting, first: int, proxied: Proxied | None) -> None:
        """The first byte of a frame or of a TLS handshake is there."""
        if first not in (0x00, 0x01, _TLS_HELLO):
            greeting.drop(f"first byte {first:#04x} begins no frame")
            return
        greeting.stop_waiting()
        self.greetings.pop(greeting, None)
        self._ready(greeting.socket, first == _TLS_HELLO, proxied)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # usually EMFILE or ENFILE
                self._pause(listening, error)
                return
            if not self._has_room():
                self._log_full(sock)
                sock.close()
                continue
            sock.setblocking(False)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:  # the peer has gone already; the first look finds out
                logger.debug("no TCP_NODELAY for %s", peer_of(sock))
            greeting = Greeting(self, sock, self.clock() + self._first_byte_timeout)
            self.greetings[greeting] = None
            greeting.look()

    def _pause(self, listening: socket.socket, error: OSError) -> None:
        """The pending connection stays in the backlog; asking again at once would only burn the processor."""
        logger.error("no connection can be accepted for %g s: %s", ACCEPT_PAUSE, error.strerror)
        self.loop.remove_reader(listening.fileno())
        self._resume[listening] = self.loop.call_later(ACCEPT_PAUSE, self._accept_again, listening)

    def _accept_again(self, listening: socket.socket) -> None:
        self._resume.pop(listening, None)
        self.loop.add_reader(listening.fileno(), self._accept, listening)
        self._accept(listening)

    def _log_full(self, sock: socket.socket) -> None:
        self._unlogged += 1
        now = self.clock()
        if now >= self._next_log:
            self._next_log = now + LOG_INTERVAL
            logger.warning(
                "connection limit reached: %d connections closed at once, the last one of %s",
                self._unlogged,
                peer_of(sock),
            )
            self._unlogged = 0


def peer_of(sock: socket.socket) -> str:
    """The peer of a socket for logs."""
    try:
        name = sock.getpeername()
    except OSError:
        return "a peer that has gone"
    return format_address(name[0], name[1]) if isinstance(name, tuple) else str(name)
