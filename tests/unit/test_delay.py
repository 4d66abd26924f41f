"""The delay level table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.errors import ProtocolError

LEVELS = DelayLevels.parse()


def test_the_default_table() -> None:
    seconds = [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200]
    assert list(LEVELS.millis) == [second * 1000 for second in seconds]
    assert LEVELS.max_level == 18


@pytest.mark.parametrize(("level", "used"), [(-1, 0), (0, 0), (1, 1), (18, 18), (19, 18), (2**31 - 1, 18)])
def test_clamp(level: int, used: int) -> None:
    assert LEVELS.clamp(level) == used


@pytest.mark.parametrize(("level", "millis"), [(1, 1_000), (3, 10_000), (18, 7_200_000), (99, 7_200_000), (0, 1_000)])
def test_millis_of_a_level(level: int, millis: int) -> None:
    assert LEVELS.millis_of(level) == millis
    assert LEVELS.deliver_time(level, 1_700_000_000_000) == 1_700_000_000_000 + millis


def test_level_of_a_duration_is_exact() -> None:
    assert LEVELS.level_of(10_000) == 3
    assert LEVELS.level_of(7_200_000) == 18
    assert LEVELS.level_of(10_001) is None
    assert LEVELS.level_of(0) is None


@given(st.integers(1, 18))
def test_level_and_duration_agree(level: int) -> None:
    assert LEVELS.level_of(LEVELS.millis_of(level)) == level


def test_all_units_and_loose_blanks() -> None:
    assert DelayLevels.parse(" 2s  3m\t4h 5d ").millis == (2_000, 180_000, 14_400_000, 432_000_000)


@pytest.mark.parametrize("text", ["", "  ", "s", "1", "1x", "-1s", "1.5s", "1s 5", "١s", "9999999999s", "1 s"])
def test_a_wrong_table_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="delay level table"):
        DelayLevels.parse(text)


@given(st.one_of(st.text(max_size=20), st.text("12smhd ", max_size=12)))
def test_any_text_is_a_table_or_refused(text: str) -> None:
    try:
        levels = DelayLevels.parse(text)
    except ProtocolError:
        return
    assert levels.max_level == len(text.split())
