"""The same SDK without `await`: for Django, scripts and threads.

One loop runs on a background thread for each client; every call here runs the asyncio method of the same name there and
waits for it. There is no second implementation. The objects may be used from many threads at once. Not from a running
loop: that would stand still meanwhile; and not after a fork: threads do not survive one.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from cometmq.client import client as asyncio_client
from cometmq.client.admin import Admin as AsyncAdmin
from cometmq.client.consumer.handling import is_coroutine
from cometmq.client.consumer.pull import PullConsumer as AsyncPullConsumer
from cometmq.client.consumer.push import PushConsumer as AsyncPushConsumer
from cometmq.client.consumer.subscriptions import ALL, Subscription
from cometmq.client.errors import ClientError
from cometmq.client.message import Message, ReceivedMessage, SendReceipt
from cometmq.client.producer import Producer as AsyncProducer
from cometmq.client.producer.request_reply import Reply
from cometmq.client.queues import MessageQueue

_T = TypeVar("_T")


class WrongThread(ClientError):
    """Raised when a blocking call is made where it would stop an event loop, or in the child of a fork."""


class _Loop:
    """A loop on a thread of its own."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cometmq sync", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        if os.getpid() != self._pid:
            work.close()
            raise WrongThread("this client was made before a fork: make a new one in the child process")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run it there and wait. Ctrl-C while waiting cancels it."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            work.close()
            raise WrongThread("this would stop the running event loop: use cometmq.connect() and await")
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop and its thread, and the threads that it used for files and lookups."""
        asyncio.run_coroutine_threadsafe(self._loop.shutdown_default_executor(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Wrapped(Generic[_T]):
    """What start, close and `with` are for all of them."""

    def __init__(self, loop: _Loop, inner: _T) -> None:
        self._loop = loop
        self._inner: Any = inner

    def start(self) -> None:
        self._loop.run(self._inner.start())

    def close(self) -> None:
        self._loop.run(self._inner.close())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Producer(_Wrapped[AsyncProducer]):
    """`cometmq.Producer` without await."""

    def send(self, topic: str, body: bytes | Message, **options: Any) -> SendReceipt:
        receipt: SendReceipt = self._loop.run(self._inner.send(topic, body, **options))
        return receipt

    def send_async(
        self,
        topic: str,
        body: bytes | Message,
        *,
        on_success: Callable[[SendReceipt], None] | None = None,
        on_error: Callable[[BaseException], None] | None = None,
        **options: Any,
    ) -> "Future[SendReceipt]":
        """Send without waiting; the callbacks run on the client's thread and must not block it."""
        future: Future[SendReceipt] = self._loop.submit(self._inner.send(topic, body, **options))

        def done(ended: "Future[SendReceipt]") -> None:
            error = ended.exception() if not ended.cancelled() else None
            if error is not None:
                if on_error is not None:
                    on_error(error)
            elif on_success is not None and not ended.cancelled():
                on_success(ended.result())

        if on_success is not None or on_error is not None:
            future.add_done_callback(done)
        return future

    def send_oneway(self, topic: str, body: bytes | Message, **options: Any) -> None:
        self._loop.run(self._inner.send_oneway(topic, body, **options))

    def send_batch(self, topic: str, messages: Iterable[bytes | Message], **options: Any) -> list[SendReceipt]:
        return self._loop.run(self._inner.send_batch(topic, messages, **options))

    def request(self, topic: str, body: bytes | Message, **options: Any) -> Reply:
        reply: Reply = self._loop.run(self._inner.request(topic, body, **options))
        return reply

    def recall(self, topic: str, handle: str) -> str:
        message_id: str = self._loop.run(self._inner.recall(topic, handle))
        return message_id

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._loop.run(self._inner.queues(topic))


class SettledMessage:
    """A received message whose settling and replies block. Everything else is the message's own."""

    def __init__(self, loop: _Loop, message: ReceivedMessage) -> None:
        self._loop = loop
        self._message = message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)

    def ack(self) -> None:
        self._loop.run(self._message.ack())

    def retry(self, delay_level: int = 0) -> None:
        self._loop.run(self._message.retry(delay_level))

    def reply(self, body: bytes | Message, **options: Any) -> SendReceipt:
        return self._loop.run(self._message.reply(body, **options))

    def process(self, *, reraise: bool = False) -> "_Processing":
        """`with message.process():` acknowledges at the end; an exception means retry."""
        return _Processing(self._loop, self, self._message.process(reraise=reraise))


class _Processing:
    def __init__(self, loop: _Loop, message: SettledMessage, inner: Any) -> None:
        self._loop = loop
        self._message = message
        self._inner = inner

    def __enter__(self) -> SettledMessage:
        return self._message

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        swallow: bool = self._loop.run(self._inner.__aexit__(kind, error, traceback))
        return swallow


class PushConsumer(_Wrapped[AsyncPushConsumer]):
    """`cometmq.PushConsumer` without await: a handler in threads, or `for message in consumer`."""

    def __iter__(self) -> Iterator[SettledMessage]:
        while (message := self._loop.run(_next(self._inner))) is not None:
            yield SettledMessage(self._loop, message)

    def batches(self, size: int) -> Iterator[list[SettledMessage]]:
        """Up to `size` messages of one queue at a time; each of them is settled by itself."""
        batches = self._inner.batches(size)
        while (messages := self._loop.run(_next(batches))) is not None:
            yield [SettledMessage(self._loop, message) for message in messages]

    def suspend(self) -> None:
        self._loop.run(_call(self._inner.suspend))

    def resume(self) -> None:
        self._loop.run(_call(self._inner.resume))


async def _next(iterator: AsyncIterator[_T]) -> _T | None:
    try:
        return await anext(iterator)
    except StopAsyncIteration:
        return None


async def _call(function: Callable[..., _T], *arguments: Any) -> _T:
    """Something that must happen on the loop's thread."""
    return function(*arguments)


class PullConsumer(_Wrapped[AsyncPullConsumer]):
    """`cometmq.PullConsumer` without await."""

    def subscribe(self, topic: str | Mapping[str, Subscription], wanted: Subscription = ALL) -> Self:
        self._loop.run(_call(self._inner.subscribe, topic, wanted))
        return self

    def assign(self, queues: Iterable[MessageQueue], wanted: Mapping[str, Subscription] | None = None) -> Self:
        self._loop.run(_call(self._inner.assign, queues, wanted))
        return self

    @property
    def assignment(self) -> list[MessageQueue]:
        return self._loop.run(_call(lambda: self._inner.assignment))

    def unsubscribe(self, topic: str) -> None:
        self._loop.run(_call(self._inner.unsubscribe, topic))

    def on_queues_changed(self, topic: str, listener: Callable[[str, Sequence[MessageQueue]], None]) -> None:
        """The listener is called on the client's thread and must not block it."""
        self._loop.run(_call(self._inner.on_queues_changed, topic, listener))

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._loop.run(self._inner.queues(topic))

    def poll(self, timeout: float | None = None) -> list[SettledMessage]:
        return [SettledMessage(self._loop, message) for message in self._loop.run(self._inner.poll(timeout))]

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._loop.run(self._inner.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        self._loop.run(self._inner.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        self._loop.run(self._inner.seek_to_end(queue))

    def offset_for_time(self, queue: MessageQueue, moment: datetime) -> int:
        offset: int = self._loop.run(self._inner.offset_for_time(queue, moment))
        return offset

    def min_offset(self, queue: MessageQueue) -> int:
        offset: int = self._loop.run(self._inner.min_offset(queue))
        return offset

    def max_offset(self, queue: MessageQueue) -> int:
        offset: int = self._loop.run(self._inner.max_offset(queue))
        return offset

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        self._loop.run(_call(self._inner.pause, queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        self._loop.run(_call(self._inner.resume, queues))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        self._loop.run(self._inner.commit(offsets))

    def committed(self, queue: MessageQueue) -> int | None:
        offset: int | None = self._loop.run(self._inner.committed(queue))
        return offset


class Admin:
    """`cometmq.client.admin.Admin` without await: every coroutine of it, by its name."""

    def __init__(self, loop: _Loop, inner: AsyncAdmin) -> None:
        self._loop = loop
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *arguments, **options: self._loop.run(found(*arguments, **options))


class Client:
    """`cometmq.Client` without await. Its loop lives from the start to the close."""

    def __init__(self, nameservers: str | Iterable[str] | None = None, **options: Any) -> None:
        self._given = nameservers
        self._options = options
        self._loop: _Loop | None = None
        self._inner: asyncio_client.Client | None = None

    def start(self) -> None:
        if self._loop is not None:
            raise ClientError("the client has been started already")
        self._inner = asyncio_client.Client(self._given, **self._options)
        self._loop = _Loop()
        try:
            self._loop.run(self._inner.start())
        except BaseException:
            self._loop.stop()
            self._loop = None
            raise

    def close(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            assert self._inner is not None
            try:
                loop.run(self._inner.close())
            finally:
                loop.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> tuple[_Loop, asyncio_client.Client]:
        if self._loop is None or self._inner is None:
            raise ClientError("the client is not started: use it inside of `with`")
        return self._loop, self._inner

    def producer(self, group: str, **options: Any) -> Producer:
        loop, inner = self._running()
        return Producer(loop, inner.producer(group, **options))

    def push_consumer(
        self,
        group: str,
        subscriptions: Mapping[str, Subscription],
        handler: Callable[[Any], Any] | None = None,
        *,
        batch_handler: Callable[[Sequence[Any]], Any] | None = None,
        **options: Any,
    ) -> PushConsumer:
        """A plain function as handler runs in a thread and gets a `SettledMessage`; a coroutine runs on the client's
        loop and gets a `ReceivedMessage`."""
        loop, inner = self._running()
        one, many = handler, batch_handler
        if handler is not None and not is_coroutine(handler):
            one = lambda message: handler(SettledMessage(loop, message))  # noqa: E731
        if batch_handler is not None and not is_coroutine(batch_handler):
            many = lambda messages: batch_handler([SettledMessage(loop, each) for each in messages])  # noqa: E731
        made = _call(lambda: inner.push_consumer(group, subscriptions, one, batch_handler=many, **options))
        return PushConsumer(loop, loop.run(made))

    def pull_consumer(self, group: str, **options: Any) -> PullConsumer:
        loop, inner = self._running()
        return PullConsumer(loop, loop.run(_call(lambda: inner.pull_consumer(group, **options))))

    def admin(self, **options: Any) -> Admin:
        loop, inner = self._running()
        return Admin(loop, inner.admin(**options))


def connect(nameservers: str | Iterable[str] | None = None, **options: Any) -> Client:
    """A client without await; takes what `cometmq.connect` takes."""
    return Client(nameservers, **options)
