"""Messages as users write and read them, and what a send gives back. Values only: nothing here talks to anybody.

A `Message` is checked when it is made; its property text is built once, when it is sent. A `ReceivedMessage` looks at
the record that came over the wire and takes apart only what is asked for. How it is settled belongs to its delivery
(`consumer.delivery`). RocketMQ's Message, MessageExt and SendResult.
"""

import enum
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Protocol

import msgspec

from cometmq.client.errors import InvalidMessage, RetryLater
from cometmq.client.queues import MessageQueue
from cometmq.protocol import properties as props
from cometmq.protocol.record import Record

log = logging.getLogger(__name__)


class SendStatus(enum.StrEnum):
    """How a message was stored. All but SEND_OK mean: stored here, but not yet as safely as was asked for."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


class Message(msgspec.Struct, frozen=True):
    """A message to send: `Message(b"paid", tag="paid", keys="o-1")`."""

    body: bytes
    tag: str | None = None
    keys: str | Sequence[str] | None = None
    properties: Mapping[str, str] | None = None
    flag: int = 0
    #: Messages of one key go to one queue, and so stay in order.
    sharding_key: str | None = None
    # At most one of these three.
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    delay_level: int | None = None
    #: Wait until the broker has the message as safe as it is configured to make it.
    wait_store_ok: bool = True
    buyer_id: str | None = None

    def __post_init__(self) -> None:
        check_body(self.body)
        if sum(value is not None for value in (self.delay, self.deliver_at, self.delay_level)) > 1:
            raise InvalidMessage("give one of delay, deliver_at and delay_level")
        if self.delay_level is not None and self.delay_level < 0:
            raise InvalidMessage(f"delay_level {self.delay_level} is negative")
        if self.deliver_at is not None and self.deliver_at.tzinfo is None:
            raise InvalidMessage("deliver_at has no time zone: use datetime.now(UTC) or .astimezone()")
        for name, value in (self.properties or {}).items():
            check_property(name, value)

    @property
    def delivery_time(self) -> datetime | None:
        """When it shall be delivered, if the user said so by a duration or an instant."""
        if self.delay is not None:
            return datetime.now(UTC) + self.delay
        return self.deliver_at

    def property_map(self) -> dict[str, str]:
        """All properties but those that depend on the broker (delays) and on the send (unique key)."""
        pairs = dict(self.properties) if self.properties else {}
        if self.tag:
            pairs[props.TAGS] = self.tag
        if self.keys:
            pairs[props.KEYS] = self.keys if isinstance(self.keys, str) else props.KEY_SEPARATOR.join(self.keys)
        return pairs | self.own_properties() | {props.WAIT: "true" if self.wait_store_ok else "false"}

    def own_properties(self) -> dict[str, str]:
        """The properties that stand for arguments which few messages have."""
        pairs = {}
        if self.sharding_key is not None:
            pairs[props.SHARDING_KEY] = self.sharding_key
        if self.buyer_id is not None:
            pairs[props.BUYER_ID] = self.buyer_id
        return pairs


def check_body(body: object) -> None:
    """Refuse a body that is no bytes, with words for the commonest slip."""
    if isinstance(body, str):
        raise TypeError('a body is bytes: encode the text, for example body.encode("utf-8")')
    if not isinstance(body, bytes):
        raise TypeError(f"a body is bytes, not {type(body).__name__}")


def check_property(name: object, value: object) -> None:
    """Refuse a property that no reader would see, or that would mean something else. Hot."""
    if not isinstance(name, str) or not isinstance(value, str):
        raise TypeError(f"names and values of properties are text: {name!r}: {value!r}")
    if not name or not value:
        raise InvalidMessage(f"property {name!r} has an empty name or value, which no reader would see")
    if "\x01" in name or "\x02" in name:
        raise InvalidMessage(f"property {name!r} holds one of the characters 0x01 and 0x02, which separate properties")
    if name in props.RESERVED or name.startswith(props.TRANSIENT_PREFIX):
        raise InvalidMessage(f"property {name!r} has a meaning of its own in RocketMQ: use the argument for it")
    if "\x01" in name or "\x02" in name or "\x01" in value or "\x02" in value:
        raise InvalidMessage(f"property {name!r} holds one of the separators 0x01 and 0x02")


class SendReceipt(msgspec.Struct, frozen=True, gc=False):
    """What the broker said about a message that it stored."""

    status: SendStatus
    #: The unique key that the producer gave it; of a batch, all of them separated by commas.
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str = "DefaultRegion"
    trace_on: bool = True
    recall_handle: str | None = None

    def __str__(self) -> str:
        return (
            f"{self.status} msgId={self.message_id}, offsetMsgId={self.offset_message_id}, "
            f"queue={self.queue.broker_name}/{self.queue.topic}/{self.queue.queue_id}, offset={self.queue_offset}"
        )


class Delivery(Protocol):
    """How a received message is settled: through the assignment that delivered it."""

    def settle(self, message: "ReceivedMessage") -> None:
        """It is done."""

    async def ack(self, message: "ReceivedMessage") -> None: ...

    async def retry(self, message: "ReceivedMessage", delay_level: int) -> None: ...

    def abandon(self, message: "ReceivedMessage") -> None:
        """Its processing was broken off: it is neither done nor failed, and nobody works on it."""

    async def reply(self, message: "ReceivedMessage", reply: Message) -> SendReceipt:
        """Answer it, if it is a request."""


class ReceivedMessage:
    """A message that came to a consumer. What its user may ask is here; `process`, `ack` and `retry` settle it."""

    __slots__ = ("_delivery", "_pairs", "_record", "queue", "reconsume_times", "topic")

    def __init__(
        self, record: Record, queue: MessageQueue, topic: str, delivery: Delivery, reconsume_times: int | None = None
    ) -> None:
        """`topic` is the one that was subscribed to: a retried message comes by the retry topic of its group."""
        self._record = record
        self._pairs: dict[str, str] | None = None
        self._delivery = delivery
        self.topic = topic
        #: Where it was read.
        self.queue = queue
        #: How often it was tried before.
        self.reconsume_times = record.reconsume_times if reconsume_times is None else reconsume_times

    # What it says

    @property
    def body(self) -> bytes:
        return self._record.body

    @property
    def properties(self) -> Mapping[str, str]:
        """All properties, those of users and those of RocketMQ."""
        if self._pairs is None:
            self._pairs = self._record.property_map()
        return self._pairs

    @property
    def tag(self) -> str | None:
        raw = props.find(self._record.properties, b"TAGS")
        return None if raw is None else raw.decode("utf-8", "replace")

    @property
    def keys(self) -> list[str]:
        return self.properties.get(props.KEYS, "").split()

    @property
    def sharding_key(self) -> str | None:
        return self.properties.get(props.SHARDING_KEY) or self.properties.get(props.SHARDING_KEY_GO)

    @property
    def flag(self) -> int:
        return self._record.flag

    # Where and when

    @property
    def queue_offset(self) -> int:
        return self._record.queue_offset

    @property
    def physical_offset(self) -> int:
        """Its place in the broker's commit log."""
        return self._record.physical_offset

    @property
    def message_id(self) -> str:
        """The unique key of its producer; the offset message id when it has none."""
        raw = props.find(self._record.properties, b"UNIQ_KEY")
        return self._record.message_id if raw is None else raw.decode("utf-8", "replace")

    @property
    def offset_message_id(self) -> str:
        return self._record.message_id

    @property
    def transaction_id(self) -> str | None:
        return self.properties.get(props.TRANSACTION_ID)

    @property
    def born_time(self) -> datetime:
        return datetime.fromtimestamp(self._record.born_timestamp / 1000, UTC)

    @property
    def stored_time(self) -> datetime:
        return datetime.fromtimestamp(self._record.store_timestamp / 1000, UTC)

    @property
    def born_host(self) -> tuple[str, int]:
        return self._record.born_address

    @property
    def store_host(self) -> tuple[str, int]:
        return self._record.store_address

    @property
    def record(self) -> Record:
        """Everything that came over the wire, for those who need it."""
        return self._record

    # Settling

    @property
    def delivery(self) -> Delivery:
        """Who delivered it, and settles it."""
        return self._delivery

    async def ack(self) -> None:
        """It is done: it does not come again."""
        await self._delivery.ack(self)

    async def retry(self, delay_level: int = 0) -> None:
        """It comes again, after the delay of the level; 0 leaves that to the broker, which waits longer each time."""
        await self._delivery.retry(self, delay_level)

    async def reply(self, body: bytes | Message, **options: Any) -> SendReceipt:
        """Answer a message that came by `producer.request`: a body with options of `Message`, or a `Message`."""
        return await self._delivery.reply(self, body if isinstance(body, Message) else Message(body, **options))

    def process(self, *, reraise: bool = False) -> "Processing":
        """`async with message.process():` acknowledges at the end; an exception means retry, and later dead letters.

        A cancelled block does neither: the message stays unsettled, which holds its offset back, and comes again after
        the close or the consume timeout. It takes no part in `concurrency` any more; an ordered queue waits for it.
        """
        return Processing(self, reraise)

    def __repr__(self) -> str:
        return f"<ReceivedMessage {self.message_id} of {self.queue.topic}/{self.queue.queue_id}@{self.queue_offset}>"


class Processing:
    """The block in which a message is processed."""

    __slots__ = ("_message", "_reraise")

    def __init__(self, message: ReceivedMessage, reraise: bool) -> None:
        self._message = message
        self._reraise = reraise

    async def __aenter__(self) -> ReceivedMessage:
        return self._message

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            await self._message.ack()
            return False
        if not isinstance(error, Exception):
            # Cancelled, or the process ends: neither done nor failed. It comes again, and the others go on.
            self._message.delivery.abandon(self._message)
            return False
        level = error.delay_level if isinstance(error, RetryLater) else 0
        if not isinstance(error, RetryLater):
            log.error("processing %r failed, it will come again", self._message, exc_info=error)
        await self._message.retry(level)
        return not self._reraise
