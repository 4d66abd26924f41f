"""The extension of a consume queue: units, addresses, the ends of files, recovery."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.store.append_log import Upkeep
from cometmq.broker.store.consume_queue import UNIT, ConsumeQueue
from cometmq.broker.store.consume_queue_ext import MAX_ADDRESS, ConsumeQueueExt, ExtUnit, is_address
from cometmq.broker.store.fake_disk import FakeDisk
from cometmq.broker.store.log_files import LogFiles

FILE = 256
FOLDER = "/store/consumequeue_ext/T/0"
QUEUE_FOLDER = "/store/consumequeue/T/0"
LOWEST = -(2**63)


def ext_on(disk, upkeep=None) -> ConsumeQueueExt:
    files = LogFiles(disk, FOLDER, FILE)
    files.load()
    return ConsumeQueueExt(upkeep or Upkeep(disk, 8), files)


def queue_on(disk) -> ConsumeQueue:
    upkeep = Upkeep(disk, 8)
    files = LogFiles(disk, QUEUE_FOLDER, 200)
    files.load()
    return ConsumeQueue("T", 0, upkeep, files, ext_on(disk, upkeep))


def raw(disk, start=0) -> bytes:
    return disk.read_file(f"{FOLDER}/{start:020d}")


def fill(queue: ConsumeQueue, count: int, bits: bytes = b"") -> None:
    for _ in range(count):
        number = queue.next_offset
        assert queue.append(number, number * 100, 100, number * 7 - 9, number + 1_000_000, bit_map=bits)
    queue.write_out()


def ext_units(queue: ConsumeQueue) -> list[ExtUnit]:
    return [queue.ext.get(queue.unit(offset)[2]) for offset in range(queue.max_offset)]


def wanted(count: int, bits: bytes = b"") -> list[ExtUnit]:
    return [ExtUnit(number * 7 - 9, number + 1_000_000, bits) for number in range(count)]


class TestAddresses:
    @pytest.mark.parametrize("code", [0, 1, -1, 2**31 - 1, -(2**31)])
    def test_a_tags_code_is_none(self, code):
        assert not is_address(code)

    @pytest.mark.parametrize("code", [-(2**31) - 1, LOWEST, LOWEST + 50_331_648])
    def test_what_is_below_every_tags_code_is_one(self, code):
        assert is_address(code)

    def test_an_address_is_the_position_below_everything(self):
        ext = ext_on(FakeDisk())
        assert ext.put(1, 2) == LOWEST
        assert ext.put(1, 2, bytes(14)) == LOWEST + 20
        assert ext.put(1, 2) == LOWEST + 54
        assert MAX_ADDRESS == -2147483649


class TestUnits:
    def test_layout(self):
        disk = FakeDisk()
        ext = ext_on(disk)
        ext.put(-2, 1794848781130, b"\x12\x34\x56")
        ext.put(5, 7)
        ext.write_out()
        assert raw(disk)[:43].hex() == (
            "0017" "fffffffffffffffe" "000001a1e552f34a" "0003" "123456"
            "0014" "0000000000000005" "0000000000000007" "0000"
        )  # fmt: skip
        assert not any(raw(disk)[43:])

    @given(bits=st.lists(st.binary(max_size=60), max_size=30))
    def test_what_is_put_can_be_got(self, bits):
        ext = ext_on(FakeDisk())
        addresses = [ext.put(number - 9, number + 77, bit_map) for number, bit_map in enumerate(bits)]
        ext.write_out()
        assert [ext.get(address) for address in addresses] == [
            ExtUnit(number - 9, number + 77, bit_map) for number, bit_map in enumerate(bits)
        ]

    def test_a_file_ends_with_a_mark_and_four_bytes_at_least(self):
        disk = FakeDisk()
        ext = ext_on(disk)
        # 256 - 4 = 252: twelve units of 20 fit, and a thirteenth would end at 260.
        addresses = [ext.put(number, number) for number in range(13)]
        ext.write_out()
        assert addresses[-1] == LOWEST + FILE
        assert raw(disk)[240:] == b"\xff\xff" + bytes(14)
        assert raw(disk, FILE)[:20] == struct.pack(">hqqh", 20, 12, 12, 0)
        assert ext.get(addresses[-1]) == ExtUnit(12, 12)

    @pytest.mark.parametrize(("size", "address"), [(232, LOWEST + 20), (233, LOWEST + FILE)])
    def test_exactly_four_bytes_may_be_left(self, size, address):
        ext = ext_on(FakeDisk())
        ext.put(0, 0)
        assert ext.put(1, 1, bytes(size - 20)) == address

    def test_a_unit_that_fits_no_file_is_refused(self):
        ext = ext_on(FakeDisk())
        assert ext.put(1, 2, bytes(40_000)) is None
        assert ext.put(1, 2, bytes(233)) is None
        assert ext.put(1, 2, bytes(232)) == LOWEST

    @pytest.mark.parametrize("address", [0, 5, -(2**31), LOWEST + 40, LOWEST + 7, LOWEST + 10**9, MAX_ADDRESS])
    def test_an_address_where_nothing_is(self, address):
        ext = ext_on(FakeDisk())
        ext.put(3, 4)
        ext.put(3, 4)
        ext.write_out()
        assert ext.get(address) is None


class TestInAQueue:
    def test_units_hold_addresses_and_the_rest_is_there(self):
        queue = queue_on(FakeDisk())
        fill(queue, 25, b"\x01\x02")
        assert all(is_address(code) for _, _, _, code, _ in queue.entries(0, 10))
        assert ext_units(queue) == wanted(25, b"\x01\x02")

    def test_extra_queues_of_a_message_keep_the_tags_code(self):
        disk = FakeDisk()
        queue = queue_on(disk)
        queue.append(0, 0, 100, 12345, 7, extended=False)
        queue.write_out()
        assert queue.unit(0) == (0, 100, 12345)
        assert not disk.exists(FOLDER)

    def test_what_does_not_fit_keeps_the_tags_code(self):
        queue = queue_on(FakeDisk())
        queue.append(0, 0, 100, 12345, 7, bit_map=bytes(500))
        queue.write_out()
        assert queue.unit(0) == (0, 100, 12345)

    def test_a_record_that_the_queue_has_gets_no_second_unit(self):
        queue = queue_on(FakeDisk())
        fill(queue, 3)
        end = queue.ext.end
        assert not queue.append(2, 200, 100, 1, 1)
        assert queue.ext.end == end

    @pytest.mark.parametrize("thorough", [False, True])
    @pytest.mark.parametrize("count", [0, 1, 12, 13, 25, 47])
    def test_goes_on_after_a_restart(self, count, thorough):
        disk = FakeDisk()
        fill(queue_on(disk), count)
        queue = queue_on(disk)
        queue.recover(thorough=thorough)
        fill(queue, 5)
        assert ext_units(queue) == wanted(count + 5)

    def test_units_that_the_queue_does_not_use_are_overwritten(self):
        """A crash after the extension was written, before the queue was."""
        disk = FakeDisk()
        queue = queue_on(disk)
        fill(queue, 5)
        end = queue.ext.end
        queue.append(5, 500, 100, 1, 1)
        disk.fail_next("write", path=QUEUE_FOLDER)
        with pytest.raises(OSError, match="Input/output"):
            queue.write_out()
        disk.kill()
        queue = queue_on(disk)
        queue.recover(thorough=True)
        assert queue.ext.end == end
        fill(queue, 2)
        assert ext_units(queue) == wanted(7)

    def test_without_a_unit_in_use_all_are_kept(self):
        """The extension was switched off for a while: older units of the queue may use it."""
        disk = FakeDisk()
        ext = ext_on(disk)
        for number in range(30):
            ext.put(number, number)
        ext.write_out()
        again = ext_on(disk)
        again.recover(None, thorough=True)
        assert again.end == ext.end
        for junk in (b"\x00\x05", b"\x7f\xff", b"\x80\x00"):
            # A size that cannot be is the end too.
            ext.files.last.write(ext.written - ext.files.last.start, [junk])
            again = ext_on(disk)
            again.recover(None, thorough=True)
            assert again.end == ext.end

    @pytest.mark.parametrize("kept", [0, 1, 9, 10, 13, 24])
    def test_is_cut_with_the_queue(self, kept):
        disk = FakeDisk()
        queue = queue_on(disk)
        fill(queue, 25)
        ends = [queue.unit(n)[2] - LOWEST for n in range(25)]
        queue.truncate(kept * 100)
        assert queue.ext.end == (ends[kept - 1] + 20 if kept else 0)
        fill(queue, 25 - kept)
        assert ext_units(queue) == wanted(25)
        assert [queue.unit(n)[2] - LOWEST for n in range(25)] == ends

    def test_is_cut_with_the_units_of_a_turn(self):
        queue = queue_on(FakeDisk())
        fill(queue, 5)
        end = queue.ext.end
        queue.append(5, 500, 100, 1, 1)
        queue.truncate(500)
        assert queue.ext.end == end

    def test_expires_with_the_queue(self):
        disk = FakeDisk()
        queue = queue_on(disk)
        fill(queue, 50)
        assert len(queue.ext.files.files) == 5
        queue.delete_expired(3000)
        # Unit 30 is in the third file; RocketMQ keeps a file that ends where the first address begins.
        assert [file.start for file in queue.ext.files.files] == [512, 768, 1024]
        assert queue.ext.get(queue.unit(30)[2]) == ExtUnit(30 * 7 - 9, 1_000_030)

    def test_a_plain_tags_code_is_read_as_it_is(self):
        """Units from before the extension was switched on."""
        disk = FakeDisk()
        plain = ConsumeQueue("T", 0, Upkeep(disk, 8), LogFiles(disk, QUEUE_FOLDER, 200))
        plain.append(0, 0, 100, 42)
        plain.write_out()
        queue = queue_on(disk)
        queue.recover(thorough=False)
        fill(queue, 1)
        assert UNIT.unpack(queue.units(0, 1)) == (0, 100, 42)
        assert queue.ext.get(queue.unit(1)[2]) == ExtUnit(-2, 1_000_001)

    def test_is_flushed_and_removed_with_the_queue(self):
        disk = FakeDisk()
        disk.make_dirs("/store", sync=True)
        queue = queue_on(disk)
        fill(queue, 5)
        flush = queue._upkeep.begin_flush()
        flush.sync()
        assert flush.finish()
        again = queue_on(disk.crash(3))
        again.recover(thorough=True)
        assert ext_units(again) == wanted(5)
        queue.destroy()
        assert not disk.exists(FOLDER)
        assert not queue._upkeep.written
