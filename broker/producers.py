"""Who produces: the producer groups that have members now, and each client by its name.

Brokers call producers back: for the state of a transaction, and with the reply to a request. It mirrors RocketMQ's
ProducerManager.
"""

import logging
from collections.abc import Mapping

from cometmq.broker.channels import ClientChannel
from cometmq.remoting.connection import Connection

log = logging.getLogger(__name__)


class Producers:
    """All producer groups that have members."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Connection, ClientChannel]] = {}
        # The groups of a connection.
        self._of_connection: dict[Connection, set[str]] = {}
        # By client id, the connection that was heard last.
        self._clients: dict[str, ClientChannel] = {}

    @property
    def table(self) -> Mapping[str, Mapping[Connection, ClientChannel]]:
        return self._groups

    def channels_of(self, group: str) -> list[ClientChannel]:
        return list(self._groups.get(group, {}).values())

    def get(self, group: str, connection: Connection) -> ClientChannel | None:
        channels = self._groups.get(group)
        return None if channels is None else channels.get(connection)

    def by_client_id(self, client_id: str) -> ClientChannel | None:
        """The client of that name, whatever its group."""
        return self._clients.get(client_id)

    def groups_of(self, connection: Connection) -> frozenset[str]:
        """The groups that a connection is a member of."""
        return frozenset(self._of_connection.get(connection, ()))

    def register(self, channel: ClientChannel, group: str) -> bool:
        """A member was heard: whether it is new."""
        channels = self._groups.setdefault(group, {})
        known = channels.get(channel.connection)
        if known is not None:
            if known.client_id != channel.client_id:
                self._forget_client(known)
            known.take(channel)
            self._clients[channel.client_id] = known
            return False
        own = channels[channel.connection] = channel.copy()
        self._of_connection.setdefault(channel.connection, set()).add(group)
        self._clients[channel.client_id] = own
        return True

    def unregister(self, connection: Connection, group: str) -> bool:
        """A member leaves; False when it was none."""
        channels = self._groups.get(group)
        channel = channels.pop(connection, None) if channels is not None else None
        if channels is None or channel is None:
            return False
        if not channels:
            del self._groups[group]
        own = self._of_connection[connection]
        own.discard(group)
        if not own:
            del self._of_connection[connection]
        self._forget_client(channel)
        return True

    def connection_lost(self, connection: Connection) -> list[str]:
        """A connection has gone, and with it a member of these groups."""
        gone = sorted(self._of_connection.get(connection, ()))
        for group in gone:
            self.unregister(connection, group)
        return gone

    def expire(self, now: float, timeout: float) -> list[ClientChannel]:
        """Takes out the members that were silent for too long."""
        gone = [
            (group, channel)
            for group, channels in self._groups.items()
            for channel in channels.values()
            if now - channel.last_update > timeout
        ]
        for group, channel in gone:
            log.warning("%s: nothing heard of %s for %g s", group, channel, now - channel.last_update)
            self.unregister(channel.connection, group)
        return [channel for _, channel in gone]

    def _forget_client(self, channel: ClientChannel) -> None:
        """The name leads to another channel of the client, or nowhere."""
        known = self._clients.get(channel.client_id)
        if known is None or known.connection is not channel.connection:
            return
        for group in self._of_connection.get(channel.connection, ()):
            other = self._groups[group].get(channel.connection)
            if other is not None and other is not channel and other.client_id == channel.client_id:
                self._clients[channel.client_id] = other
                return
        del self._clients[channel.client_id]
