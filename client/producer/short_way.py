"""The short way of an ordinary send: nothing stands between its caller and the connection.

It is open for a topic while its route is known, the connections are up, and the producer has nothing that wants to look
at each message (hooks, a selector, back-pressure, signatures). A first attempt goes this way; whatever does not end
well is handed to `attempts`, which makes the others. What a request looks like is in `paths`.
"""

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from cometmq.client.errors import Attempt, BrokerError, NoBroker
from cometmq.client.message import SendReceipt, SendStatus
from cometmq.client.producer.attempts import AttemptOptions, Attempts
from cometmq.client.producer.choice import QueueChoice
from cometmq.client.producer.latency import Latencies
from cometmq.client.producer.outgoing import Outgoing
from cometmq.client.producer.paths import QueuePath, TopicPath
from cometmq.client.producer.receipts import receipt_of
from cometmq.client.routes import TopicRoute
from cometmq.protocol.codes import ResponseCode
from cometmq.remoting.errors import TransportError
from cometmq.remoting.pending import Answer

if TYPE_CHECKING:
    from cometmq.client.client import Client

_GO_AWAY: Final = int(ResponseCode.GO_AWAY)
#: So much output is not held until the end of the turn (bytes): the broker works on it while others still send. Else
#: client and broker take turns, and many sends at once take the time of both.
EARLY: Final = 64 * 1024


class FirstAttempt(msgspec.Struct):
    """A request that is on its way. One is made for each send."""

    path: TopicPath
    way: QueuePath
    outgoing: Outgoing
    #: Loop time, and seconds for this attempt and all others.
    began: float
    budget: float
    future: asyncio.Future[Answer]


class ShortWay:
    """The short ways of one producer. Mutable state: the topics for which one is open."""

    def __init__(
        self,
        client: "Client",
        group: str,
        options: AttemptOptions,
        choice: QueueChoice,
        latencies: Latencies | None,
        attempts: Attempts,
    ) -> None:
        self._client = client
        self._group = group
        self._options = options
        self._choice = choice
        self._latencies = latencies
        self._attempts = attempts
        self._loop = asyncio.get_running_loop()
        self._ready_now = client.remoting.ready_now
        #: By the user's names of the topics, and by those on the wire.
        self.paths: dict[str, TopicPath] = {}
        self.wire_paths: dict[str, TopicPath] = {}

    def open(self, topic: str, route: TopicRoute) -> None:
        """From now on, ordinary sends to the topic may go this way."""
        try:
            paths = [
                QueuePath(
                    queue._replace(topic=topic),
                    self._client.routes.brokers.master(queue.broker_name),
                    self._group,
                    route.topic,
                    self._options.template,
                    self._options.template_queues,
                )
                for queue in route.publish
            ]
        except NoBroker:
            return  # an ordered topic, one of whose brokers is down
        path = TopicPath(route.topic, route, paths, self._choice.counters)
        self.paths[topic] = self.wire_paths[route.topic] = path

    def close(self) -> None:
        self.paths.clear()
        self.wire_paths.clear()

    def begin(self, path: TopicPath, outgoing: Outgoing, began: float, budget: float) -> FirstAttempt | None:
        """Write a request; None when it would have to wait for a connection. Hot."""
        latencies = self._latencies
        way = path.next() if latencies is None else path.by_queue[self._choice.choose(path.route, began)]
        connection = self._ready_now(way.address)
        if connection is None or self._options.attempt_timeout is not None:
            return None
        body = outgoing.body
        length = len(body)
        pending = connection.pending
        opaque, future = pending.add(outgoing.code, budget)
        try:
            head = way.head(opaque, outgoing, length)
        except BaseException:
            pending.forget(opaque)
            raise
        output = connection.output
        output.put(head, body, length)
        if output.gathered >= EARLY:
            output.flush()
        return FirstAttempt(path, way, outgoing, began, budget, future)

    async def send(self, path: TopicPath, outgoing: Outgoing, deadline: float) -> SendReceipt:
        """The first attempt and, if need be, the others."""
        began = self._loop.time()
        first = self.begin(path, outgoing, began, deadline - began)
        if first is None:
            return await self._attempts.all(outgoing, path.route, deadline)
        return await self.end(first)

    def receipt_now(self, first: FirstAttempt) -> SendReceipt | None:
        """The receipt of an attempt that was answered, if there is nothing more to do about it. Hot."""
        future = first.future
        if self._latencies is None and future.exception() is None:
            answer = future.result()
            if answer.command.code == 0:
                return receipt_of(answer, first.outgoing.unique_key, first.way.queue, first.way.address)
        return None

    async def end(self, first: FirstAttempt) -> SendReceipt:
        """Wait for the answer, and do what it asks for."""
        outgoing, route, deadline = first.outgoing, first.path.route, first.began + first.budget
        broker = first.way.queue.broker_name
        latencies = self._latencies
        try:
            answer = await first.future
            if answer.command.code != _GO_AWAY:
                receipt = receipt_of(answer, outgoing.unique_key, first.way.queue, first.way.address)
        except (TransportError, BrokerError) as error:
            now = self._loop.time()
            failed = Attempt(broker, error, now - first.began)
            if latencies is not None:
                latencies.update(broker, failed.seconds, now, isolate=True, reachable=False)
            return await self._attempts.all(outgoing, route, deadline, failed=failed)
        if answer.command.code == _GO_AWAY:
            # The next attempt hears the same, and leaves the connection.
            return await self._attempts.all(outgoing, route, deadline)
        if latencies is not None:
            now = self._loop.time()
            latencies.update(broker, now - first.began, now)
        if receipt.status is SendStatus.SEND_OK or not self._options.retry_when_not_stored_ok:
            return receipt
        return await self._attempts.all(outgoing, route, deadline, stored=receipt)
