"""The SDK without await: the same things, from plain code and from many threads; and where it must not be used."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import cometmq.sync
from cometmq.client import MessageQueue, SendStatus
from cometmq.client.message import ReceivedMessage
from cometmq.sync import WrongThread
from support.cluster import AnyBroker

Name = Callable[[str], str]


def test_send_and_receive(broker: AnyBroker, name: Name) -> None:
    with cometmq.sync.connect(broker.nameserver) as mq:
        with mq.producer(name("PG")) as producer:
            assert producer.send(name("T"), b"one", tag="a").status is SendStatus.SEND_OK
            assert len(producer.send_batch(name("T"), [b"two", b"three"])) == 2
            producer.send_oneway(name("T"), b"four")
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


def test_no_thread_is_left(broker: AnyBroker, name: Name) -> None:
    before = set(threading.enumerate())
    with cometmq.sync.connect(broker.nameserver) as mq, mq.producer(name("PG")) as producer:
        producer.send(name("T"), b"x")
    assert set(threading.enumerate()) <= before
