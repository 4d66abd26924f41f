"""Hooks of producers and consumers: what they see, what they may change, and that one which fails harms nobody."""

import logging
from collections.abc import Callable

import pytest

from cometmq.client import Client, SendStatus, connect
from cometmq.client.errors import MessageRefused
from cometmq.client.hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
from cometmq.client.message import ReceivedMessage
from support.fake_cluster import FakeCluster
from support.wire import until

Name = Callable[[str], str]


class Recorder(SendHook):
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.before: list[SendContext] = []
        self.after: list[SendContext] = []

    def before_send(self, context: SendContext) -> None:
        self.before.append(context)
        context.notes["mine"] = len(self.before)

    def after_send(self, context: SendContext) -> None:
        self.after.append(context)


async def test_a_hook_sees_every_attempt_and_how_it_ended() -> None:
    recorder = Recorder()
    async with (
        FakeCluster("a", "b") as cluster,
        connect(cluster.nameserver, namespace="NS") as mq,
        mq.producer("PG", hooks=[recorder]) as producer,
    ):
        cluster.script.extend([1, 0])
        receipt = await producer.send("T", b"body", tag="t", properties={"mine": "1"})
    assert recorder.before == recorder.after, "the same context before and after"
    failed, stored = recorder.after
    assert [each.attempt for each in recorder.after] == [0, 1]
    assert (failed.group, failed.topic, failed.namespace) == ("PG", "T", "NS")
    assert failed.queue.topic == "T"
    assert failed.queue.broker_name != stored.queue.broker_name
    assert getattr(failed.error, "code", None) == 1
    assert failed.receipt is None
    assert (stored.receipt, stored.error) == (receipt, None)
    assert stored.unique_key == failed.unique_key == receipt.message_id
    assert stored.message is not None
    assert (stored.message.body, stored.message.tag) == (b"body", "t")
    assert "mine\x011\x02" in stored.properties_text
    assert (stored.body_size, stored.notes["mine"]) == (4, 2)
    assert stored.address in {broker.address for broker in cluster.brokers.values()}


async def test_a_hook_adds_properties_to_its_attempt() -> None:
    class Stamp(SendHook):
        def before_send(self, context: SendContext) -> None:
            context.properties["stamp"] = f"{context.queue.broker_name}-{context.attempt}"

    async with (
        FakeCluster("a") as cluster,
        connect(cluster.nameserver) as mq,
        mq.producer("PG", hooks=[Stamp()]) as producer,
    ):
        cluster.script.extend([1, 0])
        await producer.send("T", b"x")
        texts = [request.header.properties for request in cluster["a"].sends]
    assert ["stamp\x01a-0\x02" in texts[0], "stamp\x01a-1\x02" in texts[1]] == [True, True]
    assert "a-0" not in texts[1]


async def test_a_check_forbids_a_send() -> None:
    class NoSecrets(SendHook):
        def check_forbidden(self, context: SendContext) -> None:
            if context.message is not None and b"secret" in context.message.body:
                raise PermissionError("no secrets here")

    async with (
        FakeCluster("a") as cluster,
        connect(cluster.nameserver) as mq,
        mq.producer("PG", hooks=[NoSecrets()]) as producer,
    ):
        await producer.send("T", b"plain")
        with pytest.raises(PermissionError, match="no secrets"):
            await producer.send("T", b"a secret")
        with pytest.raises(PermissionError, match="no secrets"):
            await producer.send_oneway("T", b"a secret")
        assert [request.body for request in cluster["a"].sends] == [b"plain"]


async def test_a_hook_that_fails_is_logged(mq: Client, name: Name, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(SendHook):
        def before_send(self, context: SendContext) -> None:
            raise RuntimeError("broken before")

        def after_send(self, context: SendContext) -> None:
            raise RuntimeError("broken after")

    recorder = Recorder()
    with caplog.at_level(logging.ERROR, "cometmq.client.hooks"):
        async with mq.producer(name("PG"), hooks=[Broken(), recorder]) as producer:
            assert (await producer.send(name("T"), b"x")).status is SendStatus.SEND_OK
    assert "broken before" in caplog.text
    assert "broken after" in caplog.text
    assert len(recorder.after) == 1, "the other hooks are called all the same"


async def test_oneway_batches_and_refusals_are_seen_too() -> None:
    recorder = Recorder()
    async with (
        FakeCluster("a") as cluster,
        connect(cluster.nameserver) as mq,
        mq.producer("PG", hooks=[recorder]) as producer,
    ):
        await producer.send_oneway("T", b"x")
        receipts = await producer.send_batch("T", [b"a", b"b"])
        cluster.script.append(13)
        with pytest.raises(MessageRefused):
            await producer.send("T", b"x")
    oneway, batch, refused = recorder.after
    assert (oneway.is_oneway, oneway.receipt, oneway.error) == (True, None, None)
    assert (batch.is_batch, batch.unique_key) == (True, ",".join(each.message_id for each in receipts))
    assert isinstance(refused.error, MessageRefused)


async def test_consume_hooks_see_success_and_failure(mq: Client, name: Name) -> None:
    class Watcher(ConsumeHook):
        def __init__(self) -> None:
            self.seen: list[tuple[bytes, bool, str]] = []
            self.began = 0

        def before_consume(self, context: ConsumeContext) -> None:
            self.began += 1

        def after_consume(self, context: ConsumeContext) -> None:
            self.seen.append((context.messages[0].body, context.is_success, type(context.error).__name__))

    async def handler(message: ReceivedMessage) -> None:
        if message.body == b"bad":
            raise KeyError("no")

    watcher = Watcher()
    async with mq.producer(name("PG")) as producer:
        await producer.send_batch(name("T"), [b"good", b"bad"])
    topics = {name("T"): "*"}
    async with mq.push_consumer(name("CG"), topics, handler, start_from="first", hooks=[watcher]):
        await until(lambda: len(watcher.seen) == 2)
    assert sorted(watcher.seen) == [(b"bad", False, "KeyError"), (b"good", True, "NoneType")]
    assert watcher.began == 2
    by_hand = Watcher()
    async with mq.push_consumer(name("CG2"), topics, start_from="first", hooks=[by_hand]) as consumer:
        async for message in consumer:
            async with message.process():
                if message.body == b"bad":
                    raise KeyError("no")
            if len(by_hand.seen) == 2:
                break
    assert [(body, is_success) for body, is_success, _ in by_hand.seen] == [(b"good", True), (b"bad", False)]
