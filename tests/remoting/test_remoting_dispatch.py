"""The handler contract: what a handler may return, and what is answered when there is none or it fails."""

import asyncio
import json
import logging
import struct
from typing import Any

import msgspec
import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.protocol.errors import BodyError, RecordError
from cometmq.protocol.requests.namesrv import GetRouteInfo
from cometmq.protocol.requests.offsets import OffsetAnswer, QueryConsumerOffset
from cometmq.remoting import (
    LATER,
    NO_ANSWER,
    Connection,
    Entry,
    HandlerTable,
    Permission,
    Request,
    Response,
    Server,
    ServerOptions,
)
from support.loops import each_loop, one_loop, until
from support.raw_peer import RawPeer, binary_request, pack, request

ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
OFFSET = int(RequestCode.QUERY_CONSUMER_OFFSET)
ONEWAY = 2


def table_of(**handlers: Any) -> HandlerTable:
    """A table with a handler for the route request and, under `offset`, for the offset query."""
    table = HandlerTable()
    for name, handler in handlers.items():
        table.add(ROUTE if name == "route" else OFFSET, handler)
    return table


def echo(received: Request[GetRouteInfo]) -> Response:
    return Response(body=(received.header.topic or "").encode())


def server(table: HandlerTable, **options: Any) -> Server:
    return Server(table, ServerOptions(host="127.0.0.1", **options))


async def silent_after(peer: RawPeer, *frames: bytes) -> None:
    """Sends frames that get no answer; a request after them proves that none came."""
    answer = await peer.ask(b"".join(frames) + request(29999, opaque=77))
    assert (answer.code, answer.opaque) == (3, 77)


@each_loop
async def test_a_response_goes_out_as_it_was_given() -> None:
    def handler(received: Request[QueryConsumerOffset]) -> Response:
        assert received.header == QueryConsumerOffset(consumer_group="g", topic="t", queue_id=3)
        assert received.body == b"body"
        assert received.code == OFFSET
        assert received.version == 407
        assert not received.is_oneway
        return Response(header=OffsetAnswer(offset=42), body=b"answer")

    async with server(table_of(offset=handler)) as target, await RawPeer.open(target.address) as peer:
        ext = {"consumerGroup": "g", "topic": "t", "queueId": "3"}
        answer = await peer.ask(request(OFFSET, ext, b"body", opaque=-5))
    assert answer.header == {
        "code": 0,
        "extFields": {"offset": "42"},
        "flag": 1,
        "language": "PYTHON",
        "opaque": -5,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }
    assert answer.body == b"answer"


@each_loop
async def test_an_answer_has_the_header_form_of_its_request() -> None:
    async with server(table_of(route=echo)) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(binary_request(ROUTE, {"topic": "T"}, opaque=9))
        assert answer.kind == 1
        assert answer.body == b"T"
        assert struct.unpack(">hbhii", answer.raw_header[:13]) == (0, 3, 479, 9, 1)

        answer = await peer.ask(request(ROUTE, {"topic": "U"}))
        assert (answer.kind, answer.body) == (0, b"U")

        header = msgspec.msgpack.encode([29999, 3, 479, 4, 0, None, {}])
        answer = await peer.ask(pack(header, kind=2))
        assert answer.kind == 2
        assert msgspec.msgpack.decode(answer.raw_header)[:6] == [3, 3, 479, 4, 1, " request type 29999 not supported"]


@one_loop
async def test_errors_have_the_header_form_of_their_request_too() -> None:
    async with server(table_of(offset=echo)) as target, await RawPeer.open(target.address) as peer:
        for code, expected in ((29999, 3), (OFFSET, 1)):
            answer = await peer.ask(binary_request(code, {}, opaque=8))
            assert answer.kind == 1
            assert struct.unpack(">hbhii", answer.raw_header[:13]) == (expected, 3, 479, 8, 1)


@each_loop
async def test_a_coroutine_is_awaited_and_others_are_served_meanwhile() -> None:
    release = asyncio.Event()

    async def slow(received: Request[GetRouteInfo]) -> Response:
        await release.wait()
        return Response(remark="slow")

    def quick(received: Request[QueryConsumerOffset]) -> Response:
        release.set()
        return Response(remark="quick")

    async with server(table_of(route=slow, offset=quick)) as target, await RawPeer.open(target.address) as peer:
        await peer.send(request(ROUTE, opaque=1))
        await until(lambda: target.open_replies == 1)
        assert len(target.dispatcher.tasks) == 1
        answer = await peer.ask(request(OFFSET, {"consumerGroup": "g", "topic": "t", "queueId": "0"}, opaque=2))
        assert (answer.opaque, answer.remark) == (2, "quick")
        answer = await peer.frame()
        assert (answer.opaque, answer.remark) == (1, "slow")
        assert target.open_replies == 0
        await until(lambda: not target.dispatcher.tasks)


@each_loop
async def test_later_is_answered_by_whoever_keeps_the_request() -> None:
    kept: list[Request[GetRouteInfo]] = []

    def keep(received: Request[GetRouteInfo]) -> Any:
        kept.append(received)
        return LATER

    async with server(table_of(route=keep)) as target, await RawPeer.open(target.address) as peer:
        await peer.send(request(ROUTE, opaque=1) + request(ROUTE, opaque=2))
        await until(lambda: len(kept) == 2)
        assert target.open_replies == 2
        assert not target.dispatcher.tasks
        kept[1].reply(Response(remark="second"))
        kept[0].reply(Response(remark="first"))
        assert target.open_replies == 0
        assert [(f.opaque, f.remark) for f in [await peer.frame(), await peer.frame()]] == [(2, "second"), (1, "first")]
        assert kept[0].is_answered
        with pytest.raises(RuntimeError, match=r"GET_ROUTEINFO_BY_TOPIC \(105\) #1 of .* answered already"):
            kept[0].reply(Response())
        assert target.open_replies == 0


@one_loop
async def test_a_handler_may_answer_before_it_says_later() -> None:
    def at_once(received: Request[GetRouteInfo]) -> Any:
        received.reply(Response(remark="done"))
        return LATER

    async with server(table_of(route=at_once)) as target, await RawPeer.open(target.address) as peer:
        assert (await peer.ask(request(ROUTE))).remark == "done"
        assert target.open_replies == 0


@one_loop
async def test_a_coroutine_may_leave_the_answer_to_somebody_else() -> None:
    kept: list[Request[GetRouteInfo]] = []

    async def keep(received: Request[GetRouteInfo]) -> Any:
        kept.append(received)
        return LATER

    async with server(table_of(route=keep)) as target, await RawPeer.open(target.address) as peer:
        await peer.send(request(ROUTE))
        await until(lambda: kept and not target.dispatcher.tasks)
        assert target.open_replies == 1
        kept[0].reply(Response(remark="late"))
        assert (await peer.frame()).remark == "late"
        assert target.open_replies == 0


@one_loop
async def test_a_handler_that_answers_twice_is_an_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def twice(received: Request[GetRouteInfo]) -> Response:
        received.reply(Response(remark="first"))
        return Response(remark="second")

    async with server(table_of(route=twice)) as target, await RawPeer.open(target.address) as peer:
        assert (await peer.ask(request(ROUTE))).remark == "first"
        await silent_after(peer)
    assert "answered already" in caplog.text


@one_loop
async def test_some_requests_get_no_answer_on_purpose() -> None:
    kept: list[Request[Any]] = []

    def keep(received: Request[Any]) -> Any:
        kept.append(received)
        return LATER

    async with (
        server(table_of(route=lambda received: NO_ANSWER, offset=keep)) as target,
        await RawPeer.open(target.address) as peer,
    ):
        await silent_after(peer, request(ROUTE))
        await peer.send(request(OFFSET, {"consumerGroup": "g", "topic": "t", "queueId": "0"}))
        await until(lambda: target.open_replies == 1)
        kept[0].reply(NO_ANSWER)
        assert target.open_replies == 0
        await silent_after(peer)


@each_loop
async def test_oneway_requests_get_no_answer_whatever_happens() -> None:
    def fail(received: Request[Any]) -> Response:
        raise ValueError("boom")

    served = []

    async def serve(received: Request[Any]) -> Response:
        served.append(received.is_oneway)
        return Response()

    async with server(table_of(route=fail, offset=serve)) as target, await RawPeer.open(target.address) as peer:
        good = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
        await silent_after(
            peer,
            request(ROUTE, flag=ONEWAY),  # its handler raises
            request(29998, flag=ONEWAY),  # has no handler
            request(OFFSET, {"queueId": "x"}, flag=ONEWAY),  # has a bad header
            request(OFFSET, good, flag=ONEWAY),
        )
        await until(lambda: served == [True])
        await until(lambda: target.open_replies == 0)
        await silent_after(peer)


@each_loop
async def test_an_unknown_code_is_answered_as_rocketmq_does() -> None:
    async with server(HandlerTable()) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(request(29999))
        assert (answer.code, answer.remark) == (3, " request type 29999 not supported")
        # Known to the protocol, but not to this server: no matter how wrong its header is.
        answer = await peer.ask(request(OFFSET, {"queueId": "x"}))
        assert (answer.code, answer.remark) == (3, " request type 14 not supported")


@each_loop
async def test_a_failing_handler_answers_system_error(caplog: pytest.LogCaptureFixture) -> None:
    def fail(received: Request[Any]) -> Response:
        raise ValueError("boom")

    async def fail_later(received: Request[Any]) -> Response:
        await asyncio.sleep(0)
        raise KeyError("gone")

    async with server(table_of(route=fail, offset=fail_later)) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(request(ROUTE))
        assert (answer.code, answer.remark) == (1, "ValueError: boom")
        answer = await peer.ask(request(OFFSET, {"consumerGroup": "g", "topic": "t", "queueId": "0"}))
        assert (answer.code, answer.remark) == (1, "KeyError: 'gone'")
        assert target.open_replies == 0
    records = [record for record in caplog.records if record.name == "cometmq.remoting.serving"]
    assert len(records) == 2
    assert all(record.exc_info for record in records)


@one_loop
async def test_a_handler_that_returns_nothing_answers_system_error() -> None:
    async def nothing(received: Request[Any]) -> Any:
        return None

    async with (
        server(table_of(route=lambda received: None, offset=nothing)) as target,
        await RawPeer.open(target.address) as peer,
    ):
        answer = await peer.ask(request(ROUTE))
        assert answer.code == 1
        assert "returned NoneType, not a response" in (answer.remark or "")
        answer = await peer.ask(request(OFFSET, {"consumerGroup": "g", "topic": "t", "queueId": "0"}))
        assert answer.code == 1
        assert "gave NoneType, not a response" in (answer.remark or "")


@one_loop
async def test_what_is_wrong_with_the_bytes_is_answered_in_its_own_words(caplog: pytest.LogCaptureFixture) -> None:
    def bad_body(received: Request[Any]) -> Response:
        raise BodyError("the body is no JSON")

    async def bad_record(received: Request[Any]) -> Response:
        raise RecordError("the batch ends in the middle of a message")

    caplog.set_level(logging.INFO)
    table = table_of(route=bad_body, offset=bad_record)
    async with server(table) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(request(ROUTE))
        assert (answer.code, answer.remark) == (1, "the body is no JSON")
        answer = await peer.ask(request(OFFSET, {"consumerGroup": "g", "topic": "t", "queueId": "0"}))
        assert (answer.code, answer.remark) == (13, "the batch ends in the middle of a message")
    assert not any(record.exc_info for record in caplog.records)


@one_loop
async def test_a_bad_header_names_its_field() -> None:
    async with server(table_of(offset=echo)) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(request(OFFSET, {"consumerGroup": "g", "topic": "t"}))
        assert answer.code == 1
        assert answer.remark == "QUERY_CONSUMER_OFFSET (14): field 'queueId' is missing"
        answer = await peer.ask(request(OFFSET, {"consumerGroup": "g", "topic": "t", "queueId": "x"}))
        assert answer.code == 1
        assert "'queueId'" in (answer.remark or "")


@each_loop
async def test_too_many_open_replies_are_answered_busy() -> None:
    kept: list[Request[Any]] = []

    def keep(received: Request[Any]) -> Any:
        kept.append(received)
        return LATER

    table = table_of(route=keep)
    async with server(table, open_reply_limit=2) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(b"".join(request(ROUTE, opaque=i) for i in range(3)))
        assert (answer.opaque, answer.code) == (2, 2)
        assert answer.remark == "[OVERLOAD]system busy, start flow control for a while"
        kept[0].reply(Response())
        assert (await peer.frame()).opaque == 0
        await peer.send(request(ROUTE, opaque=3))
        await until(lambda: len(kept) == 3)
        for received in kept[1:]:
            received.reply(Response())


@one_loop
async def test_hooks_look_at_a_request_before_its_handler() -> None:
    seen: list[tuple[str, Entry]] = []

    def first(received: Request[Any], entry: Entry) -> Response | None:
        seen.append(("first", entry))
        return Response(16, remark="not you") if received.ext.get("AccessKey") == "mallory" else None

    def second(received: Request[Any], entry: Entry) -> Response | None:
        seen.append(("second", entry))
        if "AccessKey" not in received.ext:
            raise PermissionError("who are you")
        return None

    table = HandlerTable()
    table.add(ROUTE, echo, permission=Permission("Get", "Topic", "topic"))
    table.before += [first, second]
    async with server(table) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(request(ROUTE, {"topic": "T", "AccessKey": "mallory"}))
        assert (answer.code, answer.remark, answer.body) == (16, "not you", b"")
        assert [name for name, _ in seen] == ["first"]
        assert seen[0][1].permission == Permission("Get", "Topic", "topic")
        assert seen[0][1].header is GetRouteInfo

        answer = await peer.ask(request(ROUTE, {"topic": "T", "AccessKey": "alice"}))
        assert (answer.code, answer.body) == (0, b"T")
        answer = await peer.ask(request(ROUTE, {"topic": "T"}))
        assert (answer.code, answer.remark) == (1, "PermissionError: who are you")


@each_loop
async def test_observers_hear_of_a_lost_connection_once(caplog: pytest.LogCaptureFixture) -> None:
    lost: list[Connection] = []
    seen: list[Connection] = []

    def handler(received: Request[Any]) -> Response:
        seen.append(received.connection)
        return Response()

    def broken(connection: Connection) -> None:
        raise ValueError("an observer fails")

    table = table_of(route=handler)
    table.on_connection_lost += [broken, lost.append]
    async with server(table) as target:
        async with await RawPeer.open(target.address) as one, await RawPeer.open(target.address) as two:
            await one.ask(request(ROUTE))
            await two.ask(request(ROUTE))
            assert seen[0].remote_address == one.address
            await one.close()
            await until(lambda: lost)
            assert lost == [seen[0]]
            assert not seen[0].is_open
            await until(lambda: target.connection_count == 1)
        await until(lambda: len(lost) == 2)
        assert lost == seen
    assert len(lost) == 2
    assert "an observer of lost connections failed" in caplog.text


@each_loop
async def test_a_reply_after_the_connection_has_gone_does_nothing() -> None:
    kept: list[Request[Any]] = []

    def keep(received: Request[Any]) -> Any:
        kept.append(received)
        return LATER

    async with server(table_of(route=keep)) as target:
        async with await RawPeer.open(target.address) as peer:
            await peer.send(request(ROUTE) + request(ROUTE))
            await until(lambda: len(kept) == 2)
            await peer.reset()
        await until(lambda: target.connection_count == 0)
        assert target.open_replies == 0
        for received in kept:
            received.reply(Response(body=b"too late"))
        assert target.open_replies == 0
        with pytest.raises(RuntimeError):
            kept[0].reply(Response())


@each_loop
async def test_a_body_may_be_made_of_many_buffers() -> None:
    large = bytes(range(256)) * 1024
    bodies = {
        "list": [b"a", bytearray(b"b"), memoryview(b"c"), b""],
        "tuple": (b"a", b"bc"),
        "view": memoryview(b"xabcx")[1:4],
        "large": [b"ab", memoryview(large), b"c", b"", memoryview(large)[7:], b"d"],
    }

    def handler(received: Request[GetRouteInfo]) -> Response:
        return Response(body=bodies[received.header.topic or ""])

    async with server(table_of(route=handler)) as target, await RawPeer.open(target.address) as peer:
        for name in ("list", "tuple", "view"):
            assert (await peer.ask(request(ROUTE, {"topic": name}))).body == b"abc"
        assert (await peer.ask(request(ROUTE, {"topic": "large"}))).body == b"ab" + large + b"c" + large[7:] + b"d"


@one_loop
async def test_a_response_that_cannot_be_sent_becomes_an_error(caplog: pytest.LogCaptureFixture) -> None:
    kept: list[Request[Any]] = []

    def too_large(received: Request[Any]) -> Response:
        return Response(body=memoryview(bytes(16 * 1024 * 1024)))

    def keep(received: Request[Any]) -> Any:
        kept.append(received)
        return LATER

    async with server(table_of(route=too_large, offset=keep)) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(request(ROUTE))
        assert answer.code == 1
        assert "over the limit of 16777216" in (answer.remark or "")
        await peer.send(request(OFFSET, {"consumerGroup": "g", "topic": "t", "queueId": "0"}))
        await until(lambda: kept)
        kept[0].reply(Response(body=memoryview(bytes(16 * 1024 * 1024))))
        assert (await peer.frame()).code == 1
    assert "could not be encoded" in caplog.text


@one_loop
async def test_ext_keys_besides_the_header_travel_both_ways() -> None:
    def handler(received: Request[GetRouteInfo]) -> Response:
        assert received.ext == {"topic": "T", "__ZONE_NAME": "z1"}
        return Response(ext={"hdr": "msgpack"})

    async with server(table_of(route=handler)) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(request(ROUTE, {"topic": "T", "__ZONE_NAME": "z1"}))
        assert (answer.code, answer.ext) == (0, {"hdr": "msgpack"})


def test_the_table_reads_its_header_types_from_the_protocol() -> None:
    table = HandlerTable()
    table.add(RequestCode.QUERY_CONSUMER_OFFSET, echo)
    table.add(RequestCode.GET_BROKER_CLUSTER_INFO, echo)
    table.add(RequestCode.PULL_MESSAGE, echo, permission=Permission("Sub", "Topic", "topic"))
    assert [entry.code for entry in table] == [11, 14, 106]
    assert len(table) == 3
    assert 14 in table
    assert 15 not in table
    assert table.get(15) is None
    entry = table.get(14)
    assert entry is not None
    assert entry.header is QueryConsumerOffset
    assert entry.permission is None


def test_the_table_refuses_what_cannot_work() -> None:
    table = HandlerTable()
    table.add(ROUTE, echo)
    with pytest.raises(ValueError, match=r"GET_ROUTEINFO_BY_TOPIC \(105\) has a handler already"):
        table.add(ROUTE, echo)
    with pytest.raises(ValueError, match="no request code 29999"):
        table.add(29999, echo)
    with pytest.raises(ValueError, match="no field 'topics'"):
        table.add(OFFSET, echo, permission=Permission("Get", "Topic", "topics"))


@one_loop
async def test_json_of_an_answer_is_compact_and_all_text() -> None:
    async with server(table_of(route=echo)) as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(request(ROUTE, {"topic": "T"}))
    assert answer.raw_header == json.dumps(answer.header, separators=(",", ":"), sort_keys=True).encode()
