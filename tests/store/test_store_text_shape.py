"""Shapes of property text say the same as a search through it, whatever the text."""

from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.store.message import index_properties
from cometmq.broker.store.text_shape import MAX_SHAPES, TextShape, learn, look
from cometmq.protocol.hashing import tags_code
from cometmq.protocol.properties import decode_properties

NEEDLES = (b"DELAY\x01", b"TIMER_DEL", b"INNER_NUM\x01")

names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "DELAY", "WAIT", "XKEYS", "MYUNIQ_KEY", "a"])
values = st.text(st.sampled_from("abK0 \x01ä"), max_size=4)
texts = st.lists(st.tuples(names, values), max_size=6).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
#: The last terminator may be missing, and rubbish may stand anywhere.
odd_texts = (
    texts
    | texts.map(lambda text: text[:-1])
    | st.binary(max_size=40)
    | st.text("UNIQ_KEYS\x01\x02", max_size=30).map(str.encode)
)


def truth(text: bytes) -> tuple[int, bytes | None, bytes | None]:
    properties = decode_properties(text)
    tags, keys, unique = (properties.get(name) for name in ("TAGS", "KEYS", "UNIQ_KEY"))
    return tags_code(tags or ""), keys.encode() if keys else None, unique.encode() if unique else None


@given(st.lists(odd_texts.filter(lambda text: text.decode("utf-8", "ignore").encode() == text), max_size=12))
def test_looking_is_searching(series: list[bytes]) -> None:
    shapes: list[TextShape] = []
    for text in series:
        facts, wakes = look(shapes, text, NEEDLES)
        assert facts == truth(text)
        if any(needle in text for needle in NEEDLES):
            assert wakes
        assert len(shapes) <= MAX_SHAPES


@given(odd_texts)
def test_index_properties_are_those_of_the_map(text: bytes) -> None:
    properties = decode_properties(text)
    for found, name in zip(index_properties(text), ("TAGS", "KEYS", "UNIQ_KEY"), strict=True):
        value = properties.get(name)
        assert (found.decode("utf-8", "replace") if found is not None else None) == value


def test_a_shape_is_found_again_for_other_keys() -> None:
    shapes: list[TextShape] = []
    for number in range(50):
        text = f"UNIQ_KEY\x01{number:032X}\x02TAGS\x01TagA\x02KEYS\x01order-{number}\x02WAIT\x01true\x02".encode()
        facts, wakes = look(shapes, text, NEEDLES)
        assert facts == (tags_code("TagA"), f"order-{number}".encode(), f"{number:032X}".encode())
        assert not wakes
    assert len(shapes) == 1


def test_keys_may_stand_before_the_unique_key() -> None:
    shapes: list[TextShape] = []
    for number in (1, 20, 300, 4):
        text = f"KEYS\x01{number}\x02a\x01b\x02UNIQ_KEY\x01{number:08d}\x02".encode()
        assert look(shapes, text, NEEDLES)[0] == (0, str(number).encode(), f"{number:08d}".encode())
    assert len(shapes) == 1


def test_a_wish_inside_a_value_does_not_hide() -> None:
    """The second text has the first one's outline, but its value holds another property."""
    shapes: list[TextShape] = []
    look(shapes, b"UNIQ_KEY\x01aaaaaaaaaaa\x02WAIT\x01true\x02", NEEDLES)
    facts, wakes = look(shapes, b"UNIQ_KEY\x01a\x02DELAY\x01222\x02WAIT\x01true\x02", NEEDLES)
    assert wakes
    assert facts == (0, None, b"a")


def test_texts_without_unique_key_and_with_duplicates_have_no_shape() -> None:
    for text in (
        b"",
        b"TAGS\x01a\x02",
        b"UNIQ_KEY\x01a\x02UNIQ_KEY\x01b\x02",
        b"UNIQ_KEY\x01a\x02KEYS\x01b\x02KEYS\x01\x02",
    ):
        assert learn(text, NEEDLES)[1] is None


def test_old_shapes_make_room_for_new_ones() -> None:
    shapes: list[TextShape] = []
    for number in range(3 * MAX_SHAPES):
        text = f"UNIQ_KEY\x01{number:04d}\x02TAGS\x01Tag{number}\x02".encode()
        assert look(shapes, text, NEEDLES)[0] == (tags_code(f"Tag{number}"), None, f"{number:04d}".encode())
    assert len(shapes) == MAX_SHAPES
