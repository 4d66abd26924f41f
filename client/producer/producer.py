"""The producer: sends messages, one or many at a time, and sees to it that each ends in a receipt or an error.

A send has one budget of time for all its attempts. An attempt that fails moves on to a queue of another broker, unless
the queue was chosen by the user or by a key. What is sent is made in `outgoing`, where it goes is chosen in `choice`
and `selectors`. RocketMQ's DefaultMQProducerImpl.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

from cometmq.client.errors import (
    Attempt,
    BrokerError,
    Closed,
    InvalidMessage,
    NoBroker,
    NoRoute,
    SendFailed,
    Unsupported,
)
from cometmq.client.message import Message, SendReceipt, SendStatus, check_body
from cometmq.client.producer.choice import QueueChoice
from cometmq.client.producer.latency import Latencies, table_of
from cometmq.client.producer.outgoing import (
    MAX_MESSAGE_SIZE,
    Compression,
    Outgoing,
    Packer,
    check_topic,
    delay_of,
)
from cometmq.client.producer.selectors import SELECTORS, Selector, java_hash
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute
from cometmq.protocol import names, namespaces
from cometmq.protocol import properties as props
from cometmq.protocol.batch import BatchItem, encode_batch, item_size
from cometmq.protocol.bodies.heartbeat import ProducerData
from cometmq.protocol.codes import RequestCode, ResponseCode, Version
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.message_id import wall_millis
from cometmq.protocol.requests.send import SendMessageAnswer, SendMessageV2
from cometmq.remoting.errors import Timeout, TransportError
from cometmq.remoting.pending import Answer

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)

#: Seconds for one send with all its attempts (sendMsgTimeout).
SEND_TIMEOUT: Final = 3.0
#: Attempts after the first one (retryTimesWhenSendFailed).
RETRIES: Final = 2
#: Queues a broker gets for a topic that it makes on the first message (defaultTopicQueueNums).
NEW_TOPIC_QUEUES: Final = 4

#: Answers after which another broker is tried. 1500 is handled by the connection.
RETRIED_CODES: Final = frozenset(
    int(code)
    for code in (
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
    )
)

_STATUS: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_TIMERS_SINCE: Final = int(Version.V5_0_0)


class Producer:
    """A member of a producer group. Made by `client.producer(group)`; use it with `async with`.

    Many sends may run at once; they share connections and writes. Mutable state: whether it is open, the counters of
    the round robin, and what is known of the brokers' latency.
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
    ) -> None:
        names.validate_group(group)
        if group == "DEFAULT_PRODUCER":
            raise ValueError("DEFAULT_PRODUCER is the name of no group: choose one for your application")
        self._client = client
        self.group = namespaces.wrap(client.namespace, group)
        self._send_timeout = send_timeout
        self._attempt_timeout = attempt_timeout
        self._retries = retries
        self._retry_when_not_ok = retry_when_not_stored_ok
        self._latencies = Latencies(table_of(latency_table)) if latency_fault_tolerance else None
        self._choice = QueueChoice(self._latencies)
        self._selector = _selector_of(selector)
        self._new_topic_queues = new_topic_queues
        self._create_topic_key = create_topic_key
        self._levels = DelayLevels.parse(delay_levels) if delay_levels else DelayLevels.parse()
        self._packer = Packer(
            client.new_unique_key,
            compression=Compression.of(compression),
            max_message_size=max_message_size,
            instance_id=client.namespace,
        )
        self._max_message_size = max_message_size
        self._topics: set[str] = set()
        self._is_open = False

    # Its life

    async def start(self) -> None:
        self._client.add_producer(self)
        self._loop = asyncio.get_running_loop()
        self._is_open = True

    async def close(self) -> None:
        """Leave the group. Sends that are under way go on to their end."""
        if self._is_open:
            self._is_open = False
            await self._client.remove_producer(self)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def topics(self) -> Iterable[str]:
        return self._topics

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
        if isinstance(body, Message):
            message = body
        else:
            check_body(body)
            message = Message(body, tag, keys, properties, flag, sharding_key, delay, deliver_at, delay_level)
        return await self._send(topic, message, queue, self._send_timeout if timeout is None else timeout)

    async def send_oneway(
        self, topic: str, body: bytes | Message, *, queue: MessageQueue | None = None, **options: Any
    ) -> None:
        """Send a message that nobody answers for: fast, and lost without a word when something goes wrong."""
        message = body if isinstance(body, Message) else Message(body, **options)
        wire_topic, route, outgoing = await self._prepare(topic, message, self._send_timeout)
        target = queue or self._pick(route, message) or self._choice.choose(route, self._loop.time())
        address = self._client.routes.brokers.master(target.broker_name)
        await self._client.remoting.send_oneway(
            address, RequestCode.SEND_MESSAGE_V2, self._header(wire_topic, outgoing, target), outgoing.body
        )

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
        members = [each if isinstance(each, Message) else Message(each) for each in messages]
        if not members:
            raise InvalidMessage("the batch is empty")
        _check_batch(members)
        budget = self._send_timeout if timeout is None else timeout
        receipts: list[SendReceipt] = []
        for chunk, keys in self._chunks(topic, members):
            receipt = await self._send_outgoing(topic, chunk, queue, budget)
            receipts += _receipts_of(receipt, keys)
        return receipts

    async def send_prepared(self, outgoing: Outgoing) -> SendReceipt:
        """Send what was packed elsewhere: messages that are tried again."""
        return await self._send_outgoing(outgoing.topic, outgoing, None, self._send_timeout)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that can be sent to."""
        self._check_open()
        route = await self._client.routes.get(namespaces.wrap(self._client.namespace, topic))
        return list(route.publish)

    # Inside

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed(f"the producer of group {self.group} is not open")
        self._client.check_running()

    async def _send(self, topic: str, message: Message, queue: MessageQueue | None, budget: float) -> SendReceipt:
        deadline = self._client_time() + budget
        wire_topic, route, outgoing = await self._prepare(topic, message, budget)
        target = queue if queue is not None else self._pick(route, message)
        if target is not None:
            return await self._try_once(wire_topic, outgoing, target, deadline)
        return await self._try_all(wire_topic, outgoing, route, deadline)

    async def _send_outgoing(
        self, topic: str, outgoing: Outgoing, queue: MessageQueue | None, budget: float
    ) -> SendReceipt:
        deadline = self._client_time() + budget
        wire_topic, route = await self._route(topic)
        if queue is not None:
            return await self._try_once(wire_topic, outgoing, queue, deadline)
        return await self._try_all(wire_topic, outgoing, route, deadline)

    def _client_time(self) -> float:
        self._check_open()
        return self._loop.time()

    async def _prepare(self, topic: str, message: Message, budget: float) -> tuple[str, TopicRoute, Outgoing]:
        wire_topic, route = await self._route(topic)
        extra = None
        if message.delay_level is not None or message.delay is not None or message.deliver_at is not None:
            extra = await self._delay_properties(route, message)
        return wire_topic, route, self._packer.pack(topic, message, extra)

    async def _route(self, topic: str) -> tuple[str, TopicRoute]:
        self._check_open()
        namespace = self._client.namespace
        wire_topic = namespaces.wrap(namespace, topic) if namespace else topic
        route = self._client.routes.known(wire_topic)
        if route is None or wire_topic not in self._topics:
            check_topic(wire_topic)
            self._topics.add(wire_topic)
            route = route or await self._client.routes.for_send(
                wire_topic, template=self._create_topic_key, template_queues=self._new_topic_queues
            )
        if not route.publish:
            raise NoRoute(f"topic {topic} has no queue that can be written: no master is up, or writing is forbidden")
        return wire_topic, route

    def _pick(self, route: TopicRoute, message: Message) -> MessageQueue | None:
        """The queue that a key or the producer's selector prescribes."""
        key = message.sharding_key
        if key is None and self._selector is None:
            return None
        queue = (self._selector or java_hash)(route.publish, message, key)
        if queue not in route.publish:
            raise InvalidMessage(f"the selector chose {queue}, which is none of the topic's queues")
        return queue

    async def _delay_properties(self, route: TopicRoute, message: Message) -> dict[str, str] | None:
        """A level where there is one; else a timer, if the broker has timers."""
        if message.delay_level is not None:
            return {props.DELAY: str(message.delay_level)} if message.delay_level else None
        wait = delay_of(message)
        assert wait is not None
        if wait <= timedelta(0):
            return None
        level = self._levels.level_of(round(wait.total_seconds() * 1000)) if message.delay is not None else None
        if level is not None:
            return {props.DELAY: str(level)}
        await self._check_timers(route)
        return {props.TIMER_DELIVER_MS: str(wall_millis() + round(wait.total_seconds() * 1000))}

    async def _check_timers(self, route: TopicRoute) -> None:
        """An old broker would deliver at once and say nothing."""
        brokers = self._client.routes.brokers
        for name in {queue.broker_name for queue in route.publish}:
            address = brokers.master(name)
            if address not in brokers.versions:
                await self._client.heartbeats.beat([address])
            version = brokers.versions.get(address)
            if version is not None and version < _TIMERS_SINCE:
                raise Unsupported(
                    f"broker {name} is too old for a delay that is none of its levels: it would deliver at once"
                )

    def _chunks(self, topic: str, members: list[Message]) -> Iterable[tuple[Outgoing, list[str]]]:
        """The batches to send, with the unique keys of their messages."""
        items: list[BatchItem] = []
        keys: list[str] = []
        size = 0
        for member in members:
            self._packer.check_size(member.body)
            pairs = member.property_map()
            key = pairs[props.UNIQ_KEY] = self._client.new_unique_key()
            item = BatchItem(member.flag, member.body, props.encode_properties(pairs))
            needed = item_size(len(item.body), len(item.properties))
            if items and size + needed > self._max_message_size:
                yield self._batch(topic, items, members[0]), keys
                items, keys, size = [], [], 0
            items.append(item)
            keys.append(key)
            size += needed
        yield self._batch(topic, items, members[0]), keys

    def _batch(self, topic: str, items: list[BatchItem], first: Message) -> Outgoing:
        pairs = {props.UNIQ_KEY: self._client.new_unique_key(), props.WAIT: "true" if first.wait_store_ok else "false"}
        text = props.format_properties(pairs)
        return Outgoing(topic, encode_batch(items), text, pairs[props.UNIQ_KEY], is_batch=True)

    def _header(self, topic: str, outgoing: Outgoing, queue: MessageQueue) -> SendMessageV2:
        return SendMessageV2(
            self.group,
            topic,
            self._create_topic_key,
            self._new_topic_queues,
            queue.queue_id,
            outgoing.sys_flag,
            wall_millis(),
            outgoing.flag,
            outgoing.properties,
            outgoing.reconsume_times,
            False,
            outgoing.max_reconsume_times,
            outgoing.is_batch,
            queue.broker_name,
        )

    # Attempts

    async def _attempt(self, topic: str, outgoing: Outgoing, queue: MessageQueue, budget: float) -> SendReceipt:
        address = self._client.routes.brokers.master(queue.broker_name)
        code = RequestCode.SEND_BATCH_MESSAGE if outgoing.is_batch else RequestCode.SEND_MESSAGE_V2
        answer = await self._client.remoting.request(
            address, code, self._header(topic, outgoing, queue), outgoing.body, timeout=budget
        )
        return _receipt_of(answer, outgoing, queue, address)

    async def _try_once(self, topic: str, outgoing: Outgoing, queue: MessageQueue, deadline: float) -> SendReceipt:
        began = self._loop.time()
        try:
            receipt = await self._attempt(topic, outgoing, queue, deadline - began)
        except (TransportError, NoBroker) as error:
            attempt = Attempt(queue.broker_name, error, self._loop.time() - began)
            raise SendFailed(topic, [attempt]) from error
        self._note(queue, began)
        return receipt

    async def _try_all(self, topic: str, outgoing: Outgoing, route: TopicRoute, deadline: float) -> SendReceipt:
        attempts: list[Attempt] = []
        avoid: str | None = None
        stored: SendReceipt | None = None
        for number in range(1 + self._retries):
            began = self._loop.time()
            queue = self._choice.choose(route, began, avoid)
            budget = deadline - began
            if budget <= 0:
                break
            if self._attempt_timeout is not None and number < self._retries:
                budget = min(budget, self._attempt_timeout)
            try:
                receipt = await self._attempt(topic, outgoing, queue, budget)
            except (TransportError, NoBroker) as error:
                self._note(queue, began, isolate=not isinstance(error, NoBroker))
                attempts.append(Attempt(queue.broker_name, error, self._loop.time() - began))
            except BrokerError as error:
                self._note(queue, began, isolate=True, reachable=False)
                attempts.append(Attempt(queue.broker_name, error, self._loop.time() - began))
                if not self._may_retry(error, route, queue):
                    raise
            else:
                self._note(queue, began)
                if receipt.status is SendStatus.SEND_OK or not self._retry_when_not_ok:
                    return receipt
                stored = receipt
            avoid = queue.broker_name
        if stored is not None:
            return stored
        last = attempts[-1].error if attempts else Timeout(f"no time was left to send to {topic}")
        raise SendFailed(topic, attempts or [Attempt("-", last, 0.0)]) from last

    def _may_retry(self, error: BrokerError, route: TopicRoute, queue: MessageQueue) -> bool:
        if error.code == ResponseCode.SYSTEM_BUSY:
            # A busy broker is spared: only another one is tried.
            return any(other.broker_name != queue.broker_name for other in route.publish)
        return error.code in RETRIED_CODES

    def _note(self, queue: MessageQueue, began: float, *, isolate: bool = False, reachable: bool = True) -> None:
        if self._latencies is not None:
            now = self._loop.time()
            self._latencies.update(queue.broker_name, now - began, now, isolate=isolate, reachable=reachable)


def _selector_of(given: Selector | str | None) -> Selector | None:
    if given is None or callable(given):
        return given
    if given not in SELECTORS:
        raise ValueError(f"selector {given!r}: one of {', '.join(SELECTORS)}, or a function")
    return SELECTORS[given]


def _check_batch(members: list[Message]) -> None:
    if any(m.delay_level or m.delay is not None or m.deliver_at is not None for m in members):
        raise InvalidMessage("a batch cannot be delayed: send its messages one by one")
    if len({member.wait_store_ok for member in members}) > 1:
        raise InvalidMessage("the messages of a batch need one and the same wait_store_ok")


def _receipt_of(answer: Answer, outgoing: Outgoing, queue: MessageQueue, address: str) -> SendReceipt:
    status = _STATUS.get(answer.code)
    if status is None:
        raise BrokerError.of(answer, address)
    header = answer.header(SendMessageAnswer)
    return SendReceipt(
        status,
        header.batch_uniq_id or outgoing.unique_key,
        header.msg_id,
        MessageQueue(queue.topic, queue.broker_name, header.queue_id),
        header.queue_offset,
        header.transaction_id,
        header.msg_region or "DefaultRegion",
        header.trace_on is not False,
        header.recall_handle,
    )


def _receipts_of(receipt: SendReceipt, keys: list[str]) -> list[SendReceipt]:
    """The receipt of a batch, taken apart. An inner batch has one place for all its messages."""
    ids = receipt.offset_message_id.split(",")
    if len(ids) != len(keys):
        ids = [receipt.offset_message_id] * len(keys)
    return [
        SendReceipt(
            receipt.status,
            key,
            offset_id,
            receipt.queue,
            receipt.queue_offset + number,
            None,
            receipt.region_id,
            receipt.trace_on,
        )
        for number, (key, offset_id) in enumerate(zip(keys, ids, strict=True))
    ]
