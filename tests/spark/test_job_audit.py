"""The audit job: verdicts equal to those of the SDK's checker, and a report of what a real producer's topic lacks."""

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import cometmq
from cometmq.client.audit import PRODUCER, SEQUENCE, VOID, ConsumeAudit, SendAudit
from cometmq.client.audit_stamp import MAX_DIGITS
from cometmq.client.queues import MessageQueue
from cometmq.spark.jobs import JobError, audit
from cometmq.spark.jobs.audit_findings import findings, lost, placed, stamped
from cometmq.spark.jobs.audit_job import COLUMNS, audit_messages
from cometmq.spark.jobs.messages import schema_of
from cometmq.spark.jobs.metrics import Meter, Silence, progress_line
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=UTC)


class Row(NamedTuple):
    """A message as the audit sees it, in the columns' order."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    properties: dict[str, str]
    message_id: str
    stored: datetime
    reconsume_times: int


def history(seed: int) -> list[Row]:
    """Messages in the order in which they were stored, with all that can go wrong: by chance, and often."""
    chance = random.Random(seed)
    rows: list[Row] = []
    offsets: Counter[tuple[str, int]] = Counter()
    numbers: Counter[tuple[str, int, str]] = Counter()
    held: list[tuple[str, int, dict[str, str], str]] = []

    def store(topic: str, queue: int, properties: dict[str, str], message_id: str, reconsumed: int = 0) -> None:
        offset = offsets[topic, queue]
        offsets[topic, queue] += 1
        when = START + timedelta(milliseconds=len(rows))
        rows.append(Row(topic, "b", queue, offset, properties, message_id, when, reconsumed))

    for step in range(120):
        topic, queue, producer = chance.choice(["T", "U"]), chance.randrange(2), chance.choice(["p", "q"])
        number = numbers[topic, queue, producer] + chance.choice([0, 0, 0, 0, 0, 0, 1, 2, 5])
        numbers[topic, queue, producer] = number + 1
        properties = {PRODUCER: producer, SEQUENCE: str(number)}
        if chance.random() < 0.3:
            pairs = [(start := max(0, number - chance.randrange(8)), start + chance.randrange(4)) for _ in range(2)]
            properties[VOID] = ",".join(f"{first}-{last}" for first, last in pairs) + chance.choice(["", ",x", ",9-2"])
        message = topic, queue, properties, f"id-{seed}-{step}"
        fate = chance.random()
        if fate < 0.12:
            held.append(message)  # it comes later, or never
        elif fate < 0.2:
            store(*message)
            store(*message)
        elif fate < 0.25:
            store(*message, reconsumed=1)
        elif fate < 0.3:
            store(topic, queue, {SEQUENCE: "1"} if step % 2 else {PRODUCER: "p", SEQUENCE: "many"}, message[3])
        elif fate < 0.35 and rows:
            store(topic, queue, properties, chance.choice(rows).message_id)  # another attempt of a message
        else:
            store(*message)
        if held and chance.random() < 0.1:
            store(*held.pop(chance.randrange(len(held))))
    return rows


def checked(rows: list[Row], *, from_the_first: bool) -> tuple[Counter[Any], dict[Any, list[int]], int]:
    """What the SDK's checker says."""
    audit = ConsumeAudit(from_the_first=from_the_first)
    found: Counter[Any] = Counter()
    for row in rows:
        queue = MessageQueue(row.topic, row.broker, row.queue_id)
        for each in audit.check(_received(row, queue)):
            place = each.producer_id, *each.queue, each.queue_offset, each.message_id, each.sequence
            found[str(each.problem), *place, each.missing, each.previous_id] += 1
    return found, {(key[0], *key[1]): numbers for key, numbers in audit.missing().items()}, audit.unstamped


def _received(row: Row, queue: MessageQueue) -> Any:
    return SimpleNamespace(
        properties=row.properties,
        queue=queue,
        queue_offset=row.offset,
        message_id=row.message_id,
        reconsume_times=row.reconsume_times,
    )


@pytest.mark.slow
@pytest.mark.parametrize("from_the_first", [False, True])
def test_verdicts_are_those_of_the_checker(spark: SparkSession, from_the_first: bool) -> None:
    histories = [history(seed) for seed in range(6)]
    # One table of all histories: each is a cluster of its own.
    rows = [row._replace(topic=f"{row.topic}{seed}") for seed, each in enumerate(histories) for row in each]
    frame = spark.createDataFrame([tuple(row) for row in rows], schema_of(*COLUMNS))
    stamps = stamped(frame).cache()
    placed_rows = placed(stamps, from_the_first=from_the_first).cache()
    found = findings(placed_rows).cache()

    expected: Counter[Any] = Counter()
    missing: dict[Any, list[int]] = {}
    unstamped = 0
    for seed, each in enumerate(histories):
        one = checked([row._replace(topic=f"{row.topic}{seed}") for row in each], from_the_first=from_the_first)
        expected += one[0]
        missing |= one[1]
        unstamped += one[2]

    actual = Counter(
        (
            row.problem,
            row.producer,
            row.topic,
            row.brokerName,
            row.queueId,
            row.queueOffset,
            row.msgId,
            row.sequence,
            None if row.firstMissing is None else (row.firstMissing, row.lastMissing),
            row.previousId,
        )
        for row in found.collect()
    )
    assert actual == expected
    assert {key[0] for key in expected} == {"gap", "repeat", "disorder"}, "the histories lack something"
    gone: dict[Any, list[int]] = {}
    for row in lost(placed_rows, found).collect():
        key = row.producer, row.topic, row.brokerName, row.queueId
        gone[key] = sorted([*gone.get(key, []), *range(row.firstMissing, row.lastMissing + 1)])
    assert gone == missing
    assert stamps.where("producer is null").count() == unstamped


NONSENSE = (
    *("", " ", "-1", "1.5", "1e9", "many", "NaN", "\u0661", "7\n", " 7", "0-", "9" * 16, "9" * 18, "9" * 19, "9" * 400),
    *(str(number) for power in (31, 53, 62, 63, 64) for number in (2**power, -(2**power))),
)


@pytest.mark.slow
def test_damaged_and_forged_stamps_do_no_harm(spark: SparkSession) -> None:
    chance = random.Random(11)
    rows: list[Row] = []
    for number in range(300):
        properties = {PRODUCER: f"p{number % 3}", SEQUENCE: chance.choice(NONSENSE), VOID: chance.choice(NONSENSE)}
        if number % 3 == 0:
            voids = [f"{chance.choice(NONSENSE)}-{chance.choice(NONSENSE)}" for _ in range(chance.randrange(4))]
            properties |= {SEQUENCE: str(number), VOID: ",".join(voids)}
        elif number % 7 == 0:
            properties[PRODUCER] = ""
        rows.append(Row("T", "b", 0, number, properties, f"id-{number}", START, 0))
    # All that a number may have: each of many queues lost as much as it can.
    most = "9" * MAX_DIGITS
    rows += [
        Row(
            "U",
            "b",
            queue,
            offset,
            {PRODUCER: "p", SEQUENCE: (most, "0")[offset == 0]},
            f"u-{queue}-{offset}",
            START,
            0,
        )
        for queue in range(10_000)
        for offset in range(2)
    ]
    meter = Meter("audit")
    audit_messages(spark.createDataFrame([tuple(row) for row in rows], schema_of(*COLUMNS)), meter, limit=1)
    damaged, forged = meter.tables["topics"].objects()
    assert (damaged["messages"], damaged["unstamped"]) == (300, checked(rows[:300], from_the_first=False)[2])
    assert (forged["unstamped"], forged["lost"]) == (0, 2**63 - 1)
    assert meter.details["lost"] == 2**63 - 1


def test_bad_input_is_told(spark: SparkSession) -> None:
    with pytest.raises(JobError, match=r"limit=-1: give how many .*0 or more"):
        audit(spark, "T", limit=-1)
    text = spark.createDataFrame([], schema_of(*COLUMNS)).withColumn("properties", F.lit("{}"))
    with pytest.raises(JobError, match=r"properties is no map: leave .*propertiesAsJson away"):
        audit_messages(text, Meter("audit"))
    with pytest.raises(JobError, match="no column msgId"):
        audit_messages(text.drop("msgId"), Meter("audit"))


class Told(Silence):
    """Keeps what it is to show."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def show(self, meter: Meter) -> None:
        self.lines.append(progress_line(meter))


def test_what_a_producer_lost_is_reported(spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit) -> None:
    topic = topics.make("AUDITED", 2)

    async def send() -> None:
        stamps = SendAudit("producer-1")
        async with (
            cometmq.connect(broker.nameserver) as mq,
            mq.producer("audited", hooks=[stamps]) as producer,
        ):
            for number in range(40):
                queue = MessageQueue(topic, "broker-a", number % 2)
                if number == 20:
                    stamps._next[queue] += 3  # numbers 10 to 12 of queue 0 are never sent
                await producer.send(topic, b"x", queue=queue)

    asyncio.run(send())
    told = Told()
    report = audit(spark, topic, name_server=broker.nameserver, from_the_first=True, display=told)
    assert any(line.startswith("audit: reading and counting") for line in told.lines)
    assert report.rows == 40
    assert {name: report.details[name] for name in ("lost", "gaps", "repeats", "disorders", "unstamped")} == {
        "lost": 3,
        "gaps": 1,
        "repeats": 0,
        "disorders": 0,
        "unstamped": 0,
    }
    [gone] = report.tables["lostNumbers"].objects()
    assert (gone["producer"], gone["queueId"], gone["firstMissing"], gone["lastMissing"]) == ("producer-1", 0, 10, 12)
    later = datetime.now(UTC) + timedelta(hours=1)
    assert audit(spark, topic, name_server=broker.nameserver, since=later).rows == 0
