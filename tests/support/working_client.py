"""A producer and a consumer of ours at work in a thread, while a test runs commands that block.

with WorkingClient(nameserver, topic="T", consumer="G", producer="P", messages=12) as client:
    ...  # client.receipts, client.client_id; all messages are consumed and their offsets committed
"""

import asyncio
import threading
from typing import Self

from cometmq.client import MessageQueue, SendReceipt, connect
from cometmq.client.message import ReceivedMessage

SECONDS = 60.0


class WorkingClient:
    """Sends messages with tag `TagA` and keys `key<n>` to the four queues of a topic, and consumes them."""

    def __init__(self, nameserver: str, *, topic: str, consumer: str, producer: str, messages: int = 12) -> None:
        self._nameserver = nameserver
        self._topic, self._consumer, self._producer, self._count = topic, consumer, producer, messages
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self.receipts: list[SendReceipt] = []
        self.consumed: list[str] = []
        self.client_id = ""

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(SECONDS), "the client did not get through its messages"
        if self._error is not None:
            raise self._error
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self._error = error
            self._ready.set()

    async def _work(self) -> None:
        self._loop, self._done = asyncio.get_running_loop(), asyncio.Event()
        all_consumed = asyncio.Event()

        async def consume(message: ReceivedMessage) -> None:
            self.consumed.append(message.message_id)
            if len(set(self.consumed)) >= self._count:
                all_consumed.set()

        async with connect(self._nameserver) as client:
            self.client_id = client.client_id
            options = {"start_from": "first", "persist_interval": 0.1}
            async with (
                client.producer(self._producer) as producer,
                client.push_consumer(self._consumer, {self._topic: "TagA"}, consume, **options),
            ):
                for number in range(self._count):
                    queue = MessageQueue(self._topic, "broker-a", number % 4)
                    self.receipts.append(
                        await producer.send(
                            self._topic,
                            b"admin %d" % number,
                            tag="TagA",
                            keys=f"key{number}",
                            properties={"n": str(number)},
                            queue=queue,
                        )
                    )
                await client.heartbeats.beat()
                await all_consumed.wait()
                await self._committed(client.admin())
                self._ready.set()
                await self._done.wait()

    async def _committed(self, admin) -> None:  # type: ignore[no-untyped-def]
        while True:
            stats = await admin.consume_stats(self._consumer, self._topic)
            if all(each.broker_offset == each.consumer_offset for each in stats.offset_table.values()):
                return
            await asyncio.sleep(0.05)
