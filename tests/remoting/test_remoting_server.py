"""The server from its start to its end: addresses, limits, idle connections, requests to clients, shutdown."""

import asyncio
import logging
import resource
import socket
from contextlib import AsyncExitStack
from typing import Any

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.offsets import OffsetAnswer
from cometmq.remoting import LATER, Connection, HandlerTable, Limits, Request, Response, Server, ServerOptions
from cometmq.remoting.errors import ConnectionLost, ListenFailed, Timeout
from support.loops import FakeClock, each_loop, one_loop, until
from support.raw_peer import RawPeer, binary_request, request, response

ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
NOTIFY = int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


def server(handler: Any = lambda received: Response(), *, clock: FakeClock | None = None, **options: Any) -> Server:
    table = HandlerTable()
    table.add(ROUTE, handler)
    return Server(table, ServerOptions(**({"host": "127.0.0.1"} | options)), clock=clock)


def only(target: Server) -> Connection:
    (connection,) = target.connections
    return connection


class Keeper:
    """A handler that keeps its requests."""

    def __init__(self) -> None:
        self.requests: list[Request[Any]] = []

    def __call__(self, received: Request[Any]) -> Any:
        self.requests.append(received)
        return LATER


# Start.


@each_loop
async def test_port_0_takes_any_port_and_says_which() -> None:
    async with server() as one, server() as two:
        assert one.address[0] == two.address[0] == "127.0.0.1"
        assert one.address[1] != two.address[1]
        for target in (one, two):
            async with await RawPeer.open(target.address) as peer:
                assert (await peer.ask(request(ROUTE))).code == 0
            with pytest.raises(RuntimeError, match="started already"):
                await target.start()


@each_loop
async def test_ipv6_and_both_families() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        async with server(host="::1") as target, await RawPeer.open(target.address) as peer:
            assert (await peer.ask(request(ROUTE))).code == 0
            assert str(only(target)) == f"[::1]:{peer.address[1]}"
    except ListenFailed as error:
        pytest.skip(f"this machine has no IPv6 loopback: {error}")
    async with server(host="::") as target:
        for host in ("127.0.0.1", "::1"):
            async with await RawPeer.open((host, target.address[1])) as peer:
                assert (await peer.ask(request(ROUTE))).code == 0
    async with server(host="localhost") as target, await RawPeer.open(target.address) as peer:
        assert (await peer.ask(request(ROUTE))).code == 0


@one_loop
async def test_a_taken_port_is_named() -> None:
    async with server() as target:
        port = target.address[1]
        with pytest.raises(ListenFailed, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
            await server(port=port).start()
    with pytest.raises(ListenFailed, match=r"cannot listen on 203\.0\.113\.1:1"):
        await server(host="203.0.113.1", port=1).start()
    with pytest.raises(ListenFailed, match="cannot listen on xxx"):
        await server(host="x" * 70 + ".invalid").start()


@one_loop
async def test_a_server_that_never_started_closes() -> None:
    target = server()
    await target.close()
    assert target.connection_count == 0
    assert target.connections == frozenset()


@each_loop
async def test_answers_are_not_delayed_by_nagle() -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.ask(request(ROUTE))
        sock = only(target)._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


# Limits.


@each_loop
async def test_connections_beyond_the_limit_are_closed_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with server(connection_limit=2) as target, AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(await RawPeer.open(target.address)) for _ in range(2)]
        await one.ask(request(ROUTE))  # one talks, two has not said a word: both count
        await until(lambda: target.connection_count == 2)
        for _ in range(10):
            async with await RawPeer.open(target.address) as refused:
                assert await refused.closed() == b""
        assert target.connection_count == 2
        assert (await two.ask(request(ROUTE))).code == 0
        await one.close()
        await until(lambda: target.connection_count == 1)
        third = await stack.enter_async_context(await RawPeer.open(target.address))
        assert (await third.ask(request(ROUTE))).code == 0
    # Ten were refused within a moment, one line says so (two, should a second have passed between them).
    assert 1 <= caplog.text.count("connection limit reached") <= 2


@each_loop
async def test_no_file_descriptors_left_is_no_busy_loop(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepts = 0

    async with server() as target:
        assert target._listener is not None
        accept = type(target._listener)._accept

        def counted(self: Any, listening: socket.socket) -> None:
            nonlocal accepts
            accepts += 1
            accept(self, listening)

        loop = asyncio.get_running_loop()
        listening = target._listener.sockets[0]
        loop.remove_reader(listening.fileno())
        monkeypatch.setattr(type(target._listener), "_accept", counted)
        loop.add_reader(listening.fileno(), target._listener._accept, listening)

        with socket.socket() as client:
            client.setblocking(False)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket() as probe:
                lowest = probe.fileno()
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                await loop.sock_connect(client, target.address)
                await until(lambda: "no connection can be accepted" in caplog.text)
                turns = 0
                deadline = loop.time() + 0.2
                while loop.time() < deadline:
                    turns += 1
                    await asyncio.sleep(0.01)
                assert accepts == 1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            await loop.sock_sendall(client, request(ROUTE))
            async with asyncio.timeout(5):
                assert len(await loop.sock_recv(client, 4096)) > 8
    assert "Too many open files" in caplog.text


# Idle connections.


@each_loop
async def test_idle_connections_are_closed() -> None:
    clock = FakeClock()
    keeper = Keeper()
    async with server(keeper, clock=clock) as target, AsyncExitStack() as stack:
        silent, reads, writes, waits = [
            await stack.enter_async_context(await RawPeer.open(target.address)) for _ in range(4)
        ]
        for peer in (reads, writes, waits):
            await peer.send(request(ROUTE, opaque=peer.address[1]))
        await until(lambda: target.open_replies == 3)
        await until(lambda: target.connection_count == 4)
        by_opaque = {received.command.opaque: received for received in keeper.requests}
        clock.advance(119.0)
        target.sweep()
        assert target.connection_count == 4
        # A byte in either direction keeps a connection.
        by_opaque[reads.address[1]].reply(Response())
        await reads.frame()
        await writes.send(request(ROUTE))
        await until(lambda: len(keeper.requests) == 4)
        clock.advance(11.0)
        target.sweep()
        assert await silent.closed() == b""
        assert await waits.closed() == b""
        await until(lambda: target.connection_count == 2)
        clock.advance(120.0)
        target.sweep()
        assert await reads.closed() == b""
        assert await writes.closed() == b""
        await until(lambda: target.connection_count == 0)
        assert target.open_replies == 0


@each_loop
async def test_the_timer_looks_by_itself() -> None:
    clock = FakeClock()
    async with server(clock=clock) as target, await RawPeer.open(target.address) as peer:
        await peer.ask(request(ROUTE))
        clock.advance(200.0)
        assert await peer.closed() == b""


@each_loop
async def test_an_output_buffer_that_nobody_empties_does_not_hold_up_a_close() -> None:
    clock = FakeClock()

    def handler(received: Request[Any]) -> Response:
        return Response(body=bytes(8 * 1024 * 1024))

    async with server(handler, clock=clock) as target, await RawPeer.open(target.address) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(request(ROUTE))
        await until(lambda: target.connections and only(target).output.is_paused)
        only(target).close("test")
        await asyncio.sleep(0.01)
        assert target.connection_count == 1
        clock.advance(5.0)
        target.sweep()
        await until(lambda: target.connection_count == 0)


# Requests from the server to a client, on the client's connection.


@each_loop
async def test_a_server_asks_its_client() -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.ask(request(ROUTE, opaque=1))
        connection = only(target)
        future = connection.request(RequestCode.GET_CONSUMER_RUNNING_INFO, body=b"?", timeout=5.0, ext={"k": "v"})
        asked = await peer.frame()
        assert asked.header["flag"] == 0
        assert (asked.code, asked.body, asked.ext) == (307, b"?", {"k": "v"})
        # Ids of the two directions collide freely: the flag alone decides.
        await peer.send(request(ROUTE, opaque=asked.opaque))
        assert (await peer.frame()).header["flag"] == 1
        await peer.send(response(asked.opaque, 0, b"info", extFields={"offset": "7"}, remark="r"))
        answer = await future
        assert (answer.code, answer.remark, answer.body, answer.version) == (0, "r", b"info", 407)
        assert answer.header(OffsetAnswer) == OffsetAnswer(offset=7)
        assert answer.ext == {"offset": "7"}
        connection.send_oneway(NOTIFY, body=b"changed")
        told = await peer.frame()
        assert (told.code, told.header["flag"], told.body) == (NOTIFY, 2, b"changed")
        assert len(connection.pending) == 0


@each_loop
async def test_a_client_that_leaves_fails_what_the_server_asked_it() -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.ask(request(ROUTE))
        connection = only(target)
        future = connection.request(NOTIFY, timeout=60.0)
        await peer.frame()
        await peer.close()
        with pytest.raises(ConnectionLost, match=r"NOTIFY_CONSUMER_IDS_CHANGED \(40\): the peer closed it"):
            await future
        with pytest.raises(ConnectionLost, match="has ended"):
            connection.request(NOTIFY, timeout=60.0)
        with pytest.raises(ConnectionLost):
            connection.send_oneway(NOTIFY)


@each_loop
async def test_a_client_that_does_not_answer_times_out_and_stays() -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.ask(request(ROUTE))
        connection = only(target)
        futures = [connection.request(NOTIFY, timeout=t) for t in (0.05, 60.0, 0.02)]
        for future, seconds in ((futures[2], "0.02"), (futures[0], "0.05")):
            with pytest.raises(Timeout, match=rf"did not answer NOTIFY_CONSUMER_IDS_CHANGED \(40\) within {seconds} s"):
                await future
            with pytest.raises(TimeoutError):
                await future
        asked = [await peer.frame() for _ in range(3)]
        for frame in asked:  # two of the answers are late
            await peer.send(response(frame.opaque, remark=str(frame.opaque)))
        assert (await futures[1]).remark == str(asked[1].opaque)
        assert connection.is_open


# Shutdown.


@each_loop
async def test_shutdown_answers_what_is_in_flight() -> None:
    keeper = Keeper()
    release = asyncio.Event()

    async def slow(received: Request[Any]) -> Response:
        await release.wait()
        return Response(remark="slow")

    target = server(keeper)
    target.table.add(RequestCode.GET_BROKER_CLUSTER_INFO, slow)
    await target.start()
    async with await RawPeer.open(target.address) as peer, await RawPeer.open(target.address) as idle:
        await peer.send(request(ROUTE, opaque=1) + request(106, opaque=2))
        await until(lambda: target.open_replies == 2)
        closing = asyncio.create_task(target.close(grace=30.0))
        await until(lambda: target.dispatcher.is_closing)
        assert await idle.closed() == b""  # it had not said a word
        with pytest.raises(OSError):  # noqa: PT011 - which one depends on the platform
            await RawPeer.open(target.address)

        # Who knows GO_AWAY gets it, the others are served until the end.
        answer = await peer.ask(request(ROUTE, opaque=3, version=479))
        assert (answer.opaque, answer.code, answer.remark) == (3, 1500, "please go away")
        answer = await peer.ask(request(ROUTE, opaque=4, version=476))
        assert answer.code == 1500
        await peer.send(request(ROUTE, opaque=5, version=475))
        await until(lambda: len(keeper.requests) == 2)
        assert not closing.done()

        release.set()
        assert (await peer.frame()).opaque == 2
        for received in keeper.requests:
            received.reply(Response(remark="kept"))
        assert [(await peer.frame()).opaque for _ in range(2)] == [1, 5]
        assert await peer.closed() == b""
        await peer.close()
        await closing
    assert target.connection_count == 0


@each_loop
async def test_shutdown_does_not_wait_beyond_its_grace(caplog: pytest.LogCaptureFixture) -> None:
    cancelled = []

    async def endless(received: Request[Any]) -> Response:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(received)
            raise
        raise AssertionError

    target = server(endless)
    target.table.add(RequestCode.GET_BROKER_CLUSTER_INFO, Keeper())
    await target.start()
    async with await RawPeer.open(target.address) as peer:
        await peer.send(request(ROUTE) + request(106))
        await until(lambda: target.open_replies == 2)
        closing = asyncio.create_task(target.close(grace=0.05))
        assert await peer.closed() == b""
        await peer.close()
        await closing
    assert len(cancelled) == 1
    assert target.open_replies == 0
    assert "2 requests were not answered within 0.05 s" in caplog.text


@each_loop
async def test_shutdown_delivers_the_last_answers_to_who_still_sends() -> None:
    """A socket closed with unread requests in it is reset by the kernel, and answers on their way are lost."""
    size = 8 * 1024 * 1024  # more than the kernel takes at once
    target = server(lambda received: Response(body=bytes(size)))
    await target.start()
    async with await RawPeer.open(target.address) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(request(ROUTE))
        await until(lambda: target.connections and only(target).output.is_paused)
        peer.write(request(ROUTE) * 100)  # these stay in the kernel
        closing = asyncio.create_task(target.close(grace=30.0))
        await until(lambda: not only(target).is_open)
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await peer.frame()).body) == size
        assert await peer.closed() == b""
        await peer.close()
        await closing


@each_loop
async def test_shutdown_waits_for_a_slow_reader_within_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cometmq.remoting.server.LINGER", 0.01)
    size = 15 * 1024 * 1024
    target = server(lambda received: Response(body=bytes(size)))
    await target.start()
    async with await RawPeer.open(target.address) as slow, await RawPeer.open(target.address) as done:
        slow.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await slow.send(request(ROUTE))
        await until(lambda: target.connections and only(target).output.is_paused)
        await done.ask(request(29999))
        closing = asyncio.create_task(target.close(grace=30.0))
        await until(lambda: len(target.connections) == 1)  # the other one was let go
        assert not closing.done()
        slow.reader._transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await slow.frame()).body) == size
        await slow.close()
        await closing

    # And not beyond it.
    target = server(lambda received: Response(body=bytes(size)))
    await target.start()
    async with await RawPeer.open(target.address) as deaf:
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await deaf.send(request(ROUTE))
        await until(lambda: target.connections and only(target).output.is_paused)
        await target.close(grace=0.1)
        assert target.connection_count == 0


@each_loop
async def test_shutdown_cuts_who_does_not_close() -> None:
    target = server()
    await target.start()
    async with await RawPeer.open(target.address) as talker, await RawPeer.open(target.address) as deaf:
        await talker.ask(request(ROUTE))
        deaf.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await deaf.send(request(ROUTE))
        await until(lambda: len(target.connections) == 2)
        await target.close()
        assert target.connection_count == 0


@each_loop
async def test_shutdown_at_the_very_moment_a_connection_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    target = server()
    closing: list[asyncio.Task[None]] = []
    begin = Connection.connection_made

    def begin_and_close(self: Connection, transport: asyncio.BaseTransport) -> None:
        begin(self, transport)
        closing.append(asyncio.create_task(target.close(grace=0.0)))

    monkeypatch.setattr(Connection, "connection_made", begin_and_close)
    await target.start()
    async with await RawPeer.open(target.address) as peer:
        await peer.send(request(ROUTE)[:1])
        await until(lambda: closing)
        await closing[0]
        assert target.connection_count == 0
        assert await peer.closed() == b""


@one_loop
async def test_shutdown_without_grace_is_at_once() -> None:
    target = server(Keeper())
    await target.start()
    async with await RawPeer.open(target.address) as peer:
        await peer.send(request(ROUTE))
        await until(lambda: target.open_replies == 1)
        await target.close(grace=0.0)
        assert target.connection_count == 0
        assert target.open_replies == 0
        assert await peer.closed() == b""
        await target.close()


@one_loop
async def test_oneway_requests_are_dropped_by_a_server_that_goes_away() -> None:
    keeper = Keeper()
    target = server(keeper)
    await target.start()
    async with await RawPeer.open(target.address) as peer:
        await peer.send(request(ROUTE))
        await until(lambda: target.open_replies == 1)
        closing = asyncio.create_task(target.close(grace=30.0))
        await until(lambda: target.dispatcher.is_closing)
        await peer.send(request(ROUTE, flag=2, version=479))
        assert (await peer.ask(binary_request(29999))).kind == 1
        keeper.requests[0].reply(Response())
        assert (await peer.frame()).code == 0
        assert await peer.closed() == b""
        await peer.close()
        await closing


def test_constructing_a_server_needs_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    target = Server(HandlerTable(), ServerOptions(limits=Limits(idle_timeout=1.0)))
    assert target.address == ("", 0)
    assert not caplog.records
