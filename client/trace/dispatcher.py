"""The dispatcher: gathers trace records and sends them, apart from the messages that they tell about.

It never holds anybody up: when its queue is full, records are dropped and counted, and what cannot be sent is logged.
RocketMQ's AsyncTraceDispatcher.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

from cometmq.client.errors import ClientError
from cometmq.client.message import Message
from cometmq.client.scheduler import Scheduler
from cometmq.client.trace.records import TraceRecord
from cometmq.protocol import names, namespaces
from cometmq.protocol.errors import CometMQError

if TYPE_CHECKING:
    from cometmq.client.client import Client
    from cometmq.client.producer import Producer

log = logging.getLogger(__name__)

#: Records that may wait.
QUEUE_SIZE: Final = 2048
#: Waiting records that are sent at once (traceMsgBatchNum), and seconds after which fewer are.
BATCH: Final = 10
INTERVAL: Final = 5.0
#: Characters of one trace message.
MAX_SIZE: Final = 128_000
#: Seconds for a trace message, and for the rest at the close.
SEND_TIMEOUT: Final = 5.0

_numbers = itertools.count(1)


class TraceDispatcher:
    """The traces of one producer or consumer. Mutable state: the records that wait, and how many were dropped."""

    def __init__(self, client: "Client", group: str, side: str, topic: str | None = None) -> None:
        """`side` is PRODUCE or CONSUME; `topic` another one than RocketMQ's."""
        self._client = client
        self.topic = topic or names.TRACE_TOPIC
        plain = namespaces.unwrap(client.namespace, group)
        self._group = f"_INNER_TRACE_PRODUCER-{plain}-{side}-{next(_numbers)}"
        self._waiting: deque[TraceRecord] = deque()
        self._scheduler = Scheduler()
        self._sending = asyncio.Lock()
        self._producer: Producer | None = None
        #: Records that found the queue full.
        self.dropped = 0

    async def start(self) -> None:
        self._producer = self._client.producer(self._group[:120], send_timeout=SEND_TIMEOUT, max_message_size=MAX_SIZE)
        await self._producer.start()
        self._scheduler.every(INTERVAL, self.flush, "sending of traces")

    def add(self, records: Iterable[TraceRecord]) -> None:
        """Take in records. Never waits."""
        for record in records:
            if len(self._waiting) >= QUEUE_SIZE:
                if not self.dropped:
                    log.warning("traces come faster than they can be sent: some are dropped")
                self.dropped += 1
                continue
            self._waiting.append(record)
        if len(self._waiting) >= BATCH and not self._sending.locked():
            self._scheduler.spawn(self.flush(), "sending of traces")

    async def flush(self) -> None:
        """Send what waits."""
        async with self._sending:
            while self._waiting:
                records, self._waiting = self._waiting, deque()
                for text, keys in grouped(records):
                    await self._send(text, keys)

    async def _send(self, text: str, keys: list[str]) -> None:
        assert self._producer is not None
        try:
            await self._producer.send(self.topic, Message(text.encode(), keys=keys))
        except (CometMQError, TimeoutError) as error:
            log.warning("a trace could not be sent to %s: %s", self.topic, error)

    async def close(self) -> None:
        """Send the rest, and end."""
        async with AsyncExitStack() as rest:
            if self._producer is not None:
                rest.push_async_callback(self._producer.close)
            rest.push_async_callback(self._scheduler.close)
            try:
                async with asyncio.timeout(SEND_TIMEOUT):
                    await self.flush()
            except (TimeoutError, ClientError):
                log.warning("%d trace records were not sent before the close", len(self._waiting))


def grouped(records: Iterable[TraceRecord]) -> Iterable[tuple[str, list[str]]]:
    """The trace messages for these records: text and keys; each about messages of one topic, none too long."""
    by_topic: dict[str, list[TraceRecord]] = {}
    for record in records:
        by_topic.setdefault(record.topic, []).append(record)
    for group in by_topic.values():
        texts: list[str] = []
        keys: dict[str, None] = {}
        size = 0
        for record in group:
            if texts and size + len(record.text) >= MAX_SIZE // 2:
                yield "".join(texts), list(keys)
                texts, keys, size = [], {}, 0
            texts.append(record.text)
            keys.update(dict.fromkeys(record.keys))
            # The keys count too: they are a property, which has a limit of its own.
            size += len(record.text) + 4 * sum(map(len, record.keys))
        yield "".join(texts), list(keys)
