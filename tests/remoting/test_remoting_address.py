"""Addresses as text, and the errors that name a bad one."""

import pytest

from cometmq.protocol.errors import CometMQError
from cometmq.remoting import format_address, parse_address, parse_addresses
from cometmq.remoting.errors import BadAddress, Timeout, TransportError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" broker-a.example:10911 ", ("broker-a.example", 10911)),
        ("[::1]:9876", ("::1", 9876)),
        ("::1:9876", ("::1", 9876)),
        ("fe80:0:0:0:0:0:0:1:10911", ("fe80:0:0:0:0:0:0:1", 10911)),
        ("fe80::1%eth0:1", ("fe80::1%eth0", 1)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("h:65535", ("h", 65535)),
    ],
)
def test_parse(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", ":", "host", "host:", ":9876", "[]:1", "host:x", "host:-1", "host:65536", "host:1.0", "h:\u0661", "a/b:1"],
)
def test_a_bad_address_is_named(text: str) -> None:
    with pytest.raises(BadAddress) as caught:
        parse_address(text)
    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TransportError)
    assert not caught.value.retriable


def test_format_is_what_parse_reads() -> None:
    assert format_address("127.0.0.1", 9876) == "127.0.0.1:9876"
    assert format_address("::1", 9876) == "[::1]:9876"
    for host in ("10.0.0.1", "::1", "name"):
        assert parse_address(format_address(host, 1)) == (host, 1)


def test_lists() -> None:
    assert parse_addresses("a:1;b:2; [::1]:3 ;") == [("a", 1), ("b", 2), ("::1", 3)]
    assert parse_addresses("") == []
    with pytest.raises(BadAddress, match="'b'"):
        parse_addresses("a:1;b")


def test_every_error_of_the_branch_says_what_to_do() -> None:
    def leaves(kind: type[CometMQError]) -> list[type[CometMQError]]:
        return [kind, *(leaf for sub in kind.__subclasses__() for leaf in leaves(sub))]

    for kind in leaves(TransportError)[1:]:
        assert kind.remedy, kind
        assert kind.__doc__, kind
        assert kind.__doc__.startswith("Raised when"), kind
    assert issubclass(Timeout, TimeoutError)
    assert Timeout.retriable
