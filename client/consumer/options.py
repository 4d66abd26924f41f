"""How consumers work: RocketMQ's settings, in Python's units. The names in brackets are Java's."""

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from cometmq.protocol.bodies.heartbeat import MessageModel

#: Concurrent consumers give a message up after so many retries, when the user says nothing.
DEFAULT_RETRIES: Final = 16
#: How far back a group begins that shall begin at a moment and is not told which (consumeTimestamp).
TIMESTAMP_AGO: Final = timedelta(minutes=30)


class StartFrom(StrEnum):
    """Where a group that has no offset yet begins."""

    LAST = "last"
    FIRST = "first"


class PushOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one consumer. Times are seconds, sizes bytes."""

    model: MessageModel = MessageModel.CLUSTERING
    start_from: StartFrom | datetime = StartFrom.LAST
    #: Retries before the dead letters; -1: 16 for concurrent consumers, no end for ordered ones (maxReconsumeTimes).
    max_reconsume_times: int = -1
    #: Unsettled messages of a queue (pullThresholdForQueue, pullThresholdSizeForQueue, consumeConcurrentlyMaxSpan).
    max_cached: int = 1000
    max_cached_bytes: int = 100 * 1024 * 1024
    max_span: int = 2000
    #: The same of a topic, which its queues here share in equal parts; None: no such limit (pullThresholdForTopic,
    #: pullThresholdSizeForTopic).
    max_cached_of_topic: int | None = None
    max_cached_bytes_of_topic: int | None = None
    pull_batch_size: int = 32
    pull_batch_bytes: int = 256 * 1024
    #: Pause after a pull that found something (pullInterval).
    pull_interval: float = 0.0
    #: An ordered queue pauses so long after a failure (suspendCurrentQueueTimeMillis).
    suspend: float = 1.0
    #: A message that is processed for longer is given back (consumeTimeout).
    consume_timeout: float = 15 * 60.0
    #: Offsets go out so often (persistConsumerOffsetInterval).
    persist_interval: float = 5.0
    #: Rebalance so often (rocketmq.client.rebalance.waitInterval), and after a round that was not balanced.
    rebalance_interval: float = 20.0
    rebalance_soon: float = 1.0
    #: How long a close waits for handlers that run.
    close_timeout: float = 30.0

    def limits(self, queues: int) -> tuple[int, int]:
        """The most messages and bytes of one queue of a topic that has so many queues here."""
        count, size = self.max_cached, self.max_cached_bytes
        if self.max_cached_of_topic is not None:
            count = max(1, self.max_cached_of_topic // max(queues, 1))
        if self.max_cached_bytes_of_topic is not None:
            size = max(1, self.max_cached_bytes_of_topic // max(queues, 1))
        return count, size

    @property
    def retries(self) -> int:
        """Retries of a concurrent consumer."""
        return DEFAULT_RETRIES if self.max_reconsume_times < 0 else self.max_reconsume_times


class PullOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a pull consumer. Times are seconds, sizes bytes; the names in brackets are Java's."""

    model: MessageModel = MessageModel.CLUSTERING
    start_from: StartFrom | datetime = StartFrom.LAST
    #: Commit by itself what was given out, so often, inside of `poll` (autoCommit, autoCommitIntervalMillis).
    auto_commit: bool = True
    commit_interval: float = 5.0
    #: Messages of one pull, and the most that a poll gives (pullBatchSize).
    batch_size: int = 10
    batch_bytes: int = 256 * 1024
    #: Messages that wait here: of a queue and of all together (pullThresholdForQueue, pullThresholdForAll).
    max_cached: int = 1000
    max_cached_bytes: int = 100 * 1024 * 1024
    max_cached_of_all: int = 10_000
    poll_timeout: float = 5.0
    #: How often the queues of topics with a listener are looked at (topicMetadataCheckIntervalMillis).
    queue_check_interval: float = 30.0
    persist_interval: float = 5.0
    rebalance_interval: float = 20.0
    rebalance_soon: float = 1.0


_Options = TypeVar("_Options", PushOptions, PullOptions)


def options_of(kind: type[_Options], given: dict[str, Any], function: str) -> _Options:
    """Settings from keyword arguments; words stand for the values of enums."""
    unknown = set(given) - set(kind.__struct_fields__)
    if unknown:
        raise TypeError(f"{function}() has no option {', '.join(sorted(unknown))}")
    if isinstance(start := given.get("start_from"), str):
        moment = datetime.now(UTC) - TIMESTAMP_AGO if start == "timestamp" else StartFrom(start)
        given = {**given, "start_from": moment}
    if isinstance(model := given.get("model"), str):
        given = {**given, "model": MessageModel(model.upper())}
    return kind(**given)
