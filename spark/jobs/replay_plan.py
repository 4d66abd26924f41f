"""The plan of a replay: which offsets of which queues, cut into slices that are sent one after the other.

Made once, when a replay starts for the first time, and kept in its checkpoint: whoever goes on later sends the same
slices. Slice i of n takes the i-th n-th part of every queue, so that all queues move on together. Plain arithmetic;
what reads the queues and sends is in `replay_job`.
"""

import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from cometmq.spark.jobs.errors import JobError
from cometmq.spark.jobs.lake import Lake
from cometmq.spark.queue_range import QueueRange

_PLAN: Final = "plan.json"


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is replayed, where to, and in how many slices."""

    #: Names the replay in stamps: a slice that is sent again has the same ones.
    replay_id: str
    #: Says what was asked for; another question with the same checkpoint is refused.
    source: str
    target: str
    slices: int
    ranges: tuple[QueueRange, ...]

    @classmethod
    def of(cls, source: str, target: str, ranges: Sequence[QueueRange], slice_rows: int) -> "ReplayPlan":
        total = sum(each.size for each in ranges)
        slices = math.ceil(total / slice_rows)
        return cls(f"replay-{secrets.token_hex(8)}", source, target, slices, tuple(sorted(ranges)))

    def slice(self, number: int) -> list[QueueRange]:
        """The ranges of one slice, without empty ones."""
        cut = []
        for each in self.ranges:
            start = each.start + each.size * number // self.slices
            stop = each.start + each.size * (number + 1) // self.slices
            if start < stop:
                cut.append(each._replace(start=start, stop=stop))
        return cut

    def rows_from(self, number: int) -> int:
        """How many offsets are left from a slice on."""
        return sum(each.size - each.size * number // self.slices for each in self.ranges) if self.slices else 0

    def to_json(self) -> str:
        return json.dumps(
            {
                "v": 1,
                "id": self.replay_id,
                "source": self.source,
                "target": self.target,
                "slices": self.slices,
                "ranges": [list(each) for each in self.ranges],
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "ReplayPlan":
        found: dict[str, Any] = json.loads(text)
        ranges = tuple(QueueRange(*each) for each in found["ranges"])
        return cls(found["id"], found["source"], found["target"], found["slices"], ranges)


class ReplayCheckpoint:
    """A plan and how many of its slices are done, in a directory: `plan.json` and one empty `done-<number>`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self.directory = lake.root

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
        self._lake.make_directory(self.directory)
        self._lake.write(f"{self.directory}/{_PLAN}", plan.to_json())

    def done(self) -> int:
        """How many slices have been sent."""
        names = [name for name in self._lake.children(self.directory) if name.startswith("done-")]
        return max((int(name.removeprefix("done-")) for name in names if name[5:].isdecimal()), default=0)

    def advance(self, done: int) -> None:
        self._lake.write(f"{self.directory}/done-{done:010d}", "")
        if done > 1:
            self._lake.delete(f"{self.directory}/done-{done - 1:010d}")
