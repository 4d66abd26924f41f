"""The trace job: latencies of known traces, in all forms that clients write, as a batch and as a stream."""

import random
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql import DataFrame, SparkSession

from cometmq.client.trace import records
from cometmq.client.trace.records import ConsumeCode, MessageType, TraceRecord
from cometmq.spark.jobs import JobError, trace, trace_memory
from cometmq.spark.jobs.trace_job import latencies
from cometmq.spark.jobs.trace_memory import Memory, Times
from cometmq.spark.jobs.trace_rows import happened
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

#: 2026-01-01 08:00 UTC, the beginning of a minute.
START = 1_767_254_400_000
MINUTE = 60_000


def sent(message: str, at: int, *, cost: int = 5, success: bool = True, topic: str = "orders") -> TraceRecord:
    return records.sent(
        time=at,
        region="r",
        group="shop",
        topic=topic,
        message_id=message,
        tag=None,
        keys=None,
        address="10.0.0.1:10911",
        body_size=3,
        cost=cost,
        kind=MessageType.NORMAL,
        offset_message_id=f"off-{message}",
        success=success,
    )


def ended(message: str, at: int, *, group: str = "billing", cost: int = 20, success: bool = True) -> TraceRecord:
    return records.after_consume(
        time=at,
        group=group,
        topic="orders",
        request_id=f"q-{message}",
        message_id=message,
        cost=cost,
        success=success,
        keys=None,
        code=ConsumeCode.SUCCESS if success else ConsumeCode.FAILED,
    )


def old_record(*fields: object) -> TraceRecord:
    """A record as clients of old versions wrote it."""
    return TraceRecord("old", "\x01".join(map(str, fields)) + "\x02", ())


def bodies(found: Iterable[TraceRecord]) -> list[bytes]:
    """Several records a message, as clients send them."""
    texts = [each.text for each in found]
    return ["".join(texts[first : first + 7]).encode() for first in range(0, len(texts), 7)]


def minute_of_traffic(start: int, name: str) -> list[TraceRecord]:
    """100 messages with latencies of 1 to 100 ms, one of them failed before; another group is slow."""
    found = []
    for number in range(1, 101):
        message, at = f"{name}{number}", start + number * 100
        found += [sent(message, at), ended(message, at + number)]
    found += [ended(f"{name}7", start + 900, success=False), ended(f"{name}9", start + 5000, group="mail", cost=3000)]
    return found


def by_key(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, str, str], dict[str, Any]]:
    return {(row["kind"], row["topic"], row["group"]): row for row in rows}


def test_latencies_failures_and_slow_consumers(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic = topics.make("TRACES", 1)
    old_forms = [
        old_record("Pub", START, "r", "shop", "old", "m1", *"thab", 40, 0, "false"),
        old_record("Pub", START, "r", "shop", "old", "m2", *"thab", 60, 0),
        old_record("SubAfter", "q", "m1", 3, "true", "k", 0),
        TraceRecord("old", "Pub\x01not a time\x02SubBefore\x01\x02\x02garbage\x02", ()),
    ]
    unknown = [ended("never-sent", START + 10, group="audit")]
    topics.send(topic, {0: bodies([*minute_of_traffic(START, "a"), *old_forms, *unknown])})
    chart, table = tmp_path / "latency.html", tmp_path / "table"
    report = trace(spark, topic=topic, name_server=broker.nameserver, chart=str(chart), output=str(table))
    found = by_key(report.tables["latencies"].objects())
    assert set(found) == {
        ("send", "orders", "shop"),
        ("send", "old", "shop"),
        ("consume", "orders", "billing"),
        ("consume", "orders", "mail"),
        ("consume", "?", "audit"),
    }
    billing = found["consume", "orders", "billing"]
    assert (billing["count"], billing["failures"], billing["slow"]) == (101, 1, False)
    assert (billing["worst_p50"], billing["worst_p95"], billing["worst_p99"], billing["worst_max"]) == (50, 95, 99, 100)
    assert found["consume", "?", "audit"]["worst_p50"] is None, "nobody knows when it was sent"
    old = found["send", "old", "shop"]
    assert (old["count"], old["failures"], old["worst_max"]) == (2, 1, 60)
    assert report.details["slowConsumers"] == ["mail"]
    assert report.details["failures"] == 2
    page = chart.read_text(encoding="utf-8")
    assert "orders → billing" in page
    assert "shop → orders" in page
    assert pyarrow.dataset.dataset(table).count_rows() == 5


def table_of(spark: SparkSession, found: Iterable[TraceRecord]) -> DataFrame:
    """Trace messages as the source gives them, in good time."""
    stored = datetime.fromtimestamp(START / 1000 + 30 * 86400, UTC)
    return spark.createDataFrame([(body, stored) for body in bodies(found)], "body binary, storeTimestamp timestamp")


def test_slow_messages_are_not_left_out_and_repeats_count_once(spark: SparkSession) -> None:
    found = []
    for number in range(20):
        took = 100 if number < 10 else 120 * MINUTE
        # A producer traces each attempt; the way of the message begins with the first one.
        attempts = [sent(f"m{number}", START, success=False), sent(f"m{number}", START + 50)]
        found += [*attempts, ended(f"m{number}", START + took)]
    nameless = [sent("", START), ended("", START + 7)]
    # Trace messages are sent at least once.
    table = latencies(table_of(spark, [*found, *found, *nameless]), 1440 * MINUTE)
    rows = by_key(row.asDict() for row in table.collect())
    billing = rows["consume", "orders", "billing"]
    assert (billing["count"], billing["p50"], billing["p95"], billing["max"]) == (20, 100, 120 * MINUTE, 120 * MINUTE)
    assert (rows["send", "orders", "shop"]["count"], rows["send", "orders", "shop"]["failures"]) == (41, 20)
    assert (rows["consume", "?", "billing"]["count"], rows["consume", "?", "billing"]["max"]) == (1, None)


def test_a_stream_adds_windows_when_they_close(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic = topics.make("TRACES_STREAM", 1)
    chart, table = tmp_path / "latency.svg", tmp_path / "table"

    def run(*found: TraceRecord) -> list[dict[str, Any]]:
        topics.send(topic, {0: bodies(found)})
        trace(
            spark,
            topic=topic,
            name_server=broker.nameserver,
            trigger="available-now",
            output=str(table),
            chart=str(chart),
            watermark="10 seconds",
        )
        files = list(table.rglob("*.parquet"))
        rows = pyarrow.dataset.dataset(files).to_table().to_pylist() if files else []
        return sorted(rows, key=lambda row: (row["time"], row["kind"], row["group"]))

    # A time of a far day must not make all that follows too late.
    nonsense = [sent("far", START + 20 * 365 * 24 * 60 * MINUTE), sent("never", 2**63 - 1), ended("never", -1)]
    assert run(*minute_of_traffic(START, "a"), *nonsense) == [], "the window may still get something"
    # Consumers are down: a send closes the window of both.
    rows = run(sent("b", START + MINUTE + 10_000))
    assert {row["time"] for row in rows} == {datetime.fromtimestamp(START / 1000, UTC)}
    found = by_key(rows)
    assert (found["consume", "orders", "billing"]["count"], found["consume", "orders", "billing"]["p99"]) == (101, 99)
    assert found["send", "orders", "shop"]["count"] == 100
    # They are back, and go on with what is an hour old; what comes too late for a window that is closed is left out.
    took = 50 * MINUTE
    more = run(sent("late", START), ended("late", START + 1), ended("b", START + MINUTE + 10_000 + took))
    assert more[: len(rows)] == rows
    assert [(row["kind"], row["count"]) for row in more[len(rows) :]] == [("send", 1)]
    [last] = run(sent("c", START + 90 * MINUTE))[len(more) :]
    assert (last["kind"], last["topic"], last["max"]) == ("consume", "orders", took)
    assert "orders → billing" in chart.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_batch_that_is_run_again_finds_the_same(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_memory, "MAX_PARTS", 2)
    memory = Memory(spark, str(tmp_path), Times(window=MINUTE, watermark=0, horizon=3 * MINUTE))

    def close(number: int, *found: TraceRecord, times: int = 1) -> list[tuple[object, ...]]:
        results = []
        for _ in range(times):
            closed, late = memory.closed(happened(table_of(spark, found)), number)
            rows = closed.select("kind", "topic", "count", "max").orderBy("kind", "topic", "time").collect()
            results.append([*map(tuple, rows), (late,)])
        assert results == results[:1] * times
        return results[0]

    assert close(0, sent("a", START), sent("b", START + 1)) == [(0,)]
    # Nobody consumes: sends do not wait for that.
    assert close(1, sent("c", START + MINUTE)) == [("send", "orders", 2, 5), (0,)]
    back = [ended("a", START + MINUTE + 7), ended("x", START + 2 * MINUTE), sent("d", START)]
    assert close(2, *back, times=2) == [
        ("consume", "orders", 1, MINUTE + 7),
        ("send", "orders", 1, 5),
        (1,),
    ]
    # What is older than the horizon is forgotten.
    slow = [ended("b", START + 2 * MINUTE), ended("b", START + 4 * MINUTE), ended("y", START + 5 * MINUTE)]
    assert close(3, *slow) == [
        ("consume", "?", 1, None),
        ("consume", "orders", 1, 2 * MINUTE - 1),
        ("consume", "orders", 1, 4 * MINUTE - 1),
        (0,),
    ]
    assert {each.name for each in tmp_path.glob("trace/part-*")} == {"part-2", "part-3"}, "parts were joined"
    assert close(4, ended("b", START + 5 * MINUTE), sent("e", START + 6 * MINUTE)) == [("consume", "?", 2, None), (0,)]
    (tmp_path / "trace" / "batch-4.json").unlink()
    with pytest.raises(JobError, match=r"batch-4\.json is missing: .*begin anew"):
        memory.closed(happened(table_of(spark, [])), 5)
    with pytest.raises(JobError, match=r"have 60000 ms until now, and not 1.*give the same --window"):
        Memory(spark, str(tmp_path), Times(1, 0, 0)).closed(happened(table_of(spark, [])), 4)


def damaged(text: str, chance: random.Random) -> bytes:
    """A record as nobody should write it: nonsense in a field, fields too many or too few, bytes that are no text."""
    fields = text.rstrip("\x02").split("\x01")
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(fields))
        fields[place] = chance.choice(NONSENSE)
    del fields[chance.randint(1, 2 * len(fields)) :]
    body = "\x01".join(fields).encode() + b"\x02"
    for _ in range(chance.choice((0, 0, 1, 4))):
        place = chance.randrange(len(body))
        body = body[:place] + bytes([chance.randrange(256)]) + body[place + 1 :]
    return body


NONSENSE = (
    *("", " ", "null", "NaN", "1.5", "1e9", "0x7f", "true", "Pub", "SubAfter", "\u0661", "-1", "0", "253402300800000"),
    *(str(number) for power in (31, 32, 62, 63, 64) for number in (2**power, 2**power - 1, -(2**power))),
    *("9" * 400, "x" * 5000, "\x00"),
)


def test_damaged_records_do_no_harm(spark: SparkSession, tmp_path: Path) -> None:
    chance = random.Random(7)
    whole = minute_of_traffic(START, "a")
    found = [damaged(chance.choice(whole).text, chance) for _ in range(500)]
    stored = datetime.fromtimestamp(START / 1000 + 3600, UTC)
    # What is whole counts, beside whatever it stands.
    beside = [bad + good.text.encode() for bad, good in zip(found, whole, strict=False)]
    bodies_of = [*beside, *found[len(whole) :]]
    traces = spark.createDataFrame([(body, stored) for body in bodies_of], "body binary, storeTimestamp timestamp")
    latencies(traces, MINUTE).coalesce(1).write.parquet(str(tmp_path / "table"))
    rows = pyarrow.dataset.dataset(tmp_path / "table").to_table().to_pylist()
    start = datetime.fromtimestamp(START / 1000, UTC)
    of_minute = by_key(row for row in rows if row["time"] == start)
    assert of_minute["consume", "orders", "billing"]["count"] >= 101
    assert of_minute["send", "orders", "shop"]["count"] >= 100
    for row in rows:
        assert row["time"] < stored
        assert 0 <= row["cost_p95"] < 2**31


def test_bad_input_is_told(spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no nameserver knows this topic"):
        trace(spark, topic="NO_TRACES", name_server=broker.nameserver)
    topic = topics.made("TRACES_BAD", [1])
    for times in ({"window": "soon"}, {"window": "0s"}, {"horizon": "1 hourz"}, {"watermark": "-1s"}):
        [(name, value)] = times.items()
        with pytest.raises(JobError, match=f"{name}='{value}': give a length of time such as"):
            trace(spark, topic=topic, name_server=broker.nameserver, **times)  # type: ignore[arg-type]
    with pytest.raises(JobError, match=r"\.html, \.svg or \.png"):
        trace(spark, topic=topic, name_server=broker.nameserver, chart=str(tmp_path / "x.jpg"))
