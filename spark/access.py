"""How a Spark process reaches the cluster: nameservers, credentials, TLS, namespace and group.

A frozen value that the driver makes from the options and that goes to every executor inside the pickled reader. What
is done with it is in `link`. RocketMQ's ClientConfig.
"""

from typing import Any, Final

import msgspec

from cometmq.protocol import namespaces

#: The group of those who name none: brokers count reads by group, and refuse requests without one.
DEFAULT_GROUP = "spark-cometmq"

_SECRETS: Final = frozenset({"secret_key", "security_token", "tls_key_password"})


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Where the cluster is and who asks. Secrets are left out of its text."""

    #: Each as `host:port`.
    name_servers: tuple[str, ...]
    access_key: str = ""
    secret_key: str = ""
    security_token: str | None = None
    tls: bool = False
    #: PEM files; they have to be at these paths on every executor.
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password: str | None = None
    #: False: whoever answers is trusted.
    tls_verify: bool = True
    namespace: str = ""
    #: Seconds for questions that are not pulls.
    request_timeout: float = 3.0
    #: As the user names it.
    group: str = DEFAULT_GROUP

    def __repr__(self) -> str:
        return f"Access({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [(name, getattr(self, name)) for name in self.__struct_fields__ if name not in _SECRETS]

    @property
    def wire_group(self) -> str:
        """The group as brokers know it."""
        return namespaces.wrap(self.namespace, self.group)

    def wire_topic(self, topic: str) -> str:
        """A topic as brokers know it."""
        return namespaces.wrap(self.namespace, topic)

    def shown_topic(self, topic: str) -> str:
        """A topic of the wire as the user names it."""
        return namespaces.unwrap(self.namespace, topic)
