"""Pulled bytes to an Arrow record batch: only the columns that are asked for, all rows at once.

By the native twin where it is built and takes the whole batch, else by numpy. Nothing here reads a socket. RocketMQ's
MessageDecoder, turned by ninety degrees.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from cometmq.spark.columns import Columns
from cometmq.spark.frame import Piece, batch_of
from cometmq.spark.native import Layout
from cometmq.spark.queue_range import QueueId
from cometmq.spark.read_options import FAIL, ReadOptions

if TYPE_CHECKING:
    from cometmq.spark.numpy_decoder import NumpyDecoder


class Decoder:
    """Turns pieces into record batches for one query. It keeps nothing from batch to batch."""

    def __init__(
        self,
        columns: Columns,
        *,
        namespace: str = "",
        tags: frozenset[str] = frozenset(),
        corrupt: str = FAIL,
        check_crc: bool = True,
        batch_bytes: int = ReadOptions().batch_bytes,
        on_gap: Callable[[QueueId, int, int], None] | None = None,
        native: bool = True,
    ) -> None:
        """`batch_bytes`: what decompressed bodies in a batch may have together. `on_gap` is told of queue, offset
        wanted and next offset there where a piece does not have all of its range; without it nobody looks: a filter
        leaves gaps. `native`: where the twin is built, it goes first."""
        self.schema = columns.arrow_schema
        self._columns = columns
        self._namespace = namespace
        self._tags = tags
        self._corrupt = corrupt
        self._check_crc = check_crc
        self._batch_bytes = batch_bytes
        self._on_gap = on_gap
        self._layout = (
            Layout(columns, self.schema, namespace, tags=bool(tags), check_crc=check_crc and "body" in columns)
            if native
            else None
        )

    def batches(self, pieces: Sequence[Piece]) -> Iterator[pa.RecordBatch]:
        """The rows of all pieces, in their order: one batch, and more only where bodies are decompressed."""
        data = pieces[0].data if len(pieces) == 1 else b"".join(piece.data for piece in pieces)
        if self._layout is not None:
            usual = self._layout.frame(data, pieces)
            if usual is not None and usual.are_all_wanted(gaps=self._on_gap is None):
                return iter(batch_of(usual, self._tags)[:1])
        return self._by_numpy.batches(data, pieces)

    def decode(self, pieces: Sequence[Piece]) -> pa.RecordBatch:
        """The same in one batch, for those who know that it is small."""
        first, *more = self.batches(pieces)
        return pa.concat_batches([first, *more]) if more else first

    @cached_property
    def _by_numpy(self) -> "NumpyDecoder":
        # Loaded here: where the twin is built, most tasks never need it.
        from cometmq.spark.irregular import SlowRules
        from cometmq.spark.numpy_decoder import NumpyDecoder

        rules = SlowRules(self._columns, self._namespace, self._tags, self._corrupt, self._check_crc, self._batch_bytes)
        return NumpyDecoder(rules, self.schema, self._on_gap)
