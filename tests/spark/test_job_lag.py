"""The lag job: samples of real groups' backlog in a table that grows, and its chart; brokers that are silent."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

import cometmq
from cometmq.client import Client
from cometmq.client.queues import MessageQueue
from cometmq.protocol.bodies.route import BrokerData, ClusterInfo
from cometmq.protocol.codes import RequestCode
from cometmq.remoting import HandlerTable, Request, Response, Server, ServerOptions, format_address
from cometmq.spark.access import Access
from cometmq.spark.jobs import JobError, lag
from cometmq.spark.jobs import sample_table as sample_tables
from cometmq.spark.jobs.backlog import Sample, Sampled, Sampler
from cometmq.spark.jobs.publication import Publication
from cometmq.spark.jobs.sample_table import SampleTable
from cometmq.testing import EmbeddedBroker
from support.silent_server import SilentServer
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark


def test_backlog_is_sampled_into_a_table_that_grows(
    spark: SparkSession, broker: EmbeddedBroker, topics: TopicKit, tmp_path: Path
) -> None:
    topic = topics.made("LAGGING", [10, 4])

    async def consumed(mq: Client, group: str, offsets: dict[int, int]) -> None:
        admin = mq.admin()
        await admin.create_group(group)
        for queue, offset in offsets.items():
            await admin.commit_offset(group, MessageQueue(topic, "broker-a", queue), offset)

    topics.run(lambda mq: consumed(mq, "LAG_SLOW", {0: 3, 1: 4}))
    topics.run(lambda mq: consumed(mq, "LAG_FAST", {0: 10, 1: 4}))
    output, chart = tmp_path / "lag", tmp_path / "lag.svg"

    def run(samples: int) -> object:
        report = lag(
            spark,
            str(output),
            ["LAG_SLOW", "LAG_FAST"],
            name_server=broker.nameserver,
            samples=samples,
            interval=0.05,
            chart=str(chart),
        )
        assert report.details["samples"] == samples
        assert report.to_dict()["backlog"] == report.backlog  # a table of that name would hide it
        rows = report.tables["groups"].objects()
        return {(row["group"], row["topic"]): (row["queues"], row["backlog"]) for row in rows}

    assert run(2) == {("LAG_SLOW", topic): (2, 7), ("LAG_FAST", topic): (2, 0)}
    topics.fill(topic, {1: 5})
    assert run(1) == {("LAG_SLOW", topic): (2, 12), ("LAG_FAST", topic): (2, 5)}
    table = pyarrow.dataset.dataset(output).to_table()
    assert table.num_rows == 3 * 2 * 2
    slow = [row for row in table.to_pylist() if row["group"] == "LAG_SLOW" and row["queueId"] == 1]
    assert sorted((row["brokerOffset"], row["consumerOffset"], row["backlog"]) for row in slow) == [
        (4, 4, 0),
        (4, 4, 0),
        (9, 4, 5),
    ]
    drawing = chart.read_text(encoding="utf-8")
    assert "LAG_SLOW" in drawing
    assert "LAG_FAST" in drawing
    everybody = lag(spark, str(tmp_path / "all"), name_server=broker.nameserver)
    assert {"LAG_SLOW", "LAG_FAST"} <= {row["group"] for row in everybody.tables["groups"].objects()}


# Brokers that are away


@asynccontextmanager
async def nameserver_of(masters: Sequence[str]) -> AsyncIterator[str]:
    """A nameserver that knows nothing but the addresses of masters."""
    brokers = {
        f"broker-{number}": BrokerData(broker_name=f"broker-{number}", cluster="c", broker_addrs={0: address})
        for number, address in enumerate(masters)
    }

    def answer(request: Request[Any]) -> Response:
        return Response(body=ClusterInfo(broker_addr_table=brokers).encode())

    table = HandlerTable()
    table.add(RequestCode.GET_BROKER_CLUSTER_INFO, answer)
    server = Server(table, ServerOptions(host="127.0.0.1"))
    await server.start()
    try:
        yield format_address(*server.address)
    finally:
        await server.close(grace=0.1)


async def sampled(nameserver: str, *groups: str, **options: Any) -> Sampled:
    access = Access(name_servers=(nameserver,), request_timeout=0.3, **options)
    return await asyncio.to_thread(lambda: Sampler(access, groups).sample(datetime.now(UTC)))


async def commit(broker: EmbeddedBroker, group: str, topic: str, offset: int) -> None:
    async with cometmq.connect(broker.nameserver) as mq:
        await mq.admin().create_group(group)
        await mq.admin().commit_offset(group, MessageQueue(topic, "broker-a", 0), offset)


async def test_a_silent_broker_takes_nothing_away_from_what_the_others_say(
    broker: EmbeddedBroker, topics: TopicKit
) -> None:
    topic = await asyncio.to_thread(topics.made, "LAG_SILENT", [9])
    groups = [f"LAG_SILENT_{number}" for number in range(20)]
    for group in groups:
        await commit(broker, group, topic, 4)
    with SilentServer() as silent:
        async with nameserver_of([silent.address, broker.address, silent.address]) as nameserver:
            for named in ((), groups):
                # Each of 20 groups would wait for it, and nobody that long.
                found = await asyncio.wait_for(sampled(nameserver, *named), 5)
                ours = [each for each in found.samples if each.topic == topic]
                assert sorted(each.group for each in ours) == sorted(groups)
                assert {each.backlog for each in ours} == {5}
                assert set(found.missing) == {silent.address}
                assert "did not answer within 0.3 s" in str(found.missing[silent.address])
        async with nameserver_of([silent.address]) as nameserver:
            with pytest.raises(Exception, match="does not answer"):
                await sampled(nameserver, groups[0])


async def test_groups_and_topics_of_a_namespace(broker: EmbeddedBroker, topics: TopicKit) -> None:
    topic = await asyncio.to_thread(topics.made, "LAG_SPACE%T", [3])
    await commit(broker, "LAG_SPACE%G", topic, 1)
    await commit(broker, "LAG_OTHER", topic, 1)
    for named in ((), ("G",)):
        found = await sampled(broker.nameserver, *named, namespace="LAG_SPACE")
        assert [(each.group, each.topic, each.backlog) for each in found.samples] == [("G", "T", 2)]
    with pytest.raises(JobError, match="the group LAG_OTHER has no offsets"):
        await sampled(broker.nameserver, "LAG_OTHER", namespace="LAG_SPACE")


@pytest.mark.slow
def test_a_long_run_keeps_few_files_and_draws_seldom(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(sample_tables, "draw", lambda table, chart: drawn.append(table.count()))
    monkeypatch.setattr(sample_tables, "MOST_FILES", 3)
    publication, start, passed = Publication(spark, str(tmp_path / "lag")), datetime.now(UTC), 0.0
    with publication.opened():
        table = SampleTable(spark, publication, "lag.svg", clock=lambda: passed)
        long_ago = start - timedelta(days=30)
        for moment in (long_ago, *(start + timedelta(seconds=second) for second in range(0, 420, 60))):
            passed += 60
            table.add([Sample(moment, "g", "t", "b", 0, 9, 4, 5, None)])
            assert all(len(list(day.glob("*.parquet"))) <= 4 for day in (tmp_path / "lag").glob("day=*"))
        table.close()
    assert pyarrow.dataset.dataset(tmp_path / "lag").count_rows() == 8
    # At once, every five minutes and at the end; and never what is old.
    assert drawn == [0, 5, 7]


def test_bad_input_is_told(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    output = str(tmp_path / "lag")
    with pytest.raises(JobError, match="the group NOBODY has no offsets"):
        lag(spark, output, "NOBODY", name_server=broker.nameserver)
    with pytest.raises(Exception, match="does not answer"):
        lag(spark, output, name_server="127.0.0.1:1")
    with pytest.raises(Exception, match="there is no such option"):
        lag(spark, output, name_server=broker.nameserver, options={"subscribe": "T"})
