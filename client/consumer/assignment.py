"""A queue that this member of the group has: its window, its pull loop, and how its messages are settled.

`Assignment` is the delivery of the messages that it handed out. A queue that was taken away settles nothing any more:
whoever has it now gets the messages again. RocketMQ's ProcessQueue with its PullRequest.
"""

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from cometmq.client.consumer.pulling import PullLoop, PullRequest, Room
from cometmq.client.consumer.subscriptions import TagCheck
from cometmq.client.consumer.window import Window
from cometmq.client.message import Message, ReceivedMessage, SendReceipt
from cometmq.client.producer.request_reply import send_reply
from cometmq.client.queues import MessageQueue
from cometmq.protocol import properties as props
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.record import Record

if TYPE_CHECKING:
    from cometmq.client.consumer.push import PushConsumer

log = logging.getLogger(__name__)

#: Seconds until a message that could not be given back is tried again here.
TRY_AGAIN = 5.0
#: Seconds that a lock counts without being renewed.
LOCK_LIFETIME = 30.0


class Assignment:
    """One queue. Mutable state: window, ready messages, lock, and whether it is still ours."""

    def __init__(
        self, consumer: "PushConsumer", queue: MessageQueue, subscription: SubscriptionData, level: int = 0
    ) -> None:
        self._consumer = consumer
        self.queue = queue
        self.subscription = subscription
        self.level = level
        self.is_ordered = consumer.ordered
        self.window = Window()
        self.ready: deque[ReceivedMessage] = deque()
        self.in_line = False
        #: It was taken away, or the consumer closes: nothing is committed any more.
        self.is_dropped = False
        #: It is about to be dropped: what runs may end, and nothing else of it begins.
        self.is_leaving = False
        #: Ordered: messages that were handed out and are not settled; and those of them that nobody works on any more.
        self.taken = 0
        self._abandoned: set[ReceivedMessage] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        #: When its lock on the broker was last renewed (monotonic); None: it is not locked.
        self.locked_at: float | None = None
        self.room = Room(self._has_room)
        self._task: asyncio.Task[None] | None = None
        self.loop: PullLoop | None = None

    # Pulling

    def start(self, offset: int) -> None:
        """Pull from an offset on."""
        consumer = self._consumer
        self.loop = PullLoop(
            consumer.pulls,
            self.queue,
            offset,
            request=self._request,
            found=self._found,
            nothing=self._nothing,
            moved=self._moved,
            room=self.room,
            check=TagCheck(self.subscription),
            interval=consumer.options.pull_interval,
        )
        self._task = consumer.scheduler.spawn(self.loop.run(), f"pull of {self.queue}")

    def leave(self) -> None:
        """It is about to be dropped: no more pulls, and nothing more is handed out."""
        self.is_leaving = True
        self.ready.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def drop(self) -> None:
        """It is not ours any more."""
        self.is_dropped = True
        self.leave()

    def _request(self, offset: int) -> PullRequest:
        consumer = self._consumer
        known = consumer.offsets_store.known(self.queue) if consumer.is_clustering else None
        options = consumer.options
        return PullRequest(
            self.queue,
            offset,
            self.subscription,
            options.pull_batch_size,
            options.pull_batch_bytes,
            commit=known if known else None,
        )

    def _has_room(self) -> bool:
        consumer, window = self._consumer, self.window
        count, size = consumer.limits_of(self.queue.topic)
        return (
            len(window) <= count
            and window.size <= size
            and (self.is_ordered or window.span <= consumer.options.max_span)
            and not consumer.is_suspended
        )

    def _found(self, records: list[Record]) -> None:
        queue, group_retry = self.queue, self._consumer.retry_topic
        messages = []
        for record in records:
            topic = queue.topic
            if topic == group_retry:
                raw = props.find(record.properties, b"RETRY_TOPIC")
                topic = topic if raw is None else raw.decode("utf-8", "replace")
            messages.append(ReceivedMessage(record, queue, self._consumer.shown_topic(topic), self))
        self.ready.extend(self.window.add(messages))
        if not self.taken or not self.is_ordered:
            self._consumer.line.enter(self)

    def _nothing(self, offset: int) -> None:
        if not len(self.window):
            self._commit(offset)

    def _moved(self, offset: int) -> None:
        """The offset is not there: everything of this queue begins anew at another one."""
        self._consumer.restart_queue(self, offset)

    def _commit(self, offset: int) -> None:
        if not self.is_dropped:
            self._consumer.offsets_store.update(self.queue, offset, increase_only=not self.is_ordered)

    # Settling

    async def reply(self, message: ReceivedMessage, reply: Message) -> SendReceipt:
        return await send_reply(self._consumer.client, message, reply)

    async def ack(self, message: ReceivedMessage) -> None:
        self.settle(message)
        self._consumer.consumed(message, is_success=True)

    def settle(self, message: ReceivedMessage) -> None:
        """A message is done."""
        offset = self.window.settle(message.queue_offset)
        self._consumer.handed_back(message)
        if offset is None:
            return
        self._commit(offset)
        self.room.look()
        if self.is_ordered:
            self._release(message)
            self.enter_if_idle()

    async def retry(self, message: ReceivedMessage, delay_level: int) -> None:
        """A message failed: it comes again, here (ordered) or by the retry topic."""
        self._consumer.consumed(message, is_success=False)
        if self.is_dropped or message.queue_offset not in self.window:
            self.settle(message)  # it comes again to whoever has the queue now: nothing is committed here
            return
        if self.is_ordered:
            await self._retry_in_order(message)
        elif not self._consumer.is_clustering:
            log.warning("%r failed and is dropped: a broadcasting group has no retries", message)
            self.settle(message)
        elif await self._consumer.send_back(message, delay_level):
            self.settle(message)
        else:
            self._consumer.handed_back(message)
            message.reconsume_times += 1
            self._consumer.later(TRY_AGAIN, lambda: self._again([message]))

    def abandon(self, message: ReceivedMessage) -> None:
        """Nobody works on it any more. Unsettled it holds the offset back, and an ordered queue waits for it."""
        self._consumer.abandoned(message)
        if self.is_ordered and message.queue_offset in self.window:
            self._abandoned.add(message)
            self._look_idle()

    async def _retry_in_order(self, message: ReceivedMessage) -> None:
        consumer = self._consumer
        most = consumer.options.max_reconsume_times
        if 0 <= most <= message.reconsume_times and await consumer.send_to_retry_topic(message, most):
            self.settle(message)
            return
        message.reconsume_times += 1
        self._consumer.handed_back(message)
        # It stays the first of its queue; the others behind it wait with it.
        self._release(message)
        if self.is_leaving:
            return
        self.ready.appendleft(message)
        self._consumer.later(consumer.options.suspend, self.enter_if_idle)

    def hold(self, count: int) -> None:
        """Ordered: so many messages are being processed now."""
        self.taken += count
        self._idle.clear()

    def _release(self, message: ReceivedMessage) -> None:
        self.taken -= 1
        self._abandoned.discard(message)
        self._look_idle()

    def _look_idle(self) -> None:
        if self.taken <= len(self._abandoned):
            self._idle.set()

    async def until_idle(self, seconds: float) -> bool:
        """Wait until nothing of it is being processed; whether that came in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def enter_if_idle(self) -> None:
        """Stand in line again, unless something of it is being processed."""
        if not self.taken and not self.is_leaving:
            self._consumer.line.enter(self)

    def _again(self, messages: list[ReceivedMessage]) -> None:
        # A call that took too long may have ended well since it was given up.
        messages = [message for message in messages if message.queue_offset in self.window]
        if not self.is_leaving:
            self.ready.extendleft(reversed(messages))
            self._consumer.line.enter(self)

    # Locks

    def has_lock(self, now: float) -> bool:
        return self.locked_at is not None and now - self.locked_at < LOCK_LIFETIME
