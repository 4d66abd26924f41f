"""`App`: functions with a decorator become consumers; for web applications and worker processes.

A thin layer: listeners of one group are one push consumer, bodies are converted by the annotation of the handler's
argument (`handlers`), and the client lives as long as the web application's lifespan or the worker process. The client
is made at the start, so that an application may be started again (tests do) and survives the fork of a web server.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

from cometmq.client.client import Client, connect
from cometmq.client.consumer.subscriptions import Subscription
from cometmq.client.errors import Closed
from cometmq.client.handlers import HandlerCall
from cometmq.client.message import Message, ReceivedMessage, SendReceipt
from cometmq.client.producer import Producer
from cometmq.client.producer.request_reply import Reply

log = logging.getLogger(__name__)

_Function = TypeVar("_Function", bound=Callable[..., Any])


class App:
    """The consumers and producers of an application: `app = App("127.0.0.1:9876")`.

    `nameservers` and the options are those of `cometmq.connect`. Mutable state: what was declared, and the client
    while it runs.
    """

    def __init__(self, nameservers: str | Iterable[str] | None = None, **options: Any) -> None:
        self._nameservers = nameservers
        self._options = options
        self._groups: dict[str, _ListenerGroup] = {}
        self._producers: dict[str, AppProducer] = {}
        self._client: Client | None = None

    # What it consists of

    def listener(
        self, topic: str, *, group: str, subscription: Subscription = "*", **options: Any
    ) -> Callable[[_Function], _Function]:
        """Let a function get the messages of a topic; the options are those of `push_consumer`.

        The annotation of its argument says what it gets: `bytes`, `str`, something that JSON turns into (`dict`,
        `list`, a dataclass, a msgspec Struct, ...), or the whole `ReceivedMessage`. A second argument that is annotated
        `ReceivedMessage` gets that one too. A plain function runs in a thread.
        """
        if self._client is not None:
            raise RuntimeError(f"the listener for {topic} comes too late: the application runs already")

        def add(function: _Function) -> _Function:
            listeners = self._groups.setdefault(group, _ListenerGroup(group, options))
            listeners.add(topic, subscription, HandlerCall(function), options)
            return function

        return add

    def producer(self, group: str, **options: Any) -> "AppProducer":
        """A producer that sends while the application runs; the options are those of `Client.producer`."""
        if self._client is not None:
            raise RuntimeError(f"the producer of group {group} comes too late: the application runs already")
        if group in self._producers:
            raise ValueError(f"the application has a producer of the group {group} already")
        producer = self._producers[group] = AppProducer(group, options)
        return producer

    @property
    def mq(self) -> Client:
        """The client, while the application runs: for everything that has no decorator."""
        if self._client is None:
            raise Closed("the application does not run")
        return self._client

    # Its life

    async def start(self) -> None:
        if self._client is not None:
            raise RuntimeError("the application runs already")
        client = self._client = connect(self._nameservers, **self._options)
        try:
            await client.start()
            for producer in self._producers.values():
                await producer.start(client)
            for group in self._groups.values():
                await group.start(client)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Finish what runs, and leave. It may be started again."""
        client, self._client = self._client, None
        for producer in self._producers.values():
            producer.running = None
        if client is not None:
            await client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncIterator[None]:
        """For web frameworks: `Starlette(lifespan=app.lifespan)`, `FastAPI(lifespan=app.lifespan)`."""
        async with self:
            yield

    def run(self) -> None:
        """Be a worker process: consume until SIGINT or SIGTERM, then finish what runs. A second signal ends at once."""
        from cometmq import daemon

        # Nobody else speaks for a worker process: without this, the reasons of failures would be seen by nobody.
        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s - %(message)s")

        async def serve(stop: asyncio.Event) -> None:
            async with self:
                log.info("consuming: %s", ", ".join(str(group) for group in self._groups.values()) or "nothing")
                await stop.wait()

        daemon.run(serve)


class AppProducer:
    """A producer of an application: made at import time, usable while the application runs."""

    def __init__(self, group: str, options: dict[str, Any]) -> None:
        self.group = group
        self._options = options
        self.running: Producer | None = None

    async def start(self, client: Client) -> None:
        producer = client.producer(self.group, **self._options)
        await producer.start()
        self.running = producer

    @property
    def _open(self) -> Producer:
        if self.running is None:
            raise Closed(f"the application does not run, so its producer of group {self.group} cannot send")
        return self.running

    async def send(self, topic: str, body: bytes | Message, **options: Any) -> SendReceipt:
        """See `Producer.send`."""
        return await self._open.send(topic, body, **options)

    async def send_oneway(self, topic: str, body: bytes | Message, **options: Any) -> None:
        """See `Producer.send_oneway`."""
        await self._open.send_oneway(topic, body, **options)

    async def send_batch(self, topic: str, messages: Iterable[bytes | Message], **options: Any) -> list[SendReceipt]:
        """See `Producer.send_batch`."""
        return await self._open.send_batch(topic, messages, **options)

    async def request(self, topic: str, body: bytes | Message, **options: Any) -> Reply:
        """See `Producer.request`."""
        return await self._open.request(topic, body, **options)


class _ListenerGroup:
    """The listeners of one group: RocketMQ wants every member of a group to have the same subscriptions."""

    def __init__(self, group: str, options: dict[str, Any]) -> None:
        self._group = group
        self._options = options
        self._subscriptions: dict[str, Subscription] = {}
        self._calls: dict[str, HandlerCall] = {}

    def add(self, topic: str, subscription: Subscription, call: HandlerCall, options: dict[str, Any]) -> None:
        if topic in self._calls:
            raise ValueError(
                f"group {self._group} has a listener for {topic} already: each message of a group goes to one of them; "
                "use another group if both shall get it"
            )
        if options != self._options:
            raise ValueError(f"the listeners of group {self._group} are one consumer: give them the same options")
        self._subscriptions[topic] = subscription
        self._calls[topic] = call

    async def start(self, client: Client) -> None:
        all_coroutines = all(call.is_coroutine for call in self._calls.values())
        handler = self._handle if all_coroutines else self._handle_in_thread
        await client.push_consumer(self._group, self._subscriptions, handler, **self._options).start()

    async def _handle(self, message: ReceivedMessage) -> None:
        await self._calls[message.topic](message)

    def _handle_in_thread(self, message: ReceivedMessage) -> Any:
        """The consumer runs this in a thread, and awaits what it gives in the loop."""
        return self._calls[message.topic](message)

    def __str__(self) -> str:
        return f"{' and '.join(self._calls)} as {self._group}"
