"""How far each group has come in each queue: committed, pulled, and where it was told to go.

Three tables by `topic@group` and queue id. The committed offsets alone are on disk, in RocketMQ's consumerOffset.json
(lmqConsumerOffset.json where light message queues are enabled; the offsets of their groups have a table of their own).
A smaller offset overwrites a larger one, as in RocketMQ: consumers may seek. No socket and no timer is here: a
`SavedTable` writes by time. RocketMQ's ConsumerOffsetManager and LmqConsumerOffsetManager.
"""

import logging
from collections.abc import Callable, Mapping

from cometmq.broker.store.clock import Clock
from cometmq.broker.store.config_files import ConfigFiles, LmqConsumerOffsets
from cometmq.protocol.bodies.offsets import ConsumerOffsetSerializeWrapper
from cometmq.protocol.bodies.registration import DataVersion
from cometmq.protocol.names import LMQ_PREFIX

log = logging.getLogger(__name__)

#: Commits for one step of the data version.
VERSION_STEP = 500

_Table = dict[str, dict[int, int]]
_NONE: Mapping[int, int] = {}


class ConsumerOffsets:
    """The offsets of all groups of a broker. Its mutable state: the tables, and the version of what is on disk."""

    def __init__(
        self, files: ConfigFiles, clock: Clock, *, lmq: bool = False, version_step: int = VERSION_STEP
    ) -> None:
        self._files = files
        self._clock = clock
        self._lmq = lmq
        self.version_step = version_step
        self.data_version = DataVersion()
        #: Grows with every change of what is on disk: whoever saves compares it.
        self.changes = 0
        self._committed: _Table = {}
        self._lmq_committed: dict[str, int] = {}
        self._pulled: _Table = {}
        self._resets: _Table = {}
        # Follow from the keys of `_committed`; kept because a table of a large broker takes long to search.
        self._topics_of: dict[str, dict[str, None]] = {}
        self._groups_of: dict[str, dict[str, None]] = {}

    # Committed

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset; -1 without one."""
        if self._lmq and group.startswith(LMQ_PREFIX):
            return self._lmq_committed.get(f"{topic}@{group}", -1)
        queues = self._committed.get(f"{topic}@{group}")
        return -1 if queues is None else queues.get(queue_id, -1)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, client: object = "") -> None:
        """Hot: consumers commit with every pull or every 5 s for every queue. Budget: 0.3 us."""
        self.changes = changes = self.changes + 1
        if changes % self.version_step == 0:
            self._next_version()
        if self._lmq and group.startswith(LMQ_PREFIX):
            self._lmq_committed[f"{topic}@{group}"] = offset
            return
        key = f"{topic}@{group}"
        queues = self._committed.get(key)
        if queues is None:
            queues = self._committed[key] = {}
            self._enter(group, topic)
        elif (before := queues.get(queue_id)) is not None and before > offset:
            log.warning(
                "%s of group %s goes back in %s/%d, from %d to %d", client, group, topic, queue_id, before, offset
            )
        queues[queue_id] = offset

    def queues(self, group: str, topic: str) -> Mapping[int, int]:
        """Queue id -> committed offset. A view: do not keep it."""
        if self._lmq and group.startswith(LMQ_PREFIX):
            offset = self._lmq_committed.get(f"{topic}@{group}")
            return _NONE if offset is None else {0: offset}
        return self._committed.get(f"{topic}@{group}", _NONE)

    def topics_of(self, group: str) -> list[str]:
        """The topics that a group has offsets in."""
        if self._lmq and group.startswith(LMQ_PREFIX):
            return [topic for topic, _, owner in map(_parts, self._lmq_committed) if owner == group]
        return list(self._topics_of.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """The groups that have offsets in a topic."""
        light = [owner for name, _, owner in map(_parts, self._lmq_committed) if name == topic]
        return list(self._groups_of.get(topic, ())) + light

    def clone(self, source: str, destination: str, topic: str) -> None:
        """The destination goes on where the source is."""
        for queue_id, offset in list(self.queues(source, topic).items()):
            self.commit(destination, topic, queue_id, offset)

    # Pulled: for the lag that is shown; never on disk

    def pulled(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Hot: every pull tells where the next one goes on."""
        key = f"{topic}@{group}"
        queues = self._pulled.get(key)
        if queues is None:
            queues = self._pulled[key] = {}
        queues[queue_id] = offset

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int:
        """Where the next pull goes on; -1 when none came yet."""
        return self._pulled.get(f"{topic}@{group}", _NONE).get(queue_id, -1)

    # Resets: they wait for the next pull

    def set_reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The next pull is sent to this offset, and until then commits of clients do not count."""
        self._resets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        self.commit(group, topic, queue_id, offset, "a reset")

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset, which is forgotten by this."""
        if not self._resets:
            return None
        key = f"{topic}@{group}"
        queues = self._resets.get(key)
        if queues is None:
            return None
        offset = queues.pop(queue_id, None)
        if not queues:
            del self._resets[key]
        return offset

    def peek_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset."""
        return self._resets.get(f"{topic}@{group}", _NONE).get(queue_id) if self._resets else None

    # What goes

    def remove_group(self, group: str) -> None:
        """Forget all that a group has."""
        for topic in self.topics_of(group):
            self._remove(group, topic)
        for table in (self._pulled, self._resets):
            for key in [key for key in table if _parts(key)[2] == group]:
                del table[key]

    def remove_topic(self, topic: str) -> None:
        """Forget what all groups have in a topic."""
        for group in self.groups_of(topic):
            self._remove(group, topic)
        for table in (self._pulled, self._resets):
            for key in [key for key in table if _parts(key)[0] == topic]:
                del table[key]

    def clean_expired(
        self, is_live: Callable[[str, str], bool], min_offset: Callable[[str, int], int]
    ) -> list[tuple[str, str]]:
        """Remove the offsets of groups that do not subscribe a topic any more and whose messages are all gone.

        `is_live(group, topic)` and `min_offset(topic, queue_id)` answer for the clients and for the store. Gives what
        was removed.
        """
        gone = []
        for key, queues in self._committed.items():
            topic, _, group = _parts(key)
            if not is_live(group, topic) and all(offset <= min_offset(topic, each) for each, offset in queues.items()):
                gone.append((group, topic))
        for group, topic in gone:
            log.info("offsets of group %s in %s removed: nobody subscribes, its messages are gone", group, topic)
            self._remove(group, topic)
        return gone

    # Disk

    def load(self) -> None:
        """Take over what is on disk, as it is: offsets beyond a queue are answered when they are pulled."""
        table = self._files.lmq_consumer_offsets.load() if self._lmq else self._files.consumer_offsets.load()
        if table is None:
            return
        self.data_version = table.data_version
        self._committed = {}
        self._topics_of.clear()
        self._groups_of.clear()
        for key, queues in table.offset_table.items():
            topic, at, group = _parts(key)
            if not at or not topic or not group:
                log.error("consumer offsets have a key that is not topic@group, it is left out: %r", key)
                continue
            self._committed[key] = dict(queues)
            self._enter(group, topic)
        if isinstance(table, LmqConsumerOffsets):
            self._lmq_committed = dict(table.lmq_offset_table)

    def snapshot(self) -> ConsumerOffsetSerializeWrapper | LmqConsumerOffsets:
        """What is to be on disk; a copy, which a thread may write."""
        table = {key: queues.copy() for key, queues in self._committed.items()}
        topics = {group: list(topics) for group, topics in self._topics_of.items()}
        if self._lmq:
            return LmqConsumerOffsets(
                data_version=self.data_version,
                group_topic_map=topics,
                lmq_offset_table=self._lmq_committed.copy(),
                offset_table=table,
            )
        return ConsumerOffsetSerializeWrapper(
            data_version=self.data_version, group_topic_map=topics, offset_table=table
        )

    def save(self) -> None:
        """Returns when the table is on the disk: for changes that must not come back after a crash."""
        table = self.snapshot()
        if isinstance(table, LmqConsumerOffsets):
            self._files.lmq_consumer_offsets.save(table)
        else:
            self._files.consumer_offsets.save(table)

    # Inside

    def _enter(self, group: str, topic: str) -> None:
        self._topics_of.setdefault(group, {})[topic] = None
        self._groups_of.setdefault(topic, {})[group] = None

    def _remove(self, group: str, topic: str) -> None:
        self.changes += 1
        key = f"{topic}@{group}"
        self._lmq_committed.pop(key, None)
        if self._committed.pop(key, None) is None:
            return
        for table, name, other in ((self._topics_of, group, topic), (self._groups_of, topic, group)):
            names = table[name]
            del names[other]
            if not names:
                del table[name]

    def _next_version(self) -> None:
        version = self.data_version
        self.data_version = DataVersion(
            counter=version.counter + 1, state_version=version.state_version, timestamp=self._clock.wall()
        )


def _parts(key: str) -> tuple[str, str, str]:
    """Topic, `@` and group of a key. No topic has an `@` in its name."""
    return key.partition("@")
