"""A peer that answers sends at once and stores nothing: beside it, a client shows what its own side can do.

Nameserver and broker in one process, by frames only: it looks for the code and the number of a request, and counts the
messages of a batch. Places in its receipts mean nothing. Started by bench/client.py.

    python bench/storeless.py PORT QUEUES
"""

import asyncio
import re
import struct
import sys
from functools import cache
from typing import cast

import uvloop

from cometmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData

SEND, BATCH, ROUTE = 310, 320, 105
_PREFIX = struct.Struct(">II")
_SIZE = struct.Struct(">i")
_CODE = re.compile(rb'"code":(\d+)')
_OPAQUE = re.compile(rb'"opaque":(\d+)')
_QUEUE = re.compile(rb'"e":"(\d+)"')


@cache
def places(count: int) -> bytes:
    return b",".join(b"7F00000100002A9F%016X" % number for number in range(count))


def messages(body: bytes) -> int:
    """How many items a batch has."""
    count = position = 0
    while position < len(body):
        position += _SIZE.unpack_from(body, position)[0]
        count += 1
    return count


class Peer(asyncio.Protocol):
    def __init__(self, route: bytes) -> None:
        self._route = route
        self._kept = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no instances of it

    def data_received(self, data: bytes) -> None:
        data = self._kept + data
        answers: list[bytes] = []
        position, end = 0, len(data)
        while end - position >= 8:
            length, word = _PREFIX.unpack_from(data, position)
            stop = position + 4 + length
            if stop > end:
                break
            start = position + 8
            answers.append(self._answer(data[start : start + word], data, start + word, stop))
            position = stop
        self._kept = data[position:]
        self._transport.write(b"".join(answers))

    def _answer(self, header: bytes, data: bytes, start: int, stop: int) -> bytes:
        found, opaque = _CODE.search(header), _OPAQUE.search(header, max(0, len(header) - 80))
        assert found is not None
        assert opaque is not None
        ext, body = b"", b""
        code = int(found[1])
        if code in (SEND, BATCH):
            queue = _QUEUE.search(header)
            assert queue is not None
            ids = places(messages(data[start:stop]) if code == BATCH else 1)
            ext = b'"extFields":{"msgId":"%b","queueId":"%b","queueOffset":"0"},' % (ids, queue[1])
        elif code == ROUTE:
            body = self._route
        answer = b'{"code":0,%b"flag":1,"language":"JAVA","opaque":%b,"version":479}' % (ext, opaque[1])
        return _PREFIX.pack(4 + len(answer) + len(body), len(answer)) + answer + body


async def serve(port: int, queues: int) -> None:
    route = TopicRouteData(
        queue_datas=[QueueData(broker_name="storeless", perm=6, read_queue_nums=queues, write_queue_nums=queues)],
        broker_datas=[
            BrokerData(broker_name="storeless", cluster="none", broker_addrs={0: f"127.0.0.1:{port}"}),
        ],
    ).encode()
    server = await asyncio.get_running_loop().create_server(lambda: Peer(route), "127.0.0.1", port)
    print("up", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1]), int(sys.argv[2])))
