"""The push consumer: messages come by themselves, to a handler or to whoever iterates.

It puts the parts together: rebalance gives assignments, assignments pull and settle, the line hands messages out, and
workers or whoever iterates here take them. RocketMQ's DefaultMQPushConsumerImpl.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

import msgspec

from cometmq.client.consumer.agreement import FIRST as AGREEMENT_FIRST
from cometmq.client.consumer.agreement import INTERVAL as AGREEMENT_INTERVAL
from cometmq.client.consumer.agreement import Agreement
from cometmq.client.consumer.allocate import Strategy
from cometmq.client.consumer.assignment import Assignment
from cometmq.client.consumer.consume_hooks import ConsumeHooks
from cometmq.client.consumer.giving_back import GivingBack
from cometmq.client.consumer.handling import BatchHandler, Handler, Handling
from cometmq.client.consumer.line import Line, Source
from cometmq.client.consumer.member import GroupMember
from cometmq.client.consumer.options import PushOptions, StartFrom, options_of
from cometmq.client.consumer.pulling import Pulls
from cometmq.client.consumer.rebalance import LOCK_INTERVAL, UNLOCK_PATIENCE, Rebalance
from cometmq.client.consumer.running_info import consume_result, running_info
from cometmq.client.consumer.subscriptions import (
    Priorities,
    Subscription,
    check_subscriptions,
    retry_subscription,
    subscription_data,
)
from cometmq.client.consumer.unsettled import Unsettled
from cometmq.client.consumer.workers import Workers
from cometmq.client.errors import Closed
from cometmq.client.message import ReceivedMessage
from cometmq.client.queues import MessageQueue
from cometmq.client.scheduler import Scheduler
from cometmq.protocol import names, namespaces
from cometmq.protocol.bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
)
from cometmq.protocol.message_id import wall_millis
from cometmq.protocol.record import Record

if TYPE_CHECKING:
    from cometmq.client.client import Client
    from cometmq.client.trace import TraceDispatcher

log = logging.getLogger(__name__)

QueueListener = Callable[[str, Sequence[MessageQueue]], None]

#: Handlers that run at once, when there is a handler.
CONCURRENCY = 20
#: Levels at which messages that took too long are given back.
EXPIRED_LEVEL = 3


class PushConsumer(GroupMember):
    """A member of a consumer group. Made by `client.push_consumer(...)`; use it with `async with`.

    Mutable state: the assignments by queue, the line of ready messages, and what was handed out and is not settled.
    """

    def __init__(
        self,
        client: "Client",
        group: str,
        subscriptions: Mapping[str, Subscription],
        handler: Handler | None = None,
        *,
        batch_handler: BatchHandler | None = None,
        batch_size: int = 1,
        ordered: bool = False,
        concurrency: int | None = None,
        allocate: Strategy | None = None,
        offsets_folder: str | None = None,
        queue_listener: QueueListener | None = None,
        hooks: Iterable[object] = (),
        trace: bool | str = False,
        **options: Any,
    ) -> None:
        self.options = options_of(PushOptions, options, "push_consumer")
        super().__init__(client, group, self.options.model, allocate)
        self.ordered = ordered
        threads = CONCURRENCY if concurrency is None else concurrency
        self.handling = Handling(handler, batch_handler, batch_size=batch_size, threads=threads, name=self.group)
        self.concurrency = concurrency if concurrency is not None else CONCURRENCY if self.handling else 1
        self._offsets_folder = offsets_folder
        self._queue_listener = queue_listener
        self._given_hooks = list(hooks)
        self._trace = trace
        self._traces: TraceDispatcher | None = None
        wanted = check_subscriptions(subscriptions)
        self._levels = (
            {self._wire(topic): level for level, topic in enumerate(wanted)}
            if isinstance(subscriptions, Priorities)
            else {}
        )
        self.retry_topic = names.retry_topic(self.group)
        version = wall_millis()
        self.subscriptions = {
            self._wire(topic): subscription_data(self._wire(topic), each, version) for topic, each in wanted.items()
        }
        if self.is_clustering:
            self.subscriptions[self.retry_topic] = retry_subscription(self.group, version)
        self.assignments: dict[MessageQueue, Assignment] = {}
        self.line = Line(len(self._levels) or 1)
        self.is_suspended = False
        self.started_at = 0
        self._state = "new"
        self._unsettled = Unsettled(self.concurrency)
        #: By topic; forgotten when its queues here become more or fewer.
        self._limits: dict[str, tuple[int, int]] = {}
        self._workers: Workers | None = None
        self._rebalancing: asyncio.Task[Any] | None = None

    # Its life

    async def start(self) -> None:
        if self._state != "new":
            raise Closed(f"the consumer of group {self.group} is {self._state}: it starts once")
        self.started_at = wall_millis()
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self.scheduler = Scheduler()
        self.pulls = Pulls(self.client, self.group)
        self._giving_back = GivingBack(self.client, self.group, self.retry_topic)
        self.rebalance = Rebalance(self)
        self.agreement = Agreement(self.client, self.group, self.subscriptions)
        self.client.add_consumer(self)
        self._state = "open"
        try:
            await self._begin()
        except BaseException:
            await self.close()  # nobody else would: the block was never entered
            raise

    async def _begin(self) -> None:
        self.offsets_store = await self._open_offsets(self._offsets_folder)
        self._hooks = await self._open_hooks()
        await self.client.routes.refresh(topic for topic in self.subscriptions if topic != self.retry_topic)
        await self.client.heartbeats.beat()
        self._rebalancing = self.scheduler.spawn(self.rebalance.run(), f"rebalance of {self.group}")
        self.scheduler.every(self.options.persist_interval, self._persist, "commit of the offsets")
        self.scheduler.every(AGREEMENT_INTERVAL, self.agreement.look, "look at the group", first=AGREEMENT_FIRST)
        self.scheduler.every(self.options.consume_timeout, self._expire, "look for messages that take too long")
        if self.needs_locks:
            self.scheduler.every(LOCK_INTERVAL, self.rebalance.renew_locks, "renewal of the locks", first=1.0)
        if self.handling:
            self._workers = Workers(self.group, self.handling, self._hooks, self.line, self._take)
            self._workers.start(self.concurrency, self.scheduler)

    async def close(self) -> None:
        """Finish what runs, commit, unlock and leave. Messages that were not processed come to others.

        Who closes it a second time waits for the end of the first close; a handler does not, since that waits for it.
        """
        if self._state == "closing":
            if self._workers is None or asyncio.current_task() not in self._workers:
                await self._closed.wait()
            return
        if self._state != "open":
            self._state = "closed"
            return
        self._state = "closing"
        for assignment in self.assignments.values():
            assignment.leave()
        self.line.wake_all()
        self._unsettled.waiters.wake_all()
        # The last one comes first. All of it is done also when the close is cancelled.
        async with AsyncExitStack() as rest:
            rest.callback(self._end)
            rest.callback(self.handling.close)
            rest.push_async_callback(self.scheduler.close)
            rest.push_async_callback(self.client.remove_consumer, self)
            if self._traces is not None:
                rest.push_async_callback(self._traces.close)
            rest.push_async_callback(self._let_go)
            # No queue comes or goes any more: one that came after the unlock would stay locked.
            await self._finish_rebalance()
            if self._workers is not None:
                await self._workers.finish(self.options.close_timeout)

    async def _let_go(self) -> None:
        for message in self._unsettled:
            log.warning("%r was taken and never settled: it comes again", message)
        try:
            await self._persist()
        finally:
            held = {*self.assignments, *self.rebalance.locking}
            for assignment in self.assignments.values():
                assignment.drop()
            self.assignments.clear()
        if self.needs_locks:
            await self.rebalance.unlock(held)

    def _end(self) -> None:
        self._state = "closed"
        self._closed.set()

    async def _finish_rebalance(self) -> None:
        if self._rebalancing is not None:
            self._rebalancing.cancel()
            await asyncio.wait([self._rebalancing])
        for assignment in self.assignments.values():
            assignment.leave()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _open_hooks(self) -> ConsumeHooks:
        hooks = list(self._given_hooks)
        if self._trace:
            from cometmq.client.trace import TraceConsumeHook, TraceDispatcher

            topic = self._trace if isinstance(self._trace, str) else None
            self._traces = TraceDispatcher(self.client, self.group, "CONSUME", topic)
            await self._traces.start()
            hooks.append(TraceConsumeHook(self._traces, self.client.new_unique_key))
        return ConsumeHooks(hooks, namespaces.unwrap(self.client.namespace, self.group), self.client.namespace)

    def suspend(self) -> None:
        """Take no more messages; what was pulled is processed."""
        self.is_suspended = True

    def resume(self) -> None:
        self.is_suspended = False
        for assignment in self.assignments.values():
            assignment.room.look()
        self.rebalance.soon()

    # What the parts ask

    @property
    def needs_locks(self) -> bool:
        return self.ordered and self.is_clustering

    def level_of(self, topic: str) -> int:
        return self._levels.get(topic, len(self._levels) - 1 if self._levels else 0)

    def limits_of(self, topic: str) -> tuple[int, int]:
        """The most messages and bytes that a queue of a topic may hold here."""
        known = self._limits.get(topic)
        if known is None:
            known = self._limits[topic] = self.options.limits(sum(queue.topic == topic for queue in self.assignments))
        return known

    def heartbeat(self) -> ConsumerData:
        start = self.options.start_from
        where = (
            ConsumeFromWhere.TIMESTAMP
            if isinstance(start, datetime)
            else ConsumeFromWhere.FIRST_OFFSET
            if start is StartFrom.FIRST
            else ConsumeFromWhere.LAST_OFFSET
        )
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.PASSIVELY.value,
            message_model=self.options.model.value,
            consume_from_where=where.value,
            subscription_data_set=list(self.subscriptions.values()),
        )

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back, unless the consumer has closed by then."""

        async def wait() -> None:
            await asyncio.sleep(seconds)
            callback()

        self.scheduler.spawn(wait(), "a pause")

    def new_assignment(self, queue: MessageQueue) -> Assignment:
        return Assignment(self, queue, self.subscriptions[queue.topic], self.level_of(queue.topic))

    def assignment_changed(self, topic: str, mine: Sequence[MessageQueue]) -> None:
        # The queues share what a topic may hold: fewer of them hold more each.
        self._limits.pop(topic, None)
        for assignment in self.assignments.values():
            assignment.room.look()
        version = wall_millis()
        data = self.subscriptions.get(topic)
        if data is not None:
            self.subscriptions[topic] = msgspec.structs.replace(data, sub_version=version)
        if self._queue_listener is not None:
            try:
                self._queue_listener(self.shown_topic(topic), mine)
            except Exception:
                log.exception("the queue listener of %s failed", self.group)

    def restart_queue(self, assignment: Assignment, offset: int) -> None:
        """A queue goes on elsewhere: its messages are forgotten, and the new offset counts."""
        queue = assignment.queue
        if assignment.is_dropped:
            return  # it begins anew already, or is somebody else's
        assignment.drop()
        self.offsets_store.update(queue, offset)

        async def again() -> None:
            # Until the broker has the new offset the queue keeps its place: a rebalance would begin at the old one.
            await self.offsets_store.persist([queue])
            if self.ordered:
                await assignment.until_idle(UNLOCK_PATIENCE)
            if self.assignments.get(queue) is assignment:
                del self.assignments[queue]
                self.offsets_store.forget(queue)
            self.rebalance.soon()

        self.scheduler.spawn(again(), f"restart of {queue}")

    async def send_back(self, message: ReceivedMessage, delay_level: int) -> bool:
        return await self._giving_back.send_back(message, delay_level, self.options.retries)

    async def send_to_retry_topic(self, message: ReceivedMessage, most: int) -> bool:
        return await self._giving_back.send_again(message, most, None)

    async def _persist(self) -> None:
        if self.assignments:
            await self.offsets_store.persist(list(self.assignments))

    async def _expire(self) -> None:
        """Messages that are processed for too long are given back; the running call is not disturbed.

        An ordered queue waits for its message, however long that takes, unless nobody works on it any more.
        """
        now = self._loop.time()
        for message, since in self._unsettled.expired(now - self.options.consume_timeout, abandoned_only=self.ordered):
            log.warning("%r was handed out %.0f s ago and is not settled: it is given back", message, now - since)
            await message.retry(EXPIRED_LEVEL)

    # Handing out

    def _take(self, most: int) -> list[ReceivedMessage] | None:
        """The next messages, all of one queue and noted as unsettled; None when there are none."""
        while (taken := self.line.take(most)) is not None:
            source, messages = taken
            if self.ordered and not self._may_consume(source, messages):
                continue
            self._unsettled.add(messages, self._loop.time())
            return messages
        return None

    def _may_consume(self, source: Source, messages: list[ReceivedMessage]) -> bool:
        """An ordered queue is consumed under its lock only."""
        assert isinstance(source, Assignment)
        if self.needs_locks and not source.has_lock(self._loop.time()):
            # The renewal of the locks brings it back into the line.
            source.ready.extendleft(reversed(messages))
            return False
        source.hold(len(messages))
        return True

    def handed_back(self, message: ReceivedMessage) -> None:
        """A message is settled, or comes again: it is nobody's now."""
        self._unsettled.settled(message)

    def abandoned(self, message: ReceivedMessage) -> None:
        """Nobody works on a message any more, and it is not settled: others may go on."""
        self._unsettled.abandon(message)

    # By iteration

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """The next message, as soon as fewer than `concurrency` are unsettled. Ends when the consumer closes."""
        messages = await self._next(1)
        if messages is None:
            raise StopAsyncIteration
        return messages[0]

    async def batches(self, size: int) -> AsyncIterator[list[ReceivedMessage]]:
        """Up to `size` messages of one queue at a time; each of them is settled by itself."""
        if size < 1:
            raise ValueError(f"a batch of {size} messages holds none")
        while (messages := await self._next(size)) is not None:
            yield messages

    async def _next(self, most: int) -> list[ReceivedMessage] | None:
        """Messages for somebody who iterates; None when the consumer closes."""
        unsettled = self._unsettled
        while self._state == "open":
            if unsettled.is_full:
                await unsettled.waiters.wait()
                continue
            messages = self._take(most)
            if messages is not None:
                if self._hooks.are_any:
                    self._hooks.handed_out(messages)
                return messages
            try:
                await self.line.wait()
            except asyncio.CancelledError:
                unsettled.waiters.wake()  # the slot that this one would have used is another one's
                raise
        return None

    def consumed(self, message: ReceivedMessage, *, is_success: bool) -> None:
        """A message that was handed out by iteration is settled."""
        self._hooks.settled(message, is_success=is_success)

    # What brokers ask

    def members_changed(self) -> None:
        self.rebalance.soon()

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        """Go on from these offsets; what is being processed of these queues does not count any more."""
        for queue, offset in offsets.items():
            assignment = self.assignments.get(queue)
            if assignment is not None:
                self.restart_queue(assignment, offset)

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        found = {queue: self.offsets_store.known(queue) for queue in self.assignments if queue.topic == topic}
        return {queue: offset for queue, offset in found.items() if offset is not None}

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return running_info(self, with_stacks=with_stacks)

    async def consume_directly(self, record: Record, broker_name: str) -> ConsumeMessageDirectlyResult:
        return await consume_result(self, record, broker_name)
