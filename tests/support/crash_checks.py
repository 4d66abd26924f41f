"""What must be true of a store that was opened again after a catastrophe.

Log, queues and index agree; every message is one that was put, whole and once; everything that had to survive is there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.index_file import IndexFile
from cometmq.broker.store.index_keys import key_hash
from cometmq.broker.store.power_loss import Operation
from cometmq.broker.store.scan import Scanner, Stop, Verify
from cometmq.broker.store.store import Store
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.record import Record
from support.crash_workload import Ledger, Told, number_of
from support.store_kit import read_queue


@dataclass(frozen=True, slots=True)
class Found:
    """What a store holds: records by the number of their message, and by queue."""

    records: dict[int, Record]
    queues: dict[tuple[str, int], tuple[int, int]]


def scan_log(store: Store) -> list[DispatchRequest]:
    """The records of the log, read from its files; the log must be readable to its last byte."""
    scanner = Scanner(DelayLevels.parse(store.options.message_delay_level))
    out: list[DispatchRequest] = []
    end = store.commit_log.max_offset
    for file in store.commit_log.files.files:
        limit = min(end - file.start, file.size)
        if limit <= 0:
            continue
        result = scanner.scan(file.view(), file.start, 0, limit, out, verify=Verify.BODY_CRC)
        whole = result.stop is Stop.BLANK or (result.stop is Stop.ENOUGH and result.position == limit)
        assert whole, f"the log cannot be read at {file.start + result.position} of {end}: {result}"
    return out


def look(store: Store) -> Found:
    """Read everything, in each way that there is, and compare."""
    records: dict[int, Record] = {}
    ends: dict[tuple[str, int], tuple[int, int]] = {}
    by_offset: dict[int, Record] = {}
    first_kept = store.commit_log.min_offset
    for queue in list(store.queues):
        topic, queue_id = queue.topic, queue.queue_id
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        ends[topic, queue_id] = (low, high)
        expected = low
        for record in read_queue(store, topic, queue_id):
            assert (record.topic, record.queue_id) == (topic, queue_id)
            assert record.queue_offset == expected, f"{topic}-{queue_id}: {record.queue_offset} in place of {expected}"
            expected += 1
            number = number_of(record.body)
            assert number not in records, f"message {number} appears twice"
            records[number] = record
            by_offset[record.physical_offset] = record
        assert expected == high, f"{topic}-{queue_id} ends at {high}, messages at {expected}"
    logged = scan_log(store)
    in_log = {request.physical_offset for request in logged}
    assert in_log == set(by_offset), f"only in one of log and queues: {sorted(in_log ^ set(by_offset))}"
    for request in logged:
        record = by_offset[request.physical_offset]
        assert (request.topic, request.queue_id) == (record.topic, record.queue_id)
        assert request.queue_offset == record.queue_offset
        queue_of = store.queues.get(request.topic, request.queue_id)
        assert queue_of is not None
        unit = queue_of.unit(request.queue_offset)
        assert unit is not None
        assert unit[:2] == (request.physical_offset, request.size)
        if queue_of.ext is None:
            assert unit[2] == request.tags_code
        else:
            ext = queue_of.ext.get(unit[2])
            assert ext is not None
            assert (ext.tags_code, ext.store_time) == (request.tags_code, request.store_timestamp)
    times = [request.store_timestamp for request in logged]
    assert times == sorted(times)
    _compare_index(store, logged, first_kept)
    return Found(records, ends)


def _keys(request: DispatchRequest) -> Iterator[str]:
    if request.unique_key:
        yield request.unique_key.decode()
    if request.keys:
        yield from request.keys.decode().split(" ")


def _compare_index(store: Store, logged: Iterable[DispatchRequest], first_kept: int) -> None:
    """Each key of each record is in the index, once, and no entry points to what is not there."""
    index = store.index
    assert index is not None
    wanted: list[tuple[int, int]] = []
    for request in logged:
        wanted += [(key_hash(request.topic, key), request.physical_offset) for key in _keys(request)]
    entries = [entry for file in index.files for entry in index_entries(file) if entry[1] >= first_kept]
    missing = set(wanted) - set(entries)
    assert not missing, f"not in the index: {sorted(missing, key=lambda pair: pair[1])[:5]}"
    assert len(entries) == len(wanted), f"{len(entries)} entries for {len(wanted)} keys"


def index_entries(file: IndexFile) -> Iterator[tuple[int, int]]:
    """Hash and physical offset of each entry that a walk along the chains of a file reaches."""
    for slot in range(file.slots):
        number = file._slot(slot)
        while 0 < number < file.count:
            entry_hash, offset, _, before = file.entry(number)
            assert entry_hash % file.slots == slot
            assert before < number
            yield entry_hash, offset
            number = before


def check_told(found: Found, told: Iterable[Told], *, kept_from: int) -> None:
    """What somebody was told is there, where they were told it is; unless cleaning has taken it."""
    for entry in told:
        record = found.records.get(entry.number)
        if record is None:
            assert entry.physical_offset < kept_from, f"message {entry.number} is lost: {entry}"
            continue
        assert record.physical_offset == entry.physical_offset
        assert record.queue_offset == entry.queue_offset


def check_no_ghosts(found: Found, ledger: Ledger, moment: int) -> None:
    """Everything that is there was put, by then, and is whole."""
    for number, record in found.records.items():
        put = ledger.puts[number]
        assert put.after <= moment, f"message {number} comes from the future"
        assert record.body == put.body
        assert (record.topic, record.queue_id) == (put.stored_topic, put.stored_queue_id)


def check_ends(found: Found, ledger: Ledger, told: Iterable[Told]) -> None:
    """No queue has gone back behind what somebody was told, although the messages may have been cleaned away."""
    highest: dict[tuple[str, int], int] = {}
    for entry in told:
        put = ledger.puts[entry.number]
        key = (put.stored_topic, put.stored_queue_id)
        highest[key] = max(highest.get(key, 0), entry.queue_offset + 1)
    for key, offset in highest.items():
        assert key in found.queues, f"{key} is gone, message {offset - 1} was acknowledged"
        assert found.queues[key][1] >= offset, f"{key} ends at {found.queues[key][1]}, {offset - 1} was acknowledged"


def kept_from(operations: list[Operation], moment: int, file_size: int) -> int:
    """Where the log may begin after the first `moment` operations: after the files that cleaning has removed."""
    begin = 0
    for operation in operations[:moment]:
        if operation.kind == "unlink" and "/commitlog/" in operation.path and operation.path[-20:].isdigit():
            start = int(operation.path[-20:])
            if start == begin:
                begin += file_size
    return begin
