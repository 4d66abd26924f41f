"""A process that writes to a store until it is killed, and tells what was acknowledged.

Run as a program it is a nursery: it has imported everything, reads orders from its input (folder, first message number,
options as key=value), and makes a child for each that writes until somebody kills it. Lines of its output: `pid N`,
`ready` when the store is open, one line with number, queue offset and physical offset for each acknowledged message,
and `dead` after all that the child has written. Messages are numbered without gaps.
"""

import asyncio
import os
import sys
import traceback

from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.properties import encode_properties

TOPIC, QUEUES = "Load", 4
#: Puts that wait for their acknowledgement at a time.
IN_FLIGHT = 24
#: Bytes of a body, chosen by the number of its message.
SIZES = (20, 200, 1000, 60, 3000)


def body_of(number: int) -> bytes:
    """Whoever knows the number knows the body."""
    size = SIZES[number % len(SIZES)]
    return (b"%010d " % number).ljust(size, b"%d" % (number % 10))


def queue_of(number: int) -> int:
    return number // 5 % QUEUES


def text_of(number: int) -> bytes:
    return encode_properties({"KEYS": f"k{number}", "UNIQ_KEY": f"U{number:031d}", "TAGS": f"T{number % 3}"})


class Writer:
    """Puts five messages at a time: singles or a batch, all of one queue, and waits when too many are in flight."""

    def __init__(self, store: Store, first: int, out: int) -> None:
        self._store = store
        self._next = first
        self._out = out
        self._in_flight = 0
        self._room = asyncio.Event()

    async def run(self) -> None:
        while True:
            while self._in_flight >= IN_FLIGHT:
                self._room.clear()
                await self._room.wait()
            numbers = range(self._next, self._next + 5)
            self._next += 5
            if numbers[0] % 15 == 0:
                items = [BatchItem(0, body_of(number), text_of(number)) for number in numbers]
                self._put(Message(TOPIC, queue_of(numbers[0]), encode_batch(items)), numbers[0], batch=True)
            else:
                for number in numbers:
                    self._put(Message(TOPIC, queue_of(number), body_of(number), text_of(number)), number, batch=False)
            # So that many deaths make no large store: what counts is where they strike.
            await asyncio.sleep(0.0005)

    def _put(self, message: Message, number: int, *, batch: bool) -> None:
        self._in_flight += 1

        def done(ticket: Ticket) -> None:
            self._in_flight -= 1
            self._room.set()
            if ticket.status is not PutStatus.PUT_OK:
                os.write(2, f"message {number}: {ticket.status} {ticket.remark}\n".encode())
                os._exit(3)
            offsets = ticket.offsets or [ticket.physical_offset]
            lines = [
                b"%d %d %d\n" % (number + index, ticket.queue_offset + index, offset)
                for index, offset in enumerate(offsets)
            ]
            os.write(self._out, b"".join(lines))

        if batch:
            self._store.put_batch(message, done)
        else:
            self._store.put(message, done)


async def write(folder: str, first: int, properties: dict[str, str]) -> None:
    store = Store(folder, StoreOptions.from_properties(properties), runner=AsyncioRunner())
    store.open()
    store.start()
    os.write(1, b"ready\n")
    await Writer(store, first, 1).run()


def nursery() -> None:
    for line in sys.stdin:
        folder, first, *pairs = line.split()
        child = os.fork()
        if child == 0:
            os.write(1, b"pid %d\n" % os.getpid())  # by itself, or it might be ready before its parent said so
            try:
                asyncio.run(write(folder, int(first), dict(pair.split("=", 1) for pair in pairs)))
            finally:
                traceback.print_exc()
                os._exit(3)
        _, status = os.waitpid(child, 0)
        os.write(1, b"dead %d\n" % os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    nursery()
