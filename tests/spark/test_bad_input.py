"""What a user gets wrong, and what goes wrong under a query: told at the first moment, with the option and a remedy.

The driver's half of the readers, called as Spark calls it, against a real broker; no Spark is started. The same
mistakes seen through Spark's own errors are in `test_stream`, `test_batch` and `test_sink`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cometmq.spark.batch import BatchReader
from cometmq.spark.columns import full_schema
from cometmq.spark.errors import OptionError, SparkSourceError, Unreachable, filter_refused
from cometmq.spark.offsets import INITIAL
from cometmq.spark.options import parse
from cometmq.spark.queue_range import QueueId
from cometmq.spark.source import RocketMQSource
from cometmq.spark.stream import StreamReader
from cometmq.testing import EmbeddedBroker
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

Name = Callable[[str], str]


def stream_reader(kit: TopicKit, topic: str, **options: Any) -> StreamReader:
    given = {"nameServer": kit.nameserver, "subscribe": topic, "idleWait": "0ms", **options}
    return StreamReader({name: str(value) for name, value in given.items() if value is not None}, full_schema())


def batch_reader(kit: TopicKit, topic: str, **options: Any) -> BatchReader:
    given = {"nameServer": kit.nameserver, "subscribe": topic, **options}
    return BatchReader({name: str(value) for name, value in given.items()}, full_schema())


def next_end(reader: StreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, reader.getDefaultReadLimit())


def offset(topic: str, **ends: int) -> dict[str, Any]:
    """An offset of Spark's log: `q0=5` says where queue 0 ends."""
    return {"q": {topic: {"broker-a": {name[1:]: end for name, end in ends.items()}}}, "v": 1}


# Options


def test_options_of_streams_are_refused_by_batches(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [3])
    for option, value in {"maxOffsetsPerTrigger": 1, "maxBytesPerTrigger": 1, "maxTriggerDelay": "1s"}.items():
        with pytest.raises(OptionError, match=rf"^{option}: only spark\.readStream has it"):
            batch_reader(topics, topic, **{option: value})
    assert len(batch_reader(topics, topic, unreachableTimeout="1s").partitions()) == 1


def test_offsets_of_brokers_and_queues_that_are_not_read(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [3, 3])
    for option in ("startingOffsets", "startingOffsetsByTimestamp"):
        for rules, message in (
            ({topic: 0, "other": 0}, "the topic other is not read"),
            ({topic: {"broker-a": 0, "broker-z": {"0": 0}}}, f"broker broker-z of topic {topic} is not read"),
            ({topic: {"0": 0, "1": 0, "7": 0}}, f"queue 7 of topic {topic} is not read; broker-a: 0, broker-a: 1 is"),
        ):
            with pytest.raises(OptionError, match=rf"^{option}: {message}"):
                batch_reader(topics, topic, **{option: json.dumps(rules)}).partitions()
            with pytest.raises(OptionError, match=rf"^{option}: {message}"):
                next_end(stream_reader(topics, topic, **{option: json.dumps(rules)}), dict(INITIAL))


def test_ranges_that_end_before_they_start(topics: TopicKit, name: Name) -> None:
    topic = topics.made(name("T"), [9])
    backwards = {"startingOffsets": json.dumps({topic: 5}), "endingOffsets": json.dumps({topic: 4})}
    with pytest.raises(OptionError, match=r"^endingOffsets: queue 0 .* would end at 4, before it starts at 5"):
        batch_reader(topics, topic, **backwards).partitions()
    empty = {"startingOffsets": json.dumps({topic: 5}), "endingOffsets": json.dumps({topic: 5})}
    assert batch_reader(topics, topic, **empty).partitions() == []
    with pytest.raises(OptionError, match=r"^endingTimestamp=500: it is before startingTimestamp=1000; swap"):
        batch_reader(topics, topic, startingTimestamp=1000, endingTimestamp=500)


def test_a_filter_that_the_brokers_cannot_use_is_told_by_load(topics: TopicKit, name: Name) -> None:
    # A broker of ours filters by tag alone.
    topic = topics.made(name("T"), [3])
    sql = {"expressionType": "SQL92", "subExpression": "n > 3"}
    options = {"nameServer": topics.nameserver, "subscribe": topic, **sql}
    for asked in (
        RocketMQSource(options).schema,
        stream_reader(topics, topic, **sql).initialOffset,
        batch_reader(topics, topic, **sql).partitions,
        lambda: next_end(stream_reader(topics, topic, **sql), offset(topic, q0=0)),
    ):
        with pytest.raises(OptionError, match=r"^subExpression=n > 3: .*enablePropertyFilter=true.*where\(\) instead"):
            asked()


def test_what_counts_as_a_refused_filter() -> None:
    # RocketMQ has no code of its own for this one.
    disabled = RuntimeError("SYSTEM_ERROR (1): The broker does not support consumer to filter message by SQL92")
    assert filter_refused(disabled, "n > 3") is not None
    assert filter_refused(RuntimeError("SYSTEM_ERROR (1): the disk is full"), "n > 3") is None


def test_tls_files_that_cannot_be_used(tmp_path: Path) -> None:
    no_pem = tmp_path / "ca.pem"
    no_pem.write_text("nothing")
    for path in (no_pem, tmp_path / "missing.pem"):
        options = {"nameServer": "127.0.0.1:1", "subscribe": "T", "tls": "true", "tlsCa": str(path)}
        with pytest.raises(OptionError, match=rf"^tls: trust file {path}: .*tlsCa, tlsCert and tlsKey name PEM files"):
            RocketMQSource(options).schema()


# Checkpoints


def test_a_checkpoint_of_another_topic_ends_the_query(topics: TopicKit, name: Name) -> None:
    old, new = topics.made(name("OLD"), [5]), topics.made(name("NEW"), [7])
    start = offset(old, q0=5)
    with pytest.raises(OptionError, match=rf"^subscribe={new}: the checkpoint is about {old} too, .* another check"):
        next_end(stream_reader(topics, new), start)
    queue_0 = json.dumps({new: {"broker-a": [0]}})
    with pytest.raises(OptionError, match=rf"^assign: the checkpoint is about {old} too"):
        next_end(stream_reader(topics, new, subscribe=None, assign=queue_0), start)
    with pytest.raises(OptionError, match=rf"^subscribePattern=NEW.*: the checkpoint is about {old} too"):
        next_end(stream_reader(topics, new, subscribe=None, subscribePattern="NEW.*"), start)
    # Whoever says so goes on without the old topic, and the next checkpoint knows nothing of it.
    lenient = next_end(stream_reader(topics, new, failOnDataLoss="false"), start)
    assert lenient == {"from": {new: {"broker-a": {"0": 0}}}, **offset(new, q0=7)}


def test_a_topic_may_be_added_to_a_query(topics: TopicKit, name: Name) -> None:
    old, new = topics.made(name("OLD"), [5]), topics.made(name("NEW"), [7])
    end = next_end(stream_reader(topics, f"{old},{new}"), offset(old, q0=5))
    assert end["from"] == {new: {"broker-a": {"0": 0}}}


def test_choices_that_take_a_queue() -> None:
    of = {"nameServer": "127.0.0.1:1"}
    queue, other = QueueId("orders", "broker-a", 1), QueueId("orders2", "broker-a", 1)
    for choice in ({"subscribe": "x,orders"}, {"subscribePattern": "order."}):
        topics = parse({**of, **choice}).topics
        assert (topics.takes(queue), topics.takes(other)) == (True, False)
    assigned = parse({**of, "assign": '{"orders":{"broker-a":[1]}}'}).topics
    assert (assigned.takes(queue), assigned.takes(QueueId("orders", "broker-a", 0))) == (True, False)


@pytest.mark.parametrize(
    "damaged",
    [
        {"q": {"T": [1]}, "v": 1},
        {"q": {"T": {"broker-a": 5}}, "v": 1},
        {"q": {"T": {"broker-a": {"0": "x"}}}, "v": 1},
        {"q": {"T": {"broker-a": {"zero": 1}}}, "v": 1},
        {"q": {"T": {"broker-a": {"0": 1}}}, "from": [], "v": 1},
        {"q": 7, "v": 1},
        {},
    ],
)
def test_a_damaged_checkpoint_is_told(topics: TopicKit, damaged: dict[str, Any]) -> None:
    with pytest.raises(SparkSourceError, match=r"offsets of another form: .*is damaged.*a checkpoint of its own"):
        next_end(stream_reader(topics, "T"), damaged)


# The cluster


def test_a_broker_that_is_away_when_offsets_are_given(tmp_path: Path, name: Name) -> None:
    small = {"brokerName": "broker-a", "mappedFileSizeCommitLog": 1 << 20}
    with EmbeddedBroker(store=tmp_path, config=small) as broker:
        topics = TopicKit(broker.nameserver)
        topic = topics.made(name("T"), [5])
        options = {"startingOffsets": json.dumps({topic: 2}), "requestTimeoutMs": 300}
        reader = batch_reader(topics, topic, **options, unreachableTimeout="300ms")
        [partition] = reader.partitions()
        assert [(each.start, each.stop) for each in partition.ranges] == [(2, 5)]
    with pytest.raises((Unreachable, OptionError), match=r"no nameserver answers|did not answer"):
        reader.partitions()
