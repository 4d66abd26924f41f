"""Walking over records: what is read, where it stops, and that no bytes whatever make it raise."""

import random
from struct import pack, pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.store.batch_records import Exploded, PropertiesTooLong, explode_batch
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.message import index_properties, merge_wrapper, wrapper_pairs
from cometmq.broker.store.scan import Scanner, Stop, Verify, store_time_at
from cometmq.broker.store.text_shape import TextShape
from cometmq.protocol import sysflag
from cometmq.protocol.batch import BatchItem, decode_batch, encode_batch
from cometmq.protocol.checksum import reserve_property_crc, seal_property_crc
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.errors import RecordError
from cometmq.protocol.hashing import tags_code
from cometmq.protocol.message_id import pack_host
from cometmq.protocol.properties import encode_properties
from cometmq.protocol.record import decode_record, encode_blank, encode_record, record_size
from support import golden_store

V4, V6 = pack_host("192.0.2.1", 1), pack_host("2001:db8::1", 2)
BASE = 1 << 20


def scanner() -> Scanner:
    return Scanner(DelayLevels.parse())


def record(
    at: int = 0,
    body: bytes = b"body",
    topic: str = "Topic",
    born: bytes = V4,
    store: bytes = V4,
    queue_offset: int = 7,
    sys_flag: int = 0,
    crc: bool = False,
    **properties: str,
) -> bytearray:
    text = encode_properties(properties)
    if crc:
        text = reserve_property_crc(text)
    buffer = bytearray(record_size(len(body), len(topic.encode()), len(text), len(born) + len(store)))
    encode_record(
        buffer, 0, 3, 9, queue_offset, BASE + at, sys_flag, 111, born, 222, store, 0, 55, body, topic.encode(), text
    )
    if crc:
        seal_property_crc(buffer, 0, len(buffer))
    return buffer


def scan(data: bytes | bytearray, **arguments: object) -> tuple[list[DispatchRequest], Stop, int]:
    out: list[DispatchRequest] = []
    result = scanner().scan(memoryview(bytes(data)), BASE, 0, len(data), out, **arguments)  # type: ignore[arg-type]
    return out, result.stop, result.position


@pytest.mark.parametrize("born", [V4, V6])
@pytest.mark.parametrize("store", [V4, V6])
@pytest.mark.parametrize("topic", ["T", "%RETRY%" + "g" * 200])
def test_everything_that_dispatch_needs_is_read(born: bytes, store: bytes, topic: str) -> None:
    data = record(born=born, store=store, topic=topic, TAGS="TagA", KEYS="a b", UNIQ_KEY="U")
    out, stop, position = scan(data, verify=Verify.BODY_CRC)
    assert stop is Stop.ENOUGH
    assert position == len(data)
    (request,) = out
    assert request.topic == topic
    assert (request.queue_id, request.queue_offset) == (3, 7)
    assert (request.physical_offset, request.size) == (BASE, len(data))
    assert request.tags_code == tags_code("TagA")
    assert (request.keys, request.unique_key) == (b"a b", b"U")
    assert request.store_timestamp == store_time_at(memoryview(data), 0) == 222
    assert request.prepared_transaction_offset == 55
    assert request.properties == encode_properties({"TAGS": "TagA", "KEYS": "a b", "UNIQ_KEY": "U"})
    assert request.batch_size == 1


def test_the_code_of_the_schedule_topic_is_a_time() -> None:
    (request,), _, _ = scan(record(topic="SCHEDULE_TOPIC_XXXX", DELAY="3", TAGS="x"))
    assert request.tags_code == 222 + 10_000
    (request,), _, _ = scan(record(topic="SCHEDULE_TOPIC_XXXX", TAGS="x"))
    assert request.tags_code == tags_code("x")
    (request,), _, _ = scan(record(topic="Other", DELAY="3", TAGS="x"))
    assert request.tags_code == tags_code("x")


def test_an_inner_batch_counts_its_messages() -> None:
    (request,), _, _ = scan(record(sys_flag=sysflag.INNER_BATCH, INNER_NUM="5", INNER_BASE="7"))
    assert request.batch_size == 5
    (request,), _, _ = scan(record(sys_flag=0, INNER_NUM="5"))
    assert request.batch_size == 1


def test_it_stops_at_a_blank_record() -> None:
    data = record()
    blank = bytearray(100)
    encode_blank(blank, 0, 100)
    out, stop, position = scan(data + blank)
    assert (len(out), stop, position) == (1, Stop.BLANK, len(data))


def test_it_stops_at_nothing() -> None:
    data = record()
    out, stop, position = scan(data + bytes(100))
    assert (len(out), stop, position) == (1, Stop.BAD, len(data))


def test_a_record_that_goes_on_is_cut() -> None:
    data = record() + record(at=len(record()))
    for length in range(len(data) // 2 + 1, len(data)):
        out, stop, position = scan(data[:length])
        assert (len(out), position) == (1, len(data) // 2)
        assert stop is Stop.CUT


def test_it_gives_as_many_as_asked_for() -> None:
    size = len(record())
    data = b"".join(bytes(record(at=number * size)) for number in range(5))
    out, stop, position = scan(data, count=3)
    assert (len(out), stop, position) == (3, Stop.ENOUGH, 3 * size)


def test_records_before_an_offset_are_checked_and_passed_over() -> None:
    size = len(record())
    data = b"".join(bytes(record(at=number * size, queue_offset=number)) for number in range(5))
    seen: dict[tuple[bytes, int], int] = {}
    out, stop, _ = scan(data, skim_before=BASE + 3 * size, seen=seen, verify=Verify.BODY_CRC)
    assert [request.queue_offset for request in out] == [3, 4]
    assert stop is Stop.ENOUGH
    assert seen == {(b"Topic", 3): 2}
    broken = bytearray(data)
    broken[size + 88] ^= 1
    out, stop, position = scan(broken, skim_before=BASE + 3 * size, seen=seen, verify=Verify.BODY_CRC)
    assert (out, stop, position) == ([], Stop.BAD, size)


def test_half_records_are_no_news_for_a_queue() -> None:
    seen: dict[tuple[bytes, int], int] = {}
    scan(record(sys_flag=sysflag.TRANSACTION_PREPARED), skim_before=BASE + 1, seen=seen)
    scan(record(sys_flag=sysflag.TRANSACTION_ROLLBACK), skim_before=BASE + 1, seen=seen)
    assert seen == {}
    scan(record(sys_flag=sysflag.TRANSACTION_COMMIT), skim_before=BASE + 1, seen=seen)
    assert seen == {(b"Topic", 3): 7}


@pytest.mark.parametrize(
    ("position", "what"),
    [
        (4, "magic"),
        (31, "physical offset"),
        (87, "length of the body"),
        (84, "length of the body, top bit"),
        (90, "body"),
        (92, "length of the topic"),
        (99, "length of the properties"),
    ],
)
def test_damage_is_seen(position: int, what: str) -> None:
    data = record(KEYS="k")
    assert scan(data, verify=Verify.BODY_CRC)[1] is Stop.ENOUGH
    data[position] ^= 0x81
    out, stop, at = scan(data, verify=Verify.BODY_CRC)
    assert (out, at) == ([], 0), what
    assert stop in (Stop.BAD, Stop.CUT)


def test_only_recovery_looks_at_checksums() -> None:
    data = record()
    data[89] ^= 1
    assert scan(data)[1] is Stop.ENOUGH
    assert scan(data, verify=Verify.BODY_CRC)[1] is Stop.BAD


def test_the_checksum_of_the_record_sees_every_flip() -> None:
    data = record(crc=True, KEYS="k")
    assert scan(data, verify=Verify.PROPERTY_CRC)[1] is Stop.ENOUGH
    for position in range(len(data)):
        broken = bytearray(data)
        broken[position] ^= 4
        out, stop, _ = scan(broken, verify=Verify.PROPERTY_CRC)
        assert out == [], position
        assert stop is not Stop.ENOUGH
    assert scan(record(KEYS="k"), verify=Verify.PROPERTY_CRC)[1] is Stop.BAD, "one without a checksum"


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "a\0b"])
def test_a_topic_that_leads_out_of_the_store_is_damage(topic: str) -> None:
    out, stop, _ = scan(record(topic=topic))
    assert (out, stop) == ([], Stop.BAD)


@given(st.binary(max_size=300))
def test_no_bytes_make_it_raise(data: bytes) -> None:
    for verify in Verify:
        out, _, position = scan(data, verify=verify)
        assert sum(request.size for request in out) <= position <= len(data)


@given(st.data())
def test_no_flip_makes_it_raise_or_read_what_the_decoder_refuses(data: st.DataObject) -> None:
    whole = bytearray(record(TAGS="t", KEYS="k", born=V6) + record(at=len(record(TAGS="t", KEYS="k", born=V6))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    out, _, _ = scan(whole, verify=Verify.BODY_CRC)
    for request in out:
        decoded = decode_record(whole, request.physical_offset - BASE)
        assert decoded.topic == request.topic
        assert decoded.size == request.size
        assert decoded.properties == request.properties


def test_the_golden_logs_are_read_whole() -> None:
    total = 0
    for name in golden_store.NAMES:
        verify = Verify.PROPERTY_CRC if name == "special" else Verify.BODY_CRC
        for path, content in golden_store.files(name).items():
            if path.startswith("commitlog/"):
                out: list[DispatchRequest] = []
                view = memoryview(content)
                result = scanner().scan(view, int(path[10:]), 0, len(content), out, verify=verify)
                assert result.stop is Stop.BLANK or not any(content[result.position :])
                total += len(out)
    assert total > 8000


def test_flips_in_a_golden_log_never_raise() -> None:
    content = golden_store.files("clean")["commitlog/00000000000003145728"]
    end = 3204611 - 3145728
    dice = random.Random(4)
    for _ in range(300):
        broken = bytearray(content)
        for _ in range(dice.randrange(1, 5)):
            broken[dice.randrange(end)] ^= 1 << dice.randrange(8)
        out: list[DispatchRequest] = []
        result = scanner().scan(memoryview(broken), 3145728, 0, len(broken), out, verify=Verify.BODY_CRC)
        assert sum(request.size for request in out) <= result.position <= len(broken)


# Batches are taken apart and encoded together, to the same bytes


def explode(
    body: bytes,
    wrapper: bytes = b"",
    born: bytes = V4,
    store: bytes = V4,
    topic: bytes = b"T",
    shapes: list[TextShape] | None = None,
) -> Exploded:
    return explode_batch(body, wrapper, 4, 10, 5000, 0x333, 11, born, 12, store, 2, topic, shapes=shapes)


def one_by_one(body: bytes, wrapper: bytes, born: bytes, store: bytes, topic: bytes) -> tuple[bytes, list[int]]:
    """The readable twin."""
    encoded, sizes = b"", []
    for number, item in enumerate(decode_batch(body)):
        text = merge_wrapper(item.properties, wrapper_pairs(wrapper))
        buffer = bytearray(record_size(len(item.body), len(topic), len(text), len(born) + len(store)))
        place = 5000 + len(encoded)
        encode_record(
            buffer, 0, 4, item.flag, 10 + number, place, 0x333, 11, born, 12, store, 2, 0, item.body, topic, text
        )
        encoded += buffer
        sizes.append(len(buffer))
    return encoded, sizes


texts = st.lists(
    st.sampled_from(["UNIQ_KEY\x01a\x02", "KEYS\x01k\x02", "TAGS\x01t\x02", "x\x01", "CLUSTER\x01c\x02"]), max_size=3
)
batches = st.lists(st.tuples(st.integers(-9, 9), st.binary(max_size=20), texts), max_size=6).map(
    lambda rows: encode_batch(BatchItem(flag, body, "".join(parts).encode()) for flag, body, parts in rows)
)


@given(batches, texts.map(lambda parts: "".join(parts).encode()), st.booleans(), st.booleans(), st.booleans())
def test_a_batch_explodes_to_the_records_of_its_items(
    body: bytes, wrapper: bytes, born_v6: bool, store_v6: bool, long_topic: bool
) -> None:
    born, store = V6 if born_v6 else V4, V6 if store_v6 else V4
    topic = b"%RETRY%" + b"g" * 200 if long_topic else b"T"
    exploded = explode(body, wrapper, born, store, topic)
    assert (exploded.encoded, exploded.sizes) == one_by_one(body, wrapper, born, store, topic)
    for text, *facts in zip(exploded.texts(), exploded.codes, exploded.keys, exploded.uniques, strict=True):
        tags, keys, unique = index_properties(text)
        assert facts == [tags_code(tags.decode() if tags else ""), keys, unique]


@given(wrapper=texts.map(lambda parts: "".join(parts).encode()), tagged=st.booleans())
def test_items_that_each_have_a_shape_of_their_own_explode_alike(wrapper: bytes, tagged: bool) -> None:
    form = b"UNIQ_KEY\x01%04X\x02row\x01%d\x02" + (b"TAGS\x01t\x02KEYS\x01k\x02" if tagged else b"")
    body = encode_batch(BatchItem(0, b"body", form % (number, number)) for number in range(40))
    exploded = explode(body, wrapper)
    assert (exploded.encoded, exploded.sizes) == one_by_one(body, wrapper, V4, V4, b"T")
    for text, *facts in zip(exploded.texts(), exploded.codes, exploded.keys, exploded.uniques, strict=True):
        tags, keys, unique = index_properties(text)
        assert facts == [tags_code(tags.decode() if tags else ""), keys, unique]


@given(batches, st.data())
def test_what_is_no_batch_is_refused_as_the_decoder_does(body: bytes, data: st.DataObject) -> None:
    broken = bytearray(body)
    for _ in range(data.draw(st.integers(0, 3))):
        if broken:
            broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))])
    try:
        expected = one_by_one(cut, b"", V4, V4, b"T")
    except RecordError:
        with pytest.raises(RecordError):
            explode(cut)
    else:
        exploded = explode(cut)
        assert (exploded.encoded, exploded.sizes) == expected


def _similar(form: bytes, number: int, key: bytes, hurt: bytes | None, where: int) -> bytes:
    """Texts of one producer: they differ in the values of their keys, now and then in a byte where it hurts."""
    text = form % {b"u": b"C0A80001%08X" % number, b"k": key}
    where %= len(text)
    return text if hurt is None else text[:where] + hurt + text[where + 1 :]


similar = st.builds(
    _similar,
    st.sampled_from(
        [
            b"UNIQ_KEY\x01%(u)s\x02WAIT\x01true\x02TAGS\x01a\x02",
            b"TAGS\x01a\x02UNIQ_KEY\x01%(u)s",
            b"KEYS\x01%(k)s\x02UNIQ_KEY\x01%(u)s\x02a\x01b\x02",
            b"UNIQ_KEY\x01%(u)s\x02KEYS\x01%(k)s\x02",
            b"UNIQ_KEY\x01%(u)s\x02KEYS\x01%(k)s",
        ]
    ),
    st.integers(0, 2**32 - 1),
    st.sampled_from([b"k", b"order-1", b"a b", b"", b"\x02", b"\n", b"\0\x21UNIQ_KEY"]),
    st.sampled_from([None] * 6 + [b"\x02", b"\x01", b"\0", b"x"]),
    st.integers(0, 99),
)
wrappers = st.sampled_from(
    [
        b"",
        b"UNIQ_KEY\x01W%d\x02CLUSTER\x01c\x02",
        b"CLUSTER\x01c\x02UNIQ_KEY\x01W%d",
        b"A\x01b\x02UNIQ_KEY\x01W%d\x02C\x01d",
        b"A\x01bC\x01d",
        b"TAGS\x01wrapped\x02KEYS\x01w1 w2\x02UNIQ_KEY\x01W%d\x02",
    ]
)


@given(
    st.lists(
        st.tuples(st.lists(st.tuples(st.binary(max_size=9), similar), min_size=1, max_size=6), wrappers),
        min_size=2,
        max_size=6,
    ),
    st.data(),
)
def test_batches_like_those_before_explode_to_the_same_bytes(
    rounds: list[tuple[list[tuple[bytes, bytes]], bytes]], data: st.DataObject
) -> None:
    shapes: list[TextShape] = []
    for number, (items, form) in enumerate([*rounds, *rounds]):
        wrapper = form % number if b"%d" in form else form
        body = encode_batch(BatchItem(0, content, text) for content, text in items)
        exploded = explode(body, wrapper, shapes=shapes)
        assert (exploded.encoded, exploded.sizes) == one_by_one(body, wrapper, V4, V4, b"T")
        for text, *facts in zip(exploded.texts(), exploded.codes, exploded.keys, exploded.uniques, strict=True):
            tags, keys, unique = index_properties(text)
            assert facts == [tags_code(tags.decode() if tags else ""), keys, unique]
        # Lengths that lie: between two items, or anywhere.
        broken = bytearray(body)
        broken[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
        try:
            expected = one_by_one(bytes(broken), wrapper, V4, V4, b"T")
        except RecordError:
            with pytest.raises(RecordError):
                explode(bytes(broken), wrapper, shapes=shapes)
        else:
            exploded = explode(bytes(broken), wrapper, shapes=shapes)
            assert (exploded.encoded, exploded.sizes) == expected


def test_batches_that_do_not_fit_are_refused() -> None:
    item = encode_batch([BatchItem(0, b"", b"a\x01" + b"x" * 20_000)])
    with pytest.raises(PropertiesTooLong):
        explode(item, b"b\x01" + b"y" * 20_000)
    with pytest.raises(RecordError):
        explode(item, born=b"short")
    with pytest.raises(RecordError):
        explode_batch(item, b"", 1 << 31, 0, 0, 0, 0, V4, 0, V4, 0, b"T")


def test_the_store_time_of_a_cut_record_is_unknown() -> None:
    assert store_time_at(memoryview(bytes(30)), 0) == -1
    data = bytearray(60)
    pack_into(">i", data, 36, sysflag.BORN_HOST_V6)
    assert store_time_at(memoryview(data), 0) == -1


def _item(content: bytes, framed: bytes) -> bytes:
    return pack(">iiiii", 20 + len(content) + len(framed), 0, 0, 0, len(content)) + content + framed


@pytest.mark.parametrize("keys", [b"", b"KEYS\x01k%d\x02"])
def test_lengths_that_lie_are_refused_whatever_shape_the_texts_have(keys: bytes) -> None:
    def framed(number: int) -> bytes:
        text = b"TAGS\x01a\x02UNIQ_KEY\x01%032d\x02" % number + (keys % number if keys else b"")
        return len(text).to_bytes(2, "big") + text

    shapes: list[TextShape] = []
    for number in range(3):
        good = _item(b"one", framed(number)) + _item(b"two", framed(number + 1))
        assert len(explode(good, shapes=shapes).sizes) == 2
    assert len(shapes) == 1
    # The same bytes of properties, shared out differently.
    first, second = framed(8), framed(9)
    for shift in (-3, 3):
        both = first + second
        cut = len(first) + shift
        items = _item(b"zero", framed(7)), _item(b"one", both[:cut]), _item(b"two", both[cut:])
        with pytest.raises(RecordError):
            explode(b"".join(items), shapes=shapes)
    for wrong in (0, 1, 0x8000, 0xFFFF):
        with pytest.raises(RecordError):
            explode(_item(b"one", first) + _item(b"two", wrong.to_bytes(2, "big") + second[2:]), shapes=shapes)
