"""The delay of a message on the wire: a level of the broker where there is one, else a timer, if it has timers."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from cometmq.client.errors import Unsupported
from cometmq.client.message import Message
from cometmq.client.routes import TopicRoute
from cometmq.protocol import properties as props
from cometmq.protocol.codes import Version
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.message_id import wall_millis

if TYPE_CHECKING:
    from cometmq.client.client import Client

_TIMERS_SINCE: Final = int(Version.V5_0_0)


class Delays:
    """What one producer knows of delays: the levels of its brokers."""

    def __init__(self, client: "Client", levels: str | None) -> None:
        self._client = client
        self._levels = DelayLevels.parse(levels) if levels else DelayLevels.parse()

    async def properties(self, route: TopicRoute, message: Message) -> dict[str, str] | None:
        """A level where there is one; else a timer, if the broker has timers."""
        if message.delay_level is not None:
            return {props.DELAY: str(message.delay_level)} if message.delay_level else None
        wait = delay_of(message)
        if wait is None or wait <= timedelta(0):
            return None
        level = self._levels.level_of(round(wait.total_seconds() * 1000)) if message.delay is not None else None
        if level is not None:
            return {props.DELAY: str(level)}
        await self._check_timers(route)
        return {props.TIMER_DELIVER_MS: str(wall_millis() + round(wait.total_seconds() * 1000))}

    async def _check_timers(self, route: TopicRoute) -> None:
        """An old broker would deliver at once and say nothing."""
        brokers = self._client.routes.brokers
        for name in {queue.broker_name for queue in route.publish}:
            address = brokers.master(name)
            if address not in brokers.versions:
                await self._client.heartbeats.beat([address])
            version = brokers.versions.get(address)
            if version is not None and version < _TIMERS_SINCE:
                raise Unsupported(
                    f"broker {name} is too old for a delay that is none of its levels: it would deliver at once"
                )


def delay_of(message: Message) -> timedelta | None:
    """How long a message with a duration or an instant shall wait from now; None without one."""
    if message.delay is not None:
        return message.delay
    if message.deliver_at is not None:
        return message.deliver_at - datetime.now(UTC)
    return None
