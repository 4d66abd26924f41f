"""Which queue gets the next message: round robin, away from the broker that just failed, and from slow ones if asked.

RocketMQ's TopicPublishInfo.selectOneMessageQueue and MQFaultStrategy.
"""

import random
from collections.abc import Callable

from cometmq.client.producer.latency import Latencies
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute


class QueueChoice:
    """The round robin of a producer. Mutable state: a counter for each topic."""

    def __init__(self, latencies: Latencies | None = None) -> None:
        """Without `latencies` only the broker of the last attempt is avoided."""
        self._latencies = latencies
        #: By topic; starts anywhere.
        self.counters: dict[str, int] = {}

    def choose(self, route: TopicRoute, now: float, avoid: str | None = None) -> MessageQueue:
        """The next queue; `avoid` is the broker of the attempt before. Hot when nothing is to be avoided."""
        queues = route.publish
        counters = self.counters
        topic = route.topic
        count = counters.get(topic)
        if count is None:
            count = random.randrange(1 << 16)
        counters[topic] = count = count + 1
        latencies = self._latencies
        if latencies is None:
            if avoid is None:
                return queues[count % len(queues)]
            return self._first(route, count, lambda queue: queue.broker_name != avoid) or queues[count % len(queues)]
        if avoid is not None:
            counters[topic] = count = random.randrange(1 << 16)
        return (
            self._first(route, count, lambda q: q.broker_name != avoid and latencies.is_available(q.broker_name, now))
            or self._first(route, count, lambda q: q.broker_name != avoid and latencies.is_reachable(q.broker_name))
            or queues[count % len(queues)]
        )

    def _first(self, route: TopicRoute, count: int, is_good: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        queues = route.publish
        for step in range(len(queues)):
            queue = queues[(count + step) % len(queues)]
            if is_good(queue):
                if step:
                    self.counters[route.topic] = count + step
                return queue
        return None
