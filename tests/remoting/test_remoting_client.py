"""The client: one connection for each address, timeouts, limits, GO_AWAY, and what servers ask of it."""

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import SerializeType
from cometmq.protocol.errors import HeaderError
from cometmq.protocol.header import Header
from cometmq.protocol.requests.namesrv import GetRouteInfo
from cometmq.protocol.requests.offsets import OffsetAnswer, QueryConsumerOffset
from cometmq.remoting import (
    LATER,
    Answer,
    Body,
    ClientOptions,
    Connection,
    HandlerTable,
    Limits,
    RemotingClient,
    Request,
    Response,
    Server,
    ServerOptions,
    format_address,
)
from cometmq.remoting.errors import (
    BadAddress,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    GoneAway,
    Timeout,
    TooManyRequests,
)
from support.loops import FakeClock, each_loop, one_loop, until
from support.raw_peer import RawPeer, request, response

ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
OFFSET = int(RequestCode.QUERY_CONSUMER_OFFSET)
NOTIFY = int(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)


def echo(received: Request[Any]) -> Response:
    return Response(body=received.body)


def server(handler: Any = echo, port: int = 0, **options: Any) -> Server:
    table = HandlerTable()
    table.add(ROUTE, handler)
    return Server(table, ServerOptions(host="127.0.0.1", port=port, **options))


def address_of(target: Server) -> str:
    return format_address(*target.address)


class Keeper:
    def __init__(self) -> None:
        self.requests: list[Request[Any]] = []

    def __call__(self, received: Request[Any]) -> Any:
        self.requests.append(received)
        return LATER

    def reply_all(self) -> None:
        while self.requests:
            self.requests.pop().reply(Response())


class HandServer:
    """A server by hand: each connection is a RawPeer in `peers`."""

    def __init__(self) -> None:
        self.peers: asyncio.Queue[RawPeer] = asyncio.Queue()
        self._all: list[RawPeer] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "HandServer":
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = RawPeer(reader, writer)
            self._all.append(peer)
            await self.peers.put(peer)

        self._server = await asyncio.start_server(serve, "127.0.0.1", 0)
        self.address = format_address(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *exception: object) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self._all:
            await peer.close()
        await self._server.wait_closed()

    async def peer(self) -> RawPeer:
        async with asyncio.timeout(5):
            return await self.peers.get()


# Asking.


@each_loop
async def test_a_request_and_its_answer() -> None:
    def handler(received: Request[QueryConsumerOffset]) -> Response:
        assert received.ext == {"consumerGroup": "g", "topic": "t", "queueId": "1", "bname": "broker-a"}
        return Response(header=OffsetAnswer(offset=5), body=[received.body, b"!"])

    target = server()
    target.table.add(OFFSET, handler)
    async with target, RemotingClient() as client:
        header = QueryConsumerOffset(consumer_group="g", topic="t", queue_id=1)
        answer = await client.request(address_of(target), OFFSET, header, [b"bo", b"dy"], ext={"bname": "broker-a"})
        assert (answer.code, answer.remark, answer.body, answer.version) == (0, None, b"body!", 479)
        assert answer.header(OffsetAnswer) == OffsetAnswer(offset=5)
        assert answer.ext == {"offset": "5"}
        assert repr(answer) == "<Answer to QUERY_CONSUMER_OFFSET (14): code 0, 5 bytes>"

        answer = await client.request(address_of(target), 29999)
        assert (answer.code, answer.remark) == (3, " request type 29999 not supported")
        with pytest.raises(HeaderError, match="29999: field 'offset' is missing"):
            answer.header(OffsetAnswer)


@each_loop
@pytest.mark.parametrize("kind", list(SerializeType))
async def test_every_header_form(kind: SerializeType) -> None:
    def handler(received: Request[GetRouteInfo]) -> Response:
        return Response(17, remark=f"{received.kind.name} {received.header.topic}", ext={"k": "v"})

    async with server(handler) as target, RemotingClient(ClientOptions(kind=kind)) as client:
        answer = await client.request(address_of(target), ROUTE, GetRouteInfo(topic="T"))
        assert (answer.code, answer.remark, answer.kind) == (17, f"{kind.name} T", kind)
        assert answer.ext == {"k": "v"}


@each_loop
async def test_concurrent_callers_share_one_connect() -> None:
    async with server() as target, RemotingClient() as client:
        address = address_of(target)
        answers = await asyncio.gather(*(client.request(address, ROUTE, body=b"%d" % i) for i in range(100)))
        assert [answer.body for answer in answers] == [b"%d" % i for i in range(100)]
        assert target.connection_count == 1
        assert list(client.connections) == [address]
        connection = client.connections[address]
        assert await client.connect(address) is connection


@each_loop
async def test_large_answers_between_small_ones_come_whole() -> None:
    def sized(received: Request[Any]) -> Response:
        number = int(bytes(received.body))
        return Response(body=bytes([number % 251]) * number)

    sizes = [3, 700_000, 5, 131_072, 131_100, 2_000_003, 0, 262_144, 1, 400_000, 400_001]
    async with server(sized) as target, RemotingClient() as client:
        address = address_of(target)
        for _ in range(3):
            answers = await asyncio.gather(*(client.request(address, ROUTE, body=b"%d" % size) for size in sizes))
            assert [len(answer.body) for answer in answers] == sizes
            assert all(answer.body == bytes([size % 251]) * size for answer, size in zip(answers, sizes, strict=True))
        assert client.connections[address].reader.kept == 0


@one_loop
async def test_the_beginning_of_a_large_answer_counts_as_kept_until_the_connection_ends() -> None:
    async with HandServer() as by_hand, RemotingClient() as client:
        task = asyncio.create_task(client.request(by_hand.address, ROUTE, timeout=5))
        peer = await by_hand.peer()
        asked = await peer.frame()
        frame = response(asked.opaque, body=bytes(1_000_000))
        await peer.send(frame[:400_000])
        connection = client.connections[by_hand.address]
        await until(lambda: connection.reader.kept == 400_000)
        await peer.close()
        with pytest.raises(ConnectionLost, match="in the middle of a frame, after 400000 bytes"):
            await task
        assert connection.reader.kept == 0


@each_loop
async def test_a_cancelled_caller_does_not_end_the_connect_of_others() -> None:
    async with server() as target, RemotingClient() as client:
        tasks = [asyncio.create_task(client.request(address_of(target), ROUTE, body=b"x")) for _ in range(3)]
        await asyncio.sleep(0)
        assert len(client._connecting) == 1
        tasks[0].cancel()
        assert [(await task).body for task in tasks[1:]] == [b"x", b"x"]
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert target.connection_count == 1


@each_loop
async def test_a_cancelled_request_leaves_the_connection_to_others() -> None:
    keeper = Keeper()
    async with server(keeper) as target, RemotingClient() as client:
        tasks = [asyncio.create_task(client.request(address_of(target), ROUTE)) for _ in range(2)]
        await until(lambda: len(keeper.requests) == 2)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        keeper.reply_all()
        assert (await tasks[1]).code == 0
        assert len(client.connections[address_of(target)].pending) == 0


@each_loop
async def test_oneway() -> None:
    got = []

    def handler(received: Request[GetRouteInfo]) -> Response:
        got.append((received.is_oneway, received.header.topic, received.body))
        return Response()

    async with server(handler) as target, RemotingClient() as client:
        await client.send_oneway(address_of(target), ROUTE, GetRouteInfo(topic="T"), b"body")
        await until(lambda: got)
        assert got == [(True, "T", b"body")]
        # It took an id of its own, and nobody waits for it.
        assert len(client.connections[address_of(target)].pending) == 0
        assert (await client.request(address_of(target), ROUTE)).code == 0


@one_loop
async def test_keys_are_added_by_a_hook_before_encoding() -> None:
    calls = []

    def sign(code: int, header: Header | None, body: Body, ext: Mapping[str, str] | None) -> Mapping[str, str]:
        calls.append((code, header, bytes(body), ext))  # type: ignore[arg-type]
        return {**(ext or {}), "AccessKey": "alice", "Signature": "s"}

    def handler(received: Request[Any]) -> Response:
        return Response(ext=received.ext)

    async with server(handler) as target, RemotingClient(ext_hook=sign) as client:
        header = GetRouteInfo(topic="T")
        answer = await client.request(address_of(target), ROUTE, header, b"b", ext={"k": "v"})
        assert answer.ext == {"topic": "T", "k": "v", "AccessKey": "alice", "Signature": "s"}
        await client.send_oneway(address_of(target), ROUTE)
        assert calls == [(ROUTE, header, b"b", {"k": "v"}), (ROUTE, None, b"", None)]


# Connecting.


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@each_loop
async def test_nobody_listens() -> None:
    async with RemotingClient() as client:
        address = f"127.0.0.1:{free_port()}"
        results = await asyncio.gather(*(client.request(address, ROUTE) for _ in range(3)), return_exceptions=True)
        for result in results:
            assert isinstance(result, ConnectFailed)
            assert f"{address} could not be connected: " in str(result)
            assert isinstance(result.__cause__, OSError)
            assert result.retriable
        assert len({id(result) for result in results}) == 3
        with pytest.raises(BadAddress, match="'nonsense'"):
            await client.request("nonsense", ROUTE)
        with pytest.raises(ConnectFailed, match=r"no-such-host\.invalid:1 could not be connected"):
            await client.request("no-such-host.invalid:1", ROUTE)
        with pytest.raises(ConnectFailed, match="could not be connected"):  # no label of a name is that long
            await client.request("x" * 70 + ".invalid:1", ROUTE)


@each_loop
async def test_a_connect_that_hangs_times_out() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = format_address(*full.getsockname())
        waiting = []
        try:
            # Linux drops what does not fit into the backlog any more: the next connect hangs.
            for _ in range(3):
                sock = socket.socket()
                sock.setblocking(False)
                sock.connect_ex(full.getsockname())
                waiting.append(sock)
            async with RemotingClient(ClientOptions(connect_timeout=0.1)) as client:
                with pytest.raises(Timeout, match=f"{address} could not be connected within 0.03 s"):
                    await client.request(address, ROUTE, timeout=0.03)
                with pytest.raises(ConnectFailed, match=f"{address} could not be connected within 0.1 s"):
                    await client.request(address, ROUTE, timeout=5.0)
                # Closing the client ends a connect on its way.
                task = asyncio.create_task(client.request(address, ROUTE, timeout=5.0))
                await until(lambda: client._connecting)
                await client.close()
                with pytest.raises(ClientClosed, match="while it connected"):
                    await task
        finally:
            for sock in waiting:
                sock.close()


@each_loop
async def test_a_server_that_came_back_is_connected_again() -> None:
    async with RemotingClient() as client:
        async with server() as target:
            address = address_of(target)
            assert (await client.request(address, ROUTE, body=b"1")).body == b"1"
        await until(lambda: not client.connections)
        assert not client._connections
        async with server(port=target.address[1]):
            assert (await client.request(address, ROUTE, body=b"2")).body == b"2"


# Failing.


@each_loop
async def test_a_request_times_out_and_its_late_answer_is_dropped() -> None:
    keeper = Keeper()
    async with server(keeper) as target, RemotingClient() as client:
        address = address_of(target)
        with pytest.raises(
            Timeout, match=rf"{address} did not answer GET_ROUTEINFO_BY_TOPIC \(105\) within 0\.\d+ s"
        ) as caught:
            await client.request(address, ROUTE, timeout=0.5)  # connecting is part of it
        assert isinstance(caught.value, TimeoutError)
        connection = client.connections[address]
        task = asyncio.create_task(client.request(address, ROUTE))
        await until(lambda: len(keeper.requests) == 2)
        keeper.requests[0].reply(Response(remark="late"))
        keeper.requests[1].reply(Response(remark="in time"))
        assert (await task).remark == "in time"
        assert client.connections[address] is connection


@each_loop
async def test_pending_requests_fail_at_once_when_the_connection_ends() -> None:
    async with HandServer() as hand, RemotingClient() as client:
        tasks = [asyncio.create_task(client.request(hand.address, ROUTE, timeout=60.0)) for _ in range(5)]
        peer = await hand.peer()
        for _ in range(5):
            await peer.frame()
        await peer.close()
        for task in tasks:
            with pytest.raises(ConnectionLost, match=r"did not answer GET_ROUTEINFO_BY_TOPIC.*: the peer closed it"):
                await task
        await until(lambda: not client.connections)

        # A reset, and bytes that are no frame.
        for end, cause in ((RawPeer.reset, "reset"), (None, "too small for a header word")):
            task = asyncio.create_task(client.request(hand.address, ROUTE, timeout=60.0))
            peer = await hand.peer()
            await peer.frame()
            if end is not None:
                await end(peer)
            else:
                await peer.send(bytes(8))
            with pytest.raises(ConnectionLost, match=cause):
                await task


@each_loop
async def test_a_silent_connection_is_given_up_after_a_timeout() -> None:
    limits = Limits(silence_timeout=0.05)
    async with HandServer() as hand, RemotingClient(ClientOptions(limits=limits)) as client:
        waiting = asyncio.create_task(client.request(hand.address, ROUTE, timeout=60.0))
        frozen = await hand.peer()
        with pytest.raises(Timeout):
            await client.request(hand.address, ROUTE, timeout=0.1)
        # Not a byte came: the link may be cut, so nobody else waits for it.
        with pytest.raises(ConnectionLost, match="no byte came for"):
            await waiting
        await until(lambda: not client.connections)

        task = asyncio.create_task(client.request(hand.address, ROUTE, timeout=0.1))
        alive = await hand.peer()
        assert alive is not frozen
        await alive.frame()
        other = asyncio.create_task(client.request(hand.address, ROUTE, timeout=60.0))
        frame = await alive.frame()
        sent = asyncio.get_running_loop().time()
        await until(lambda: asyncio.get_running_loop().time() > sent)  # uvloop's clock ticks in milliseconds
        await alive.send(response(-99))  # something came, though nothing that was asked for
        with pytest.raises(Timeout):
            await task
        await alive.send(response(frame.opaque))
        assert (await other).code == 0
        assert client.connections


# Limits.


@each_loop
async def test_requests_in_flight_are_limited() -> None:
    keeper = Keeper()
    async with server(keeper) as target, RemotingClient(ClientOptions(request_limit=2)) as client:
        address = address_of(target)
        first = [asyncio.create_task(client.request(address, ROUTE)) for _ in range(2)]
        await until(lambda: len(keeper.requests) == 2)
        with pytest.raises(TooManyRequests, match=r"2 requests are in flight, and none ended within 0\.0[0-9]+ s"):
            await client.request(address, ROUTE, timeout=0.05)
        assert len(keeper.requests) == 2
        third = asyncio.create_task(client.request(address, ROUTE))
        await asyncio.sleep(0)
        keeper.reply_all()
        await asyncio.gather(*first)
        await until(lambda: len(keeper.requests) == 1)
        keeper.reply_all()
        assert (await third).code == 0


@each_loop
async def test_a_server_that_does_not_read_makes_senders_wait() -> None:
    async with HandServer() as hand, RemotingClient(ClientOptions(oneway_limit=1)) as client:
        body = bytes(4 * 1024 * 1024)
        await client.send_oneway(hand.address, ROUTE, body=body)
        peer = await hand.peer()
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        connection = client.connections[hand.address]
        while not connection.output.is_paused:
            await client.send_oneway(hand.address, ROUTE, body=body)
            await asyncio.sleep(0)
        with pytest.raises(Timeout, match=r"did not read what was sent to it within"):
            await client.request(hand.address, ROUTE, timeout=0.05)
        waiting = asyncio.create_task(client.send_oneway(hand.address, ROUTE))
        await until(lambda: client._oneways.locked())
        with pytest.raises(TooManyRequests):
            await client.send_oneway(hand.address, ROUTE, timeout=0.05)
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        reading = asyncio.create_task(peer.closed())
        await waiting
        assert not connection.output.is_paused
        await client.close()
        assert len(await reading) > len(body)


@one_loop
async def test_who_waits_for_a_server_to_read_learns_of_its_end() -> None:
    async with HandServer() as hand, RemotingClient() as client:
        body = bytes(8 * 1024 * 1024)
        await client.send_oneway(hand.address, ROUTE, body=body)
        peer = await hand.peer()
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        connection = client.connections[hand.address]
        while not connection.output.is_paused:
            await client.send_oneway(hand.address, ROUTE, body=body)
            await asyncio.sleep(0)
        waiting = asyncio.create_task(client.send_oneway(hand.address, ROUTE, timeout=60.0))
        await until(lambda: connection._writable)
        await peer.reset()
        with pytest.raises(ConnectionLost):
            await waiting


@one_loop
async def test_opaques_wrap_and_skip_those_in_use() -> None:
    async with HandServer() as hand, RemotingClient() as client:
        connection = await client.connect(hand.address)
        peer = await hand.peer()
        connection.pending._opaque = 2**31 - 3
        futures = [connection.request(ROUTE, timeout=5.0) for _ in range(3)]
        frames = [await peer.frame() for _ in range(3)]
        assert [frame.opaque for frame in frames] == [2**31 - 2, 2**31 - 1, 0]
        connection.pending._opaque = 2**31 - 2
        futures.append(connection.request(ROUTE, timeout=5.0))
        frames.append(await peer.frame())
        assert frames[3].opaque == 1
        for frame in reversed(frames):
            await peer.send(response(frame.opaque, remark=str(frame.opaque)))
        assert [(await future).remark for future in futures] == [str(frame.opaque) for frame in frames]


# GO_AWAY.


@each_loop
async def test_go_away_moves_to_a_new_connection_and_asks_again() -> None:
    async with HandServer() as hand, RemotingClient() as client:
        waiting = asyncio.create_task(client.request(hand.address, ROUTE, body=b"old", timeout=60.0))
        first = await hand.peer()
        old = await first.frame()
        tasks = [
            asyncio.create_task(client.request(hand.address, ROUTE, body=b"moves", timeout=60.0)) for _ in range(2)
        ]
        for _ in range(2):
            await first.send(response((await first.frame()).opaque, 1500, remark="please go away"))
        second = await hand.peer()
        for _ in range(2):
            frame = await second.frame()
            assert (frame.code, frame.body) == (ROUTE, b"moves")
            await second.send(response(frame.opaque, remark="here"))
        assert [(await task).remark for task in tasks] == ["here", "here"]
        # What was in flight on the old connection still gets its answer; then the connection closes.
        assert not waiting.done()
        await first.send(response(old.opaque, remark="the last one"))
        assert (await waiting).remark == "the last one"
        assert await first.closed() == b""
        assert len(client.connections) == 1


@each_loop
async def test_a_second_go_away_is_an_error() -> None:
    async with HandServer() as hand, RemotingClient() as client:
        task = asyncio.create_task(client.request(hand.address, ROUTE))
        for _ in range(2):
            peer = await hand.peer()
            await peer.send(response((await peer.frame()).opaque, 1500))
        with pytest.raises(GoneAway, match=r"refused GET_ROUTEINFO_BY_TOPIC \(105\) again") as caught:
            await task
        assert caught.value.code == 1500
        assert caught.value.retriable
        assert not client.connections


@each_loop
async def test_go_away_of_our_own_server() -> None:
    keeper = Keeper()
    target = server(keeper)
    await target.start()
    async with RemotingClient() as client:
        waiting = asyncio.create_task(client.request(address_of(target), ROUTE))
        await until(lambda: keeper.requests)
        closing = asyncio.create_task(target.close(grace=30.0))
        await until(lambda: target.dispatcher.is_closing)
        with pytest.raises(ConnectFailed):  # asked to go, and nobody listens any more
            await client.request(address_of(target), ROUTE)
        keeper.reply_all()
        assert (await waiting).code == 0
        await closing


# What servers ask.


@each_loop
async def test_requests_of_the_server_are_served() -> None:
    asked: list[Any] = []

    async def running_info(received: Request[Any]) -> Response:
        asked.append(received.connection)
        await asyncio.sleep(0)
        return Response(body=b"info")

    table = HandlerTable()
    table.add(RequestCode.GET_CONSUMER_RUNNING_INFO, running_info)

    async def ask_back(received: Request[Any]) -> Response:
        client_answers: list[Answer] = [
            await received.connection.request(code, body=b"", timeout=5.0, ext={"consumerGroup": "g", "clientId": "c"})
            for code in (RequestCode.GET_CONSUMER_RUNNING_INFO, RequestCode.CONSUME_MESSAGE_DIRECTLY)
        ]
        assert [answer.code for answer in client_answers] == [0, 3]
        return Response(body=client_answers[0].body)

    async with server(ask_back) as target, RemotingClient(table=table) as client:
        answer = await client.request(address_of(target), ROUTE)
        assert answer.body == b"info"
        assert asked == [client.connections[address_of(target)]]


@each_loop
async def test_pushes_of_the_server_arrive() -> None:
    pushed: list[bytes] = []
    lost: list[Connection] = []
    table = HandlerTable()
    table.on_connection_lost.append(lost.append)

    def notify(received: Request[Any]) -> Response:
        pushed.append(received.body)
        return Response()

    table.add(NOTIFY, notify)
    async with server() as target, RemotingClient(table=table) as client:
        await client.request(address_of(target), ROUTE)
        (connection,) = target.connections
        for i in range(10):
            connection.send_oneway(NOTIFY, body=b"%d" % i, ext={"consumerGroup": "g"})
        await until(lambda: len(pushed) == 10)
        assert pushed == [b"%d" % i for i in range(10)]
        assert not lost
        await target.close()
        await until(lambda: lost)


# The end.


@each_loop
async def test_idle_connections_are_closed() -> None:
    clock = FakeClock()
    async with server() as target, RemotingClient(clock=clock) as client:
        await client.request(address_of(target), ROUTE)
        clock.advance(119.0)
        client.sweep()
        assert len(client.connections) == 1
        clock.advance(11.0)
        client.sweep()
        await until(lambda: not client.connections)
        await until(lambda: target.connection_count == 0)
        assert (await client.request(address_of(target), ROUTE)).code == 0


@each_loop
async def test_close_fails_what_waits_and_leaves_nothing() -> None:
    keeper = Keeper()
    async with server(keeper) as target:
        client = RemotingClient()
        task = asyncio.create_task(client.request(address_of(target), ROUTE, timeout=60.0))
        await until(lambda: keeper.requests)
        await client.close()
        with pytest.raises(ConnectionLost, match="the client was closed"):
            await task
        with pytest.raises(ClientClosed):
            await client.request(address_of(target), ROUTE)
        with pytest.raises(ClientClosed):
            await client.send_oneway(address_of(target), ROUTE)
        with pytest.raises(ClientClosed):
            await client.connect(address_of(target))
        await client.close()
        keeper.reply_all()
    await RemotingClient().close()


@each_loop
async def test_close_at_the_very_moment_a_connection_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    client = RemotingClient()
    closing: list[asyncio.Task[None]] = []
    begin = Connection.connection_made

    def begin_and_close(self: Connection, transport: asyncio.BaseTransport) -> None:
        begin(self, transport)
        if not self.is_accepted:
            closing.append(asyncio.create_task(client.close()))

    monkeypatch.setattr(Connection, "connection_made", begin_and_close)
    async with server() as target:
        with pytest.raises((ClientClosed, ConnectionLost)):
            await client.request(address_of(target), ROUTE)
        async with asyncio.timeout(5):
            await closing[0]
        assert not client.connections
        await until(lambda: target.connection_count == 0)


@each_loop
async def test_close_sends_what_was_said_before() -> None:
    got = []

    def handler(received: Request[Any]) -> Response:
        got.append(received.body)
        return Response()

    async with server(handler) as target:
        client = RemotingClient()
        await client.send_oneway(address_of(target), ROUTE, body=b"last words")
        await client.close()
        await until(lambda: got == [b"last words"])


@each_loop
async def test_close_ends_handlers_of_the_client() -> None:
    async def endless(received: Request[Any]) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    table = HandlerTable()
    table.add(NOTIFY, endless)
    async with HandServer() as hand:
        async with RemotingClient(table=table) as client:
            await client.connect(hand.address)
            peer = await hand.peer()
            await peer.send(request(NOTIFY, {"consumerGroup": "g"}))
            await until(lambda: client.dispatcher.tasks)
        assert await peer.closed() == b""


@each_loop
async def test_close_does_not_wait_for_a_server_that_does_not_read() -> None:
    async with HandServer() as hand:
        async with RemotingClient() as client:
            await client.send_oneway(hand.address, ROUTE, body=bytes(15 * 1024 * 1024))
            peer = await hand.peer()
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await until(lambda: client.connections[hand.address].output.is_paused)
        assert not client.connections
