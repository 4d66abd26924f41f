"""Slices of a buffer as Arrow arrays, and arrays that are made of few values: the building stones of the decoder.

Nothing here knows a record. Everything is a few calls into numpy and Arrow, whatever the number of rows. Arrays are
made of buffers and read by them: `pa.array` and `to_numpy` load pandas where it is installed, and that takes a new
process a tenth of a second for nothing.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints: TypeAlias = npt.NDArray[Any]


def slices(data: Any, starts: Ints, ends: Ints, kind: pa.DataType) -> pa.Array:
    """The bytes between these bounds, which ascend and do not overlap; copied once.

    The buffer is seen as an array of pieces, wanted and unwanted by turns, of which the wanted ones are taken.
    """
    count = len(starts)
    bounds = np.empty(2 * count + 1, dtype=np.int32)
    bounds[0:-1:2] = starts
    bounds[1::2] = ends
    bounds[-1] = ends[-1] if count else 0
    pieces = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return pieces.take(every(2, count))


def every(step: int, count: int, first: int = 0) -> pa.Array:
    """The numbers `first`, `first + step`, ... as indices to take."""
    return numbers(np.arange(first, first + step * count, step, dtype=np.int32))


def numbers(values: Ints, valid: Ints | None = None) -> pa.Array:
    """Numbers of numpy as they are; null where they are not valid."""
    values = np.ascontiguousarray(values)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bits, pa.py_buffer(values)])


def values_of(array: pa.Array) -> Ints:
    """The numbers of an array that has no nulls, as they are."""
    kind, end = array.type.to_pandas_dtype(), array.offset + len(array)
    return np.frombuffer(array.buffers()[1], kind)[array.offset : end] if len(array) else np.empty(0, kind)


def flags_of(array: pa.Array) -> Ints:
    """The same for booleans, which are bits there."""
    end = array.offset + len(array)
    bits = np.unpackbits(np.frombuffer(array.buffers()[1], np.uint8), count=end, bitorder="little")
    return bits[array.offset :].view(np.bool_)


def texts(values: Sequence[str]) -> pa.Array:
    """A few texts."""
    raw = [value.encode() for value in values]
    bounds = np.cumsum([0, *map(len, raw)], dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(raw), [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(raw))])


def constant(value: str, count: int) -> pa.Array:
    """A text, over and over."""
    raw = value.encode()
    bounds = np.arange(0, (count + 1) * len(raw), len(raw), dtype=np.int32) if raw else np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(raw * count)])


def of_codes(codes: npt.NDArray[Any], values: Sequence[str]) -> pa.Array:
    """For each code the text of that number."""
    if len(values) == 1:
        return constant(values[0], len(codes))
    return texts(values).take(numbers(codes))


def fixed_width(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """Texts of one length: a matrix of bytes, one row each."""
    count, width = rows.shape
    bounds = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(rows.tobytes())])
