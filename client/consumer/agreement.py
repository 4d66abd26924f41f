"""Whether the members of a group subscribe to the same things, as they must: brokers keep one table for a group.

Whoever subscribed last counts for all of them. A member that wants something else gets too little and loses the rest,
and nobody tells it so, which is RocketMQ's best known trap. So each member looks from time to time at what its brokers
have, and warns when that is not what it said.
"""

import logging
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cometmq.client.errors import BrokerError, ClientError
from cometmq.client.requests import ask
from cometmq.protocol import names
from cometmq.protocol.bodies.connections import ConsumerConnection
from cometmq.protocol.bodies.heartbeat import ExpressionType, SubscriptionData
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.errors import ProtocolError
from cometmq.protocol.requests.admin import GetConsumerConnectionList
from cometmq.remoting.errors import TransportError

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)

#: Seconds between two looks, and until the first.
INTERVAL = 60.0
FIRST = 5.0


class Agreement:
    """What one member knows of the others' subscriptions. Mutable state: the last difference, which is told once."""

    def __init__(self, client: "Client", group: str, own: Mapping[str, SubscriptionData]) -> None:
        self._client = client
        self._group = group
        self._own = own
        self._told = ""

    async def look(self) -> None:
        """Ask a broker for the table of the group. One that does not say (any more) is no trouble."""
        addresses = self._client.routes.brokers.addresses(masters_only=True)
        if not addresses:
            return
        header = GetConsumerConnectionList(consumer_group=self._group)
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        try:
            answer = await ask(
                self._client.remoting, random.choice(addresses), code, header, timeout=self._client.request_timeout
            )
            group = ConsumerConnection.decode(answer.body)
        except (BrokerError, ClientError, TransportError, ProtocolError) as error:
            log.debug("%s: the subscriptions of the group are not known: %s", self._group, error)
            return
        if len(group.connection_set) < 2:
            return
        text = "; ".join(differences(self._own, group.subscription_table))
        if text and text != self._told:
            log.warning(
                "%s: members of the group subscribe differently, so that messages are lost to them: %s. "
                "Give all members the same subscriptions, or each kind a group of its own",
                self._group,
                text,
            )
        self._told = text


def differences(own: Mapping[str, SubscriptionData], others: Mapping[str, SubscriptionData]) -> list[str]:
    """What two tables of subscriptions do not have in common, in words."""
    told = []
    for topic in sorted({*own, *others}):
        mine, theirs = own.get(topic), others.get(topic)
        if topic.startswith(names.RETRY_PREFIX) or _wanted(mine) == _wanted(theirs):
            continue
        told.append(f"{topic} {_text(mine)} here and {_text(theirs)} elsewhere")
    return told


def _wanted(data: SubscriptionData | None) -> object:
    """What a subscription means, whatever the order of its tags."""
    if data is None:
        return None
    if (data.expression_type or ExpressionType.TAG.value) != ExpressionType.TAG.value:
        return (data.expression_type, data.sub_string)
    return frozenset(tag.strip() for tag in data.sub_string.split("||"))


def _text(data: SubscriptionData | None) -> str:
    return "not" if data is None else f"with {data.sub_string!r}"
