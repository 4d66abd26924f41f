"""Damage to plant in a copy of a golden store, one function each.

A function says what must be found where, and from which physical offset on messages are lost.
"""

import os
import struct
from collections.abc import Callable
from pathlib import Path

from cometmq.broker.store.check_report import Kind
from support import golden_store
from support.golden_store import GoldenMessage

LOG_FILE = 1048576
SLOTS, ENTRIES = 1000, 4000
FIRST_ENTRY = 40 + 4 * SLOTS

#: Kind, file and position of the defect, and the physical offset from which on messages are lost.
Planted = tuple[Kind, Path, int | None, int | None]


def write(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def read(path: Path, offset: int, length: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(length)


def flip(path: Path, offset: int) -> None:
    write(path, offset, bytes([read(path, offset, 1)[0] ^ 0x10]))


def a_message(name: str, at_least: int, topic: str | None = None) -> GoldenMessage:
    """The first message of a directory from a physical offset on."""
    messages = [
        told
        for told in golden_store.manifest(name).messages
        if told.physical_offset >= at_least and (topic is None or told.topic == topic)
    ]
    return min(messages, key=lambda told: told.physical_offset)


def log_place(root: Path, physical: int) -> tuple[Path, int]:
    start = physical - physical % LOG_FILE
    return root / "commitlog" / f"{start:020d}", physical - start


def unit_place(root: Path, topic: str, queue_id: int, offset: int) -> tuple[Path, int]:
    start = offset * 20 - offset * 20 % 6000
    return root / "consumequeue" / topic / str(queue_id) / f"{start:020d}", offset * 20 - start


def header_flip(inside: int) -> Callable[[Path], Planted]:
    def damage(root: Path) -> Planted:
        told = a_message("clean", 1_500_000, "StoreTopic")
        path, at = log_place(root, told.physical_offset)
        flip(path, at + inside)
        return Kind.RECORD, path, at, told.physical_offset

    return damage


def body_flip(root: Path) -> Planted:
    told = a_message("clean", 1_500_000, "StoreTopic")
    path, at = log_place(root, told.physical_offset)
    flip(path, at + 88 + told.body_length // 2)
    return Kind.RECORD, path, at, told.physical_offset


def last_body_flip(root: Path) -> Planted:
    told = max(golden_store.manifest("clean").messages, key=lambda each: each.physical_offset)
    path, at = log_place(root, told.physical_offset)
    flip(path, at + 90)
    return Kind.RECORD, path, at, told.physical_offset


def wrong_physical_offset(root: Path) -> Planted:
    told = a_message("clean", 1_500_000)
    path, at = log_place(root, told.physical_offset)
    write(path, at + 28, struct.pack(">q", told.physical_offset + 8))
    return Kind.RECORD, path, at, told.physical_offset


def zeroed_page(root: Path) -> Planted:
    told = a_message("clean", 2_200_000)
    path, at = log_place(root, told.physical_offset)
    write(path, at, bytes(4096))
    return Kind.RECORD, path, at, told.physical_offset


def wrong_blank_size(root: Path) -> Planted:
    path, at = log_place(root, 1046722)
    write(path, at, struct.pack(">i", 77))
    return Kind.BLANK, path, at, None


def middle_file_deleted(root: Path) -> Planted:
    path = root / "commitlog" / f"{LOG_FILE:020d}"
    path.unlink()
    return Kind.LOG_FILE, path, None, LOG_FILE


def short_log_file(root: Path) -> Planted:
    path = root / "commitlog" / f"{2 * LOG_FILE:020d}"
    os.truncate(path, 500_000)
    lost = max(
        told.physical_offset
        for told in golden_store.manifest("clean").messages
        if told.physical_offset < 2 * LOG_FILE + 500_000
    )
    return Kind.LOG_FILE, path, 500_000, lost


def foreign_log_file(root: Path) -> Planted:
    path = root / "commitlog" / "00000000000000000077"
    path.write_bytes(b"what")
    return Kind.LOG_FILE, path, None, None


def cut_unit(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 1, 100)
    write(path, at + 9, bytes(11))
    return Kind.UNIT, path, at, None


def wrong_unit(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 1, 100)
    flip(path, at + 7)
    return Kind.UNIT, path, at, None


def wrong_unit_size(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 1, 33)
    flip(path, at + 11)
    return Kind.UNIT, path, at, None


def wrong_tags_code(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 1, 33)
    flip(path, at + 19)
    return Kind.UNIT, path, at + 12, None


def swapped_units(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 0, 7)
    data = read(path, at, 40)
    write(path, at, data[20:] + data[:20])
    return Kind.UNIT, path, at, None


def zeroed_unit(root: Path) -> Planted:
    path, at = unit_place(root, "StoreTopic", 0, 50)
    write(path, at, bytes(20))
    return Kind.UNIT, path, at, None


def lost_tail_of_queue(root: Path) -> Planted:
    end = golden_store.manifest("clean").queues["StoreTopic", 0].max_offset
    path, at = unit_place(root, "StoreTopic", 0, end - 5)
    write(path, at, bytes(100))
    return Kind.UNIT, path, at, None


def queue_ahead(root: Path) -> Planted:
    end = golden_store.manifest("clean").queues["StoreTopic", 0].max_offset
    path, at = unit_place(root, "StoreTopic", 0, end)
    write(path, at, struct.pack(">qiq", 4_000_000, 300, 0))
    return Kind.UNIT, path, at, None


def extra_unit(root: Path) -> Planted:
    end = golden_store.manifest("clean").queues["StoreTopic", 0].max_offset
    path, at = unit_place(root, "StoreTopic", 0, end)
    write(path, at, read(path, at - 20, 20))
    return Kind.UNIT, path, at, None


def queue_file_deleted(root: Path) -> Planted:
    path = root / "consumequeue/StoreTopic/1/00000000000000000000"
    path.unlink()
    return Kind.UNIT, path, 0, None


def queue_deleted(root: Path) -> Planted:
    folder = root / "consumequeue/StoreTopic/1"
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return Kind.QUEUE_FILE, folder, None, None


def short_queue_file(root: Path) -> Planted:
    path = root / "consumequeue/StoreTopic/1/00000000000000000000"
    os.truncate(path, 3010)
    return Kind.QUEUE_FILE, path, 3010, None


def index_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "index").iterdir())[number]


def wrong_index_hash(root: Path) -> Planted:
    path = index_file(root)
    at = FIRST_ENTRY + 20 * 500
    flip(path, at + 3)
    return Kind.INDEX_ENTRY, path, at, None


def wrong_index_offset(root: Path) -> Planted:
    path = index_file(root)
    at = FIRST_ENTRY + 20 * 500
    (place,) = struct.unpack(">q", read(path, at + 4, 8))
    write(path, at + 4, struct.pack(">q", place + 1))
    return Kind.INDEX_ENTRY, path, at + 4, None


def wrong_index_time(root: Path) -> Planted:
    path = index_file(root)
    at = FIRST_ENTRY + 20 * 500 + 12
    flip(path, at + 3)
    return Kind.INDEX_ENTRY, path, at, None


def broken_chain(root: Path) -> Planted:
    path = index_file(root)
    number = next(n for n in range(3999, 1, -1) if struct.unpack(">i", read(path, FIRST_ENTRY + 20 * n + 16, 4))[0] > 9)
    at = FIRST_ENTRY + 20 * number + 16
    write(path, at, struct.pack(">i", 1))
    return Kind.INDEX_ENTRY, path, at, None


def wrong_slot(root: Path) -> Planted:
    path = index_file(root)
    (key_hash,) = struct.unpack(">i", read(path, FIRST_ENTRY + 20 * 3000, 4))
    at = 40 + 4 * (key_hash % SLOTS)
    write(path, at, bytes(4))
    return Kind.INDEX_ENTRY, path, at, None


def wrong_index_header(root: Path) -> Planted:
    path = index_file(root, 1)
    flip(path, 35)
    return Kind.INDEX_FILE, path, 32, None


def short_index_file(root: Path) -> Planted:
    path = index_file(root, 1)
    os.truncate(path, 5000)
    return Kind.INDEX_FILE, path, 5000, None


def offset_beyond_max(root: Path) -> Planted:
    path = root / "config/consumerOffset.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"StoreRetry@CG_store":{0:3,', b'"StoreRetry@CG_store":{0:4,'))
    return Kind.OFFSET, path, text.index(b'"StoreRetry@CG_store"'), None


def negative_offset(root: Path) -> Planted:
    path = root / "config/consumerOffset.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b'"StoreRetry@CG_store":{0:3,', b'"StoreRetry@CG_store":{0:-3,'))
    return Kind.OFFSET, path, text.index(b'"StoreRetry@CG_store"'), None


def delay_offset_beyond_max(root: Path) -> Planted:
    path = root / "config/delayOffset.json"
    text = path.read_bytes()
    path.write_bytes(text.replace(b"{1:7,", b"{1:8,"))
    return Kind.OFFSET, path, text.index(b"1:7,"), None


def damaged_table(root: Path) -> Planted:
    path = root / "config/topics.json"
    path.write_bytes(path.read_bytes()[:300])
    return Kind.CONFIG, path, None, None


def short_checkpoint(root: Path) -> Planted:
    path = root / "checkpoint"
    os.truncate(path, 17)
    return Kind.CHECKPOINT, path, 17, None


DAMAGES: dict[str, Callable[[Path], Planted]] = {
    "flipped size": header_flip(2),
    "flipped magic": header_flip(5),
    "flipped body checksum": header_flip(9),
    "flipped sys flag of the host": header_flip(39),
    "flipped length of the body": header_flip(86),
} | {
    function.__name__.replace("_", " "): function
    for function in (
        body_flip, last_body_flip, wrong_physical_offset, zeroed_page, wrong_blank_size, middle_file_deleted,
        short_log_file, foreign_log_file, cut_unit, wrong_unit, wrong_unit_size, wrong_tags_code, swapped_units,
        zeroed_unit, lost_tail_of_queue, queue_ahead, extra_unit, queue_file_deleted, queue_deleted, short_queue_file,
        wrong_index_hash, wrong_index_offset, wrong_index_time, broken_chain, wrong_slot, wrong_index_header,
        short_index_file, offset_beyond_max, negative_offset, delay_offset_beyond_max, damaged_table, short_checkpoint,
    )
}  # fmt: skip


# Extensions, batches, light queues, whole-record checksums


def ext_unit(root: Path) -> Planted:
    path = root / "consumequeue_ext/ExtTopic/0/00000000000000000000"
    size = struct.unpack(">h", read(path, 0, 2))[0]
    flip(path, size + 9)
    return Kind.EXT_UNIT, path, size, None


def ext_address(root: Path) -> Planted:
    path = root / "consumequeue/ExtTopic/0/00000000000000000000"
    write(path, 20 * 5 + 12, struct.pack(">q", -(1 << 63) + 100_000))
    return Kind.UNIT, path, 20 * 5 + 12, None


def batch_unit(root: Path) -> Planted:
    path = next((root / "batchconsumequeue/BatchCqTopic").rglob("0*0"))
    flip(path, 46 * 2 + 37)
    return Kind.UNIT, path, 46 * 2, None


def batch_unit_zeroed(root: Path) -> Planted:
    path = next((root / "batchconsumequeue/BatchCqTopic").rglob("0*0"))
    write(path, 46, bytes(46))
    return Kind.UNIT, path, 46, None


def light_unit(root: Path) -> Planted:
    path = root / "consumequeue/%LMQ%one/0/00000000000000000000"
    flip(path, 20 + 7)
    return Kind.UNIT, path, 20, None


def flag_flip(root: Path) -> Planted:
    """Only the checksum of the whole record can tell."""
    told = a_message("special", 3000, "ExtTopic")
    path, at = log_place(root, told.physical_offset)
    flip(path, at + 19)
    return Kind.RECORD, path, at, told.physical_offset


SPECIAL: tuple[Callable[[Path], Planted], ...] = (
    ext_unit, ext_address, batch_unit, batch_unit_zeroed, light_unit, flag_flip,
)  # fmt: skip
