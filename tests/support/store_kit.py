"""Stores for tests: on the fake disk with a runner that is stepped, or on a real one, with small files.

kit = StoreKit()                    # fake disk, manual runner, moved clock
store = kit.opened()
ticket = kit.put(store, message("T", 0, b"x"))
"""

from pathlib import Path

from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.disk import Disk
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.message import Message
from cometmq.broker.store.options import StoreOptions
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.broker.store.transforms import TopicKinds
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.message_id import pack_host
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import Record, decode_record, decode_records

#: Files so small that a test fills several.
SMALL = {
    "mappedFileSizeCommitLog": "16384",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "50",
    "maxIndexNum": "100",
    "commitLogReserveStep": "8192",
}

BORN = pack_host("192.0.2.7", 40_001)


def message(topic: str, queue_id: int, body: bytes, **properties: str) -> Message:
    """A message; keyword arguments are its properties."""
    return Message(
        topic, queue_id, body, encode_properties(properties), born_timestamp=1_699_999_999_000, born_host=BORN
    )


def batch(
    *items: tuple[bytes, str], wrapper: str = "", topic: str = "T", queue_id: int = 0, **fields: object
) -> Message:
    """A client batch of bodies with the text of their properties; `wrapper` is that of the batch itself."""
    body = encode_batch(BatchItem(number, data, text.encode()) for number, (data, text) in enumerate(items))
    return Message(topic, queue_id, body, wrapper.encode(), born_host=BORN, **fields)  # type: ignore[arg-type]


class StoreKit:
    """A directory, a clock and a runner, and the stores that are opened on them one after the other."""

    def __init__(self, disk: Disk | None = None, folder: str | Path = "/store", **properties: str) -> None:
        self.clock = FakeClock()
        self.runner = ManualRunner(self.clock)
        self.disk: Disk = disk if disk is not None else FakeDisk(self.clock)
        self.folder = str(folder)
        self.properties = SMALL | properties
        self.topics: TopicKinds | None = None
        self.memory = 1 << 30

    @property
    def fake(self) -> FakeDisk:
        assert isinstance(self.disk, FakeDisk)
        return self.disk

    def store(self, **properties: str) -> Store:
        """A store that is not opened yet."""
        return Store(
            self.folder,
            StoreOptions.from_properties(self.properties | properties),
            runner=self.runner,
            disk=self.disk,
            clock=self.clock,
            topics=self.topics,
            memory=self.memory,
        )

    def opened(self, **properties: str) -> Store:
        """A store that takes messages."""
        store = self.store(**properties)
        store.open()
        store.start()
        return store

    def put(self, store: Store, *messages: Message) -> Ticket:
        """Put messages in one turn; gives the ticket of the last one."""
        tickets = [store.put(each) for each in messages]
        self.runner.run()
        return tickets[-1]

    def fill(self, store: Store, count: int, topic: str = "T", queues: int = 2, size: int = 100) -> list[Ticket]:
        """Put some messages, one a turn and a millisecond; their keys are k0, k1, ..."""
        tickets = []
        for number in range(count):
            body = f"{number}-".encode().ljust(size, b"x")
            each = message(
                topic, number % queues, body, TAGS=f"Tag{number % 3}", KEYS=f"k{number}", UNIQ_KEY=f"U{number:031d}"
            )
            tickets.append(store.put(each))
            self.runner.run()
            self.clock.advance(0.001)
        return tickets

    def killed(self) -> None:
        """The process dies; what it wrote stays."""
        self.fake.kill()
        self.runner = ManualRunner(self.clock)

    def power_lost(self, seed: int, at: int | None = None) -> None:
        """The machine loses its power."""
        self.disk = self.fake.crash(seed, at)
        self.runner = ManualRunner(self.clock)


def read_queue(store: Store, topic: str, queue_id: int, *, step: int = 7) -> list[Record]:
    """All messages of a queue, pulled as a consumer does. The checksums of the bodies are compared."""
    records: list[Record] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get_message("g", topic, queue_id, offset, step)
        assert result is not None
        assert result.next_begin_offset > offset
        found = list(decode_records(b"".join(result.buffers())))
        result.release()
        assert len(found) == result.message_count
        records += found
        offset = result.next_begin_offset
    return records


def bodies(store: Store, topic: str, queue_id: int) -> list[bytes]:
    return [record.body for record in read_queue(store, topic, queue_id)]


def record_at(store: Store, physical_offset: int) -> Record:
    found = store.message_at(physical_offset)
    assert found is not None, f"no record at {physical_offset}"
    with found:
        return decode_record(found.buffers()[0])
