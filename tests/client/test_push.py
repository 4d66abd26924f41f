"""Push consumption over real sockets: handlers and iteration, filters, retries, order, groups, offsets, the close."""

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from cometmq.client import Client, connect
from cometmq.client.consumer.subscriptions import Sql, Tags
from cometmq.client.errors import InvalidSubscription, RetryFrom, RetryLater
from cometmq.client.message import ReceivedMessage
from cometmq.testing import EmbeddedBroker
from support.cluster import AnyBroker
from support.wire import until

Name = Callable[[str], str]


class Received(list[bytes]):
    """What a handler got."""

    async def __call__(self, message: ReceivedMessage) -> None:
        self.append(message.body)

    async def has(self, count: int) -> None:
        await until(lambda: len(self) >= count)


async def fill(mq: Client, topic: str, *bodies: bytes, tag: str | None = None, key: str | None = None) -> None:
    async with mq.producer(f"PG_{topic}"[:100]) as producer:
        for body in bodies:
            await producer.send(topic, body, tag=tag, sharding_key=key)


async def test_a_handler_gets_every_message_once(mq: Client, name: Name) -> None:
    bodies = [b"%d" % number for number in range(50)]
    await fill(mq, name("T"), *bodies)
    received = Received()
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, received, start_from="first"):
        await received.has(50)
    assert sorted(received) == sorted(bodies)


async def test_a_plain_function_runs_in_a_thread(mq: Client, name: Name) -> None:
    await fill(mq, name("T"), b"x")
    threads: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        import threading

        threads.append(threading.current_thread().name)

    async with mq.push_consumer(name("CG"), {name("T"): "*"}, handle, start_from="first"):
        await until(lambda: bool(threads))
    assert threads[0].startswith(f"{name('CG')}-handler")


async def test_batches(mq: Client, name: Name) -> None:
    sizes: list[int] = []
    bodies: list[bytes] = []
    failed = False

    async def handle(messages: list[ReceivedMessage]) -> None:
        nonlocal failed
        sizes.append(len(messages))
        if len(messages) > 2 and not failed:
            failed = True
            bodies.extend(message.body for message in messages[:1])
            raise RetryFrom(1, delay_level=1)
        bodies.extend(message.body for message in messages)

    async with mq.producer(name("PG")) as producer:
        await producer.send_batch(name("T"), [b"%d" % number for number in range(40)])
    with pytest.raises(ValueError, match="not both"):
        mq.push_consumer(name("CG"), {name("T"): "*"}, Received(), batch_handler=handle)
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, batch_handler=handle, batch_size=16, start_from="first"):
        await until(lambda: len(bodies) >= 40)
    assert max(sizes) <= 16
    assert sorted(bodies) == sorted(b"%d" % number for number in range(40))


async def test_tags_are_compared_by_their_text(mq: Client, name: Name) -> None:
    """`Aa` and `BB` have one hash code: the broker lets both pass."""
    await fill(mq, name("T"), b"wanted", tag="Aa")
    await fill(mq, name("T"), b"collides", tag="BB")
    await fill(mq, name("T"), b"other", tag="C")
    await fill(mq, name("T"), b"none")
    await fill(mq, name("T"), b"end", tag="End")
    received = Received()
    async with mq.push_consumer(name("CG"), {name("T"): Tags("Aa", "End")}, received, start_from="first"):
        await received.has(2)
    assert sorted(received) == [b"end", b"wanted"]


@pytest.mark.parametrize("wanted", [" || ", Sql(" "), 7])
def test_subscriptions_that_nobody_understands(wanted: object) -> None:
    with pytest.raises(InvalidSubscription):
        connect("127.0.0.1:1").push_consumer("CG", {"T": wanted})  # type: ignore[dict-item]


def test_a_consumer_subscribes_to_something() -> None:
    with pytest.raises(InvalidSubscription, match="subscribe to something"):
        connect("127.0.0.1:1").push_consumer("CG", {})
    with pytest.raises(TypeError, match="no option typo"):
        connect("127.0.0.1:1").push_consumer("CG", {"T": "*"}, typo=1)


async def test_iteration_hands_out_one_at_a_time(mq: Client, name: Name) -> None:
    await fill(mq, name("T"), *(b"%d" % number for number in range(5)))
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, start_from="first") as consumer:
        first = await anext(consumer)
        second = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0)
        assert not second.done(), "the first is not settled"
        await first.ack()
        async with (await second).process():
            pass
        got = {first.body, second.result().body}
        async for message in consumer:
            async with message.process():
                got.add(message.body)
            if len(got) == 5:
                break
    assert len(got) == 5


async def test_iteration_by_batches(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        await producer.send_batch(name("T"), [b"%d" % number for number in range(25)])
    got: list[bytes] = []
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, start_from="first") as consumer:
        async for batch in consumer.batches(10):
            assert 1 <= len(batch) <= 10
            assert len({message.queue for message in batch}) == 1
            for message in batch:
                async with message.process():
                    got.append(message.body)
            if len(got) == 25:
                break
        with pytest.raises(ValueError, match="holds none"):
            await anext(consumer.batches(0))
    assert got == [b"%d" % number for number in range(25)]


async def test_a_failure_comes_again_after_its_delay_and_ends_with_the_dead_letters(name: Name) -> None:
    """Sixteen tries at the table's delays, on a clock that is moved."""
    topic, group = name("T"), "CG_retries"
    tries: list[int] = []

    async def fail(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        assert message.topic == topic, "it is the topic that was subscribed to, not that of the retries"
        raise ValueError("never")

    with EmbeddedBroker() as broker:
        async with connect(broker.nameserver) as mq:
            await fill(mq, topic, b"poison")
            options = {"start_from": "first", "rebalance_interval": 0.2}
            async with mq.push_consumer(group, {topic: "*"}, fail, **options) as consumer:
                for number in range(17):
                    # Tried, and with the broker again.
                    await until(lambda count=number: len(tries) > count and not consumer._unsettled)  # type: ignore[misc]
                    await asyncio.to_thread(broker.advance, timedelta(hours=2, seconds=1))
            assert tries == list(range(17))
            dead = Received()
            async with mq.push_consumer("CG_dead", {f"%DLQ%{group}": "*"}, dead, start_from="first"):
                await dead.has(1)
            assert dead == [b"poison"]


async def test_the_handler_chooses_the_delay(name: Name) -> None:
    times: list[int] = []

    async def later(message: ReceivedMessage) -> None:
        times.append(message.reconsume_times)
        if len(times) == 1:
            raise RetryLater(delay_level=5)

    with EmbeddedBroker() as broker:
        async with connect(broker.nameserver) as mq:
            await fill(mq, name("T"), b"x")
            options = {"start_from": "first", "rebalance_interval": 0.2}
            async with mq.push_consumer("CG", {name("T"): "*"}, later, **options) as consumer:
                await until(lambda: len(times) == 1 and not consumer._unsettled)  # the broker has it back
                await asyncio.to_thread(broker.advance, timedelta(seconds=59))
                assert len(times) == 1
                await asyncio.to_thread(broker.advance, timedelta(seconds=2))
                await until(lambda: len(times) == 2)
    assert times == [0, 1]


async def test_an_ordered_queue_waits_for_its_failed_message_and_others_do_not(mq: Client, name: Name) -> None:
    """A10: a handler raises until the third try; what is behind waits, other queues go on."""
    await fill(mq, name("T"), b"a0", b"a1", b"a2", key="a")
    await fill(mq, name("T"), b"b0", b"b1", key="b")
    got: list[tuple[bytes, int]] = []

    async def handle(message: ReceivedMessage) -> None:
        if message.body == b"a1" and message.reconsume_times < 3:
            if (b"b1", 0) not in got:
                await until(lambda: (b"b1", 0) in got)
            raise ValueError("not yet")
        got.append((message.body, message.reconsume_times))

    options = {"start_from": "first", "suspend": 0.02}
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, handle, ordered=True, **options):
        await until(lambda: len(got) == 5)
    assert [each for each in got if each[0].startswith(b"a")] == [(b"a0", 0), (b"a1", 3), (b"a2", 0)]
    assert [each for each in got if each[0].startswith(b"b")] == [(b"b0", 0), (b"b1", 0)]


async def test_members_share_the_queues_and_take_over(broker: AnyBroker, mq: Client, name: Name) -> None:
    topic, group = name("T"), name("CG")
    await fill(mq, topic, b"make the topic")
    one, two = Received(), Received()
    options = {"start_from": "first", "rebalance_interval": 0.2}
    async with mq.push_consumer(group, {topic: "*"}, one, **options) as first:
        await until(lambda: len([queue for queue in first.assignments if queue.topic == topic]) == 4)
        async with (
            connect(broker.nameserver) as other,
            other.push_consumer(group, {topic: "*"}, two, **options) as second,
        ):

            def shares() -> list[int]:
                return [
                    len([queue for queue in consumer.assignments if queue.topic == topic])
                    for consumer in (first, second)
                ]

            await until(lambda: shares() == [2, 2])
            await fill(mq, topic, *(b"%d" % number for number in range(20)))
            # A queue that changes hands may bring its last messages twice: at least once.
            await until(lambda: len({*one, *two}) == 21)
            assert len(set(two) - {b"make the topic"}) == 10
        await until(lambda: len([queue for queue in first.assignments if queue.topic == topic]) == 4)
        await fill(mq, topic, *(b"after %d" % number for number in range(8)))
        await until(lambda: len({body for body in one if body.startswith(b"after")}) == 8)


async def test_broadcasting_keeps_its_offsets_in_a_file(mq: Client, name: Name, tmp_path: object) -> None:
    topic, group = name("T"), name("CG")
    await fill(mq, topic, b"1", b"2")
    options = {"start_from": "first", "model": "broadcasting", "offsets_folder": str(tmp_path)}
    first = Received()
    async with mq.push_consumer(group, {topic: "*"}, first, **options):
        await first.has(2)
    await fill(mq, topic, b"3")
    second = Received()
    async with mq.push_consumer(group, {topic: "*"}, second, **options):
        await second.has(1)
    assert (sorted(first), second) == ([b"1", b"2"], [b"3"])


async def test_a_group_goes_on_where_it_was(mq: Client, name: Name) -> None:
    topic, group = name("T"), name("CG")
    await fill(mq, topic, *(b"%d" % number for number in range(10)))
    first = Received()
    async with mq.push_consumer(group, {topic: "*"}, first, start_from="first"):
        await first.has(10)
    await fill(mq, topic, b"new")
    second = Received()
    async with mq.push_consumer(group, {topic: "*"}, second, start_from="first"):
        await second.has(1)
    assert second == [b"new"]


async def test_a_broker_that_comes_back_hears_of_the_group_at_once() -> None:
    """It has forgotten its members, and neither a heartbeat nor a rebalance is due."""
    received = Received()
    with EmbeddedBroker() as broker:
        async with connect(broker.nameserver, heartbeat_interval=1000) as mq:
            await fill(mq, "T", b"before")
            options = {"start_from": "first", "rebalance_interval": 1000.0}
            async with mq.push_consumer("CG", {"T": "*"}, received, **options) as consumer:
                await received.has(1)
                await until(lambda: len(consumer.assignments) == 5)  # the retry topic too: no round is due any more
                await asyncio.to_thread(broker.restart)
                async with connect(broker.nameserver) as other:  # a producer of the same client would tell of both
                    await fill(other, "T", b"after")
                await until(lambda: b"after" in received)


async def test_a_close_finishes_what_runs(mq: Client, name: Name) -> None:
    await fill(mq, name("T"), b"slow")
    begun, finish, done = asyncio.Event(), asyncio.Event(), False

    async def handle(message: ReceivedMessage) -> None:
        nonlocal done
        begun.set()
        await finish.wait()
        done = True

    consumer = mq.push_consumer(name("CG"), {name("T"): "*"}, handle, start_from="first")
    await consumer.start()
    await begun.wait()
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(0)
    finish.set()
    await closing
    assert done
    again = Received()
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, again, start_from="first"):
        await fill(mq, name("T"), b"next")
        await again.has(1)
    assert again == [b"next"], "what was finished was committed"


async def test_nothing_is_left_after_the_close(broker: AnyBroker, name: Name) -> None:
    before = asyncio.all_tasks()
    async with connect(broker.nameserver) as mq:
        await fill(mq, name("T"), b"x")
        received = Received()
        async with mq.push_consumer(name("CG"), {name("T"): "*"}, received, start_from="first"):
            await received.has(1)
    assert asyncio.all_tasks() == before
