"""What the driver asks of the cluster: which queues there are, how far they go, and where they were at a time.

Blocking calls over the process's link, each one gathered over all queues. Who is away for a while is told apart from
what is wrong: queues without an answer are the caller's to wait for, errors of options are raised at once. Kafka's
KafkaOffsetReaderAdmin.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from cometmq.client.admin.queues import QueueAdmin
from cometmq.client.errors import BrokerError, ClientError, NoNameserver, NoRoute, TopicNotFound
from cometmq.client.queues import MessageQueue
from cometmq.protocol import namespaces
from cometmq.protocol.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from cometmq.protocol.bodies.stats import TopicOffset, TopicStatsTable
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.requests.admin import GetTopicStats
from cometmq.remoting.errors import TransportError
from cometmq.spark.access import Access
from cometmq.spark.errors import OptionError, Unreachable, filter_refused
from cometmq.spark.link import link_to
from cometmq.spark.queue_range import QueueId
from cometmq.spark.read_options import SQL92, ReadOptions
from cometmq.spark.topics import Topics

_T = TypeVar("_T")

#: Offsets by queue.
Offsets = dict[QueueId, int]

#: Requests in flight of one question: a topic may have thousands of queues.
_AT_ONCE: Final = 256
#: Messages that are looked at to learn how large they are, and bytes that one is taken to have when none can be seen.
_SAMPLE: Final = 32
_USUAL_SIZE: Final = 1024.0
#: Seconds that a broker may take to look at all queues of a topic, however few it has for other questions.
_LONG: Final = 15.0
#: Seconds until brokers that did not answer are asked again.
_PAUSE: Final = 0.5


class Answers(NamedTuple):
    """Offsets of the queues whose brokers answered, and what kept the others from it."""

    offsets: Offsets
    failures: dict[QueueId, Exception]


#: When a queue's last message was stored, where nobody says it: it may be any time.
UNKNOWN_TIME: Final = 2**63 - 1


class Bounds(NamedTuple):
    """The ends of a queue, and when its last message was stored (milliseconds; 0: it has none)."""

    first: int
    after_last: int
    last_stored: int


class Found(NamedTuple):
    """The queues of a query, sorted, and what is wrong with topics that it should have."""

    queues: list[QueueId]
    problems: list[OptionError]


class Cluster:
    """The cluster as one query sees it. It keeps nothing but the link, which is the process's."""

    def __init__(self, access: Access, topics: Topics) -> None:
        self._access = access
        self._topics = topics
        self._link = link_to(access)
        self._admin = QueueAdmin(self._link.client, request_timeout=access.request_timeout)

    # Which queues there are

    def check(self, how: ReadOptions) -> None:
        """Ask for the topics now, and whether the filter can be used: what is wrong is told before a query starts."""
        self.check_filter(self.queues(), how)

    def check_filter(self, queues: Iterable[QueueId], how: ReadOptions, patience: float | None = None) -> None:
        """OptionError when a broker cannot filter by an expression of SQL92. Tags any broker can use.

        RocketMQ has to be asked: a pull with an expression that it cannot parse gets all messages, unfiltered. With
        `patience`, as before reading, all brokers have to answer within so many seconds; else the silent are let be.
        """
        if how.expression_type != SQL92:
            return
        from cometmq.client.consumer.subscriptions import Sql, subscription_data

        client = self._link.client

        async def ask(queue: MessageQueue) -> int:
            if client.routes.known(queue.topic) is None:
                await client.routes.get(queue.topic)
            body = CheckClientRequestBody(
                client_id=client.client_id,
                group=self._access.wire_group,
                subscription_data=subscription_data(queue.topic, Sql(how.sub_expression), 0),
            ).encode()
            address = client.routes.brokers.master(queue.broker_name)
            answer = await client.remoting.request(
                address, RequestCode.CHECK_CLIENT_CONFIG, None, body, timeout=self._access.request_timeout
            )
            if refused := filter_refused(BrokerError.of(answer, address), how.sub_expression):
                raise refused
            return 0

        one_of_each = {queue.broker: queue for queue in queues}.values()
        if patience is not None:
            self.surely(lambda missing: self._each(missing, ask), one_of_each, patience)
            return
        for error in self._each(one_of_each, ask).failures.values():
            if isinstance(error, OptionError):
                raise error

    def queues(self) -> list[QueueId]:
        """All queues of the query, sorted. OptionError for a topic that does not exist, Unreachable without cluster."""
        found = self.look()
        if found.problems:
            raise found.problems[0]
        return found.queues

    def look(self) -> Found:
        """Which queues there are, and which topics or queues are missing. Unreachable without cluster."""
        try:
            return self._run(self._look())
        except (NoNameserver, TransportError) as error:
            servers = ";".join(self._access.name_servers)
            raise Unreachable(
                f"nameServer={servers}: no nameserver answers ({error})",
                "check the addresses, that they can be reached from Spark's driver, and tls; or raise requestTimeoutMs",
            ) from None

    async def _look(self) -> Found:
        free = asyncio.Semaphore(_AT_ONCE)
        queues: set[QueueId] = set()
        problems: list[OptionError] = []
        for found in await asyncio.gather(*(self._queues_of(topic, free) for topic in await self._names())):
            if isinstance(found, OptionError):
                problems.append(found)
            else:
                queues.update(found)
        if self._topics.pattern is not None and not queues and not problems:
            problems.append(OptionError(self._topics.option, self._topics.pattern, "no topic has such a name"))
        wanted = self._topics.queues
        if wanted is None:
            return Found(sorted(queues), problems)
        if (missing := sorted(wanted - queues)) and not problems:
            there = ", ".join(f"{each.broker}: {each.queue_id}" for each in sorted(queues))
            problems.append(OptionError("assign", "", f"there is no {missing[0]}; the topic has {there}"))
        return Found(sorted(wanted & queues), problems)

    async def _names(self) -> Iterable[str]:
        if self._topics.pattern is None:
            return self._topics.names
        prefix = f"{self._access.namespace}{namespaces.SEPARATOR}" if self._access.namespace else ""
        own = [topic for topic in await self._admin.topics() if topic.startswith(prefix)]
        return self._topics.matching(self._access.shown_topic(topic) for topic in own)

    async def _queues_of(self, topic: str, free: asyncio.Semaphore) -> list[QueueId] | OptionError:
        async with free:
            try:
                route = await self._link.client.routes.fetch(self._access.wire_topic(topic))
            except NoRoute:
                if self._topics.pattern is not None:
                    return []  # deleted since the names were asked for
                remedy = "check its name and namespace, create it with mqadmin updateTopic, or leave it out"
                return OptionError(self._topics.option, topic, f"no nameserver knows this topic; {remedy}")
        if not route.subscribe and self._topics.pattern is None:
            remedy = "allow it with mqadmin updateTopicPerm -p 6, or give it queues with mqadmin updateTopic -r"
            return OptionError(self._topics.option, topic, f"this topic has no queue that can be read; {remedy}")
        return [QueueId(topic, each.broker_name, each.queue_id) for each in route.subscribe]

    # How far they go

    def latest(self, queues: Iterable[QueueId]) -> Answers:
        """The offset that the next message of each queue will get."""
        return self._each(queues, self._admin.max_offset)

    def earliest(self, queues: Iterable[QueueId]) -> Answers:
        """The offset of the first message that each queue has."""
        return self._each(queues, self._admin.min_offset)

    def at_times(self, times: Mapping[QueueId, int]) -> Answers:
        """The offset of the first message of each queue that was stored at its time (milliseconds) or later."""
        return self._each(times, lambda queue: self._admin.search_offset(queue, times[self._shown(queue)]))

    def bounds(self, queues: Collection[QueueId], seconds: float) -> dict[QueueId, Bounds]:
        """The ends of all queues of these queues' topics, waited for as in `surely`."""
        client = self._link.client
        found: dict[QueueId, Bounds] = {}
        deadline = time.monotonic() + seconds

        async def ask(queue: MessageQueue) -> int:
            await client.routes.fetch(queue.topic)
            address, _ = client.routes.brokers.for_pull(queue.broker_name)
            header = GetTopicStats(topic=queue.topic)
            left = max(min(_LONG, deadline - time.monotonic()), self._access.request_timeout)
            answer = await client.remoting.request(address, RequestCode.GET_TOPIC_STATS_INFO, header, timeout=left)
            if answer.code != ResponseCode.SUCCESS:
                raise BrokerError.of(answer, address)
            table = TopicStatsTable.decode(answer.body).offset_table if answer.body else {}
            found.update({self._shown(MessageQueue.from_wire(each)): _bounds(at) for each, at in table.items()})
            beside = [each for each in queues if each not in found and each[:2] == self._shown(queue)[:2]]
            found.update(zip(beside, await asyncio.gather(*map(ask_beside, beside)), strict=True))
            return 0

        async def ask_beside(queue: QueueId) -> Bounds:
            # Brokers of 4.x leave out the queues that are only read any more.
            wired = self._wired(queue)
            first, after_last = await asyncio.gather(self._admin.min_offset(wired), self._admin.max_offset(wired))
            return Bounds(first, after_last, UNKNOWN_TIME)

        def ask_all(missing: list[QueueId]) -> Answers:
            # A broker tells all queues that it has of a topic at once.
            one_of_each = {(queue.topic, queue.broker): queue for queue in missing}
            failed = self._each(one_of_each.values(), ask).failures
            away: dict[QueueId, Exception] = {}
            for queue in missing:
                if queue not in found:
                    failure = failed.get(one_of_each[queue.topic, queue.broker])
                    away[queue] = failure or NoRoute(f"it does not know {queue}")
            return Answers({queue: 0 for queue in missing if queue in found}, away)

        self.surely(ask_all, queues, seconds)
        return found

    def message_sizes(self, begins: Mapping[QueueId, int], seconds: float) -> dict[QueueId, float]:
        """The bytes of a message of each queue on average: by the first ones from an offset on, as they are stored.

        A queue whose broker does not answer within so many seconds is taken to be like the others.
        """
        from cometmq.client.consumer.pulling import PullRequest, Pulls  # here: most queries have no limit in bytes

        pulls = Pulls(self._link.client, self._access.wire_group)

        async def sample(queue: MessageQueue) -> int:
            request = PullRequest(
                queue,
                begins[self._shown(queue)],
                SubscriptionData(topic=queue.topic, sub_string="*"),
                max_count=_SAMPLE,
                hold=0.0,
                with_subscription=True,
                timeout=seconds,
            )
            pulled = await pulls.pull_raw(request)  # as they are: damaged ones have a size, too
            return len(pulled.data) // max(1, pulled.next_offset - request.offset)

        sizes = {queue: float(size) for queue, size in self._each(begins, sample).offsets.items() if size}
        usual = sum(sizes.values()) / len(sizes) if sizes else _USUAL_SIZE
        return {queue: sizes.get(queue, usual) for queue in begins}

    def _each(self, queues: Iterable[QueueId], ask: Callable[[MessageQueue], Awaitable[int]]) -> Answers:
        """One question about each queue, all at once."""
        wanted = list(queues)

        async def gathered() -> list[int | Exception]:
            free = asyncio.Semaphore(_AT_ONCE)

            async def one(queue: QueueId) -> int | Exception:
                async with free:
                    try:
                        return await ask(self._wired(queue))
                    except (ClientError, BrokerError, TransportError) as error:
                        return error

            return await asyncio.gather(*(one(queue) for queue in wanted))

        offsets: Offsets = {}
        failures: dict[QueueId, Exception] = {}
        for queue, outcome in zip(wanted, self._run(gathered()), strict=True):
            if isinstance(outcome, int):
                offsets[queue] = outcome
            else:
                failures[queue] = outcome
        return Answers(offsets, failures)

    def surely(self, ask: Callable[[list[QueueId]], Answers], queues: Iterable[QueueId], seconds: float) -> Offsets:
        """The answers of all queues, waited for: a broker may just be starting again. Unreachable after so long."""
        missing = list(queues)
        found: Offsets = {}
        deadline = time.monotonic() + seconds
        while missing:
            answers = ask(missing)
            found |= answers.offsets
            missing = list(answers.failures)
            for queue, error in answers.failures.items():
                if not is_passing(error):
                    raise error
                if time.monotonic() >= deadline:
                    raise unreachable(queue, error, seconds) from None
            if missing:
                time.sleep(min(_PAUSE, max(0.0, deadline - time.monotonic())))
        return found

    # Names and the loop

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return self._link.run(work, timeout=None)  # every request in it has a time of its own

    def _wired(self, queue: QueueId) -> MessageQueue:
        return MessageQueue(self._access.wire_topic(queue.topic), queue.broker, queue.queue_id)

    def _shown(self, queue: MessageQueue) -> QueueId:
        return QueueId(self._access.shown_topic(queue.topic), queue.broker_name, queue.queue_id)


def unreachable(queue: QueueId, error: Exception, seconds: float) -> Unreachable:
    """The error for a queue whose broker has not answered for so long."""
    return Unreachable(
        f"broker {queue.broker} of topic {queue.topic} did not answer for {seconds:g} s ({error})",
        "check the broker, and that Spark's driver can reach the address that it registers (brokerIP1); or raise "
        "unreachableTimeout or requestTimeoutMs",
    )


def is_passing(error: Exception) -> bool:
    """Whether it may be over in a while: somebody is away or busy."""
    return bool(getattr(error, "retriable", False)) or isinstance(error, NoNameserver | NoRoute | TopicNotFound)


def _bounds(offset: TopicOffset) -> Bounds:
    return Bounds(offset.min_offset, offset.max_offset, offset.last_update_timestamp)
