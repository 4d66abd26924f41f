"""Request signatures: known values, what is left out of them, and verification."""

import pytest

from cometmq.protocol import signing
from cometmq.protocol.signing import calculate_signature, sign, signed_content, unsigned_keys, verify

EXT = {"a": "GID_P", "b": "TopicTest", "AccessKey": "rocketmq2"}
SIGNATURE = "SqVUSpPk59+b+MshRwwB5MEhh5w="


def test_known_values() -> None:
    assert calculate_signature(b"RocketMQ", "12345678") == "IUc8rrO/0gDch8CjObLQsW2rsiA="
    assert signed_content(EXT, b"hello") == b"rocketmq2GID_PTopicTesthello"
    assert sign(EXT, b"hello", "12345678") == SIGNATURE


def test_keys_are_sorted_ordinally_and_the_signature_is_left_out() -> None:
    fields = {"b": "4", "Zz": "2", "a": "3", "AccessKey": "1", "Signature": "never"}
    assert signed_content(fields) == b"1234"
    assert signed_content(fields, b"") == b"1234"


def test_verify() -> None:
    signed = EXT | {"Signature": SIGNATURE}
    assert verify(signed, b"hello", "12345678", version=479)
    assert not verify(signed, b"hello", "12345679", version=479)
    assert not verify(signed, b"hellO", "12345678", version=479)
    assert not verify(signed | {"b": "TopicTesu"}, b"hello", "12345678", version=479)
    assert not verify(signed | {"c": "added"}, b"hello", "12345678", version=479)
    assert not verify(EXT, b"hello", "12345678", version=479)


@pytest.mark.parametrize("given", ["", "x", SIGNATURE[:-1], SIGNATURE + "=", "é", "\ud800"])
def test_a_malformed_signature_is_just_wrong(given: str) -> None:
    assert not verify(EXT | {"Signature": given}, b"hello", "12345678", version=479)


def test_text_beyond_ascii() -> None:
    fields = {"AccessKey": "用户", "b": "\ud800"}
    signature = sign(fields, None, "密钥")
    assert verify(fields | {"Signature": signature}, None, "密钥", version=479)


@pytest.mark.parametrize(("version", "left_out"), [(317, True), (399, True), (400, False), (479, False)])
def test_old_clients_sign_before_they_add_the_query_flag(version: int, left_out: bool) -> None:
    before = EXT | {"Signature": SIGNATURE}
    after = before | {"_UNIQUE_KEY_QUERY": "true"}
    assert verify(after, b"hello", "12345678", version=version) is left_out
    assert ("_UNIQUE_KEY_QUERY" in unsigned_keys(version)) is left_out


def test_go_leaves_its_token_out() -> None:
    request = EXT | {"Signature": SIGNATURE, "SecurityToken": "token"}
    assert verify(request, b"hello", "12345678", version=317, language="GO")
    assert not verify(request, b"hello", "12345678", version=317, language="JAVA")


def test_java_signs_its_token() -> None:
    fields = EXT | {"SecurityToken": "token"}
    signature = sign(fields, b"hello", "12345678")
    assert signature != SIGNATURE
    assert verify(fields | {"Signature": signature}, b"hello", "12345678", version=479)


def test_comparison_is_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((left, right))
        return left == right

    monkeypatch.setattr(signing.hmac, "compare_digest", compare)
    assert verify(EXT | {"Signature": SIGNATURE}, b"hello", "12345678", version=479)
    assert compared == [(SIGNATURE.encode(), SIGNATURE.encode())]
