"""A server that says nothing: the kernel takes connections and what is sent, and nobody answers."""

import re
import select
import socket
from types import TracebackType
from typing import Final, Self

#: What an error says when a timeout was an option's: those of the defaults are whole seconds.
SOON: Final = re.compile(r" within 0\.\d+ s")
#: In the header of each request, which is JSON.
_REQUEST: Final = b'"opaque"'


class SilentServer:
    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.close()

    def requests(self) -> int:
        """How many requests came since this was asked last. It ends those connections."""
        found = 0
        while select.select([self._listening], [], [], 0)[0]:
            connection, _ = self._listening.accept()
            with connection:
                while select.select([connection], [], [], 0)[0] and (data := connection.recv(1 << 20)):
                    found += data.count(_REQUEST)
        return found
