"""The SDK without await: the same things, from plain code and from many threads; and where it must not be used."""

import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cometmq
import cometmq.sync
from cometmq.client import MessageQueue, SendStatus
from cometmq.client.message import ReceivedMessage
from cometmq.sync import WrongThread
from support.cluster import AnyBroker

Name = Callable[[str], str]


def make_known(producer: cometmq.sync.Producer, topic: str) -> None:
    """A real broker answers a send that makes a topic before the nameserver knows it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            producer.queues(topic)
        except cometmq.NoRoute:
            time.sleep(0.02)
        else:
            return
    raise TimeoutError(f"no nameserver knows {topic}")


def test_send_and_receive(broker: AnyBroker, name: Name) -> None:
    with cometmq.sync.connect(broker.nameserver) as mq:
        with mq.producer(name("PG")) as producer:
            assert producer.send(name("T"), b"one", tag="a").status is SendStatus.SEND_OK
            assert len(producer.send_batch(name("T"), [b"two", b"three"])) == 2
            producer.send_oneway(name("T"), b"four")
            make_known(producer, name("T"))
            assert len(producer.queues(name("T"))) == 4
        bodies = set()
        with mq.push_consumer(name("CG"), {name("T"): "*"}, start_from="first") as consumer:
            for message in consumer:
                with message.process():
                    bodies.add(message.body)
                if len(bodies) == 4:
                    break
    assert bodies == {b"one", b"two", b"three", b"four"}


def test_futures_and_callbacks(broker: AnyBroker, name: Name) -> None:
    with cometmq.sync.connect(broker.nameserver) as mq, mq.producer(name("PG")) as producer:
        called = threading.Event()
        future = producer.send_async(name("T"), b"x", on_success=lambda receipt: called.set())
        assert future.result(20).status is SendStatus.SEND_OK
        assert called.wait(20)
        errors: list[BaseException] = []
        failed = producer.send_async(name("T"), b"", on_error=errors.append)
        with pytest.raises(ValueError, match="empty"):
            failed.result(20)
        assert len(errors) == 1


def test_a_handler_in_threads(broker: AnyBroker, name: Name) -> None:
    done = threading.Event()
    threads = set()

    def handle(message: ReceivedMessage) -> None:
        threads.add(threading.current_thread())
        done.set()

    with cometmq.sync.connect(broker.nameserver) as mq:
        with mq.producer(name("PG")) as producer:
            producer.send(name("T"), b"x")
        with mq.push_consumer(name("CG"), {name("T"): "*"}, handle, start_from="first"):
            assert done.wait(20)
    assert threading.current_thread() not in threads


def test_pull(broker: AnyBroker, name: Name) -> None:
    queue = MessageQueue(name("T"), "broker-a", 0)
    with cometmq.sync.connect(broker.nameserver) as mq:
        with mq.producer(name("PG")) as producer:
            producer.send(name("T"), b"0", queue=queue)
            producer.send(name("T"), b"1", queue=queue)
        with mq.pull_consumer(name("CG"), start_from="first").assign([queue]) as consumer:
            bodies: list[bytes] = []
            while len(bodies) < 2:
                bodies += [message.body for message in consumer.poll(5)]
            assert consumer.assignment == [queue]
            consumer.seek(queue, 1)
            assert [message.body for message in consumer.poll(5)] == [b"1"]
            consumer.commit()
            assert consumer.committed(queue) == 2


def test_many_threads_share_a_producer(broker: AnyBroker, name: Name) -> None:
    with (
        cometmq.sync.connect(broker.nameserver) as mq,
        mq.producer(name("PG")) as producer,
        ThreadPoolExecutor(8) as pool,
    ):
        receipts = list(pool.map(lambda number: producer.send(name("T"), b"%d" % number), range(100)))
    assert len({receipt.message_id for receipt in receipts}) == 100


async def test_not_from_a_running_loop(broker: AnyBroker) -> None:
    with pytest.raises(WrongThread, match=r"use cometmq.connect\(\) and await"):
        cometmq.sync.connect(broker.nameserver).start()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_not_after_a_fork(broker: AnyBroker, name: Name) -> None:
    with cometmq.sync.connect(broker.nameserver) as mq, mq.producer(name("PG")) as producer:
        producer.send(name("T"), b"parent")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                producer.send(name("T"), b"child")
                text = "sent"
            except WrongThread as error:
                text = str(error)
            os.write(write, text.encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        with open(read, "rb") as pipe:
            assert b"before a fork" in pipe.read()
        producer.send(name("T"), b"the parent goes on")


def test_every_coroutine_of_the_sdk_is_there() -> None:
    """The same objects and names: whatever is awaited there is called here."""
    pairs = [
        (cometmq.Client, cometmq.sync.Client),
        (cometmq.Producer, cometmq.sync.Producer),
        (cometmq.PushConsumer, cometmq.sync.PushConsumer),
        (cometmq.PullConsumer, cometmq.sync.PullConsumer),
        (cometmq.ReceivedMessage, cometmq.sync.SettledMessage),
    ]
    # What the parts of the SDK and the brokers call, not its users.
    inner = {
        "inner_producer", "send_internally", "remove_producer", "remove_consumer", "send_prepared", "reset_offsets",
        "send_back", "send_to_retry_topic", "consume_directly",
    }  # fmt: skip
    for awaited, called in pairs:
        names = {name for name, each in inspect.getmembers(awaited, inspect.iscoroutinefunction) if name[0] != "_"}
        assert names - inner <= set(dir(called)), awaited


def test_request_and_reply(broker: AnyBroker, name: Name) -> None:
    def answer(message: cometmq.sync.SettledMessage) -> None:
        message.reply(b"re: " + message.body)

    with (
        cometmq.sync.connect(broker.nameserver) as mq,
        mq.producer(name("PG")) as producer,
    ):
        producer.send(name("T"), b"makes the topic", tag="no-request")
        with mq.push_consumer(name("CG"), {name("T"): "request"}, answer, start_from="first"):
            assert producer.request(name("T"), b"hello", tag="request", timeout=20).body == b"re: hello"


def test_batches(broker: AnyBroker, name: Name) -> None:
    with cometmq.sync.connect(broker.nameserver) as mq, mq.producer(name("PG")) as producer:
        receipts = producer.send_batch(name("T"), [b"0", b"1", b"2"])
        with mq.push_consumer(name("CG"), {name("T"): "*"}, start_from="first", concurrency=3) as consumer:
            seen = []
            for messages in consumer.batches(2):
                for message in messages:
                    with message.process():
                        seen.append(message.message_id)
                if len(seen) == 3:
                    break
        assert seen == [receipt.message_id for receipt in receipts]
        done = threading.Event()

        def together(messages: list[cometmq.sync.SettledMessage]) -> None:
            assert [type(message) for message in messages] == [cometmq.sync.SettledMessage] * len(messages)
            done.set()

        with mq.push_consumer(name("CG2"), {name("T"): "*"}, batch_handler=together, batch_size=3, start_from="first"):
            assert done.wait(20)


def test_the_admin_client(broker: AnyBroker, name: Name) -> None:
    with cometmq.sync.connect(broker.nameserver) as mq, mq.producer(name("PG")) as producer:
        producer.send(name("T"), b"x")
        make_known(producer, name("T"))
        route = mq.admin().topic_route(name("T"))
        assert [each.broker_name for each in route.broker_datas] == ["broker-a"]


def test_no_thread_is_left(broker: AnyBroker, name: Name, tmp_path: Path) -> None:
    """In a process of its own: a broker inside of this one has threads too."""
    code = f"""
import threading
import cometmq.sync
with cometmq.sync.connect({broker.nameserver!r}) as mq, mq.producer({name("PG")!r}) as producer:
    producer.send({name("T")!r}, b"x")
    broadcast = dict(model="broadcasting", offsets_folder={str(tmp_path)!r}, start_from="first")
    with mq.push_consumer({name("CG")!r}, {{{name("T")!r}: "*"}}, **broadcast) as consumer:
        next(iter(consumer)).ack()  # its offset is written by another thread
    done = threading.Event()
    with mq.push_consumer({name("CG2")!r}, {{{name("T")!r}: "*"}}, lambda message: done.set(), start_from="first"):
        done.wait(20)
    print(len(threading.enumerate()) > 2)
for thread in threading.enumerate():
    if thread is not threading.main_thread():
        thread.join(20)
print([thread.name for thread in threading.enumerate() if thread is not threading.main_thread()])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.split("\n")[:2] == ["True", "[]"], done.stderr
