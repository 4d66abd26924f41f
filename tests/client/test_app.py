"""`App`: decorated functions get what their annotations say; what does not fit fails clearly; its life."""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

import cometmq
from cometmq.client.handlers import HandlerCall
from support.cluster import AnyBroker
from support.server_process import ServerProcess
from support.wire import until

Name = Callable[[str], str]
WORKER = Path(__file__).parents[2] / "examples" / "worker.py"


@dataclass
class Order:
    id: str
    amount: int


class Item(msgspec.Struct):
    name: str


async def send(broker: AnyBroker, topic: str, *bodies: bytes, **options: Any) -> None:
    async with cometmq.connect(broker.nameserver) as mq, mq.producer(f"PG_{topic}"[:100]) as producer:
        for body in bodies:
            await producer.send(topic, body, **options)


async def received_by(app: cometmq.App, broker: AnyBroker, topic: str, body: bytes, got: list[Any]) -> Any:
    async with app:
        await send(broker, topic, body)
        await until(lambda: got)
    return got[0]


@pytest.mark.parametrize(
    ("wanted", "body", "value"),
    [
        (bytes, b"\xff\x00", b"\xff\x00"),
        (Any, b"\xff", b"\xff"),
        (str, "žluť".encode(), "žluť"),
        (dict, b'{"a": 1}', {"a": 1}),
        (list, b"[1, 2]", [1, 2]),
        (dict[str, int], b'{"a": 1}', {"a": 1}),
        (int, b"42", 42),
        (Order, b'{"id": "o-1", "amount": 42}', Order("o-1", 42)),
        (Item, b'{"name": "pen"}', Item("pen")),
    ],
    ids=str,
)
async def test_bodies_come_as_the_annotation_says(
    broker: AnyBroker, name: Name, wanted: Any, body: bytes, value: Any
) -> None:
    app, got = cometmq.App(broker.nameserver), []

    @app.listener(name("T"), group=name("CG"), start_from="first")
    async def handle(body: wanted) -> None:  # type: ignore[valid-type]
        got.append(body)

    assert await received_by(app, broker, name("T"), body, got) == value


async def test_a_second_argument_gets_the_message(broker: AnyBroker, name: Name) -> None:
    app, got = cometmq.App(broker.nameserver), []

    @app.listener(name("T"), group=name("CG"), start_from="first")
    async def handle(message: cometmq.ReceivedMessage, order: Order, unused: int = 0) -> None:
        got.append((message.topic, order.amount))

    assert await received_by(app, broker, name("T"), b'{"id":"x","amount":7}', got) == (name("T"), 7)


async def test_a_function_without_annotation_gets_bytes_and_a_plain_one_runs_in_a_thread(
    broker: AnyBroker, name: Name
) -> None:
    app, got = cometmq.App(broker.nameserver), []

    @app.listener(name("T"), group=name("CG"), start_from="first")
    def handle(body):  # type: ignore[no-untyped-def]
        got.append((body, threading.current_thread() is threading.main_thread()))

    assert await received_by(app, broker, name("T"), b"x", got) == (b"x", False)


async def test_listeners_of_one_group_are_one_consumer(broker: AnyBroker, name: Name) -> None:
    """A coroutine and a plain function side by side; tags count for each topic."""
    app = cometmq.App(broker.nameserver)
    got: list[tuple[str, Any]] = []

    @app.listener(name("A"), group=name("CG"), subscription="yes", start_from="first")
    async def first(body: str) -> None:
        got.append(("first", body))

    @app.listener(name("B"), group=name("CG"), start_from="first")
    def second(body: bytes) -> None:
        got.append(("second", body))

    await send(broker, name("A"), b"unwanted", tag="no")
    await send(broker, name("A"), b"a", tag="yes")
    await send(broker, name("B"), b"b")
    async with app:
        await until(lambda: len(got) == 2)
        assert list(app.mq.consumers) == [name("CG")]
    assert sorted(got, key=str) == [("first", "a"), ("second", b"b")]

    with pytest.raises(ValueError, match="has a listener for"):
        app.listener(name("A"), group=name("CG"), start_from="first")(first)
    with pytest.raises(ValueError, match="same options"):
        app.listener(name("C"), group=name("CG"), ordered=True)(first)


async def test_a_body_that_does_not_fit_fails_with_a_clear_log_and_comes_again(
    broker: AnyBroker, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    app, got = cometmq.App(broker.nameserver), []

    @app.listener(name("T"), group=name("CG"), start_from="first", max_reconsume_times=0)
    async def bill(order: Order) -> None:
        got.append(order)

    def dead_letters() -> int:
        return broker.inspect(lambda b: b.state.store.max_offset(f"%DLQ%{name('CG')}", 0))

    await send(broker, name("T"), b'{"id": "o-1", "amount": "secret"}', b"not even JSON", b'{"id":"o-2","amount":1}')
    with caplog.at_level(logging.ERROR, "cometmq"):
        async with app:
            await until(lambda: got)
            await until(lambda: dead_letters() == 2)
    text = caplog.text
    assert "is no JSON of Order" in text
    assert "Expected `int`, got `str` - at `$.amount`" in text
    assert "bill wants it" in text
    assert "secret" not in text
    assert got == [Order("o-2", 1)]


async def test_an_application_starts_again_and_its_producer_sends_only_while_it_runs(
    broker: AnyBroker, name: Name
) -> None:
    app = cometmq.App(broker.nameserver)
    producer = app.producer(name("PG"))
    with pytest.raises(cometmq.Closed, match="does not run"):
        await producer.send(name("T"), b"too early")
    before = asyncio.all_tasks()
    for _ in range(2):
        async with app.lifespan(None):
            assert (await producer.send(name("T"), b"x")).status is cometmq.SendStatus.SEND_OK
            assert len(await producer.send_batch(name("T"), [b"a", b"b"])) == 2
            await producer.send_oneway(name("T"), b"gone")
            with pytest.raises(RuntimeError, match="too late"):
                app.producer("other")
            with pytest.raises(RuntimeError, match="too late"):
                app.listener("T", group="G")
            with pytest.raises(RuntimeError, match="runs already"):
                await app.start()
        assert asyncio.all_tasks() == before, "something was left behind"
        with pytest.raises(cometmq.Closed):
            _ = app.mq
    with pytest.raises(ValueError, match="already"):
        app.producer(name("PG"))


async def test_a_start_that_fails_leaves_nothing_behind(broker: AnyBroker, name: Name) -> None:
    app = cometmq.App(broker.nameserver)
    app.producer(name("PG"))
    app.listener(name("T"), group=name("CG"), typo=1)(lambda body: None)
    before = asyncio.all_tasks()
    for _ in range(2):
        with pytest.raises(TypeError, match="no option typo"):
            await app.start()
    assert asyncio.all_tasks() == before


def _of_keyword(*, body: bytes) -> None: ...
def _of_two(a: bytes, b: bytes) -> None: ...
def _of_none() -> None: ...
def _of_unknown(body: "Nobody") -> None: ...  # type: ignore[name-defined]  # noqa: F821
def _of_impossible(body: threading.Thread) -> None: ...
def _of_either(body: Order | Item) -> None: ...


@pytest.mark.parametrize("function", [_of_keyword, _of_two, _of_none, _of_unknown, _of_impossible, _of_either])
def test_functions_that_no_message_fits_are_refused_where_they_are_declared(function: Callable[..., None]) -> None:
    with pytest.raises(TypeError, match=function.__name__):
        HandlerCall(function)


async def test_a_worker_process_consumes_until_it_is_told_to_end(broker: AnyBroker, tmp_path: Path) -> None:
    await send(broker, "orders", b'{"id": "o-1", "amount": 42}', tag="paid", sharding_key="o-1")
    environ = {"NAMESRV_ADDR": broker.nameserver, "PYTHONPATH": os.pathsep.join(sys.path)}
    with ServerProcess("worker", [sys.executable, str(WORKER)], tmp_path, environ) as worker:
        await asyncio.to_thread(worker.wait_ready, "a bill", 60, lambda: "paid o-1: 42" in worker.stdout)
        await send(broker, "orders", b'{"id": "o-1", "amount": 2}', tag="refunded", sharding_key="o-1")
        await asyncio.to_thread(worker.wait_ready, "a refund", 60, lambda: "refunded o-1: 2" in worker.stdout)
        worker.terminate(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 60) == 0
        assert "consuming: orders as billing" in worker.stderr
        assert "SIGTERM: shutting down" in worker.stderr
        assert "Traceback" not in worker.stderr
