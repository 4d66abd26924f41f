"""What a query of the source asks for: a frozen value, made by the driver of the user's options (`options`).

It pickles with the reader, so that executors need not parse anything.
"""

import msgspec

from cometmq.spark.access import Access
from cometmq.spark.errors import OptionError
from cometmq.spark.limits import Limits
from cometmq.spark.read_options import ReadOptions
from cometmq.spark.splits import Splitting
from cometmq.spark.starting import EARLIEST, LATEST, Place
from cometmq.spark.topics import Topics


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What a query of the source asks for."""

    access: Access
    read: ReadOptions
    topics: Topics
    #: None: the default, which is the end for streams and the beginning for batches.
    starting: Place | None
    ending: Place
    limits: Limits
    splitting: Splitting
    include_properties: bool
    properties_as_json: bool
    #: Whether a batch leaves out what the filters of its query exclude.
    filter_push_down: bool
    #: Whether the brokers are told how far the group is.
    reports_progress: bool
    #: Seconds.
    discovery_interval: float
    idle_wait: float
    unreachable_timeout: float
    #: Seconds that brokers may take to answer when a batch is planned.
    batch_patience: float
    #: Options that only batches, or only streams, have and that were given: the other kind refuses them.
    batch_only: tuple[str, ...]
    stream_only: tuple[str, ...]

    def check_for_stream(self) -> None:
        """Refuse what only a batch can do."""
        for name in self.batch_only:
            raise OptionError(name, "", "only spark.read has it, a stream does not; remove the option")

    def check_for_batch(self) -> None:
        """Refuse what only a stream can do: a limit that is none must not look like one."""
        for name in self.stream_only:
            raise OptionError(name, "", "only spark.readStream has it, a batch does not; remove the option")

    @property
    def stream_start(self) -> Place:
        """Where a stream starts that has no checkpoint."""
        return self.starting or LATEST

    @property
    def batch_start(self) -> Place:
        if self.starting == LATEST:
            raise OptionError("startingOffsets", "latest", "a batch would be empty; give earliest, offsets or a time")
        return self.starting or EARLIEST
