"""Loss detection: producers number their messages, consumers check the numbers.

    producer = mq.producer("orders", hooks=[SendAudit()])
    audit = ConsumeAudit()
    consumer = mq.push_consumer("billing", {"orders": "*"}, bill, hooks=[audit], queue_listener=audit.queues_changed)

`SendAudit` stamps every message with the producer's id and a number that counts up by one in each queue. An attempt
that failed leaves its number unused, or used by a message that nobody acknowledged: the next message of that queue says
so (`void`), so that it is no gap. `ConsumeAudit` reports gaps, repeats and disorder. RocketMQ leaves this to its users.

Not stamped, and passed over: batches (their items have no properties of an attempt), and delayed messages, which come
in another order than they were sent. Retries of a consumer are no repeats. A subscription by tags or SQL shows gaps
where messages were filtered: audit whole topics.
"""

import logging
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import islice
from typing import Final

import msgspec

from cometmq.client.audit_stamp import MAX_DIGITS, PRODUCER, SEQUENCE, VOID
from cometmq.client.hooks import ConsumeContext, ConsumeHook, SendContext, SendHook
from cometmq.client.message import ReceivedMessage
from cometmq.client.queues import MessageQueue
from cometmq.protocol import names

log = logging.getLogger(__name__)

#: A stamp names so many ranges of void numbers at most: properties have 32 KiB in all.
MAX_VOID: Final = 256
#: Message ids that are remembered to see a message twice, and missing numbers that are waited for, of each stream.
RECENT_IDS: Final = 10_000
MAX_MISSING: Final = 10_000
#: Findings that are kept; all are counted and logged.
MAX_FINDINGS: Final = 1000


class SendAudit(SendHook):
    """Stamps what a producer sends. One for each producer.

    Mutable state: for each queue the next number, and the void ones that no confirmed message has told yet.
    """

    def __init__(self, producer_id: str | None = None) -> None:
        """`producer_id` is never used again by another run, or its numbers would repeat; by default it is random."""
        self.producer_id = producer_id or secrets.token_hex(8)
        self._next: Counter[MessageQueue] = Counter()
        #: First -> last number of each range. A broker that is away for long makes one range, not many numbers.
        self._void: dict[MessageQueue, dict[int, int]] = {}

    def before_send(self, context: SendContext) -> None:
        message = context.message
        if context.is_batch or (
            message is not None and (message.delay_level or message.delay is not None or message.deliver_at is not None)
        ):
            return
        queue = context.queue
        number = self._next[queue]
        self._next[queue] = number + 1
        void = list(islice(self._void.get(queue, {}).items(), MAX_VOID))
        context.properties |= {PRODUCER: self.producer_id, SEQUENCE: str(number)}
        if void:
            context.properties[VOID] = ",".join(f"{first}-{last}" for first, last in void)
        context.notes[PRODUCER] = number, void

    def after_send(self, context: SendContext) -> None:
        noted = context.notes.get(PRODUCER)
        if noted is None:
            return
        number, told = noted
        ranges = self._void.setdefault(context.queue, {})
        if context.error is not None:
            start = next(reversed(ranges), None)
            if start is not None and ranges[start] == number - 1:
                ranges[start] = number
            else:
                ranges[number] = number
        elif context.receipt is not None:
            for first, last in told:
                end = ranges.pop(first, last)
                if end > last:  # it has grown since it was told
                    ranges[last + 1] = end


class Problem(StrEnum):
    """What can be wrong with the order of messages."""

    #: Numbers are missing before this message: lost, still to come, read by another consumer, or void, as a later
    #: message says. What is lost in the end is told by `ConsumeAudit.missing`.
    GAP = "gap"
    #: It was seen before.
    REPEAT = "repeat"
    #: It comes after messages that were sent after it.
    DISORDER = "disorder"


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, and where."""

    problem: Problem
    producer_id: str
    queue: MessageQueue
    queue_offset: int
    message_id: str
    sequence: int
    #: GAP: the first and the last number that is missing, and the message before them.
    missing: tuple[int, int] | None = None
    previous_id: str | None = None

    def __str__(self) -> str:
        where = f"{self.queue.broker_name}/{self.queue.topic}/{self.queue.queue_id}, offset {self.queue_offset}"
        what = f"message {self.message_id} of producer {self.producer_id}, number {self.sequence}, {where}"
        if self.missing is None:
            return f"{self.problem}: {what}"
        return f"{self.problem}: {self.missing[0]} to {self.missing[1]} after {self.previous_id}, before {what}"


class _Ranges:
    """Numbers from first to last, both included, as a stamp lists them. What is no such text counts as nothing."""

    def __init__(self, text: str = "") -> None:
        self.ranges: list[tuple[int, int]] = []
        for part in text.split(",")[:MAX_VOID]:
            first, last = (_number(each) for each in (part.partition("-")[0], part.partition("-")[2]))
            if first is not None and last is not None and first <= last:
                self.ranges.append((first, last))
        self.ranges.sort()

    def __contains__(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.ranges)

    def between(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The numbers from start to before stop that are not here, as ranges."""
        found = []
        for first, last in self.ranges:
            if start < min(first, stop):
                found.append((start, min(first, stop) - 1))
            start = max(start, last + 1)
        if start < stop:
            found.append((start, stop - 1))
        return found


class _Stream:
    """What came of one producer by one queue."""

    __slots__ = ("expected", "last_id", "missing", "void")

    def __init__(self, expected: int) -> None:
        self.expected = expected
        self.last_id: str | None = None
        self.missing: set[int] = set()
        #: Numbers that nobody waits for, but that may come.
        self.void = _Ranges()

    def add_void(self, told: _Ranges) -> None:
        self.void.ranges = [*self.void.ranges, *told.ranges][-MAX_VOID:]
        self.missing = {number for number in self.missing if number not in told}

    def add_missing(self, first: int, last: int) -> None:
        self.missing.update(range(max(first, last - MAX_MISSING), last + 1))
        for number in sorted(self.missing)[:-MAX_MISSING]:
            self.missing.remove(number)


class ConsumeAudit(ConsumeHook):
    """Checks the stamps of what a consumer gets; a hook for `push_consumer`, or call `check` by hand.

    Mutable state: what was seen of each producer in each queue, the latest ids, and what was found.
    """

    def __init__(self, on_finding: Callable[[Finding], None] | None = None, *, from_the_first: bool = False) -> None:
        """With `from_the_first`, every producer is expected to begin with number 0: for consumers that read all."""
        self._on_finding = on_finding
        self._from_the_first = from_the_first
        self._streams: dict[MessageQueue, dict[str, _Stream]] = {}
        self._recent: OrderedDict[str, None] = OrderedDict()
        #: The latest findings, and how many there were of each kind.
        self.findings: deque[Finding] = deque(maxlen=MAX_FINDINGS)
        self.counts: Counter[Problem] = Counter()
        #: Messages that were checked, and those without a stamp.
        self.checked = 0
        self.unstamped = 0

    def before_consume(self, context: ConsumeContext) -> None:
        for message in context.messages:
            self.check(message)

    def queues_changed(self, topic: str, queues: Sequence[MessageQueue]) -> None:
        """A queue listener: what others read meanwhile is no gap when a queue comes back."""
        kept = set(queues)
        for queue in list(self._streams):
            # On the wire a topic may stand behind its namespace.
            if topic in (queue.topic, queue.topic.rpartition("%")[2]) and queue not in kept:
                del self._streams[queue]

    def missing(self) -> dict[tuple[str, MessageQueue], list[int]]:
        """The numbers that have not come (yet), by producer and queue: what was lost, when all have been read."""
        return {
            (producer, queue): sorted(stream.missing)
            for queue, streams in self._streams.items()
            for producer, stream in streams.items()
            if stream.missing
        }

    def check(self, message: ReceivedMessage) -> list[Finding]:
        """Look at one message; what is wrong with it."""
        if message.reconsume_times or message.queue.topic.startswith(names.RETRY_PREFIX):
            return []
        producer, sequence = message.properties.get(PRODUCER), _number(message.properties.get(SEQUENCE))
        if producer is None or sequence is None:
            self.unstamped += 1
            return []
        self.checked += 1
        queue = message.queue
        streams = self._streams.setdefault(queue, {})
        stream = streams.get(producer)
        if stream is None:
            stream = streams[producer] = _Stream(0 if self._from_the_first else sequence)
        void = _Ranges(message.properties.get(VOID, ""))
        if void.ranges:
            stream.add_void(void)
        found = self._compare(stream, sequence, void, message, producer)
        for each in found:
            self._report(each)
        return found

    def _compare(
        self, stream: _Stream, sequence: int, void: _Ranges, message: ReceivedMessage, producer: str
    ) -> list[Finding]:
        def finding(problem: Problem, missing: tuple[int, int] | None = None) -> Finding:
            before = stream.last_id if missing else None
            return Finding(
                problem, producer, message.queue, message.queue_offset, message.message_id, sequence, missing, before
            )

        is_known = self._seen(message.message_id)
        if sequence < stream.expected:
            if sequence in stream.missing:
                stream.missing.remove(sequence)
                return [finding(Problem.DISORDER)]
            is_late = sequence in stream.void and not is_known
            return [finding(Problem.DISORDER if is_late else Problem.REPEAT)]
        gaps = void.between(stream.expected, sequence)
        found = [finding(Problem.GAP, gap) for gap in gaps]
        for first, last in gaps:
            stream.add_missing(first, last)
        stream.expected, stream.last_id = sequence + 1, message.message_id
        if is_known:
            # An attempt that seemed to have failed was stored, and so was the next one.
            found.append(finding(Problem.REPEAT))
        return found

    def _seen(self, message_id: str) -> bool:
        """Whether the id came lately; it has from now on."""
        if message_id in self._recent:
            return True
        self._recent[message_id] = None
        if len(self._recent) > RECENT_IDS:
            self._recent.popitem(last=False)
        return False

    def _report(self, finding: Finding) -> None:
        self.counts[finding.problem] += 1
        self.findings.append(finding)
        log.warning("%s", finding)
        if self._on_finding is not None:
            self._on_finding(finding)


def _number(text: str | None) -> int | None:
    """A number of a stamp; None for what is none: a stamp comes from outside."""
    return int(text) if text and len(text) <= MAX_DIGITS and text.isascii() and text.isdigit() else None
