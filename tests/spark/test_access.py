"""How brokers are reached: the options of access down to what goes over the wire, and reading from slaves."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.errors import CometMQError
from cometmq.protocol.signing import verify
from cometmq.remoting import TlsMode, TlsOptions
from cometmq.remoting.tls import ClientAuth
from cometmq.spark.columns import Columns, full_schema
from cometmq.spark.link import close_links
from cometmq.spark.options import parse
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.reading import read_ranges
from support.certificates import Authority
from support.spark_readable_cluster import MESSAGES, ReadableCluster

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
async def links_end_before_their_servers() -> AsyncIterator[None]:
    yield
    await asyncio.to_thread(close_links)


async def bodies(cluster: ReadableCluster, **options: str) -> list[bytes]:
    """What a task with these options of the source reads."""
    given = parse({"nameServer": cluster.address("names"), "subscribe": "T", "pullRetries": "1", **options})
    source = QueueRange("T", "broker-a", 0, 0, MESSAGES)

    def read() -> list[bytes]:
        batches = read_ranges([source], given.access, Columns.of(full_schema()), given.read)
        return [body for batch in batches for body in batch["body"].to_pylist()]

    try:
        return await asyncio.to_thread(read)
    finally:
        await asyncio.to_thread(close_links)


async def test_slaves_are_read_from_when_told_so() -> None:
    async with ReadableCluster() as cluster:
        assert await bodies(cluster) == [b"master"] * MESSAGES
        assert await bodies(cluster, readFrom="slave") == [b"slave"] * MESSAGES
        cluster.has_slave = False
        assert await bodies(cluster, readFrom="slave") == [b"master"] * MESSAGES


async def test_every_request_is_signed() -> None:
    async with ReadableCluster() as cluster:
        await bodies(cluster, accessKey="me", secretKey="12345678", securityToken="token")
        assert {request.code for request in cluster.requests} == {
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            RequestCode.PULL_MESSAGE,
        }
        for request in cluster.requests:
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
