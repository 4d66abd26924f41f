"""A TCP relay between two parties of a test that can be frozen: a cut link, on which nothing arrives or hangs up.

One thread and one selector; the socket options of the parties are not touched. Frozen means: no byte, no end of stream
and no new connection passes in either direction; what was sent meanwhile waits in the kernel, as on a real link that
comes back.
"""

import contextlib
import selectors
import socket
import threading
from types import TracebackType
from typing import Self

CHUNK = 64 * 1024


class _Link:
    """One accepted connection and its twin towards the target. Bytes read from one side wait for the other one here."""

    __slots__ = ("pending", "sides")

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.sides = (client, server)
        self.pending = {client: bytearray(), server: bytearray()}  # bytes still to be written to that side

    def other(self, side: socket.socket) -> socket.socket:
        return self.sides[1] if side is self.sides[0] else self.sides[0]


class TcpProxy:
    """Listens on a free port of 127.0.0.1 and relays to `target` (`host:port`)."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = socket.socketpair()
        # Written by the callers, read by the thread; `_settled` tells a caller that the thread has seen the change.
        self._frozen = False
        self._closing = False
        self._settled = threading.Event()
        self._links: set[_Link] = set()
        self._thread = threading.Thread(target=self._run, name=f"tcp-proxy-{self.address}")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @property
    def frozen(self) -> bool:
        return self._frozen

    def freeze(self) -> None:
        """From the return of this call on nothing passes."""
        self._frozen = True
        self._wake()

    def thaw(self) -> None:
        """What waited passes now, ends of streams too."""
        self._frozen = False
        self._wake()

    def close(self) -> None:
        """Ends every link and the thread. Harmless when done twice."""
        if self._thread.is_alive():
            self._closing = True
            self._wake_out.send(b"x")
            self._thread.join()
            self._wake_out.close()

    def _wake(self) -> None:
        self._settled.clear()
        self._wake_out.send(b"x")
        if not self._settled.wait(10):
            raise RuntimeError("the thread of the proxy has died")

    # Everything below runs in the thread.

    def _run(self) -> None:
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        frozen = False
        try:
            while not self._closing:
                for key, mask in self._selector.select():
                    if key.fileobj is self._wake_in:
                        self._wake_in.recv(CHUNK)
                        if frozen != self._frozen:
                            frozen = self._frozen
                            self._watch_everything(not frozen)
                        self._settled.set()
                        break  # the other events of this round are of the time before
                    if key.fileobj is self._listener:
                        self._accept()
                    else:
                        self._relay(key, mask)
        finally:
            self._settled.set()
            for link in list(self._links):
                self._drop(link)
            self._selector.close()
            self._listener.close()
            self._wake_in.close()

    def _watch_everything(self, watched: bool) -> None:
        if watched:
            self._selector.register(self._listener, selectors.EVENT_READ)
            for link in self._links:
                for side in link.sides:
                    self._watch(link, side)
        else:
            self._selector.unregister(self._listener)
            for link in self._links:
                for side in link.sides:
                    self._unwatch(side)

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            return  # it has gone again
        try:
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()  # nobody at the target: the client sees its connection end
            return
        link = _Link(client, server)
        self._links.add(link)
        for side in link.sides:
            side.setblocking(False)
            self._watch(link, side)

    def _watch(self, link: _Link, side: socket.socket) -> None:
        """A side is read while nothing waits for the other one, and written while something waits for it."""
        events = 0 if link.pending[link.other(side)] else selectors.EVENT_READ
        if link.pending[side]:
            events |= selectors.EVENT_WRITE
        self._unwatch(side)
        if events:
            self._selector.register(side, events, link)

    def _unwatch(self, side: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(side)

    def _relay(self, key: selectors.SelectorKey, mask: int) -> None:
        link: _Link = key.data
        if link not in self._links:
            return  # its other side ended it in this very round
        side = key.fileobj
        assert isinstance(side, socket.socket)
        try:
            if mask & selectors.EVENT_READ:
                data = side.recv(CHUNK)
                if not data:
                    self._drop(link)
                    return
                link.pending[link.other(side)] += data
            for target in link.sides:
                if link.pending[target]:
                    with contextlib.suppress(BlockingIOError):
                        del link.pending[target][: target.send(link.pending[target])]
        except OSError:
            self._drop(link)
        else:
            for target in link.sides:
                self._watch(link, target)

    def _drop(self, link: _Link) -> None:
        """One side has gone: so does the other. Bytes that still wait go with it, as in a reset."""
        self._links.discard(link)
        for side in link.sides:
            self._unwatch(side)
            side.close()
