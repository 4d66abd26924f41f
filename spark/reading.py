"""Reading on an executor: ranges of queues in, Arrow record batches out, in the order of the ranges.

Ranges are cut into spans; some spans are pulled at once, on the link's loop, while the task's own thread decodes what
has come and Spark takes the batches. How much is under way at once is bounded by what messages have taken so far; where
they turn out larger, a span ends early, and what is left of it is cut anew. Kafka's KafkaBatchPartitionReader.

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
    from cometmq.spark.pulls import LossWatch, QueueGone, SpanReader

#: Bytes of a span, by what messages have taken so far: what a broker and we handle without leaving the processor's
#: caches, and far enough below its limit for a pull that it need not look at each message.
SPAN_BYTES: Final = 2 * 1024 * 1024
#: Bytes that are expected to be under way, or to wait for the task, at once.
PREFETCH: Final = 4 * SPAN_BYTES
#: How many times its expected bytes a span may bring: sizes vary, and cutting anew costs what is under way behind it.
SLACK: Final = 2
#: Bytes that a message is taken to need before any has come.
GUESS: Final = 1024
#: What a span weighs beside the one after it when it is reckoned what messages take: where large ones are few, a span
#: may have none.
MEMORY: Final = 0.5
#: Spans at once, however small.
MOST_SPANS: Final = 16
#: Bytes that a span may bring, however few are expected. With SLACK: all of them hold 28 MiB and a message each, at the
#: worst, which is when messages have just become large.
LEAST_ROOM: Final = PREFETCH // MOST_SPANS
#: Pulls that a span may take.
PULLS_A_SPAN: Final = 8
#: Offsets of a span where pulls bring less, unless messages are large.
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
        batch_bytes=how.batch_bytes,
        on_gap=None if how.is_filtered else watch.lost,
    )
    link = link_to(access)
    reader = SpanReader(link, how, watch)
    for pieces in batches_of(_Prefetch(ranges, link, reader, watch, how), how):
        for batch in decoder.batches(pieces):
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

    def __init__(
        self, ranges: Sequence[QueueRange], link: Link, reader: "SpanReader", watch: "LossWatch", how: ReadOptions
    ) -> None:
        self._left = deque(each for each in ranges if each.size > 0)
        self._link = link
        self._reader = reader
        self._watch = watch
        #: Offsets of the next span.
        self._span = min(how.pull_count, SPAN_BYTES // GUESS)
        self._under_way: deque[tuple[QueueRange, Future[list[Piece]]]] = deque()
        self._message_bytes: float = GUESS
        #: Bytes, and the offsets that they are of.
        self._seen = (0.0, 0.0)

    def __iter__(self) -> "Iterator[list[Piece]]":
        from cometmq.spark.pulls import QueueGone

        try:
            while self._left or self._under_way:
                self._start()
                span, future = self._under_way.popleft()
                try:
                    pieces = future.result()
                except QueueGone as gone:
                    self._pass_over(gone)
                    continue
                rest = span._replace(start=pieces[-1].source.stop)
                pieces = [each for each in pieces if each.data]
                self._learn(span.size - rest.size, pieces)
                if rest.size:
                    self._go_on_with(rest)
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
            self._under_way.append(self._sent(self._next_span()))

    def _sent(self, span: QueueRange) -> "tuple[QueueRange, Future[list[Piece]]]":
        room = max(int(SLACK * span.size * self._message_bytes), LEAST_ROOM)
        return span, self._link.submit(self._reader.read(span, room))

    def _next_span(self) -> QueueRange:
        first = self._left.popleft()
        stop = min(first.start + self._span, first.stop)
        if stop < first.stop:
            self._left.appendleft(first._replace(start=stop))
        return first._replace(stop=stop)

    def _go_on_with(self, rest: QueueRange) -> None:
        """Read what a span has left, before those behind it."""
        needed = (rest.size + sum(span.size for span, _ in self._under_way)) * self._message_bytes
        if rest.size * self._message_bytes <= SPAN_BYTES and needed <= SLACK * PREFETCH:
            self._under_way.appendleft(self._sent(rest))
            return
        # Messages are far larger than when those were cut: each would have a rest, and keep until then what it has.
        # They are asked for again.
        while self._under_way:
            span, future = self._under_way.pop()
            future.cancel()
            self._put_back(span)
        self._put_back(rest)
        self._start()

    def _pass_over(self, gone: "QueueGone") -> None:
        """What is left of a queue that is no more."""
        queue, spans = gone.rest.queue, list(self._under_way)
        known = [gone.rest, *self._left, *(span for span, _ in spans)]
        whole = gone.rest._replace(stop=max(each.stop for each in known if each.queue == queue))
        self._watch.gone(type(gone)(whole, gone.reason), gone.__cause__)
        for span, future in spans:
            if span.queue == queue:
                future.cancel()
        self._under_way = deque(each for each in spans if each[0].queue != queue)
        self._left = deque(each for each in self._left if each.queue != queue)

    def _put_back(self, rest: QueueRange) -> None:
        if self._left and self._left[0].queue == rest.queue and self._left[0].start == rest.stop:
            rest = rest._replace(stop=self._left.popleft().stop)
        self._left.appendleft(rest)

    def _learn(self, size: int, pieces: "list[Piece]") -> None:
        """The next spans have the size that the broker likes: a few pulls each, and no small rest behind them. `size`:
        the offsets that the pieces are of."""
        if not pieces:
            return
        found, of = self._seen
        self._seen = found * MEMORY + sum(len(piece.data) for piece in pieces), of * MEMORY + size
        self._message_bytes = max(self._seen[0] / self._seen[1], 1.0)
        a_pull = max(piece.source.size for piece in pieces)
        fitting = max(min(int(SPAN_BYTES / self._message_bytes), max(PULLS_A_SPAN * a_pull, LEAST_SPAN)), 1)
        self._span = fitting - fitting % a_pull if fitting > a_pull else fitting
