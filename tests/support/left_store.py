"""Stores that were left behind, cleanly or not, for tests of what the next opening makes of them."""

from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from support.store_kit import StoreKit, read_queue

#: The size of a log file: that of `store_kit.SMALL`.
FILE = 16384
LOG = "/store/commitlog"


def read(disk: FakeDisk, path: str) -> bytes:
    return disk.read_file(path)


def overwrite(disk: FakeDisk, path: str, position: int, data: bytes) -> None:
    file = disk.open(path)
    file.write(position, [data])
    file.sync()
    file.close()


def log_path(offset: int) -> str:
    return f"{LOG}/{offset // FILE * FILE:020d}"


def spoil(disk: FakeDisk, offset: int, data: bytes) -> None:
    """Write over the commit log at a physical offset."""
    overwrite(disk, log_path(offset), offset % FILE, data)


def flip(disk: FakeDisk, offset: int) -> None:
    spoil(disk, offset, bytes([read(disk, log_path(offset))[offset % FILE] ^ 0x10]))


def tree(disk: FakeDisk, path: str = "/store") -> dict[str, bytes]:
    found = {}
    for name in disk.list_dir(path):
        inner = f"{path}/{name}"
        if disk.is_dir(inner):
            found |= tree(disk, inner)
        else:
            found[inner] = disk.read_file(inner)
    return found


def left(clean: bool, count: int = 200, seconds: float = 0.0, **properties: str) -> tuple[StoreKit, list[Ticket]]:
    """A directory with messages in several files, left cleanly or not."""
    kit = StoreKit(**properties)
    store = kit.opened()
    tickets = kit.fill(store, count)
    if seconds:
        kit.runner.advance(seconds)
    if clean:
        store.close()
    else:
        kit.killed()
    return kit, tickets


def check_whole(store: Store, tickets: list[Ticket], topic: str = "T", queues: int = 2) -> None:
    """Everything that was put is in its place in the log, the queues and the index, and nothing else is."""
    for queue_id in range(queues):
        own = [ticket for number, ticket in enumerate(tickets) if number % queues == queue_id]
        records = read_queue(store, topic, queue_id)
        assert [record.physical_offset for record in records] == [ticket.physical_offset for ticket in own]
        assert [record.queue_offset for record in records] == [ticket.queue_offset for ticket in own]
    for number, ticket in enumerate(tickets):
        result = store.query(topic, f"k{number}", 64)
        assert ticket.physical_offset in [part.start for part in result.ranges], number
        result.release()
    if tickets:
        assert store.watermarks.appended == tickets[-1].end_offset
    marks = store.watermarks
    assert marks.appended == marks.flushed == marks.confirmed == marks.dispatched


def open_again(kit: StoreKit, **properties: str) -> Store:
    store = kit.store(**properties)
    store.open()
    return store
