"""What every consumer is: a member of a group, in a namespace, with a place for its offsets."""

from typing import TYPE_CHECKING

from cometmq.client.consumer.allocate import Averagely, Strategy
from cometmq.client.consumer.offsets import BrokerOffsets, FileOffsets, OffsetStore, local_offsets_file
from cometmq.protocol import names, namespaces
from cometmq.protocol.bodies.heartbeat import MessageModel, SubscriptionData

if TYPE_CHECKING:
    from cometmq.client.client import Client


class GroupMember:
    """The shared part of push and pull consumers."""

    def __init__(self, client: "Client", group: str, model: MessageModel, allocate: Strategy | None) -> None:
        names.validate_group(group)
        if group == "DEFAULT_CONSUMER":
            raise ValueError("DEFAULT_CONSUMER is the name of no group: choose one for your application")
        self.client = client
        #: As it is on the wire.
        self.group = namespaces.wrap(client.namespace, group)
        self._model = model
        self.allocate: Strategy = allocate or Averagely()
        #: Topic on the wire -> what is wanted of it.
        self.subscriptions: dict[str, SubscriptionData] = {}

    @property
    def is_clustering(self) -> bool:
        """Whether the members of the group share the messages; else each gets all."""
        return self._model is MessageModel.CLUSTERING

    def topics(self) -> list[str]:
        return list(self.subscriptions)

    def _wire(self, topic: str) -> str:
        return namespaces.wrap(self.client.namespace, topic) if self.client.namespace else topic

    def shown_topic(self, topic: str) -> str:
        """A topic as its user wrote it."""
        return namespaces.unwrap(self.client.namespace, topic) if self.client.namespace else topic

    async def _open_offsets(self, folder: str | None = None) -> OffsetStore:
        """Offsets on the brokers, or in a file for a group that broadcasts."""
        if self.is_clustering:
            return BrokerOffsets(self.client, self.group)
        name = f"{self.client.address}@{self.client.instance_name or 'DEFAULT'}"
        offsets = FileOffsets(local_offsets_file(folder, name, self.group))
        await offsets.load()
        return offsets
