"""Who consumes: the consumer groups that have members now, what they subscribe to, and who is in them.

Members come by heartbeats and go by unregistering, by the loss of their connection, or by silence; with its last member
a group is forgotten. Nothing here sends anything: `on_changed` tells those who do. RocketMQ's ConsumerManager and
ConsumerGroupInfo.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from cometmq.broker.channels import ClientChannel, Signature
from cometmq.protocol import names
from cometmq.protocol.bodies.heartbeat import ConsumerData, ExpressionType, SubscriptionData
from cometmq.remoting.connection import Connection

#: Pairs of different subscriptions that are remembered for a group as complained of; more are not worth a log line.
MAX_COMPLAINTS: Final = 16

log = logging.getLogger(__name__)


class ConsumerGroup:
    """A consumer group with its members."""

    __slots__ = (
        "_complaints",
        "_signatures",
        "channels",
        "consume_from_where",
        "consume_type",
        "fingerprint",
        "generation",
        "message_model",
        "name",
        "subscriptions",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type: str | None = None
        self.message_model: str | None = None
        self.consume_from_where: str | None = None
        #: Topic -> what the member that spoke last wants of it.
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.channels: dict[Connection, ClientChannel] = {}
        #: Of the last heartbeat of the second version; 0 before it.
        self.fingerprint = 0
        #: Grows whenever the same heartbeat, sent again, could have another effect.
        self.generation = 0
        # How many members have each signature, and which pairs of them were logged.
        self._signatures: dict[Signature, int] = {}
        self._complaints: set[frozenset[Signature]] = set()

    def client_ids(self) -> list[str]:
        """The members' names. A client with two connections is named once: members divide the queues by this list."""
        return list(dict.fromkeys(channel.client_id for channel in self.channels.values()))

    def take_settings(self, data: ConsumerData) -> None:
        """The group is as its last member says."""
        settings = data.consume_type, data.message_model, data.consume_from_where
        if settings != (self.consume_type, self.message_model, self.consume_from_where):
            self.consume_type, self.message_model, self.consume_from_where = settings
            self.generation += 1

    def add(self, channel: ClientChannel) -> bool:
        """Whether the member is new; a known one has been heard again."""
        known = self.channels.get(channel.connection)
        if known is None:
            self.channels[channel.connection] = channel.copy()
            return True
        if known.client_id != channel.client_id:
            log.warning("%s: %s calls itself %s now", self.name, known, channel.client_id)
            self.generation += 1
        known.take(channel)
        return False

    def remove(self, connection: Connection) -> ClientChannel | None:
        """Takes a member out."""
        channel = self.channels.pop(connection, None)
        if channel is not None:
            self._forget_signature(channel.signature)
        return channel

    def subscribe(self, wanted: Iterable[SubscriptionData]) -> bool:
        """Whether topics came or went. A newer subscription replaces an older one, and that alone is no change."""
        topics = self.subscriptions
        changed = renewed = False
        seen = set()
        for data in wanted:
            seen.add(data.topic)
            known = topics.get(data.topic)
            if known is None:
                topics[data.topic] = data
                changed = True
            elif data.sub_version > known.sub_version:
                topics[data.topic] = data
                renewed = True
        if len(seen) != len(topics):
            for topic in topics.keys() - seen:
                del topics[topic]
            changed = True
        if changed or renewed:
            self.generation += 1
        return changed

    def compare(self, connection: Connection, wanted: Iterable[SubscriptionData]) -> None:
        """Complains, once, when two members want different things: each would lose messages to the other."""
        channel = self.channels[connection]
        signature = signature_of(self.name, wanted)
        if signature == channel.signature:
            return
        self._forget_signature(channel.signature)
        channel.signature = signature
        self._signatures[signature] = self._signatures.get(signature, 0) + 1
        if len(self._signatures) > 1 and len(self._complaints) < MAX_COMPLAINTS:
            self._complain(channel, signature)

    def _complain(self, channel: ClientChannel, signature: Signature) -> None:
        for other in self.channels.values():
            theirs = other.signature
            if theirs is None or theirs == signature:
                continue
            pair = frozenset((theirs, signature))
            if pair not in self._complaints:
                self._complaints.add(pair)
                log.warning(
                    "members of the group %s have different subscriptions, so messages will be lost to them: "
                    "%s wants %s, %s wants %s",
                    self.name,
                    channel,
                    text_of(signature),
                    other,
                    text_of(theirs),
                )
            return

    def _forget_signature(self, signature: Signature | None) -> None:
        if signature is None:
            return
        left = self._signatures[signature] - 1
        if left:
            self._signatures[signature] = left
        else:
            del self._signatures[signature]


class _Pulled:
    """A subscription that was only seen in pulls, and when it was seen last."""

    __slots__ = ("seen", "subscription")

    def __init__(self, subscription: SubscriptionData, seen: float) -> None:
        self.subscription = subscription
        self.seen = seen


class Consumers:
    """All consumer groups that have members."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        # The groups of a connection, so that its loss does not look through all.
        self._of_connection: dict[Connection, set[str]] = {}
        # Group -> topic: RocketMQ's compensation table, for those who pull and send no heartbeats.
        self._pullers: dict[str, dict[str, _Pulled]] = {}
        #: Told of a group whose members or topics changed; its last member may have gone.
        self.on_changed: list[Callable[[ConsumerGroup], None]] = []

    # Looking up

    @property
    def table(self) -> Mapping[str, ConsumerGroup]:
        return self._groups

    def get(self, group: str) -> ConsumerGroup | None:
        return self._groups.get(group)

    def subscription(self, group: str, topic: str, *, with_pullers: bool = False) -> SubscriptionData | None:
        """What a group wants of a topic; `with_pullers` also as seen in its pulls, for the lag of a group."""
        found = self._groups.get(group)
        if found is not None and (data := found.subscriptions.get(topic)) is not None:
            return data
        if with_pullers and (pulled := self._pullers.get(group, {}).get(topic)) is not None:
            return pulled.subscription
        return None

    def find_channel(self, group: str, client_id: str) -> ClientChannel | None:
        found = self._groups.get(group)
        if found is None:
            return None
        return next((channel for channel in found.channels.values() if channel.client_id == client_id), None)

    def groups_of_topic(self, topic: str) -> list[str]:
        """The groups with members that subscribe to a topic."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]

    def groups_of(self, connection: Connection) -> frozenset[str]:
        """The groups that a connection is a member of."""
        return frozenset(self._of_connection.get(connection, ()))

    # Changing

    def register(
        self, channel: ClientChannel, data: ConsumerData, *, without_sub: bool = False, fingerprint: int = 0
    ) -> bool:
        """A member was heard: whether the group's members or topics changed. Without `sub` its topics stay."""
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        group.take_settings(data)
        if fingerprint != group.fingerprint:
            group.fingerprint = fingerprint
            group.generation += 1
        changed = group.add(channel)
        if changed:
            self._of_connection.setdefault(channel.connection, set()).add(group.name)
        if not without_sub:
            changed |= group.subscribe(data.subscription_data_set)
            group.compare(channel.connection, data.subscription_data_set)
        if changed:
            self._tell(group)
        return changed

    def unregister(self, connection: Connection, group: str) -> bool:
        """A member leaves; False when it was none."""
        found = self._take_out(connection, group)
        if found is None:
            return False
        self._tell(found)
        return True

    def connection_lost(self, connection: Connection) -> list[str]:
        """A connection has gone, and with it a member of these groups."""
        gone = sorted(self._of_connection.get(connection, ()))
        for name in gone:
            self.unregister(connection, name)
        return gone

    def expire(self, now: float, timeout: float) -> list[ClientChannel]:
        """Takes out the members that were silent for too long. Nobody is told, as in RocketMQ."""
        gone = [
            (group.name, channel)
            for group in self._groups.values()
            for channel in group.channels.values()
            if now - channel.last_update > timeout
        ]
        for name, channel in gone:
            log.warning("%s: nothing heard of %s for %g s", name, channel, now - channel.last_update)
            self._take_out(channel.connection, name)
        return [channel for _, channel in gone]

    def remember_puller(self, group: str, topic: str, subscription: SubscriptionData, now: float) -> None:
        """A pull told the subscription by itself. On the way of such pulls: two lookups when it is known."""
        topics = self._pullers.setdefault(group, {})
        pulled = topics.get(topic)
        if pulled is None:
            topics[topic] = _Pulled(subscription, now)
        else:
            pulled.subscription, pulled.seen = subscription, now

    def expire_pullers(self, now: float, timeout: float) -> None:
        """Forgets the pulls of the past."""
        for group, topics in list(self._pullers.items()):
            for topic in [topic for topic, pulled in topics.items() if now - pulled.seen > timeout]:
                del topics[topic]
            if not topics:
                del self._pullers[group]

    def _take_out(self, connection: Connection, name: str) -> ConsumerGroup | None:
        group = self._groups.get(name)
        if group is None or group.remove(connection) is None:
            return None
        own = self._of_connection[connection]
        own.discard(name)
        if not own:
            del self._of_connection[connection]
        if not group.channels:
            del self._groups[name]
        return group

    def _tell(self, group: ConsumerGroup) -> None:
        for tell in self.on_changed:
            tell(group)


def signature_of(group: str, wanted: Iterable[SubscriptionData]) -> Signature:
    """What a member asks for. Each member subscribes to the group's retry topic, so that is left out."""
    retry = names.retry_topic(group)
    return frozenset(
        (data.topic, data.expression_type or ExpressionType.TAG.value, data.sub_string)
        for data in wanted
        if data.topic != retry
    )


def text_of(signature: Signature) -> str:
    """A signature for people."""
    if not signature:
        return "nothing"
    return ", ".join(f"{topic}: {filter_text!r} ({kind})" for topic, kind, filter_text in sorted(signature))
