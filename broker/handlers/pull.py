"""PULL_MESSAGE and LITE_PULL_MESSAGE: messages of a queue as slices of the log, or patience until there are some.

What is in memory is answered at once with slices that nobody copies; what has to come from the disk is read in a
thread, so that a consumer that catches up keeps nobody waiting. A pull that finds nothing is held (`held_pulls`) and
executed again from here: with all checks, and without holding or committing a second time. The second half of
RocketMQ's PullMessageProcessor and its DefaultPullMessageResultHandler.

Budget: 40 us of CPU for a pull of 32 messages of 1 KiB, the socket included (bench/pull.py).
"""

import logging
from typing import TYPE_CHECKING, Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.handlers.pull_checks import (
    COMMIT_OFFSET,
    SUSPEND,
    Admitted,
    PullChecks,
    PullRefused,
)
from cometmq.broker.handlers.row import Row
from cometmq.broker.held_pulls import HeldPull
from cometmq.broker.store.reading import GetResult, GetStatus
from cometmq.protocol.bodies.groups import SubscriptionGroupConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import ProtocolError
from cometmq.protocol.requests.pull import PullMessage, PullMessageAnswer
from cometmq.remoting.dispatch import LATER, NO_ANSWER, Permission, Request, Response, Result

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

log = logging.getLogger(__name__)

#: The threads of cold reads.
LANE: Final = "read"
#: Slices that are shorter than this on the average are copied together: it is cheaper than carrying them (bytes).
SMALL_SLICE: Final = 8 * 1024

_FOUND: Final = int(ResponseCode.SUCCESS)
_NOT_FOUND: Final = int(ResponseCode.PULL_NOT_FOUND)
_RETRY: Final = int(ResponseCode.PULL_RETRY_IMMEDIATELY)
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)

#: What each result of a read is to a client. An empty queue is special: see `_code_of`.
_CODES: Final = {
    GetStatus.FOUND: _FOUND,
    GetStatus.NO_MATCHED_MESSAGE: _RETRY,
    GetStatus.MESSAGE_WAS_REMOVING: _RETRY,
    GetStatus.OFFSET_FOUND_NULL: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: _NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: _MOVED,
    GetStatus.OFFSET_TOO_SMALL: _MOVED,
    GetStatus.OFFSET_RESET: _MOVED,
}

_NO_STORE: Final = Response(int(ResponseCode.SYSTEM_ERROR), remark="store getMessage return null")
_TOO_MANY: Final = Response(
    int(ResponseCode.SYSTEM_BUSY), remark="[OVERLOAD]system busy, start flow control for a while: too many held pulls"
)


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = PullRequests(state)
    permission = Permission("Sub", "Topic", "topic")
    overload = state.overload
    return [
        (RequestCode.PULL_MESSAGE, overload.guard(overload.pulls, requests.pull), permission),
        (RequestCode.LITE_PULL_MESSAGE, overload.guard(overload.lite_pulls, requests.pull), permission),
    ]


class PullRequests:
    """Serves pulls. Its state is the broker's; of the settings it keeps what every pull asks for."""

    def __init__(self, state: "BrokerState") -> None:
        self._offsets = state.offsets
        self._stats = state.stats
        self._held = state.held_pulls
        self._runner = state.runner
        self._store = state.store
        self._monotonic = state.clock.monotonic
        self._checks = PullChecks(state)
        #: The smallest id among the living brokers of this name: not 0 when the master has gone, as replication knows.
        self.min_broker_id = 0
        self._configure(state.config)
        state.on_config.append(self._configure)
        self._held.execute = self.again

    def _configure(self, config: BrokerConfig) -> None:
        store = config.store
        # Nobody gets more than this; asking for it would only cost a longer look into the queue.
        self._most = max(store.max_transfer_count_on_message_in_memory, store.max_transfer_count_on_message_in_disk, 1)
        self._is_master = config.is_master
        self._is_replica = config.broker_id != 0 or not config.is_master
        self._redirects_moved = not config.is_master and not store.offset_check_in_slave
        self._slave_read = config.slave_read_enable
        self._uses_resets = config.use_server_side_reset_offset
        self._short_polling = None if config.long_polling_enable else config.short_polling_time_mills

    def pull(self, request: Request[PullMessage]) -> Result:
        """A pull that has just come."""
        return self._serve(request, first=True)

    def again(self, request: Request[PullMessage]) -> None:
        """A pull that was held. It is answered, whatever happens: nobody else would."""
        try:
            result = self._serve(request, first=False)
        except Exception as error:
            result = _failure(request, error)
        if result is not LATER:
            request.reply(result)

    def _serve(self, request: Request[PullMessage], *, first: bool) -> Result:
        try:
            admitted = self._checks.admit(request)
        except PullRefused as refusal:
            return refusal.response
        header = request.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        offsets = self._offsets
        reset = offsets.take_reset(group, topic, queue_id)
        if reset is not None and self._uses_resets:
            # What the client would commit by the way is from before the reset.
            offsets.pulled(group, topic, queue_id, reset)
            return self._answer(request, admitted, self._reset_to(header, reset), may_wait=False)
        found = self._store.get_message(
            group,
            topic,
            queue_id,
            header.queue_offset,
            min(header.max_msg_nums, self._most),
            header.max_msg_bytes,
            admitted.wanted,
        )
        if found is None:
            return _NO_STORE
        offsets.pulled(group, topic, queue_id, found.next_begin_offset)
        if first and header.sys_flag & COMMIT_OFFSET and header.commit_offset >= 0 and self._is_master:
            offsets.commit(group, topic, queue_id, header.commit_offset, request.connection)
        if found.ranges:
            self._stats.got(group, topic, queue_id, found.message_count, found.size)
        else:
            self._stats.got_miss()
        return self._answer(request, admitted, found, may_wait=first and header.sys_flag & SUSPEND != 0)

    def _reset_to(self, header: PullMessage, offset: int) -> GetResult:
        low = self._store.min_offset(header.topic, header.queue_id)
        high = self._store.max_offset(header.topic, header.queue_id)
        return GetResult(GetStatus.OFFSET_RESET, offset, low, high)

    # Waiting

    def _hold(self, request: Request[PullMessage], admitted: Admitted) -> Result:
        held = self._held
        if held.is_closed:
            # It would ask again at once, and again. The connection is about to close; that is its answer.
            return NO_ANSWER
        if held.is_full:
            return _TOO_MANY
        header = request.header
        patience = header.suspend_timeout_millis if self._short_polling is None else self._short_polling
        queue = (header.topic, header.queue_id)
        held.hold(HeldPull(request, queue, header.queue_offset, admitted.wanted), patience / 1000)
        return LATER

    # Answering

    def _answer(self, request: Request[PullMessage], admitted: Admitted, found: GetResult, *, may_wait: bool) -> Result:
        offset = request.header.queue_offset
        code = _CODES.get(found.status)
        if code is None:
            # An empty queue: whoever asks for its first message waits, whoever is elsewhere is sent back.
            code = _NOT_FOUND if offset == 0 else _MOVED
        suggested = self._suggested(admitted.group, found)
        if self._is_replica:
            code, suggested = self._as_replica(code, suggested, admitted.group, found)
        if code == _NOT_FOUND and may_wait and found.max_offset <= offset:
            return self._hold(request, admitted)
        answer = PullMessageAnswer(
            suggested,
            found.next_begin_offset,
            found.min_offset,
            found.max_offset,
            None,
            admitted.topic.topic_sys_flag,
            admitted.group.group_sys_flag,
        )
        if code != _FOUND:
            return Response(code, answer, remark=found.status.value)
        if not found.hot:
            self._read_cold(request, answer, found)
            return LATER
        slices = found.buffers()
        # The slices keep the map of the file until the last byte is sent; only its name on disk may go before.
        found.release()
        if len(slices) > 1 and found.size < SMALL_SLICE * len(slices):
            # Messages of other queues lie between them. The output would join small pieces anyway, one by one.
            return Response(_FOUND, answer, b"".join(slices))
        return Response(_FOUND, answer, slices)  # type: ignore[arg-type]

    def _suggested(self, group: SubscriptionGroupConfig, found: GetResult) -> int:
        """The broker to pull from next time."""
        if not self._slave_read:
            return 0
        return group.which_broker_when_consume_slowly if found.suggest_pulling_from_slave else group.broker_id

    def _as_replica(
        self, code: int, suggested: int, group: SubscriptionGroupConfig, found: GetResult
    ) -> tuple[int, int]:
        if code == _MOVED and self._redirects_moved:
            # The master may know better where the queue begins and ends.
            return _RETRY, group.broker_id
        if not found.suggest_pulling_from_slave and self.min_broker_id == 0:
            # The master is there: the client goes back to it, at once when it got nothing here.
            return (code if code == _FOUND else _RETRY), 0
        return code, suggested

    def _read_cold(self, request: Request[PullMessage], answer: PullMessageAnswer, found: GetResult) -> None:
        def read() -> bytes:
            # Who waited in vain behind slow reads and left must not make others wait.
            return b"" if request.connection.is_lost else found.read()

        header = request.header
        began = self._monotonic()

        def done(body: bytes | None, error: Exception | None) -> None:
            found.release()
            milliseconds = int((self._monotonic() - began) * 1000)
            self._stats.get_latency(header.consumer_group, header.topic, header.queue_id, milliseconds)
            if error is None:
                request.reply(Response(_FOUND, answer, body or b""))
            else:
                request.reply(_failure(request, error))

        self._runner.in_thread(read, done, lane=LANE)


def _failure(request: Request[PullMessage], error: Exception) -> Response:
    if isinstance(error, ProtocolError):
        return Response(error.code or int(ResponseCode.SYSTEM_ERROR), remark=str(error))
    log.error("%s failed", request, exc_info=error)
    return Response(int(ResponseCode.SYSTEM_ERROR), remark=f"{type(error).__name__}: {error}")
