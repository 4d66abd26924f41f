"""The producer: sends messages, one or many at a time, and sees to it that each ends in a receipt or an error.

Here is what its users call. What is sent is made in `outgoing`, where it goes is found in `destinations` and `choice`,
an ordinary send goes by the `short_way`, and what happens when something goes wrong is in `attempts`. RocketMQ's
DefaultMQProducerImpl.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from cometmq.client.errors import (
    Closed,
    InvalidMessage,
)
from cometmq.client.hooks import Hooks
from cometmq.client.message import Message, SendReceipt, check_body
from cometmq.client.producer.accumulate import Accumulate, Accumulator
from cometmq.client.producer.attempts import AttemptOptions, Attempts
from cometmq.client.producer.budget import within
from cometmq.client.producer.choice import QueueChoice
from cometmq.client.producer.delays import Delays
from cometmq.client.producer.destinations import Destinations, selector_of
from cometmq.client.producer.detector import ROUND, Detector
from cometmq.client.producer.latency import Latencies, table_of
from cometmq.client.producer.order import WriteOrder
from cometmq.client.producer.outgoing import (
    MAX_MESSAGE_SIZE,
    Compression,
    Outgoing,
    Packer,
    check_batch,
    chunks,
)
from cometmq.client.producer.paths import TopicPath
from cometmq.client.producer.pressure import BackPressure, Pressure
from cometmq.client.producer.recall import recall
from cometmq.client.producer.receipts import receipt_of, receipts_of
from cometmq.client.producer.request_reply import Reply, make_known, wait_for_reply
from cometmq.client.producer.selectors import Selector
from cometmq.client.producer.short_way import FirstAttempt, ShortWay
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute
from cometmq.client.scheduler import Scheduler
from cometmq.protocol import names, namespaces
from cometmq.protocol import properties as props
from cometmq.protocol.bodies.heartbeat import ProducerData
from cometmq.protocol.message_id import wall_millis
from cometmq.remoting.errors import TransportError

if TYPE_CHECKING:
    from cometmq.client.client import Client
    from cometmq.client.trace import TraceDispatcher

log = logging.getLogger(__name__)

#: Seconds for one send with all its attempts (sendMsgTimeout).
SEND_TIMEOUT: Final = 3.0
#: Attempts after the first one (retryTimesWhenSendFailed).
RETRIES: Final = 2
#: Queues a broker gets for a topic that it makes on the first message (defaultTopicQueueNums).
NEW_TOPIC_QUEUES: Final = 4


class Producer:
    """A member of a producer group. Made by `client.producer(group)`; use it with `async with`.

    Many sends may run at once; they share connections and writes. Mutable state: whether it is open, the ways to
    topics, the counters of the round robin, and what is known of the brokers' latency.
    """

    def __init__(
        self,
        client: "Client",
        group: str,
        *,
        send_timeout: float = SEND_TIMEOUT,
        attempt_timeout: float | None = None,
        retries: int = RETRIES,
        retry_when_not_stored_ok: bool = False,
        latency_fault_tolerance: bool = False,
        latency_table: str | tuple[Sequence[int], Sequence[int]] | None = None,
        selector: Selector | str | None = None,
        compression: Compression | str | None = "zlib",
        max_message_size: int = MAX_MESSAGE_SIZE,
        new_topic_queues: int = NEW_TOPIC_QUEUES,
        create_topic_key: str = names.DEFAULT_TOPIC,
        delay_levels: str | None = None,
        accumulate: Accumulate | bool | None = None,
        back_pressure: BackPressure | bool | None = None,
        hooks: Iterable[object] = (),
        trace: bool | str = False,
    ) -> None:
        """`latency_fault_tolerance` avoids brokers that are slow or fail, and asks failed ones when they are back.

        `accumulate` turns sends that happen at the same time into batches. `hooks` are objects with any of the methods
        of `SendHook`. `trace` writes RocketMQ's message trace, to the topic of that name if one is given.
        """
        names.validate_group(group)
        if group == "DEFAULT_PRODUCER":
            raise ValueError("DEFAULT_PRODUCER is the name of no group: choose one for your application")
        self._client = client
        self.group = namespaces.wrap(client.namespace, group)
        self._send_timeout = send_timeout
        self._options = AttemptOptions(
            retries, attempt_timeout, retry_when_not_stored_ok, create_topic_key, new_topic_queues
        )
        self._latencies = Latencies(table_of(latency_table)) if latency_fault_tolerance else None
        self._choice = QueueChoice(self._latencies)
        self._selector = selector_of(selector)
        self._delays = Delays(client, delay_levels)
        self._packer = Packer(
            client.new_unique_key,
            compression=Compression.of(compression),
            max_message_size=max_message_size,
            instance_id=client.namespace,
        )
        self._max_message_size = max_message_size
        self._accumulate = Accumulate.of(accumulate)
        self._accumulator: Accumulator | None = None
        self._takes_plain = self._packer.has_plain_items
        pressure = BackPressure.of(back_pressure)
        self._pressure = None if pressure is None else Pressure(pressure)
        self._given_hooks = list(hooks)
        self._trace = trace
        self._traces: TraceDispatcher | None = None
        self._order = WriteOrder()
        self._destinations = Destinations(client, self._options, self._selector, self._order, self._found)
        #: The short ways that are open, by the user's names of the topics.
        self._paths: dict[str, TopicPath] = {}
        self._is_open = False

    # Its life

    async def start(self) -> None:
        self._client.add_producer(self)
        self._loop = asyncio.get_running_loop()
        hooks = list(self._given_hooks)
        if self._trace:
            from cometmq.client.trace import TraceDispatcher, TraceSendHook

            topic = self._trace if isinstance(self._trace, str) else None
            self._traces = TraceDispatcher(self._client, self.group, "PRODUCE", topic)
            await self._traces.start()
            hooks.append(TraceSendHook(self._traces))
        self._hooks = Hooks(hooks)
        #: Nothing wants to look at each message.
        self._takes_short = not (
            self._hooks.sends or self._selector or self._pressure is not None or self._client.is_signing
        )
        self._attempts = Attempts(
            self._client, self.group, self._options, self._choice, self._latencies, self._order, self._hooks
        )
        self._short = ShortWay(self._client, self.group, self._options, self._choice, self._latencies, self._attempts)
        self._paths = self._short.paths
        if self._accumulate is not None:
            self._accumulator = Accumulator(
                self._accumulate, self._packer, self._short, begin=self._begin_batch, send=self._send_packed
            )
        self._scheduler = Scheduler()
        if self._latencies is not None:
            detector = Detector(self._client, self._latencies)
            self._scheduler.every(
                ROUND, lambda: detector.round(self._destinations.topics), "reachability of the brokers"
            )
        self._client.routes.on_changed.append(self._route_changed)
        self._client.routes.on_forgotten.append(self._route_changed)
        self._is_open = True

    async def close(self) -> None:
        """Leave the group. Sends that are under way go on to their end."""
        if not self._is_open:
            return
        self._is_open = False
        self._short.close()
        async with AsyncExitStack() as rest:
            rest.push_async_callback(self._client.remove_producer, self)
            rest.callback(self._client.routes.on_forgotten.remove, self._route_changed)
            rest.callback(self._client.routes.on_changed.remove, self._route_changed)
            rest.push_async_callback(self._scheduler.close)
            if self._traces is not None:
                rest.push_async_callback(self._traces.close)
            if self._accumulator is not None:
                await self._accumulator.close()

    def forked(self) -> None:
        """This is another process now: nothing may go the short way, so that the next send says so."""
        if self._is_open:
            self._short.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def topics(self) -> Iterable[str]:
        return self._destinations.topics

    def heartbeat(self) -> ProducerData:
        return ProducerData(group_name=self.group)

    # Sending

    async def send(
        self,
        topic: str,
        body: bytes | Message,
        *,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        sharding_key: str | None = None,
        delay: timedelta | None = None,
        deliver_at: datetime | None = None,
        delay_level: int | None = None,
        queue: MessageQueue | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - one budget for route and all attempts
    ) -> SendReceipt:
        """Send one message and wait until the broker has it.

        Give the body with its options, or a `Message`. Messages of one `sharding_key` go to one queue; these, and
        messages for an explicit `queue`, are tried once. Cancelling may leave the message stored.
        """
        if (
            queue is None
            and sharding_key is None
            and delay is None
            and deliver_at is None
            and delay_level is None
            and body.__class__ is bytes
        ):
            path = self._paths.get(topic)
            if path is not None and not self._order.lines:
                # The short way. Written out here, because every call counts: see `paths`.
                accumulator = self._accumulator
                if accumulator is not None and timeout is None and accumulator.held < accumulator.limit:
                    if self._takes_plain and not (tag or keys or properties or flag):
                        return await accumulator.add_plain(path, body)
                    item = self._packer.item(body, tag, keys, properties, flag)
                    return await accumulator.add((path.topic, None, True, tag), path.route, body, item)
                outgoing = self._packer.pack(path.topic, body, tag, keys, properties, flag)
                budget = self._send_timeout if timeout is None else timeout
                began = self._loop.time()
                first = self._short.begin(path, outgoing, began, budget)
                if first is None:
                    return await self._attempts.all(outgoing, path.route, began + budget)
                try:
                    answer = await first.future
                except TransportError:
                    return await self._short.end(first)
                if answer.command.code == 0 and self._latencies is None:
                    return receipt_of(answer, outgoing.unique_key, first.way.queue, first.way.address)
                return await self._short.end(first)
        if isinstance(body, Message):
            message = body
        else:
            check_body(body)
            message = Message(body, tag, keys, properties, flag, sharding_key, delay, deliver_at, delay_level)
        return await self._send_message(topic, message, queue, timeout)

    async def send_oneway(
        self, topic: str, body: bytes | Message, *, queue: MessageQueue | None = None, **options: Any
    ) -> None:
        """Send a message that nobody answers for: fast, and lost without a word when something goes wrong."""
        message = body if isinstance(body, Message) else Message(body, **options)
        deadline = self._now() + self._send_timeout
        route, target = await self._destinations.resolve(topic, message, queue, deadline)
        extra = await self._delay_properties(route, message, deadline)
        outgoing = self._packer.pack_message(route.topic, message, extra)
        await self._attempts.oneway(outgoing, target or self._choice.choose(route, self._loop.time()), deadline)

    async def send_batch(
        self,
        topic: str,
        messages: Iterable[bytes | Message],
        *,
        queue: MessageQueue | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the budget of each request
    ) -> list[SendReceipt]:
        """Send many messages of one topic with few requests; a receipt for each, in their order.

        A batch that would be too large is sent as several, one after the other. What the last one met is raised:
        those before it are stored then.
        """
        members = list(messages)
        if not members:
            raise InvalidMessage("the batch is empty")
        wait = check_batch(members)
        budget = self._send_timeout if timeout is None else timeout
        deadline = self._now() + budget
        route, target = await self._destinations.resolve(topic, None, queue, deadline)
        if route.topic.startswith(names.RETRY_PREFIX):
            raise InvalidMessage("a batch cannot go to a retry topic: send its messages one by one")
        receipts: list[SendReceipt] = []
        for pieces, keys in chunks(self._packer, members, self._max_message_size):
            outgoing = self._packer.batch(route.topic, pieces, keys, wait_store_ok=wait)
            receipt = await self._send_packed(outgoing, route, target, deadline)
            receipts += receipts_of(receipt, keys)
            deadline = self._loop.time() + budget
        return receipts

    async def request(
        self,
        topic: str,
        body: bytes | Message,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - one budget for send and reply
        queue: MessageQueue | None = None,
        **options: Any,
    ) -> Reply:
        """Send a message and wait for what its consumer replies (`message.reply(body)`). ReplyTimeout without one."""
        message = body if isinstance(body, Message) else Message(body, **options)
        budget = self._send_timeout if timeout is None else timeout
        began = self._now()
        route, target = await self._destinations.resolve(topic, message, queue, began + budget)
        async with within(began + budget, "telling the brokers who waits for the reply"):
            await make_known(self._client, route)
        correlation, future = self._client.replies.expect()
        try:
            extra = {
                props.CORRELATION_ID: correlation,
                props.REPLY_TO_CLIENT: self._client.client_id,
                props.TTL: str(round(budget * 1000)),
            }
            outgoing = self._packer.pack_message(route.topic, message, extra)
            await self._send_packed(outgoing, route, target, began + budget)
            return await wait_for_reply(future, topic, budget, began)
        finally:
            self._client.replies.forget(correlation)

    async def recall(self, topic: str, handle: str) -> str:
        """Take back a message with a delivery time that has not come yet; `handle` is its receipt's `recall_handle`.

        Returns its message id. Brokers since 5.3.2 can do it; others raise NotSupported.
        """
        self._check_open()
        wire_topic = namespaces.wrap(self._client.namespace, topic)
        if wire_topic.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
            raise InvalidMessage("messages of retry and dead letter topics cannot be recalled")
        return await recall(self._client, wire_topic, handle, self.group, self._send_timeout)

    async def send_prepared(self, outgoing: Outgoing, queue: MessageQueue | None = None) -> SendReceipt:
        """Send what was packed elsewhere: messages that are tried again, replies, traces."""
        deadline = self._now() + self._send_timeout
        route, target = await self._destinations.resolve(outgoing.topic, None, queue, deadline)
        return await self._send_packed(outgoing, route, target, deadline)

    def pack(self, topic: str, message: Message, extra: dict[str, str] | None = None) -> Outgoing:
        """A message ready for `send_prepared`; `topic` as it goes on the wire."""
        return self._packer.pack_message(topic, message, extra)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that can be sent to."""
        self._check_open()
        route = await self._client.routes.get(namespaces.wrap(self._client.namespace, topic))
        return [queue._replace(topic=topic) for queue in route.publish]

    # The usual way

    def _now(self) -> float:
        self._check_open()
        return self._loop.time()

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed(f"the producer of group {self.group} is not open")
        self._client.check_running()

    async def _send_message(
        self, topic: str, message: Message, queue: MessageQueue | None, given: float | None
    ) -> SendReceipt:
        budget = self._send_timeout if given is None else given
        deadline = self._now() + budget
        route, target = await self._destinations.resolve(topic, message, queue, deadline)
        extra = await self._delay_properties(route, message, deadline)
        accumulator = self._accumulator
        if (
            accumulator is not None
            and given is None
            and extra is None
            and not accumulator.is_full
            and not route.topic.startswith(names.RETRY_PREFIX)
        ):
            item = self._packer.message_item(message)
            together = (route.topic, target, message.wait_store_ok, message.tag)
            return await accumulator.add(together, route, message.body, item)
        outgoing = self._packer.pack_message(route.topic, message, extra)
        return await self._send_packed(outgoing, route, target, deadline)

    async def _send_packed(
        self, outgoing: Outgoing, route: TopicRoute, queue: MessageQueue | None, deadline: float | None = None
    ) -> SendReceipt:
        if deadline is None:
            deadline = self._loop.time() + self._send_timeout
        if queue is None and not self._order.lines and outgoing.is_ordinary:
            path = self._short.wire_paths.get(outgoing.topic)
            if path is not None:
                outgoing.born = wall_millis()
                return await self._short.send(path, outgoing, deadline)
        pressure = self._pressure
        if pressure is None:
            if queue is not None:
                return await self._attempts.once(outgoing, queue, deadline)
            return await self._attempts.all(outgoing, route, deadline)
        size = len(outgoing.body)
        await pressure.enter(size, deadline - self._loop.time())
        try:
            if queue is not None:
                return await self._attempts.once(outgoing, queue, deadline)
            return await self._attempts.all(outgoing, route, deadline)
        finally:
            pressure.leave(size)

    def _begin_batch(self, outgoing: Outgoing) -> FirstAttempt | None:
        """A batch on the short way; None when that is not open, or somebody waits in a line."""
        path = self._short.wire_paths.get(outgoing.topic)
        if path is None or self._order.lines:
            return None
        outgoing.born = wall_millis()
        return self._short.begin(path, outgoing, self._loop.time(), self._send_timeout)

    async def _delay_properties(self, route: TopicRoute, message: Message, deadline: float) -> dict[str, str] | None:
        if message.delay is None and message.deliver_at is None and message.delay_level is None:
            return None
        async with within(deadline, "asking the brokers whether they have timers"):
            return await self._delays.properties(route, message)

    def _found(self, topic: str, route: TopicRoute) -> None:
        if topic not in self._paths and self._takes_short and self._is_open:
            self._short.open(topic, route)

    def _route_changed(self, route: TopicRoute) -> None:
        # The address of a broker may be another one now, for other topics too.
        self._short.close()
