"""How far a group is: on the brokers for a group that shares the messages, in a file for one that broadcasts.

Offsets are kept in memory and go out every five seconds, at a drop and at the close. RocketMQ's OffsetStore:
RemoteBrokerOffsetStore and LocalFileOffsetStore.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cometmq.client.errors import BrokerError, NoBroker, OffsetNotFound
from cometmq.client.first_offsets import FirstOffsets
from cometmq.client.queues import MessageQueue
from cometmq.client.requests import ask
from cometmq.files import write_atomically
from cometmq.protocol.bodies import ResetOffsetBody
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.errors import ProtocolError
from cometmq.protocol.requests.offsets import OffsetAnswer, QueryConsumerOffset, UpdateConsumerOffset
from cometmq.remoting.errors import TransportError

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)

#: Seconds for a question about an offset.
TIMEOUT = 5.0


class OffsetStore(Protocol):
    """Where offsets live. `known` is memory; `read` asks where they are kept."""

    def known(self, queue: MessageQueue) -> int | None: ...

    async def read(self, queue: MessageQueue) -> int | None:
        """The stored offset; None when there is none. Errors of the way are raised."""

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None: ...

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Send or write what is known of these queues. What cannot be done now is done the next time."""

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """As `persist`, but returns when they are kept, and raises what kept them from it."""

    def forget(self, queue: MessageQueue) -> None: ...


class _Memory:
    """The part that both stores share."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}

    def known(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int, *, increase_only: bool = False) -> None:
        if increase_only and self._offsets.get(queue, -1) >= offset:
            return
        self._offsets[queue] = offset

    def forget(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)


class BrokerOffsets(_Memory):
    """Offsets on the brokers."""

    def __init__(self, client: "Client", group: str) -> None:
        super().__init__()
        self._client = client
        self._group = group
        self._first = FirstOffsets()

    async def read(self, queue: MessageQueue) -> int | None:
        address, code = self._address(queue), RequestCode.QUERY_CONSUMER_OFFSET
        header = QueryConsumerOffset(self._group, queue.topic, queue.queue_id)
        try:
            answer = await ask(self._client.remoting, address, code, header, timeout=TIMEOUT)
        except OffsetNotFound:
            return None
        offset: int = answer.header(OffsetAnswer).offset
        return offset if offset >= 0 else None

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """As far as brokers take them; nobody waits for answers but those to a group's first offsets."""
        alone, rest = self._first.split(self._known_of(queues))
        await asyncio.gather(*(self._persist(queue, self._ask) for queue in alone))
        for queue in rest:
            await self._persist(queue, self._tell)

    async def _persist(self, queue: MessageQueue, send: Callable[[MessageQueue], Awaitable[None]]) -> None:
        try:
            await send(queue)
        except (NoBroker, TransportError, BrokerError) as error:
            log.warning("the offset %s of %s was not committed: %s", self._offsets.get(queue), queue, error)

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        # All of them are tried, whatever becomes of one.
        results: list[BaseException | None] = []
        for some in self._first.split(self._known_of(queues)):
            results += await asyncio.gather(*map(self._ask, some), return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    async def _ask(self, queue: MessageQueue) -> None:
        """Send the offset of a queue; returns when the broker has it."""
        if header := self._update(queue):
            address = self._address(queue)
            await ask(self._client.remoting, address, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout=TIMEOUT)
            self._first.answered(queue)

    async def _tell(self, queue: MessageQueue) -> None:
        """Send the offset of a queue; returns when it is on its way."""
        if header := self._update(queue):
            address, code = self._address(queue), RequestCode.UPDATE_CONSUMER_OFFSET
            await self._client.remoting.send_oneway(address, code, header, timeout=TIMEOUT)

    def _update(self, queue: MessageQueue) -> UpdateConsumerOffset | None:
        """The request for what is known of a queue; None when it is not ours any more."""
        offset = self._offsets.get(queue)
        return None if offset is None else UpdateConsumerOffset(self._group, queue.topic, queue.queue_id, offset)

    def _address(self, queue: MessageQueue) -> str:
        return self._client.routes.brokers.for_pull(queue.broker_name)[0]

    def _known_of(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return [queue for queue in queues if queue in self._offsets]


def local_offsets_file(folder: str | os.PathLike[str] | None, client_name: str, group: str) -> Path:
    """Where the offsets of a broadcasting group live: `<folder>/<ip>@<instance>/<group>/offsets.json`."""
    root = folder or os.environ.get("ROCKETMQ_CLIENT_LOCALOFFSETSTOREDIR") or Path.home() / ".rocketmq_offsets"
    return Path(root) / client_name / group / "offsets.json"


class FileOffsets(_Memory):
    """Offsets in a file, in the form that Java writes: it can be moved to and fro."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    async def load(self) -> None:
        """Read the file, or its `.bak` when it is missing or damaged."""
        for path in (self._path, self._path.with_name(self._path.name + ".bak")):
            try:
                table = ResetOffsetBody.decode(await asyncio.to_thread(path.read_bytes)).offset_table
            except FileNotFoundError:
                continue
            except ProtocolError as error:
                log.error("%s cannot be read: %s", path, error)
                continue
            self._offsets = {MessageQueue.from_wire(queue): offset for queue, offset in table.items()}
            return

    async def read(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        try:
            await self.commit(queues)
        except OSError as error:
            log.error("the offsets were not written to %s: %s", self._path, error)

    async def commit(self, queues: Iterable[MessageQueue]) -> None:
        """Write the whole table: queues that are somebody else's today keep their offsets."""
        if self._offsets:
            body = ResetOffsetBody(offset_table={queue.to_wire(): offset for queue, offset in self._offsets.items()})
            await asyncio.to_thread(write_atomically, self._path, body.encode())

    def forget(self, queue: MessageQueue) -> None:
        """A file keeps what it has: the queue goes on there when it comes back."""
