"""Sends: SEND_MESSAGE (10), its short form (310), and batches (320).

`send` is the hot path: a plain message or batch for a topic that was checked before. Everything else, and every
refusal, takes the careful way, check by check in RocketMQ's order. What a stored text looks like is in `stamps`, what
becomes of the end of a put in `put_result`, when the broker is too busy in `overload`. Mirrors SendMessageProcessor.
"""

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from cometmq.broker.handlers.put_result import STORED, refusal_of
from cometmq.broker.handlers.row import Row
from cometmq.broker.handlers.send_lane import Known, SendLane
from cometmq.broker.remarks import no_topic
from cometmq.broker.retry import DeadLetter, redirect_retry
from cometmq.broker.stamps import Stamped, Stamps, StampShape
from cometmq.broker.state import BrokerState
from cometmq.broker.store.gather import SPECIAL
from cometmq.broker.store.message import Message, PutStatus, waits_for_flush
from cometmq.broker.store.text_shape import Facts
from cometmq.broker.store.tickets import Ticket
from cometmq.protocol import binary_header, json_header, names, sysflag
from cometmq.protocol import properties as props
from cometmq.protocol.batch import decode_batch
from cometmq.protocol.bodies.registration import TopicConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import RecordError
from cometmq.protocol.message_id import UniqueKeyGenerator, encode_message_id, pack_host
from cometmq.protocol.requests.send import SendMessage, SendMessageAnswer, SendMessageRefusal
from cometmq.remoting.dispatch import LATER, Outcome, Permission, Request, Response, Result

if TYPE_CHECKING:
    from cometmq.broker.config import BrokerConfig
    from cometmq.remoting.connection import Connection

log = logging.getLogger(__name__)

_PUT_OK: Final = PutStatus.PUT_OK
_BORN: Final = "born_host"
_COMPACTION: Final = ("cleanup.policy", "COMPACTION")
_MULTI_TAG: Final = "MULTI_TAG"
#: What a dead letter's delay says, so that the store does not delay it again.
_NO_DELAY: Final = "-1"


class _Target:
    """A topic that was checked, and what its plain messages need."""

    __slots__ = ("config", "needles", "queues", "shapes", "sys_flag", "takes_apart")

    def __init__(self, config: TopicConfig, needles: tuple[bytes, ...], *, takes_apart: bool) -> None:
        self.config = config
        #: Names that none of the shapes has in it.
        self.needles = needles
        self.queues = max(config.write_queue_nums, config.read_queue_nums)
        #: What the topic adds to the flag of its messages.
        self.sys_flag = sysflag.MULTI_TAGS if config.topic_filter_type == _MULTI_TAG else 0
        self.shapes: list[StampShape] = []
        #: Whether batches are stored message by message.
        self.takes_apart = takes_apart


class _Prefixes(dict[bytes, str]):
    """Packed host -> the half of a message id that names it."""

    def __missing__(self, host: bytes) -> str:
        self[host] = prefix = encode_message_id(host, 0)[:-16]
        return prefix


class Refused(Exception):
    """A check says no; code and remark say why."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = int(code)
        self.remark = remark


class _FirstOfTopic(Request[SendMessage]):
    """A request that makes a topic: who gets its answer may ask a nameserver for the topic at once."""

    answer: "asyncio.Future[Result]" = msgspec.field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @classmethod
    def of(cls, request: Request[SendMessage]) -> "_FirstOfTopic":
        return cls(*(getattr(request, name) for name in Request.__struct_fields__))

    def reply(self, response: Response | Literal[Outcome.NO_ANSWER]) -> None:
        if not self.answer.done():
            self.answer.set_result(response)

    async def answer_after(self, announcement: Awaitable[None]) -> Result:
        """The answer to the request, when the nameservers know the topic."""
        await announcement
        return await self.answer


class SendRequests:
    """The handlers. Mutable state: topics that were checked; what the configuration says is replaced as a whole."""

    def __init__(self, state: BrokerState, *, randrange: Callable[[int], int] = random.randrange) -> None:
        self._state = state
        self._randrange = randrange
        self._put = state.store.put
        self._put_known = state.store.puts.put_known
        self._put_batch = state.store.puts.put_batch
        self._sent = self._sent_all  # one object, so that the store knows it again
        #: The first half of message ids, by the host that they name.
        self._prefixes = _Prefixes()
        self._stats = state.stats
        self._overload = state.overload
        self._lane = state.overload.sends
        self._topic = state.topics.get
        #: Plug-ins see answers as values, so there are no ready-made ones.
        self._watched = bool(state.hooks.hooks)
        self._new_key = UniqueKeyGenerator("127.0.0.1", os.getpid(), id(self), clock=state.clock.wall)
        self._targets: dict[str, _Target] = {}
        self.lane: SendLane | None = None
        if not self._watched:
            self.lane = SendLane(
                state, usual=self._sent, end_one=self._answer_single, id_prefix=self._prefixes.__getitem__
            )
        self.configure(state.config)
        state.on_config.append(self.configure)

    def configure(self, config: "BrokerConfig") -> None:
        """Takes over what the configuration says. Topics are checked anew: brokerPermission may have changed."""
        self._targets.clear()
        self._stamps = Stamps(config.region_id, config.trace_on, config.broker_cluster_name, self._new_key)
        self._refusal = SendMessageRefusal(trace_on=config.trace_on, msg_region=config.region_id)
        fixed: dict[str, str | bool | None] = {
            "batch_uniq_id": None,
            "recall_handle": None,
            "trace_on": config.trace_on,
            "msg_region": config.region_id,
        }
        #: Ready-made answers by the form of the header; the third form has none.
        self._templates = (
            json_header.response_template(SendMessageAnswer, plain=("msg_id",), **fixed),
            binary_header.response_template(SendMessageAnswer, **fixed),
        )
        if self.lane is not None:
            self.lane.configure(config.store.max_message_size, **fixed)

    # The hot path

    def send(self, request: Request[SendMessage]) -> Result | Awaitable[Result]:
        """One message, or a batch when the header says so; the code does not decide that."""
        header = request.header
        topic = header.topic
        overload = self._overload
        if request.received > self._lane.deadline or overload.open_sends >= overload.capacity:
            refusal = overload.look(self._lane, request)
            if refusal is not None:
                return refusal
        target = self._targets.get(topic)
        queue_id = header.queue_id
        text = header.properties
        if (
            target is None
            or text is None
            or target.config is not self._topic(topic)
            or not 0 <= queue_id < target.queues
            or (header.batch and not target.takes_apart)
            or header.sys_flag & sysflag.TRANSACTION_MASK
        ):
            return self._send_carefully(request)
        for shape in target.shapes:
            known = shape.stamp(text)
            if known is not None:
                break
        else:
            return self._send_carefully(request)
        stored, unique, facts = known
        message = Message(
            topic,
            queue_id,
            request.body or None,
            stored,
            header.flag,
            header.sys_flag | target.sys_flag,
            header.born_timestamp,
            request.connection.attributes.get(_BORN) or born_host(request),
            None,
            header.reconsume_times,
        )
        if header.batch:
            self._put_batch(message, None, self._sent, (request, unique))
        else:
            if request.kind == 0 and self.lane is not None:
                self._learn(request, target, stored, unique, facts)
            self._put_known(message, facts, target.needles, self._sent, (request, unique))
        overload.open_sends += 1
        return LATER

    def _sent_all(self, tickets: list[Ticket]) -> None:
        """Puts have ended: their answers, connection by connection as they come. Hot as well. Budget: 1.2 us each."""
        self._overload.open_sends -= len(tickets)
        count, prefix_of = self._stats.put, self._prefixes.__getitem__
        json_answer, binary_answer = self._templates
        fast = not self._watched
        connection: Connection | None = None
        frames: list[bytes] = []
        settled = 0
        for ticket in tickets:
            request, unique = ticket.context
            header = request.header
            queue_id = header.queue_id
            try:
                if ticket.status is not _PUT_OK or request.kind > 1 or not fast:
                    self._answer(request, header.topic, queue_id, unique, None, ticket)
                    continue
                command = request.command
                offset = ticket.physical_offset
                if request.connection is not connection:
                    if connection is not None:
                        connection.send_answers(frames, settled)
                    connection, frames, settled = request.connection, [], 0
                if not command.flag & 2:
                    answer = binary_answer if request.kind else json_answer
                    if ticket.batch:
                        message_id = ticket.message_id
                    else:
                        message_id = f"{prefix_of(ticket.store_host)}{offset:016X}"
                    frames.append(answer(command.opaque, message_id, queue_id, ticket.queue_offset, unique))
                request.state = 2
                settled += 1
                count(header.topic, queue_id, ticket.count, ticket.end_offset - offset)
            except Exception as error:  # one that cannot be answered must not cost the others their answers
                log.exception("the answer to %s failed", request)
                if not request.is_answered:
                    remark = f"{type(error).__name__}: {error}"
                    request.reply(Response(int(ResponseCode.SYSTEM_ERROR), self._refusal, remark=remark))
        if connection is not None:
            connection.send_answers(frames, settled)

    def _learn(self, request: Request[SendMessage], target: _Target, stored: bytes, unique: str, facts: Facts) -> None:
        """The next requests of this kind may take the lane."""
        memory = request.connection.lane_memory
        if self.lane is None or (memory is not None and memory.is_full) or request.header.sys_flag & SPECIAL:
            return
        born_host(request)
        code, keys, _ = facts
        self.lane.learn(
            Known(
                request,
                target.config,
                target.queues,
                target.needles,
                target.sys_flag,
                code,
                unique,
                (keys or b"").decode("utf-8", "replace"),
                stored,
                waits_for_flush(stored),
            )
        )

    # The careful way

    def _send_carefully(self, request: Request[SendMessage]) -> Result | Awaitable[Result]:
        is_new = self._state.topics.get(request.header.topic) is None
        try:
            target = self.check(request)
        except Refused as refused:
            return Response(refused.code, self._refusal, remark=refused.remark)
        if is_new and (announcement := self._state.announcement()) is not None:
            # The first message of a topic is put at once, before those behind it on the same connection.
            first = _FirstOfTopic.of(request)
            result = self._take_any(first, target)
            return first.answer_after(announcement) if result is LATER else result
        return self._take_any(request, target)

    def _take_any(self, request: Request[SendMessage], target: _Target) -> Result:
        try:
            if request.header.batch:
                self._take_batch(request, target)
            else:
                self._take(request, target)
        except Refused as refused:
            return Response(refused.code, self._refusal, remark=refused.remark)
        return LATER

    def check(self, request: Request[SendMessage]) -> _Target:
        """Checks 5 to 10 of a send, which replies need too: the topic, made if need be."""
        header = request.header
        topic = header.topic
        state = self._state
        config = state.config
        start = config.start_accept_send_request_time_stamp
        if state.clock.wall() < start:
            until = state.clock.local(start)
            text = f"{until:%Y-%m-%d %H:%M:%S},{start % 1000:03d}"
            raise Refused(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {text}")
        known = state.topics.get(topic)
        if not config.is_writable and known is not None and known.order:
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{config.broker_ip1}] sending message is forbidden")
        try:
            names.validate_topic(topic)
        except names.InvalidName as error:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(error)) from None
        if topic in names.SEND_FORBIDDEN_TOPICS:
            raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{topic}] is forbidden.")
        if known is None:
            known = self._create(request)
        target = self._targets.get(topic)
        needles = state.store.puts.needles
        if target is None or target.config is not known or target.needles is not needles:
            target = _Target(known, needles, takes_apart=self._takes_apart(topic))
            if not topic.startswith(names.RETRY_PREFIX) and not _is_compaction(known):
                self._targets[topic] = target
        if header.queue_id >= target.queues:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{header.queue_id}] is illegal, {describe(known)} Producer: {request.connection}",
            )
        return target

    def _takes_apart(self, topic: str) -> bool:
        """Whether batches for a topic are stored message by message; `_take_batch` sees to all others."""
        is_usual = len(topic) <= names.MAX_TOPIC_LENGTH and not topic.startswith(names.RETRY_PREFIX)
        return is_usual and not self._state.topics.is_batch(topic)

    def _create(self, request: Request[SendMessage]) -> TopicConfig:
        header = request.header
        topics = self._state.topics
        log.warning("the topic %s does not exist, producer: %s", header.topic, request.connection)
        created: TopicConfig | None = topics.create_for_send(
            header.topic, header.default_topic, header.default_topic_queue_nums, unit_mode=header.unit_mode
        )
        if created is None and header.topic.startswith(names.RETRY_PREFIX):
            created = topics.create_internal(header.topic, 1, sys_flag=_UNIT_SUB if header.unit_mode else 0)
        if created is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, no_topic(header.topic))
        return created

    def queue(self, header: SendMessage, target: _Target) -> int:
        """The queue that was asked for, or any that may be written."""
        if header.queue_id >= 0:
            return header.queue_id
        if target.config.write_queue_nums <= 0:
            remark = f"request queueId[{header.queue_id}] is illegal, {describe(target.config)} has no write queue"
            raise Refused(ResponseCode.INVALID_PARAMETER, remark)
        return self._randrange(target.config.write_queue_nums)

    def _take(self, request: Request[SendMessage], target: _Target) -> None:
        """Puts one message: retries, keys, delays and whatever else a plain message does not have."""
        header = request.header
        queue_id = self.queue(header, target)
        topic, stored_queue, sys_flag = header.topic, queue_id, target.sys_flag
        redirect = redirect_retry(self._state, topic, header.reconsume_times, header, request.version)
        if isinstance(redirect, Response):
            raise Refused(ResponseCode(redirect.code), redirect.remark or "")
        stamped = self._stamps.stamp(header.properties or "", target.shapes, needles=target.needles)
        if isinstance(redirect, DeadLetter):
            topic, stored_queue, sys_flag = redirect.topic, 0, 0
            stamped = self._without_delay(header)
        if _is_compaction(target.config) and not (props.find(stamped.text, b"KEYS") or b"").strip():
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
        self._refuse_half(header, stamped)
        ticket = self._put(
            Message(
                topic,
                stored_queue,
                request.body or None,
                stamped.text,
                header.flag,
                header.sys_flag | sys_flag,
                header.born_timestamp,
                born_host(request),
                None,
                header.reconsume_times,
            )
        )
        # Where it is stored may be another topic: a delayed message counts there.
        counted = topic if ticket.message is None else ticket.message.topic
        ticket.done = partial(self._ended, request, counted, queue_id, stamped.unique, None)
        self._overload.open_sends += 1

    def _without_delay(self, header: SendMessage) -> Stamped:
        """The properties of a dead letter: it is not delayed, whatever the text says."""
        pairs = props.parse_properties(header.properties or "")
        pairs.pop(props.POP_CK, None)
        pairs[props.DELAY] = _NO_DELAY
        unique = self._stamps.add(pairs)
        text = props.format_properties(props.in_java_order(pairs)).encode("utf-8", "replace")
        return Stamped(text, unique, pairs)

    def _refuse_half(self, header: SendMessage, stamped: Stamped) -> None:
        """Half messages would be stored where nobody finds them again; so they are refused until there is a service."""
        pairs = stamped.pairs or {}
        half = pairs.get(props.TRAN_MSG, "").lower() == "true"
        if half and header.reconsume_times > 0 and _number(pairs.get(props.DELAY)) > 0:
            half = False  # clients before 4.6.1 give a consumed one back like this
        state = header.sys_flag & sysflag.TRANSACTION_MASK
        if not half and state not in (sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK):
            return
        config = self._state.config
        if config.reject_transaction_message:
            remark = f"the broker[{config.broker_ip1}] sending transaction message is forbidden"
        else:
            remark = f"the broker[{config.broker_ip1}] does not have transactions in this version"
        raise Refused(ResponseCode.NO_PERMISSION, remark)

    # Batches

    def _take_batch(self, request: Request[SendMessage], target: _Target) -> None:
        header = request.header
        topic = header.topic
        queue_id = self.queue(header, target)
        if len(topic) > names.MAX_TOPIC_LENGTH:
            remark = f"message topic length too long {len(topic)}"
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, remark)
        if topic.startswith(names.RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"batch request does not support retry group {topic}")
        stamped = self._stamps.stamp(header.properties or "", target.shapes, need_key=False, needles=target.needles)
        sys_flag = header.sys_flag | target.sys_flag
        text = stamped.text
        inner = bool(stamped.unique) and self._state.topics.is_batch(topic)
        if inner:
            sys_flag |= sysflag.NEED_UNWRAP | sysflag.INNER_BATCH
            text = self._inner_text(request, text)
        message = Message(
            topic,
            queue_id,
            request.body or None,
            text,
            header.flag,
            sys_flag,
            header.born_timestamp,
            born_host(request),
            None,
            header.reconsume_times,
        )
        put = self._put if inner else self._put_batch
        put(message, partial(self._ended, request, topic, queue_id, stamped.unique, stamped.unique if inner else None))
        self._overload.open_sends += 1

    def _inner_text(self, request: Request[SendMessage], text: bytes) -> bytes:
        """The properties of a batch that is stored as one record: they say how many messages it holds."""
        try:
            count = sum(1 for _ in decode_batch(request.body))
        except RecordError as error:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the batch cannot be read: {error}") from None
        pairs = props.decode_properties(text)
        pairs[props.INNER_NUM] = str(count)
        return props.format_properties(props.in_java_order(pairs)).encode("utf-8", "replace")

    # Answers

    def _ended(
        self,
        request: Request[SendMessage],
        topic: str,
        queue_id: int,
        unique: str,
        batch_unique: str | None,
        ticket: Ticket,
    ) -> None:
        """The put of a message that was taken with care has ended."""
        self._overload.open_sends -= 1
        self._answer(request, topic, queue_id, unique, batch_unique, ticket)

    def _answer_single(
        self, request: Request[SendMessage], topic: str, queue_id: int, unique: str, ticket: Ticket
    ) -> None:
        self._answer(request, topic, queue_id, unique, None, ticket)

    def _answer(
        self,
        request: Request[SendMessage],
        topic: str,
        queue_id: int,
        unique: str,
        batch_unique: str | None,
        ticket: Ticket,
    ) -> None:
        """Any answer to a put."""
        status = ticket.status
        code = None if status is None else STORED.get(status)
        if code is None:
            self._stats.put_failed()
            number, remark = refusal_of(ticket, self._state.store, len(request.body))
            request.reply(Response(number, self._refusal, remark=remark))
            return
        self._stats.put(topic, queue_id, ticket.count, ticket.end_offset - ticket.physical_offset)
        header = SendMessageAnswer(
            msg_id=ticket.message_id,
            queue_id=queue_id,
            queue_offset=ticket.queue_offset,
            transaction_id=unique or None,
            batch_uniq_id=batch_unique,
            trace_on=self._refusal.trace_on,
            msg_region=self._refusal.msg_region,
        )
        request.reply(Response(code, header))


_UNIT_SUB: Final = 2


def born_host(request: Request[SendMessage]) -> bytes:
    """The packed address of the sender; kept with its connection."""
    attributes = request.connection.attributes
    packed: bytes | None = attributes.get(_BORN)
    if packed is None:
        packed = attributes[_BORN] = pack_host(*request.connection.remote_address)
    return packed


def describe(topic: TopicConfig) -> str:
    """A topic as RocketMQ prints it."""
    perm = "".join(letter if topic.perm & bit else "-" for letter, bit in (("R", 4), ("W", 2), ("X", 1)))
    attributes = ", ".join(f"{key}={value}" for key, value in topic.attributes.items())
    return (
        f"TopicConfig [topicName={topic.topic_name}, readQueueNums={topic.read_queue_nums},"
        f" writeQueueNums={topic.write_queue_nums}, perm={perm}, topicFilterType={topic.topic_filter_type},"
        f" topicSysFlag={topic.topic_sys_flag}, order={'true' if topic.order else 'false'},"
        f" attributes={{{attributes}}}]"
    )


def _is_compaction(topic: TopicConfig) -> bool:
    name, value = _COMPACTION
    return topic.attributes.get(name) == value


def _number(text: str | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0


def rows(state: BrokerState) -> list[Row]:
    """The rows of the handler table."""
    requests = SendRequests(state)
    state.send_lane = requests.lane
    permission = Permission("Pub", "Topic", "topic")
    return [
        (RequestCode.SEND_MESSAGE, requests.send, permission),
        (RequestCode.SEND_MESSAGE_V2, requests.send, permission),
        (RequestCode.SEND_BATCH_MESSAGE, requests.send, permission),
    ]
