"""The bits of sysFlag have RocketMQ's values, and the functions touch only their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol import sysflag
from cometmq.protocol.errors import RecordError
from cometmq.protocol.sysflag import CompressionType

FLAGS = st.integers(0, 0x7FF)


@pytest.mark.parametrize(
    ("sys_flag", "kind"),
    [
        (0x1, CompressionType.ZLIB),  # a client from before the type bits
        (0x101, CompressionType.LZ4),
        (0x201, CompressionType.ZSTD),
        (0x301, CompressionType.ZLIB),
    ],
)
def test_compression_type_of_the_bits(sys_flag: int, kind: CompressionType) -> None:
    assert sysflag.is_compressed(sys_flag)
    assert sysflag.compression_type(sys_flag) is kind


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_unknown_compression_type_is_refused(number: int) -> None:
    with pytest.raises(RecordError, match=f"unknown compression type {number}"):
        sysflag.compression_type(1 | number << 8)


@given(FLAGS, st.sampled_from(CompressionType))
def test_compression_is_set_and_taken_off(flags: int, kind: CompressionType) -> None:
    marked = sysflag.with_compression(flags, kind)
    assert sysflag.is_compressed(marked)
    assert sysflag.compression_type(marked) is kind
    assert marked & 0xFE == flags & 0xFE
    plain = sysflag.without_compression(marked)
    assert not sysflag.is_compressed(plain)
    assert plain == marked & ~1


def test_bits_of_compression() -> None:
    assert sysflag.with_compression(0, CompressionType.LZ4) == 0x101
    assert sysflag.with_compression(0x301, CompressionType.ZSTD) == 0x201
    assert sysflag.with_compression(8, CompressionType.ZLIB) == 0x309


@given(FLAGS, st.sampled_from([0, 4, 8, 0xC]))
def test_transaction_state_replaces_the_old_one(flags: int, state: int) -> None:
    changed = sysflag.with_transaction_state(flags, state)
    assert sysflag.transaction_state(changed) == state
    assert changed & ~0xC == flags & ~0xC


def test_transaction_states() -> None:
    states = (
        sysflag.TRANSACTION_NOT,
        sysflag.TRANSACTION_PREPARED,
        sysflag.TRANSACTION_COMMIT,
        sysflag.TRANSACTION_ROLLBACK,
    )
    assert states == (0, 4, 8, 12)


@given(FLAGS, st.booleans(), st.booleans())
def test_host_bits_follow_the_hosts(flags: int, born: bool, store: bool) -> None:
    changed = sysflag.with_host_flags(flags, born_v6=born, store_v6=store)
    assert bool(changed & 0x10) is born
    assert bool(changed & 0x20) is store
    assert changed & ~0x30 == flags & ~0x30
