"""The pull consumer: the application asks for messages when it wants some, and says how far it is.

Queues come by `subscribe` (shared with the group) or by `assign` (chosen). They are pulled in the background, within
limits; `poll` gives what is there. A message counts as consumed when it was given out; nothing is given back, and
retries are the application's business. RocketMQ's DefaultLitePullConsumer.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from cometmq.client.consumer.allocate import Strategy
from cometmq.client.consumer.member import GroupMember
from cometmq.client.consumer.options import PullOptions, options_of
from cometmq.client.consumer.pulled_queue import PulledQueue
from cometmq.client.consumer.pulling import Pulls
from cometmq.client.consumer.rebalance import Rebalance
from cometmq.client.consumer.subscriptions import ALL, Subscription, check_subscriptions, subscription_data
from cometmq.client.errors import ClientError, Closed
from cometmq.client.message import ReceivedMessage
from cometmq.client.queues import MessageQueue
from cometmq.client.requests import ask
from cometmq.client.scheduler import Scheduler
from cometmq.client.waiters import Waiters
from cometmq.protocol.bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from cometmq.protocol.bodies.connections import ConsumeResult
from cometmq.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
)
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.message_id import wall_millis
from cometmq.protocol.record import Record
from cometmq.protocol.requests.offsets import GetMaxOffset, GetMinOffset, OffsetAnswer, SearchOffset

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)


class PullConsumer(GroupMember):
    """Made by `client.pull_consumer(group)`; `subscribe` or `assign`, then use it with `async with`.

    Mutable state: the queues, those with messages in the order of their coming, and the offsets.
    """

    ordered = False
    needs_locks = False
    is_suspended = False

    def __init__(self, client: "Client", group: str, *, allocate: Strategy | None = None, **options: Any) -> None:
        self.options = options_of(PullOptions, options, "pull_consumer")
        super().__init__(client, group, self.options.model, allocate)
        self.assignments: dict[MessageQueue, PulledQueue] = {}
        self._chosen: set[MessageQueue] | None = None
        self._ready: deque[PulledQueue] = deque()
        self._waiters = Waiters()
        #: Queues of which something was given out since the last poll.
        self._given: set[PulledQueue] = set()
        self._balancing: asyncio.Task[None] | None = None
        self._listeners: dict[str, tuple[Callable[[str, Sequence[MessageQueue]], None], set[MessageQueue]]] = {}
        self._committed_at = 0.0
        self._state = "new"

    # What to read

    def subscribe(self, topic: str | Mapping[str, Subscription], wanted: Subscription = ALL) -> Self:
        """Share the queues of topics with the other members of the group."""
        if self._chosen is not None:
            raise ClientError("this consumer has chosen its queues (assign): it cannot subscribe as well")
        table = check_subscriptions({topic: wanted} if isinstance(topic, str) else topic)
        for name, each in table.items():
            self._want(self._wire(name), each, wall_millis())
        if self._state == "open":
            self.rebalance.soon()
        return self

    def unsubscribe(self, topic: str) -> None:
        self.subscriptions.pop(self._wire(topic), None)
        if self._state == "open":
            self.rebalance.soon()

    def assign(self, queues: Iterable[MessageQueue], wanted: Mapping[str, Subscription] | None = None) -> Self:
        """Read these queues, whatever the others do. `wanted` says which messages of a topic."""
        if self.subscriptions and self._chosen is None:
            raise ClientError("this consumer has subscribed: it cannot choose its queues as well")
        self._chosen = {queue._replace(topic=self._wire(queue.topic)) for queue in queues}
        expressions = {self._wire(topic): each for topic, each in (wanted or {}).items()}
        topics = {queue.topic for queue in self._chosen}
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic]
        for topic in topics:
            self._want(topic, expressions.get(topic, ALL), 0)
        if self._state == "open":
            self.rebalance.soon()
        return self

    def _want(self, topic: str, wanted: Subscription, version: int) -> None:
        """Take up a subscription, also for queues that are read already."""
        before = self.subscriptions.get(topic)
        data = self.subscriptions[topic] = subscription_data(topic, wanted, version)
        if before is not None and (before.sub_string, before.expression_type) != (
            data.sub_string,
            data.expression_type,
        ):
            for held in [held for held in self.assignments.values() if held.queue.topic == topic]:
                held.want(data)

    def on_queues_changed(self, topic: str, listener: Callable[[str, Sequence[MessageQueue]], None]) -> None:
        """Call back when the queues of a topic have become others."""
        self._listeners[self._wire(topic)] = (listener, set())

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return sorted(self.assignments)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic."""
        self._check_open()
        return list((await self.client.routes.get(self._wire(topic))).subscribe)

    # Its life

    async def start(self) -> None:
        if self._state != "new":
            raise Closed(f"the consumer of group {self.group} is {self._state}: it starts once")
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._committed_at = self._loop.time()
        self.scheduler = Scheduler()
        self.pulls = Pulls(self.client, self.group)
        self.rebalance = Rebalance(self)
        self.client.add_consumer(self)
        self._state = "open"
        try:
            await self._begin()
        except BaseException:
            await self.close()  # nobody else would: the block was never entered
            raise

    async def _begin(self) -> None:
        self.offsets_store = await self._open_offsets()
        await self.client.routes.refresh(self.subscriptions)
        await self.client.heartbeats.beat()
        self._balancing = self.scheduler.spawn(self.rebalance.run(self._round), f"rebalance of {self.group}")
        self.scheduler.every(self.options.persist_interval, self._persist, "commit of the offsets")
        self.scheduler.every(self.options.queue_check_interval, self._check_queues, "look for new queues", first=0.0)

    async def close(self) -> None:
        """Commit and leave. Who closes it a second time waits for the end of the first close."""
        if self._state == "closing":
            await self._closed.wait()
            return
        if self._state != "open":
            self._state = "closed"
            return
        self._state = "closing"
        self._waiters.wake_all()
        # The last one comes first. All of it is done also when the close is cancelled.
        async with AsyncExitStack() as rest:
            rest.callback(self._end)
            rest.push_async_callback(self.scheduler.close)
            rest.push_async_callback(self.client.remove_consumer, self)
            rest.push_async_callback(self._let_go)
            # No queue comes or goes any more: one that came later would be pulled by somebody who has left the group.
            if self._balancing is not None:
                self._balancing.cancel()
                await asyncio.wait([self._balancing])

    async def _let_go(self) -> None:
        for held in self.assignments.values():
            held.stop()
        if self.options.auto_commit:
            self._commit_consumed()
        try:
            await self._persist()
        finally:
            for held in self.assignments.values():
                held.drop()
            self.assignments.clear()

    def _end(self) -> None:
        self._state = "closed"
        self._closed.set()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._state != "open":
            raise Closed(f"the consumer of group {self.group} is {self._state}")

    # Reading

    async def poll(self, timeout: float | None = None) -> list[ReceivedMessage]:  # noqa: ASYNC109 - how long to wait
        """Messages of one queue, at most a batch; none when nothing came in time."""
        self._check_open()
        patience = self.options.poll_timeout if timeout is None else timeout
        if patience < 0:
            raise ValueError(f"a timeout of {patience} s is negative")
        self._note_done()
        deadline = self._loop.time() + patience
        while self._state == "open":
            while self._ready:
                held = self._ready.popleft()
                if not held.is_dropped and held.batches:
                    self._given.add(held)
                    return held.take()
            if self._loop.time() >= deadline:
                break
            try:
                async with asyncio.timeout_at(deadline):
                    await self._waiters.wait()
            except TimeoutError:
                continue  # what came in the last moment is given out
        return []

    def _note_done(self) -> None:
        """Who asks for more is done with what was given out before: that may be committed."""
        for held in self._given:
            held.done = held.consumed
        self._given.clear()
        now = self._loop.time()
        if self.options.auto_commit and now - self._committed_at >= self.options.commit_interval:
            self._committed_at = now
            self._commit_consumed()

    def has_messages(self, held: PulledQueue) -> None:
        """A queue has one more batch."""
        self._ready.append(held)
        self._waiters.wake()

    def look_for_room(self) -> None:
        """Something has left: every queue may have waited for that, because there is a limit for all together."""
        for held in self.assignments.values():
            held.room.look()

    @property
    def cached(self) -> int:
        return sum(held.cached for held in self.assignments.values())

    # Where to read

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset of a queue; what was pulled of it is forgotten."""
        held = self._held(queue)
        low, high = await self.min_offset(queue), await self.max_offset(queue)
        if not low <= offset <= high:
            raise ClientError(f"offset {offset} of {queue} is outside of {low} to {high}")
        if self._held(queue) is not held:
            raise ClientError(f"{queue} was taken away and came back meanwhile: seek again")
        held.go_on_at(offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        await self.seek(queue, await self.max_offset(queue))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Pull no more; what is here is still given out."""
        for queue in queues:
            self._held(queue).is_paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            held = self._held(queue)
            held.is_paused = False
            held.room.look()

    async def offset_for_time(self, queue: MessageQueue, moment: datetime) -> int:
        """The offset of the first message that was stored at a moment or after it."""
        header = SearchOffset(self._wire(queue.topic), queue.queue_id, round(moment.timestamp() * 1000))
        return await self._ask_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def min_offset(self, queue: MessageQueue) -> int:
        header = GetMinOffset(self._wire(queue.topic), queue.queue_id)
        return await self._ask_offset(queue, RequestCode.GET_MIN_OFFSET, header)

    async def max_offset(self, queue: MessageQueue) -> int:
        header = GetMaxOffset(self._wire(queue.topic), queue.queue_id)
        return await self._ask_offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def _ask_offset(self, queue: MessageQueue, code: int, header: Any) -> int:
        address = self.client.routes.brokers.master(queue.broker_name)
        answer = await ask(self.client.remoting, address, code, header, timeout=self.client.request_timeout)
        return answer.header(OffsetAnswer).offset

    def _held(self, queue: MessageQueue) -> PulledQueue:
        self._check_open()
        held = self.assignments.get(queue._replace(topic=self._wire(queue.topic)))
        if held is None:
            raise ClientError(f"{queue} is not assigned to this consumer (any more): it may be rebalancing")
        return held

    # How far

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit what was given out, or these offsets; returns when the brokers have them.

        Raises what kept one of them from it; the offsets are then tried again in the background.
        """
        self._check_open()
        if offsets is None:
            self._commit_consumed()
        else:
            for queue, offset in offsets.items():
                if offset < 0:
                    raise ValueError(f"offset {offset} of {queue} is negative")
                held = self._held(queue)
                held.done = offset
                self.offsets_store.update(held.queue, offset)
        await self.offsets_store.commit(list(self.assignments))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The committed offset of the group in a queue."""
        self._check_open()
        queue = queue._replace(topic=self._wire(queue.topic))
        known = self.offsets_store.known(queue)
        return known if known is not None else await self.offsets_store.read(queue)

    def _commit_consumed(self) -> None:
        for queue, held in self.assignments.items():
            if held.consumed is not None:
                self.offsets_store.update(queue, held.consumed)

    async def _persist(self) -> None:
        if self.assignments:
            await self.offsets_store.persist(list(self.assignments))

    # What the parts ask

    def heartbeat(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.ACTIVELY.value,
            message_model=self.options.model.value,
            consume_from_where=ConsumeFromWhere.LAST_OFFSET.value,
            subscription_data_set=list(self.subscriptions.values()),
        )

    def new_assignment(self, queue: MessageQueue) -> PulledQueue:
        return PulledQueue(self, queue, self.subscriptions[queue.topic])

    def assignment_changed(self, topic: str, mine: Sequence[MessageQueue]) -> None:
        log.info("%s reads %d queues of %s", self.group, len(mine), topic)

    async def _round(self) -> bool:
        """One look at which queues are ours: shared with the group, or chosen; whether all of them are read."""
        return await (self.rebalance.round() if self._chosen is None else self._apply_choice(self._chosen))

    async def _apply_choice(self, wanted: set[MessageQueue]) -> bool:
        """Begin with queues that were chosen, and let others go; one whose broker is away is tried again soon."""
        for queue in [queue for queue in self.assignments if queue not in wanted]:
            await self.rebalance.drop(self.assignments[queue])
        await self.client.routes.refresh({queue.topic for queue in wanted if queue not in self.assignments})
        is_complete = True
        for queue in sorted(wanted):
            if queue not in self.assignments:
                is_complete &= await self.rebalance.add(queue)
        return is_complete

    async def _check_queues(self) -> None:
        for topic, (listener, before) in list(self._listeners.items()):
            await self.client.routes.refresh([topic])
            route = self.client.routes.known(topic)
            now = set(route.subscribe) if route is not None else set()
            if now != before:
                self._listeners[topic] = (listener, now)
                if before:
                    listener(self.shown_topic(topic), sorted(now))

    # What brokers ask

    def members_changed(self) -> None:
        self.rebalance.soon()

    async def reset_offsets(self, topic: str, offsets: dict[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            held = self.assignments.get(queue)
            if held is not None:
                self.offsets_store.update(queue, offset)
                held.go_on_at(offset)

    def offsets(self, topic: str) -> dict[MessageQueue, int]:
        return {
            queue: held.consumed
            for queue, held in self.assignments.items()
            if queue.topic == topic and held.consumed is not None
        }

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(
            properties={
                ConsumerRunningInfo.PROP_CONSUME_TYPE: ConsumeType.ACTIVELY.value,
                ConsumerRunningInfo.PROP_CONSUMER_START_TIMESTAMP: "0",
            },
            subscription_set=list(self.subscriptions.values()),
        )

    async def consume_directly(self, record: Record, broker_name: str) -> ConsumeMessageDirectlyResult:
        return ConsumeMessageDirectlyResult(
            consume_result=ConsumeResult.THROW_EXCEPTION.value, remark="a pull consumer has no handler to call"
        )
