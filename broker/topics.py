"""The topics of a broker: the table, its version, its file, and the rules by which topics come to be.

A change is on the disk before it counts: when the file cannot be written, the table stays as it was. Who may create
what is decided by the handlers. RocketMQ's TopicConfigManager; the store asks it through `TopicKinds`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from cometmq.broker import attributes
from cometmq.broker.config import BrokerConfig
from cometmq.broker.store.clock import Clock
from cometmq.broker.store.config_files import ConfigFile
from cometmq.protocol import names
from cometmq.protocol.bodies.registration import DataVersion, TopicConfig, TopicConfigSerializeWrapper

#: Bits of `perm`.
PERM_INHERIT: Final = 1
PERM_WRITE: Final = 2
PERM_READ: Final = 4
PERM_RW: Final = PERM_READ | PERM_WRITE
#: Bits of `topic_sys_flag`.
FLAG_UNIT: Final = 1
FLAG_UNIT_SUB: Final = 2

#: Queues of the topic of delayed messages: one for each of the default levels, however many are configured.
SCHEDULE_QUEUES: Final = 18
_BENCHMARK_QUEUES = 1024
_CLUSTER_QUEUES = 16
_REVIVE_QUEUES = 8

log = logging.getLogger(__name__)


class WantedTopic(NamedTuple):
    """A topic that must exist; see `TopicTable.create_internal`."""

    name: str
    queue_nums: int
    perm: int = PERM_RW
    order: bool | None = None
    sys_flag: int = 0


class TopicTable:
    """All topics of a broker."""

    def __init__(self, config: BrokerConfig, file: ConfigFile[TopicConfigSerializeWrapper], clock: Clock) -> None:
        self._config = config
        self._file = file
        self._clock = clock
        self._table: dict[str, TopicConfig] = {}
        self._batch: set[str] = set()
        self.data_version = DataVersion(timestamp=clock.wall())
        #: Told of each topic that was created or changed, after it was saved; not of deleted ones.
        self.on_changed: list[Callable[[TopicConfig], None]] = []
        self._system: dict[str, TopicConfig] = {}
        self.system_topics: frozenset[str] = frozenset()
        self.configure(config)

    def load(self) -> None:
        """Reads the file; what it says of system topics counts, missing ones are added."""
        saved = self._file.load()
        if saved is not None:
            self._table = dict(saved.topic_config_table)
            self.data_version = saved.data_version
        for name, topic in self._system.items():
            self._table.setdefault(name, topic)
        if not self._config.auto_create_topic_enable and names.DEFAULT_TOPIC in self._table:
            # It stays for those who use it as a topic, but nothing inherits from it.
            template = self._table[names.DEFAULT_TOPIC]
            self._table[names.DEFAULT_TOPIC] = msgspec.structs.replace(template, perm=template.perm & ~PERM_INHERIT)
        self._batch = {name for name, topic in self._table.items() if _is_batch(topic)}

    def configure(self, config: BrokerConfig) -> None:
        """Takes over changed settings; topics that exist stay as they are."""
        self._config = config
        self._system = {topic.topic_name: topic for topic in _system_topics(config)}
        self.system_topics = names.SYSTEM_TOPICS | self._system.keys()

    def save(self) -> None:
        """Writes the table as it is: at the end of a broker, for the system topics of a first start."""
        self._file.save(self.snapshot())

    def snapshot(self) -> TopicConfigSerializeWrapper:
        return TopicConfigSerializeWrapper(data_version=self.data_version, topic_config_table=dict(self._table))

    # Looking up

    @property
    def table(self) -> Mapping[str, TopicConfig]:
        return self._table

    def get(self, name: str) -> TopicConfig | None:
        return self._table.get(name)

    def is_system(self, name: str) -> bool:
        """Whether the topic belongs to the broker itself: nobody may change or delete it."""
        return name in self.system_topics or names.is_system_topic(name)

    def is_order(self, name: str) -> bool:
        topic = self._table.get(name)
        return topic is not None and topic.order

    def is_batch(self, topic: str) -> bool:
        return topic in self._batch

    def exists(self, topic: str) -> bool | None:
        return topic in self._table

    # Changing

    def create_for_send(
        self, topic: str, default_topic: str, client_queue_nums: int, *, unit_mode: bool = False
    ) -> TopicConfig | None:
        """The topic of a first message, made after its template; None when that is not allowed."""
        existing = self._table.get(topic)
        if existing is not None:
            return existing
        template = self._table.get(default_topic)
        if template is None or not template.perm & PERM_INHERIT:
            return None
        if default_topic == names.DEFAULT_TOPIC and not self._config.auto_create_topic_enable:
            return None
        queue_nums = max(0, min(client_queue_nums, template.write_queue_nums))
        flag = 0
        if unit_mode:
            flag = FLAG_UNIT_SUB if names.is_retry_topic(topic) else FLAG_UNIT
        made = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=template.perm & ~PERM_INHERIT,
            topic_filter_type=template.topic_filter_type,
            topic_sys_flag=flag,
        )
        self._commit([made])
        log.info("created %s with %d queues for its first message", topic, queue_nums)
        return made

    def create_internal(
        self, topic: str, queue_nums: int, perm: int = PERM_RW, *, order: bool | None = None, sys_flag: int = 0
    ) -> TopicConfig:
        """A retry, dead letter or reply topic. An existing one is returned as it is, but for `order` where given."""
        (made,) = self.create_all([WantedTopic(topic, queue_nums, perm, order, sys_flag)])
        return made

    def create_all(self, wanted: Iterable[WantedTopic]) -> list[TopicConfig]:
        """Many such topics, with one write: a heartbeat may bring hundreds of groups."""
        topics: dict[str, TopicConfig] = {}
        changed: dict[str, TopicConfig] = {}
        order: list[str] = []
        for each in wanted:
            order.append(each.name)
            existing = topics.get(each.name) or self._table.get(each.name)
            if existing is None:
                topic = TopicConfig(
                    topic_name=each.name,
                    read_queue_nums=each.queue_nums,
                    write_queue_nums=each.queue_nums,
                    perm=each.perm,
                    order=bool(each.order),
                    topic_sys_flag=each.sys_flag,
                )
            elif each.order is not None and each.order != existing.order:
                topic = msgspec.structs.replace(existing, order=each.order)
            else:
                topics[each.name] = existing
                continue
            topics[each.name] = changed[each.name] = topic
        if changed:
            self._commit(changed.values())
        return [topics[name] for name in order]

    def update(self, config: TopicConfig) -> bool:
        """Creates a topic or changes it; False when it is like that already.

        The attributes of `config` are changes (`+key`, `-key`); raises `AttributeRefused` for those that may not be.
        """
        return bool(self.update_all([config]))

    def update_all(self, configs: Iterable[TopicConfig]) -> list[TopicConfig]:
        """Creates or changes many, with one write, all or none. Gives those that were changed."""
        changed: dict[str, TopicConfig] = {}
        for config in configs:
            existing = changed.get(config.topic_name) or self._table.get(config.topic_name)
            current = None if existing is None else existing.attributes
            topic = msgspec.structs.replace(config, attributes=attributes.alter(current, config.attributes))
            if topic != existing:
                changed[config.topic_name] = topic
        if changed:
            self._commit(changed.values())
        return list(changed.values())

    def delete(self, topic: str) -> bool:
        """Forgets a topic; its queues and offsets are not known here. False when there is none."""
        return bool(self.delete_all([topic]))

    def delete_all(self, topics: Iterable[str]) -> list[str]:
        """Forgets topics with one write. Gives those that there were."""
        gone = [topic for topic in dict.fromkeys(topics) if topic in self._table]
        if gone:
            table = {name: topic for name, topic in self._table.items() if name not in set(gone)}
            self._replace(table)
            self._batch.difference_update(gone)
            log.info("deleted %s", ", ".join(gone))
        return gone

    def mark_order_topics(self, topics: Iterable[str]) -> None:
        """The nameserver says that these topics are consumed in order. It never says that one is not."""
        found = (self._table.get(name) for name in topics)
        changed = [msgspec.structs.replace(topic, order=True) for topic in found if topic and not topic.order]
        if changed:
            self._commit(changed)

    def bump_version(self) -> None:
        """Another version of the same topics: nameservers then take what a registration says of them."""
        self._replace(self._table)

    def _commit(self, changed: Iterable[TopicConfig]) -> None:
        changed = list(changed)
        self._replace(self._table | {topic.topic_name: topic for topic in changed})
        for topic in changed:
            if _is_batch(topic):
                self._batch.add(topic.topic_name)
        for topic in changed:
            for tell in self.on_changed:
                tell(topic)

    def _replace(self, table: dict[str, TopicConfig]) -> None:
        version = next_version(self.data_version, self._clock)
        self._file.save(TopicConfigSerializeWrapper(data_version=version, topic_config_table=table))
        self._table, self.data_version = table, version


def next_version(version: DataVersion, clock: Clock) -> DataVersion:
    """The version after this one. The state version belongs to an elected master; without one it stays."""
    return DataVersion(counter=version.counter + 1, state_version=version.state_version, timestamp=clock.wall())


def _is_batch(topic: TopicConfig) -> bool:
    return topic.attributes.get(attributes.QUEUE_TYPE) == attributes.BATCH_CQ


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that every broker has, beside those whose names alone are reserved."""
    cluster, broker = config.broker_cluster_name, config.broker_name
    cluster_perm = PERM_INHERIT | (PERM_RW if config.cluster_topic_enable else 0)
    broker_perm = PERM_INHERIT | (PERM_RW if config.broker_topic_enable else 0)
    topics = [_topic(names.SELF_TEST_TOPIC, 1)]
    if config.auto_create_topic_enable:
        topics.append(_topic(names.DEFAULT_TOPIC, config.default_topic_queue_nums, PERM_RW | PERM_INHERIT))
    topics += [
        _topic(names.BENCHMARK_TOPIC, _BENCHMARK_QUEUES),
        _topic(cluster, _CLUSTER_QUEUES, cluster_perm),
        _topic(broker, 1, broker_perm),
        _topic(names.OFFSET_MOVED_EVENT, 1),
        _topic(names.SCHEDULE_TOPIC, SCHEDULE_QUEUES),
    ]
    if config.trace_topic_enable:
        topics.append(_topic(config.msg_trace_topic_name, 1))
    topics += [
        _topic(names.reply_topic(cluster), 1),
        _topic(f"{names.SYSTEM_TOPIC_PREFIX}REVIVE_LOG_{cluster}", _REVIVE_QUEUES),
        _topic(f"{names.SYSTEM_TOPIC_PREFIX}SYNC_BROKER_MEMBER_{broker}", 1, PERM_INHERIT),
        _topic(names.HALF_TOPIC, 1),
        _topic(names.OP_HALF_TOPIC, 1),
        _topic(names.TIMER_TOPIC, 1),
    ]
    return topics


def _topic(name: str, queue_nums: int, perm: int = PERM_RW) -> TopicConfig:
    return TopicConfig(topic_name=name, read_queue_nums=queue_nums, write_queue_nums=queue_nums, perm=perm)
