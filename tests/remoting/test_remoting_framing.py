"""Bytes as they really come: in pieces, in heaps, and from peers that lie, dawdle, never read or leave halfway.

The offender is closed or answered; everybody else is served, and what the server keeps stays bounded.
"""

import asyncio
import json
import struct
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import LATER, Connection, HandlerTable, Limits, Request, Response, Server, ServerOptions
from cometmq.remoting.scratch import SHARED_SIZE
from support import golden
from support.loops import FakeClock, each_loop, one_loop, until
from support.raw_peer import RawPeer, binary_request, pack, request, response

ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
MIB = 1024 * 1024


def echo(received: Request[Any]) -> Response:
    """Answers the topic and the body."""
    return Response(body=[(received.header.topic or "").encode(), received.body])


def server(handler: Any = echo, *, clock: FakeClock | None = None, **limits: Any) -> Server:
    table = HandlerTable()
    table.add(ROUTE, handler)
    return Server(table, ServerOptions(host="127.0.0.1", limits=Limits(**limits)), clock=clock)


def roster_of(target: Server) -> Any:
    assert target._roster is not None
    return target._roster


def only(target: Server) -> Connection:
    (connection,) = target.connections
    return connection


async def assert_others_are_served(target: Server) -> None:
    async with await RawPeer.open(target.address) as other:
        assert (await other.ask(request(ROUTE, {"topic": "other"}))).body == b"other"


@each_loop
async def test_frames_that_come_byte_by_byte() -> None:
    data = request(ROUTE, {"topic": "one"}, b"first", opaque=1) + binary_request(
        ROUTE, {"topic": "two"}, b"2", opaque=2
    )
    async with server() as target, await RawPeer.open(target.address) as peer:
        for position in range(len(data)):
            await peer.send(data[position : position + 1])
            await asyncio.sleep(0)
        assert (await peer.frame()).body == b"onefirst"
        assert (await peer.frame()).body == b"two2"
        assert roster_of(target).partial_bytes == 0
        assert not roster_of(target).partials


def cuts(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    for position in range(1, len(data)):
        yield data[:position], data[position:]


@one_loop
async def test_a_frame_may_be_cut_anywhere() -> None:
    data = request(ROUTE, {"topic": "one"}, b"body")
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.ask(data)
        connection = only(target)
        for start, rest in cuts(data + data):
            # Straight into the protocol: what a read brings is then known.
            for piece in (start, rest):
                connection.get_buffer(-1)[: len(piece)] = piece
                connection.buffer_updated(len(piece))
            assert [(await peer.frame()).body for _ in range(2)] == [b"onebody"] * 2
            assert roster_of(target).partial_bytes == 0


@each_loop
async def test_many_frames_in_one_read_are_answered_in_order_by_one_write() -> None:
    count = 300
    writes = []

    class Spy:
        def __init__(self, transport: Any) -> None:
            self._transport = transport

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

        def write(self, data: bytes) -> None:
            writes.append(len(data))
            self._transport.write(data)

    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.ask(request(ROUTE))
        connection = only(target)
        connection.output._transport = Spy(connection.output._transport)  # type: ignore[assignment]
        data = b"".join(request(ROUTE, {"topic": f"t{i}"}, opaque=i) for i in range(count))
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        assert not writes  # nothing goes out before the turn of the loop is over
        answers = [await peer.frame() for _ in range(count)]
        assert [answer.opaque for answer in answers] == list(range(count))
        assert [answer.body.decode() for answer in answers] == [f"t{i}" for i in range(count)]
        assert len(writes) == 1
        assert writes[0] > count * 100


@each_loop
async def test_a_frame_of_the_full_size_is_served() -> None:
    frame = request(ROUTE, {"topic": "big"})
    body = bytes(16 * MIB - len(frame))
    frame = request(ROUTE, {"topic": "big"}, body)
    assert len(frame) == 16 * MIB
    sizes = []

    def handler(received: Request[Any]) -> Response:
        sizes.append(len(received.body))
        return Response()

    async with server(handler) as target, await RawPeer.open(target.address) as peer:
        assert (await peer.ask(frame + request(ROUTE, opaque=2))).opaque == 1
        assert (await peer.frame()).opaque == 2
        assert sizes == [len(body), 0]
        assert roster_of(target).partial_bytes == 0


BAD_PREFIXES = {
    "one byte over the limit": struct.pack(">ii", 16 * MIB - 3, 2),
    "a frame of 17 MiB": struct.pack(">i", 17 * MIB),
    "a frame of 31 MiB, whose first byte is 1": struct.pack(">i", 31 * MIB),
    "length 0": bytes(20),
    "length 3": struct.pack(">i", 3),
    "header longer than the frame": struct.pack(">iI", 10, 100) + b"{}{}{}",
    "header longer than the frame, which has not come": struct.pack(">iI", 10 * MIB, 11 * MIB),
    "unknown serialize type": struct.pack(">iI", 26, 5 << 24 | 2) + b"{}",
    "unknown serialize type of a frame that has not come": struct.pack(">iI", 10 * MIB, 3 << 24 | 2),
    "negative length": struct.pack(">i", -1),
    "text": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a line feed": b"\n",
}
BAD_HEADERS = {
    "not JSON": b"hello",
    "empty": b"",
    "null": b"null",
    "a list": b"[1,2]",
    "a number": b"17",
    "cut JSON": b'{"code":105,"flag":0',
    "not UTF-8": b'{"code":105,"flag":0,"opaque":1,"version":407,"remark":"\xff\xfe"}',
    "deep nesting": b'{"code":105,"extFields":' + b"[" * 100_000,
    "deep objects": b'{"code":105,"extFields":' + b'{"a":' * 50_000,
    "code is text": b'{"code":"x","flag":0}',
    "opaque beyond i32": b'{"code":105,"flag":0,"opaque":99999999999}',
}


@each_loop
@pytest.mark.parametrize("prefix", BAD_PREFIXES.values(), ids=BAD_PREFIXES.keys())
async def test_a_length_that_no_frame_has_closes_the_connection(prefix: bytes) -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.send(prefix)
        assert await peer.closed() == b""
        assert roster_of(target).partial_bytes == 0
        await until(lambda: target.connection_count == 0)
        await assert_others_are_served(target)


@one_loop
@pytest.mark.parametrize("prefix", BAD_PREFIXES.values(), ids=BAD_PREFIXES.keys())
async def test_good_answers_go_out_before_a_bad_frame_closes(prefix: bytes) -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.send(request(ROUTE, {"topic": "good"}) + prefix + request(ROUTE, {"topic": "unseen"}))
        assert (await peer.frame()).body == b"good"
        assert await peer.closed() == b""


@each_loop
@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS.keys())
async def test_a_header_that_is_none_closes_the_connection(header: bytes) -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.send(pack(header))
        assert await peer.closed() == b""
        await assert_others_are_served(target)


@one_loop
@pytest.mark.parametrize("kind", [1, 2])
async def test_broken_headers_of_the_other_forms_close_too(kind: int) -> None:
    async with server() as target:
        for header in (b"", b"\xff" * 20, b"\x97\xce\xff", bytes(21)[:20]):
            async with await RawPeer.open(target.address) as peer:
                await peer.send(pack(header, kind=kind))
                assert await peer.closed() == b""
        await assert_others_are_served(target)


@each_loop
async def test_a_promised_frame_costs_only_what_has_come() -> None:
    promise = struct.pack(">iI", 16 * MIB - 4, 100)
    async with server() as target, AsyncExitStack() as stack:
        for _ in range(20):
            peer = await stack.enter_async_context(await RawPeer.open(target.address))
            await peer.send(promise + b"x" * 10)
        await until(lambda: roster_of(target).partial_bytes == 20 * 18)
        assert len(roster_of(target).partials) == 20
        await assert_others_are_served(target)
        assert roster_of(target).partial_bytes == 20 * 18
    assert roster_of(target).partial_bytes == 0


@each_loop
async def test_a_truncated_frame_ends_with_its_connection() -> None:
    async with server() as target:
        async with await RawPeer.open(target.address) as peer:
            await peer.send(request(ROUTE, {"topic": "x"})[:-5])
            await until(lambda: roster_of(target).partial_bytes > 0)
            connection = only(target)
        await until(lambda: target.connection_count == 0)
        assert roster_of(target).partial_bytes == 0
        assert "in the middle of a frame" in connection.end_reason


@each_loop
async def test_a_slow_loris_is_closed() -> None:
    clock = FakeClock()
    async with (
        server(clock=clock, frame_timeout=60.0) as target,
        await RawPeer.open(target.address) as loris,
        await RawPeer.open(target.address) as slow,
    ):
        data = request(ROUTE, {"topic": "slow"})
        await slow.send(data[:20])
        await loris.send(data[:9])
        await until(lambda: roster_of(target).partial_bytes == 29)
        for position in range(9, 14):  # drop by drop, so it is never idle
            clock.advance(10.0)
            await loris.send(data[position : position + 1])
            await until(lambda p=position: roster_of(target).partial_bytes == 20 + p + 1)
            target.sweep()
        assert target.connection_count == 2
        await slow.send(data[20:] + data[:10])  # in time, and a new frame begins
        assert (await slow.frame()).body == b"slow"
        clock.advance(11.0)
        target.sweep()
        assert await loris.closed() == b""
        await until(lambda: target.connection_count == 1)
        assert (await slow.ask(data[10:])).body == b"slow"


@each_loop
async def test_incomplete_frames_of_all_together_are_bounded() -> None:
    async with server(partial=1 * MIB) as target, AsyncExitStack() as stack:
        modest, greedy = [await stack.enter_async_context(await RawPeer.open(target.address)) for _ in range(2)]
        frame = request(ROUTE, {"topic": "x"}, bytes(700 * 1024))
        await modest.send(frame[: 300 * 1024])
        await until(lambda: roster_of(target).partial_bytes == 300 * 1024)
        await greedy.send(frame[: 600 * 1024])
        await until(lambda: roster_of(target).partial_bytes == 900 * 1024)
        large = request(ROUTE, {"topic": "x"}, bytes(2 * MIB))
        third = await stack.enter_async_context(await RawPeer.open(target.address))
        await third.send(large[: 200 * 1024])
        assert await greedy.closed() == b""
        await until(lambda: roster_of(target).partial_bytes == 500 * 1024)
        assert len((await modest.ask(frame[300 * 1024 :])).body) == 1 + 700 * 1024


@each_loop
async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    count, size = 200, 200 * 1024
    served = 0

    def handler(received: Request[Any]) -> Response:
        nonlocal served
        if received.header.topic != "big":
            return echo(received)
        served += 1
        return Response(body=bytes(size))

    async with server(handler) as target, await RawPeer.open(target.address) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        peer.write(b"".join(request(ROUTE, {"topic": "big"}, opaque=i) for i in range(count)))
        await until(lambda: served and only(target).output.is_paused)
        connection = only(target)
        # All requests were in one read: the rest of them waits, and is bounded by the scratch buffer.
        held = connection.reader.kept
        assert held > 0
        before = served
        await assert_others_are_served(target)
        await assert_others_are_served(target)
        assert served == before
        assert served < count / 2
        # Up to the mark in the transport, up to the mark gathered, and the answer that went beyond it.
        assert connection.output.unsent <= 2 * 256 * 1024 + size + 1024
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for i in range(count):
            answer = await peer.frame()
            assert (answer.opaque, len(answer.body)) == (i, size)
        assert served == count
        assert roster_of(target).partial_bytes == 0
        assert not roster_of(target).stalled
        assert (await peer.ask(request(ROUTE, {"topic": "still here"}))).body == b"still here"


@each_loop
async def test_requests_of_a_client_that_does_not_read_stay_in_the_kernel() -> None:
    count, padding = 400, b"x" * 20_000

    def handler(received: Request[Any]) -> Response:
        return Response(body=bytes(200 * 1024))

    async with server(handler) as target, await RawPeer.open(target.address) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        peer.write(b"".join(request(ROUTE, body=padding, opaque=i) for i in range(count)))
        await until(lambda: target.connections and only(target).output.is_paused)
        connection = only(target)
        # 8 MB wait; what was read of them is one read, and it does not grow.
        read_at = connection.last_read
        for _ in range(50):
            await asyncio.sleep(0.001)
        assert connection.last_read == read_at
        assert 0 < connection.reader.kept < SHARED_SIZE + len(padding)
        peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for i in range(count):
            assert (await peer.frame()).opaque == i


@one_loop
async def test_a_read_inside_a_handler_harms_nobody() -> None:
    """A TLS transport may read while it is being closed: then the buffer that all share is in use."""

    def handler(received: Request[Any]) -> Response:
        if received.body == b"disturb":
            for other in target.connections - {received.connection}:
                data = request(ROUTE, {"topic": "nested"}, b"\xee" * 3000)
                other.get_buffer(-1)[: len(data)] = data
                other.buffer_updated(len(data))
        return echo(received)

    async with (
        server(handler) as target,
        await RawPeer.open(target.address) as peer,
        await RawPeer.open(target.address) as other,
    ):
        await other.ask(request(ROUTE))
        frames = [request(ROUTE, body=b"%d" % i * 200, opaque=i) for i in range(60)]
        await peer.send(request(ROUTE, body=b"disturb", opaque=99) + b"".join(frames))
        assert (await peer.frame()).opaque == 99
        for i in range(60):
            answer = await peer.frame()
            assert (answer.opaque, answer.body) == (i, b"%d" % i * 200)
        assert (await other.frame()).body == b"nested" + b"\xee" * 3000


@each_loop
async def test_a_client_that_never_reads_is_closed_when_its_output_passes_the_limit() -> None:
    kept: list[Request[Any]] = []

    def keep(received: Request[Any]) -> Any:
        if received.header.topic == "other":
            return echo(received)
        kept.append(received)
        return LATER

    async with server(keep, unsent=4 * MIB) as target, await RawPeer.open(target.address) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(b"".join(request(ROUTE, opaque=i) for i in range(20)))
        await until(lambda: len(kept) == 20)
        connection = only(target)
        # Answers that come later cannot be held back by not reading; they are what the limit is for.
        most = 0
        for received in kept:
            received.reply(Response(body=bytes(MIB)))
            await asyncio.sleep(0)
            if connection.is_open:
                most = max(most, connection.output.unsent)
        await until(lambda: target.connection_count == 0)
        assert 4 * MIB < most < 7 * MIB
        assert "does not read" in connection.end_reason
        assert target.open_replies == 0
        await assert_others_are_served(target)


@each_loop
async def test_a_client_that_never_reads_pushed_requests_is_closed_too() -> None:
    async with server(unsent=1 * MIB) as target, await RawPeer.open(target.address) as peer:
        await peer.ask(request(ROUTE))
        connection = only(target)
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        while connection.is_open:
            connection.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, body=bytes(100_000))
            await asyncio.sleep(0)
        await until(lambda: target.connection_count == 0)
        assert "does not read" in connection.end_reason


@each_loop
async def test_output_without_progress_is_given_up_in_time() -> None:
    clock = FakeClock()

    def handler(received: Request[Any]) -> Response:
        return Response(body=bytes(15 * MIB))  # more than any kernel buffers

    async with server(handler, clock=clock, stall_timeout=60.0) as target, await RawPeer.open(target.address) as peer:
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await peer.send(request(ROUTE))
        await until(lambda: target.connections and only(target).output.is_paused)
        connection = only(target)
        for _ in range(5):  # each time something has moved when the minute is nearly over
            target.sweep()
            clock.advance(59.0)
            peer.reader._transport.resume_reading()  # type: ignore[attr-defined]
            await peer.reader.readexactly(MIB)
            peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
            target.sweep()
            assert connection.is_open

        def a_minute_passes() -> bool:
            target.sweep()
            clock.advance(61.0)
            target.sweep()
            return not connection.is_open

        # What the kernel still has room for counts as movement; then nothing moves any more.
        await until(a_minute_passes)
        assert "has not read its answers for 60 s" in connection.end_reason
        await until(lambda: target.connection_count == 0)


@each_loop
async def test_a_half_closed_peer_gets_the_answers_it_is_owed() -> None:
    kept: list[Request[Any]] = []
    lost: list[Connection] = []

    def keep(received: Request[Any]) -> Any:
        kept.append(received)
        return LATER if received.header.topic else Response(body=b"at once")

    async with server(keep) as target, await RawPeer.open(target.address) as peer:
        target.table.on_connection_lost.append(lost.append)
        await peer.send(request(ROUTE, opaque=1) + request(ROUTE, {"topic": "later"}, opaque=2))
        peer.write_eof()
        assert (await peer.frame()).body == b"at once"
        await until(lambda: lost)  # nothing more comes from it, so it counts as gone
        assert not only(target).is_open
        assert target.open_replies == 1
        kept[1].reply(Response(body=b"the last word"))
        answer = await peer.frame()
        assert (answer.opaque, answer.body) == (2, b"the last word")
        assert await peer.closed() == b""
        await until(lambda: target.connection_count == 0)
    assert len(lost) == 1


@each_loop
async def test_a_half_closed_peer_is_not_kept_for_long() -> None:
    clock = FakeClock()

    async with (
        server(lambda received: LATER, clock=clock, close_timeout=5.0) as target,
        await RawPeer.open(target.address) as peer,
    ):
        await peer.send(request(ROUTE))
        peer.write_eof()
        await until(lambda: target.connections and not only(target).is_open)
        clock.advance(4.9)
        target.sweep()
        assert target.connection_count == 1
        clock.advance(0.2)
        target.sweep()
        assert await peer.closed() == b""
        await until(lambda: target.connection_count == 0)
        assert target.open_replies == 0


@each_loop
async def test_responses_that_nobody_waits_for_are_dropped() -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.send(response(1) + response(-7, 1, remark="x") + response(2**31 - 1))
        answer = await peer.ask(request(ROUTE, {"topic": "after"}))
        assert (answer.opaque, answer.body) == (1, b"after")


#: Cases of the capture that are about frames and headers, not about what a broker does.
FRAMING_CASES = [
    case
    for case in golden.raw_cases("raw-cases")
    if case.target == "broker"
    and (case.case.startswith(("unknown-code", "http-", "length-", "header-", "first-10", "unknown-ser", "ext-values")))
]


def test_the_capture_has_the_framing_cases() -> None:
    assert len(FRAMING_CASES) >= 14


@each_loop
@pytest.mark.parametrize("case", FRAMING_CASES, ids=lambda case: case.case)
async def test_bad_frames_are_treated_as_rocketmq_does(case: golden.RawCase) -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.send(case.sent)
        if case.case == "first-10-bytes-only":
            # RocketMQ waits for twelve bytes before it looks; we answer at once.
            assert (await peer.frame()).remark == " request type 0 not supported"
        for header, body, _ in case.answers:
            answer = await peer.frame()
            assert (answer.code, answer.remark, answer.body) == (header["code"], header.get("remark"), body)
        if case.closed:
            assert await peer.closed() == b""
        else:
            assert (await peer.ask(request(ROUTE, {"topic": "alive"}, opaque=99))).opaque == 99
        await assert_others_are_served(target)


@one_loop
async def test_numbers_where_text_is_due_are_accepted() -> None:
    header = json.dumps({"code": ROUTE, "flag": 0, "opaque": 5, "extFields": {"topic": 17}}).encode()
    async with server() as target, await RawPeer.open(target.address) as peer:
        assert (await peer.ask(pack(header))).body == b"17"
