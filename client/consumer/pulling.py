"""Pulling one queue: one request at a time, held by the broker until messages come, and back-pressure by the window.

A `Puller` turns answers into messages and hands them on; what becomes of them is not known here. RocketMQ's
PullMessageService and pullMessage of DefaultMQPushConsumerImpl.
"""

import asyncio
import logging
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq.client.consumer.subscriptions import TagCheck
from cometmq.client.errors import BrokerError, ClientError
from cometmq.client.queues import MessageQueue
from cometmq.protocol import sysflag
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.bodies.heartbeat import ExpressionType, SubscriptionData
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import ProtocolError, RecordError
from cometmq.protocol.record import Record, decode_records
from cometmq.protocol.requests.pull import PullMessage, PullMessageAnswer
from cometmq.remoting.errors import TransportError

if TYPE_CHECKING:
    from cometmq.client.client import Client

log = logging.getLogger(__name__)

# Bits of the request's sysFlag.
COMMIT_OFFSET, SUSPEND, SUBSCRIPTION, LITE_PULL = 1, 2, 4, 16

#: Seconds that a broker holds a request, and that we wait for its answer.
HOLD: Final = 15.0
ANSWER: Final = 30.0
#: Seconds after a first error, after many in a row, and after an answer that asks for patience. Each is varied by half,
#: so that the clients of a broker that comes back do not all come at once.
AFTER_ERROR: Final = 1.0
AFTER_ERRORS: Final = 4.0
AFTER_FLOW_CONTROL: Final = 0.02

_STATUS = {
    int(ResponseCode.SUCCESS): "FOUND",
    int(ResponseCode.PULL_NOT_FOUND): "NO_NEW_MSG",
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): "NO_MATCHED_MSG",
    int(ResponseCode.PULL_OFFSET_MOVED): "OFFSET_ILLEGAL",
}


class RawPulled(NamedTuple):
    """What a pull gave, its records undecoded: one after the other."""

    #: FOUND, NO_NEW_MSG, NO_MATCHED_MSG or OFFSET_ILLEGAL.
    status: str
    data: bytes
    next_offset: int
    min_offset: int
    max_offset: int


class Pulled(NamedTuple):
    """What a pull gave."""

    #: As in `RawPulled`.
    status: str
    records: list[Record]
    next_offset: int
    min_offset: int
    max_offset: int


class PullRequest(NamedTuple):
    """What a pull asks for."""

    queue: MessageQueue
    offset: int
    subscription: SubscriptionData
    max_count: int = 32
    max_bytes: int = 256 * 1024
    #: Committed by the way; None: nothing to commit.
    commit: int | None = None
    #: Seconds that the broker may hold it; 0: it answers at once.
    hold: float = HOLD
    #: The subscription goes with each request: the broker need not know the group.
    with_subscription: bool = False
    lite: bool = False
    #: The broker to ask: 0 is the master, others are slaves. None: the one that the last answer suggested.
    broker_id: int | None = None
    #: Seconds for the whole request. None: what the broker may hold it, and time for the way.
    timeout: float | None = None


class Pulls:
    """Asks brokers for messages. Mutable state: which broker each queue is read from."""

    def __init__(self, client: "Client", group: str) -> None:
        self._client = client
        self._group = group
        #: The broker id that the last answer suggested.
        self._suggested: dict[MessageQueue, int] = {}

    async def pull(self, wanted: PullRequest) -> Pulled:
        """One request. What a broker refuses is raised as BrokerError."""
        status, data, next_offset, min_offset, max_offset = await self.pull_raw(wanted)
        records = self._records(data, wanted.queue) if status == "FOUND" else []
        return Pulled(status, records, next_offset, min_offset, max_offset)

    async def pull_raw(self, wanted: PullRequest) -> RawPulled:
        """The same for those who decode by themselves."""
        queue = wanted.queue
        broker_id = self._suggested.get(queue, 0) if wanted.broker_id is None else wanted.broker_id
        address, is_slave = self._client.routes.brokers.for_pull(queue.broker_name, broker_id)
        if not wanted.with_subscription and not self._client.heartbeats.is_heard(address):
            # A new connection: its broker has forgotten us with the old one, or was restarted.
            await self._client.heartbeats.introduce([address])
        answer = await self._client.remoting.request(
            address,
            RequestCode.PULL_MESSAGE,
            self._header(wanted, is_slave),
            timeout=wanted.hold + ANSWER - HOLD if wanted.timeout is None else wanted.timeout,
        )
        status = _STATUS.get(answer.code)
        if status is None:
            if answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST:
                self._client.heartbeats.forget(address)
            raise BrokerError.of(answer, address)
        header = answer.header(PullMessageAnswer)
        self._suggested[queue] = header.suggest_which_broker_id
        return RawPulled(status, answer.body, header.next_begin_offset, header.min_offset, header.max_offset)

    def forget(self, queue: MessageQueue) -> None:
        self._suggested.pop(queue, None)

    def _header(self, wanted: PullRequest, is_slave: bool) -> PullMessage:
        flags = SUSPEND if wanted.hold else 0
        commit = wanted.commit
        if commit is not None and not is_slave:
            flags |= COMMIT_OFFSET
        data = wanted.subscription
        if wanted.with_subscription:
            flags |= SUBSCRIPTION
        if wanted.lite:
            flags |= LITE_PULL
        return PullMessage(
            consumer_group=self._group,
            topic=wanted.queue.topic,
            queue_id=wanted.queue.queue_id,
            queue_offset=wanted.offset,
            max_msg_nums=wanted.max_count,
            sys_flag=flags,
            commit_offset=commit or 0,
            suspend_timeout_millis=round(wanted.hold * 1000),
            sub_version=data.sub_version,
            subscription=data.sub_string if wanted.with_subscription else None,
            expression_type=data.expression_type or ExpressionType.TAG.value,
            max_msg_bytes=wanted.max_bytes,
        )

    def _records(self, data: bytes, queue: MessageQueue) -> list[Record]:
        """The records of an answer; a broken one ends the list, so that it is asked for again and again."""
        records: list[Record] = []
        try:
            for record in decode_records(data, decompress=True):
                if record.sys_flag & sysflag.NEED_UNWRAP and record.sys_flag & sysflag.INNER_BATCH:
                    records += unwrapped(record)
                else:
                    records.append(record)
        except RecordError as error:
            if not records:
                raise
            log.error("%s: %s", queue, error)
        return records


def unwrapped(record: Record) -> list[Record]:
    """The messages of an inner batch, as if they had been stored one by one."""
    items = []
    for number, item in enumerate(decode_batch(record.body)):
        items.append(
            Record(
                record.size,
                record.magic,
                record.body_crc,
                record.queue_id,
                item.flag,
                record.queue_offset + number,
                record.physical_offset,
                record.sys_flag & ~(sysflag.NEED_UNWRAP | sysflag.INNER_BATCH),
                record.born_timestamp,
                record.born_host,
                record.store_timestamp,
                record.store_host,
                record.reconsume_times,
                record.prepared_transaction_offset,
                item.body,
                record.topic,
                item.properties,
            )
        )
    return items


class Room:
    """The back-pressure of a pull loop: something to wait for while what was pulled takes all the room."""

    __slots__ = ("_has_room", "_waiting")

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self._has_room = has_room
        self._waiting: asyncio.Future[None] | None = None

    def wait(self) -> "asyncio.Future[None] | None":
        """None while there is room."""
        if self._has_room():
            return None
        if self._waiting is None or self._waiting.done():
            self._waiting = asyncio.get_running_loop().create_future()
        return self._waiting

    def look(self) -> None:
        """Something has left: the pull loop looks again."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class PullLoop:
    """Pulls a queue until it is cancelled. The callbacks say when, from where and what to do with the result."""

    def __init__(
        self,
        pulls: Pulls,
        queue: MessageQueue,
        offset: int,
        *,
        request: Callable[[int], PullRequest],
        found: Callable[[list[Record]], None],
        nothing: Callable[[int], None],
        moved: Callable[[int], None],
        room: Room,
        check: TagCheck,
        interval: float = 0.0,
    ) -> None:
        self._pulls = pulls
        self.queue = queue
        self.offset = offset
        self._request = request
        self._found = found
        self._nothing = nothing
        self._moved = moved
        self._room = room
        self._check = check
        self._interval = interval
        self.last_pull = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            waiting = self._room.wait()
            if waiting is not None:
                await waiting
                continue
            self.last_pull = loop.time()
            try:
                pulled = await self._pulls.pull(self._request(self.offset))
            except (BrokerError, ClientError, TransportError, ProtocolError) as error:
                failures += 1
                await asyncio.sleep(self._pause(error, failures))
                continue
            failures = 0
            if pulled.status == "OFFSET_ILLEGAL":
                log.warning("%s: offset %d is not there, going on at %d", self.queue, self.offset, pulled.next_offset)
                self._moved(pulled.next_offset)
                return
            self.offset = pulled.next_offset
            records = pulled.records
            if records and self._check.is_needed:
                records = [record for record in records if self._check(record.properties)]
            if records:
                self._found(records)
                if self._interval:
                    await asyncio.sleep(self._interval)
            else:
                self._nothing(self.offset)

    def _pause(self, error: Exception, failures: int) -> float:
        code = getattr(error, "code", None)
        if code == ResponseCode.FLOW_CONTROL:
            return AFTER_FLOW_CONTROL
        # A heartbeat may not have arrived yet: the next pull finds it done.
        quiet = code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)
        log.log(logging.DEBUG if quiet else logging.WARNING, "%s: pull failed: %s", self.queue, error)
        return min(AFTER_ERROR * (1 << min(failures - 1, 8)), AFTER_ERRORS) * random.uniform(0.5, 1.5)
