"""The dispatchers that every store has: consume queues first, then the index.

A queue must have a message before anybody hears of it; that is why the order matters. RocketMQ's
CommitLogDispatcherBuildConsumeQueue, CommitLogDispatcherBuildIndex and MultiDispatch.
"""

from collections.abc import Callable, Sequence

from cometmq.broker.store.consume_queue import UNIT, ConsumeQueue
from cometmq.broker.store.consume_queues import AnyQueue, ConsumeQueues
from cometmq.broker.store.dispatch_request import DispatchRequest
from cometmq.broker.store.index import Index
from cometmq.broker.store.light_queues import light_targets
from cometmq.broker.store.turn import Run, Turn
from cometmq.protocol import sysflag

_pack = UNIT.pack


class FillQueues:
    """Gives each message its unit, and light message queues theirs."""

    def __init__(self, queues: ConsumeQueues, *, multi_dispatch: bool = False) -> None:
        self._queues = queues
        self._multi_dispatch = multi_dispatch
        #: Computes the filter map of a record, for queues with an extension.
        self.bit_map_of: Callable[[DispatchRequest], bytes | None] | None = None

    def dispatch(self, requests: Sequence[DispatchRequest]) -> None:
        if isinstance(requests, Turn) and requests.plain:
            for each in requests.runs:
                self._append_units(each, requests)
        else:
            self._append_all(requests)
        if self._multi_dispatch:
            for request in requests:
                if request.properties.rfind(b"INNER_MULTI_DISPATCH\x01") >= 0:
                    self._multi(request)
        self._queues.write_out()

    def _append_units(self, run: Run, requests: Sequence[DispatchRequest]) -> None:
        """Units that the put has made already. Nearly always they are simply the next ones of their queue."""
        topic, queue_id, queue_offset, physical_offset, units = run
        queue = self._queues.queue(topic, queue_id)
        if not isinstance(queue, ConsumeQueue) or not queue.append_run(queue_offset, physical_offset, units, run.end):
            for request in requests:
                if request.queue_id == queue_id and request.topic == topic:
                    self._append_one(request)

    def _append_all(self, requests: Sequence[DispatchRequest]) -> None:
        runs: dict[tuple[str, int], list[DispatchRequest]] = {}
        run: list[DispatchRequest] = []
        topic, queue_id = "", -1
        for request in requests:
            # Half and rollback records of the old kind are in no queue.
            if request.sys_flag & 0x4:
                continue
            if request.queue_id != queue_id or request.topic != topic:
                topic, queue_id = request.topic, request.queue_id
                key = (topic, queue_id)
                run = runs.get(key) or runs.setdefault(key, [])
            run.append(request)
        for key, run in runs.items():
            self._append_run(self._queues.queue(*key), run)

    def _append_run(self, queue: AnyQueue, run: list[DispatchRequest]) -> None:
        """Nearly always the messages of a turn are simply the next ones of their queue. Budget: 0.5 us a message."""
        first, last = run[0], run[-1]
        if isinstance(queue, ConsumeQueue) and last.queue_offset - first.queue_offset == len(run) - 1:
            units = b"".join([_pack(each.physical_offset, each.size, each.tags_code) for each in run])
            end = last.physical_offset + last.size
            if queue.append_run(first.queue_offset, first.physical_offset, units, end):
                return
        for request in run:
            self._append_one(request)

    def _append_one(self, request: DispatchRequest) -> None:
        bit_map_of = self.bit_map_of
        self._queues.append(
            request.topic,
            request.queue_id,
            request.queue_offset,
            request.physical_offset,
            request.size,
            request.tags_code,
            request.store_timestamp,
            batch_count=request.batch_size,
            bit_map=None if bit_map_of is None else bit_map_of(request),
        )

    def _multi(self, request: DispatchRequest) -> None:
        for name, offset in light_targets(request.properties):
            self._queues.append(
                name, 0, offset, request.physical_offset, request.size, request.tags_code, extended=False
            )


class FillIndex:
    """Enters unique key and keys of each message into the index."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def dispatch(self, requests: Sequence[DispatchRequest]) -> None:
        index = self._index
        first = requests.first_offset if isinstance(requests, Turn) else requests[0].physical_offset
        if first <= index.end_physical:
            index.put_turn(
                [
                    (each.topic, each.keys, each.unique_key, each.physical_offset, each.store_timestamp)
                    for each in requests
                    if each.sys_flag & 0xC != sysflag.TRANSACTION_ROLLBACK
                ]
            )
            return
        if isinstance(requests, Turn) and requests.plain:
            keys = requests.key_names
            index.put_new(requests.key_topics, keys, requests.key_offsets, [requests.time] * len(keys))
            return
        # New records, as nearly always: columns at once.
        topics: list[str] = []
        names: list[bytes] = []
        offsets: list[int] = []
        times: list[int] = []
        for request in requests:
            if request.sys_flag & 0xC == sysflag.TRANSACTION_ROLLBACK:
                continue
            if request.unique_key:
                topics.append(request.topic)
                names.append(request.unique_key)
                offsets.append(request.physical_offset)
                times.append(request.store_timestamp)
            if request.keys:
                for key in request.keys.split(b" "):
                    if key:
                        topics.append(request.topic)
                        names.append(key)
                        offsets.append(request.physical_offset)
                        times.append(request.store_timestamp)
        index.put_new(topics, names, offsets, times)
