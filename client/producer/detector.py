"""The reachability detector: asks brokers that failed, so that a producer knows when they can be used again.

Every 3 s each broker that is known by its latency and was not asked for 2 s is asked something cheap. One that answers,
whatever it says, is in reach. RocketMQ's LatencyFaultToleranceImpl.detectByOneRound.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from cometmq.client.errors import NoBroker
from cometmq.client.producer.latency import Latencies
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.requests.offsets import GetMaxOffset
from cometmq.remoting.errors import TransportError

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)

#: Seconds between two rounds, between two questions to one broker (detectInterval), for an answer (detectTimeout).
ROUND: Final = 3.0
INTERVAL: Final = 2.0
TIMEOUT: Final = 0.2


class Detector:
    """Asks the brokers of one producer. Mutable state: when each was asked last."""

    def __init__(self, client: "Client", latencies: Latencies) -> None:
        self._client = client
        self._latencies = latencies
        self._asked: dict[str, float] = {}

    async def round(self, topics: Iterable[str]) -> None:
        """Ask all brokers whose time has come; `topics` are those that the producer sends to."""
        topic = next(iter(topics), None)
        now = asyncio.get_running_loop().time()
        due = [name for name in self._latencies.brokers if now - self._asked.get(name, -INTERVAL) >= INTERVAL]
        if topic is not None:
            await asyncio.gather(*(self._ask(name, topic, now) for name in due))

    async def _ask(self, name: str, topic: str, now: float) -> None:
        self._asked[name] = now
        try:
            address = self._client.routes.brokers.master(name)
        except NoBroker:
            self._asked.pop(name, None)
            self._latencies.forget(name)
            return
        try:
            await self._client.remoting.request(
                address, RequestCode.GET_MAX_OFFSET, GetMaxOffset(topic=topic, queue_id=0), timeout=TIMEOUT
            )
        except TransportError as error:
            log.debug("broker %s is out of reach: %s", name, error)
            return
        self._latencies.reached(name)
