"""Signatures of requests: HMAC-SHA1 over the values of the ext fields and the body.

The content is the values of all ext fields in the order of their keys, with nothing between them, then the body; keys,
code and opaque are not signed. A request is signed last, when all its fields are final. Users, secrets and what they
may do live elsewhere. RocketMQ's `AclUtils` and `AclSigner`.
"""

import base64
import hmac
from collections.abc import Collection, Mapping
from typing import Final

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"

#: Clients up to this protocol version sign a query before they add UNIQUE_KEY_QUERY to it.
LAST_VERSION_UNSIGNED_QUERY: Final = 399

_ALWAYS_UNSIGNED: Final = frozenset({SIGNATURE})


def unsigned_keys(version: int, language: str = "JAVA") -> frozenset[str]:
    """The ext fields that a peer of this version and language leaves out of the content."""
    keys = _ALWAYS_UNSIGNED
    if version <= LAST_VERSION_UNSIGNED_QUERY:
        keys |= {UNIQUE_KEY_QUERY}
    if language == "GO":
        # Go's client sends its token unsigned.
        keys |= {SECURITY_TOKEN}
    return keys


def signed_content(
    ext_fields: Mapping[str, str], body: bytes | None = None, *, unsigned: Collection[str] = _ALWAYS_UNSIGNED
) -> bytes:
    """The bytes that a signature covers. Keys are sorted ordinally: upper case before lower case."""
    values = "".join([ext_fields[key] for key in sorted(ext_fields) if key not in unsigned])
    # "replace" because a peer's JSON may hold a lone surrogate; such a request has to fail, not to raise.
    return values.encode("utf-8", "replace") + (body or b"")


def calculate_signature(content: bytes, secret_key: str) -> str:
    """Base64 of HMAC-SHA1."""
    return base64.b64encode(hmac.digest(secret_key.encode("utf-8"), content, "sha1")).decode("ascii")


def sign(ext_fields: Mapping[str, str], body: bytes | None, secret_key: str) -> str:
    """The signature of a request of ours, whose ext fields hold AccessKey already."""
    return calculate_signature(signed_content(ext_fields, body), secret_key)


def verify(
    ext_fields: Mapping[str, str], body: bytes | None, secret_key: str, *, version: int, language: str = "JAVA"
) -> bool:
    """Whether the request carries the right signature; `version` and `language` are the ones of its header.

    Compared in constant time, so that a wrong signature does not tell how much of it was right.
    """
    given = ext_fields.get(SIGNATURE)
    if given is None:
        return False
    content = signed_content(ext_fields, body, unsigned=unsigned_keys(version, language))
    expected = calculate_signature(content, secret_key)
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("ascii"))
