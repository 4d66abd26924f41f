"""Namespaces: names of one tenant kept apart from the names of another.

V1 is a renaming by the client, `<namespace>%<name>`, that the servers never notice. V2 leaves names alone and says the
namespace in two ext fields of every request. RocketMQ's `NamespaceUtil` and `NamespaceRpcHook`.
"""

from typing import Final

from cometmq.protocol.names import DLQ_PREFIX, RETRY_PREFIX, is_system_group, is_system_topic, retry_topic

SEPARATOR: Final = "%"

#: Ext fields of V2: "true" when a request carries a namespace, and the namespace.
NAMESPACED_FIELD: Final = "nsd"
NAMESPACE_FIELD: Final = "ns"


def _split(name: str) -> tuple[str, str]:
    """The prefix of a retry or dead letter topic, and the rest."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


def _is_system(rest: str) -> bool:
    # Without the prefix, so that the retry topic of a system group stays the retry topic of that group.
    return is_system_topic(rest) or is_system_group(rest)


def wrap(namespace: str, name: str) -> str:
    """A topic or group as it goes on the wire. Names of the system, and names that have it already, stay."""
    prefix, rest = _split(name)
    if not namespace or not rest or _is_system(rest) or rest.startswith(namespace + SEPARATOR):
        return name
    return f"{prefix}{namespace}{SEPARATOR}{rest}"


def unwrap(namespace: str, name: str) -> str:
    """A topic or group as its user wrote it; one of another namespace stays as it is."""
    prefix, rest = _split(name)
    if not namespace or not rest.startswith(namespace + SEPARATOR):
        return name
    return prefix + rest[len(namespace) + 1 :]


def unwrap_any(name: str) -> str:
    """A topic or group without its namespace, whichever that is."""
    return unwrap(namespace_of(name), name)


def namespace_of(name: str) -> str:
    """The namespace in a topic or group; empty if there is none."""
    _, rest = _split(name)
    namespace, separator, _ = rest.partition(SEPARATOR)
    return "" if not separator or _is_system(rest) else namespace


def wrapped_retry_topic(namespace: str, group: str) -> str:
    """The retry topic, on the wire, of a group as its user wrote it."""
    return retry_topic(wrap(namespace, group))


def namespace_fields(namespace: str) -> dict[str, str]:
    """The ext fields that V2 adds to a request."""
    return {NAMESPACED_FIELD: "true", NAMESPACE_FIELD: namespace} if namespace else {}
