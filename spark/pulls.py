"""Pulling a span of a queue: requests until every offset of it is accounted for, with retries and the check for loss.

Asynchronous, on the loop of the `link`; what is pulled stays as it came. Where spans come from, and what becomes of
their bytes, is in `reading`. The subscription goes with every request, so no heartbeat is needed and no group is
joined. Kafka's KafkaDataConsumer; RocketMQ's RocketMqReader of the old connector.
"""

import asyncio
import logging
import time
from typing import Final
from weakref import WeakKeyDictionary

from cometmq.client.consumer.pulling import PullRequest, Pulls, RawPulled
from cometmq.client.consumer.subscriptions import Sql, subscription_data
from cometmq.client.errors import BrokerError, NoBroker, NoNameserver, NoRoute, TopicNotFound
from cometmq.client.queues import MessageQueue
from cometmq.protocol.bodies.heartbeat import SubscriptionData
from cometmq.protocol.bodies.route import ClusterInfo
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import CometMQError
from cometmq.protocol.record import QUEUE_OFFSET_POSITION
from cometmq.remoting.errors import TransportError
from cometmq.spark.errors import DataLoss, SparkSourceError, filter_refused
from cometmq.spark.frame import Piece
from cometmq.spark.link import Link
from cometmq.spark.queue_range import QueueId, QueueRange
from cometmq.spark.read_options import SLAVE, SQL92, ReadOptions

log = logging.getLogger(__name__)

#: Seconds before a failed pull is tried again: the first time, and at most.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 4.0
#: Seconds that all tasks of a process leave a slave alone that failed: a silent one would cost each of them a timeout.
SLAVE_REST: Final = 60.0
#: Bytes that a pull may ask for, whatever the option says: with one message more the answer still fits a frame.
MOST_BYTES: Final = 8 * 1024 * 1024
#: Ids of brokers: for_pull takes another one when these are not there.
_MASTER_ID, _SLAVE_ID = 0, 1
#: Until when (monotonic seconds) the slaves of brokers are left alone, by the names of these.
_resting: "WeakKeyDictionary[Link, dict[str, float]]" = WeakKeyDictionary()

_REMEDY: Final = (
    "keep messages for longer on the broker (fileReservedTime), let the query read faster, or set failOnDataLoss to"
    " false to go on with what is there"
)
_GONE_REMEDY: Final = (
    "make it again if it was not meant to go (mqadmin updateTopic), or set failOnDataLoss to false to go on without"
    " these messages"
)


class PullFailed(SparkSourceError):
    """Raised when a broker has not answered as often as `pullRetries` allows."""

    def __init__(self, queue: QueueId, offset: int, tries: int, error: str, remedy: str = "") -> None:
        remedy = remedy or "check the broker, or raise pullRetries"
        super().__init__(f"{queue}: offset {offset} could not be read in {tries} tries: {error}", remedy)
        self.args = (queue, offset, tries, error, remedy)


class QueueGone(DataLoss):
    """Raised when a queue that is being read, or its whole topic, is no more."""

    def __init__(self, rest: QueueRange, reason: str) -> None:
        super().__init__(rest.queue, rest.start, rest.stop, _GONE_REMEDY)
        self.args = (rest, reason)
        self.cause = f"{rest.queue} is no more, and with it offsets {rest.start} to {rest.stop - 1}: {reason}"
        self.rest = rest
        self.reason = reason


def _says_gone(error: CometMQError) -> bool:
    """Whether a broker answered that it does not have the topic or the queue; there is no code for the latter, and
    RocketMQ's was another one in 4.x."""
    if isinstance(error, TopicNotFound):
        return True
    return isinstance(error, BrokerError) and error.remark.startswith("queueId[") and "is illegal" in error.remark


def _remedy(error: CometMQError) -> str:
    if isinstance(error, NoNameserver):
        return (
            "check the nameservers, and that Spark's executors can reach them; or raise requestTimeoutMs or pullRetries"
        )
    if isinstance(error, TransportError):
        return (
            "check the broker, and that Spark's executors can reach the address that it registers (brokerIP1); or "
            "raise pullTimeoutMs or pullRetries"
        )
    return ""


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

    def gone(self, error: QueueGone, why: BaseException | None) -> None:
        """The whole rest of a range is gone, with its queue."""
        if self._fails:
            raise error from why
        log.warning("%s; going on without them", error.cause)


class SpanReader:
    """Reads spans for one task. It is used on the link's loop alone."""

    def __init__(self, link: Link, how: ReadOptions, watch: LossWatch) -> None:
        self._link = link
        self._how = how
        self._watch = watch
        self._pulls = Pulls(link.client, link.access.wire_group)
        #: By topic of the wire.
        self._subscriptions: dict[str, SubscriptionData] = {}
        #: Topics and brokers that it was waited for in vain: their other queues need not wait as long.
        self._gone: set[tuple[str, str]] = set()

    async def read(self, span: QueueRange, room: int = MOST_BYTES) -> list[Piece]:
        """A span, or its beginning as soon as that has as many bytes as there is room for, with a message more at most.

        A piece for each pull, also without messages: their ranges say what was asked and covered, the last one how far
        this went.
        """
        pieces: list[Piece] = []
        offset = span.start
        while offset < span.stop and room > 0:
            rest = span._replace(start=offset)
            try:
                pulled = await self._pull(rest, room)
            except QueueGone:
                if not pieces:
                    raise
                break  # what there was of it counts
            offset = min(self._checked(rest, pulled), span.stop)
            pieces.append(Piece(rest._replace(stop=offset), pulled.data))
            room -= len(pulled.data)
        return pieces

    def _checked(self, rest: QueueRange, pulled: RawPulled) -> int:
        """Where to go on; says so when something was passed over that should not have been."""
        have = self._gap_end(rest, pulled)
        if have > rest.start:
            self._watch.lost(rest.queue, rest.start, min(have, rest.stop))
        return pulled.next_offset

    def _gap_end(self, rest: QueueRange, pulled: RawPulled) -> int:
        """The first offset that is there, where some are missing before it; else that of the request, or less."""
        if pulled.data and not self._how.is_filtered:
            return int.from_bytes(pulled.data[QUEUE_OFFSET_POSITION : QUEUE_OFFSET_POSITION + 8], "big", signed=True)
        is_gap = pulled.status == "OFFSET_ILLEGAL" or not self._how.is_filtered
        return pulled.next_offset if is_gap else rest.start

    async def _pull(self, rest: QueueRange, room: int) -> RawPulled:
        """One pull that moves on, tried again while it fails or finds the end of the queue too early."""
        if self._how.read_from == SLAVE and (pulled := await self._from_slave(rest, room)) is not None:
            return pulled
        failures, was_gone = 0, True
        while True:
            try:
                pulled = await self._ask(rest, room, _MASTER_ID)
            except CometMQError as error:
                if refused := filter_refused(error, self._how.sub_expression):
                    raise refused from None
                says_gone = _says_gone(error)
                if not error.retriable and not says_gone and not isinstance(error, NoRoute):
                    raise
                # A slave alone may not have heard of the topic.
                was_gone = was_gone and says_gone and self._link.client.routes.brokers.has(rest.broker)
                reason = str(error)
                if was_gone and (failures >= self._how.retries or rest[:2] in self._gone):
                    self._gone.add(rest[:2])
                    raise QueueGone(rest, reason.partition("\n")[0].strip()) from error  # without Java's link
                if failures >= self._how.retries:
                    raise PullFailed(rest.queue, rest.start, failures + 1, reason, _remedy(error)) from error
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

    async def _from_slave(self, rest: QueueRange, room: int) -> RawPulled | None:
        """What a slave gives; None when the master is to be asked.

        A slave may be behind, and one that was added later has nothing from before: what it does not have is no loss.
        RocketMQ's answers then are PULL_RETRY_IMMEDIATELY, or PULL_OFFSET_MOVED under its offsetCheckInSlave; and
        SYSTEM_BUSY without slaveReadEnable.
        """
        resting = _resting.setdefault(self._link, {})
        if time.monotonic() < resting.get(rest.broker, 0.0):
            return None
        try:
            pulled = await self._ask(rest, room, _SLAVE_ID)
        except (BrokerError, TransportError) as error:
            log.warning("a slave of %s is left alone for %g s: %s", rest.broker, SLAVE_REST, error)
            resting[rest.broker] = time.monotonic() + SLAVE_REST
            await self._refresh(rest)
            return None
        except CometMQError:
            return None  # there is no way to anybody: that is told, and tried again, where the master is asked
        has_it = pulled.min_offset <= rest.start < pulled.next_offset
        return pulled if has_it and self._gap_end(rest, pulled) <= rest.start else None

    def _is_past_end(self, rest: QueueRange, pulled: RawPulled) -> bool:
        """A queue that is shorter than the driver has seen it: a broker that comes up again, or a slave behind."""
        return pulled.status in ("NO_NEW_MSG", "OFFSET_ILLEGAL") and pulled.min_offset <= rest.start

    def _end(self, rest: QueueRange, pulled: RawPulled) -> RawPulled:
        """The queue stays too short: what is left of the span is gone."""
        if pulled.min_offset <= rest.start < pulled.max_offset:
            reason = f"it answers {pulled.status} and has the offset"
            raise PullFailed(rest.queue, rest.start, self._how.retries + 1, reason)
        # Where it begins later, as a slave may whose master is away, what comes after that is there.
        next_offset = pulled.min_offset if rest.start < pulled.min_offset < rest.stop else rest.stop
        return pulled._replace(status="OFFSET_ILLEGAL", next_offset=next_offset, data=b"")

    async def _ask(self, rest: QueueRange, room: int, broker_id: int) -> RawPulled:
        how = self._how
        topic = self._link.access.wire_topic(rest.topic)
        await self._find(topic, rest.broker)
        return await self._pulls.pull_raw(
            PullRequest(
                queue=MessageQueue(topic, rest.broker, rest.queue_id),
                offset=rest.start,
                subscription=self._subscription(topic),
                max_count=min(how.pull_count, rest.size),
                max_bytes=min(how.pull_bytes, MOST_BYTES, room),
                hold=0.0,
                with_subscription=True,
                broker_id=broker_id,
                timeout=how.pull_timeout,
            )
        )

    async def _find(self, topic: str, broker: str) -> None:
        """Have an address of the broker, if anybody knows one.

        No route has a topic that was deleted. It has none, either, when the broker is down for long: only the broker
        itself can say that messages are gone, so it is looked for without the topic.
        """
        client = self._link.client
        routes = client.routes
        try:
            if routes.known(topic) is None:
                await routes.get(topic)
            routes.brokers.for_pull(broker)
        except (NoRoute, NoBroker):
            timeout = self._link.access.request_timeout
            answer = await client.nameservers.request(RequestCode.GET_BROKER_CLUSTER_INFO, timeout=timeout)
            table = ClusterInfo.decode(answer.body).broker_addr_table if answer.code == ResponseCode.SUCCESS else {}
            if broker not in table:
                raise
            routes.brokers.learn([table[broker]])

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
