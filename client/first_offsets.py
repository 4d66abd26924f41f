"""A group's first offset in a topic goes to a broker alone.

RocketMQ's brokers, 4.x and 5.x, make a table for a group and a topic when its first offset comes. Of two that come at
once for different queues each makes one, and the offset in the table that loses is gone (apache/rocketmq#10700). A
group that starts at the end would then skip what was sent while it was away.
"""

from collections.abc import Iterable

from cometmq.client.queues import MessageQueue


class FirstOffsets:
    """Which brokers are known to have a group's table of a topic. Mutable state: just that."""

    def __init__(self) -> None:
        self._made: set[tuple[str, str]] = set()

    def split(self, queues: Iterable[MessageQueue]) -> tuple[list[MessageQueue], list[MessageQueue]]:
        """The queues whose offsets are sent now, and those for which to wait until these are answered."""
        made = set(self._made)
        alone: list[MessageQueue] = []
        rest: list[MessageQueue] = []
        for queue in queues:
            table = (queue.broker_name, queue.topic)
            (rest if table in made else alone).append(queue)
            made.add(table)
        return alone, rest

    def answered(self, queue: MessageQueue) -> None:
        """The broker has an offset of this queue."""
        self._made.add((queue.broker_name, queue.topic))
