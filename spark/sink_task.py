"""One task of the sink, in a worker: encodes on its own thread while the link's loop sends.

Mutable state: the producers of this process, one for each link, which live as long as it does; and a task's counts.
"""

from collections.abc import Iterator, Sequence
from typing import Self
from weakref import WeakKeyDictionary

import pyarrow as pa

from cometmq.client.producer import Producer
from cometmq.client.queues import MessageQueue
from cometmq.spark import stamps
from cometmq.spark.link import Link, link_to
from cometmq.spark.sink_lanes import Lanes
from cometmq.spark.sink_options import SinkOptions
from cometmq.spark.sink_requests import Requests, pieces
from cometmq.spark.sink_rows import RowEncoder
from cometmq.spark.sink_sender import Request, Sender, Window

#: A worker runs one task at a time, so that a producer has one user.
_producers: "WeakKeyDictionary[Link, tuple[float, Producer]]" = WeakKeyDictionary()


async def _producer(link: Link, send_timeout: float) -> Producer:
    """The producer of a link; another one when the time for sends is another."""
    known = _producers.get(link)
    if known is not None:
        if known[0] == send_timeout:
            return known[1]
        await known[1].close()
    producer = link.client.producer(link.access.group, send_timeout=send_timeout, compression=None)
    await producer.start()
    _producers[link] = (send_timeout, producer)
    return producer


class SinkTask:
    """Sends the rows of one partition; use it with `with`."""

    def __init__(self, options: SinkOptions, query_id: str, batch_id: int, partition: int) -> None:
        self._link = link_to(options.access)
        self._options = options
        self._partition = partition
        producer = self._link.run(_producer(self._link, options.send_timeout), timeout=None)
        window = Window(options.max_in_flight, options.max_in_flight_bytes)
        known = options.access.wire_topic(options.topic) if options.topic else ""
        self._sender = Sender(self._link.client, producer, window, options.retries, known)
        encoder = RowEncoder(
            self._link.client.new_unique_key.at,
            stamp_prefix=stamps.prefix(query_id, batch_id, partition),
            namespace=options.access.namespace,
            drops_reserved=options.drops_reserved,
        )
        lanes = Lanes(options.topic, self._queues)
        self._requests = Requests(encoder, lanes, options.access, options.send_bytes)
        self.rows = 0
        self.requests = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._link.run(self._sender.close(), timeout=None)

    def send(self, batch: pa.RecordBatch) -> None:
        """Take in rows; waits while too much is on the way."""
        for rows in pieces(batch, self.rows, self._partition, self._options.topic):
            # Made here, one at a time: the loop sends meanwhile.
            self._link.run(self._sender.put(list(self._counted(self._requests.of(rows)))), timeout=None)
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Wait for the acknowledgements of all rows."""
        self._link.run(self._sender.finish(), timeout=None)

    def _counted(self, requests: Iterator[Request]) -> Iterator[Request]:
        for request in requests:
            self.requests += 1
            yield request

    def _queues(self, topic: str) -> Sequence[MessageQueue]:
        return self._link.run(self._sender.queues(self._options.access.wire_topic(topic)), timeout=None)
