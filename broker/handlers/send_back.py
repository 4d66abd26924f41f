"""CONSUMER_SEND_MSG_BACK (36): a consumer failed and gives a message back.

The message is read from the log, and a copy goes to the retry topic of the group, by way of a delay level; or to the
dead letters after the last try. Mirrors `consumerSendMsgBack` of RocketMQ's AbstractSendMessageProcessor.
"""

import random
from collections.abc import Callable

from cometmq.broker.handlers.row import Row
from cometmq.broker.remarks import no_group
from cometmq.broker.retry import dead_letter, max_times, retry_delay
from cometmq.broker.state import BrokerState
from cometmq.broker.store.commit_log import Range
from cometmq.broker.store.message import Message, PutStatus
from cometmq.broker.store.tickets import Ticket
from cometmq.broker.topics import PERM_WRITE
from cometmq.protocol import names
from cometmq.protocol import properties as props
from cometmq.protocol.bodies.groups import SubscriptionGroupConfig
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import RecordError
from cometmq.protocol.record import Record, decode_record
from cometmq.protocol.requests.send import SendMessageBack
from cometmq.remoting.dispatch import LATER, Permission, Request, Response, Result

#: Topics of consumers in a unit have this flag.
UNIT_SUB = 2


def rows(state: BrokerState) -> list[Row]:
    requests = SendBackRequests(state)
    return [(RequestCode.CONSUMER_SEND_MSG_BACK, requests.send_back, Permission("Sub", "Group", "group"))]


class SendBackRequests:
    """The handler. `choose` picks a queue of the retry topic."""

    def __init__(self, state: BrokerState, choose: Callable[[int], int] = random.randrange) -> None:
        self._state = state
        self._choose = choose

    def send_back(self, request: Request[SendMessageBack]) -> Result:
        state, header = self._state, request.header
        config = state.config
        if not config.is_master:
            return _failed(f"no master available along with {config.broker_ip1}")
        group = state.groups.find(header.group)
        if group is None:
            return Response(int(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST), remark=no_group(header.group))
        if not config.is_writable:
            return _forbidden(f"the broker[{config.broker_ip1}] sending message is forbidden")
        if group.retry_queue_nums <= 0:
            return Response()
        topic = state.topics.create_internal(
            names.retry_topic(header.group), group.retry_queue_nums, sys_flag=UNIT_SUB if header.unit_mode else 0
        )
        if not topic.perm & PERM_WRITE:
            return _forbidden(f"the topic[{topic.topic_name}] sending message is forbidden")
        found = state.store.message_at(header.offset)
        if found is None:
            return _failed(f"look message by offset failed, {header.offset}")
        if found.hot:
            with found:
                self._put_back(request, group, found.buffers()[0])
        else:
            self._read(request, group, found)
        return LATER

    def _read(self, request: Request[SendMessageBack], group: SubscriptionGroupConfig, found: Range) -> None:
        def done(data: bytes | None, error: Exception | None) -> None:
            found.release()
            if data is None:
                request.reply(_failed(f"look message by offset failed, {request.header.offset}: {error}"))
            else:
                self._put_back(request, group, data)

        self._state.runner.in_thread(found.read, done, lane="read")

    def _put_back(
        self, request: Request[SendMessageBack], group: SubscriptionGroupConfig, data: bytes | memoryview
    ) -> None:
        state, header = self._state, request.header
        try:
            record = decode_record(data, check_crc=False)
        except RecordError as error:
            request.reply(_failed(f"look message by offset failed, {header.offset}: {error}"))
            return
        is_dead = record.reconsume_times >= max_times(group, header, request.version) or header.delay_level < 0
        if is_dead:
            topic, queue_id, level = dead_letter(state, header.group).topic, 0, 0
        else:
            topic, queue_id = names.retry_topic(header.group), self._choose(group.retry_queue_nums)
            level = retry_delay(header.delay_level, record.reconsume_times)
        first_topic = self._first_topic(record)

        def done(ticket: Ticket) -> None:
            if ticket.status is not PutStatus.PUT_OK:
                assert ticket.status is not None
                request.reply(_failed(f"{ticket.status.value} {ticket.remark}".rstrip()))
                return
            state.stats.send_back(header.group, first_topic)
            if is_dead:
                state.stats.dlq(header.group, first_topic)
            request.reply(Response())

        state.store.put(given_back(record, topic, queue_id, level), done)

    @staticmethod
    def _first_topic(record: Record) -> str:
        known = props.find(record.properties, b"RETRY_TOPIC")
        return record.topic if known is None else known.decode("utf-8", "replace")


def given_back(record: Record, topic: str, queue_id: int, level: int) -> Message:
    """The copy of a message for its next try, or for the dead letters."""
    pairs = record.property_map()
    pairs.setdefault(props.RETRY_TOPIC, record.topic)
    pairs[props.WAIT] = "false"
    pairs[props.DELAY] = str(level)
    pairs.setdefault(props.ORIGIN_MESSAGE_ID, record.message_id)
    # A record sealed by a checksum gets a new one; what a consumer keeps in memory is not stored.
    pairs.pop(props.CRC32, None)
    return Message(
        topic,
        queue_id,
        record.body,
        props.format_properties(props.in_java_order(pairs)).encode("utf-8", "replace"),
        record.flag,
        record.sys_flag,
        record.born_timestamp,
        record.born_host,
        reconsume_times=record.reconsume_times + 1,
        prepared_transaction_offset=0,
    )


def _failed(remark: str) -> Response:
    return Response(int(ResponseCode.SYSTEM_ERROR), remark=remark)


def _forbidden(remark: str) -> Response:
    return Response(int(ResponseCode.NO_PERMISSION), remark=remark)
