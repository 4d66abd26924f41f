"""Whether the queues agree with the log when a store is opened, and what is done about those that do not.

The log is the truth about which messages there are. It is not believed blindly in one thing: a single record whose
queue offset does not fit between those before and after it has a flipped bit (no checksum covers it by default), and
its message keeps its place. Where recovery begins and ends is not known here.
"""

import logging
from collections.abc import Callable, Iterator

import msgspec

from cometmq.broker.store.commit_log import CommitLog
from cometmq.broker.store.consume_queue import ConsumeQueue
from cometmq.broker.store.consume_queues import AnyQueue, ConsumeQueues
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.light_queues import light_targets
from cometmq.broker.store.transforms import TopicKinds
from cometmq.protocol import names
from cometmq.protocol.errors import RecordError
from cometmq.protocol.record import decode_record

log = logging.getLogger(__name__)


class QueueBehind(Exception):
    """Is raised when a queue lacks messages that come before the scan; recovery catches it and begins earlier."""


class QueueAgreement:
    """Compares the queues of one store with its log."""

    def __init__(self, commit_log: CommitLog, queues: ConsumeQueues, topics: TopicKinds) -> None:
        self._log = commit_log
        self._queues = queues
        self._topics = topics

    # The ends of queues

    def check_ends(self, before_rebuild: Callable[[], None]) -> int:
        """After a clean exit the end of each queue was found by a search: ask the log whether it is right.

        Gives the end of the last record that all queues know of; -1 when one has to be built anew.
        """
        known = 1 << 63
        open_files = self._queues.upkeep.open_files
        kept = open_files.snapshot()
        for queue in self._queues:
            # Ten thousand queues shall not keep a file open each because they were looked at.
            open_files.close_but(kept)
            if self._agrees(queue):
                continue
            log.error("%s-%d does not agree with the log: it is filled again", queue.topic, queue.queue_id)
            before_rebuild()
            queue.recover(thorough=True)
            if not self._agrees(queue):
                queue.destroy()
            known = min(known, queue.max_physical)
        open_files.close_but(kept)
        return min(known, self._queues.max_physical)

    def _agrees(self, queue: AnyQueue) -> bool:
        """Whether the last message of a queue is what the log says."""
        last = queue.max_offset - 1
        unit = queue.unit(last) if last >= queue.min_offset else None
        if unit is None or unit[0] < self._log.min_offset:
            return True
        file = self._log.files.find(unit[0])
        if file is None:
            # Beyond the log: cut later.
            return True
        try:
            record = decode_record(file.view(), unit[0] - file.start, check_crc=False, read_body=False)
        except RecordError:
            return False
        if record.size != unit[1]:
            return False
        if queue.topic.startswith(names.LMQ_PREFIX) and record.topic != queue.topic:
            return (queue.topic, last) in light_targets(record.properties)
        offset = record.queue_offset
        # An inner batch holds several messages.
        right = offset <= last if queue.is_batch else offset == last
        return record.topic == queue.topic and record.queue_id == queue.queue_id and right

    def compare(self, seen: dict[tuple[bytes, int], int]) -> None:
        """After a clean exit nothing should be missing; but somebody may have removed or put back files.

        `seen` has the last queue offset of each queue among the records that were passed over.
        """
        for (raw, queue_id), last in seen.items():
            topic = raw.decode("utf-8", "replace")
            queue = self._queues.get(topic, queue_id)
            if queue is None or queue.next_offset == 0:
                # Deleted topics have no queues; only where the topic is known to be there has somebody lost them.
                if self._topics.exists(topic) is True:
                    raise QueueBehind(f"{topic}-{queue_id} has no queue")
            elif queue.next_offset <= last:
                raise QueueBehind(f"{topic}-{queue_id} ends at {queue.next_offset}, the log has message {last}")

    # Records on their way to the queues

    def in_step(self, requests: list[DispatchRequest], *, from_first: bool) -> Iterator[list[DispatchRequest]]:
        """The requests in parts, each to be dispatched before the next one is asked for.

        Queues that are not in step with the log are put in step between the parts. `from_first`: the scan began with
        the first record of the log, so that nothing that comes before can be missing.
        """
        requests = self._of_known_topics(requests)
        following: dict[tuple[str, int], int] = {}
        successors: list[int] | None = None
        first = 0
        for number, request in enumerate(requests):
            if request.sys_flag & 0x4:
                continue
            key = (request.topic, request.queue_id)
            offset = request.queue_offset
            expected = following.get(key)
            if expected == offset:
                # Nearly always.
                following[key] = offset + request.batch_size
                continue
            queue = self._queues.get(*key)
            if expected is None:
                if queue is None:
                    expected = 0
                elif request.physical_offset + request.size <= queue.max_physical:
                    continue
                else:
                    expected = queue.next_offset
            if offset != expected:
                if successors is None:
                    successors = _successors(requests)
                if _is_flipped(request, expected, successors[number], from_first):
                    log.error("the record at %d is message %d of %s-%d, it says %d",
                              request.physical_offset, expected, *key, offset)  # fmt: skip
                    requests[number] = msgspec.structs.replace(request, queue_offset=expected)
                    offset = expected
                elif offset > expected and not from_first:
                    raise QueueBehind(f"{request.topic}-{request.queue_id} ends at {expected}, the log has {offset}")
                else:
                    yield requests[first:number]
                    first = number
                    following.clear()
                    queue = queue or self._queues.get(*key)
                    if queue is not None and queue.next_offset:
                        self._renumber(queue, offset)
            following[key] = offset + request.batch_size
        yield requests[first:]

    def _of_known_topics(self, requests: list[DispatchRequest]) -> list[DispatchRequest]:
        exists = self._topics.exists
        gone = {topic for topic in {request.topic for request in requests} if exists(topic) is False}
        return [request for request in requests if request.topic not in gone] if gone else requests

    def _renumber(self, queue: AnyQueue, offset: int) -> None:
        """The log goes on with another offset than the queue: the log is right, its topic was made anew."""
        log.warning("%s-%d goes on with message %d", queue.topic, queue.queue_id, offset)
        if isinstance(queue, ConsumeQueue) and queue.min_offset < offset < queue.next_offset:
            queue.truncate_to(offset)
        else:
            queue.destroy()


def _successors(requests: list[DispatchRequest]) -> list[int]:
    """For each request the queue offset of the next one of its queue; -1 where there is none."""
    found = [-1] * len(requests)
    last: dict[tuple[str, int], int] = {}
    for number in range(len(requests) - 1, -1, -1):
        request = requests[number]
        if not request.sys_flag & 0x4:
            key = (request.topic, request.queue_id)
            found[number] = last.get(key, -1)
            last[key] = request.queue_offset
    return found


def _is_flipped(request: DispatchRequest, expected: int, successor: int, from_first: bool) -> bool:
    """Whether a record has a wrong queue offset, rather than its queue another numbering from here on.

    The next record of the queue tells: it goes on with the old numbers or with the new ones. Where there is none, a
    queue that begins anew begins with 0; and one that lacks messages is told by a scan from the first record.
    """
    if expected == 0:
        # The first record of its queue that the log still has.
        return False
    if successor >= 0:
        return successor == expected + request.batch_size
    return request.queue_offset != 0 and (from_first or request.queue_offset < expected)
