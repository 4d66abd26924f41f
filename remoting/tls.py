"""TLS on the port of the plain protocol: what is configured, and the contexts that follow from it.

A server looks at the first byte of a connection (see `listener`); here is which mode it runs in and with which
certificates. Certificates that change on disk are read again at the next handshake. The options mirror RocketMQ's
TlsSystemConfig and its `tls.*` properties.
"""

import logging
import os
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Self, TypeVar

from cometmq.remoting.errors import TlsSetupFailed

logger = logging.getLogger(__name__)

_E = TypeVar("_E", bound=StrEnum)

#: The files are looked at, at most, once in this time (seconds).
CHECK_INTERVAL = 1.0


class TlsMode(StrEnum):
    """What a server does with a first byte that says TLS, and with one that does not."""

    DISABLED = "disabled"  # TLS is closed
    PERMISSIVE = "permissive"  # both are served
    ENFORCING = "enforcing"  # plain is closed


class ClientAuth(StrEnum):
    """Whether a server asks its clients for certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """TLS of a server. Without a certificate the permissive mode can serve plain connections only."""

    mode: TlsMode = TlsMode.PERMISSIVE  # tls.server.mode
    cert: str | None = None  # tls.server.certPath: PEM, with the chain
    key: str | None = None  # tls.server.keyPath: PEM
    key_password: str | None = None  # tls.server.keyPassword
    ca: str | None = None  # tls.server.trustCertPath: PEM, who signs the certificates of clients
    client_auth: ClientAuth = ClientAuth.NONE  # tls.server.need.client.auth

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self:
        """The options of RocketMQ's property names."""
        return cls(
            mode=_choice(TlsMode, properties, "tls.server.mode", TlsMode.PERMISSIVE),
            cert=properties.get("tls.server.certPath") or None,
            key=properties.get("tls.server.keyPath") or None,
            key_password=properties.get("tls.server.keyPassword") or None,
            ca=properties.get("tls.server.trustCertPath") or None,
            client_auth=_choice(ClientAuth, properties, "tls.server.need.client.auth", ClientAuth.NONE),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTlsOptions:
    """TLS of a client. The server's certificate is verified unless `verify` says otherwise."""

    ca: str | None = None  # tls.client.trustCertPath: PEM; without it the system's authorities
    cert: str | None = None  # tls.client.certPath
    key: str | None = None  # tls.client.keyPath
    key_password: str | None = None  # tls.client.keyPassword
    verify: bool = True  # tls.client.authServer
    #: The name that the server's certificate must bear. Routes carry addresses, not names, so none is asked for by
    #: default: whoever holds a certificate of the authority is trusted, as in RocketMQ.
    hostname: str | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> Self | None:
        """The options of RocketMQ's property names; None without `tls.enable`.

        Java trusts everybody unless told otherwise. Here that has to be said: `tls.client.authServer=false` or
        `tls.test.mode.enable=true`.
        """
        if not _flag(properties, "tls.enable", False):
            return None
        return cls(
            ca=properties.get("tls.client.trustCertPath") or None,
            cert=properties.get("tls.client.certPath") or None,
            key=properties.get("tls.client.keyPath") or None,
            key_password=properties.get("tls.client.keyPassword") or None,
            verify=_flag(properties, "tls.client.authServer", not _flag(properties, "tls.test.mode.enable", False)),
        )


class TlsContext:
    """An SSL context that follows its files: read again when one of them has changed on disk.

    A new file that cannot be used is logged, and the context stays as it was: a half-finished renewal must not take
    the server down.
    """

    def __init__(
        self,
        build: Callable[[], ssl.SSLContext],
        paths: tuple[str | None, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._build = build
        self._paths = [path for path in paths if path]
        self._clock = clock
        self._seen = self._fingerprint()
        self._context = build()
        self._next_check = clock() + CHECK_INTERVAL

    def get(self) -> ssl.SSLContext:
        """The context for the next handshake."""
        now = self._clock()
        if now >= self._next_check:
            self._next_check = now + CHECK_INTERVAL
            seen = self._fingerprint()
            if seen != self._seen:
                self._seen = seen
                self._rebuild()
        return self._context

    def _rebuild(self) -> None:
        try:
            self._context = self._build()
        except TlsSetupFailed as error:
            logger.error("the TLS files have changed and cannot be used, the old ones stay in use: %s", error)
        else:
            logger.info("the TLS files were read again: %s", ", ".join(self._paths))

    def _fingerprint(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def server_context(options: TlsOptions, clock: Callable[[], float] = time.monotonic) -> TlsContext | None:
    """The context of a server; None when it cannot or must not speak TLS."""
    if options.mode is TlsMode.DISABLED:
        return None
    if options.cert is None or options.key is None:
        if options.mode is TlsMode.ENFORCING or options.cert or options.key:
            raise TlsSetupFailed("TLS needs a certificate and its key: set tls.server.certPath and tls.server.keyPath")
        return None
    if options.client_auth is not ClientAuth.NONE and options.ca is None:
        raise TlsSetupFailed("certificates of clients need an authority to be checked by: set tls.server.trustCertPath")
    return TlsContext(lambda: _build_server(options), (options.cert, options.key, options.ca), clock)


def client_context(options: ClientTlsOptions, clock: Callable[[], float] = time.monotonic) -> TlsContext:
    """The context of a client."""
    return TlsContext(lambda: _build_client(options), (options.cert, options.key, options.ca), clock)


def _build_server(options: TlsOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    assert options.cert is not None
    _load_cert(context, options.cert, options.key, options.key_password)
    if options.ca is not None:
        _load_ca(context, options.ca)
    context.verify_mode = _VERIFY[options.client_auth]
    return context


def _build_client(options: ClientTlsOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options.verify and options.hostname is not None
    context.verify_mode = ssl.CERT_REQUIRED if options.verify else ssl.CERT_NONE
    if options.verify:
        if options.ca is not None:
            _load_ca(context, options.ca)
        else:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    if options.cert is not None:
        _load_cert(context, options.cert, options.key, options.key_password)
    return context


def _load_cert(context: ssl.SSLContext, cert: str, key: str | None, password: str | None) -> None:
    def give_password() -> str:
        # Without this OpenSSL would ask on the terminal.
        if password is None:
            raise TlsSetupFailed(f"the key {key or cert} is encrypted and no password was given")
        return password

    try:
        context.load_cert_chain(cert, key, give_password)
    except (OSError, ValueError) as error:
        raise TlsSetupFailed(f"certificate {cert} with key {key or cert}: {error}") from error


def _load_ca(context: ssl.SSLContext, ca: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise TlsSetupFailed(f"trust file {ca}: {error}") from error


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _flag(properties: Mapping[str, str], key: str, default: bool) -> bool:
    text = properties.get(key, "").strip().lower()
    if not text:
        return default
    if text not in ("true", "false"):
        raise TlsSetupFailed(f"{key}={text} is neither true nor false")
    return text == "true"


def _choice(kinds: type[_E], properties: Mapping[str, str], key: str, default: _E) -> _E:
    text = properties.get(key, "").strip().lower()
    if not text:
        return default
    try:
        return kinds(text)
    except ValueError:
        raise TlsSetupFailed(f"{key}={text} is none of {', '.join(kinds)}") from None
