"""What goes with every request of a client: namespace, zone, credentials; and the check of every answer.

The keys are added in the order that signing needs: last comes the signature, over all of them. RocketMQ's
NamespaceRpcHook, StreamTypeRPCHook and AclClientRPCHook.
"""

from collections.abc import Mapping

import msgspec

from cometmq.client.errors import BrokerError
from cometmq.protocol import namespaces, signing
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.header import Header, to_ext
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.dispatch import Body
from cometmq.remoting.pending import Answer

_SUCCESS = int(ResponseCode.SUCCESS)


class Credentials(msgspec.Struct, frozen=True):
    """The user's key and secret, and the token of a temporary login."""

    access_key: str
    secret_key: str
    security_token: str | None = None

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r}, '***')"


class RequestKeys:
    """The keys that a client adds to each of its requests. An `ExtHook` of the remoting client."""

    def __init__(self, fixed: Mapping[str, str], credentials: Credentials | None) -> None:
        self._fixed = dict(fixed)
        self._credentials = credentials

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to add; without, the hook is left out of the hot path."""
        return bool(self._fixed) or self._credentials is not None

    def __call__(
        self, code: int, header: Header | None, body: Body, ext: Mapping[str, str] | None
    ) -> Mapping[str, str] | None:
        keys = {**(ext or {}), **self._fixed}
        credentials = self._credentials
        if credentials is not None:
            keys[signing.ACCESS_KEY] = credentials.access_key
            if credentials.security_token is not None:
                keys[signing.SECURITY_TOKEN] = credentials.security_token
            signed = {**(to_ext(header) if header is not None else {}), **keys}
            data = b"".join(body) if isinstance(body, list | tuple) else bytes(body)
            keys[signing.SIGNATURE] = signing.sign(signed, data, credentials.secret_key)
        return keys


def fixed_keys(*, namespace_v2: str = "", zone: str = "", zone_mode: str = "", stream: bool = False) -> dict[str, str]:
    """The keys that are the same for every request of a client."""
    keys = dict(namespaces.namespace_fields(namespace_v2))
    if zone:
        keys["__ZONE_NAME"] = zone
    if zone_mode:
        keys["__ZONE_MODE"] = zone_mode
    if stream:
        keys["ReqT"] = "0"
    return keys


async def ask(
    remoting: RemotingClient,
    address: str,
    code: int,
    header: Header | None = None,
    body: bytes = b"",
    *,
    timeout: float,  # noqa: ASYNC109 - the budget of one request
    ext: Mapping[str, str] | None = None,
) -> Answer:
    """A request that has to succeed: every other answer is raised as a BrokerError."""
    answer = await remoting.request(address, code, header, body, timeout=timeout, ext=ext)
    if answer.code != _SUCCESS:
        raise BrokerError.of(answer, address)
    return answer
