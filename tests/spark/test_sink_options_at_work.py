"""Options of the sink down to what brokers see of them, and what becomes of rows when servers say nothing.

Tasks as Spark runs them, without Spark, against brokers that do what a test tells them.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cometmq.client.errors import BrokerError, BrokerFailed, MessageRefused
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.spark.errors import OptionError, Unreachable
from cometmq.spark.link import close_links, link_to
from cometmq.spark.sink_options import SinkOptions, parse
from cometmq.spark.sink_sender import NotSent
from cometmq.spark.sink_target import check_target, has_run
from cometmq.spark.sink_task import SinkTask
from cometmq.testing import EmbeddedBroker
from support.fake_cluster import HANG, FakeBroker, FakeCluster
from support.silent_server import SOON, SilentServer
from support.spark_queries import PATIENCE
from support.spark_topics import TopicKit

pytestmark = pytest.mark.spark

#: Where nobody will answer, and where somebody has to, on a machine that does many things at once (milliseconds).
SHORT, ENOUGH = "50", "150"


@pytest.fixture(autouse=True)
def links_end_with_the_test() -> Iterator[None]:
    yield
    close_links()


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster("broker-a", "broker-b") as running:
        yield running
        await asyncio.to_thread(close_links)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that says nothing."""
    with SilentServer() as running:
        yield running.address


def send(bodies: list[bytes], nameserver: str, columns: dict[str, Any] | None = None, **options: str) -> SinkTask:
    """Run a task of the sink for rows with these bodies."""
    given = parse({"nameServer": nameserver, "topic": "T", **options})
    with SinkTask(given, "query", 0, 0) as task:
        task.send(pa.record_batch({"body": pa.array(bodies, pa.binary()), **(columns or {})}))
        task.finish()
    return task


def rows_of(broker: FakeBroker) -> list[bytes]:
    """The bodies that were sent: of items, and of rows that went alone."""
    return [
        body
        for request in broker.sends
        for body in (
            [item.body for item in decode_batch(request.body)]
            if request.code == RequestCode.SEND_BATCH_MESSAGE
            else [bytes(request.body)]
        )
    ]


async def test_a_request_that_is_not_answered_is_sent_again_after_its_timeout(cluster: FakeCluster) -> None:
    cluster.known = {"broker-a"}
    broker = cluster["broker-a"]
    broker.script.append(HANG)
    began = time.monotonic()
    await asyncio.to_thread(send, [b"x", b"y"], cluster.nameserver, sendTimeoutMs="100", requestTimeoutMs="60000")
    assert time.monotonic() - began < 8  # the default of a single request is 10 s
    assert len(broker.sends) >= 2
    assert {request.body for request in broker.sends} == {broker.sends[0].body}  # with the same unique keys


async def test_a_delayed_row_is_packed_once(cluster: FakeCluster) -> None:
    cluster.known = {"broker-a"}
    broker = cluster["broker-a"]
    broker.script.append(ResponseCode.SYSTEM_ERROR)
    later = pa.array([datetime.now(UTC) + timedelta(hours=1)], pa.timestamp("us", tz="UTC"))
    columns = {"deliverTime": later, "queueId": pa.array([0], pa.int32())}
    await asyncio.to_thread(send, [b"x"], cluster.nameserver, columns)
    first, second = broker.sends
    assert "UNIQ_KEY\x01" in first.header.properties
    assert first.header.properties == second.header.properties  # with the same unique key


def test_how_large_a_row_may_be_is_the_brokers_to_say() -> None:
    five = b"x" * (5 * 1024 * 1024)
    with EmbeddedBroker(config={"maxMessageSize": 6 * 1024 * 1024}) as large:
        send([b"0", five, b"2"], large.nameserver)
        assert sum(TopicKit(large.nameserver).ends("T").values()) == 3
        with pytest.raises(NotSent, match=r"row 1 of partition 0 for topic T .* raise maxMessageSize on the broker"):
            send([b"0", five + five], large.nameserver)
        close_links()


@pytest.mark.parametrize(
    ("error", "answer", "sizes", "remedy"),
    [
        (
            MessageRefused,
            "timer message illegal, the delay time should not be bigger than the max delay 259200000ms; or if set del "
            "msg, the delay time should be bigger than the current time",
            [1],
            "give an earlier deliverTime, or raise timerMaxDelaySec on the brokers",
        ),
        (
            BrokerFailed,
            "accurate timer message is not enabled, timerWheelEnable is false",
            [1],
            "the brokers keep no timers: leave the column deliverTime out",
        ),
        (
            BrokerFailed,
            "timer message is under flow control, max num limit is 9 or the current value is greater than 1",
            [1],
            "look at the broker's log",
        ),
        (MessageRefused, "body length limit 1000B", [2000], "smaller, or raise maxMessageSize on the broker"),
        (MessageRefused, "body length limit 1000B", [600, 600], "lower the option sendBytes to what brokers take"),
    ],
    ids=["far", "no timers", "too many timers", "large row", "large request"],
)
async def test_what_a_broker_refuses_is_told_with_what_to_do(
    cluster: FakeCluster,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BrokerError],
    answer: str,
    sizes: list[int],
    remedy: str,
) -> None:
    async def refuse(*_: object) -> None:
        raise error(1, answer, "127.0.0.1:1")

    monkeypatch.setattr("cometmq.client.producer.Producer.send_prepared", refuse)
    bodies = [b"x" * size for size in sizes]
    with pytest.raises(NotSent, match="of partition 0 for topic T could not be sent: ") as raised:
        await asyncio.to_thread(send, bodies, cluster.nameserver, sendBytes="1500", sendRetries="0")
    assert answer in str(raised.value)
    assert remedy in raised.value.remedy


@pytest.mark.parametrize(
    ("options", "requests"),
    [({"maxInFlightBytes": "3600"}, 3), ({"maxInFlight": "2"}, 2), ({"maxInFlightBytes": "1"}, 1)],
    ids=["bytes", "requests", "less than a row"],
)
async def test_no_more_is_on_the_way_than_told(cluster: FakeCluster, options: dict[str, str], requests: int) -> None:
    cluster.known = {"broker-a"}
    broker = cluster["broker-a"]
    broker.gate.clear()
    bodies = [b"%04d" % number * 250 for number in range(12)]
    running = asyncio.create_task(asyncio.to_thread(send, bodies, cluster.nameserver, sendBytes="1", **options))
    async with asyncio.timeout(PATIENCE):
        while len(broker.sends) < requests:  # noqa: ASYNC110 - the broker tells nobody
            await asyncio.sleep(0.005)
    # What the task has written so far is before this on the connection.
    link = link_to(parse({"nameServer": cluster.nameserver, "topic": "T"}).access)
    question = link.client.remoting.request(broker.address, RequestCode.GET_MAX_OFFSET)
    await asyncio.wrap_future(link.submit(question))
    assert len(broker.sends) == requests
    broker.gate.set()
    assert (await running).requests == 12
    assert sorted(rows_of(broker)) == bodies
    largest = max(len(request.body) for request in broker.sends)
    assert broker.most_unanswered <= max(int(options.get("maxInFlightBytes", 1 << 20)), largest)


@pytest.mark.parametrize("column", [None, "shardingKey"])
def test_a_silent_nameserver_is_named(silent: str, column: str | None) -> None:
    columns = {column: pa.array(["k"])} if column else None
    options = {"requestTimeoutMs": "90", "sendTimeoutMs": SHORT, "sendRetries": "0"}
    with pytest.raises(NotSent) as raised:
        send([b"x"], silent, columns, **options)
    assert SOON.search(str(raised.value))
    for text in ("for topic T could not be sent", f"{silent} did not answer", "check the option nameServer"):
        assert text in str(raised.value)
    assert "raise requestTimeoutMs or sendRetries" in str(raised.value)


@pytest.mark.parametrize("column", [None, "queueId"])
async def test_a_silent_broker_is_named(cluster: FakeCluster, silent: str, column: str | None) -> None:
    cluster.known = {"broker-a"}
    cluster.addresses["broker-a"] = silent
    columns = {column: pa.array([1], pa.int32())} if column else None
    with pytest.raises(NotSent) as raised:
        await asyncio.to_thread(send, [b"x"], cluster.nameserver, columns, sendTimeoutMs=SHORT, sendRetries="0")
    assert SOON.search(str(raised.value))
    for text in ("row 0 of partition 0 for topic T", "could not be sent: ", f"{silent} did not answer"):
        assert text in str(raised.value)
    assert "the address that it registers (brokerIP1); or raise sendTimeoutMs or sendRetries" in str(raised.value)


async def test_rows_go_to_another_broker_when_one_is_silent(cluster: FakeCluster, silent: str) -> None:
    cluster.addresses["broker-a"] = silent
    bodies = [b"%03d" % number for number in range(100)]
    # However many requests there are, each meets the silent one once at most.
    options = {"sendBytes": "1", "sendTimeoutMs": ENOUGH, "requestTimeoutMs": ENOUGH, "sendRetries": "2"}
    task = await asyncio.to_thread(send, bodies, cluster.nameserver, **options)
    assert task.requests == 100
    assert sorted(set(rows_of(cluster["broker-b"]))) == bodies


def test_a_silent_nameserver_before_one_that_answers(
    silent: str, broker: EmbeddedBroker, topics: TopicKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.make("T_sink_of_two_nameservers", 1)
    monkeypatch.setattr("cometmq.client.nameservers.random.shuffle", lambda addresses: None)
    options = {"topic": topic, "requestTimeoutMs": "300", "sendTimeoutMs": ENOUGH}
    send([b"x", b"y"], f"{silent};{broker.nameserver}", **options)
    assert topics.ends(topic) == {0: 2}


def target(nameserver: str, **options: str) -> SinkOptions:
    return parse({"nameServer": nameserver, "topic": "T", "sendRetries": "0", **options})


async def test_a_target_is_asked_for_once_in_a_process(cluster: FakeCluster) -> None:
    cluster.missing |= {"T_late", "TBW102"}
    late = target(cluster.nameserver, topic="T_late")
    with pytest.raises(OptionError, match=r"topic=T_late: .*or correct the option"):
        await asyncio.to_thread(check_target, late, may_be_away=True)
    cluster.missing.clear()
    await asyncio.to_thread(check_target, late)
    asked = len(cluster.asked)
    await asyncio.to_thread(check_target, late)
    assert len(cluster.asked) == asked


async def test_a_target_may_be_made_on_demand_or_be_named_by_the_rows(cluster: FakeCluster) -> None:
    cluster.missing |= {"T_new", "TBW102"}
    await asyncio.to_thread(check_target, target(cluster.nameserver, topic=""))
    cluster.missing.discard("TBW102")  # the template: a broker makes topics
    await asyncio.to_thread(check_target, target(cluster.nameserver, topic="T_new"))


def test_a_cluster_that_is_away_ends_no_stream_that_has_run(silent: str, tmp_path: Path) -> None:
    away = target(silent, requestTimeoutMs=SHORT)
    options = {"CheckpointLocation": str(tmp_path)}
    assert not has_run(options)
    with pytest.raises(Unreachable, match=f"nameServer={silent}: no nameserver answers"):
        check_target(away, may_be_away=has_run(options))
    (tmp_path / "commits").mkdir()
    assert not has_run(options)
    (tmp_path / "commits" / "0").touch()
    assert has_run(options)
    assert has_run({"checkpointLocation": tmp_path.as_uri()})
    assert has_run({"checkpointLocation": "hdfs://cluster/checkpoint"})
    assert has_run({})
    check_target(away, may_be_away=has_run(options))


async def test_a_stream_that_has_run_waits_for_brokers(cluster: FakeCluster) -> None:
    cluster.known = set()
    with pytest.raises(OptionError, match="topic=T: topic T is on no broker any more"):
        await asyncio.to_thread(check_target, target(cluster.nameserver))
    await asyncio.to_thread(check_target, target(cluster.nameserver), may_be_away=True)
