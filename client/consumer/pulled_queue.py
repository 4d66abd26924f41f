"""A queue of a pull consumer: pulled in the background within limits, and given out batch by batch."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from cometmq.client.consumer.pulling import PullLoop, PullRequest, Room
from cometmq.client.consumer.subscriptions import TagCheck
from cometmq.client.errors import ClientError
from cometmq.client.message import Message, ReceivedMessage, SendReceipt
from cometmq.client.producer.request_reply import send_reply
from cometmq.client.queues import MessageQueue
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.record import Record

if TYPE_CHECKING:
    from cometmq.client.consumer.pull import PullConsumer

#: Seconds that a broker holds a pull of ours.
HOLD = 20.0


class PulledQueue:
    """A queue of a pull consumer. Mutable state: what waits to be given out, and how far that has come."""

    def __init__(self, consumer: "PullConsumer", queue: MessageQueue, subscription: SubscriptionData) -> None:
        self._consumer = consumer
        self.queue = queue
        self.subscription = subscription
        self.batches: deque[list[ReceivedMessage]] = deque()
        self.cached = 0
        self.cached_bytes = 0
        #: The offset after the last message that was given out; None before the first.
        self.consumed: int | None = None
        #: The same when the application asked for more the last time: until there it has seen everything.
        self.done: int | None = None
        self.is_paused = False
        self.is_dropped = False
        self.locked_at: float | None = None
        self.room = Room(self._has_room)
        self._task: asyncio.Task[None] | None = None
        self._loop: PullLoop | None = None

    def start(self, offset: int) -> None:
        self._loop = PullLoop(
            self._consumer.pulls,
            self.queue,
            offset,
            request=self._request,
            found=self._found,
            nothing=self._nothing,
            moved=self._moved,
            room=self.room,
            check=TagCheck(self.subscription),
        )
        self._task = self._consumer.scheduler.spawn(self._loop.run(), f"pull of {self.queue}")

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def leave(self) -> None:
        """It is about to be dropped. The next owner shall not begin before what the application is done with."""
        self.stop()
        if self._consumer.options.auto_commit and self.done is not None:
            self._consumer.offsets_store.update(self.queue, self.done)

    def drop(self) -> None:
        self.is_dropped = True
        self.stop()
        self.clear()

    def go_on_at(self, offset: int) -> None:
        """What was pulled is forgotten, and this offset is the next."""
        self.stop()
        self.clear()
        self.consumed = self.done = offset
        self.start(offset)

    def want(self, subscription: SubscriptionData) -> None:
        """From the next pull on, other messages may be wanted; one under way that asks for others is given up."""
        before, self.subscription = self.subscription, subscription
        same = (before.sub_string, before.expression_type) == (subscription.sub_string, subscription.expression_type)
        if not same and self._loop is not None and self._task is not None:
            self.stop()
            self.start(self._loop.offset)

    def clear(self) -> None:
        self.batches.clear()
        self.cached = self.cached_bytes = 0
        self._consumer.look_for_room()

    def enter_if_idle(self) -> None:
        """Nothing of it is ever being processed here: that is the application's business."""

    async def until_idle(self, seconds: float) -> bool:
        return True

    def take(self) -> list[ReceivedMessage]:
        """The next batch; it counts as consumed."""
        batch = self.batches.popleft()
        self.cached -= len(batch)
        self.cached_bytes -= sum(len(message.body) for message in batch)
        self.consumed = batch[-1].queue_offset + 1
        self._consumer.look_for_room()
        return batch

    def _request(self, offset: int) -> PullRequest:
        options = self._consumer.options
        return PullRequest(
            self.queue,
            offset,
            self.subscription,
            options.batch_size,
            options.batch_bytes,
            hold=HOLD,
            with_subscription=True,
            lite=True,
        )

    def _has_room(self) -> bool:
        options = self._consumer.options
        return (
            not self.is_paused
            and self.cached <= options.max_cached
            and self.cached_bytes <= options.max_cached_bytes
            and self._consumer.cached <= options.max_cached_of_all
        )

    def _found(self, records: list[Record]) -> None:
        topic = self._consumer.shown_topic(self.queue.topic)
        messages = [ReceivedMessage(record, self.queue, topic, self) for record in records]
        self.batches.append(messages)
        self.cached += len(messages)
        self.cached_bytes += sum(len(message.body) for message in messages)
        self._consumer.has_messages(self)

    def _nothing(self, offset: int) -> None:
        if not self.batches:
            self.consumed = offset

    def _moved(self, offset: int) -> None:
        """The offset is not there: it goes on at another one, and a commit must not say that it was."""
        self._nothing(offset)
        self.start(offset)

    # A message of a pull consumer has nothing to settle: how far the queue is, is told by `commit`.

    def settle(self, message: ReceivedMessage) -> None: ...

    def abandon(self, message: ReceivedMessage) -> None: ...

    async def ack(self, message: ReceivedMessage) -> None: ...

    async def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        raise ClientError("a pull consumer gives nothing back: seek to the message's offset, or send it again")

    async def reply(self, message: ReceivedMessage, reply: Message) -> SendReceipt:
        return await send_reply(self._consumer.client, message, reply)
