"""Property text: both forms, Java's leniency, the limit, and the functions on bytes against the dict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol import properties
from cometmq.protocol.errors import RecordError

NAMES = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=("Cs",)), min_size=1, max_size=20)
VALUES = st.text(st.characters(exclude_characters="\x02", exclude_categories=("Cs",)), min_size=1, max_size=20)
PAIRS = st.dictionaries(NAMES, VALUES, max_size=8)
# Texts in which separators, few names and emptiness are frequent.
MESSY = st.lists(st.sampled_from([b"\x01", b"\x02", b"A", b"AB", b"x", b"\xff"]), max_size=24).map(b"".join)


def test_every_pair_is_terminated() -> None:
    assert properties.encode_properties({"TAGS": "TagA", "KEYS": "k1 k2"}) == b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02"
    assert properties.format_properties({"名": "值"}) == "名\x01值\x02"
    assert properties.encode_properties({}) == b""


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("", {}),
        ("A\x01x\x02", {"A": "x"}),
        ("A\x01x", {"A": "x"}),
        ("A\x01x\x02B\x01y", {"A": "x", "B": "y"}),
        ("A\x01\x02B\x01y\x02", {"B": "y"}),
        ("\x01x\x02B\x01y\x02", {"B": "y"}),
        ("A\x02B\x01y\x02", {"B": "y"}),
        ("\x02\x02A\x01x\x02\x02", {"A": "x"}),
        ("A\x01x\x02A\x01y\x02", {"A": "y"}),
        ("A\x01x\x02A\x01\x02", {"A": "x"}),
        ("A\x01x\x01y\x02", {"A": "x\x01y"}),
    ],
)
def test_parsing_is_as_lenient_as_java(text: str, pairs: dict[str, str]) -> None:
    assert properties.parse_properties(text) == pairs
    assert properties.decode_properties(text.encode()) == pairs


def test_bytes_that_are_not_utf8_stay_readable() -> None:
    assert properties.decode_properties(b"A\x01x\xff\x02B\x01y\x02") == {"A": "x\ufffd", "B": "y"}


def test_an_empty_value_is_written_and_not_read() -> None:
    raw = properties.encode_properties({"TRACE_CONTEXT": "", "A": "x"})
    assert raw == b"TRACE_CONTEXT\x01\x02A\x01x\x02"
    assert properties.decode_properties(raw) == {"A": "x"}


@pytest.mark.parametrize("pairs", [{"": "x"}, {"A\x01": "x"}, {"A\x02": "x"}, {"A": "x\x02B\x01forged"}])
def test_separators_cannot_be_smuggled_in(pairs: dict[str, str]) -> None:
    with pytest.raises(RecordError, match="separators"):
        properties.encode_properties(pairs)


def test_the_limit_counts_bytes() -> None:
    assert len(properties.encode_properties({"A": "x" * 32_764})) == 32_767
    with pytest.raises(RecordError, match="32768 bytes"):
        properties.encode_properties({"A": "x" * 32_765})
    with pytest.raises(RecordError, match="32769 bytes"):
        properties.encode_text("é" * 16_384 + "x")


def test_a_lone_surrogate_does_not_raise() -> None:
    assert properties.encode_text("A\x01\ud800\x02") == b"A\x01?\x02"


@given(PAIRS)
def test_round_trip(pairs: dict[str, str]) -> None:
    assert properties.decode_properties(properties.encode_properties(pairs)) == pairs
    assert properties.parse_properties(properties.format_properties(pairs)) == pairs


@given(st.one_of(st.binary(max_size=60), MESSY))
def test_what_was_parsed_can_be_written_again(raw: bytes) -> None:
    pairs = properties.decode_properties(raw)
    assert properties.decode_properties(properties.encode_properties(pairs)) == pairs


@given(MESSY, st.sampled_from([b"A", b"AB", b"x", b"\xff"]))
def test_find_agrees_with_the_dict(raw: bytes, name: bytes) -> None:
    wanted = properties.parse_properties(raw.decode("latin-1")).get(name.decode("latin-1"))
    found = properties.find(raw, name)
    assert (None if found is None else found.decode("latin-1")) == wanted


def test_find() -> None:
    raw = b"KEYS\x01k\x02TAGS\x01TagA\x02UNIQ_KEY\x01u"
    assert properties.find(raw, b"KEYS") == b"k"
    assert properties.find(raw, b"TAGS") == b"TagA"
    assert properties.find(raw, b"UNIQ_KEY") == b"u"
    assert properties.find(raw, b"KEY") is None
    assert properties.find(raw, b"EYS") is None
    assert properties.find(b"", b"KEYS") is None


@given(MESSY, st.sampled_from([b"A", b"AB", b"x"]))
def test_remove_takes_one_name_and_leaves_the_others(raw: bytes, name: bytes) -> None:
    pairs = properties.parse_properties(raw.decode("latin-1"))
    pairs.pop(name.decode(), None)
    left = properties.remove(raw, name)
    assert properties.find(left, name) is None
    assert properties.parse_properties(left.decode("latin-1")) == pairs


@pytest.mark.parametrize(
    ("raw", "left"),
    [
        (b"A\x01x\x02B\x01y\x02", b"B\x01y\x02"),
        (b"B\x01y\x02A\x01x\x02", b"B\x01y\x02"),
        (b"B\x01y\x02A\x01x", b"B\x01y"),
        (b"A\x01x\x02", b""),
        (b"A\x01x", b""),
        (b"AA\x01x\x02", b"AA\x01x\x02"),
    ],
)
def test_remove(raw: bytes, left: bytes) -> None:
    assert properties.remove(raw, b"A") == left


@given(MESSY, PAIRS)
def test_what_is_appended_wins(raw: bytes, pairs: dict[str, str]) -> None:
    joined = properties.append(raw, properties.encode_properties(pairs))
    assert properties.decode_properties(joined) == {**properties.decode_properties(raw), **pairs}


def test_append_puts_in_the_missing_terminator() -> None:
    assert properties.append(b"A\x01x", b"B\x01y\x02") == b"A\x01x\x02B\x01y\x02"
    assert properties.append(b"A\x01x\x02", b"B\x01y\x02") == b"A\x01x\x02B\x01y\x02"
    assert properties.append(b"", b"B\x01y\x02") == b"B\x01y\x02"
    assert properties.append(b"A\x01x", b"") == b"A\x01x"


def test_reserved_names() -> None:
    for name in ("KEYS", "TAGS", "DELAY", "UNIQ_KEY", "WAIT", "TRAN_MSG", "INNER_NUM", "__CRC32#", "1ST_POP_TIME"):
        assert properties.is_reserved(name)
    for name in ("__SHARDINGKEY", "CHECK_IMMUNITY_TIME_IN_SECONDS", "INNER_MULTI_DISPATCH", "amount", "tags"):
        assert not properties.is_reserved(name)
    assert properties.is_reserved("__RMQ.TRANSIENT.TOPIC_SYS_FLAG")


def test_every_constant_of_a_name_is_well_known() -> None:
    other = {properties.TRANSIENT_PREFIX, properties.REPLY_MESSAGE, properties.KEY_SEPARATOR}
    constants = {value for name, value in vars(properties).items() if name.isupper() and isinstance(value, str)}
    assert constants - other == properties.WELL_KNOWN
