"""Tells the members of a consumer group that others came or went, so that they divide the queues anew.

Oneway, some members a turn, and never in the way of the request that caused it: a member that cannot be reached is
passed over, for clients also look by themselves each 20 s. A new round takes the place of the one that is under way;
those who have not heard yet are first in it. RocketMQ's DefaultConsumerIdsChangeListener.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

from cometmq.broker.consumers import ConsumerGroup
from cometmq.broker.state import BrokerState
from cometmq.broker.store.runner import Handle
from cometmq.protocol.bodies.heartbeat import MessageModel
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.callbacks import NotifyConsumerIdsChanged
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import TransportError

#: Members that are told in one turn of the loop: about a millisecond's work.
MEMBERS_A_TURN: Final = 256
#: Seconds that changes are gathered for when `realTimeNotifyConsumerChange` is off.
GATHER_TIME: Final = 15.0

log = logging.getLogger(__name__)


class ConsumerNotices:
    """The rounds that are under way. It listens to `state.consumers` from its making on."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        # Group -> the members that are still to be told, in their order.
        self._rounds: dict[str, dict[Connection, None]] = {}
        # Groups whose rounds wait for the gathering to end.
        self._gathered: set[str] = set()
        self._gathering: Handle | None = None
        self._is_scheduled = False
        self._is_closed = False
        #: Notices that were sent, and members that were passed over.
        self.sent = 0
        self.missed = 0
        state.consumers.on_changed.append(self.changed)

    def changed(self, group: ConsumerGroup) -> None:
        """The members or topics of a group changed."""
        if self._is_closed or not group.channels or not self._is_wanted(group):
            return
        if self._state.config.real_time_notify_consumer_change:
            self._begin(group)
            return
        self._gathered.add(group.name)
        if self._gathering is None:
            self._gathering = self._state.runner.call_later(GATHER_TIME, self._gathering_over)

    def close(self) -> None:
        """Nobody is told anything any more."""
        self._is_closed = True
        self._state.consumers.on_changed.remove(self.changed)
        self._rounds.clear()
        self._gathered.clear()
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _is_wanted(self, group: ConsumerGroup) -> bool:
        if not self._state.config.notify_consumer_ids_changed_enable:
            return False
        if group.message_model == MessageModel.BROADCASTING:
            return False
        config = self._state.groups.get(group.name)
        return config is None or config.notify_consumer_ids_changed_enable

    def _begin(self, group: ConsumerGroup) -> None:
        waiting = self._rounds.get(group.name, {})
        self._rounds[group.name] = _in_order(waiting, group.channels)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._state.runner.call_soon(self._turn)

    def _gathering_over(self) -> None:
        self._gathering = None
        names, self._gathered = self._gathered, set()
        for name in names:
            group = self._state.consumers.get(name)
            if group is not None:
                self._begin(group)

    def _turn(self) -> None:
        self._is_scheduled = False
        left = MEMBERS_A_TURN
        while left and self._rounds:
            name, members = next(iter(self._rounds.items()))
            header = NotifyConsumerIdsChanged(consumer_group=name)
            while left and members:
                connection = next(iter(members))
                del members[connection]
                left -= 1
                self._tell(connection, header)
            if not members:
                del self._rounds[name]
        if self._rounds:
            self._is_scheduled = True
            self._state.runner.call_soon(self._turn)

    def _tell(self, connection: Connection, header: NotifyConsumerIdsChanged) -> None:
        # One that does not read its answers shall not be buried in notices besides.
        if not connection.is_open or connection.output.is_paused:
            self.missed += 1
            return
        try:
            connection.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)
        except TransportError as error:
            self.missed += 1
            log.debug("%s was not told of a change in %s: %s", connection, header.consumer_group, error)
        else:
            self.sent += 1


def _in_order(waiting: Iterable[Connection], members: Mapping[Connection, object]) -> dict[Connection, None]:
    """All members, and first among them those who have waited already."""
    ordered = {connection: None for connection in waiting if connection in members}
    ordered.update(dict.fromkeys(members))
    return ordered
