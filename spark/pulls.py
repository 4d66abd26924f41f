"""Pulling a span of a queue: requests until every offset of it is accounted for, with retries and the check for loss.

Asynchronous, on the loop of the `link`; what is pulled stays as it came. Where spans come from, and what becomes of
their bytes, is in `reading`. The subscription goes with every request, so no heartbeat is needed and no group is
joined. Kafka's KafkaDataConsumer; RocketMQ's RocketMqReader of the old connector.
"""

import asyncio
import logging
from typing import Final

from cometmq.client.consumer.pulling import PullRequest, Pulls, RawPulled
from cometmq.client.consumer.subscriptions import Sql, subscription_data
from cometmq.client.errors import NoRoute
from cometmq.client.queues import MessageQueue
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.errors import CometMQError
from cometmq.protocol.record import QUEUE_OFFSET_POSITION
from cometmq.spark.errors import DataLoss, SparkSourceError, filter_refused
from cometmq.spark.frame import Piece
from cometmq.spark.link import Link
from cometmq.spark.queue_range import QueueId, QueueRange
from cometmq.spark.read_options import SLAVE, SQL92, ReadOptions

log = logging.getLogger(__name__)

#: Seconds before a failed pull is tried again: the first time, and at most.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 4.0
#: Bytes that a pull may ask for, whatever the option says: with one message more the answer still fits a frame.
MOST_BYTES: Final = 8 * 1024 * 1024
#: Ids of brokers: for_pull takes another one when these are not there.
_MASTER_ID, _SLAVE_ID = 0, 1

_REMEDY: Final = (
    "keep messages for longer on the broker (fileReservedTime), let the query read faster, or set failOnDataLoss to"
    " false to go on with what is there"
)


class PullFailed(SparkSourceError):
    """Raised when a broker has not answered as often as `pullRetries` allows."""

    def __init__(self, queue: QueueId, offset: int, tries: int, error: str) -> None:
        super().__init__(
            f"{queue}: offset {offset} could not be read in {tries} tries: {error}",
            "check the broker, or raise pullRetries",
        )
        self.args = (queue, offset, tries, error)


class LossWatch:
    """What becomes of offsets that are gone. Mutable state: the queues that a warning was given for."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails
        self._warned: set[QueueId] = set()

    def lost(self, queue: QueueId, wanted: int, have: int) -> None:
        """The offsets from `wanted` up to `have` are gone."""
        if self._fails:
            raise DataLoss(queue, wanted, have, _REMEDY)
        if queue not in self._warned:
            self._warned.add(queue)
            log.warning("%s: offsets %d to %d are gone, going on without them", queue, wanted, have - 1)


class SpanReader:
    """Reads spans for one task. It is used on the link's loop alone."""

    def __init__(self, link: Link, how: ReadOptions, watch: LossWatch) -> None:
        self._link = link
        self._how = how
        self._watch = watch
        self._pulls = Pulls(link.client, link.access.wire_group)
        #: By topic of the wire.
        self._subscriptions: dict[str, SubscriptionData] = {}

    async def read(self, span: QueueRange) -> list[Piece]:
        """What there is of a span, a piece for each pull; the ranges of the pieces say what was asked and covered."""
        pieces: list[Piece] = []
        offset = span.start
        while offset < span.stop:
            rest = span._replace(start=offset)
            pulled = await self._pull(rest)
            offset = self._checked(rest, pulled)
            if pulled.data:
                pieces.append(Piece(rest._replace(stop=min(pulled.next_offset, span.stop)), pulled.data))
        return pieces

    def _checked(self, rest: QueueRange, pulled: RawPulled) -> int:
        """Where to go on; says so when something was passed over that should not have been."""
        have = pulled.next_offset
        if pulled.data and not self._how.is_filtered:
            have = int.from_bytes(pulled.data[QUEUE_OFFSET_POSITION : QUEUE_OFFSET_POSITION + 8], "big", signed=True)
        is_gap = pulled.status == "OFFSET_ILLEGAL" or not self._how.is_filtered
        if is_gap and have > rest.start:
            self._watch.lost(rest.queue, rest.start, min(have, rest.stop))
        return pulled.next_offset

    async def _pull(self, rest: QueueRange) -> RawPulled:
        """One pull that moves on, tried again while it fails or finds the end of the queue too early."""
        failures = 0
        while True:
            try:
                pulled = await self._ask(rest, failures)
            except CometMQError as error:
                if refused := filter_refused(error, self._how.sub_expression):
                    raise refused from None
                if not error.retriable and not isinstance(error, NoRoute):
                    raise
                reason = str(error)
                if failures >= self._how.retries:
                    raise PullFailed(rest.queue, rest.start, failures + 1, reason) from error
                await self._refresh(rest)
            else:
                if pulled.next_offset > rest.start and not self._is_past_end(rest, pulled):
                    return pulled
                reason = f"it ends at {pulled.max_offset}"
                if failures >= self._how.retries:
                    return self._end(rest, pulled)
            failures += 1
            log.info("%s: offset %d could not be read, trying again: %s", rest.queue, rest.start, reason)
            await asyncio.sleep(min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE))

    def _is_past_end(self, rest: QueueRange, pulled: RawPulled) -> bool:
        """A queue that is shorter than the driver has seen it: a broker that comes up again, or a slave behind."""
        return pulled.status in ("NO_NEW_MSG", "OFFSET_ILLEGAL") and pulled.min_offset <= rest.start

    def _end(self, rest: QueueRange, pulled: RawPulled) -> RawPulled:
        """The queue stays too short: what is left of the span is gone."""
        if pulled.min_offset <= rest.start < pulled.max_offset:
            reason = f"it answers {pulled.status} and has the offset"
            raise PullFailed(rest.queue, rest.start, self._how.retries + 1, reason)
        return pulled._replace(status="OFFSET_ILLEGAL", next_offset=rest.stop, data=b"")

    async def _ask(self, rest: QueueRange, failures: int) -> RawPulled:
        how, client = self._how, self._link.client
        topic = self._link.access.wire_topic(rest.topic)
        if client.routes.known(topic) is None:
            await client.routes.get(topic)
        # A slave that fails or lags is left alone.
        broker_id = _SLAVE_ID if how.read_from == SLAVE and not failures else _MASTER_ID
        return await self._pulls.pull_raw(
            PullRequest(
                queue=MessageQueue(topic, rest.broker, rest.queue_id),
                offset=rest.start,
                subscription=self._subscription(topic),
                max_count=min(how.pull_count, rest.size),
                max_bytes=min(how.pull_bytes, MOST_BYTES),
                hold=0.0,
                with_subscription=True,
                broker_id=broker_id,
                timeout=how.pull_timeout,
            )
        )

    def _subscription(self, topic: str) -> SubscriptionData:
        known = self._subscriptions.get(topic)
        if known is None:
            how = self._how
            wanted = Sql(how.sub_expression) if how.expression_type == SQL92 else how.sub_expression
            known = self._subscriptions[topic] = subscription_data(topic, wanted, 0)
        return known

    async def _refresh(self, rest: QueueRange) -> None:
        """The broker may have come back elsewhere."""
        try:
            await self._link.client.routes.fetch(self._link.access.wire_topic(rest.topic))
        except CometMQError as error:
            log.info("the route of %s could not be refreshed: %s", rest.topic, error)
