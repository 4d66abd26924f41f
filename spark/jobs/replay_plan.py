"""The plan of a replay: which offsets of which queues, in steps of about one message.

Made once, when a replay starts for the first time, and kept in its checkpoint: whoever goes on later sends the same
messages. Step i of n takes the i-th n-th part of every queue, so that all queues move on together. A slice, what is
sent before it is noted as done, is as many steps as a run's rate makes sensible. Plain arithmetic; what reads the
queues and sends is in `replay_job`.
"""

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from cometmq.spark.jobs.errors import JobError
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.jobs.publication import locked
from cometmq.spark.queue_range import QueueId, QueueRange

_PLAN: Final = "plan.json"


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is replayed, where to, and in how many slices."""

    #: Names the replay in stamps: a slice that is sent again has the same ones.
    replay_id: str
    #: Says what was asked for; another question with the same checkpoint is refused.
    source: str
    target: str
    steps: int
    ranges: tuple[QueueRange, ...]
    #: The queues that they go to, round and round: when the target gets more of them, the order stays. None are in the
    #: plans of older versions.
    targets: tuple[QueueId, ...] = ()

    @classmethod
    def of(
        cls, source: str, target: str, ranges: Sequence[QueueRange], targets: Sequence[QueueId] = ()
    ) -> "ReplayPlan":
        steps = sum(each.size for each in ranges)
        return cls(f"replay-{secrets.token_hex(8)}", source, target, steps, tuple(sorted(ranges)), tuple(targets))

    def ways(self, there: Sequence[QueueId], done: int) -> dict[QueueId, QueueId]:
        """Where the messages of each queue go, after so many steps; `there` is what the target has now."""
        targets = self.targets or there
        ways = {each.queue: targets[number % len(targets)] for number, each in enumerate(self.ranges)}
        gone = {ways[each.queue] for each in self.slice(done, self.steps)}.difference(there) if self.steps else ()
        if gone:
            raise JobError(
                f"the replay sends to {', '.join(sorted(map(str, gone)))}, which cannot be written now",
                "bring it back (its master, its perm, or the number of queues); in another queue messages would be "
                "out of order",
            )
        return ways

    def slice(self, first: int, stop: int) -> list[QueueRange]:
        """The ranges of the steps from the first to before another one, without empty ones."""
        cut = []
        for each in self.ranges:
            start, end = (each.start + each.size * step // self.steps for step in (first, stop))
            if start < end:
                cut.append(each._replace(start=start, stop=end))
        return cut

    def steps_of(self, rows: float) -> int:
        """How many steps have about so many offsets; at least one."""
        return max(1, round(self.steps * rows / max(1, self.rows_from(0))))

    def rows_from(self, step: int) -> int:
        """How many offsets are left from a step on."""
        return sum(each.size - each.size * step // self.steps for each in self.ranges) if self.steps else 0

    def to_json(self) -> str:
        return json.dumps(
            {
                "v": 1,
                "id": self.replay_id,
                "source": self.source,
                "target": self.target,
                "slices": self.steps,
                "ranges": [list(each) for each in self.ranges],
                "targets": [list(each) for each in self.targets],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "ReplayPlan":
        found: dict[str, Any] = json.loads(text)
        ranges = tuple(QueueRange(*each) for each in found["ranges"])
        targets = tuple(QueueId(*each) for each in found.get("targets", ()))
        return cls(found["id"], found["source"], found["target"], found["slices"], ranges, targets)


class ReplayCheckpoint:
    """A plan and how many of its steps are done, in a directory: `plan.json` and one empty `done-<number>`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.directory = lake.root

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have it for this process alone: two would send every message twice, and queues out of order."""
        self._lake.make_directory(self.directory)
        with locked(self._lake, f"{self.directory}/lock", f"another replay has the checkpoint {self.directory}"):
            yield

    def plan(self, source: str, target: str) -> ReplayPlan | None:
        """The plan that was made for this question; None when there is none yet."""
        name = f"{self.directory}/{_PLAN}"
        if not self._lake.exists(name):
            return None
        try:
            plan = ReplayPlan.from_json(self._lake.read(name))
        except (KeyError, TypeError, ValueError) as error:
            raise JobError(
                f"{name} is no plan of a replay ({error!r})",
                "give another --checkpoint, or delete this one to begin anew",
            ) from error
        if (plan.source, plan.target) != (source, target):
            raise JobError(
                f"the checkpoint {self.directory} is of another replay ({plan.source}, sent to {plan.target})",
                f"give another --checkpoint, or delete this one to begin anew; if only the address of a nameserver has "
                f"changed since, change it in {name}",
            )
        return plan

    def begin(self, plan: ReplayPlan) -> None:
        self._lake.write(f"{self.directory}/{_PLAN}", plan.to_json())

    def done(self) -> int:
        """How many steps have been sent."""
        return max(self._marks().values(), default=0)

    def advance(self, done: int) -> None:
        before = self._marks()
        self._lake.write(f"{self.directory}/done-{done:010d}", "")
        for name in before:
            self._lake.delete(f"{self.directory}/{name}")

    def _marks(self) -> dict[str, int]:
        names = [name for name in self._lake.children(self.directory) if name.startswith("done-")]
        return {name: int(name.removeprefix("done-")) for name in names if name[5:].isdecimal()}
