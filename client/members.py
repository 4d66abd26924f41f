"""What a client knows of the producers and consumers that hang on it."""

from collections.abc import Iterable
from typing import Protocol

from cometmq.client.server_requests import AskedConsumer
from cometmq.protocol.bodies.heartbeat import ConsumerData, ProducerData


class Member(Protocol):
    """A producer or consumer."""

    group: str

    def topics(self) -> Iterable[str]:
        """The topics whose routes it needs."""

    async def close(self) -> None: ...


class ProducerMember(Member, Protocol):
    def heartbeat(self) -> ProducerData: ...

    def forked(self) -> None:
        """The process was forked, and this is the child."""


class ConsumerMember(Member, AskedConsumer, Protocol):
    def heartbeat(self) -> ConsumerData: ...
