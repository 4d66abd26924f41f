"""A client batch taken apart and encoded as records, by columns: everything but a few fields is the same for all.

The items are those that `protocol.batch.decode_batch` gives, the bytes those of `protocol.record.encode_record`; tests
compare both. It is written for speed because batches are how millions of messages come in; those whose items are all
alike are left to `even_batch`. Where the records go, and whether there is room, is decided in `gather`. RocketMQ's
`MessageExtEncoder.encode(MessageExtBatch)`.
"""

from collections.abc import Sequence
from itertools import accumulate, count, repeat
from struct import Struct, error
from typing import Final, NamedTuple

from cometmq.broker.store import even_batch
from cometmq.broker.store.message import index_properties, merge_wrapper, wrapper_pairs
from cometmq.broker.store.text_shape import MAX_SHAPES, Facts, TextShape, find_shape
from cometmq.broker.store.transforms import timer_of
from cometmq.protocol import sysflag
from cometmq.protocol.checksum import CRC_MASK, raw_crc32, reserve_property_crc
from cometmq.protocol.errors import RecordError
from cometmq.protocol.hashing import tags_code_bytes
from cometmq.protocol.message_id import HOST_V6_LENGTH
from cometmq.protocol.properties import MAX_PROPERTIES_LENGTH
from cometmq.protocol.record import magic_of, topic_part

# An item: totalSize, (magic, bodyCRC), flag, bodyLength; after the body an i16 with the length of the properties.
_ITEM: Final = Struct(">i8xii")
_ITEM_HEAD: Final = even_batch.ITEM_HEAD
#: In the names of all timers.
_TIMER: Final = b"TIMER_DEL"
_TWO_INTS: Final = Struct(">ii")
# What stands between the physical offset and the length of the body, by the lengths of both hosts.
_MIDDLES: Final = {
    (8, 8): Struct(">iq8sq8siq"),
    (20, 8): Struct(">iq20sq8siq"),
    (8, 20): Struct(">iq8sq20siq"),
    (20, 20): Struct(">iq20sq20siq"),
}
# totalSize, magic, bodyCRC, queueId, flag, queueOffset, physicalOffset, the middle, bodyLength; by the middle's length.
_HEADS: Final = {middle.size: Struct(f">iiiiiqq{middle.size}si") for middle in _MIDDLES.values()}

#: Wrappers, without their unique keys, that a shape remembers.
_MAX_GIVEN: Final = 16


class PropertiesTooLong(RecordError):
    """Is raised when an item and its wrapper have more properties than a record can hold."""

    def __init__(self, length: int) -> None:
        super().__init__(f"the properties take {length} bytes, at most {MAX_PROPERTIES_LENGTH} are allowed")


class AsksForTimer(RecordError):
    """Is raised when the wrapper or an item asks for a timer: no batch can be delayed."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} asks for a timer; a batch cannot be delayed")


class Exploded(NamedTuple):
    """The records of a batch: all of their bytes, and of each its size and what its properties say."""

    encoded: bytes
    sizes: list[int]
    #: Bytes of the properties.
    text_sizes: list[int]
    #: Tags codes, keys and unique keys.
    codes: Sequence[int]
    keys: Sequence[bytes | None]
    uniques: Sequence[bytes | None]

    def texts(self) -> list[bytes]:
        """The properties of each record: they stand at its end."""
        ends = accumulate(self.sizes)
        return [self.encoded[end - size : end] for end, size in zip(ends, self.text_sizes, strict=True)]


class _Texts(NamedTuple):
    """The properties of all items as they will be stored, and what they say."""

    texts: list[bytes]
    codes: Sequence[int]
    keys: Sequence[bytes | None]
    uniques: Sequence[bytes | None]


def explode_batch(
    body: bytes,
    wrapper: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_timestamp: int,
    born_host: bytes,
    store_timestamp: int,
    store_host: bytes,
    reconsume_times: int,
    topic: bytes,
    *,
    shapes: list[TextShape] | None = None,
    property_crc: bool = False,
) -> Exploded:
    """The records of a batch body, one after the other, counting on from the given offsets.

    `wrapper` is the property text of the request: each item gets those properties that it does not have itself.
    `shapes` are those of the items of batches before. With `property_crc` room is left for the checksums, which are
    the caller's to write.

    Hot path: 1.1 us an item with 100 bytes, when all items have one shape.
    """
    try:
        middle_struct = _MIDDLES[len(born_host), len(store_host)]
    except KeyError:
        raise RecordError(f"packed hosts take 8 or 20 bytes, not {len(born_host)} and {len(store_host)}") from None
    sys_flag = sysflag.with_host_flags(
        sys_flag, born_v6=len(born_host) == HOST_V6_LENGTH, store_v6=len(store_host) == HOST_V6_LENGTH
    )
    middle = middle_struct.pack(sys_flag, born_timestamp, born_host, store_timestamp, store_host, reconsume_times, 0)
    if shapes and not property_crc:
        even = _explode_even(body, wrapper, queue_id, queue_offset, physical_offset, middle, topic, shapes)
        if even is not None:
            return even
    flags, contents, framed = _take_apart(body)
    if _TIMER in wrapper or _TIMER in b"".join(framed):
        timer = timer_of([wrapper, *(frame[2:] for frame in framed)])
        if timer is not None:
            raise AsksForTimer(timer)
    texts, codes, keys, uniques = _final_texts(framed, wrapper, shapes if shapes is not None else [])
    if property_crc:
        texts = [reserve_property_crc(text) for text in texts]
    head = _HEADS[middle_struct.size]
    tails = _tails(topic_part(topic), texts)
    overhead = head.size + len(topic_part(topic)) + 2
    sizes = [overhead + len(content) + len(text) for content, text in zip(contents, texts, strict=True)]
    parts: list[bytes] = [b""] * (4 * len(sizes))
    try:
        parts[0::4] = map(
            head.pack,
            sizes,
            repeat(magic_of(topic)),
            [crc & CRC_MASK for crc in map(raw_crc32, contents)],
            repeat(queue_id),
            flags,
            count(queue_offset),
            accumulate(sizes, initial=physical_offset),
            repeat(middle),
            map(len, contents),
        )
    except error as reason:
        raise RecordError(f"a batch item: {reason}") from None
    parts[1::4] = contents
    parts[2::4] = tails
    parts[3::4] = texts
    return Exploded(b"".join(parts), sizes, [*map(len, texts)], codes, keys, uniques)


def _explode_even(
    body: bytes,
    wrapper: bytes,
    queue_id: int,
    queue_offset: int,
    physical_offset: int,
    middle: bytes,
    topic: bytes,
    shapes: list[TextShape],
) -> Exploded | None:
    """The same for a batch whose items are alike; None when they are not, or when nothing like it came before."""
    if len(body) < _ITEM_HEAD:
        return None
    item_size, flag, body_length = _ITEM.unpack_from(body)
    text_at = _ITEM_HEAD + body_length + 2
    if body_length < 0 or not text_at <= item_size <= len(body) // even_batch.FEWEST or len(body) % item_size:
        return None
    text = body[text_at:item_size]
    if len(text) > MAX_PROPERTIES_LENGTH or _TIMER in text or _TIMER in wrapper:
        return None
    shape = next((each for each in shapes if each.match(text) is not None), None)
    if shape is None or not shape.is_known_length(body_length, len(text)):
        return None
    items = even_batch.cut(body, item_size, flag, body_length, shape)
    if items is None:
        return None
    added, code, given_keys = _given(shape, text, wrapper)
    text_size = len(text) + len(added)
    if text_size > MAX_PROPERTIES_LENGTH:
        raise PropertiesTooLong(text_size)
    topic_and_length = topic_part(topic) + text_size.to_bytes(2, "big")
    size = _HEADS[len(middle)].size + body_length + len(topic_and_length) + text_size
    try:
        around = even_batch.Surroundings(
            _TWO_INTS.pack(size, magic_of(topic)),
            _TWO_INTS.pack(queue_id, flag),
            middle + body_length.to_bytes(4, "big"),
            topic_and_length,
            added,
        )
    except error as reason:
        raise RecordError(f"a batch item: {reason}") from None
    encoded = even_batch.encode(items, around, shape, size, queue_offset, physical_offset)
    first, *second = items.values
    keys, uniques = (second[0], first) if second else (None, first)
    if shape.keys_first:
        keys, uniques = first, second[0]
    many = len(first)
    return Exploded(encoded, [size] * many, [text_size] * many, [code] * many, keys or [given_keys] * many, uniques)


def _take_apart(body: bytes) -> tuple[list[int], list[bytes], list[bytes]]:
    """Flags, bodies and property texts of the items; the texts still with their length before them. 0.45 us an item."""
    flags: list[int] = []
    contents: list[bytes] = []
    framed: list[bytes] = []
    unpack = _ITEM.unpack_from
    at = 0
    end = len(body)
    try:
        while at < end:
            item_size, flag, body_length = unpack(body, at)
            body_start = at + _ITEM_HEAD
            body_end = body_start + body_length
            following = at + item_size
            # The item's own end bounds its parts.
            if body_length < 0 or following > end or body_end + 2 > following:
                raise RecordError(f"batch item at {at}: its lengths do not fit {item_size} of {end - at} bytes")
            flags.append(flag)
            contents.append(body[body_start:body_end])
            framed.append(body[body_end:following])
            at = following
    except error as reason:
        raise RecordError(f"batch item at {at}: {reason}") from None
    return flags, contents, framed


def _final_texts(framed: list[bytes], wrapper: bytes, shapes: list[TextShape]) -> _Texts:
    """The texts with what the wrapper gives them.

    Nearly always all items of a batch have one shape, and then they lack the same properties of the wrapper: one look
    at all of them together is enough.
    """
    first = framed[0][2:] if framed else b""
    for shape in shapes:
        if shape.match(first) is None:
            continue
        found = shape.match_all(framed)
        if found is None:
            break
        keys, uniques = found
        added, code, given_keys = _given(shape, first, wrapper)
        texts = [frame[2:] + added for frame in framed] if added else [frame[2:] for frame in framed]
        return _Texts(texts, [code] * len(texts), keys or [given_keys] * len(texts), uniques)
    return _one_by_one(framed, wrapper, shapes)


def _given(shape: TextShape, text: bytes, wrapper: bytes) -> tuple[bytes, int, bytes | None]:
    """What the wrapper adds to a text of a shape, and the tags code and the keys of both together.

    A text with a shape has a unique key of its own: the wrapper's, which is always another one, does not count.
    """
    at = 0 if wrapper.startswith(b"UNIQ_KEY\x01") else wrapper.find(b"\x02UNIQ_KEY\x01")
    rest = wrapper if at < 0 else wrapper[:at] + b"\x02" + wrapper[at + 9 :].partition(b"\x02")[2]
    given = shape.given.get(rest)
    if given is None:
        if len(shape.given) >= _MAX_GIVEN:
            shape.given.clear()
        whole = merge_wrapper(text, wrapper_pairs(wrapper))
        tags, keys, _ = index_properties(whole)
        given = whole[len(text) :], 0 if tags is None else tags_code_bytes(tags), keys
        shape.given[rest] = given
    return given


def _one_by_one(framed: list[bytes], wrapper: bytes, shapes: list[TextShape]) -> _Texts:
    """The same for items of several shapes. When every item has one of its own (a number of its own in a property),
    a search of each takes a sixth of the time of learning shapes that do not come again."""
    texts: list[bytes] = []
    facts: list[Facts] = []
    given: dict[TextShape, tuple[bytes, int, bytes | None]] = {}
    pairs = wrapper_pairs(wrapper)
    for frame in framed:
        text = frame[2:]
        if int.from_bytes(frame[:2], "big", signed=True) != len(text):
            raise RecordError(f"a batch item: {len(text)} bytes of properties, and a length of {frame[:2].hex()}")
        shape = None
        if len(given) <= MAX_SHAPES:
            (_, keys, unique), shape = find_shape(shapes, text)
        if shape is None:
            whole = merge_wrapper(text, pairs)
            tags, keys, unique = index_properties(whole)
            texts.append(whole)
            facts.append((0 if tags is None else tags_code_bytes(tags), keys, unique))
            continue
        added, code, given_keys = given.get(shape) or given.setdefault(shape, _given(shape, text, wrapper))
        texts.append(text + added)
        facts.append((code, keys or given_keys, unique))
    codes, all_keys, uniques = zip(*facts, strict=True) if facts else ((), (), ())
    return _Texts(texts, codes, all_keys, uniques)


def _tails(topic: bytes, texts: list[bytes]) -> list[bytes]:
    """Topic and length of the properties, which is often the same, for each text."""
    known: dict[int, bytes] = {}
    for length in {*map(len, texts)}:
        if length > MAX_PROPERTIES_LENGTH:
            raise PropertiesTooLong(length)
        known[length] = topic + length.to_bytes(2, "big")
    return [*known.values()] * len(texts) if len(known) == 1 else [known[len(text)] for text in texts]
