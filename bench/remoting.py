"""What the asyncio shell costs: framed requests a second on one core, and processor time a request.

The server runs in a process of its own with an echo-like handler: a small typed request, an answer of 100 bytes. The
load comes from plain sockets that write ready-made frames, so that the server is the slower side; what counts is its
processor time. Beside it, the same through `RemotingClient` (both sides counted).

    python bench/remoting.py [--seconds 2] [--loop uvloop|asyncio|both]

Target: at least 100,000 requests/s on one core, pipelined, with uvloop.
"""

import argparse
import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

from cometmq.protocol.codec import encode_request
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.command import SerializeType
from cometmq.protocol.requests.offsets import QueryConsumerOffset
from cometmq.remoting import HandlerTable, RemotingClient, Request, Response, Server, ServerOptions, format_address

CODE = RequestCode.QUERY_CONSUMER_OFFSET
HEADER = QueryConsumerOffset(consumer_group="billing", topic="orders", queue_id=3)
BODY = bytes(100)


def loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop]:
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return asyncio.new_event_loop


def serve(name: str) -> None:
    def echo(request: Request[QueryConsumerOffset]) -> Response:
        return Response(body=BODY if request.header.queue_id == 3 else b"")

    async def run() -> None:
        table = HandlerTable()
        table.add(CODE, echo)
        async with Server(table, ServerOptions(host="127.0.0.1")) as server:
            print(server.address[1], flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    with asyncio.Runner(loop_factory=loop_factory(name)) as runner:
        runner.run(run())


def frames(kind: SerializeType, count: int) -> bytes:
    # Opaques of one width: every answer then has the same length, and the load need not look into it.
    return b"".join(encode_request(kind, CODE, 100_000 + i, HEADER) for i in range(count))


def load(port: int, kind: SerializeType, in_flight: int, seconds: float) -> int:
    """Requests answered. With many in flight two connections take turns, so that the server never waits for us."""
    batch = frames(kind, in_flight)
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(2 if in_flight > 1 else 1)]
    connections[0].sendall(frames(kind, 1))
    answer = len(connections[0].recv(65536))
    buffer = bytearray(1 << 20)
    done = 0
    stop = time.perf_counter() + seconds
    for connection in connections:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(batch)
    while time.perf_counter() < stop:
        for connection in connections:
            left = answer * in_flight
            while left:
                left -= connection.recv_into(buffer, left)
            done += in_flight
            connection.sendall(batch)
    for connection in connections:
        connection.close()
    return done


def measure(name: str, kind: SerializeType, in_flight: int, seconds: float) -> None:
    with subprocess.Popen(
        [sys.executable, __file__, "--serve", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        server = psutil.Process(process.pid)
        load(port, kind, in_flight, 0.3)
        cpu = sum(server.cpu_times()[:2])
        start = time.perf_counter()
        done = load(port, kind, in_flight, seconds)
        took = time.perf_counter() - start
        cpu = sum(server.cpu_times()[:2]) - cpu
        process.stdin.close()
    print(
        f"{name:8} {kind.name:9} {in_flight:4} in flight: {done / took:10,.0f} requests/s"
        f" {cpu / done * 1e6:6.2f} us CPU/request  {done / cpu:10,.0f} requests/s/core"
    )


def measure_client(name: str, in_flight: int, seconds: float) -> None:
    async def run(port: int) -> int:
        done = 0
        address = format_address("127.0.0.1", port)
        async with RemotingClient() as client:
            stop = time.perf_counter() + seconds

            async def ask() -> None:
                nonlocal done
                while time.perf_counter() < stop:
                    await client.request(address, CODE, HEADER)
                    done += 1

            await asyncio.gather(*(ask() for _ in range(in_flight)))
        return done

    with subprocess.Popen(
        [sys.executable, __file__, "--serve", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        cpu = time.process_time()
        with asyncio.Runner(loop_factory=loop_factory(name)) as runner:
            done = runner.run(run(port))
        cpu = time.process_time() - cpu
        process.stdin.close()
    print(
        f"{name:8} client    {in_flight:4} in flight: {done / seconds:10,.0f} requests/s"
        f" {cpu / done * 1e6:6.2f} us CPU/request"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--loop", choices=["uvloop", "asyncio", "both"], default="both")
    parser.add_argument("--serve", metavar="LOOP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    for name in ("uvloop", "asyncio") if options.loop == "both" else (options.loop,):
        for kind in SerializeType:
            for in_flight in (1, 64):
                measure(name, kind, in_flight, options.seconds)
        for in_flight in (1, 64):
            measure_client(name, in_flight, options.seconds)


if __name__ == "__main__":
    main()
