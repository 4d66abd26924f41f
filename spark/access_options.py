"""The options of access, which source and sink share: declared, parsed and checked."""

from collections.abc import Mapping
from typing import Final

from cometmq.client.addresses import configured_addresses
from cometmq.spark.access import DEFAULT_GROUP, Access
from cometmq.spark.errors import OptionError
from cometmq.spark.option_texts import Option, OptionTexts, declared

#: How the cluster is reached.
ACCESS: Final = declared(
    Option("nameServer", "the nameservers, host:port, separated by ; or ,", "the environment's NAMESRV_ADDR"),
    Option("accessKey", "the user of clusters with access control"),
    Option("secretKey", "the user's secret"),
    Option("securityToken", "the token of a temporary login"),
    Option("tls", "whether to speak TLS", "false"),
    Option("tlsCa", "PEM file of the authorities to trust; without it the system's"),
    Option("tlsCert", "PEM file of the client's certificate"),
    Option("tlsKey", "PEM file of the client's key"),
    Option("tlsKeyPassword", "the password of that key"),
    Option("tlsVerify", "whether the servers' certificates are checked", "true"),
    Option("namespace", "the namespace that topics and groups live in"),
    Option("requestTimeoutMs", "milliseconds that a server has to answer what is not a pull", "3000"),
)


def of_access(options: Mapping[str, str]) -> dict[str, str]:
    """Those of a query's options that say how the cluster is reached; Spark does not mind their case."""
    names = {name.lower() for name in ACCESS}
    return {name: value for name, value in options.items() if name.lower() in names}


def access_of(texts: OptionTexts, group: str = DEFAULT_GROUP) -> Access:
    """How the cluster is reached."""
    timeout = texts.integer("requestTimeoutMs", high=600_000) / 1000
    for one, other in (
        ("accessKey", "secretKey"),
        ("secretKey", "accessKey"),
        ("tlsCert", "tlsKey"),
        ("tlsKey", "tlsCert"),
    ):
        if texts.given(one) and not texts.given(other):
            raise OptionError(one, "", f"it needs {other}, too")
    tls = texts.flag("tls")
    for name in texts.given("tlsCa", "tlsCert", "tlsKey", "tlsKeyPassword"):
        if not tls:
            raise OptionError(name, "", "it has no use without tls=true")
    return Access(
        name_servers=_name_servers(texts),
        access_key=texts.text("accessKey"),
        secret_key=texts.text("secretKey"),
        security_token=texts.text("securityToken") or None,
        tls=tls,
        tls_ca=texts.text("tlsCa") or None,
        tls_cert=texts.text("tlsCert") or None,
        tls_key=texts.text("tlsKey") or None,
        tls_key_password=texts.text("tlsKeyPassword") or None,
        tls_verify=texts.flag("tlsVerify"),
        namespace=texts.text("namespace"),
        request_timeout=timeout,
        group=group,
    )


def _name_servers(texts: OptionTexts) -> tuple[str, ...]:
    given = texts.text("nameServer") if texts.given("nameServer") else None
    try:
        addresses = configured_addresses(given)
    except ValueError as error:
        raise OptionError("nameServer", given or "", f"give host:port, several separated by ; ({error})") from None
    if not addresses:
        raise OptionError("nameServer", given or "", "it is missing: give the nameservers as host:port;host:port")
    return tuple(addresses)
