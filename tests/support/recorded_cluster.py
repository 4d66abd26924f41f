"""A nameserver and a broker that answer what the real ones answered while mqadmin was recorded (capture `admin`).

with RecordedCluster("topicStatus") as cluster:
    ...  # run the command with -n cluster.nameserver

What a command asks beyond what Java's asked is answered from the whole capture. Addresses in the answers are those of
the two listeners here; `recorded` puts the recorded ones back into what was printed.
"""

import contextlib
import json
import socket
import struct
import threading
from typing import Any, Self

from support.golden import Exchange, exchanges
from support.raw_peer import pack

NAMESERVER, BROKER = "127.0.0.1:9676", "127.0.0.1:10611"


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data


def _packed(address: str) -> str:
    """An address as message ids begin with it."""
    host, _, port = address.rpartition(":")
    return (socket.inet_aton(host) + struct.pack(">I", int(port))).hex().upper()


class RecordedCluster:
    """Answers the requests of one recorded command."""

    def __init__(self, command: str) -> None:
        answered = [
            each
            for each in exchanges("admin")
            if each.response is not None and each.response.whole and each.request.link.startswith("admin-")
        ]
        self._all = answered
        self._own = [each for each in answered if each.request.cmd == command]
        self._used: set[int] = set()
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        #: Codes that were asked for and that no recording answers.
        self.unanswered: list[int] = []

    def __enter__(self) -> Self:
        self.nameserver = self._listen()
        # As many digits as the recorded port has, so that columns are as wide.
        self.broker = self._listen(len(BROKER))
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self._sockets:
            # A thread that waits in accept or recv is woken by this, and not by a close.
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(10)

    def arguments(self, text: str) -> str:
        """An argument of the recorded command for this cluster."""
        told = text.replace(NAMESERVER, self.nameserver).replace(BROKER, self.broker)
        return told.replace(_packed(BROKER), _packed(self.broker))

    def recorded(self, text: str) -> str:
        """What was printed, with the recorded addresses."""
        told = text.replace(self.broker, BROKER).replace(self.nameserver, NAMESERVER)
        return told.replace(_packed(self.broker), _packed(BROKER))

    def _listen(self, length: int = 0) -> str:
        while True:
            listener = socket.create_server(("127.0.0.1", 0))
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            if not length or len(address) == length:
                break
            listener.close()
        self._sockets.append(listener)
        self._start(self._accept, listener)
        return address

    def _start(self, target: Any, argument: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(argument,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self._sockets.append(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    (size,) = struct.unpack(">I", _receive(connection, 4))
                    frame = _receive(connection, size)
                    length = int.from_bytes(frame[:4], "big") & 0xFFFFFF
                    request = json.loads(frame[4 : 4 + length])
                    if not request["flag"] & 2:
                        connection.sendall(self._answer(request))
                except OSError:
                    return

    def _answer(self, request: dict[str, Any]) -> bytes:
        asked = {key: self.recorded(value) for key, value in (request.get("extFields") or {}).items()}
        found = self._find(request["code"], asked)
        if found is None:
            self.unanswered.append(request["code"])
            header: dict[str, Any] = {"code": 3, "flag": 1, "remark": "not recorded"}
            body = b""
        else:
            assert found.response is not None
            header = {key: value for key, value in (found.response.header or {}).items() if key != "binary"}
            body = found.response.body.replace(BROKER.encode(), self.broker.encode())
        fields = {**header, "opaque": request["opaque"], "serializeTypeCurrentRPC": "JSON"}
        return pack(json.dumps(fields).encode(), body)

    def _find(self, code: int, ext: dict[str, str]) -> Exchange | None:
        """The recorded exchange that is most like a request: of this command first, not used first."""
        for pool in (self._own, self._all):
            fitting = [each for each in pool if each.request.code == code and _fits(each, ext)]
            if fitting:
                found = min(fitting, key=lambda each: id(each) in self._used)
                self._used.add(id(found))
                return found
        return None


#: Keys by which two requests of one code differ in what they ask for.
_TELLING = ("topic", "consumerGroup", "group", "queueId", "queueOffset", "statsKey", "statsName", "key", "offset")


def _fits(exchange: Exchange, ext: dict[str, str]) -> bool:
    recorded = exchange.request.ext
    return all(recorded.get(key) == ext.get(key) for key in _TELLING if key in recorded and key in ext)
