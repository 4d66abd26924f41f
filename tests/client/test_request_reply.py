"""Requests and replies over real sockets: matched, late, unanswered, and between two clients."""

import asyncio
import logging
from collections.abc import Callable

import pytest

from cometmq.client import Client, connect
from cometmq.client.errors import CannotReply, ReplyTimeout
from cometmq.client.message import Message, ReceivedMessage
from cometmq.client.producer.request_reply import Replies
from cometmq.protocol.requests.callbacks import PushReply
from support.cluster import AnyBroker
from support.wire import until

Name = Callable[[str], str]


async def echo(message: ReceivedMessage) -> None:
    await message.reply(b"echo of " + message.body, tag="answer", properties={"of": message.message_id})


async def make_topic(mq: Client, topic: str, group: str) -> None:
    async with mq.producer(group) as producer:
        await producer.send(topic, b"makes the topic", tag="setup")


async def test_a_request_gets_its_reply(mq: Client, broker: AnyBroker, name: Name) -> None:
    await make_topic(mq, name("T"), name("PG0"))
    async with connect(broker.nameserver) as asker, asker.producer(name("PG")) as producer:
        async with mq.push_consumer(name("CG"), {name("T"): "ask"}, echo, start_from="first"):
            reply = await producer.request(name("T"), b"question", tag="ask", timeout=30)
            assert (reply.body, reply.tag) == (b"echo of question", "answer")
            assert reply.properties["of"]
            assert int(reply.properties["ARRIVE_TIME"]) > 0
            many = await asyncio.gather(
                *(producer.request(name("T"), b"%d" % number, tag="ask", timeout=30) for number in range(20))
            )
            assert [each.body for each in many] == [b"echo of %d" % number for number in range(20)]
        assert len(asker.replies) == 0, "nobody waits any more"


async def test_large_replies_are_compressed_on_the_way(mq: Client, name: Name) -> None:
    body = b"again and again " * 2000

    async def answer(message: ReceivedMessage) -> None:
        await message.reply(body)

    await make_topic(mq, name("T"), name("PG0"))
    async with (
        mq.push_consumer(name("CG"), {name("T"): "ask"}, answer, start_from="first"),
        mq.producer(name("PG")) as producer,
    ):
        assert (await producer.request(name("T"), b"x", tag="ask", timeout=30)).body == body


async def test_nobody_replies(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        with pytest.raises(ReplyTimeout, match=r"no reply to the request to .* came within 0\.2 s"):
            await producer.request(name("T"), b"x", timeout=0.2)
    assert len(mq.replies) == 0


async def test_a_late_reply_is_dropped_with_a_warning(mq: Client, name: Name, caplog: pytest.LogCaptureFixture) -> None:
    released = asyncio.Event()

    async def slow(message: ReceivedMessage) -> None:
        await released.wait()
        await message.reply(b"too late")

    await make_topic(mq, name("T"), name("PG0"))
    options = {"start_from": "first"}
    async with mq.push_consumer(name("CG"), {name("T"): "ask"}, slow, **options), mq.producer(name("PG")) as producer:
        with caplog.at_level(logging.WARNING, "cometmq.client"):
            with pytest.raises(ReplyTimeout):
                await producer.request(name("T"), b"x", tag="ask", timeout=3)
            released.set()
            await until(lambda: "came too late" in caplog.text)


async def test_only_requests_can_be_answered(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        await producer.send(name("T"), b"no request")
    async with mq.push_consumer(name("CG"), {name("T"): "*"}, start_from="first") as consumer:
        async for message in consumer:
            with pytest.raises(CannotReply, match="CORRELATION_ID") as caught:
                await message.reply(Message(b"x"))
            assert caught.value.code == 10007
            await message.ack()
            break


async def test_a_reply_that_nobody_asked_for_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    header = PushReply("PG", "T", "TBW102", 4, 0, 0, 0, 0, "127.0.0.1:1", "127.0.0.1:2", 0, "CORRELATION_ID\x01x\x02")
    Replies().arrived(header, b"body")
    assert "request x came too late" in caplog.text
