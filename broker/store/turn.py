"""What dispatch is fed after a write: the requests of the records, and by columns what queues and index take of them.

The put knows everything about a record when it lays it out; noting it down in the form in which it will be written
saves dispatch two walks over the requests. Records that are not plain have requests only. RocketMQ has no such thing:
its ReputMessageService reads every record again.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count, repeat
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, overload

from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.plain_run import PlainRun
from cometmq.broker.store.unit_log import POINTER

if TYPE_CHECKING:
    from cometmq.broker.store.batch_records import Exploded

#: Units that are packed with one call.
_AT_ONCE: Final = 256


class Run(NamedTuple):
    """Messages of one queue, one after the other: offsets of the first one, and the units of all."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    units: bytearray

    @property
    def end(self) -> int:
        """Where the last record ends."""
        physical_offset, size, _ = POINTER.unpack_from(self.units, len(self.units) - POINTER.size)
        return int(physical_offset + size)


class Turn(Sequence[DispatchRequest]):
    """Requests in the order of the log, all of one store time.

    Those of runs and batches are made only when somebody wants to see each: queues and index have what they need in
    columns.
    """

    __slots__ = ("_whole", "first_offset", "key_names", "key_offsets", "key_topics", "parts", "plain", "runs", "time")

    def __init__(self, first_offset: int, time: int) -> None:
        #: Requests, and runs and batches in place of theirs.
        self.parts: list[DispatchRequest | PlainRun | BatchPart] = []
        self._whole: list[DispatchRequest] | None = None
        #: The physical offset of the first record, and the store time of all.
        self.first_offset = first_offset
        self.time = time
        #: Whether `runs` and keys hold all of it; if not they are of no use.
        self.plain = True
        self.runs: list[Run] = []
        #: The keys of the messages, the unique one of each first, and of which topic and record each is.
        self.key_names: list[bytes] = []
        self.key_topics: list[str] = []
        self.key_offsets: list[int] = []

    def __len__(self) -> int:
        return sum([1 if isinstance(part, DispatchRequest) else len(part) for part in self.parts])

    @overload
    def __getitem__(self, index: int) -> DispatchRequest: ...

    @overload
    def __getitem__(self, index: slice) -> list[DispatchRequest]: ...

    def __getitem__(self, index: int | slice) -> DispatchRequest | list[DispatchRequest]:
        return self._requests()[index]

    def __iter__(self) -> Iterator[DispatchRequest]:
        return iter(self._requests())

    def _requests(self) -> list[DispatchRequest]:
        if self._whole is None:
            whole: list[DispatchRequest] = []
            for part in self.parts:
                if isinstance(part, DispatchRequest):
                    whole.append(part)
                else:
                    whole += part.requests()
            self._whole = whole
        return self._whole

    def add_keys(self, topic: str, physical_offset: int, unique: bytes | None, keys: bytes) -> None:
        """The keys of a message that has more than a unique one."""
        names = [key for key in keys.split(b" ") if key]
        if unique:
            names.insert(0, unique)
        self.key_names += names
        self.key_topics += [topic] * len(names)
        self.key_offsets += [physical_offset] * len(names)

    def add_batch(self, run: bytearray, batch: "BatchPart") -> None:
        """The messages of a client batch. `run` takes their units."""
        self.parts.append(batch)
        keys, uniques = batch.exploded.keys, batch.exploded.uniques
        offsets, topic = batch.offsets, batch.topic
        run += _units(offsets, batch.exploded.sizes, batch.codes)
        if keys.count(None) == len(offsets) and all(uniques):
            self.key_names += uniques  # type: ignore[arg-type]
            self.key_topics += [topic] * len(offsets)
            self.key_offsets += offsets
        else:
            for offset, unique, names in zip(offsets, uniques, keys, strict=True):
                self.add_keys(topic, offset, unique, names or b"")


class BatchPart:
    """A client batch in a turn: enough to make the requests of its messages, should anybody want to see them."""

    __slots__ = ("codes", "exploded", "offsets", "queue_id", "queue_offset", "sys_flag", "time", "topic")

    def __init__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        offsets: Sequence[int],
        codes: Sequence[int],
        exploded: "Exploded",
        sys_flag: int,
        time: int,
    ) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.queue_offset = queue_offset
        #: Of the records in the log.
        self.offsets = offsets
        #: As the queue holds them: not always those of the tags.
        self.codes = codes
        self.exploded = exploded
        self.sys_flag = sys_flag
        self.time = time

    def __len__(self) -> int:
        return len(self.offsets)

    def requests(self) -> list[DispatchRequest]:
        """What dispatchers learn of the records, for those that look at each."""
        exploded = self.exploded
        return [
            *map(
                DispatchRequest,
                repeat(self.topic),
                repeat(self.queue_id),
                self.offsets,
                exploded.sizes,
                self.codes,
                repeat(self.time),
                count(self.queue_offset),
                exploded.keys,
                exploded.uniques,
                repeat(self.sys_flag),
                repeat(0),
                exploded.texts(),
            )
        ]


def _units(offsets: Sequence[int], sizes: Sequence[int], codes: Sequence[int]) -> bytes:
    """The units of a batch. Budget: 0.06 us each."""
    count = len(offsets)
    if count > _AT_ONCE:
        return b"".join(map(POINTER.pack, offsets, sizes, codes))
    fields = [0] * (3 * count)
    fields[0::3] = offsets
    fields[1::3] = sizes
    fields[2::3] = codes
    return _struct(count).pack(*fields)


@lru_cache(maxsize=_AT_ONCE)
def _struct(count: int) -> Struct:
    return Struct(">" + "qiq" * count)
