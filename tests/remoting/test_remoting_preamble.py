"""The PROXY protocol: the values of a preamble, and a server behind a balancer."""

import asyncio
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import Connection, HandlerTable, Request, Response, Server, ServerOptions
from cometmq.remoting.listener import Greeting
from cometmq.remoting.preamble import V2_SIGNATURE, PreambleError, Proxied, is_complete, need, parse
from support.loops import FakeClock, each_loop, one_loop, until
from support.raw_peer import RawPeer, request

ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def v2(tlvs: bytes = b"", *, family: int = 0x11, command: int = 1, version: int = 2) -> bytes:
    if family == 0x11:
        addresses = bytes([192, 0, 2, 7, 198, 51, 100, 1]) + struct.pack(">HH", 51000, 9876)
    elif family == 0x21:
        addresses = bytes([0x20, 1, 0xD, 0xB8, *bytes(11), 7]) + bytes(15) + b"\1" + struct.pack(">HH", 51000, 9876)
    else:
        addresses = bytes(216) if family == 0x31 else b""
    rest = addresses + tlvs
    return V2_SIGNATURE + struct.pack(">BBH", version << 4 | command, family, len(rest)) + rest


V1 = b"PROXY TCP4 192.0.2.7 198.51.100.1 51000 9876\r\n"
V1_V6 = b"PROXY TCP6 2001:db8::7 ::1 51000 9876\r\n"
ATTRIBUTES = {
    "proxy_protocol_addr": "192.0.2.7",
    "proxy_protocol_port": "51000",
    "proxy_protocol_server_addr": "198.51.100.1",
    "proxy_protocol_server_port": "9876",
}


# Values.


@pytest.mark.parametrize("preamble", [V1, v2()])
def test_both_versions_mean_the_same(preamble: bytes) -> None:
    assert parse(preamble) == Proxied(("192.0.2.7", 51000), ATTRIBUTES)


@pytest.mark.parametrize("preamble", [V1_V6, v2(family=0x21)])
def test_ipv6(preamble: bytes) -> None:
    proxied = parse(preamble)
    assert proxied.source == ("2001:db8::7", 51000)
    assert proxied.attributes["proxy_protocol_server_addr"] == "::1"


@pytest.mark.parametrize(
    "preamble",
    [
        b"PROXY UNKNOWN\r\n",
        b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n",
        v2(command=0),
        v2(family=0x00),
        v2(family=0x31),  # a Unix socket
        v2(family=0x12, tlvs=bytes(12)),  # datagrams
    ],
)
def test_a_balancer_may_know_no_address(preamble: bytes) -> None:
    assert is_complete(preamble)
    assert parse(preamble) == Proxied()


def test_attributes_of_version_2() -> None:
    tls = b"\x01" + bytes(4) + tlv(0x21, b"TLSv1.3") + tlv(0x22, b"client.example")
    proxied = parse(
        v2(tlv(0x01, b"h2") + tlv(0xEA, b" vpce-08d2 ") + tlv(0xE1, b"\x01\xff") + tlv(0x04, b"") + tlv(0x20, tls))
    )
    assert proxied.attributes == ATTRIBUTES | {
        "proxy_protocol_tlv_0x01": "h2",
        "proxy_protocol_tlv_0xea": "vpce-08d2",
        "proxy_protocol_tlv_0x21": "TLSv1.3",
        "proxy_protocol_tlv_0x22": "client.example",
    }


def deep_attributes(levels: int) -> bytes:
    """TLS attributes inside TLS attributes."""
    data = b""
    for _ in range(levels):
        data = tlv(0x20, b"\x01" + bytes(4) + data)
    return data


def test_only_one_level_of_attributes_is_looked_into() -> None:
    assert parse(v2(deep_attributes(1500) + tlv(0x01, b"h2"))).attributes == ATTRIBUTES | {
        "proxy_protocol_tlv_0x01": "h2"
    }


@pytest.mark.parametrize(
    "preamble",
    [
        b"PROXY TCP4 192.0.2.7 198.51.100.1 51000\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 51000 9876 1\r\n",
        b"PROXY TCP4 2001:db8::7 ::1 51000 9876\r\n",
        b"PROXY TCP6 192.0.2.7 198.51.100.1 51000 9876\r\n",
        b"PROXY UDP4 192.0.2.7 198.51.100.1 51000 9876\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 x 9876\r\n",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 51000 65536\r\n",
        b"PROXY TCP4 192.0.2.\xff 198.51.100.1 51000 9876\r\n",
        b"PROXY \r\n",
        v2(version=1),
        v2(command=2),
        V2_SIGNATURE + struct.pack(">BBH", 0x21, 0x11, 4) + bytes(4),
        v2(b"\x01"),
        v2(struct.pack(">BH", 1, 5) + b"abc"),
        v2(tlv(0x20, b"\x01" + bytes(4) + b"\x21\x00")),
    ],
)
def test_malformed(preamble: bytes) -> None:
    assert is_complete(preamble)
    with pytest.raises(PreambleError):
        parse(preamble)


@pytest.mark.parametrize(
    ("start", "peeked"),
    [
        (b"P", b"OST / HTTP/1.1\r\n"),
        (b"P", b"ROXYTCP4"),
        (b"\r", b"\n\r\n\x01"),
        (b"\r", b"x"),
        (b"P", b"ROXY " + b"x" * 200),
        (b"P", b"ROXY " + b"x" * 100 + b"\r\n"),
        (V2_SIGNATURE, struct.pack(">BBH", 0x21, 0x11, 16 * 1024 + 1)),
    ],
)
def test_what_cannot_become_a_preamble_is_refused_early(start: bytes, peeked: bytes) -> None:
    with pytest.raises(PreambleError):
        need(start, peeked)


def consume(data: bytes, sizes: list[int]) -> tuple[bytes, bytes]:
    """Takes a preamble out of a stream that comes in pieces of the given sizes; the preamble and the rest."""
    taken, position, arrived = data[:1], 1, 1
    for size in [*sizes, len(data)]:
        arrived = min(arrived + size, len(data))
        while position < arrived and not is_complete(taken):
            count = need(taken, data[position:arrived])
            assert 0 < count <= arrived - position
            taken += data[position : position + count]
            position += count
    return taken, data[position:]


@given(
    st.sampled_from([V1, V1_V6, v2(), v2(tlv(1, b"\r\nh2")), b"PROXY UNKNOWN\r\n"]),
    st.binary(max_size=50),
    st.lists(st.integers(1, 30), max_size=20),
)
def test_not_a_byte_behind_the_preamble_is_taken(preamble: bytes, rest: bytes, sizes: list[int]) -> None:
    assert consume(preamble + rest, sizes) == (preamble, rest)


@given(st.sampled_from([b"PROXY ", b"PROXY TCP4 ", V2_SIGNATURE, V2_SIGNATURE + b"\x21\x11"]), st.binary(max_size=300))
def test_whatever_comes_only_preamble_errors_leave(start: bytes, rest: bytes) -> None:
    try:
        preamble, _ = consume(start + rest, [])
        if is_complete(preamble):
            parse(preamble)
    except PreambleError:
        pass


# A server behind a balancer.


def server(*, clock: FakeClock | None = None, **options: Any) -> Server:
    def where(received: Request[Any]) -> Response:
        return Response(remark=str(received.connection))

    table = HandlerTable()
    table.add(ROUTE, where)
    return Server(table, ServerOptions(host="127.0.0.1", **options), clock=clock)


def only(target: Server) -> Connection:
    (connection,) = target.connections
    return connection


@each_loop
@pytest.mark.parametrize("preamble", [V1, v2(tlv(0xEA, b"vpce"))], ids=["v1", "v2"])
async def test_the_client_is_who_the_balancer_says(preamble: bytes) -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(preamble + request(ROUTE, opaque=1) + request(ROUTE, opaque=2))
        assert (answer.opaque, answer.remark) == (1, "192.0.2.7:51000")
        assert (await peer.frame()).opaque == 2
        attributes = only(target).attributes
        assert ATTRIBUTES.items() <= attributes.items()
        assert attributes.get("proxy_protocol_tlv_0xea") == ("vpce" if preamble != V1 else None)


@each_loop
async def test_a_health_check_keeps_its_own_address() -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        answer = await peer.ask(v2(command=0) + request(ROUTE))
        assert answer.remark == f"127.0.0.1:{peer.address[1]}"


@each_loop
@pytest.mark.parametrize("preamble", [V1, v2()], ids=["v1", "v2"])
async def test_a_preamble_in_drops_wakes_the_server_once_for_each(
    preamble: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    look = Greeting.look

    def counted(self: Greeting) -> None:
        nonlocal looks
        looks += 1
        look(self)

    monkeypatch.setattr(Greeting, "look", counted)
    async with server() as target, await RawPeer.open(target.address) as peer:
        for position in range(len(preamble)):
            before = looks
            await peer.send(preamble[position : position + 1])
            await until(lambda n=before: looks > n or target.connections)
        drops = looks
        for _ in range(20):  # nothing more comes, so nobody may wake up
            await asyncio.sleep(0.001)
        assert looks == drops <= len(preamble) + 1
        assert (await peer.ask(request(ROUTE))).remark == "192.0.2.7:51000"


@each_loop
@pytest.mark.parametrize(
    "data", [b"POST / HTTP/1.1\r\n", b"PROXY TCP9 a b c d\r\n", b"\r\n\r\nGET", V1 + b"GET", V1 + V1, v2() + b"\xff"]
)
async def test_what_is_no_preamble_closes_the_connection(data: bytes) -> None:
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.send(data)
        assert await peer.closed() == b""
        assert target.connection_count == 0


@each_loop
async def test_a_preamble_must_come_in_time() -> None:
    clock = FakeClock()
    async with (
        server(clock=clock, handshake_timeout=10.0) as target,
        await RawPeer.open(target.address) as silent,
        await RawPeer.open(target.address) as slow,
    ):
        await slow.send(b"PROXY TCP4")
        await until(lambda: target.connection_count == 2)
        assert target._listener is not None
        await until(lambda: any(g._preamble == b"PROXY TCP4" for g in target._listener.greetings))  # type: ignore[union-attr]
        clock.advance(10.0)
        target.sweep()
        assert await slow.closed() == b""
        assert target.connection_count == 1
        assert (await silent.ask(request(ROUTE))).code == 0


@one_loop
async def test_a_peer_that_leaves_in_its_preamble_costs_nothing() -> None:
    async with server() as target:
        for data in (b"", b"PROXY", V2_SIGNATURE):
            async with await RawPeer.open(target.address) as peer:
                await peer.send(data)
            await until(lambda: target.connection_count == 0)


@one_loop
async def test_preambles_can_be_refused() -> None:
    async with server(proxy_protocol=False) as target, await RawPeer.open(target.address) as peer:
        await peer.send(V1 + request(ROUTE))
        assert await peer.closed() == b""


@each_loop
async def test_attributes_inside_attributes_end_after_one_level() -> None:
    nested = b""
    for _ in range(1990):
        nested = tlv(0x20, bytes(5) + nested)
    assert parse(v2(nested)).attributes == ATTRIBUTES
    async with server() as target, await RawPeer.open(target.address) as peer:
        await peer.send(v2(nested)[:100])
        await peer.send(v2(nested)[100:] + request(ROUTE))
        assert (await peer.frame()).code == 0
