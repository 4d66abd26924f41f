"""The replay job: queue order, from topics and archives, at a rate, and on after a stop."""

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import cometmq
from cometmq.spark.jobs import JobError, archive, compact_archive, replay
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.metrics import Meter, Silence
from cometmq.spark.jobs.pacing import paced
from cometmq.spark.jobs.replay_job import ORIGIN
from cometmq.spark.jobs.replay_plan import ReplayCheckpoint, ReplayPlan
from cometmq.spark.queue_range import QueueId, QueueRange
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark


def origins(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> dict[int, list[str]]:
    """Where the messages of each queue of a topic come from, in their order."""
    rows = (
        spark.read.format("rocketmq")
        .options(nameServer=broker.nameserver, subscribe=topic)
        .schema("queueId int, queueOffset long, properties map<string,string>")
        .load()
        .orderBy("queueId", "queueOffset")
        .collect()
    )
    found: dict[int, list[str]] = {}
    for row in rows:
        found.setdefault(row.queueId, []).append(row.properties[ORIGIN])
    return found


def from_queue(topic: str, queue: int, numbers: range) -> list[str]:
    return [f"{topic}/broker-a/{queue}/{number}" for number in numbers]


class StopAfter(Silence):
    """Stops a replay when so many rows are sent."""

    def __init__(self, rows: int, stop: threading.Event) -> None:
        self._rows = rows
        self._stop = stop

    def show(self, meter: Meter) -> None:
        if meter.rows >= self._rows:
            self._stop.set()


def test_a_topic_goes_on_in_order_after_a_stop(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    source = topics.make("REPLAYED", 3)
    bodies = [cometmq.Message(f"{n}".encode(), tag="t", keys="k", properties={"n": f"{n}"}) for n in range(30)]
    topics.send(source, {0: bodies, 1: bodies[:10], 2: bodies[:20]})
    target = topics.make("REPLAYED_TO", 2)
    checkpoint = str(tmp_path / "replay")
    stop = threading.Event()
    first = replay(
        spark,
        target,
        source,
        name_server=broker.nameserver,
        checkpoint=checkpoint,
        slice_rows=25,
        display=StopAfter(1, stop),
        stop=stop,
    )
    assert (first.rows, first.details["slicesLeft"]) == (24, 2)
    topics.fill(source, {0: 5})  # after the start: not part of this replay
    second = replay(spark, target, source, name_server=broker.nameserver, checkpoint=checkpoint)
    assert (first.rows + second.rows, second.details["slicesLeft"], second.backlog) == (60, 0, 0)
    assert replay(spark, target, source, name_server=broker.nameserver, checkpoint=checkpoint).rows == 0

    found = origins(spark, broker, target)
    assert found[1] == from_queue(source, 1, range(10))
    of_two = {queue: [each for each in found[0] if each.startswith(f"{source}/broker-a/{queue}/")] for queue in (0, 2)}
    assert of_two[0] == from_queue(source, 0, range(30))
    assert of_two[2] == from_queue(source, 2, range(20))
    assert len(found[0]) == 50
    read = spark.read.format("rocketmq").options(nameServer=broker.nameserver, subscribe=target).load()
    row = read.where(f"properties['{ORIGIN}'] = '{source}/broker-a/0/7'").collect()[0]
    assert (bytes(row.body), row.tags, row.keys, row.properties["n"]) == (b"7", "t", "k", "7")
    assert row.properties["SPARK_ROW"].startswith("replay-")

    with pytest.raises(JobError, match="another replay"):
        replay(spark, target, source, name_server=broker.nameserver, checkpoint=checkpoint, until=datetime.now())


@pytest.mark.slow
def test_a_replay_stays_with_its_queues_when_the_target_has_others(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    source, target = topics.made("REPLAYED_ON", [8, 8, 8]), topics.make("REPLAYED_ON_TO", 3)

    def run(*, until_stopped: bool = False) -> int:
        stop = threading.Event()
        return replay(
            spark,
            target,
            source,
            name_server=broker.nameserver,
            checkpoint=str(tmp_path / "replay"),
            options={"endingTimestamp": "4000000000000"},  # says something to the plan, and nothing to its slices
            slice_rows=6,
            display=StopAfter(1, stop) if until_stopped else None,
            stop=stop,
        ).rows

    assert run(until_stopped=True) == 6
    with (
        ReplayCheckpoint(Lake(spark, str(tmp_path / "replay"))).held(),
        pytest.raises(JobError, match="another replay has the checkpoint"),
    ):
        run()
    topics.make(target, 2)
    with pytest.raises(JobError, match=r"sends to queue 2 of topic REPLAYED_ON_TO .* out of order"):
        run()
    topics.make(target, 8)
    assert run() == 18
    assert origins(spark, broker, target) == {queue: from_queue(source, queue, range(8)) for queue in range(3)}


def test_an_archive_is_replayed_at_a_rate(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    source, target = topics.made("REPLAYED_ARCHIVE", [12, 9]), topics.make("REPLAYED_ARCHIVE_TO", 2)
    place = str(tmp_path / "archive")
    archive(spark, source, place, name_server=broker.nameserver)
    sent = replay(spark, target, archive=place, name_server=broker.nameserver, rate=20.0, slice_rows=11)
    assert (sent.rows, bool(sent.bytes)) == (21, True)
    # The second slice was not due before the first one's messages were.
    assert sent.seconds >= 11 / 20
    assert origins(spark, broker, target) == {
        0: from_queue(source, 0, range(12)),
        1: from_queue(source, 1, range(9)),
    }
    assert Path(f"{place}.replay-to-{target}", "plan.json").exists()
    with pytest.raises(JobError, match="is no archive"):
        replay(spark, target, archive=str(tmp_path), name_server=broker.nameserver)


@pytest.mark.slow
def test_a_rate_is_kept_whatever_the_plan_was_made_for(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    source, target = topics.made("REPLAYED_SLOWLY", [600, 300]), topics.make("REPLAYED_SLOWLY_TO", 2)
    stop = threading.Event()
    stop.set()

    def run(rate: float | None, stop: threading.Event | None = None) -> int:
        place = str(tmp_path / "replay")
        return replay(spark, target, source, name_server=broker.nameserver, checkpoint=place, rate=rate, stop=stop).rows

    assert run(None, stop) == 0
    assert run(300.0) == 900
    read = spark.read.format("rocketmq").options(nameServer=broker.nameserver, subscribe=target).load()
    rows = read.orderBy("storeTimestamp").select("queueId", "storeTimestamp").collect()
    times = [row.storeTimestamp.timestamp() for row in rows]
    # 3 seconds; a quarter faster at most, and as slow as the machine is.
    assert 0.75 * 3 <= times[-1] - times[0] <= 20
    most = max(sum(first <= each < first + 0.5 for each in times) for first in times)
    assert most <= 450, "half a second's are 150"
    assert 20 <= sum(row.queueId for row in rows[:150]) <= 80, "both queues move on together"
    assert origins(spark, broker, target) == {
        0: from_queue(source, 0, range(600)),
        1: from_queue(source, 1, range(300)),
    }


class FakeTime:
    """A clock that a sleep moves on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 6))
        self.now += seconds


def test_a_pace_is_even_and_catches_nothing_up() -> None:
    time, sizes = FakeTime(), []
    batches = [pa.record_batch({"n": list(range(first, first + 25))}) for first in (0, 25)]
    for piece in paced(batches, 200, clock=time.clock, sleep=time.sleep):
        sizes.append(piece.num_rows)
        if len(sizes) == 4:
            time.now += 10  # a broker that does not answer
    assert sizes == [10, 10, 5, 10, 10, 5]
    assert time.pauses == [0.05, 0.05, 0.025]  # after the long silence one tick at once, and on as before
    assert len(list(paced(batches, 0.5, clock=time.clock, sleep=time.sleep))) == 50
    assert time.now == pytest.approx(10.125 + 98)


def test_brokers_that_make_topics_make_that_of_a_replay(
    spark: SparkSession, open_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    topics = TopicKit(open_broker.nameserver)
    source = topics.made("REPLAYED_TO_A_NEW_ONE", [3, 2])
    place = str(tmp_path / "checkpoint")
    assert replay(spark, "MADE_BY_A_REPLAY", source, name_server=topics.nameserver, checkpoint=place).rows == 5
    assert origins(spark, open_broker, "MADE_BY_A_REPLAY") == {
        0: from_queue(source, 0, range(3)),
        1: from_queue(source, 1, range(2)),
    }


@pytest.mark.slow
def test_each_cluster_is_a_replay_of_its_own(
    spark: SparkSession, broker: EmbeddedBroker, open_broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    source, target = topics.made("REPLAYED_ELSEWHERE", [6]), topics.make("REPLAYED_HERE", 1)
    lake = tmp_path / "lake [1]{a}*"
    here, there = broker.nameserver, open_broker.nameserver
    archive(spark, source, str(lake), name_server=here, options={"maxOffsetsPerTrigger": "3"})
    assert compact_archive(spark, str(lake)).details["compactedFiles"] == 2  # Spark takes such names for patterns
    assert replay(spark, target, archive=str(lake), name_server=here).rows == 6
    other = replay(spark, target, archive=str(lake), name_server=here, to_name_server=there)
    assert (other.rows, "note" in other.details) == (6, False)
    assert origins(spark, open_broker, target) == {0: from_queue(source, 0, range(6))}

    # However the archive is written, it is the same one: nothing is sent twice, and its user is told why.
    again = replay(spark, target, archive=f"{lake}/", name_server=here)
    assert (again.rows, again.backlog) == (0, 0)
    assert "give another --checkpoint to replay it once more" in again.details["note"]
    host, _, port = there.partition(":")
    assert sorted(each.name for each in tmp_path.glob("*replay*")) == [
        f"{lake.name}.replay-to-REPLAYED_HERE",
        f"{lake.name}.replay-to-REPLAYED_HERE-at-{host}-{port}",
    ]

    # A topic of the same name is another topic elsewhere.
    TopicKit(there).made(source, [2])
    place = str(tmp_path / "checkpoint")
    assert replay(spark, target, source, name_server=here, checkpoint=place).rows == 6
    with pytest.raises(JobError, match=rf"another replay \(topics {source} at {here} from .* to {target} at {here}\)"):
        replay(spark, target, source, name_server=there, to_name_server=here, checkpoint=place)


def test_what_cannot_be_replayed_is_told(spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit) -> None:
    topic = topics.made("REPLAYED_BADLY", [1])
    server = broker.nameserver
    with pytest.raises(JobError, match="NOT_THERE to replay to does not exist"):
        replay(spark, "NOT_THERE", topic, name_server=server)
    with pytest.raises(JobError, match="to itself"):
        replay(spark, topic, topic, name_server=server)
    with pytest.raises(JobError, match="sends nothing"):
        replay(spark, "ANY", topic, name_server=server, rate=0)
    now = datetime.now(UTC)
    with pytest.raises(JobError, match="is empty"):
        replay(spark, "ANY", topic, name_server=server, since=now, until=now - timedelta(hours=1))


def test_slices_are_all_of_every_queue_in_order() -> None:
    ranges = [QueueRange("a", "b", 0, 5, 105), QueueRange("a", "b", 1, 0, 1), QueueRange("c", "b", 0, 7, 17)]
    plan = ReplayPlan.of("source", "target", ranges)
    assert plan == ReplayPlan.from_json(plan.to_json())
    assert plan.steps == 111
    slices = [plan.slice(*each) for each in ((0, 20), (20, 60), (60, 61), (61, 111))]  # whatever each run takes
    for each in ranges:
        parts = [part for cut in slices for part in cut if part.queue == each.queue]
        assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
        assert (parts[0].start, parts[-1].stop) == (each.start, each.stop)
    assert [sum(part.size for part in cut) for cut in slices] == [19, 40, 0, 52]
    assert [plan.rows_from(step) for step in (0, 60, 111)] == [111, 52, 0]
    assert [plan.steps_of(rows) for rows in (0.1, 20, 1000)] == [1, 20, 1000]
    assert ReplayPlan.of("source", "target", []).steps == 0


def test_plans_of_older_versions_go_to_the_queues_that_are_there() -> None:
    ranges = [QueueRange("a", "b", number, 0, 5) for number in range(3)]
    here = [QueueId("to", "b", number) for number in range(2)]
    older = json.loads(ReplayPlan.of("source", "target", ranges, here).to_json())
    del older["targets"]
    ways = ReplayPlan.from_json(json.dumps(older)).ways(here, 0)
    assert [ways[each.queue].queue_id for each in ranges] == [0, 1, 0]
    # One that is done needs no queue any more.
    assert ReplayPlan.of("source", "target", ranges, [QueueId("to", "gone", 0)]).ways(here, 15)
