"""How far the queues of a running query go, kept fresh at a bounded cost: what `latestOffset` looks at.

Spark asks for the latest offset as fast as it is answered, so the cluster is asked by the clock and not by the call.
A broker that is away keeps its queues where they were; only after a while that ends the query. Mutable state: the
queues, their ends, since when somebody is away or something wrong, and when was asked last.
"""

import logging
import time
from collections.abc import Iterable
from typing import Final

from cometmq.client.errors import TopicNotFound
from cometmq.spark.cluster import Cluster, Offsets, is_passing, unreachable
from cometmq.spark.errors import OptionError, Unreachable
from cometmq.spark.queue_range import QueueId

log = logging.getLogger(__name__)

#: Seconds between two looks at the ends of the queues, and what each queue adds to it: some hundred requests a second
#: at most, however many queues there are.
LOOK_INTERVAL: Final = 0.1
PER_QUEUE: Final = 0.004
#: Seconds between two looks for queues, at most, while somebody does not answer: a broker may be elsewhere now.
AWAY_INTERVAL: Final = 1.0
_NAMESERVERS: Final = "nameservers"


class Frontier:
    """The queues of a query and their ends."""

    def __init__(
        self, cluster: Cluster, *, discovery_interval: float, unreachable_timeout: float, fail_on_data_loss: bool
    ) -> None:
        self._cluster = cluster
        self._discovery_interval = discovery_interval
        self._unreachable_timeout = unreachable_timeout
        #: Whether the end of a topic is the end of the query.
        self._fails = fail_on_data_loss
        self.queues: list[QueueId] = []
        #: Of those whose brokers have answered at least once.
        self.ends: Offsets = {}
        self._away_since: dict[QueueId, float] = {}
        #: What is wrong: a topic by its name, or the way to the nameservers.
        self._wrong_since: dict[str, float] = {}
        self._looked = self._discovered = float("-inf")

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return LOOK_INTERVAL + PER_QUEUE * len(self.queues)

    def look(self) -> Offsets:
        """The ends of all queues, no older than the interval."""
        now = time.monotonic()
        interval = min(self._discovery_interval, AWAY_INTERVAL) if self._away_since else self._discovery_interval
        if now - self._discovered >= interval:
            self._discover(now)
        if now - self._looked >= self.interval:
            self._ask(now)
        return self.ends

    def adopt(self, queues: Iterable[QueueId]) -> None:
        """Queues that are part of the query and were not found: they are asked as well."""
        self.queues = sorted({*self.queues, *queues})

    def _discover(self, now: float) -> None:
        """Which queues there are now. A query that has found its topics once goes on for a while when they are gone:
        a nameserver forgets the topics of a broker that is being restarted."""
        self._discovered = now
        try:
            found = self._cluster.look()
        except Unreachable as error:
            if self._is_over(error, now):
                raise Unreachable(
                    f"{error.cause}, for {self._unreachable_timeout:g} s now", f"{error.remedy} or unreachableTimeout"
                ) from None
            return
        for problem in found.problems:
            if self._is_over(problem, now):
                if self._fails:
                    raise problem
                self._leave([each for each in self.queues if problem.value in (each.topic, "")], problem)
        wrong = {problem.value for problem in found.problems}
        self._wrong_since = {what: since for what, since in self._wrong_since.items() if what in wrong}
        known = set(self.queues)
        if known and (new := [queue for queue in found.queues if queue not in known]):
            log.info("new: %s", ", ".join(map(str, new)))
        # Queues that vanished stay: their broker may come back, and what was read of them is in the offsets.
        self.queues = sorted(known.union(found.queues))

    def _is_over(self, error: OptionError | Unreachable, now: float) -> bool:
        """Whether this has been wrong for too long. What is wrong from the beginning is raised."""
        if not self.queues:
            raise error
        since = self._wrong_since.setdefault(error.value if isinstance(error, OptionError) else _NAMESERVERS, now)
        if since == now:
            log.warning("not all queues can be asked for, going on with those that are known: %s", error)
        return now - since >= self._unreachable_timeout

    def _leave(self, queues: Iterable[QueueId], why: Exception) -> None:
        """Go on without queues whose topic is gone."""
        for queue in sorted(set(queues).intersection(self.queues)):
            log.warning("going on without %s: %s", queue, why)
            self.queues.remove(queue)
            self.ends.pop(queue, None)
            self._away_since.pop(queue, None)

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
                if self._fails or not isinstance(error, TopicNotFound):
                    raise unreachable(queue, error, self._unreachable_timeout) from None
                self._leave([queue], error)
        self._looked = time.monotonic()
