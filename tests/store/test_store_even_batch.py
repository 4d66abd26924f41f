"""Batches whose items are alike explode to the bytes that each item gives alone, and so do those that only seem so."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.store import batch_records, even_batch
from cometmq.broker.store.batch_records import AsksForTimer, Exploded, explode_batch
from cometmq.broker.store.message import index_properties, merge_wrapper, wrapper_pairs
from cometmq.broker.store.text_shape import TextShape
from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch
from cometmq.protocol.errors import RecordError
from cometmq.protocol.hashing import tags_code
from cometmq.protocol.record import encode_record, record_size

V4, V6 = bytes(range(8)), bytes(range(20))
WRAPPER = b"UNIQ_KEY\x01WRAPPER\x02WAIT\x01true\x02CLUSTER\x01c\x02"
FORMS = (
    b"UNIQ_KEY\x01%08X\x02",
    b"UNIQ_KEY\x01%08X\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    b"TAGS\x01TagA\x02UNIQ_KEY\x01%08X\x02KEYS\x01key-%04d\x02",
    b"KEYS\x01a%04d b\x02x\x01y\x02UNIQ_KEY\x01%08X\x02",
)


def items(count: int, form: bytes, body: int = 10, flag: int = 0) -> list[BatchItem]:
    return [BatchItem(flag, bytes([n % 256]) * body, form % ((n,) * form.count(b"%"))) for n in range(count)]


def explode(body: bytes, shapes: list[TextShape], born: bytes = V4, wrapper: bytes = WRAPPER) -> Exploded:
    return explode_batch(body, wrapper, 4, 10, 5000, 0x333, 11, born, 12, V4, 2, b"Topic", shapes=shapes)


def check(exploded: Exploded, body: bytes, born: bytes = V4, wrapper: bytes = WRAPPER) -> None:
    encoded, sizes = b"", []
    for number, item in enumerate(decode_batch(body)):
        text = merge_wrapper(item.properties, wrapper_pairs(wrapper))
        record = bytearray(record_size(len(item.body), 5, len(text), len(born) + 8))
        place = 5000 + len(encoded)
        encode_record(
            record, 0, 4, item.flag, 10 + number, place, 0x333, 11, born, 12, V4, 2, 0, item.body, b"Topic", text
        )
        encoded += record
        sizes.append(len(record))
        tags, keys, unique = index_properties(text)
        code = tags_code(tags.decode() if tags else "")
        facts = exploded.codes[number], exploded.keys[number], exploded.uniques[number]
        assert facts == (code, keys, unique)
        assert exploded.texts()[number] == text
    assert (exploded.encoded, exploded.sizes) == (encoded, sizes)


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Grows with every batch that is tried: whether its items are alike."""
    seen: list[bool] = []
    usual = even_batch.cut

    def watched(*arguments: object) -> object:
        found = usual(*arguments)  # type: ignore[arg-type]
        seen.append(found is not None)
        return found

    monkeypatch.setattr(batch_records.even_batch, "cut", watched)
    return seen


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count", [4, 7, 8, 31, 32, 33, 100])
@pytest.mark.parametrize("born", [V4, V6])
def test_items_that_are_alike(form: bytes, count: int, born: bytes, even: list[bool]) -> None:
    shapes: list[TextShape] = []
    body = encode_batch(items(count, form, flag=7))
    for _ in range(3):
        check(explode(body, shapes, born), body, born)
    # The first one taught the shape, the second one its lengths.
    assert even == [True]


def test_few_items_are_not_worth_it(even: list[bool]) -> None:
    shapes: list[TextShape] = []
    body = encode_batch(items(3, FORMS[1]))
    for _ in range(3):
        check(explode(body, shapes), body)
    assert even == []


@pytest.mark.parametrize("at", [1, 9, 31, 39])
@pytest.mark.parametrize(
    "odd",
    [
        BatchItem(1, b"\0" * 10, FORMS[1] % 99),
        BatchItem(0, b"\0" * 10, FORMS[1].replace(b"TagA", b"TagB") % 99),
        BatchItem(0, b"\0" * 10, b"UNIQ_KEY\x01AAA\x02x\x01y\x02\x02WAIT\x01true\x02TAGS\x01TagA\x02"),
        BatchItem(0, b"\0" * 9, FORMS[1] % 99 + b"\x02"),
        BatchItem(0, b"\0" * 11, (FORMS[1] % 99)[:-1]),
    ],
    ids=["flag", "tag", "separator", "shorter-body", "longer-body"],
)
def test_one_of_them_is_different_although_as_long(at: int, odd: BatchItem, even: list[bool]) -> None:
    shapes: list[TextShape] = []
    alike = items(40, FORMS[1])
    first = encode_batch(alike)
    for _ in range(3):
        explode(first, shapes)
    body = encode_batch([*alike[:at], odd, *alike[at + 1 :]])
    assert len(body) == len(first)
    check(explode(body, shapes), body)
    assert even == [True, False]


@given(
    st.integers(1, 40),
    st.sampled_from(FORMS),
    st.integers(0, 300),
    st.lists(st.tuples(st.integers(0, 39), st.sampled_from(FORMS), st.integers(0, 300)), max_size=2),
    st.sampled_from([b"", WRAPPER, b"TAGS\x01w\x02KEYS\x01w\x02"]),
)
@settings(max_examples=150, deadline=None)
def test_any_mixture(
    count: int, form: bytes, body_length: int, others: list[tuple[int, bytes, int]], wrapper: bytes
) -> None:
    shapes: list[TextShape] = []
    mixed = items(count, form, body_length)
    for at, other, length in others:
        mixed[at % count] = items(1, other, length)[0]
    body = encode_batch(mixed)
    for _ in range(3):
        check(explode(body, shapes, wrapper=wrapper), body, wrapper=wrapper)


@pytest.mark.parametrize("timer", [b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS"])
def test_timers_are_found_wherever_they_are(timer: bytes) -> None:
    shapes: list[TextShape] = []
    body = encode_batch(items(8, FORMS[1]))
    for _ in range(3):
        explode(body, shapes)
    asks = timer + b"\x015\x02"
    with pytest.raises(AsksForTimer, match=timer.decode()):
        explode(body, shapes, wrapper=WRAPPER + asks)
    for form in (asks + FORMS[1], FORMS[1] + asks):
        for _ in range(2):
            with pytest.raises(AsksForTimer, match=timer.decode()):
                explode(encode_batch(items(8, form)), shapes)
    harmless = encode_batch([BatchItem(0, b"TIMER_DELAY_SEC\x015\x02", text.properties) for text in items(8, FORMS[1])])
    check(explode(harmless, shapes), harmless)


@pytest.mark.parametrize("spoiled", [0, 3, 16, 17, 40])
def test_a_batch_with_a_broken_length_is_no_even_one(spoiled: int) -> None:
    shapes: list[TextShape] = []
    body = encode_batch(items(8, FORMS[1]))
    for _ in range(3):
        explode(body, shapes)
    broken = bytearray(body)
    broken[3 * (len(body) // 8) + spoiled] ^= 0xFF
    try:
        expected = [*decode_batch(bytes(broken))]
    except RecordError:
        with pytest.raises(RecordError, match="batch item"):
            explode(bytes(broken), shapes)
    else:
        assert len(expected) == 8
        check(explode(bytes(broken), shapes), bytes(broken))


@pytest.mark.parametrize("size", [32_768, 40_000, 65_535, 65_536, 70_000])
def test_properties_that_no_length_can_tell_are_refused_however_often_they_come(size: int) -> None:
    shapes: list[TextShape] = []
    explode(encode_batch(items(8, FORMS[2])), shapes)
    keys = b"k" * (size - len(FORMS[2] % (1, 1)) + len(b"key-0001"))
    text = (FORMS[2] % (1, 1)).replace(b"key-0001", keys)
    assert len(text) == size
    item = struct.pack(">i8xii", 22 + size, 0, 0) + struct.pack(">H", size & 0xFFFF) + text
    for _ in range(3):
        with pytest.raises(RecordError):
            explode(item * 5, shapes)
