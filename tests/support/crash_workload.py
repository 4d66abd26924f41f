"""A seeded life of a store on the fake disk, and a ledger of what it told to whom and when.

Appends (singles, batches, delayed ones), dispatch, flushes that hang, configuration writes, file rolls, cleaning,
clean ends and deaths of the process. Every entry of the ledger carries the number of disk operations before it: a power
loss after the n-th operation may take nothing that was promised before.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.dispatch import TellArrivals
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.power_loss import ROOT, Image, Medium, Operation
from cometmq.broker.store.runner import ManualRunner
from cometmq.broker.store.store import Store
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol import names
from cometmq.protocol.batch import BatchItem, encode_batch
from cometmq.protocol.bodies import ConsumerOffsetSerializeWrapper, DelayOffsetSerializeWrapper
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import decode_record
from support.store_kit import StoreKit, message, read_queue

TOPICS = (("Orders", 3), ("Mail", 1), ("%RETRY%billing", 1))
#: Lanes of work in threads that the workload holds back now and then.
LANES = ("flush", "queues", "index", "prepare")
#: More than the interval in which every queue is synced, in seconds.
THOROUGH = 62.0
#: More than any delay in the cleaning of a few files, in seconds.
ROUND = 0.35


@dataclass(frozen=True, slots=True)
class Told:
    """A message that somebody was told about: by an acknowledgement, or because it could be read."""

    #: Disk operations that were done by then, and the time.
    after: int
    moment: float
    number: int
    physical_offset: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Put:
    """What was handed in."""

    body: bytes
    #: Where it goes: a delayed one to the queue of its level.
    stored_topic: str
    stored_queue_id: int
    #: Disk operations that were done by then: before that it cannot be on the disk.
    after: int


@dataclass(frozen=True, slots=True)
class Moment:
    """Where everything stood after a step."""

    after: int
    moment: float
    flushed: int


@dataclass(slots=True)
class Ledger:
    """Everything that was promised, in order."""

    puts: dict[int, Put] = field(default_factory=dict)
    acknowledged: list[Told] = field(default_factory=list)
    readable: list[Told] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    #: Operations before and after a save, and the value that was saved.
    saves: list[tuple[int, int, int]] = field(default_factory=list)
    #: Times that the process died, as operations.
    deaths: list[int] = field(default_factory=list)


def number_of(body: bytes) -> int:
    """Which message a body is."""
    return int(body[:8])


class Workload:
    """One life. `run` lives it; then `disk` and `ledger` tell."""

    def __init__(self, seed: int, *, hangs: bool = True, patient: bool = True, **properties: str) -> None:
        """`hangs`: work in threads takes long now and then. `patient`: only files are cleaned that queues know safely.

        Without that, files go that are younger than a minute, as they do when a disk is full.
        """
        self.seed = seed
        self.hangs = hangs
        self.patient = patient
        self.dice = random.Random(seed)
        self.kit = StoreKit(None, **({"maxIndexNum": "60"} | properties))
        self.ledger = Ledger()
        self.held: set[str] = set()
        self.store = self._open()

    @property
    def disk(self) -> FakeDisk:
        return self.kit.fake

    @property
    def runner(self) -> ManualRunner:
        return self.kit.runner

    def run(self, steps: int) -> "Workload":
        actions = (
            (self.put_some, 50),
            (self.put_batch, 12),
            (self.put_delayed, 6),
            (self.wait, 14),
            (self.hold, 6 if self.hangs else 0),
            (self.let_go, 8),
            (self.save_config, 5),
            (self.clean, 4),
            (self.end_and_start, 1),
            (self.die_and_start, 2),
        )
        chosen = self.dice.choices([action for action, _ in actions], [weight for _, weight in actions], k=steps)
        for action in chosen:
            action()
            self._look()
        return self

    # What it does

    def put_some(self) -> None:
        for _ in range(self.dice.choice((1, 1, 2, 5, 12))):
            topic, queues = self.dice.choice(TOPICS)
            self._put(topic, self.dice.randrange(queues))
        self._turns()

    def put_delayed(self) -> None:
        level = self.dice.randint(1, 3)
        number, body, properties = self._made(names.SCHEDULE_TOPIC, level - 1)
        self.store.put(message("Orders", 0, body, **properties, DELAY=str(level)), self._teller([number]))
        self._turns()

    def put_batch(self) -> None:
        topic, queues = TOPICS[0]
        queue_id = self.dice.randrange(queues)
        numbers, items = [], []
        for _ in range(self.dice.randint(2, 8)):
            number, body, properties = self._made(topic, queue_id)
            numbers.append(number)
            items.append(BatchItem(0, body, encode_properties(properties)))
        self.store.put_batch(Message(topic, queue_id, encode_batch(items)), self._teller(numbers))
        self._turns()

    def wait(self) -> None:
        self.runner.advance(self.dice.choice((0.001, 0.05, 0.5, 1.1)))

    def hold(self) -> None:
        lane = self.dice.choice(LANES)
        self.held.add(lane)
        self.runner.hold(lane)

    def let_go(self) -> None:
        for lane in sorted(self.held):
            self.runner.let_go(lane)
        self.held.clear()
        self.runner.run()

    def save_config(self) -> None:
        value = len(self.ledger.saves) + 1
        before = len(self.disk.operations)
        files = ConfigFiles(self.disk, self.kit.folder)
        files.consumer_offsets.save(ConsumerOffsetSerializeWrapper(offset_table={"Orders@g": {0: value}}))
        files.delay_offsets.save(DelayOffsetSerializeWrapper(offset_table={1: value}))
        self.ledger.saves.append((before, len(self.disk.operations), value))

    def clean(self) -> None:
        if self.patient:
            self.let_go()
            self.runner.advance(THOROUGH)
        folder = f"{self.kit.folder}/commitlog"
        names = self.disk.list_dir(folder)
        for name in names[: max(0, len(names) - 4)]:
            self.disk.set_modified(f"{folder}/{name}", 0.0)
        self.store.clean()
        self.runner.advance(ROUND)

    def end_and_start(self) -> None:
        self.let_go()
        self.store.close()
        self._look()
        self.kit.runner = ManualRunner(self.kit.clock)
        self.store = self._open()

    def die_and_start(self) -> None:
        self.ledger.deaths.append(len(self.disk.operations))
        self.kit.killed()
        self.held.clear()
        self.store = self._open()

    # Inside

    def _open(self) -> Store:
        store = self.kit.store()
        store.open()
        store.dispatch.append(TellArrivals(self._arrived))
        store.start()
        for queue in list(store.queues):
            for record in read_queue(store, queue.topic, queue.queue_id):
                self._readable(number_of(record.body), record.physical_offset, record.queue_offset)
        return store

    def _turns(self) -> None:
        if self.dice.random() < 0.7:
            self.runner.run()
        else:
            self.runner.turn()

    def _made(self, topic: str, queue_id: int) -> tuple[int, bytes, dict[str, str]]:
        """The number, body and properties of the next message, which will stand in that queue."""
        number = len(self.ledger.puts)
        size = self.dice.choice((0, 10, 100, 100, 300, 1000, 5000))
        body = b"%08d" % number + self.dice.randbytes(size)
        keys = (f"key{number}", f"every{number % 3}")[: self.dice.randint(0, 2)]
        properties = {"UNIQ_KEY": f"U{number:031d}", "TAGS": f"Tag{number % 3}"}
        if keys:
            properties["KEYS"] = " ".join(keys)
        self.ledger.puts[number] = Put(body, topic, queue_id, len(self.disk.operations))
        return number, body, properties

    def _put(self, topic: str, queue_id: int) -> None:
        number, body, properties = self._made(topic, queue_id)
        self.store.put(message(topic, queue_id, body, **properties), self._teller([number]))

    def _teller(self, numbers: list[int]) -> "_Teller":
        return _Teller(self, numbers)

    def acknowledged(self, ticket: Ticket, numbers: list[int]) -> None:
        # A timeout says that the message is in the log, not that it is safe there.
        if ticket.status is not PutStatus.PUT_OK:
            return
        offsets = ticket.offsets or [ticket.physical_offset]
        for index, (number, offset) in enumerate(zip(numbers, offsets, strict=True)):
            told = Told(
                len(self.disk.operations), self.kit.clock.monotonic(), number, offset, ticket.queue_offset + index
            )
            self.ledger.acknowledged.append(told)

    def _arrived(self, requests: Sequence[DispatchRequest]) -> None:
        for request in requests:
            found = self.store.message_at(request.physical_offset)
            assert found is not None
            with found:
                record = decode_record(found.buffers()[0])
            self._readable(number_of(record.body), record.physical_offset, record.queue_offset)

    def _readable(self, number: int, physical_offset: int, queue_offset: int) -> None:
        told = Told(len(self.disk.operations), self.kit.clock.monotonic(), number, physical_offset, queue_offset)
        self.ledger.readable.append(told)

    def _look(self) -> None:
        moment = Moment(len(self.disk.operations), self.kit.clock.monotonic(), self.store.watermarks.flushed)
        self.ledger.moments.append(moment)


class _Teller:
    """The callback of a put, with the numbers of its messages."""

    def __init__(self, workload: Workload, numbers: list[int]) -> None:
        self._workload = workload
        self._numbers = numbers

    def __call__(self, ticket: Ticket) -> None:
        self._workload.acknowledged(ticket, self._numbers)


class Deaths:
    """The disk as the death of the process after any operation leaves it: with everything that was written."""

    def __init__(self, disk: FakeDisk) -> None:
        self._disk = disk

    def at(self, moment: int, *, same_life: bool = False) -> FakeDisk:
        """Everything that was done before is there, as if it had been synced.

        `same_life`: the machine tells that it has run on; else it may as well be a copy of the directory.
        """
        done = self._disk.operations[:moment]
        medium = Medium(Image())
        medium.advance(done)
        # The inode of each file and directory, and whether it is a directory.
        inodes = {ROOT: True} | {each.inode: each.size < 0 for each in done if each.kind == "create"}
        for inode, is_directory in inodes.items():
            sync = Operation("sync_dir", "", inode) if is_directory else Operation("sync", "", inode, size=moment)
            medium.advance([sync])
        disk = FakeDisk(self._disk.clock, medium.image(random.Random(0)))
        if same_life:
            disk.power = self._disk.power
        return disk
