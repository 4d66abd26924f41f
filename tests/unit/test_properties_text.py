"""Java's `.properties` text: each rule of `java.util.Properties`, and what is written is read back."""

import contextlib
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol import properties_text
from cometmq.protocol.errors import BodyError
from support import golden


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a=1\nb=2\n", {"a": "1", "b": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a:1\nb 2\nc\t3\nd = 4\ne : 5\nf  :=6", {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5", "f": "=6"}),
        ("a\nb=\nc:\nd  ", {"a": "", "b": "", "c": "", "d": ""}),
        ("# no\n! no\n   # no\na=1 # yes\n", {"a": "1 # yes"}),
        ("  \t a = 1 \n", {"a": "1 "}),
        ("a=1,\\\n   2,\\\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\n# no comment\nb=2", {"a": "1# no comment", "b": "2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("a=1\\\n", {"a": "1"}),
        ("ab\\\n  c=1", {"abc": "1"}),
        ("# comment \\\na=1", {"a": "1"}),
        (r"a\=b\:c\ d=1", {"a=b:c d": "1"}),
        (r"a=\t\n\r\f\q\\", {"a": "\t\n\r\fq\\"}),
        (r"a=\u4f60\u597D", {"a": "你好"}),
        (r"a=\ud83d\ude00", {"a": "😀"}),
        ("a=你好 😀", {"a": "你好 😀"}),
        ("a=b=c:d", {"a": "b=c:d"}),
        ("=1", {"": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a= 10.0.0.1:9876;10.0.0.2:9876", {"a": "10.0.0.1:9876;10.0.0.2:9876"}),
        ("\ufeffa=1", {"a": "1"}),
        ("a=x\x0by\x85z", {"a": "x\x0by\x85z"}),
    ],
)
def test_reads(text: str, entries: dict[str, str]) -> None:
    assert properties_text.loads(text) == entries
    assert properties_text.loads(text.encode()) == entries
    assert properties_text.loads(memoryview(text.encode())) == entries


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a=1\nb=\xff", "properties are not UTF-8 at byte 6"),
        (b"a=1\nb=\\u12", "properties have a malformed \\uxxxx in line 2"),
        (b"\\uzzzz=1", "properties have a malformed \\uxxxx in line 1"),
        (b"\n\n\\\n\\ud800=1", "properties have half of a surrogate pair in line 3"),
    ],
)
def test_refuses(data: bytes, message: str) -> None:
    with pytest.raises(BodyError) as caught:
        properties_text.loads(data)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ({}, ""),
        ({"b": "2", "a": "1"}, "b=2\na=1\n"),
        ({"a": "b=c:d #e!"}, "a=b=c:d #e!\n"),
        ({"a": ""}, "a=\n"),
        ({"a": " x "}, "a=\\ x \n"),
        ({"a b": "C:\\x", "#k": "1\n2"}, "a\\ b=C:\\\\x\n\\#k=1\\n2\n"),
        ({"k": "é😀"}, "k=\\u00e9\\ud83d\\ude00\n"),
    ],
)
def test_writes(entries: dict[str, str], text: str) -> None:
    assert properties_text.dumps(entries) == text
    assert properties_text.loads(text) == entries


@given(st.dictionaries(st.text(), st.text(), max_size=5))
def test_what_is_written_is_read_back(entries: dict[str, str]) -> None:
    text = properties_text.dumps(entries)
    assert text.isascii()
    assert properties_text.loads(text) == entries


@given(st.text(st.sampled_from("ab=: \t\f\\\n\r#!u0é"), max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        entries = properties_text.loads(text)
    except BodyError:
        return
    assert properties_text.loads(properties_text.dumps(entries)) == entries


@given(st.binary(max_size=50))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(BodyError):
        properties_text.loads(data)


@pytest.mark.parametrize("piece", ["\\", "\\\\x", "a ", "\\\n", "=", " ", "\\u0041", "a=\n"])
def test_hostile_text_takes_linear_time(piece: str) -> None:
    def seconds(count: int) -> float:
        text = "k" + piece * count + "x"
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            properties_text.loads(text)
            best = min(best, time.process_time() - start)
        return best

    # 16 times the text in quadratic time would be 256 times as long.
    assert seconds(160_000) < 64 * max(seconds(10_000), 0.002)


def test_the_configuration_of_a_real_broker() -> None:
    (frame,) = [
        exchange.response
        for exchange in golden.exchanges("admin")
        if exchange.request.code == 26 and exchange.response and exchange.request.n == 105
    ]
    entries = properties_text.loads(frame.body)
    assert len(entries) == 411
    assert entries["fileReservedTime"] == "72"
    assert entries["brokerIP1"] == "127.0.0.1"
    assert list(entries) == sorted(entries)
    assert properties_text.dumps(entries).encode() == frame.body
