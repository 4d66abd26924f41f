"""The attempts of a send: each goes to a queue, and what comes of it decides whether there is another one.

| an attempt ends in | then | the broker's latency |
|---|---|---|
| stored | receipt; with `retry_when_not_stored_ok` only if SEND_OK | as measured |
| no address of the broker | next attempt, with a fresh route | as measured |
| connect, timeout, lost connection | next attempt; a fresh route if the broker was not there | isolated |
| broker error that is retried | next attempt | isolated, not reachable |
| another broker error | raised | isolated, not reachable |
| cancelled | raised | nothing |

An attempt goes to another broker than the one before, if there is one. A queue that the user or a key chose gets one
attempt. All attempts share one budget of time. RocketMQ's sendDefaultImpl and sendKernelImpl.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.client.errors import Attempt, BrokerError, InvalidMessage, NoBroker, NoNameserver, NoRoute, SendFailed
from cometmq.client.hooks import Hooks, SendContext
from cometmq.client.message import SendReceipt, SendStatus
from cometmq.client.producer.choice import QueueChoice
from cometmq.client.producer.latency import Latencies
from cometmq.client.producer.order import WriteOrder
from cometmq.client.producer.outgoing import Outgoing
from cometmq.client.producer.receipts import receipt_of
from cometmq.client.queues import MessageQueue
from cometmq.client.routes import TopicRoute
from cometmq.protocol import namespaces
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.message_id import wall_millis
from cometmq.protocol.properties import format_properties
from cometmq.protocol.requests.send import SendMessageV2
from cometmq.remoting.errors import ConnectFailed, Timeout, TransportError
from cometmq.remoting.pending import Answer

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)

#: Answers after which another broker is tried (retryResponseCodes). 1500 is handled with the connection.
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
_GO_AWAY: Final = int(ResponseCode.GO_AWAY)
#: Seconds that an attempt may spend on a fresh route, and until it is worth asking for it again.
FRESH_ROUTE: Final = 1.0


class AttemptOptions(NamedTuple):
    """How often and how long; see `Producer`."""

    retries: int
    attempt_timeout: float | None
    retry_when_not_stored_ok: bool
    template: str
    template_queues: int


class Attempts:
    """The attempts of one producer's sends. Mutable state: when routes were asked for again."""

    def __init__(
        self,
        client: "Client",
        group: str,
        options: AttemptOptions,
        choice: QueueChoice,
        latencies: Latencies | None,
        order: WriteOrder,
        hooks: Hooks,
    ) -> None:
        self._client = client
        self._group = group
        self._options = options
        self._choice = choice
        self._latencies = latencies
        self._order = order
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()
        self._asked: dict[str, float] = {}

    async def once(self, outgoing: Outgoing, queue: MessageQueue, deadline: float) -> SendReceipt:
        """One attempt, to a queue that was chosen by the user or by a key."""
        began = self._loop.time()
        try:
            receipt = await self._attempt(outgoing, queue, 0, deadline - began)
        except (TransportError, NoBroker) as error:
            self._note(queue, began, error)
            if _is_gone(error):
                self._refresh_later(outgoing.topic)
            raise SendFailed(outgoing.topic, [Attempt(queue.broker_name, error, self._loop.time() - began)]) from error
        except BrokerError as error:
            self._note(queue, began, error)
            raise
        self._note(queue, began)
        return receipt

    async def all(
        self,
        outgoing: Outgoing,
        route: TopicRoute,
        deadline: float,
        *,
        failed: Attempt | None = None,
        stored: SendReceipt | None = None,
    ) -> SendReceipt:
        """As many attempts as it takes. `failed` or `stored` is how a first one ended that was made elsewhere."""
        options, loop = self._options, self._loop
        attempts = [] if failed is None else [failed]
        avoid = failed.broker_name if failed is not None else stored.queue.broker_name if stored is not None else None
        if failed is not None:
            if not self._may_retry(failed.error, route, failed.broker_name):
                raise failed.error
            route = await self._after(failed.error, route, deadline)
        for number in range(0 if avoid is None else 1, 1 + options.retries):
            began = loop.time()
            budget = deadline - began
            if budget <= 0:
                break
            if options.attempt_timeout is not None and number < options.retries:
                budget = min(budget, options.attempt_timeout)
            queue = self._choice.choose(route, began, avoid)
            try:
                receipt = await self._attempt(outgoing, queue, number, budget)
            except (TransportError, NoBroker, BrokerError) as error:
                self._note(queue, began, error)
                attempts.append(Attempt(queue.broker_name, error, loop.time() - began))
                if not self._may_retry(error, route, queue.broker_name):
                    if stored is not None:
                        return stored
                    raise
                if number < options.retries:
                    route = await self._after(error, route, deadline)
                elif _is_gone(error):
                    self._refresh_later(outgoing.topic)
            else:
                self._note(queue, began)
                if receipt.status is SendStatus.SEND_OK or not options.retry_when_not_stored_ok:
                    return receipt
                stored = receipt
            avoid = queue.broker_name
        if stored is not None:
            return stored
        last = attempts[-1].error if attempts else Timeout(f"no time was left to send to {outgoing.topic}")
        raise SendFailed(outgoing.topic, attempts or [Attempt("-", last, 0.0)]) from last

    async def oneway(self, outgoing: Outgoing, queue: MessageQueue, deadline: float) -> None:
        """Send without an answer. Only errors of this side are raised."""
        with self._order.place(queue.broker_name) as place:
            address = await self._address(outgoing.topic, queue.broker_name)
            context = self._context(outgoing, queue, address, 0, is_oneway=True) if self._hooks.sends else None
            header = self._header(outgoing, queue, context)
            try:
                await self._client.remoting.connect(address, timeout=deadline - self._loop.time())
                await place.turn()
                await self._client.remoting.send_oneway(
                    address, outgoing.code, header, outgoing.body, timeout=deadline - self._loop.time()
                )
            except BaseException as error:
                if context is not None:
                    context.error = error
                raise
            finally:
                if context is not None:
                    self._hooks.after_send(context)

    # One attempt

    async def _attempt(self, outgoing: Outgoing, queue: MessageQueue, number: int, budget: float) -> SendReceipt:
        began = self._loop.time()
        context: SendContext | None = None
        try:
            with self._order.place(queue.broker_name) as place:
                address = await self._address(outgoing.topic, queue.broker_name)
                if self._hooks.sends:
                    context = self._context(outgoing, queue, address, number)
                header = self._header(outgoing, queue, context)
                async with asyncio.timeout_at(began + budget):
                    connection = await self._client.remoting.ready(address, outgoing.code, budget)
                    await place.turn()
                left = began + budget - self._loop.time()
                future = self._client.remoting.write(connection, outgoing.code, header, outgoing.body, max(left, 0.001))
            answer = await future
            if answer.command.code == _GO_AWAY:
                self._client.remoting.leave(address, connection)
                answer = await self._again(address, header, outgoing, began + budget)
            receipt = receipt_of(answer, outgoing.unique_key, self._shown(queue), address)
        except BaseException as error:
            told = error
            if isinstance(error, TimeoutError) and not isinstance(error, Timeout):
                told = Timeout(f"no time was left to send to {queue.broker_name}: others waited there first")
            if context is not None:
                context.error, context.seconds = told, self._loop.time() - began
                self._hooks.after_send(context)
            if told is error:
                raise
            raise told from None
        if context is not None:
            context.receipt, context.seconds = receipt, self._loop.time() - began
            self._hooks.after_send(context)
        return receipt

    async def _again(self, address: str, header: SendMessageV2, outgoing: Outgoing, deadline: float) -> Answer:
        return await self._client.remoting.request(
            address, outgoing.code, header, outgoing.body, timeout=deadline - self._loop.time()
        )

    async def _address(self, topic: str, broker: str) -> str:
        """The master's address; when there is none, a fresh route may know it."""
        brokers = self._client.routes.brokers
        try:
            return brokers.master(broker)
        except NoBroker:
            await self._fresh(topic)
            return brokers.master(broker)

    def _header(self, outgoing: Outgoing, queue: MessageQueue, context: SendContext | None) -> SendMessageV2:
        text = outgoing.properties
        if context is not None:
            self._hooks.check(context)
            self._hooks.before_send(context)
            if context.properties and not outgoing.is_batch:
                text += format_properties(context.properties)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"tag, keys or a property cannot be written as UTF-8: {error}") from None
        return SendMessageV2(
            self._group,
            outgoing.topic,
            self._options.template,
            self._options.template_queues,
            queue.queue_id,
            outgoing.sys_flag,
            wall_millis(),
            outgoing.flag,
            text,
            outgoing.reconsume_times,
            False,
            outgoing.max_reconsume_times,
            outgoing.is_batch,
            queue.broker_name,
        )

    def _context(
        self, outgoing: Outgoing, queue: MessageQueue, address: str, number: int, *, is_oneway: bool = False
    ) -> SendContext:
        client = self._client
        return SendContext(
            group=namespaces.unwrap(client.namespace, self._group),
            topic=namespaces.unwrap(client.namespace, outgoing.topic),
            namespace=client.namespace,
            message=outgoing.message,
            unique_key=outgoing.unique_key,
            properties_text=outgoing.properties,
            body_size=len(outgoing.body),
            queue=self._shown(queue),
            address=address,
            client_address=client.address,
            attempt=number,
            is_oneway=is_oneway,
            is_batch=outgoing.is_batch,
        )

    def _shown(self, queue: MessageQueue) -> MessageQueue:
        namespace = self._client.namespace
        return queue._replace(topic=namespaces.unwrap(namespace, queue.topic)) if namespace else queue

    # Between attempts

    def _may_retry(self, error: Exception, route: TopicRoute, broker: str) -> bool:
        if not isinstance(error, BrokerError):
            return True
        if error.code == ResponseCode.SYSTEM_BUSY:
            # A busy broker is spared: only another one is tried.
            return any(other.broker_name != broker for other in route.publish)
        return error.code in RETRIED_CODES

    async def _after(self, error: Exception, route: TopicRoute, deadline: float) -> TopicRoute:
        """The route for the next attempt: a fresh one if the error says that the old one may be wrong."""
        topic = route.topic
        if not _is_gone(error):
            return route
        is_deleted = getattr(error, "code", None) == ResponseCode.TOPIC_NOT_EXIST
        await self._fresh(topic, min(FRESH_ROUTE, (deadline - self._loop.time()) / 2), is_deleted=is_deleted)
        fresh = self._client.routes.known(topic)
        return fresh if fresh is not None and fresh.publish else route

    async def _fresh(self, topic: str, budget: float = FRESH_ROUTE, *, is_deleted: bool = False) -> None:
        """Ask for the route again, unless somebody just did. What cannot be had leaves the old one.

        Only when a broker says that it does not have the topic, and no nameserver knows it, the topic is forgotten.
        """
        now = self._loop.time()
        if now - self._asked.get(topic, 0.0) < FRESH_ROUTE:
            return
        self._asked[topic] = now
        try:
            async with asyncio.timeout(max(budget, 0.0)):
                await self._client.routes.fetch(topic)
        except NoRoute:
            log.info("the topic %s has no route any more", topic)
            if is_deleted:
                self._client.routes.forget(topic)
        except (TimeoutError, NoNameserver, BrokerError, TransportError) as error:
            log.info("no fresh route for %s: %s", topic, error)

    def _refresh_later(self, topic: str) -> None:
        self._client.scheduler.spawn(self._fresh(topic), f"fresh route of {topic}")

    def _note(self, queue: MessageQueue, began: float, error: Exception | None = None) -> None:
        """What an attempt tells about its broker. With fault tolerance on, the detector is on too: a broker that does
        not answer counts as out of reach until the detector has reached it."""
        if self._latencies is not None:
            now = self._loop.time()
            failed = error is not None and not isinstance(error, NoBroker)
            self._latencies.update(queue.broker_name, now - began, now, isolate=failed, reachable=not failed)


def _is_gone(error: Exception) -> bool:
    """Whether an error means that a broker, or a topic on it, is not where the route says."""
    return isinstance(error, NoBroker | ConnectFailed) or getattr(error, "code", None) == ResponseCode.TOPIC_NOT_EXIST
