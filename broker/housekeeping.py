"""What happens to clients that went away: those whose connection was lost, and those that fell silent.

`Broker` calls `connection_lost` for each connection that ends and `scan` each 10 s. RocketMQ's
ClientHousekeepingService.
"""

import logging
from typing import Final

from cometmq.broker.state import BrokerState
from cometmq.remoting.connection import Connection

#: Seconds between two scans.
SCAN_INTERVAL: Final = 10.0
#: Seconds of silence after which a producer counts as gone; consumers have a key for it.
PRODUCER_TIMEOUT: Final = 120.0

log = logging.getLogger(__name__)


class ClientHousekeeping:
    """Keeps the tables of clients true."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def connection_lost(self, connection: Connection) -> None:
        """Nothing more comes from a connection: its client leaves all groups. Locks stay until they run out."""
        consumed = self._state.consumers.connection_lost(connection)
        produced = self._state.producers.connection_lost(connection)
        if consumed or produced:
            groups = ", ".join(consumed + produced)
            log.info("%s has gone (%s); it was in %s", connection, connection.end_reason, groups)

    def scan(self) -> None:
        """Take out who was silent for too long, and close the connections that nobody speaks on any more."""
        state, now = self._state, self._state.clock.monotonic()
        consumers, producers = state.consumers, state.producers
        silent = consumers.expire(now, state.config.channel_expired_timeout / 1000)
        silent += producers.expire(now, PRODUCER_TIMEOUT)
        for connection in dict.fromkeys(channel.connection for channel in silent):
            # A client may drop one group and live on in others; RocketMQ cuts it off all the same.
            if not consumers.groups_of(connection) and not producers.groups_of(connection):
                connection.close("no heartbeat")
        consumers.expire_pullers(now, state.config.subscription_expired_timeout / 1000)
        state.locks.expire()
