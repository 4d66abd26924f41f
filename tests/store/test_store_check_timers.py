"""The check of timer log and timer wheel: what RocketMQ's timers leave in a store."""

import pytest

from cometmq.broker.store.check import Check
from cometmq.broker.store.check_report import Report
from cometmq.broker.store.check_timers import SLOT, UNIT
from cometmq.broker.store.errors import OptionError
from cometmq.protocol.record import MAGIC_BLANK
from support.store_kit import StoreKit

FILE = 52 * 4 + 16
MOMENT = 1_700_000_100


def unit(before: int = -1, magic: int = 1, record: int = 0, size: int = 100) -> bytes:
    return UNIT.pack(52, before, magic, MOMENT * 1000, 5000, record, size, 7, 0)


def blank(left: int) -> bytes:
    return left.to_bytes(4) + bytes(8) + (MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4)


def checked(units: bytes, slots: dict[int, tuple[int, int, int]], *, clean: bool = True, second: bytes = b"") -> Report:
    """A store with a log of some messages and these timers. Slots: number -> first unit, last unit, count."""
    kit = StoreKit()
    store = kit.opened()
    kit.fill(store, 4)
    if clean:
        store.close()
    else:
        kit.killed()
    disk = kit.fake
    disk.make_dirs("/store/timerlog")
    for start, data in ((0, units), (FILE, second)):
        if data:
            file = disk.open(f"/store/timerlog/{start:020d}", size=FILE, create=True)
            file.write(0, [data])
            file.close()
    wheel = bytearray(SLOT.size * 64)
    for number, slot in slots.items():
        SLOT.pack_into(wheel, number * SLOT.size, MOMENT + number, *slot, 0)
    disk.write_file("/store/timerwheel", bytes(wheel), backup=False)
    return Check("/store", kit.properties, disk=disk).run()


def test_timers_that_are_right() -> None:
    full = unit() + unit(0) + unit(magic=2) + unit(52)
    report = checked(full + blank(16), {3: (0, 156, 3), 5: (FILE, FILE, 1)}, second=unit(156))
    assert report.sound, report.defects
    assert report.timers == 5


@pytest.mark.parametrize(
    ("units", "slots", "path", "offset", "what"),
    [
        (unit() + unit(magic=0x77), {}, "/timerlog/", 52, "magic 0x77"),
        (unit() + unit(before=52), {}, "/timerlog/", 52, "said to be at 52"),
        (unit(record=-5), {}, "/timerlog/", 0, "said to be at -5"),
        (unit(record=1 << 40), {}, "/timerlog/", 0, "the log ends at"),
        (unit() + b"\1" * 52, {}, "/timerlog/", 52, "no unit"),
        (unit(), {9: (0, 52, 1)}, "/timerwheel", 9 * 32, "the timer log ends at 52"),
        (unit() + unit(), {9: (52, 0, 2)}, "/timerwheel", 9 * 32, "comes after"),
        (unit(), {9: (0, 0, -1)}, "/timerwheel", 9 * 32, "-1 messages"),
    ],
)
def test_each_defect_is_named_with_file_and_offset(
    units: bytes, slots: dict[int, tuple[int, int, int]], path: str, offset: int, what: str
) -> None:
    report = checked(units, slots)
    (defect,) = report.defects
    assert path in defect.path
    assert defect.offset == offset
    assert what in defect.what
    assert checked(units, slots, clean=False).sound, "the next start puts timers right after a crash"


def test_a_log_over_several_paths_is_refused_and_not_called_sound() -> None:
    kit = StoreKit()
    kit.opened().close()
    with pytest.raises(OptionError, match="storePathCommitLog"):
        Check("/store", kit.properties | {"storePathCommitLog": "/store/commitlog,/more"}, disk=kit.disk)
