"""How brokers are reached: the options of access down to what goes over the wire, reading from slaves, and servers that
take a connection and then never say anything.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.errors import CometMQError
from cometmq.protocol.signing import verify
from cometmq.remoting import TlsMode, TlsOptions
from cometmq.remoting.tls import ClientAuth
from cometmq.spark.batch import BatchReader
from cometmq.spark.columns import Columns, full_schema
from cometmq.spark.errors import DataLoss, Unreachable
from cometmq.spark.link import close_links
from cometmq.spark.offsets import INITIAL
from cometmq.spark.options import parse
from cometmq.spark.pulls import PullFailed
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.reading import read_ranges
from cometmq.spark.source import RocketMQSource
from cometmq.spark.stream import StreamReader
from support.certificates import Authority
from support.fake_cluster import FakeCluster
from support.silent_server import SOON, SilentServer
from support.spark_queries import PATIENCE
from support.spark_readable_cluster import MESSAGES, ReadableCluster
from support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def links_end_with_the_test() -> Iterator[None]:
    yield
    close_links()


@pytest.fixture
async def readable() -> AsyncIterator[ReadableCluster]:
    async with ReadableCluster() as running:
        yield running
        await asyncio.to_thread(close_links)  # a server waits for its clients


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster("broker-a", "broker-b") as running:
        yield running
        await asyncio.to_thread(close_links)


def read(**options: str) -> list[bytes]:
    """What a task with these options of the source reads."""
    given = parse({"subscribe": "T", "pullRetries": "1", **options})
    source = QueueRange("T", "broker-a", 0, 0, MESSAGES)
    batches = read_ranges([source], given.access, Columns.of(full_schema()), given.read)
    return [body for batch in batches for body in batch["body"].to_pylist()]


async def bodies(cluster: ReadableCluster, **options: str) -> list[bytes]:
    """What a task in a process of its own reads."""
    try:
        return await asyncio.to_thread(read, **{"nameServer": cluster.address("names"), **options})
    finally:
        await asyncio.to_thread(close_links)


async def test_every_request_is_signed(readable: ReadableCluster) -> None:
    await bodies(readable, accessKey="me", secretKey="12345678", securityToken="token")
    assert {request.code for request in readable.requests} == {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.PULL_MESSAGE,
    }
    for request in readable.requests:
        assert (request.ext["AccessKey"], request.ext["SecurityToken"]) == ("me", "token")
        assert verify(request.ext, request.body, "12345678", version=479)


async def test_tls_with_a_certificate_of_our_own(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, own = authority.pair("server"), authority.pair("client", password="hush")
    only_known = TlsOptions(
        mode=TlsMode.ENFORCING, cert=server.cert, key=server.key, ca=authority.ca, client_auth=ClientAuth.REQUIRE
    )
    trusting = {"tls": "true", "tlsCa": authority.ca}
    known = {**trusting, "tlsCert": own.cert, "tlsKey": own.key, "tlsKeyPassword": "hush"}
    async with ReadableCluster(only_known) as cluster:
        assert await bodies(cluster, **known) == [b"master"] * MESSAGES
        assert await bodies(cluster, **{**known, "tlsCa": "", "tlsVerify": "false"}) == [b"master"] * MESSAGES
        for wrong in ({}, trusting, {**known, "tlsCa": ""}):
            with pytest.raises(CometMQError, match="no nameserver answered"):
                await bodies(cluster, **wrong)


# Slaves

ONE_BY_ONE = {"readFrom": "slave", "pullBatchSize": "1"}


async def test_slaves_are_read_from_when_told_so(readable: ReadableCluster) -> None:
    assert await bodies(readable) == [b"master"] * MESSAGES
    assert await bodies(readable, readFrom="slave") == [b"slave"] * MESSAGES
    readable.slave.is_registered = False
    assert await bodies(readable, readFrom="slave") == [b"master"] * MESSAGES


@pytest.mark.parametrize("more", [{}, {"pullRetries": "0"}, {"subExpression": "a"}], ids=["", "once", "filtered"])
@pytest.mark.parametrize("checks_offsets", [False, True])
async def test_what_a_slave_does_not_have_comes_from_its_master(
    readable: ReadableCluster, checks_offsets: bool, more: dict[str, str]
) -> None:
    readable.slave.checks_offsets = checks_offsets
    readable.slave.first = 2  # it was added when the master had some
    assert await bodies(readable, **ONE_BY_ONE, **more) == [b"master", b"master", b"slave"]
    readable.slave.first, readable.slave.stop = 0, 1  # it is behind
    assert await bodies(readable, **ONE_BY_ONE, **more) == [b"slave", b"master", b"master"]


async def test_a_slave_alone_serves_what_it_has(readable: ReadableCluster) -> None:
    readable.master.is_registered = False
    assert await bodies(readable) == [b"slave"] * MESSAGES
    readable.slave.first = 2
    with pytest.raises(DataLoss, match=r"offset 0 is gone, the nearest one there is 2: .* failOnDataLoss"):
        await bodies(readable, pullRetries="0")
    assert await bodies(readable, pullRetries="0", failOnDataLoss="false") == [b"slave"]


async def test_only_a_master_knows_that_a_topic_is_no_more(readable: ReadableCluster) -> None:
    readable.slave.has_topic = False
    assert await bodies(readable, readFrom="slave", pullRetries="0") == [b"master"] * MESSAGES
    readable.master.is_registered = False
    with pytest.raises(PullFailed, match="TOPIC_NOT_EXIST"):
        await bodies(readable, failOnDataLoss="false")
    readable.master.is_registered, readable.master.has_topic = True, False
    with pytest.raises(DataLoss, match=r"queue 0 of topic T .* offsets 0 to 2: .* not exist.* failOnDataLoss"):
        await bodies(readable)
    assert await bodies(readable, failOnDataLoss="false") == []


async def test_a_slave_that_may_not_be_read_is_left_alone(readable: ReadableCluster) -> None:
    readable.slave.is_readable = False
    assert await bodies(readable, readFrom="slave", pullRetries="0") == [b"master"] * MESSAGES


async def test_a_silent_slave_costs_a_process_one_timeout(readable: ReadableCluster) -> None:
    readable.slave.swallows = 1000
    options = {**ONE_BY_ONE, "nameServer": readable.address("names"), "pullTimeoutMs": "100", "pullRetries": "5"}
    assert await asyncio.to_thread(read, **options) == [b"master"] * MESSAGES
    asked = readable.slave.pulls
    assert asked <= MESSAGES  # those that were under way at once
    assert await asyncio.to_thread(read, **options) == [b"master"] * MESSAGES
    assert readable.slave.pulls == asked


# Servers that say nothing: the kernel takes the connection and what is sent, and nobody reads it

#: Milliseconds: where nobody will answer, and where somebody has to, on a machine that does many things at once.
SHORT, ENOUGH = "50", "150"


@pytest.fixture
def silent_server() -> Iterator[SilentServer]:
    with SilentServer() as running:
        yield running


@pytest.fixture
def silent(silent_server: SilentServer) -> str:
    """The address of such a server."""
    return silent_server.address


@pytest.fixture
def hollow(cluster: FakeCluster, silent: str) -> FakeCluster:
    """A cluster whose only broker is silent."""
    cluster.known = {"broker-a"}
    cluster.addresses["broker-a"] = silent
    return cluster


@contextmanager
def told(kind: type[Exception], *texts: str) -> Iterator[None]:
    """An error that says all of this, and that it was the timeout of an option that ended it."""
    with pytest.raises(kind) as raised:
        yield
    assert SOON.search(str(raised.value))
    for text in texts:
        assert text in str(raised.value)


def stream(**options: str) -> StreamReader:
    return StreamReader({"subscribe": "T", "idleWait": "0ms", "discoveryInterval": "0ms", **options}, full_schema())


def latest(reader: StreamReader, start: dict[str, Any] | None = None) -> dict[str, Any]:
    return reader.latestOffset(dict(INITIAL) if start is None else start, reader.getDefaultReadLimit())


PLANNING: dict[str, Callable[..., Any]] = {
    "load": lambda **options: RocketMQSource({"subscribe": "T", **options}).schema(),
    "start": lambda **options: stream(**options).initialOffset(),
    "latestOffset": lambda **options: latest(stream(**options)),
    "availableNow": lambda **options: stream(**options).prepareForTriggerAvailableNow(),
    "batch": lambda **options: BatchReader({"subscribe": "T", **options}, full_schema()).partitions(),
    "batch by offsets": lambda **options: PLANNING["batch"](startingOffsets='{"T":0}', **options),
}


@pytest.mark.parametrize("call", ["load", "start", "latestOffset", "availableNow", "batch"])
def test_a_silent_nameserver_ends_the_planning(silent: str, call: str) -> None:
    with told(Unreachable, f"nameServer={silent}: no nameserver answers", f"{silent} did not answer", "the addresses"):
        PLANNING[call](nameServer=silent, requestTimeoutMs=SHORT)


def test_a_silent_nameserver_ends_a_task(silent: str) -> None:
    with told(PullFailed, f"{silent} did not answer", "check the nameservers", "raise requestTimeoutMs or pullRetries"):
        read(nameServer=silent, requestTimeoutMs=SHORT, pullRetries="0")
    with told(PullFailed, f"{silent} could not be connected within 0.05 s"):
        read(nameServer=silent, requestTimeoutMs=SHORT, pullRetries="0", tls="true")


@pytest.mark.parametrize("call", ["availableNow", "batch", "batch by offsets"])
async def test_a_silent_broker_ends_the_planning(hollow: FakeCluster, silent: str, call: str) -> None:
    options = {"nameServer": hollow.nameserver, "requestTimeoutMs": ENOUGH, "unreachableTimeout": "50ms"}
    remedy = "check the broker, and that Spark's driver can reach the address that it registers (brokerIP1)"
    with told(Unreachable, "broker broker-a of topic T", f"{silent} did not", remedy, "raise unreachableTimeout"):
        await asyncio.to_thread(PLANNING[call], **options)


async def test_nothing_is_read_while_no_broker_says_whether_it_can_filter(readable: ReadableCluster) -> None:
    options = {"expressionType": "SQL92", "subExpression": "a >", "nameServer": readable.address("names")}
    with told(Unreachable, f"{readable.address('master')} did not answer CHECK_CLIENT_CONFIG", "unreachableTimeout"):
        await asyncio.to_thread(PLANNING["batch"], requestTimeoutMs=ENOUGH, unreachableTimeout="50ms", **options)
    with told(Unreachable, f"{readable.address('master')} did not answer CHECK_CLIENT_CONFIG"):
        await asyncio.to_thread(PLANNING["latestOffset"], requestTimeoutMs=ENOUGH, unreachableTimeout="50ms", **options)


async def test_nobody_needs_a_broker_to_load_and_to_start(hollow: FakeCluster) -> None:
    for call in ("load", "start"):
        assert await asyncio.to_thread(PLANNING[call], nameServer=hollow.nameserver)


async def test_a_silent_broker_ends_a_task(hollow: FakeCluster, silent: str) -> None:
    texts = (f"in 1 tries: {silent} did not answer PULL_MESSAGE", "brokerIP1", "raise pullTimeoutMs or pullRetries")
    with told(PullFailed, "queue 0 of topic T on broker broker-a: offset 0", *texts):
        await asyncio.to_thread(read, nameServer=hollow.nameserver, pullTimeoutMs=SHORT, pullRetries="0")


async def test_a_limit_of_bytes_holds_when_no_message_can_be_seen(readable: ReadableCluster) -> None:
    readable.master.swallows = 1
    reader = stream(
        nameServer=readable.address("names"),
        startingOffsets="earliest",
        maxBytesPerTrigger="1024",
        pullTimeoutMs=SHORT,
    )
    end = await asyncio.to_thread(latest, reader)
    assert end["q"] == {"T": {"broker-a": {"0": 1}}}


class Running:
    """A query that runs, whose nameserver and one of whose two brokers can be made silent."""

    def __init__(self, cluster: FakeCluster, names: TcpProxy, broker: TcpProxy, **options: str) -> None:
        cluster.addresses["broker-a"] = broker.address
        self.reader = stream(nameServer=names.address, **options)
        self.at: dict[str, Any] | None = None

    async def begin(self) -> None:
        """Plan the first batch; a machine that is busy may need several tries to do that in time."""
        async with asyncio.timeout(PATIENCE):
            while self.at is None:
                with suppress(Unreachable):
                    await self.plan()

    async def plan(self) -> dict[str, int]:
        """Plan a batch: where queue 0 of each broker ends."""
        self.at = await asyncio.to_thread(latest, self.reader, self.at)
        return {broker: queues["0"] for broker, queues in self.at["q"]["T"].items()}

    async def until(self, **ends: int) -> None:
        """Plan batches until these ends are reached."""
        wanted = {f"broker-{name}": end for name, end in ends.items()}
        async with asyncio.timeout(PATIENCE):
            while await self.plan() != wanted:
                pass


async def test_a_running_query_goes_on_past_a_silent_nameserver_and_broker(cluster: FakeCluster) -> None:
    with TcpProxy(cluster.nameserver) as names, TcpProxy(cluster["broker-a"].address) as broker:
        query = Running(cluster, names, broker, requestTimeoutMs="100")
        await query.begin()
        names.freeze()
        cluster["broker-a"].max_offset = 2
        await query.until(a=2, b=0)
        names.thaw()
        broker.freeze()
        cluster["broker-a"].max_offset, cluster["broker-b"].max_offset = 4, 5
        await query.until(a=2, b=5)
        broker.thaw()
        await query.until(a=4, b=5)


@pytest.mark.parametrize("who", ["names", "broker"])
async def test_a_running_query_ends_when_somebody_stays_silent(cluster: FakeCluster, who: str) -> None:
    with TcpProxy(cluster.nameserver) as names, TcpProxy(cluster["broker-a"].address) as broker:
        query = Running(cluster, names, broker, requestTimeoutMs="100", unreachableTimeout="50ms")
        await query.begin()
        proxy = names if who == "names" else broker
        proxy.freeze()
        expected = f"nameServer={proxy.address}: no nameserver" if who == "names" else "broker broker-a of topic T"
        with told(Unreachable, expected, f"{proxy.address} did not answer", "unreachableTimeout", "requestTimeoutMs"):
            await query.until(a=-1, b=-1)
        proxy.thaw()


@pytest.mark.parametrize("silent_first", [True, False])
async def test_one_of_two_nameservers_is_silent(
    readable: ReadableCluster, silent_server: SilentServer, silent_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cometmq.client.nameservers.random.shuffle", lambda addresses: None)
    servers = [silent_server.address, readable.address("names")]
    if not silent_first:
        servers.reverse()
    options = {"nameServer": ";".join(servers), "requestTimeoutMs": "1000"}
    for call in ("load", "start", "latestOffset", "batch"):
        await asyncio.to_thread(PLANNING[call], **options)
    assert await asyncio.to_thread(read, **options) == [b"master"] * MESSAGES
    # The silent one is waited for once, for its share of the time, and then the other one is asked first.
    assert silent_server.requests() == int(silent_first)
