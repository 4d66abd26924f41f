"""Rebalance: which queues are mine, and what to do about the difference.

Every 20 s, and at once when the members of the group change. A topic about which nothing can be learned keeps its
queues. RocketMQ's RebalanceService and RebalanceImpl.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from cometmq.client.consumer.allocate import Strategy
from cometmq.client.consumer.offsets import OffsetStore
from cometmq.client.consumer.options import StartFrom
from cometmq.client.consumer.pulling import Pulls
from cometmq.client.errors import BrokerError, BrokerFailed, ClientError
from cometmq.client.queues import MessageQueue
from cometmq.client.requests import ask
from cometmq.client.scheduler import Scheduler
from cometmq.protocol import names
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.bodies.lists import GetConsumerListByGroupResponseBody
from cometmq.protocol.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.protocol.bodies.route import BrokerData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.clients import GetConsumerListByGroup
from cometmq.protocol.requests.offsets import GetMaxOffset, OffsetAnswer, SearchOffset
from cometmq.remoting.errors import TransportError

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)

#: What may go wrong with a request; the next round tries again.
_TROUBLE = (BrokerError, ClientError, TransportError)
#: Seconds for lock and unlock.
LOCK_TIMEOUT = 1.0
#: Seconds that an ordered queue is kept for a handler that is still busy with it.
UNLOCK_PATIENCE = 20.0
#: Seconds between two renewals of the locks, and until a broker that did not answer is asked again.
LOCK_INTERVAL = 20.0
RENEW_AGAIN = 1.0


class HeldQueue(Protocol):
    """A queue that a consumer has, as far as rebalance knows it."""

    queue: MessageQueue
    #: When its lock was last renewed; None: it is not locked.
    locked_at: float | None

    def start(self, offset: int) -> None: ...

    def leave(self) -> None: ...

    def drop(self) -> None: ...

    def enter_if_idle(self) -> None: ...

    async def until_idle(self, seconds: float) -> bool: ...


class Intervals(Protocol):
    """The settings that rebalance needs."""

    @property
    def start_from(self) -> StartFrom | datetime: ...

    @property
    def rebalance_interval(self) -> float: ...

    @property
    def rebalance_soon(self) -> float: ...


Q = TypeVar("Q", bound=HeldQueue)


class BalancedConsumer(Protocol[Q]):
    """A consumer that shares queues with others of its group."""

    client: "Client"
    group: str
    ordered: bool
    subscriptions: dict[str, SubscriptionData]
    allocate: Strategy
    offsets_store: OffsetStore
    pulls: Pulls
    scheduler: Scheduler
    is_suspended: bool

    @property
    def options(self) -> Intervals: ...

    @property
    def assignments(self) -> dict[MessageQueue, Q]: ...

    @property
    def is_clustering(self) -> bool: ...

    @property
    def needs_locks(self) -> bool: ...

    def new_assignment(self, queue: MessageQueue) -> Q: ...

    def assignment_changed(self, topic: str, mine: Sequence[MessageQueue]) -> None: ...


class Rebalance(Generic[Q]):
    """Keeps the assignments of a consumer. Its mutable state is the consumer's table of assignments."""

    def __init__(self, consumer: BalancedConsumer[Q]) -> None:
        self._consumer = consumer
        self._client = consumer.client
        self._wanted = asyncio.Event()
        #: Queues whose lock we may have although they are not assigned, yet or any more: a close unlocks them too.
        self.locking: set[MessageQueue] = set()
        #: What kept us from a round, by topic.
        self._troubles: dict[str, str] = {}
        self._asking_again: asyncio.Task[None] | None = None

    def soon(self) -> None:
        """Rebalance at the next opportunity."""
        self._wanted.set()

    async def run(self, round_of: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Rounds for ever; `round_of` stands in for `round`."""
        options, one = self._consumer.options, round_of or self.round
        while True:
            self._wanted.clear()
            balanced = True
            if not self._consumer.is_suspended:
                try:
                    balanced = await one()
                except Exception:
                    log.exception("a rebalance of %s failed", self._consumer.group)
                    balanced = False
            try:
                async with asyncio.timeout(options.rebalance_interval if balanced else options.rebalance_soon):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def round(self) -> bool:
        """One round over all topics; whether every queue that is mine works."""
        consumer = self._consumer
        balanced = True
        for topic in list(consumer.subscriptions):
            mine = await self._mine(topic)
            if mine is None:
                balanced = False
                continue
            balanced &= await self._apply(topic, mine)
        for queue in [queue for queue in consumer.assignments if queue.topic not in consumer.subscriptions]:
            await self.drop(consumer.assignments[queue])
        return balanced

    async def _mine(self, topic: str) -> list[MessageQueue] | None:
        """My queues of a topic; None when that cannot be said now."""
        consumer = self._consumer
        try:
            route = await self._client.routes.get(topic)
            queues = sorted(route.subscribe)
            if not consumer.is_clustering:
                return queues
            clients = await self._members(route.data.broker_datas)
        except BrokerFailed:
            # "no consumer for this group": the broker was restarted since our last heartbeat.
            clients = []
        except _TROUBLE as error:
            # Rounds follow each other quickly then: the same trouble is told once.
            is_new = self._troubles.get(topic) != str(error) and not topic.startswith(names.RETRY_PREFIX)
            self._troubles[topic] = str(error)
            level = logging.WARNING if is_new else logging.DEBUG
            log.log(level, "%s keeps its queues of %s: %s", consumer.group, topic, error)
            return None
        self._troubles.pop(topic, None)
        if self._client.client_id not in clients:
            # The broker has not heard of us yet: the heartbeat is on its way.
            await self._client.heartbeats.beat()
            return None
        return consumer.allocate(consumer.group, self._client.client_id, queues, clients)

    async def _members(self, brokers: list[BrokerData]) -> list[str]:
        """The members of the group, as a broker of the topic knows them."""
        address, _ = self._client.routes.brokers.for_pull(random.choice(brokers).broker_name)
        header = GetConsumerListByGroup(self._consumer.group)
        answer = await ask(
            self._client.remoting,
            address,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            header,
            timeout=self._client.request_timeout,
        )
        return sorted(GetConsumerListByGroupResponseBody.decode(answer.body).consumer_id_list)

    async def _apply(self, topic: str, mine: list[MessageQueue]) -> bool:
        consumer = self._consumer
        wanted = set(mine)
        changed = False
        for queue in [queue for queue in consumer.assignments if queue.topic == topic and queue not in wanted]:
            await self.drop(consumer.assignments[queue])
            changed = True
        complete = True
        for queue in mine:
            if queue not in consumer.assignments:
                added = await self.add(queue)
                changed |= added
                complete &= added
        if changed:
            consumer.assignment_changed(topic, mine)
            await self._client.heartbeats.beat()
        return complete

    async def add(self, queue: MessageQueue) -> bool:
        """Begin with a queue; False when that is not possible now."""
        consumer = self._consumer
        assignment = consumer.new_assignment(queue)
        if consumer.needs_locks:
            self.locking.add(queue)
            locked = await self.lock([queue])
            if queue not in locked:
                self.locking.discard(queue)
                return False
            assignment.locked_at = asyncio.get_running_loop().time()
        consumer.offsets_store.forget(queue)
        try:
            offset = await self.start_offset(queue)
        except _TROUBLE as error:
            log.warning("%s: the offset of %s is not known yet: %s", consumer.group, queue, error)
            return False
        log.info("%s: %s begins at %d", consumer.group, queue, offset)
        consumer.assignments[queue] = assignment
        self.locking.discard(queue)
        assignment.start(offset)
        return True

    async def drop(self, assignment: HeldQueue) -> None:
        """A queue is not ours any more: commit what is done, then let it go."""
        consumer = self._consumer
        queue = assignment.queue
        assignment.leave()
        if consumer.ordered:
            await assignment.until_idle(UNLOCK_PATIENCE)
        await consumer.offsets_store.persist([queue])
        assignment.drop()
        is_locked = assignment.locked_at is not None
        if is_locked:
            self.locking.add(queue)
        consumer.assignments.pop(queue, None)
        consumer.offsets_store.forget(queue)
        consumer.pulls.forget(queue)
        if is_locked:
            await self.unlock([queue])
            self.locking.discard(queue)
        log.info("%s: %s is let go", consumer.group, queue)

    # Where to begin

    async def start_offset(self, queue: MessageQueue) -> int:
        """The stored offset, else what the consumer says about new groups."""
        stored = await self._consumer.offsets_store.read(queue)
        if stored is not None:
            return stored
        start = self._consumer.options.start_from
        is_retry = queue.topic.startswith(names.RETRY_PREFIX)
        if isinstance(start, datetime):
            if is_retry:
                return await self._max_offset(queue)
            return await self._offset_at(queue, round(start.timestamp() * 1000))
        if start is StartFrom.FIRST or is_retry:
            return 0
        return await self._max_offset(queue)

    async def _max_offset(self, queue: MessageQueue) -> int:
        header = GetMaxOffset(queue.topic, queue.queue_id)
        return await self._ask_offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def _offset_at(self, queue: MessageQueue, timestamp: int) -> int:
        header = SearchOffset(queue.topic, queue.queue_id, timestamp)
        return await self._ask_offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def _ask_offset(self, queue: MessageQueue, code: int, header: GetMaxOffset | SearchOffset) -> int:
        address = self._client.routes.brokers.master(queue.broker_name)
        answer = await ask(self._client.remoting, address, code, header, timeout=self._client.request_timeout)
        return answer.header(OffsetAnswer).offset

    # Locks of ordered consumers

    async def lock(
        self, queues: Iterable[MessageQueue], unanswered: list[MessageQueue] | None = None
    ) -> set[MessageQueue]:
        """Lock queues on their brokers; gives those that are ours now. `unanswered` takes those of silent brokers."""
        locked: set[MessageQueue] = set()

        async def lock_at(broker: str, some: list[MessageQueue]) -> None:
            body = LockBatchRequestBody(
                consumer_group=self._consumer.group,
                client_id=self._client.client_id,
                mq_set=[queue.to_wire() for queue in some],
            )
            try:
                address = self._client.routes.brokers.master(broker)
                answer = await ask(
                    self._client.remoting, address, RequestCode.LOCK_BATCH_MQ, None, body.encode(), timeout=LOCK_TIMEOUT
                )
            except _TROUBLE as error:
                log.warning("%s: queues of %s could not be locked: %s", self._consumer.group, broker, error)
                if unanswered is not None:
                    unanswered.extend(some)
                return
            found = LockBatchResponseBody.decode(answer.body).lock_ok_mq_set
            locked.update(MessageQueue.from_wire(queue) for queue in found)

        await asyncio.gather(*(lock_at(broker, some) for broker, some in _by_broker(queues).items()))
        return locked

    async def renew_locks(self) -> None:
        """Tell the brokers that we still have our queues; those that somebody else has by now are not consumed.

        A broker that does not answer has said nothing: our locks there count until they are too old, and it is asked
        again soon, apart from the others, whose locks need their next renewal in time.
        """
        unanswered = await self._renew(self._consumer.assignments)
        if unanswered and (self._asking_again is None or self._asking_again.done()):
            work = self._renew_again(unanswered)
            self._asking_again = self._consumer.scheduler.spawn(work, f"locks of {self._consumer.group} once more")

    async def _renew_again(self, queues: list[MessageQueue]) -> None:
        while queues:
            await asyncio.sleep(RENEW_AGAIN)
            queues = await self._renew(queues)

    async def _renew(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """One request to each broker; those of silent brokers that are still ours."""
        assignments = self._consumer.assignments
        asked = {queue: assignments[queue] for queue in queues if queue in assignments}
        unanswered: list[MessageQueue] = []
        locked = await self.lock(asked, unanswered)
        now = asyncio.get_running_loop().time()
        for queue, assignment in asked.items():
            if queue in locked:
                assignment.locked_at = now
                assignment.enter_if_idle()
            elif queue not in unanswered:
                assignment.locked_at = None
        return unanswered

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        for broker, some in _by_broker(queues).items():
            body = UnlockBatchRequestBody(
                consumer_group=self._consumer.group,
                client_id=self._client.client_id,
                mq_set=[queue.to_wire() for queue in some],
            )
            try:
                address = self._client.routes.brokers.master(broker)
                await ask(
                    self._client.remoting,
                    address,
                    RequestCode.UNLOCK_BATCH_MQ,
                    None,
                    body.encode(),
                    timeout=LOCK_TIMEOUT,
                )
            except _TROUBLE as error:
                log.warning("%s: queues of %s could not be unlocked: %s", self._consumer.group, broker, error)


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    grouped: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        grouped.setdefault(queue.broker_name, []).append(queue)
    return grouped
