"""TLS on the port of the plain protocol: modes, certificates of both sides, and files that change."""

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from cometmq.protocol.codes import RequestCode
from cometmq.remoting import (
    LATER,
    ClientAuth,
    ClientOptions,
    ClientTlsOptions,
    Connection,
    HandlerTable,
    RemotingClient,
    Request,
    Response,
    Server,
    ServerOptions,
    TlsMode,
    TlsOptions,
    format_address,
)
from cometmq.remoting.errors import ConnectFailed, TlsSetupFailed, TransportError
from cometmq.remoting.tls import client_context, server_context
from support.certificates import Authority, Pair
from support.loops import FakeClock, each_loop, one_loop, until
from support.raw_peer import RawPeer, request

ROUTE = int(RequestCode.GET_ROUTEINFO_BY_TOPIC)
MIB = 1024 * 1024
PROXY_LINE = b"PROXY TCP4 192.0.2.7 198.51.100.1 51000 9876\r\n"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def options(authority: Authority) -> TlsOptions:
    pair = authority.pair("server")
    return TlsOptions(cert=pair.cert, key=pair.key)


def trusting(authority: Authority, **more: Any) -> ssl.SSLContext:
    return client_context(ClientTlsOptions(ca=authority.ca, **more)).get()


def with_mode(options: TlsOptions, mode: TlsMode) -> TlsOptions:
    return TlsOptions(mode=mode, cert=options.cert, key=options.key)


def server(tls: TlsOptions, handler: Any = None, *, clock: FakeClock | None = None, **more: Any) -> Server:
    def echo(received: Request[Any]) -> Response:
        return Response(body=received.body, remark="tls" if received.connection.is_tls else "plain")

    table = HandlerTable()
    table.add(ROUTE, handler or echo)
    return Server(table, ServerOptions(host="127.0.0.1", tls=tls, **more), clock=clock)


def only(target: Server) -> Connection:
    (connection,) = target.connections
    return connection


# Modes.


@each_loop
@pytest.mark.parametrize("mode", list(TlsMode))
async def test_modes(authority: Authority, options: TlsOptions, mode: TlsMode) -> None:
    async with server(with_mode(options, mode)) as target:
        async with await RawPeer.open(target.address) as plain:
            await plain.send(request(ROUTE))
            if mode is TlsMode.ENFORCING:
                assert await plain.closed() == b""
            else:
                assert (await plain.frame()).remark == "plain"
        if mode is TlsMode.DISABLED:
            with pytest.raises((OSError, ssl.SSLError)):
                await RawPeer.open(target.address, trusting(authority))
        else:
            async with await RawPeer.open(target.address, trusting(authority)) as secure:
                assert (await secure.ask(request(ROUTE))).remark == "tls"
        await until(lambda: target.connection_count == 0)


@each_loop
async def test_without_a_certificate_permissive_serves_plain_only(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(TlsOptions()) as target:
        for _ in range(2):
            with pytest.raises((OSError, ssl.SSLError)):
                await RawPeer.open(target.address, trusting(authority))
        async with await RawPeer.open(target.address) as plain:
            assert (await plain.ask(request(ROUTE))).remark == "plain"
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "no certificate is configured" in warnings[0].message


@each_loop
async def test_tls_behind_a_balancer(authority: Authority, options: TlsOptions) -> None:
    async with server(with_mode(options, TlsMode.ENFORCING)) as target:
        loop = asyncio.get_running_loop()
        sock = socket.create_connection(target.address)
        sock.setblocking(False)
        await loop.sock_sendall(sock, PROXY_LINE)
        reader, writer = await asyncio.open_connection(sock=sock, ssl=trusting(authority), server_hostname="127.0.0.1")
        async with RawPeer(reader, writer) as peer:
            assert (await peer.ask(request(ROUTE))).remark == "tls"
            assert only(target).remote_address == ("192.0.2.7", 51000)
        async with await RawPeer.open(target.address) as plain:
            await plain.send(PROXY_LINE + request(ROUTE))
            assert await plain.closed() == b""


# Bytes over TLS.


@each_loop
async def test_large_bodies_both_ways(authority: Authority, options: TlsOptions) -> None:
    body = bytes(range(256)) * (4 * 4096)
    async with server(options) as target:
        tls = ClientTlsOptions(ca=authority.ca)
        async with RemotingClient(ClientOptions(tls=tls)) as client:
            address = format_address(*target.address)
            answers = await asyncio.gather(*(client.request(address, ROUTE, body=body, timeout=30) for _ in range(3)))
            assert all(answer.body == body for answer in answers)
            assert answers[0].remark == "tls"
            assert client.connections[address].is_tls


@each_loop
async def test_a_tls_peer_that_does_not_read_is_not_read_from(authority: Authority, options: TlsOptions) -> None:
    served = 0

    def handler(received: Request[Any]) -> Response:
        nonlocal served
        served += 1
        return Response(body=bytes(200 * 1024))

    async with server(options, handler) as target, await RawPeer.open(target.address, trusting(authority)) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]
        peer.write(b"".join(request(ROUTE, opaque=i) for i in range(100)))
        await until(lambda: target.connections and only(target).output.is_paused)
        assert served < 50
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]
        for i in range(100):
            answer = await peer.frame()
            assert (answer.opaque, len(answer.body)) == (i, 200 * 1024)


@each_loop
async def test_closing_tls_connections_inside_a_handler_harms_nobody(authority: Authority, options: TlsOptions) -> None:
    """Closing a TLS transport may read from it at once, while the shared buffer is in use by somebody else."""

    def close_all(received: Request[Any]) -> Response:
        if received.body == b"close":
            for connection in target.connections:
                if connection is not received.connection:
                    connection._transport.close()
        return Response(body=received.body)

    async with server(options, close_all) as target, await RawPeer.open(target.address) as peer:
        victims = [await RawPeer.open(target.address, trusting(authority)) for _ in range(3)]
        for victim in victims:
            await victim.ask(request(ROUTE))
        await until(lambda: len(target.connections) == 3)
        for victim in victims:  # each has something to be read when it is closed
            victim.write(request(ROUTE, body=b"\xee" * 1000, opaque=1))
        await peer.send(
            request(ROUTE, body=b"a" * 500, opaque=1)
            + request(ROUTE, body=b"close", opaque=2)
            + b"".join(request(ROUTE, body=b"%d" % i * 200, opaque=i) for i in range(3, 60))
        )
        assert (await peer.frame()).body == b"a" * 500
        assert (await peer.frame()).body == b"close"
        for i in range(3, 60):
            answer = await peer.frame()
            assert (answer.opaque, answer.body) == (i, b"%d" % i * 200)
        for victim in victims:
            await victim.close()


@each_loop
async def test_a_half_closed_tls_peer_is_let_go(authority: Authority, options: TlsOptions) -> None:
    async with server(options, lambda received: LATER) as target:
        async with await RawPeer.open(target.address, trusting(authority)) as peer:
            await peer.send(request(ROUTE))
            await until(lambda: target.open_replies == 1)
        await until(lambda: target.connection_count == 0)
        assert target.open_replies == 0


# Handshakes that go wrong.


@each_loop
async def test_a_handshake_must_come_to_its_end_in_time(options: TlsOptions) -> None:
    async with server(options, handshake_timeout=0.1) as target, await RawPeer.open(target.address) as peer:
        await peer.send(b"\x16\x03\x01\x02\x00")
        assert await peer.closed() == b""
        await until(lambda: target.connection_count == 0)


@each_loop
async def test_garbage_after_the_first_byte_is_closed(options: TlsOptions) -> None:
    async with server(options) as target, await RawPeer.open(target.address) as peer:
        await peer.send(b"\x16" + b"garbage" * 100)
        await peer.closed()
        await until(lambda: target.connection_count == 0)


@each_loop
async def test_shutdown_ends_handshakes(options: TlsOptions) -> None:
    target = server(options)
    await target.start()
    async with await RawPeer.open(target.address) as peer:
        await peer.send(b"\x16\x03\x01\x02\x00")
        await until(lambda: target._joining)
        await target.close()
        assert target.connection_count == 0
        assert await peer.closed() == b""


@each_loop
async def test_a_connection_that_is_just_joining_is_closed_by_shutdown(options: TlsOptions) -> None:
    target = server(options)
    await target.start()
    with socket.create_connection(target.address) as sock:
        sock.sendall(b"\x00")
        await until(lambda: target._joining or target.connections)
        await target.close(grace=0.0)
        assert target.connection_count == 0


# Certificates.


@each_loop
async def test_a_server_of_another_authority_is_not_trusted(options: TlsOptions, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other")
    async with server(options) as target:
        address = format_address(*target.address)
        async with RemotingClient(ClientOptions(tls=ClientTlsOptions(ca=other.ca))) as client:
            with pytest.raises(ConnectFailed, match=f"{address} could not be connected: .*certificate verify failed"):
                await client.request(address, ROUTE)
        async with RemotingClient(ClientOptions(tls=ClientTlsOptions(verify=False))) as client:
            assert (await client.request(address, ROUTE)).remark == "tls"
        await until(lambda: target.connection_count == 0)


@one_loop
async def test_a_name_may_be_asked_for(authority: Authority, options: TlsOptions) -> None:
    async with server(options) as target:
        address = format_address(*target.address)
        for hostname, good in (("localhost", True), ("broker-b", False), (None, True)):
            tls = ClientTlsOptions(ca=authority.ca, hostname=hostname)
            async with RemotingClient(ClientOptions(tls=tls)) as client:
                if good:
                    assert (await client.request(address, ROUTE)).remark == "tls"
                else:
                    with pytest.raises(ConnectFailed, match="certificate verify failed"):
                        await client.request(address, ROUTE)


@each_loop
@pytest.mark.parametrize("auth", list(ClientAuth))
async def test_certificates_of_clients(
    authority: Authority, options: TlsOptions, tmp_path: Path, auth: ClientAuth
) -> None:
    mine = authority.pair("client", "client")
    stranger = Authority(tmp_path, "stranger").pair("stranger", "stranger")
    tls = TlsOptions(cert=options.cert, key=options.key, ca=authority.ca, client_auth=auth)
    async with server(tls) as target:
        address = format_address(*target.address)

        async def is_let_in(**own: Any) -> bool:
            # With TLS 1.3 the client's handshake is over before the server has judged its certificate.
            async with RemotingClient(ClientOptions(tls=ClientTlsOptions(ca=authority.ca, **own))) as client:
                try:
                    return (await client.request(address, ROUTE)).remark == "tls"
                except TransportError:
                    return False

        assert await is_let_in(cert=mine.cert, key=mine.key)
        assert await is_let_in() == (auth is not ClientAuth.REQUIRE)
        assert await is_let_in(cert=stranger.cert, key=stranger.key) == (auth is ClientAuth.NONE)


async def served_serial(target: Server, authority: Authority) -> str:
    async with await RawPeer.open(target.address, trusting(authority)) as peer:
        assert (await peer.ask(request(ROUTE))).remark == "tls"
        return str(peer.writer.get_extra_info("peercert")["serialNumber"])


def break_key(pair: Pair) -> None:
    Path(pair.key).write_bytes(b"garbage")


def remove_cert(pair: Pair) -> None:
    Path(pair.cert).unlink()


@each_loop
async def test_certificates_are_read_again_when_they_change(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)
    pair = authority.pair("changing")
    clock = FakeClock()
    async with server(TlsOptions(cert=pair.cert, key=pair.key), clock=clock) as target:
        first = await served_serial(target, authority)
        async with await RawPeer.open(target.address, trusting(authority)) as old:
            await old.ask(request(ROUTE))
            authority.pair("changing")
            assert await served_serial(target, authority) == first  # looked at less than a second ago
            clock.advance(1.0)
            second = await served_serial(target, authority)
            assert second != first

            # Only half of the renewal is there: the old pair goes on working, and one line says why.
            break_key(pair)
            for _ in range(3):
                clock.advance(1.0)
                assert await served_serial(target, authority) == second
            assert caplog.text.count("cannot be used, the old ones stay in use") == 1
            remove_cert(pair)
            clock.advance(1.0)
            assert await served_serial(target, authority) == second

            authority.pair("changing")
            clock.advance(1.0)
            assert await served_serial(target, authority) not in (first, second)
            assert (await old.ask(request(ROUTE))).remark == "tls"  # open connections are not touched


def test_keys_may_have_a_password(authority: Authority) -> None:
    pair = authority.pair("locked", password="secret")
    assert server_context(TlsOptions(cert=pair.cert, key=pair.key, key_password="secret")) is not None
    with pytest.raises(TlsSetupFailed, match=r"locked\.key is encrypted and no password was given"):
        server_context(TlsOptions(cert=pair.cert, key=pair.key))
    with pytest.raises(TlsSetupFailed, match=r"locked\.key"):
        server_context(TlsOptions(cert=pair.cert, key=pair.key, key_password="wrong"))


@one_loop
async def test_a_server_that_cannot_use_its_certificate_does_not_start(options: TlsOptions, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    for bad, text in (
        (TlsOptions(mode=TlsMode.ENFORCING), "set tls.server.certPath and tls.server.keyPath"),
        (TlsOptions(cert=options.cert), "set tls.server.certPath and tls.server.keyPath"),
        (TlsOptions(cert=missing, key=options.key), "missing.pem"),
        (TlsOptions(cert=options.cert, key=options.key, client_auth=ClientAuth.REQUIRE), "tls.server.trustCertPath"),
        (TlsOptions(cert=options.cert, key=options.key, ca=missing), "trust file"),
    ):
        with pytest.raises(TlsSetupFailed, match=text):
            await server(bad).start()
    assert server_context(TlsOptions(mode=TlsMode.DISABLED, cert=missing, key=missing)) is None


# RocketMQ's property names.


def test_server_properties() -> None:
    assert TlsOptions.from_properties({}) == TlsOptions()
    assert TlsOptions.from_properties(
        {
            "tls.server.mode": "Enforcing",
            "tls.server.certPath": "c",
            "tls.server.keyPath": "k",
            "tls.server.keyPassword": "p",
            "tls.server.trustCertPath": "t",
            "tls.server.need.client.auth": "require",
            "listenPort": "10911",
        }
    ) == TlsOptions(mode=TlsMode.ENFORCING, cert="c", key="k", key_password="p", ca="t", client_auth=ClientAuth.REQUIRE)
    with pytest.raises(TlsSetupFailed, match=r"tls\.server\.mode=on is none of disabled, permissive, enforcing"):
        TlsOptions.from_properties({"tls.server.mode": "on"})


def test_client_properties() -> None:
    assert ClientTlsOptions.from_properties({}) is None
    assert ClientTlsOptions.from_properties({"tls.enable": "false", "tls.client.certPath": "c"}) is None
    assert ClientTlsOptions.from_properties({"tls.enable": "true"}) == ClientTlsOptions()
    assert ClientTlsOptions.from_properties(
        {
            "tls.enable": "TRUE",
            "tls.client.certPath": "c",
            "tls.client.keyPath": "k",
            "tls.client.keyPassword": "p",
            "tls.client.trustCertPath": "t",
        }
    ) == ClientTlsOptions(ca="t", cert="c", key="k", key_password="p")
    for unsafe in ({"tls.client.authServer": "false"}, {"tls.test.mode.enable": "true"}):
        options = ClientTlsOptions.from_properties({"tls.enable": "true"} | unsafe)
        assert options == ClientTlsOptions(verify=False)
    with pytest.raises(TlsSetupFailed, match=r"tls\.enable=yes is neither true nor false"):
        ClientTlsOptions.from_properties({"tls.enable": "yes"})
