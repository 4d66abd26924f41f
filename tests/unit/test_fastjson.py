"""The dialect: what fastjson reads and writes, and that no bytes make the reader raise anything but BodyError."""

import contextlib
import enum
import json
import math
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.protocol.bodies import REQUEST_BODIES, RESPONSE_BODIES, ClusterInfo, MessageQueue, TopicStatsTable
from cometmq.protocol.errors import BodyError
from cometmq.protocol.fastjson import MAX_DEPTH, ObjectKey, dumps, java_double, loads, quote_integer_keys

QUEUE = {"brokerName": "b", "queueId": 0, "topic": "t"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":[1,-2.5,true,false,null,"x"]}', {"a": [1, -2.5, True, False, None, "x"]}),
        ('{0:"ip:10911",-1:"x",10:{}}', {0: "ip:10911", -1: "x", 10: {}}),
        ("{name:1,$x_9:2,true:3}", {"name": 1, "$x_9": 2, "true": 3}),
        ("{'a':'it\"s','b':\"it's\"}", {"a": 'it"s', "b": "it's"}),
        ('{{"brokerName":"b","queueId":0,"topic":"t"}:5}', {ObjectKey.of(QUEUE): 5}),
        ('{{}:5,{"a":[1,{"b":2}]}:{0:1}}', {ObjectKey.of({}): 5, ObjectKey.of({"a": [1, {"b": 2}]}): {0: 1}}),
        ('{"a":1,}', {"a": 1}),
        ("[0,1,]", [0, 1]),
        (' {\t0 :\r\n [ ] , "b" : { } } ', {0: [], "b": {}}),
        ('{0:1e3,1:1.,2:"1"}', {0: 1000.0, 1: 1.0, 2: "1"}),
        (r'{0:"\u4f60\uD83D\uDE00\x41\n\/\'\"\\"}', {0: "你😀A\n/'\"\\"}),
        ('{0:"raw\ttab and\nline"}', {0: "raw\ttab and\nline"}),
        ('\ufeff{"a":1}', {"a": 1}),
        ("{0:NaN,1:undefined}", {0: None, 1: None}),
        ('{"a":1,"a":2,0:0}', {"a": 2, 0: 0}),
        ("7", 7),
        ("'x'", "x"),
    ],
)
def test_reads(text: str, value: Any) -> None:
    assert loads(text.encode()) == value
    assert loads(memoryview(text.encode())) == value
    if isinstance(value, dict):
        assert [type(key) for key in loads(text.encode())] == [type(key) for key in value]


BROKEN = [
    "{",
    "[",
    '{"a"',
    '{"a":',
    '{"a":1',
    "{0:1",
    "[1",
    "{:1}",
    "{,}",
    "{0:1}x",
    "{}{}",
    "]",
    "}",
    ",",
    '"abc',
    "'abc",
    '{0:"\\q"}',
    '{0:"\\u12"}',
    '{0:"\\ud800"}',
    '{0:"\\udc00x"}',
    "nul",
    "truex",
    "-",
    "+1",
    ".5",
    "0x10",
    "[1e]",
    "/**/1",
    "{1.5:2}",
    "{99999999999999999999:1}",
    "{{0:1}",
    "{{}}",
    "{{},5}",
    '{{{"a":1}:2}:3}',
    '{{"$ref":"$"}:1}',
    "{{0:99999999999999999999}:1}",
]


@pytest.mark.parametrize("text", ["", " ", "[1 2]", '{"a" 1}', "{{} 5}", "[" + "1" * 200 + ",{0:1}]", *BROKEN])
def test_refuses(text: str) -> None:
    with pytest.raises(BodyError):
        loads(text.encode())


def test_refuses_what_is_not_utf8() -> None:
    with pytest.raises(BodyError, match="not UTF-8 at byte 4"):
        loads(b'{0:"\xff"}')


@pytest.mark.parametrize("opening", ["[", '{"a":', "{0:", "[{0:", '[{{"a":', "[{{a:1}:"])
def test_deep_nesting_is_refused(opening: str) -> None:
    with pytest.raises(BodyError):
        loads(opening.encode() * 100_000)


def test_the_deepest_nesting_is_read_and_written() -> None:
    value: Any = {0: 1}
    for _ in range(MAX_DEPTH - 1):
        value = [value]
    assert loads(dumps(value)) == value
    with pytest.raises(BodyError, match="nested deeper"):
        dumps([value])
    with pytest.raises(BodyError, match="nested deeper"):
        loads(b"[" + dumps(value) + b"]")
    cycle: dict[str, Any] = {}
    cycle["me"] = cycle
    with pytest.raises(BodyError, match="nested deeper"):
        dumps(cycle)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: b"{0:1," + b"[" * n,
        lambda n: b'{0:"' + rb"\"" * n,
        lambda n: b'{0:"' + b"\\" * n,
        lambda n: b"{" + b"0:1," * n + b"x",
        lambda n: b"{0:1" + b" " * n + b"x",
        lambda n: b"{" + b"{a:1}:1," * n,
        lambda n: b"{0:[" + b'{"$ref":"$"},' * n,
        lambda n: b"{0:" + b"-" * n,
        lambda n: b"{0:" + b"1" * n + b"}",
        lambda n: b"{" + b" , 5 " * n,
        lambda n: b'{"a":"' + b"x" * n,
    ],
)
def test_hostile_text_takes_linear_time(make: Callable[[int], bytes]) -> None:
    def seconds(count: int) -> float:
        data = make(count)
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            for kind in (ClusterInfo, TopicStatsTable):
                with contextlib.suppress(BodyError):
                    kind.decode(data)
            best = min(best, time.process_time() - start)
        return best

    # 16 times the text in quadratic time would be 256 times as long.
    assert seconds(32_000) < 64 * max(seconds(2_000), 0.002)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"x":[1,{"y":2}]},"b":{"$ref":"$.a"}}', {"a": {"x": [1, {"y": 2}]}, "b": {"x": [1, {"y": 2}]}}),
        ('{"a":{"x":[1,{"y":2}]},"b":{"$ref":"$.a.x[1]"}}', {"a": {"x": [1, {"y": 2}]}, "b": {"y": 2}}),
        ('[{"y":2},{"$ref":"$[0]"},{"$ref":"$[0].y"}]', [{"y": 2}, {"y": 2}, 2]),
        ('{"a":{"$ref":"$.b"},"b":{"$ref":"$.c"},"c":[3]}', {"a": [3], "b": [3], "c": [3]}),
        ('{"a":{"$ref":"$.b.z"},"b":{"$ref":"$.c"},"c":{"z":4}}', {"a": 4, "b": {"z": 4}, "c": {"z": 4}}),
        ('{"m":{0:[7]},"n":{"$ref":"$.m.0"},"o":{"$ref":"$.m[0]"}}', {"m": {0: [7]}, "n": [7], "o": [7]}),
        (r'{"a.b":[7],"n":{"$ref":"$.a\\.b"},"o":{"$ref":"$[\'a.b\']"}}', {"a.b": [7], "n": [7], "o": [7]}),
        ('{"a":{"$ref":"$.no"},"b":{"$ref":"$.c[9]"},"c":[1]}', {"a": None, "b": None, "c": [1]}),
        ('[{"$ref":"junk"},{"$ref":""},{"$ref":"$x"}]', [None, None, None]),
        ('{"a":{"$ref":"$.a"},"b":{"$ref":"$.c"},"c":{"$ref":"$.b"}}', {"a": None, "b": None, "c": None}),
        ('{"a":{"$ref":5},"b":{"$ref":"$.c","x":1}}', {"a": {"$ref": 5}, "b": {"$ref": "$.c", "x": 1}}),
        ('{"$ref":"$"}', None),
    ],
)  # fmt: skip
def test_references(text: str, value: Any) -> None:
    assert loads(text.encode()) == value


def test_references_to_what_is_around_them() -> None:
    root = loads(b'{"a":{"self":{"$ref":"@"},"up":{"$ref":".."},"root":{"$ref":"$"}},"l":[{"$ref":"@"},{"$ref":".."}]}')
    assert root["a"]["self"] is root["a"]
    assert root["a"]["up"] is root
    assert root["a"]["root"] is root
    assert root["l"][0] is root["l"]
    assert root["l"][1] is root


class Colour(enum.StrEnum):
    RED = "RED"


class Level(enum.IntEnum):
    LOW = 1


class Point(msgspec.Struct, rename="camel"):
    z_last: int = 1
    a_first: str | None = None
    m_table: dict[Any, Any] | None = None


@pytest.mark.parametrize(
    ("value", "default", "standard"),
    [
        ({"b": 1, "a": 2}, '{"b":1,"a":2}', '{"a":2,"b":1}'),
        ({10: "x", 9: "y", -1: "z"}, '{10:"x",9:"y",-1:"z"}', '{"-1":"z","9":"y","10":"x"}'),
        ({"a": None, "b": [None]}, '{"b":[null]}', '{"b":[null]}'),
        (Point(), '{"zLast":1}', '{"zLast":1}'),
        (Point(a_first="é", z_last=2), '{"aFirst":"é","zLast":2}', r'{"aFirst":"\u00e9","zLast":2}'),
        ({MessageQueue(broker_name="b", topic="t"): 5},) + ('{{"brokerName":"b","queueId":0,"topic":"t"}:5}',) * 2,
        ({ObjectKey.of(QUEUE): 5},) + ('{{"brokerName":"b","queueId":0,"topic":"t"}:5}',) * 2,
        ([b"\xff\x00", Colour.RED, Level.LOW, True, (), frozenset({1})],) + ('["/wA=","RED",1,true,[],[1]]',) * 2,
        ([0.0, 1e10, 1.5, -0.001, 1e-5],) + ("[0.0,1.0E10,1.5,-0.001,1.0E-5]",) * 2,
        ('a"b\\c/d\n\x01😀', '"a\\"b\\\\c/d\\n\\u0001😀"', '"a\\"b\\\\c/d\\n\\u0001\\ud83d\\ude00"'),
        (None, "null", "null"),
    ],
)  # fmt: skip
def test_writes(value: Any, default: str, standard: str) -> None:
    assert dumps(value) == default.encode()
    assert dumps(value, standard=True) == standard.encode()


def test_half_surrogates_become_question_marks_as_in_java() -> None:
    assert dumps("a\ud800b") == b'"a?b"'


@pytest.mark.parametrize("value", [object(), {1.5: 1}, {True: 1}, {None: 1}, {(1,): 1}, [1j]])
def test_refuses_to_write_what_java_could_not(value: Any) -> None:
    with pytest.raises(TypeError):
        dumps(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (100.0, "100.0"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12345678.9, "1.23456789E7"),
        (1e10, "1.0E10"),
        (1.0e21, "1.0E21"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (0.0001, "1.0E-4"),
        (-1.25e-7, "-1.25E-7"),
        (1.0166666666666666, "1.0166666666666666"),
        (0.0033333333333333335, "0.0033333333333333335"),
        (math.inf, "null"),
        (math.nan, "null"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert java_double(value) == text


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_read_back(value: float) -> None:
    assert float(java_double(value)) == value


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        (b'{0:"a,1:b",-2:{3 :1}, 4:[5,6]}', b'{"0":"a,1:b","-2":{"3" :1}, "4":[5,6]}'),
        (b'{"a{0:":"\\",5:","x":1}', b'{"a{0:":"\\",5:","x":1}'),
        (b'{0:"no end,1:', b'{"0":"no end,1:'),
        (b'{0:\0"a"}', b'{0:\0"a"}'),
        (b"[1,2]", b"[1,2]"),
    ],
)
def test_integer_keys_get_quotes(text: bytes, quoted: bytes) -> None:
    assert quote_integer_keys(text) == quoted


LONGS = st.integers(-(2**63), 2**63 - 1)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | LONGS | DOUBLES | st.text()
QUEUES = st.fixed_dictionaries({"brokerName": st.text(), "queueId": st.integers(-1, 99), "topic": st.text()}).map(
    ObjectKey.of
)


def trees(keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(keys, inner.filter(lambda value: value is not None), max_size=4)
        ),
        max_leaves=12,
    )


def has_no_reference(value: Any) -> bool:
    return "$ref" not in repr(value)


@given(trees(st.text() | LONGS | QUEUES).filter(has_no_reference))
def test_the_default_dialect_is_read_back(value: Any) -> None:
    assert loads(dumps(value)) == value


@given(trees(st.text() | QUEUES).filter(has_no_reference))
def test_the_standard_dialect_is_read_back(value: Any) -> None:
    text = dumps(value, standard=True)
    assert text.isascii()
    assert loads(text) == value


@given(trees(st.text()))
def test_the_standard_dialect_is_standard(value: Any) -> None:
    assert json.loads(dumps(value, standard=True)) == value


KINDS = sorted({*REQUEST_BODIES.values(), *RESPONSE_BODIES.values()}, key=lambda kind: kind.__name__)
#: Pieces that make interesting texts more often than plain bytes do.
PIECES = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    "'",
    "\\",
    "0",
    "-1",
    "1.5",
    "null",
    "true",
    "\\u00e9",
    '"$ref"',
    '"$.a"',
    "..",
    "$",
    "é",
    '"offsetTable":',
    '"brokerDatas":',
    '"brokerAddrs":',
    '"clientID":',
    '"topic":',
    '{"brokerName":"b","queueId":0}',
]
TEXTS = st.lists(st.sampled_from([*PIECES, " "]), max_size=40).map(lambda pieces: "".join(pieces).encode())


@settings(max_examples=200)
@given(st.binary(max_size=200) | TEXTS)
def test_no_bytes_raise_anything_but_body_error(data: bytes) -> None:
    for read in (loads, *(kind.decode for kind in KINDS)):
        with contextlib.suppress(BodyError):
            read(data)
