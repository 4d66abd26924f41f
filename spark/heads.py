"""Where the records of pulled bytes begin, and what their fixed parts say: whole columns at once, by numpy.

Records stand back to back, each with its size in front; from one to the next is the only loop here. A record of the
usual form (magic V1, IPv4 hosts, a plain body, no inner batch, lengths that agree) is *regular*; `irregular` has the
others. The layout is that of `cometmq.protocol.record`.

Budget: 200 ns a record of varying size, 30 ns where records have one size.
"""

from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from cometmq.protocol import sysflag
from cometmq.protocol.errors import RecordError
from cometmq.protocol.record import HEAD_V4, MAGIC_V1, MIN_RECORD_SIZE

#: numpy's types do not follow what is computed with arrays, so their names here are for people.
Ints: TypeAlias = npt.NDArray[Any]
Flags: TypeAlias = npt.NDArray[Any]

_SIZE: Final = Struct(">i")
_NOTHING: Final = np.empty(0, dtype=np.int64)
#: The head of a record with two IPv4 hosts. Hosts stay as they are: eight bytes to compare.
HEAD: Final = np.dtype(
    [
        ("size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", "<u8"),
        ("store_timestamp", ">i8"),
        ("store_host", "<u8"),
        ("reconsume_times", ">i4"),
        ("prepared_transaction_offset", ">i8"),
        ("body_length", ">i4"),
    ]
)
assert HEAD.itemsize == HEAD_V4.size
#: Gathered as one lump a record: field by field it takes twenty times as long.
_LUMP: Final = np.dtype(f"V{HEAD.itemsize}")
_UNUSUAL: Final = sysflag.COMPRESSED | sysflag.HOSTS_V6 | sysflag.INNER_BATCH | sysflag.NEED_UNWRAP
_MAX_V1_TOPIC: Final = 127

#: Records that are tried as a row of equal sizes at once, how many such a try must find to be worth it, and how many
#: are walked one by one after one that was not.
_ROW: Final = 4096
_WORTH: Final = 32
_WALK: Final = 512


def record_starts(data: bytes) -> Ints:
    """Where each record begins. The last one has to end with the bytes."""
    end = len(data)
    parts: list[Ints] = []
    at = 0
    while at < end:
        row = _row_of_equals(data, at)
        if len(row) >= _WORTH:
            parts.append(row)
            at = int(row[-1]) + int(row[1] - row[0])
        else:
            walked, at = _walk(data, at)
            parts.append(np.array(walked, dtype=np.int64))
    return np.concatenate(parts) if parts else _NOTHING


def _row_of_equals(data: bytes, at: int) -> Ints:
    """The starts of the records from here on that are as long as the first one and look like records."""
    if len(data) - at < MIN_RECORD_SIZE:
        return _NOTHING
    (size,) = _SIZE.unpack_from(data, at)
    if size < MIN_RECORD_SIZE:
        return _NOTHING
    count = min((len(data) - at) // size, _ROW)
    if count < _WORTH:
        return _NOTHING
    # Size and magic as one word.
    words = np.ndarray((count,), "<u8", data, offset=at, strides=(size,))
    equal = words == words[0]
    if not equal.all():
        count = int(equal.argmin())
    starts: Ints = at + np.arange(count, dtype=np.int64) * size
    return starts


def _walk(data: bytes, at: int) -> tuple[list[int], int]:
    """Some starts, one by one, and where to go on."""
    starts: list[int] = []
    end = len(data)
    unpack = _SIZE.unpack_from
    for _ in range(_WALK):
        if end - at < MIN_RECORD_SIZE:
            if at < end:
                raise RecordError(f"record at {at}: cut off, {end - at} bytes are left")
            break
        (size,) = unpack(data, at)
        if size < MIN_RECORD_SIZE or size > end - at:
            raise RecordError(f"record at {at}: a size of {size} bytes, {end - at} bytes are left")
        starts.append(at)
        at += size
    return starts, at


class Heads(NamedTuple):
    """The fixed parts of records, and where their variable parts are. All arrays have one entry a record."""

    starts: Ints
    #: Of dtype HEAD.
    fields: Any
    body_ends: Ints
    topic_ends: Ints
    ends: Ints
    #: Where this is False, nothing but `starts` and `fields` means anything, and the hosts not even that.
    regular: Flags

    @property
    def body_starts(self) -> Ints:
        return self.starts + HEAD.itemsize

    def only(self, rows: Ints) -> "Heads":
        """Those of some records."""
        return Heads(*(each[rows] for each in self))


def read_heads(data: bytes, starts: Ints, *, compressed_too: bool = False) -> Heads:
    """The heads of records at starts that `record_starts` found: each has the room of the smallest record.

    `compressed_too`: a compressed body does not make a record irregular, because nobody will look at it.
    """
    unusual = _UNUSUAL & ~sysflag.COMPRESSED if compressed_too else _UNUSUAL
    lumps = np.ndarray((max(len(data) - HEAD.itemsize + 1, 0),), _LUMP, data, strides=(1,))[starts]
    fields = lumps.view(HEAD)
    ends = starts + fields["size"]
    body_length = fields["body_length"].astype(np.int64)
    regular = (fields["magic"] == MAGIC_V1) & (fields["sys_flag"] & unusual == 0) & (fields["physical_offset"] >= 0)
    regular &= (body_length >= 0) & (body_length <= fields["size"] - MIN_RECORD_SIZE)
    # A length that is not believed counts as 0, so that whatever is read for it lies inside of the record.
    body_ends = starts + HEAD.itemsize + np.where(regular, body_length, 0)
    topic_length = np.frombuffer(data, np.uint8)[body_ends].astype(np.int64)
    regular &= (topic_length <= _MAX_V1_TOPIC) & (body_ends + topic_length + 3 <= ends)
    topic_ends = body_ends + 1 + np.where(regular, topic_length, 0)
    properties_length = np.ndarray((len(data) - 1,), ">i2", data, strides=(1,))[topic_ends]
    regular &= (properties_length >= 0) & (topic_ends + 2 + properties_length == ends)
    return Heads(starts, fields, body_ends, topic_ends, ends, regular)
