"""Sends the requests of one task and waits for their acknowledgements: a bounded window, bounded retries.

Requests of a lane with a queue go one after the other, so that a retry cannot overtake; others go side by side. A
request that fails is sent again as it is, with the same unique keys. Runs on the loop of a `Link`.
"""

import asyncio
import logging
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeVar

from cometmq.client.client import Client
from cometmq.client.errors import BrokerError, MessageRefused, NoNameserver, NoRoute, SendFailed, Unsupported
from cometmq.client.message import Message, SendReceipt, SendStatus
from cometmq.client.producer import Producer
from cometmq.client.producer.delays import Delays
from cometmq.client.producer.outgoing import Outgoing
from cometmq.client.producer.producer import NEW_TOPIC_QUEUES
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute
from cometmq.protocol import names
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.errors import CometMQError
from cometmq.remoting.errors import TransportError
from cometmq.spark.errors import SparkSourceError
from cometmq.spark.sink_lanes import Lane

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Seconds before the first retry; each pause is twice the one before, up to the longest.
FIRST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 5.0

#: What brokers say that keep no timers: RocketMQ 5 with timerWheelEnable=false, and CometMQ. Others complain of a timer
#: that they cannot keep: too far away, or one too many.
_NO_TIMERS: Final = ("timer message is not enabled", "asks for a timer")


class NotSent(SparkSourceError):
    """Raised when rows could not be sent; says which ones, where to, and why. Rows before them may be stored."""


@dataclass(frozen=True, slots=True)
class Request:
    """Rows that go out together: the items of a batch, or one message that cannot be part of one. Packed once."""

    lane: Lane
    content: Outgoing
    size: int
    partition: int
    #: Numbers of the first and the last row in the partition.
    first_row: int
    last_row: int
    #: Of a message that needs brokers with timers.
    deliver_at: datetime | None = None

    def __str__(self) -> str:
        rows = f"row {self.first_row}" if self.first_row == self.last_row else f"rows {self.first_row}-{self.last_row}"
        queue = self.lane.queue
        place = "" if queue is None else f" (queue {queue.broker_name}/{queue.queue_id})"
        return f"{rows} of partition {self.partition} for topic {self.lane.topic}{place}"


async def route_to(client: Client, topic: str) -> TopicRoute:
    """Where a topic (its name on the wire) can be written, or could if brokers make it."""
    return await client.routes.for_send(topic, template=names.DEFAULT_TOPIC, template_queues=NEW_TOPIC_QUEUES)


@dataclass(frozen=True, slots=True)
class Window:
    """What may be on the way at once."""

    requests: int
    size: int


class Sender:
    """The sends of one task. Mutable state: what is on the way or waits in lanes, who is silent, the first failure."""

    def __init__(self, client: Client, producer: Producer, window: Window, retries: int, known_topic: str = "") -> None:
        self._client = client
        #: One that the driver has seen (its name on the wire): it exists, whatever a nameserver says.
        self._known_topic = known_topic
        self._producer = producer
        self._delays = Delays(client, None)
        self._window = window
        self._retries = retries
        self._on_the_way = 0
        self._size = 0
        self._lanes: dict[MessageQueue, deque[Request]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        #: Brokers that did not answer: what may go to any queue goes elsewhere, as long as there is somebody else.
        self._silent: set[str] = set()
        #: How the brokers stored the requests.
        self.statuses: Counter[SendStatus] = Counter()

    async def put(self, requests: Iterable[Request]) -> None:
        """Take requests in; returns when all of them are on the way or wait within the window."""
        for request in requests:
            while self._failure is None and self._on_the_way and not self._has_room(request):
                self._changed.clear()
                await self._changed.wait()
            if self._failure is not None:
                raise self._failure
            self._on_the_way += 1
            self._size += request.size
            self._begin(request)

    def _has_room(self, request: Request) -> bool:
        return self._on_the_way < self._window.requests and self._size + request.size <= self._window.size

    async def finish(self) -> None:
        """Wait until everything is acknowledged; raises what went wrong."""
        while self._tasks and self._failure is None:
            self._changed.clear()
            await self._changed.wait()
        if self._failure is not None:
            raise self._failure
        odd = {str(status): count for status, count in self.statuses.items() if status is not SendStatus.SEND_OK}
        if odd:
            log.warning("some requests are stored, but not as safely as the brokers are set to: %s", odd)

    async def close(self) -> None:
        """Give up whatever is still under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, request: Request) -> None:
        queue = request.lane.queue
        if queue is None:
            self._spawn(deque([request]), None)
        elif queue in self._lanes:
            self._lanes[queue].append(request)
        else:
            line = self._lanes[queue] = deque([request])
            self._spawn(line, queue)

    def _spawn(self, line: deque[Request], queue: MessageQueue | None) -> None:
        task = asyncio.get_running_loop().create_task(self._drain(line, queue), name=f"send {line[0].lane.topic}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is None:
            self._failure = error if isinstance(error, Exception) else RuntimeError(str(error))
        self._changed.set()

    async def _drain(self, line: deque[Request], queue: MessageQueue | None) -> None:
        """Send what waits in a line, one after the other."""
        while line:
            request = line[0]
            receipt = await self._send(request)
            self.statuses[receipt.status] += 1
            line.popleft()
            self._on_the_way -= 1
            self._size -= request.size
            self._changed.set()
        if queue is not None:
            del self._lanes[queue]

    async def _send(self, request: Request) -> SendReceipt:
        several = request.first_row < request.last_row
        return await retried(str(request), lambda: self._once(request), self._retries, of_several=several)

    async def _once(self, request: Request) -> SendReceipt:
        content, queue = request.content, request.lane.queue
        # Asked for here and not by the send: silent nameservers are then named, whatever time a send has.
        route = self._client.routes.known(content.topic) or await self._route_to(content.topic)
        if request.deliver_at is not None:
            # Its property is packed; this refuses brokers that would deliver at once and say nothing.
            await self._delays.properties(route, Message(b"-", deliver_at=request.deliver_at))
        if queue is None and self._silent:
            others = [each for each in route.publish if each.broker_name not in self._silent]
            queue = random.choice(others) if others else None
        try:
            receipt = await self._producer.send_prepared(content, queue)
        except SendFailed as error:
            self._silent |= {each.broker_name for each in error.attempts if isinstance(each.error, TransportError)}
            raise
        except NoRoute as error:
            raise self._of_route(error, content.topic) from None
        except BrokerError as error:
            if request.lane.queue is not None or not _has_no_such_queue(error):
                raise
            # The route was a guess, of a topic that no nameserver knew just then.
            self._client.routes.forget(content.topic)
            raise NoRoute(f"the route of {content.topic} was not its broker's ({error})", retriable=True) from error
        self._silent.discard(receipt.queue.broker_name)
        return receipt

    async def _route_to(self, topic: str) -> TopicRoute:
        try:
            return await route_to(self._client, topic)
        except NoRoute as error:
            raise self._of_route(error, topic) from None

    def _of_route(self, error: NoRoute, topic: str) -> NoRoute:
        """A nameserver that has just started knows no topic until its brokers register."""
        return NoRoute(str(error), retriable=True) if topic == self._known_topic else error

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic (its name on the wire) that can be written; those it will have if brokers make it."""
        route = await retried(f"rows for topic {topic}", lambda: self._route_to(topic), self._retries)
        if not route.publish:
            raise NotSent(f"topic {topic} has no queue that can be written", "check that a master is up, and perm")
        return route.publish


async def retried(what: str, work: Callable[[], Awaitable[_T]], retries: int, *, of_several: bool = False) -> _T:
    """Do it until it is done; what does not pass, or not in so many more tries, is told as NotSent."""
    pause = FIRST_PAUSE
    tries = 0
    while True:
        tries += 1
        try:
            return await work()
        except CometMQError as error:
            if tries > retries or not _may_pass(error):
                again = "" if tries == 1 else f" after {tries} tries"
                raise NotSent(f"{what} could not be sent{again}: {error}", _remedy(error, of_several)) from error
            log.info("%s: %s; tried again in %.1f s", what, error, pause)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def _has_no_such_queue(error: BrokerError) -> bool:
    return "queueId[" in error.remark and "is illegal" in error.remark


def _may_pass(error: CometMQError) -> bool:
    """Whether another try makes sense."""
    return bool(error.retriable) or isinstance(error, NoNameserver)


def _remedy(error: CometMQError, of_several: bool) -> str:
    """What the user of the sink can do. `of_several`: about a request of several rows."""
    if isinstance(error, NoRoute):
        return "create the topic with mqadmin updateTopic, or correct the option topic or the column topic"
    if "max delay" in str(error):
        return "give an earlier deliverTime, or raise timerMaxDelaySec on the brokers"
    if isinstance(error, Unsupported) or any(sign in str(error) for sign in _NO_TIMERS):
        return "the brokers keep no timers: leave the column deliverTime out"
    if isinstance(error, MessageRefused) and of_several:
        return "lower the option sendBytes to what brokers take in one request, or raise maxMessageSize on them"
    if error.code == ResponseCode.NO_PERMISSION:
        return "check accessKey and secretKey, the access rules, and the permission of the topic"
    if isinstance(error, NoNameserver):
        return (
            "check the option nameServer, that the nameservers are up, and that Spark's executors can reach them; or "
            "raise requestTimeoutMs or sendRetries"
        )
    if isinstance(error.__cause__ if isinstance(error, SendFailed) else error, TransportError):
        return (
            "check the broker, and that Spark's executors can reach the address that it registers (brokerIP1); or "
            "raise sendTimeoutMs or sendRetries"
        )
    return (
        error.remedy or "look at the broker's log; Spark sends the rows again when the task or the query is tried again"
    )
