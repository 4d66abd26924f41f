"""Where a message goes: the route of its topic, and the queue that its user, a key or a selector prescribes.

Without such a queue any of the topic will do: see `choice`. RocketMQ's tryToFindTopicPublishInfo and sendSelectImpl.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.client.errors import InvalidMessage
from cometmq.client.message import Message
from cometmq.client.producer.attempts import AttemptOptions
from cometmq.client.producer.budget import within
from cometmq.client.producer.order import WriteOrder
from cometmq.client.producer.outgoing import check_topic
from cometmq.client.producer.selectors import SELECTORS, Selector, java_hash
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute, why_unwritable
from cometmq.protocol import namespaces

if TYPE_CHECKING:
    from cometmq.client.client import Client


class Destinations:
    """The topics of one producer. Mutable state: which they are."""

    def __init__(
        self,
        client: "Client",
        options: AttemptOptions,
        selector: Selector | None,
        order: WriteOrder,
        found: Callable[[str, TopicRoute], None],
    ) -> None:
        """`found` is told of every topic that is about to be sent to, by its user's name for it."""
        self._client = client
        self._options = options
        self._selector = selector
        self._order = order
        self._found = found
        #: As on the wire.
        self.topics: set[str] = set()

    async def resolve(
        self, topic: str, message: Message | None, queue: MessageQueue | None, deadline: float
    ) -> tuple[TopicRoute, MessageQueue | None]:
        """The route of a topic, and the queue (as on the wire) that is prescribed, if one is."""
        route = await self._route(topic, deadline)
        if queue is not None:
            if queue.topic not in (topic, route.topic):
                raise InvalidMessage(f"{queue} is no queue of the topic {topic}")
            return route, queue if queue.topic == route.topic else queue._replace(topic=route.topic)
        if message is None or (message.sharding_key is None and self._selector is None):
            return route, None
        namespace = self._client.namespace
        shown = [each._replace(topic=topic) for each in route.publish] if namespace else route.publish
        chosen = (self._selector or java_hash)(shown, message, message.sharding_key)
        if chosen not in shown:
            raise InvalidMessage(f"the selector chose {chosen}, which is none of the topic's queues")
        return route, chosen._replace(topic=route.topic) if namespace else chosen

    async def _route(self, topic: str, deadline: float) -> TopicRoute:
        """The route, asked for when it is not known. Those who wait for it go on in the order in which they came."""
        client = self._client
        wire_topic = namespaces.wrap(client.namespace, topic) if client.namespace else topic
        route = client.routes.known(wire_topic)
        if route is None or wire_topic not in self.topics or wire_topic in self._order.lines:
            check_topic(wire_topic)
            with self._order.place(wire_topic) as place:
                async with within(deadline, f"finding the route of {topic}"):
                    if route is None:
                        route = await client.routes.for_send(
                            wire_topic, template=self._options.template, template_queues=self._options.template_queues
                        )
                    await place.turn()
            self.topics.add(wire_topic)
        if not route.publish:
            raise why_unwritable(route, topic)
        self._found(topic, route)
        return route


def selector_of(given: Selector | str | None) -> Selector | None:
    """A selector by its name, or the user's own."""
    if given is None or callable(given):
        return given
    if given not in SELECTORS:
        raise ValueError(f"selector {given!r}: one of {', '.join(SELECTORS)}, or a function")
    return SELECTORS[given]
