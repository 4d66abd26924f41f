"""The HTTP list of nameservers: what it serves, what it refuses, and that nobody can make it wait or grow."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from cometmq.namesrv import address_server
from cometmq.namesrv.address_server import AddressServer
from cometmq.remoting.errors import ListenFailed
from support.wire import until


@pytest.fixture
async def server() -> AsyncIterator[AddressServer]:
    running = AddressServer(lambda reached: f"{reached}:9876;other:9876", host="127.0.0.1")
    await running.start()
    yield running
    await running.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def ask(server: AddressServer, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Status line, headers and body of the answer; the connection is closed after it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(data)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, _, headers = head.partition(b"\r\n")
    return status, headers, body


@pytest.mark.parametrize(
    "target", ["/rocketmq/nsaddr", "/rocketmq/nsaddr?a=b", "/rocketmq/nsaddr-unit", "/rocketmq/nsaddr-unit?nofix=1"]
)
async def test_list(server: AddressServer, target: str) -> None:
    status, headers, body = await ask(server, f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert status == b"HTTP/1.1 200 OK"
    assert body == b"127.0.0.1:9876;other:9876"
    assert f"Content-Length: {len(body)}".encode() in headers
    assert b"Connection: close" in headers


async def test_head_has_the_length_and_no_body(server: AddressServer) -> None:
    status, headers, body = await ask(server, b"HEAD /rocketmq/nsaddr HTTP/1.0\r\n\r\n")
    assert (status, body) == (b"HTTP/1.1 200 OK", b"")
    assert b"Content-Length: 25" in headers


async def test_head_of_another_path_has_no_body_either(server: AddressServer) -> None:
    status, headers, body = await ask(server, b"HEAD / HTTP/1.1\r\n\r\n")
    assert (status, body) == (b"HTTP/1.1 404 Not Found", b"")
    assert b"Content-Length: " in headers


async def test_the_wildcard_of_ipv6_serves_ipv4_too() -> None:
    running = AddressServer(lambda reached: f"{reached}:9876", host="::")
    try:
        await running.start()
    except ListenFailed as error:
        pytest.skip(f"no IPv6 here: {error}")
    try:
        status, _, body = await ask(running, b"GET /rocketmq/nsaddr HTTP/1.1\r\n\r\n")
    finally:
        await running.close()
    assert status == b"HTTP/1.1 200 OK"
    assert body.endswith(b"127.0.0.1:9876")


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", b"404"),
        (b"GET /rocketmq/nsaddress HTTP/1.1", b"404"),
        (b"POST /rocketmq/nsaddr HTTP/1.1", b"405"),
        (b"GET /rocketmq/nsaddr", b"400"),
        (b"GET /rocketmq/nsaddr HTTP/2", b"400"),
        (b"\xff\xfe\xfd", b"400"),
        (b"", b"400"),
    ],
)
async def test_refusals(server: AddressServer, request_line: bytes, status: bytes) -> None:
    line, _, _ = await ask(server, request_line + b"\r\n\r\n")
    assert line.split(b" ")[1] == status


async def test_head_that_is_too_long(server: AddressServer) -> None:
    line, _, _ = await ask(server, b"GET /" + b"x" * 3 * address_server.MAX_HEAD)
    assert line.split(b" ")[1] == b"431"


async def test_what_a_client_sends_after_its_request_is_not_kept(server: AddressServer) -> None:
    status, _, body = await ask(server, b"GET /rocketmq/nsaddr HTTP/1.1\r\n\r\n" + b"x" * 1_000_000)
    assert (status, body) == (b"HTTP/1.1 200 OK", b"127.0.0.1:9876;other:9876")


async def test_client_that_says_nothing_is_closed(server: AddressServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_server, "REQUEST_TIMEOUT", 0.02)
    assert await ask(server, b"GET /rocketmq") == (b"", b"", b"")


async def test_client_that_does_not_close_is_closed(server: AddressServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_server, "REQUEST_TIMEOUT", 0.02)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"GET /rocketmq/nsaddr HTTP/1.1\r\n\r\n")
    await reader.read()
    await until(lambda: not server._requests)
    writer.close()


async def test_more_requests_than_the_limit_are_closed(server: AddressServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_server, "MAX_REQUESTS", 1)
    _, waiting = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: server._requests)
    reader, refused = await asyncio.open_connection("127.0.0.1", server.port)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    waiting.close()
    refused.close()
    await until(lambda: not server._requests)
    assert (await ask(server, b"GET /rocketmq/nsaddr HTTP/1.1\r\n\r\n"))[0] == b"HTTP/1.1 200 OK"


async def test_close_ends_waiting_requests(server: AddressServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await until(lambda: server._requests)
    await server.close()
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()


async def test_taken_port(server: AddressServer) -> None:
    other = AddressServer(lambda reached: "", host="127.0.0.1", port=server.port)
    with pytest.raises(ListenFailed, match=str(server.port)):
        await other.start()
    await other.close()
