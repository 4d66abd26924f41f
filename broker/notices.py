"""Tells the members of a consumer group that others came or went, so that they divide the queues anew.

Oneway, some members a turn, and never in the way of the request that caused it: a member that cannot be reached is
passed over, for clients also look by themselves each 20 s. A change during a round makes one longer round of both:
whoever has been told already comes again, behind those who have not. RocketMQ's DefaultConsumerIdsChangeListener.
"""

import logging
from collections import OrderedDict
from typing import Final

from cometmq.broker.channels import ClientChannel
from cometmq.broker.consumers import ConsumerGroup
from cometmq.broker.state import BrokerState
from cometmq.broker.store.runner import Handle
from cometmq.protocol.bodies.heartbeat import MessageModel
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.callbacks import NotifyConsumerIdsChanged
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import TransportError

#: Members that are told at a time, about two milliseconds' work, and the seconds until the next are: ten thousand
#: clients that start together shall not keep the broker from its other work.
MEMBERS_A_TURN: Final = 256
PAUSE: Final = 0.01
#: Seconds that changes are gathered for when `realTimeNotifyConsumerChange` is off.
GATHER_TIME: Final = 15.0

log = logging.getLogger(__name__)


class _Round:
    """Who of a group is still to be told, and who has been: those come again when something changes meanwhile."""

    __slots__ = ("pending", "told")

    def __init__(self) -> None:
        # A plain dict would look at all that were taken from its begin, each time.
        self.pending: OrderedDict[Connection, None] = OrderedDict()
        self.told: dict[Connection, None] = {}

    def begin(self, members: dict[Connection, ClientChannel]) -> None:
        """Something changed: all members must hear of it from now on. Costs what has been told, and new members."""
        known = len(self.pending) + len(self.told)
        self.pending.update(self.told)
        self.told.clear()
        # New members are the last of the group.
        for connection in reversed(members):
            if known and connection in self.pending:
                break
            self.pending[connection] = None


class ConsumerNotices:
    """The rounds that are under way. It listens to `state.consumers` from its making on."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._rounds: dict[str, _Round] = {}
        # Groups whose rounds wait for the gathering to end.
        self._gathered: set[str] = set()
        self._gathering: Handle | None = None
        self._is_scheduled = False
        self._pausing: Handle | None = None
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
        for timer in (self._gathering, self._pausing):
            if timer is not None:
                timer.cancel()
        self._gathering = self._pausing = None

    def _is_wanted(self, group: ConsumerGroup) -> bool:
        if not self._state.config.notify_consumer_ids_changed_enable:
            return False
        if group.message_model == MessageModel.BROADCASTING:
            return False
        config = self._state.groups.get(group.name)
        return config is None or config.notify_consumer_ids_changed_enable

    def _begin(self, group: ConsumerGroup) -> None:
        found = self._rounds.get(group.name)
        if found is None:
            found = self._rounds[group.name] = _Round()
        found.begin(group.channels)
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
        self._is_scheduled, self._pausing = False, None
        left = MEMBERS_A_TURN
        while left and self._rounds:
            name, found = next(iter(self._rounds.items()))
            header = NotifyConsumerIdsChanged(consumer_group=name)
            pending, told = found.pending, found.told
            group = self._state.consumers.get(name)
            members = {} if group is None else group.channels
            while left and pending:
                connection, _ = pending.popitem(last=False)
                if connection in members:
                    told[connection] = None
                    left -= 1
                    self._tell(connection, header)
            if not pending:
                del self._rounds[name]
        if self._rounds:
            self._is_scheduled = True
            self._pausing = self._state.runner.call_later(PAUSE, self._turn)

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
