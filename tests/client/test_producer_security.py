"""Namespaces, signatures, TLS, forks: what goes on the wire, and who may use a client."""

import asyncio
import gzip
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cometmq.client import Client, Credentials, MessageQueue, connect
from cometmq.client.errors import ClientError, InvalidMessage, NoNameserver, NotSupported
from cometmq.client.requests import RequestKeys
from cometmq.protocol.header import from_ext, to_ext
from cometmq.protocol.requests import OPERATIONS
from cometmq.protocol.signing import verify
from cometmq.remoting import ClientTlsOptions, TlsMode, TlsOptions
from support.certificates import Authority
from support.cluster import AnyBroker
from support.fake_cluster import FakeCluster

Name = Callable[[str], str]
GOLDEN = Path(__file__).parents[1] / "data" / "wire" / "auth.jsonl.gz"
#: The users of the captured cluster.
SECRETS = {"rocketmq": "12345678", "alice": "alicepw1"}


def signed_requests() -> list[tuple[int, dict[str, str], bytes]]:
    """Requests of RocketMQ's own client that were signed with a right secret: code, keys, body."""
    found = []
    with gzip.open(GOLDEN, "rt") as lines:
        for line in lines:
            captured = json.loads(line)
            header = captured.get("header") or {}
            ext = header.get("extFields") or {}
            if captured["dir"] != "c2s" or ext.get("AccessKey") not in SECRETS:
                continue
            frame = bytes.fromhex(captured["hex"])
            body = frame[8 + int.from_bytes(frame[5:8], "big") :]
            if verify(ext, body, SECRETS[ext["AccessKey"]], version=header["version"]):
                found.append((header["code"], ext, body))
    return found


def test_requests_are_signed_as_java_signs_them() -> None:
    codes = set()
    for code, ext, body in signed_requests():
        user = ext["AccessKey"]
        operation = OPERATIONS.get(code)
        if operation is None:
            continue
        header = from_ext(operation.request, ext, str(code))
        typed = to_ext(header)
        # Java's client adds keys to some requests that our header does not have; they go with it as further keys.
        more = {key: value for key, value in ext.items() if key not in typed and key not in ("AccessKey", "Signature")}
        keys = RequestKeys({}, Credentials(user, SECRETS[user]))(code, header, body, more)
        assert keys is not None
        if all(key in ext for key in typed):
            assert keys["Signature"] == ext["Signature"], (code, ext)
            codes.add(code)
    assert {105, 310, 34, 35, 38, 14, 11} <= codes


async def test_every_request_is_signed() -> None:
    credentials = Credentials("rocketmq", "12345678", "token")
    async with (
        FakeCluster("a") as cluster,
        connect(cluster.nameserver, credentials=credentials) as mq,
        mq.producer("PG") as producer,
    ):
        await producer.send("T", b"one", properties={"k": "ü"})
        await producer.send("T", b"two")
        await producer.send_batch("T", [b"three"])
        await producer.send_oneway("T", b"four")
        await producer.send("T", b"five")
        requests = [*cluster.queries, *cluster["a"].sends]
        for request in requests:
            assert request.ext["SecurityToken"] == "token"
            assert verify(request.ext, request.body, "12345678", version=479), request.ext
            assert not verify(request.ext, request.body, "wrong", version=479)
    assert len(requests) >= 6
    assert "12345678" not in repr(credentials)


async def test_namespace_v1_renames_and_shows_the_users_names(mq: Client, broker: AnyBroker, name: Name) -> None:
    async with connect(broker.nameserver, namespace="INST") as tenant, tenant.producer(name("PG")) as producer:
        receipt = await producer.send(name("T"), b"x")
        again = await producer.send(name("T"), b"y")
        keyed = await producer.send(name("T"), b"z", sharding_key="k")
        explicit = await producer.send(name("T"), b"q", queue=MessageQueue(name("T"), "broker-a", 1))
        assert {each.queue.topic for each in (receipt, again, keyed, explicit)} == {name("T")}
        assert {queue.topic for queue in await producer.queues(name("T"))} == {name("T")}
        assert producer.group == f"INST%{name('PG')}"
        async with tenant.push_consumer(name("CG"), {name("T"): "*"}, start_from="first") as consumer:
            async for message in consumer:
                assert message.topic == name("T")
                assert message.properties["INSTANCE_ID"] == "INST"
                await message.ack()
                break
    route = await mq.routes.fetch(f"INST%{name('T')}")
    assert route.publish


async def test_namespace_v2_goes_with_every_request() -> None:
    async with (
        FakeCluster("a") as cluster,
        connect(cluster.nameserver, namespace_v2="tenant") as mq,
        mq.producer("PG") as producer,
    ):
        await producer.send("T", b"x")
        await producer.send("T", b"y")
        for request in (*cluster.queries, *cluster["a"].sends):
            assert (request.ext["nsd"], request.ext["ns"]) == ("true", "tenant")
        assert {request.header.topic for request in cluster["a"].sends} == {"T"}


async def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("server")
    tls = TlsOptions(mode=TlsMode.ENFORCING, cert=pair.cert, key=pair.key)
    async with FakeCluster("a", tls=tls) as cluster:
        trusting = ClientTlsOptions(ca=authority.ca)
        async with connect(cluster.nameserver, tls=trusting) as mq, mq.producer("PG") as producer:
            assert (await producer.send("T", b"x")).queue.broker_name == "a"
            assert (await producer.send("T", bytes(100_000))).queue.broker_name == "a"
            assert all(connection.is_tls for connection in mq.remoting.connections.values())
        other = ClientTlsOptions(ca=Authority(tmp_path, "other").ca)
        async with connect(cluster.nameserver, tls=other) as mq, mq.producer("PG") as producer:
            with pytest.raises(NoNameserver, match="certificate"):
                await producer.send("T", b"x")
        async with connect(cluster.nameserver) as mq, mq.producer("PG") as producer:
            with pytest.raises(NoNameserver):
                await producer.send("T", b"x")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
async def test_a_client_used_after_a_fork_says_so(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        await producer.send(name("T"), b"x")
        await producer.send(name("T"), b"y")
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            said = b"nothing was raised"
            try:
                producer.send(name("T"), b"z").send(None)
            except ClientError as error:
                said = str(error).encode()
            except BaseException as error:
                said = repr(error).encode()
            finally:
                os.write(writing, said)
                os._exit(0)
        os.close(writing)
        text = await asyncio.to_thread(os.read, reading, 1000)
        os.close(reading)
        await asyncio.to_thread(os.waitpid, child, 0)
        assert b"made before a fork" in text, text
        assert (await producer.send(name("T"), b"the parent goes on")).status == "SEND_OK"


async def test_recall_is_refused_by_a_broker_that_cannot(mq: Client, name: Name) -> None:
    async with mq.producer(name("PG")) as producer:
        await producer.send(name("T"), b"x")
        with pytest.raises(InvalidMessage, match="no recall handle"):
            await producer.recall(name("T"), "not a handle")
        handle = "djEgVCBicm9rZXItYSAxNzAwMDAwMDAwMDAwIDdGMDAwMDAx"  # v1 T broker-a 1700000000000 7F000001
        with pytest.raises(NotSupported):
            await producer.recall(name("T"), handle)
        with pytest.raises(InvalidMessage, match="cannot be recalled"):
            await producer.recall("%RETRY%CG", handle)
