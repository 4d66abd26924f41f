"""A25: where the nameservers are: by code, property, environment, HTTP, in that priority; a new HTTP list is followed.

Two clusters tell by where a message arrives which of two addresses was used.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from cometmq.client import Client, connect
from cometmq.client.client import LOOKUP_INTERVAL
from cometmq.namesrv.address_server import AddressServer
from support.standalone import StandaloneProcess, make_topic

TOPIC = "TopicA25"


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The nameservers of two clusters, by the name of their broker."""
    folder = tmp_path_factory.mktemp("a25")
    with (
        StandaloneProcess(folder / "one", brokerName="one") as one,
        StandaloneProcess(folder / "two", brokerName="two") as two,
    ):
        yield {"one": one.nameserver, "two": two.nameserver}


@pytest.fixture
async def topics(clusters: dict[str, str]) -> None:
    for nameserver in clusters.values():
        async with connect(nameserver) as mq:
            await make_topic(mq, TOPIC, 1)


@pytest.fixture
async def http(clusters: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[str]]:
    """An address server; what it tells is in the list."""
    told = [clusters["one"]]
    server = AddressServer(lambda _: ";".join(told), host="127.0.0.1")
    await server.start()
    for name in ("ROCKETMQ_NAMESRV_ADDR", "NAMESRV_ADDR", "ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ROCKETMQ_NAMESRV_DOMAIN", f"127.0.0.1:{server.port}")
    try:
        yield told
    finally:
        await server.close()


async def arrives_at(mq: Client) -> str:
    """The broker that gets a message."""
    async with mq.producer("PG", send_timeout=20) as producer:
        return (await producer.send(TOPIC, b"x")).queue.broker_name


async def used_by(nameservers: str | None) -> str:
    async with connect(nameservers) as mq:
        return await arrives_at(mq)


async def test_the_priority(
    clusters: dict[str, str], topics: None, http: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await used_by(None) == "one", "HTTP, when there is nothing else"
    monkeypatch.setenv("NAMESRV_ADDR", clusters["two"])
    assert await used_by(None) == "two", "the environment before HTTP"
    monkeypatch.setenv("ROCKETMQ_NAMESRV_ADDR", clusters["one"])
    assert await used_by(None) == "one", "the property before the environment"
    assert await used_by(clusters["two"]) == "two", "code before everything"


async def test_addresses_that_were_given_stay_whatever_the_address_server_says(
    clusters: dict[str, str], topics: None, http: list[str]
) -> None:
    async with connect(clusters["two"], lookup_interval=0.01, route_interval=0.01) as mq:
        assert not mq.nameservers.is_looked_up
        for _ in range(20):
            assert await arrives_at(mq) == "two"
            await asyncio.sleep(0.01)


async def test_a_new_list_is_followed(clusters: dict[str, str], topics: None, http: list[str]) -> None:
    assert LOOKUP_INTERVAL <= 120, "within two minutes, when the user says nothing"
    async with connect(lookup_interval=0.05, route_interval=0.05) as mq:
        assert await arrives_at(mq) == "one"
        http[:] = [clusters["two"]]
        async with asyncio.timeout(30):
            while await arrives_at(mq) != "two":  # noqa: ASYNC110 - nobody would tell
                await asyncio.sleep(0.02)
