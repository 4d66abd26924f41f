"""Message traces over real sockets: the records that producers and consumers write, as RocketMQ's tools read them."""

import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.client import Client, connect
from cometmq.client.errors import RetryLater
from cometmq.client.hooks import SendHook
from cometmq.client.message import ReceivedMessage
from cometmq.client.trace import TraceDispatcher, records
from cometmq.client.trace.dispatcher import MAX_SIZE, QUEUE_SIZE, grouped
from cometmq.client.trace.records import ConsumeCode, MessageType, TraceRecord
from cometmq.testing import EmbeddedBroker
from support.cluster import AnyBroker
from support.wire import until

Name = Callable[[str], str]
GOLDEN = Path(__file__).parents[1] / "data" / "wire" / "trace.jsonl.gz"


def golden_bodies() -> list[str]:
    """What RocketMQ's own client wrote to the trace topic."""
    bodies = []
    with gzip.open(GOLDEN, "rt") as lines:
        for line in lines:
            captured = json.loads(line)
            header = captured.get("header") or {}
            if header.get("code") == 310 and header["extFields"].get("b") == "RMQ_SYS_TRACE_TOPIC":
                frame = bytes.fromhex(captured["hex"])
                bodies.append(frame[8 + int.from_bytes(frame[5:8], "big") :].decode())
    return bodies


def test_records_are_those_of_java() -> None:
    pub, sub = golden_bodies()
    ours = records.sent(
        time=1794848500304,
        region="DefaultRegion",
        group="PG_trace",
        topic="TopicTrace",
        message_id="C000020262424E0E2F2A50E6C24F0000",
        tag="TagA",
        keys="tk1",
        address="127.0.0.1:10911",
        body_size=6,
        cost=29,
        kind=MessageType.NORMAL,
        offset_message_id="7F00000100002A9F00000000000013BB",
        success=True,
    )
    assert ours.text == pub
    assert set(ours.keys) == {"tk1", "C000020262424E0E2F2A50E6C24F0000"}
    request = "C000020262424E0E2F2A50E6C8830002"
    before = records.before_consume(
        time=1794848501891,
        region="DefaultRegion",
        group="CG_trace",
        topic="TopicTrace",
        request_id=request,
        message_id="C000020262424E0E2F2A50E6C24F0000",
        retries=0,
        keys="tk1",
    )
    after = records.after_consume(
        time=1794848501891,
        group="CG_trace",
        topic="TopicTrace",
        request_id=request,
        message_id="C000020262424E0E2F2A50E6C24F0000",
        cost=0,
        success=False,
        keys="tk1",
        code=ConsumeCode.FAILED,
    )
    assert before.text + after.text == sub


async def traces(broker: AnyBroker, group: str, count: int) -> list[list[str]]:
    """The records in the trace topic, fields apart."""
    found: list[list[str]] = []

    async def take(message: ReceivedMessage) -> None:
        found.extend(text.split("\x01") for text in message.body.decode().split("\x02") if text)

    async with (
        connect(broker.nameserver) as mq,
        mq.push_consumer(group, {"RMQ_SYS_TRACE_TOPIC": "*"}, take, start_from="first"),
    ):
        await until(lambda: len(found) >= count)
    return found


@pytest.fixture
def tracing_broker() -> EmbeddedBroker:  # type: ignore[misc]
    with EmbeddedBroker(config={"traceTopicEnable": True}) as broker:
        yield broker


async def test_a_producer_and_a_consumer_leave_their_traces(tracing_broker: EmbeddedBroker) -> None:
    async with connect(tracing_broker.nameserver) as mq:
        async with mq.producer("PG", trace=True) as producer:
            receipt = await producer.send("T", b"paid", tag="t", keys="o-1")
            later = await producer.send("T", b"later", delay_level=1)
            batch = await producer.send_batch("T", [b"a", b"b"])
        seen: list[bytes] = []

        async def take(message: ReceivedMessage) -> None:
            seen.append(message.body)
            if message.body == b"paid" and not message.reconsume_times:
                raise RetryLater(delay_level=1)

        async with mq.push_consumer("CG", {"T": "*"}, take, start_from="first", trace=True):
            await until(lambda: {*seen} >= {b"paid", b"a", b"b"})
    found = await traces(tracing_broker, "CG_traces", 4 + 6)
    sent = {fields[5]: fields for fields in found if fields[0] == "Pub"}
    assert set(sent) == {each.message_id for each in (receipt, later, *batch)}
    pub = sent[receipt.message_id]
    assert (pub[2], pub[3], pub[4], pub[6], pub[7]) == ("DefaultRegion", "PG", "T", "t", "o-1")
    assert (pub[8], pub[9], pub[11], pub[12], pub[13]) == (
        tracing_broker.address,
        "4",
        "0",
        receipt.offset_message_id,
        "true",
    )
    assert sent[later.message_id][11] == "3", "a delayed message"
    assert (sent[later.message_id][6], sent[later.message_id][7]) == ("null", "null")
    befores = [fields for fields in found if fields[0] == "SubBefore" and fields[5] == receipt.message_id]
    assert befores
    assert (befores[0][3], befores[0][6], befores[0][7]) == ("CG", "0", "o-1")
    afters = {fields[1]: fields for fields in found if fields[0] == "SubAfter"}
    failed = afters[befores[0][4]]
    assert (failed[4], failed[6], failed[8]) == ("false", "4", "CG")
    assert "true" in {fields[4] for fields in afters.values()}


async def test_iteration_is_traced_too(tracing_broker: EmbeddedBroker) -> None:
    async with connect(tracing_broker.nameserver) as mq:
        async with mq.producer("PG") as producer:
            await producer.send("T", b"x")
        async with mq.push_consumer("CG", {"T": "*"}, start_from="first", trace=True) as consumer:
            async for message in consumer:
                async with message.process():
                    pass
                break
    kinds = [fields[0] for fields in await traces(tracing_broker, "CG_traces", 2)]
    assert kinds == ["SubBefore", "SubAfter"]


async def test_a_trace_that_cannot_be_sent_harms_nobody(
    mq: Client, name: Name, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cometmq.client.trace"):
        async with mq.producer(name("PG"), trace="SCHEDULE_TOPIC_XXXX") as producer:
            assert (await producer.send(name("T"), b"x")).status == "SEND_OK"
    assert "a trace could not be sent to SCHEDULE_TOPIC_XXXX" in caplog.text


async def test_a_full_queue_drops_and_counts(mq: Client) -> None:
    dispatcher = TraceDispatcher(mq, "PG", "PRODUCE")
    dispatcher._sending = _Locked()  # type: ignore[assignment]
    dispatcher.add(TraceRecord("T", "x\x02", ("k",)) for _ in range(QUEUE_SIZE + 5))
    assert dispatcher.dropped == 5


class _Locked:
    """A sending that is under way."""

    def locked(self) -> bool:
        return True


def test_trace_messages_are_about_one_topic_and_not_too_long() -> None:
    record = TraceRecord("T", "x" * 50_000 + "\x02", ("k1",))
    messages = list(grouped([record, TraceRecord("U", "u\x02", ("k2",)), record, record]))
    assert [len(text) // 50_000 for text, _ in messages] == [1, 1, 1, 0]
    assert all(len(text) < MAX_SIZE for text, _ in messages)
    assert messages[-1] == ("u\x02", ["k2"])


async def test_hooks_and_traces_go_together(mq: Client, name: Name) -> None:
    class Seen(SendHook):
        count = 0

        def after_send(self, context: object) -> None:
            Seen.count += 1

    async with mq.producer(name("PG"), trace=True, hooks=[Seen()]) as producer:
        await producer.send(name("T"), b"x")
    assert Seen.count == 1
