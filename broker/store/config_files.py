"""The broker's tables on disk: topics, groups, offsets and the like, the files under `config/` of the store.

Names and layout are RocketMQ's, and so is the `.bak` with the content before the last write; but a file is replaced
whole, so that a crash leaves the old table or the new one. When a table is written, and what it means, is not known
here.
"""

import logging
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from cometmq.broker.store import pretty_json
from cometmq.broker.store.disk import Disk
from cometmq.broker.store.errors import ConfigDamaged
from cometmq.protocol.bodies import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    MessageRequestModeSerializeWrapper,
    SubscriptionGroupWrapper,
    TimerCheckpoint,
    TimerMetrics,
    TopicConfigSerializeWrapper,
)
from cometmq.protocol.bodies.base import Body, Int32, Int64, always, always_new
from cometmq.protocol.bodies.registration import DataVersion
from cometmq.protocol.bodies.static_topic import TopicQueueMappingDetail
from cometmq.protocol.bodies.timers import TimerMetric
from cometmq.protocol.errors import ProtocolError

log = logging.getLogger(__name__)

_T = TypeVar("_T", bound=Body)

#: The length of `timercheck`; what follows the fields is zero.
TIMER_CHECK_SIZE = 4096


class LmqConsumerOffsets(Body, frozen=True, kw_only=True):
    """Consumer offsets where light message queues are enabled: theirs have no queue ids."""

    data_version: DataVersion = always_new(DataVersion)
    group_topic_map: dict[str, list[str]] | None = None
    #: `queue@group` -> offset.
    lmq_offset_table: dict[str, Int64] = always_new(dict)
    offset_table: dict[str, dict[Int32, Int64]] = always_new(dict)


class BloomFilterData(Body, frozen=True, kw_only=True):
    """The bits of a group in the bloom filter of a topic."""

    bit_num: Int32 = always(0)
    bit_pos: list[Int32] = always_new(list)


class ConsumerFilterData(Body, frozen=True, kw_only=True):
    """The expression by which a group filters a topic, and when it was subscribed and left."""

    bloom_filter_data: BloomFilterData | None = None
    born_time: Int64 = always(0)
    client_version: Int64 = always(0)
    consumer_group: str = always("")
    #: Follows from `dead_time`; written, never read.
    dead: bool = always(False)
    dead_time: Int64 = always(0)
    expression: str | None = None
    expression_type: str | None = None
    topic: str = always("")


class FilterDataMapByTopic(Body, frozen=True, kw_only=True):
    """The groups that filter a topic."""

    group_filter_data: dict[str, ConsumerFilterData] = always_new(dict)
    topic: str = always("")


class ConsumerFilters(Body, frozen=True, kw_only=True):
    """All filters of a broker."""

    filter_data_by_topic: dict[str, FilterDataMapByTopic] = always_new(dict)


class OrderInfo(Body, frozen=True, kw_only=True):
    """What of a queue was popped in order and not yet settled. The names on disk are a letter or two."""

    attempt_id: str | None = always(None, name="a")
    #: Bit i stands for the i-th offset.
    commit_offset_bit: Int64 = always(0, name="cm")
    invisible_time: Int64 | None = always(None, name="i")
    last_consume_timestamp: Int64 = always(0, name="l")
    #: The first is absolute, the others are counted from it.
    offset_list: list[Int64] = always_new(list, name="o")
    offset_consumed_count: dict[Int64, Int32] = always_new(dict, name="oc")
    offset_next_visible_time: dict[Int64, Int64] = always_new(dict, name="ot")
    pop_time: Int64 = always(0)


class ConsumerOrderInfo(Body, frozen=True, kw_only=True):
    """Orderly popped messages of a broker: `topic@group` -> queue id."""

    table: dict[str, dict[Int32, OrderInfo]] = always_new(dict)


class TopicQueueMappings(Body, frozen=True, kw_only=True):
    """The static topics of a broker."""

    data_version: DataVersion = always_new(DataVersion)
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = always_new(dict)


class TransactionMetrics(Body, frozen=True, kw_only=True):
    """How many half messages of each topic are open."""

    data_version: DataVersion = always_new(DataVersion)
    transaction_count: dict[str, TimerMetric] = always_new(dict)


def _pretty(value: Body) -> bytes:
    return pretty_json.dumps(value)


def _compact(value: Body) -> bytes:
    return value.encode(standard=True)


def _timer_check(value: Body) -> bytes:
    return value.encode().ljust(TIMER_CHECK_SIZE, b"\0")


class ConfigFile(Generic[_T]):
    """One table and its file."""

    def __init__(
        self, disk: Disk, path: str, kind: type[_T], encode: Callable[[Body], bytes] = _pretty, *, backup: bool = True
    ) -> None:
        self.path = path
        self._disk = disk
        self._kind = kind
        self._encode = encode
        self._backup = backup
        self._lock = threading.Lock()

    def load(self) -> _T | None:
        """The table; that of the `.bak` when the file is missing, empty or damaged; None where there never was one.

        A damaged file is set aside as `<name>.broken`. Raises `ConfigDamaged` when damage is all there is: a table that
        starts empty would be written over it.
        """
        table, why = self._read(self.path)
        if table is not None:
            return table
        spare, spare_why = self._read(f"{self.path}.bak")
        if spare is None and (why or spare_why):
            raise ConfigDamaged(why or f"the file is missing, and of the .bak {spare_why}", path=self.path)
        if why:
            log.error("%s: %s; using its .bak", self.path, why)
            self._disk.rename(self.path, f"{self.path}.broken")
        elif spare is not None:
            log.warning("%s is missing or empty; using its .bak", self.path)
        return spare

    def save(self, table: _T) -> None:
        """Returns when the table is on the disk. May run in a thread: tables do not change."""
        with self._lock:
            self._disk.write_file(self.path, self.encode(table), backup=self._backup)

    def encode(self, table: _T) -> bytes:
        """The content of the file for this table."""
        return self._encode(table)

    def _read(self, path: str) -> tuple[_T | None, str]:
        """The table, or why a file that has content gave none."""
        if not self._disk.exists(path):
            return None, ""
        data = self._disk.read_file(path)
        if not data.strip(b"\0 \t\r\n"):
            # RocketMQ makes the file before it writes it: a crash between the two leaves this.
            return None, ""
        try:
            return self._kind.decode(data), ""
        except ProtocolError as error:
            return None, str(error)


class ConfigFiles:
    """Every table of a broker. With light message queues the offsets have another file."""

    def __init__(self, disk: Disk, root: str) -> None:
        folder = f"{root}/config"
        # Saved whole for each topic and group that is made.
        self.topics = ConfigFile(
            disk, f"{folder}/topics.json", TopicConfigSerializeWrapper, pretty_json.Rewriter().dumps
        )
        self.topic_queue_mappings = ConfigFile(disk, f"{folder}/topicQueueMapping.json", TopicQueueMappings)
        self.subscription_groups = ConfigFile(
            disk, f"{folder}/subscriptionGroup.json", SubscriptionGroupWrapper, pretty_json.Rewriter().dumps
        )
        self.consumer_offsets = ConfigFile(disk, f"{folder}/consumerOffset.json", ConsumerOffsetSerializeWrapper)
        self.lmq_consumer_offsets = ConfigFile(disk, f"{folder}/lmqConsumerOffset.json", LmqConsumerOffsets)
        self.delay_offsets = ConfigFile(disk, f"{folder}/delayOffset.json", DelayOffsetSerializeWrapper)
        self.consumer_filters = ConfigFile(disk, f"{folder}/consumerFilter.json", ConsumerFilters)
        self.consumer_order_info = ConfigFile(disk, f"{folder}/consumerOrderInfo.json", ConsumerOrderInfo)
        self.message_request_modes = ConfigFile(
            disk, f"{folder}/messageRequestMode.json", MessageRequestModeSerializeWrapper
        )
        self.timer_metrics = ConfigFile(disk, f"{folder}/timermetrics", TimerMetrics, _compact)
        self.transaction_metrics = ConfigFile(disk, f"{folder}/transactionMetrics", TransactionMetrics, _compact)
        # RocketMQ changes this one in place, without a spare.
        self.timer_check = ConfigFile(disk, f"{folder}/timercheck", TimerCheckpoint, _timer_check, backup=False)

    def all(self) -> "list[ConfigFile[Body]]":
        """Every file, for checks and backups."""
        return list(vars(self).values())
