"""How a push consumer works: RocketMQ's settings, in Python's units. The names in brackets are Java's."""

from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from cometmq.protocol.bodies.heartbeat import MessageModel

#: Concurrent consumers give a message up after so many retries, when the user says nothing.
DEFAULT_RETRIES: Final = 16


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
    #: Unsettled messages of a topic, over all its queues here; None: no such limit (pullThresholdForTopic).
    max_cached_of_topic: int | None = None
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

    @property
    def retries(self) -> int:
        """Retries of a concurrent consumer."""
        return DEFAULT_RETRIES if self.max_reconsume_times < 0 else self.max_reconsume_times
