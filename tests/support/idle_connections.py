"""Two processes for the test of many idle connections: a server, and a client that opens them and does nothing.

    python idle_connections.py serve LOOP       prints its port; answers the number of its connections
    python idle_connections.py open PORT COUNT  opens them, prints "open", closes them when its input ends

Every second connection asks once before it falls silent; the others never say a word.
"""

import asyncio
import resource
import socket
import sys


def raise_limit(needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def serve(loop_name: str) -> None:
    import uvloop

    from cometmq.protocol.codes import RequestCode
    from cometmq.remoting import HandlerTable, Request, Response, Server, ServerOptions

    async def run() -> None:
        def count(request: Request[None]) -> Response:
            return Response(body=str(server.connection_count).encode())

        table = HandlerTable()
        table.add(RequestCode.GET_BROKER_CLUSTER_INFO, count)
        server = Server(table, ServerOptions(host="127.0.0.1"))
        await server.start()
        print(server.address[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await server.close(grace=0.0)

    factory = uvloop.new_event_loop if loop_name == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run())


def open_connections(port: int, count: int) -> None:
    from raw_peer import request

    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    for connection in connections[::2]:
        connection.sendall(request(106))
    for connection in connections[::2]:
        assert connection.recv(4096)
    print("open", flush=True)
    sys.stdin.read()
    for connection in connections:
        connection.close()


if __name__ == "__main__":
    raise_limit(12_000)
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        open_connections(int(sys.argv[2]), int(sys.argv[3]))
