"""The forwarder: a consumer that moves a topic's messages to another topic, on the same cluster or on another one.

For a topic that needs more queues, or moves: messages of one sharding key (without one: of one queue) keep their order,
nothing is lost, and a message may come twice, with the same message id. An ordered push consumer reads, a producer
writes, and an offset counts only when the target has the message.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Self

from cometmq.client.audit_stamp import PRODUCER, SEQUENCE, VOID
from cometmq.client.client import Client
from cometmq.client.consumer.subscriptions import Subscription
from cometmq.client.errors import RetryFrom
from cometmq.client.message import Message, ReceivedMessage
from cometmq.client.producer.outgoing import Outgoing
from cometmq.client.producer.selectors import Selector, java_hash
from cometmq.client.queues import MessageQueue
from cometmq.protocol import namespaces
from cometmq.protocol import properties as props
from cometmq.protocol.errors import CometMQError

log = logging.getLogger(__name__)

#: Messages of a queue that are under way at once, as far as their keys allow it.
BATCH_SIZE: Final = 64

#: Properties with a meaning that belong to the message. All others of RocketMQ's belong to its way through the source:
#: a delay that is over must not begin again.
_KEPT: Final = frozenset({
    props.KEYS, props.TAGS, props.WAIT, props.BUYER_ID, props.SHARDING_KEY, props.SHARDING_KEY_GO, props.UNIQ_KEY,
    props.TRACE_CONTEXT, props.CORRELATION_ID, props.REPLY_TO_CLIENT, props.TTL, props.MSG_TYPE,
})  # fmt: skip
#: The numbers of an audit count messages in the source's queues.
_DROPPED: Final = (props.WELL_KNOWN - _KEPT) | {PRODUCER, SEQUENCE, VOID}


class Forwarder:
    """Moves messages while it is open: `async with Forwarder(old, "orders", new, "orders-v2", group="move-orders"):`.

    Both clients are the user's, and may be one and the same. Several forwarders of one group share the queues. Mutable
    state: for queues of which a part failed, what was sent already; and how much was forwarded.
    """

    def __init__(
        self,
        source: Client,
        source_topic: str,
        target: Client,
        target_topic: str,
        *,
        group: str,
        subscription: Subscription = "*",
        selector: Selector = java_hash,
        spread: bool = False,
        batch_size: int = BATCH_SIZE,
        producer_options: dict[str, Any] | None = None,
        **consumer_options: Any,
    ) -> None:
        """`selector` gives the target's queue for a key; the usual one chooses as a Java producer does.

        Messages without a sharding key keep the order of their queue, and so go to one queue each; `spread` gives that
        order up and uses all queues of the target for them. A new group begins with the first message, unless
        `start_from` says otherwise. A message that the target refuses for good holds its queue up, with a log line,
        unless `max_reconsume_times` lets it go to the dead letters of the group.
        """
        if source is target and source_topic == target_topic:
            raise ValueError(f"{source_topic} would be forwarded to itself without end")
        for name in ("ordered", "model", "batch_handler"):
            if name in consumer_options:
                raise TypeError(f"a forwarder has no option {name}")
        self._target = target
        self._topic = target_topic
        self._selector = selector
        self._spread = spread
        self._producer = target.producer(group, **(producer_options or {}))
        self._consumer = source.push_consumer(
            group,
            {source_topic: subscription},
            batch_handler=self._forward,
            batch_size=batch_size,
            ordered=True,
            **{"start_from": "first", **consumer_options},
        )
        self._ahead: dict[MessageQueue, set[int]] = {}
        #: Messages that the target has, by queue of the source.
        self.forwarded: Counter[MessageQueue] = Counter()

    # Its life

    async def start(self) -> None:
        """Begin. NoRoute if the target topic does not exist: it is made before, with the queues that it shall have."""
        await self._producer.start()
        try:
            await self._producer.queues(self._topic)
            await self._consumer.start()
        except BaseException:
            await self._producer.close()
            raise

    async def close(self) -> None:
        """Finish what is under way, and commit."""
        await self._consumer.close()
        await self._producer.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # Forwarding

    async def _forward(self, messages: Sequence[ReceivedMessage]) -> None:
        """Messages of one queue: those of one key one after the other, different keys side by side."""
        queue = messages[0].queue
        queues = await self._producer.queues(self._topic)
        sent = self._ahead.pop(queue, set())
        lanes: dict[str | int, list[ReceivedMessage]] = {}
        for number, message in enumerate(messages):
            if message.queue_offset not in sent:
                lanes.setdefault(self._lane_of(message, number), []).append(message)
        ends = await asyncio.gather(*(self._send_all(lane, queues, sent) for lane in lanes.values()))
        failed = [message for message in ends if message is not None]
        if not failed:
            return
        first = min(failed, key=lambda message: message.queue_offset)
        # Those behind it that the target has already are not sent again, as long as the queue is ours.
        self._ahead[queue] = {offset for offset in sent if offset > first.queue_offset}
        raise RetryFrom(messages.index(first))

    def _lane_of(self, message: ReceivedMessage, number: int) -> str | int:
        key = message.sharding_key
        if key is not None:
            return f"key {key}"
        return number if self._spread else "queue"

    async def _send_all(
        self, lane: list[ReceivedMessage], queues: list[MessageQueue], sent: set[int]
    ) -> ReceivedMessage | None:
        """Send one after the other; the first that failed, or None."""
        for message in lane:
            try:
                await self._producer.send_prepared(self._outgoing(message), self._queue_for(message, queues))
            except Exception as error:
                # Also what a selector raises: the other lanes have to come to their end before anything is tried again.
                trace = None if isinstance(error, CometMQError) else error
                text = "%r could not be forwarded to %s, it is tried again: %s"
                log.warning(text, message, self._topic, error, exc_info=trace)
                return message
            sent.add(message.queue_offset)
            self.forwarded[message.queue] += 1
        return None

    def _queue_for(self, message: ReceivedMessage, queues: list[MessageQueue]) -> MessageQueue | None:
        key = message.sharding_key
        if key is None:
            if self._spread:
                return None
            key = f"{message.queue.broker_name}-{message.queue.queue_id}"
        return self._selector(queues, Message(message.body), key)

    def _outgoing(self, message: ReceivedMessage) -> Outgoing:
        """The message with its own id and properties."""
        pairs = {name: value for name, value in message.properties.items() if name not in _DROPPED}
        pairs.setdefault(props.UNIQ_KEY, message.message_id)
        outgoing = self._producer.pack(
            namespaces.wrap(self._target.namespace, self._topic), Message(message.body, flag=message.flag)
        )
        outgoing.properties = props.format_properties(pairs)
        outgoing.unique_key = pairs[props.UNIQ_KEY]
        return outgoing
