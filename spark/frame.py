"""The records of a batch that go the fast way, and how each column is made of them: whole columns, by numpy and Arrow.

Here is what both kinds of frames share; `native` has the one whose columns were laid out in one pass, `numpy_frame` the
one that cuts them out of the pulled bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cometmq.protocol import namespaces
from cometmq.protocol import properties as props
from cometmq.protocol.message_id import unpack_host
from cometmq.remoting.address import format_address
from cometmq.spark.queue_range import QueueRange
from cometmq.spark.slices import constant, fixed_width, flags_of, numbers, of_codes, texts, values_of

#: numpy's types do not follow what is computed with arrays, so their names are for people.
Ints: TypeAlias = npt.NDArray[Any]

_HEX: Final = np.frombuffer(b"".join(b"%02X" % number for number in range(256)), dtype="<u2")


class Piece(NamedTuple):
    """What one pull gave, and the range that it was asked for: messages outside of it do not count."""

    source: QueueRange
    data: bytes


class Frame(ABC):
    """The records of a batch that go the fast way."""

    data: bytes
    pieces: Sequence[Piece]
    namespace: str
    schema: pa.Schema
    #: The columns of the records' fixed parts by name.
    fields: Any
    #: Their numbers among all records.
    rows: Ints
    #: The piece of each record.
    owners: Ints

    def __len__(self) -> int:
        return len(self.rows)

    # What each kind does in its own way

    @abstractmethod
    def topics(self) -> tuple[Ints, list[bytes]]:
        """A code for each record, and the topics by their codes. Nearly always there is one."""

    @abstractmethod
    def property(self, name: str) -> pa.Array: ...

    @abstractmethod
    def body_column(self) -> pa.Array: ...

    @abstractmethod
    def sys_flag_column(self) -> pa.Array: ...

    @abstractmethod
    def number_column(self, field: str, kind: str) -> pa.Array: ...

    @abstractmethod
    def time_column(self, field: str) -> pa.Array: ...

    @abstractmethod
    def properties_column(self) -> pa.Array: ...

    # What follows from it

    def topic_column(self) -> pa.Array:
        codes, topics = self.topics()
        return of_codes(codes, [namespaces.unwrap(self.namespace, topic.decode()) for topic in topics])

    def broker_column(self) -> pa.Array:
        brokers = [piece.source.broker for piece in self.pieces]
        if len(set(brokers)) == 1:
            return constant(brokers[0], len(self))
        return of_codes(self.owners, brokers)

    def host_column(self, field: str) -> pa.Array:
        hosts = self.fields[field].astype(np.uint64)
        if (hosts == hosts[0]).all():
            return constant(host_text(hosts[:1].tobytes()), len(self))
        encoded = numbers(hosts).dictionary_encode()
        known = [host_text(host.tobytes()) for host in values_of(encoded.dictionary)]
        return of_codes(values_of(encoded.indices), known)

    def id_column(self) -> pa.Array:
        """The unique key that the producer made, else the place of the message in its broker's log."""
        keys = self.property(props.UNIQ_KEY)
        if not keys.null_count:
            return keys
        packed = np.empty((len(self), 2), dtype=np.uint64)
        packed[:, 0] = self.fields["store_host"]
        packed[:, 1] = self.fields["physical_offset"].astype(">i8").view(np.uint64)
        digits = _HEX[packed.view(np.uint8)].view(np.uint8)
        return keys.fill_null(fixed_width(digits))


def host_text(packed: bytes) -> str:
    """A packed host as `ip:port`, `[ip]:port` for IPv6."""
    return format_address(*unpack_host(packed))


BUILDERS: Final[dict[str, Callable[[Frame], pa.Array]]] = {
    "topic": methodcaller("topic_column"),
    "brokerName": methodcaller("broker_column"),
    "queueId": lambda frame: frame.number_column("queue_id", "<i4"),
    "queueOffset": lambda frame: frame.number_column("queue_offset", "<i8"),
    "body": methodcaller("body_column"),
    "tags": lambda frame: frame.property(props.TAGS),
    "keys": lambda frame: frame.property(props.KEYS),
    "properties": methodcaller("properties_column"),
    "msgId": methodcaller("id_column"),
    "bornTimestamp": lambda frame: frame.time_column("born_timestamp"),
    "storeTimestamp": lambda frame: frame.time_column("store_timestamp"),
    "flag": lambda frame: frame.number_column("flag", "<i4"),
    "sysFlag": methodcaller("sys_flag_column"),
    "reconsumeTimes": lambda frame: frame.number_column("reconsume_times", "<i4"),
    "bornHost": lambda frame: frame.host_column("born_host"),
    "storeHost": lambda frame: frame.host_column("store_host"),
    "physicalOffset": lambda frame: frame.number_column("physical_offset", "<i8"),
}


def batch_of(frame: Frame, tags: frozenset[str]) -> tuple[pa.RecordBatch, Ints]:
    """The rows of a frame that have one of the tags, if there are some, and their numbers among all records."""
    if not len(frame.rows):
        return empty_batch(frame.schema), frame.rows
    arrays = [BUILDERS[name](frame) for name in frame.schema.names]
    batch = pa.RecordBatch.from_arrays(arrays, schema=frame.schema)
    if not tags:
        return batch, frame.rows
    import pyarrow.compute as pc  # here, because it takes long to load and few queries need it

    # Brokers compare hash codes of tags: another tag of the same code may have come.
    fits = pc.is_in(frame.property(props.TAGS), value_set=texts(sorted(tags)))
    return batch.filter(fits), frame.rows[flags_of(fits)]


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, kind) for kind in schema.types], schema=schema)
