"""Reading on an executor: ranges of queues in, Arrow record batches out, in the order of the ranges.

Ranges are cut into spans; some spans are pulled at once, on the link's loop, while the task's own thread decodes what
has come and Spark takes the batches. How much is under way at once is bounded. Kafka's KafkaBatchPartitionReader.

RocketMQ gives 32 messages a pull unless told otherwise, so that each costs a round trip; then spans are small and more
of them are under way.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from math import ceil
from typing import TYPE_CHECKING, Final

from cometmq.spark.access import Access
from cometmq.spark.columns import Columns
from cometmq.spark.link import Link, link_to
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.read_options import ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from cometmq.spark.frame import Piece
    from cometmq.spark.pulls import SpanReader

#: Bytes of a span, by what messages have taken so far: what a broker and we handle without leaving the processor's
#: caches, and far enough below its limit for a pull that it need not look at each message.
SPAN_BYTES: Final = 2 * 1024 * 1024
#: Bytes that may be under way, or wait for the task, at once.
PREFETCH: Final = 4 * SPAN_BYTES
#: Bytes that a message is taken to need before any has come.
GUESS: Final = 1024
#: Spans at once, however small.
MOST_SPANS: Final = 16
#: Pulls that a span may take.
PULLS_A_SPAN: Final = 8
#: Offsets of the smallest span.
LEAST_SPAN: Final = 256
#: With so many bytes or rows a batch is large enough: joining more pieces would cost a copy and gain nothing.
ENOUGH_BYTES: Final = SPAN_BYTES * 3 // 4
ENOUGH_ROWS: Final = 4096


def read_ranges(
    ranges: Sequence[QueueRange], access: Access, columns: Columns, how: ReadOptions
) -> "Iterator[pa.RecordBatch]":
    """All messages of the ranges that the filter lets through."""
    # Heavy modules are for executors; Spark's driver imports this one too.
    from cometmq.client.consumer.subscriptions import subscription_data
    from cometmq.spark.decode import Decoder
    from cometmq.spark.pulls import LossWatch, SpanReader
    from cometmq.spark.read_options import TAG

    watch = LossWatch(how.fail_on_data_loss)
    tags = subscription_data("", how.sub_expression, 0).tags_set if how.expression_type == TAG else []
    decoder = Decoder(
        columns,
        namespace=access.namespace,
        tags=frozenset(tags),
        corrupt=how.corrupt,
        check_crc=how.check_crc,
        on_gap=None if how.is_filtered else watch.lost,
    )
    link = link_to(access)
    reader = SpanReader(link, how, watch)
    for pieces in batches_of(_Prefetch(ranges, link, reader, how), how):
        batch = decoder.decode(pieces)
        # Pulls that brought more than a batch may have are cut, without a copy, into parts of about one size.
        parts = max(1, ceil(batch.get_total_buffer_size() / how.batch_bytes))
        rows = max(1, min(how.batch_rows, ceil(batch.num_rows / parts)))
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


def batches_of(spans: "Iterable[list[Piece]]", how: ReadOptions) -> "Iterator[list[Piece]]":
    """Pieces, small ones together, for a batch each."""
    enough_bytes, enough_rows = min(ENOUGH_BYTES, how.batch_bytes), min(ENOUGH_ROWS, how.batch_rows)
    gathered: list[Piece] = []
    size = rows = 0
    for pieces in spans:
        for piece in pieces:
            gathered.append(piece)
            size += len(piece.data)
            rows += piece.source.size
            if size >= enough_bytes or rows >= enough_rows:
                yield gathered
                gathered, size, rows = [], 0, 0
    if gathered:
        yield gathered


class _Prefetch:
    """What spans gave, one after the other, while the next ones are being pulled.

    Mutable state: what is left of the ranges, the spans under way, and what messages and pulls have been like so far.
    """

    def __init__(self, ranges: Sequence[QueueRange], link: Link, reader: "SpanReader", how: ReadOptions) -> None:
        self._left = deque(each for each in ranges if each.size > 0)
        self._link = link
        self._reader = reader
        #: Offsets of the next span.
        self._span = min(how.pull_count, SPAN_BYTES // GUESS)
        self._under_way: deque[tuple[QueueRange, Future[list[Piece]]]] = deque()
        self._message_bytes: float = GUESS

    def __iter__(self) -> "Iterator[list[Piece]]":
        try:
            while self._left or self._under_way:
                self._start()
                span, future = self._under_way.popleft()
                pieces = future.result()
                self._learn(span, pieces)
                yield pieces
        finally:
            # Spark ends a task early for `limit`, and when it is killed.
            for _, future in self._under_way:
                future.cancel()

    def _start(self) -> None:
        """Put spans on their way while there is room."""
        while self._left and len(self._under_way) < MOST_SPANS:
            expected = sum(span.size for span, _ in self._under_way) * self._message_bytes
            if self._under_way and expected >= PREFETCH:
                return
            span = self._next_span()
            self._under_way.append((span, self._link.submit(self._reader.read(span))))

    def _next_span(self) -> QueueRange:
        first = self._left.popleft()
        stop = min(first.start + self._span, first.stop)
        if stop < first.stop:
            self._left.appendleft(first._replace(start=stop))
        return first._replace(stop=stop)

    def _learn(self, span: QueueRange, pieces: "list[Piece]") -> None:
        """The next spans have the size that the broker likes: a few pulls each, and no small rest behind them."""
        if not pieces:
            return
        self._message_bytes = max(sum(len(piece.data) for piece in pieces) / span.size, 1.0)
        a_pull = max(piece.source.size for piece in pieces)
        fitting = min(int(SPAN_BYTES / self._message_bytes), PULLS_A_SPAN * a_pull)
        self._span = max(fitting - fitting % a_pull if fitting > a_pull else fitting, LEAST_SPAN)
