"""The properties of many records at once: names and values as Arrow arrays, and which record they belong to.

`name 0x01 value 0x02`, over and over, is cut at its separators by numpy. What Java's reader forgives is dealt with as
`cometmq.protocol.properties` does: a missing last terminator and pairs without name or value here; doubled names,
separators inside of values and bytes that are no UTF-8 are reported as odd, for the slow way.

Budget: 250 ns a record with five properties.
"""

from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.spark.slices import every, numbers, slices, values_of

Ints: TypeAlias = npt.NDArray[Any]

_NAME_END: Final = 1
_VALUE_END: Final = 2
_TERMINATOR: Final = b"\x02"
#: So many different names have a bit each in a word.
_BITS: Final = 62


class OddProperties(Exception):
    """Raised when texts of some records cannot be cut here; `rows` says which."""

    def __init__(self, rows: Ints) -> None:
        super().__init__(rows)
        self.rows = rows


class PropertyTable:
    """Names and values of all records, one after the other, and how many each record has."""

    def __init__(self, data: bytes, starts: Ints, ends: Ints) -> None:
        """The texts between these bounds of `data`. Raises OddProperties."""
        self.count = len(starts)
        text, bounds = _joined(data, starts, ends)
        odd = _not_utf8(text, bounds)
        if len(odd):
            raise OddProperties(odd)
        self._cut(text, bounds)
        self._look_at_names()

    def _cut(self, text: npt.NDArray[np.uint8], bounds: Ints) -> None:
        marks = np.flatnonzero(text <= _VALUE_END)
        kinds = text[marks]
        if len(marks) % 2 or (kinds[0::2] != _NAME_END).any() or (kinds[1::2] != _VALUE_END).any():
            raise OddProperties(_disordered(marks, kinds, bounds))
        name_ends, value_ends = marks[0::2], marks[1::2]
        pairs = len(name_ends)
        # Every text ends in a terminator, so the pairs of a record are those whose value ends before it does.
        self.offsets = np.searchsorted(value_ends, bounds).astype(np.int32)
        pieces = np.empty(4 * pairs + 1, dtype=np.int32)
        pieces[0] = 0
        pieces[1::4] = name_ends
        pieces[2::4] = name_ends + 1
        pieces[3::4] = value_ends
        pieces[4::4] = value_ends + 1
        array = pa.Array.from_buffers(pa.string(), 4 * pairs, [None, pa.py_buffer(pieces), pa.py_buffer(text)])
        lengths = np.diff(pieces)
        full = (lengths[0::4] > 0) & (lengths[2::4] > 0)
        if full.all():
            names, values = every(4, pairs), every(4, pairs, 2)
        else:
            kept = np.flatnonzero(full)
            self.offsets = np.searchsorted(kept, self.offsets).astype(np.int32)
            names, values = numbers(4 * kept), numbers(4 * kept + 2)
        self.names: pa.StringArray = array.take(names)
        self.values: pa.StringArray = array.take(values)

    def _look_at_names(self) -> None:
        """Finds out whether all records have the same names in the same order, as those of one producer mostly do."""
        self._row = self._common_names()
        if self._row is not None:
            if len(set(self._row)) < len(self._row):
                raise OddProperties(np.arange(self.count))
            return
        encoded = self.names.dictionary_encode()
        self._codes = values_of(encoded.indices)
        self._known: list[str] = encoded.dictionary.to_pylist()
        self._pair_rows = np.repeat(np.arange(self.count), np.diff(self.offsets))
        doubled = self._with_doubled_names()
        if len(doubled):
            raise OddProperties(doubled)

    def _common_names(self) -> list[str] | None:
        each = len(self.names) // self.count if self.count else 0
        if each * self.count != len(self.names) or (np.diff(self.offsets) != each).any():
            return None
        if each == 0:
            return []
        bounds = np.frombuffer(self.names.buffers()[1], np.int32)[: len(self.names) + 1]
        lengths = np.diff(bounds).reshape(self.count, each)
        if (lengths != lengths[0]).any():
            return None
        width = int(bounds[each])
        texts = np.frombuffer(self.names.buffers()[2], np.uint8)[: width * self.count].reshape(self.count, width)
        return self.names[:each].to_pylist() if (texts == texts[0]).all() else None

    def _with_doubled_names(self) -> Ints:
        """The records that have a name twice."""
        if len(self._known) <= _BITS:
            # Each name has a bit; bits that are there twice make the sum differ from the union.
            bits = np.left_shift(np.int64(1), self._codes.astype(np.int64))
            filled = np.flatnonzero(np.diff(self.offsets))
            at = self.offsets[filled]
            doubled: Ints = filled[np.add.reduceat(bits, at) != np.bitwise_or.reduceat(bits, at)]
            return doubled
        pairs = np.sort(self._pair_rows * len(self._known) + self._codes)
        return np.unique(pairs[1:][pairs[1:] == pairs[:-1]] // len(self._known))

    def value_of(self, name: str) -> pa.Array:
        """For each record the value of one property, or null."""
        if self._row is not None:
            if name not in self._row:
                return pa.nulls(self.count, pa.string())
            return self.values.take(every(len(self._row), self.count, self._row.index(name)))
        if name not in self._known:
            return pa.nulls(self.count, pa.string())
        found = np.flatnonzero(self._codes == self._known.index(name))
        at = np.full(self.count, -1, dtype=np.int64)
        at[self._pair_rows[found]] = found
        return self.values.take(numbers(at, at >= 0))

    def as_map(self, kind: pa.MapType) -> pa.MapArray:
        """For each record all of its properties."""
        entries = pa.StructArray.from_arrays([self.names, self.values], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, self.count, [None, pa.py_buffer(self.offsets)], children=[entries])

    def as_dicts(self) -> list[dict[str, str]]:
        """The same as Python's dicts."""
        pairs = list(zip(self.names.to_pylist(), self.values.to_pylist(), strict=True))
        bounds = self.offsets.tolist()
        return [dict(pairs[start:stop]) for start, stop in pairwise(bounds)]


def _joined(data: bytes, starts: Ints, ends: Ints) -> tuple[npt.NDArray[np.uint8], Ints]:
    """The texts in one row, each ended by a terminator, and their bounds in it."""
    whole = np.frombuffer(data, np.uint8)
    if ((whole[ends - 1] == _VALUE_END) | (starts == ends)).all():
        array = slices(data, starts, ends, pa.binary())
        _, bounds, text = array.buffers()
        offsets = np.frombuffer(bounds, np.int32)[: len(starts) + 1]
        return np.frombuffer(text, np.uint8)[: offsets[-1]] if text else whole[:0], offsets
    # Java 4 leaves the last terminator out.
    texts = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    texts = [text if not text or text.endswith(_TERMINATOR) else text + _TERMINATOR for text in texts]
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    return np.frombuffer(b"".join(texts), np.uint8), offsets


def _not_utf8(text: npt.NDArray[np.uint8], bounds: Ints) -> Ints:
    """The records whose text is no UTF-8. A sequence cannot run on into the next text: a terminator is between."""
    none = np.empty(0, dtype=np.int64)
    if not len(text) or text.max() < 0x80:
        return none
    raw = text.tobytes()
    if _is_utf8(raw):
        return none
    edges = bounds.tolist()
    return np.array([row for row in range(len(edges) - 1) if not _is_utf8(raw[edges[row] : edges[row + 1]])])


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _disordered(marks: Ints, kinds: npt.NDArray[Any], bounds: Ints) -> Ints:
    """The records whose separators do not come by turns."""
    rows = np.searchsorted(bounds, marks, side="right") - 1
    rank = np.arange(len(marks)) - np.searchsorted(marks, bounds)[rows]
    wrong = rows[kinds != np.where(rank % 2 == 0, _NAME_END, _VALUE_END)]
    odd = np.flatnonzero(np.bincount(rows, minlength=len(bounds) - 1) % 2)
    return np.union1d(wrong, odd)
