"""How far the queues of a running query go, kept fresh at a bounded cost: what `latestOffset` looks at.

Spark asks for the latest offset as fast as it is answered, so the cluster is asked by the clock and not by the call.
A broker that is away keeps its queues where they were; only after a while that ends the query. Mutable state: the
queues, their ends, since when somebody is away, and when was asked last.
"""

import logging
import time
from typing import Final

from cometmq.spark.cluster import Cluster, Offsets, is_passing, unreachable
from cometmq.spark.errors import OptionError, Unreachable
from cometmq.spark.queue_range import QueueId

log = logging.getLogger(__name__)

#: Seconds between two looks at the ends of the queues, and what each queue adds to it: some hundred requests a second
#: at most, however many queues there are.
LOOK_INTERVAL: Final = 0.1
PER_QUEUE: Final = 0.004


class Frontier:
    """The queues of a query and their ends."""

    def __init__(self, cluster: Cluster, *, discovery_interval: float, unreachable_timeout: float) -> None:
        self._cluster = cluster
        self._discovery_interval = discovery_interval
        self._unreachable_timeout = unreachable_timeout
        self.queues: list[QueueId] = []
        #: Of those whose brokers have answered at least once.
        self.ends: Offsets = {}
        self._away_since: dict[QueueId, float] = {}
        self._lost_since: float | None = None
        self._looked = self._discovered = float("-inf")

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return LOOK_INTERVAL + PER_QUEUE * len(self.queues)

    def look(self) -> Offsets:
        """The ends of all queues, no older than the interval."""
        now = time.monotonic()
        if now - self._discovered >= self._discovery_interval:
            self._discover(now)
        if now - self._looked >= self.interval:
            self._ask(now)
        return self.ends

    def look_again(self) -> Offsets:
        """The ends of all queues, asked for now."""
        self._looked = float("-inf")
        return self.look()

    def _discover(self, now: float) -> None:
        """Which queues there are now. A query that has found its topics once goes on for a while when they are gone:
        a nameserver forgets the topics of a broker that is being restarted."""
        self._discovered = now
        try:
            found = self._cluster.queues()
        except (OptionError, Unreachable) as error:
            if not self.queues:
                raise
            self._lost_since = self._lost_since or now
            if now - self._lost_since >= self._unreachable_timeout:
                if isinstance(error, OptionError):
                    raise
                raise Unreachable(
                    f"{error.cause}, for {self._unreachable_timeout:g} s now", f"{error.remedy} or unreachableTimeout"
                ) from None
            log.warning("the queues cannot be asked for, going on with those that are known: %s", error)
            return
        self._lost_since = None
        known = set(self.queues)
        if known and (new := [queue for queue in found if queue not in known]):
            log.info("new: %s", ", ".join(map(str, new)))
        # Queues that vanished stay: their broker may come back, and what was read of them is in the offsets.
        self.queues = sorted(known.union(found))

    def _ask(self, now: float) -> None:
        self._looked = now
        answers = self._cluster.latest(self.queues)
        self.ends = {**self.ends, **answers.offsets}
        for queue in answers.offsets:
            self._away_since.pop(queue, None)
        for queue, error in answers.failures.items():
            if not is_passing(error):
                raise error
            since = self._away_since.setdefault(queue, now)
            if since == now:
                log.warning("%s cannot be asked how far it goes: %s", queue, error)
            if now - since >= self._unreachable_timeout:
                raise unreachable(queue, error, self._unreachable_timeout) from None
        self._looked = time.monotonic()
