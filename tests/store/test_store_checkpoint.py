"""The checkpoint: RocketMQ's bytes, and never a time that was not written."""

import errno
import os

import pytest

from cometmq.broker.store.checkpoint import Checkpoint
from cometmq.broker.store.disk import RealDisk
from cometmq.broker.store.fake_disk import FakeDisk
from support import golden_store

FIELDS = (
    "physic_msg_timestamp",
    "logics_msg_timestamp",
    "index_msg_timestamp",
    "master_flushed_offset",
    "confirm_phy_offset",
)

#: What the real brokers left, read by hand from the bytes.
GOLDEN = {
    "clean": (1794847521937, 1794847551979, 1794847498744, 0, 0),
    "trimmed": (1794847521937, 1794847551979, 1794847498744, 0, 3204207),
}


@pytest.fixture(params=["real", "fake"])
def place(request, tmp_path):
    if request.param == "real":
        return RealDisk(), f"{tmp_path}/checkpoint"
    return FakeDisk(), "/store/checkpoint"


def values(checkpoint):
    return tuple(getattr(checkpoint, name) for name in FIELDS)


def loaded(disk, path):
    checkpoint = Checkpoint(disk, path)
    checkpoint.load()
    return checkpoint


def test_without_a_file_everything_is_zero(place):
    checkpoint = loaded(*place)
    assert values(checkpoint) == (0, 0, 0, 0, 0)
    assert (checkpoint.min_timestamp, checkpoint.min_timestamp_index) == (0, 0)


def test_fields_come_back(place):
    disk, path = place
    checkpoint = loaded(disk, path)
    for number, name in enumerate(FIELDS, 1):
        setattr(checkpoint, name, number * 10**12)
    checkpoint.flush()
    assert disk.size(path) == 4096
    assert values(loaded(disk, path)) == tuple(number * 10**12 for number in range(1, 6))


def test_the_bytes_are_big_endian_and_padded(place):
    disk, path = place
    checkpoint = loaded(disk, path)
    checkpoint.physic_msg_timestamp = 0x0102030405060708
    checkpoint.confirm_phy_offset = 5
    checkpoint.flush()
    expected = bytes(range(1, 9)) + bytes(24) + bytes(7) + b"\5"
    assert disk.read_file(path) == expected + bytes(4096 - 40)


@pytest.mark.parametrize("name", golden_store.NAMES)
def test_golden(name):
    disk = FakeDisk()
    content = golden_store.files(name)["checkpoint"]
    disk.write_file("/store/checkpoint", content, backup=False)
    checkpoint = loaded(disk, "/store/checkpoint")
    assert checkpoint.encode() == content
    if name in GOLDEN:
        assert values(checkpoint) == GOLDEN[name]


@pytest.mark.parametrize(
    ("physic", "logics", "index", "least", "least_index"),
    [
        (10_000, 20_000, 30_000, 7_000, 7_000),
        (20_000, 10_000, 30_000, 7_000, 7_000),
        (20_000, 10_000, 5_000, 7_000, 5_000),
        (2_999, 10_000, 5_000, 0, 0),
        (3_001, 3_001, 0, 1, 0),
    ],
)
def test_where_recovery_may_begin(physic, logics, index, least, least_index):
    checkpoint = Checkpoint(FakeDisk(), "/c")
    checkpoint.physic_msg_timestamp = physic
    checkpoint.logics_msg_timestamp = logics
    checkpoint.index_msg_timestamp = index
    assert (checkpoint.min_timestamp, checkpoint.min_timestamp_index) == (least, least_index)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 39, 40, 4095])
def test_a_short_file_is_read_as_far_as_it_goes(length):
    disk = FakeDisk()
    whole = b"".join(number.to_bytes(8, "big") for number in range(1, 6)).ljust(4096, b"\0")
    disk.write_file("/c", whole[:length], backup=False)
    expected = [number if length >= 8 * number else 0 for number in range(1, 6)]
    assert list(values(loaded(disk, "/c"))) == expected


def test_a_time_below_zero_is_none():
    disk = FakeDisk()
    disk.write_file("/c", b"\xff" * 4096, backup=False)
    assert values(loaded(disk, "/c")) == (0, 0, 0, 0, 0)


def test_nothing_is_written_when_nothing_has_changed():
    disk = FakeDisk()
    checkpoint = loaded(disk, "/s/checkpoint")
    checkpoint.physic_msg_timestamp = 5
    checkpoint.flush()
    count = len(disk.operations)
    checkpoint.flush()
    again = loaded(disk, "/s/checkpoint")
    again.flush()
    assert len(disk.operations) == count
    again.physic_msg_timestamp = 6
    again.flush()
    assert len(disk.operations) > count


def test_a_power_loss_leaves_one_of_the_times_that_were_flushed():
    disk = FakeDisk()
    checkpoint = loaded(disk, "/s/checkpoint")
    # The pair in the middle is the trap: a mixture of their bytes would be later than both.
    times = [0, 0x01FF, 0x0200, 0xFFFFFF, 0x1000000]
    ends = []
    for time in times[1:]:
        checkpoint.physic_msg_timestamp = checkpoint.logics_msg_timestamp = time
        checkpoint.flush()
        ends.append(len(disk.operations))
    for at in range(len(disk.operations) + 1):
        done = sum(end <= at for end in ends)
        for seed in range(20):
            left = loaded(disk.crash(seed, at), "/s/checkpoint")
            assert left.physic_msg_timestamp == left.logics_msg_timestamp
            assert left.physic_msg_timestamp in times[done : done + 2]


def test_a_flush_that_failed_is_done_again():
    disk = FakeDisk()
    checkpoint = loaded(disk, "/s/checkpoint")
    checkpoint.physic_msg_timestamp = 7
    disk.fail_next("sync", errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        checkpoint.flush()
    checkpoint.flush()
    assert loaded(disk, "/s/checkpoint").physic_msg_timestamp == 7
