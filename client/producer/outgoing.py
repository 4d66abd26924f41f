"""A message on its way out: its bytes and its property text, made once and sent as often as it takes.

Bytes and values only. The unique key stays the same over all attempts, so that a repeat can be recognised. RocketMQ's
DefaultMQProducerImpl.sendKernelImpl, the part before the request.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from cometmq.client.errors import InvalidMessage
from cometmq.client.message import Message
from cometmq.protocol import compression, names, sysflag
from cometmq.protocol import properties as props
from cometmq.protocol.sysflag import CompressionType

#: RocketMQ's limits and thresholds, in bytes.
MAX_MESSAGE_SIZE: Final = 4 * 1024 * 1024
COMPRESS_FROM: Final = 4096

_NOT_DELAYED: Final = (None, None, None)


class Compression(msgspec.Struct, frozen=True):
    """How bodies are compressed: from this size on, by this library, at this level."""

    kind: CompressionType = CompressionType.ZLIB
    threshold: int = COMPRESS_FROM
    level: int = compression.DEFAULT_LEVEL

    @classmethod
    def of(cls, given: "Compression | str | None") -> "Compression | None":
        """`"zlib"`, `"lz4"`, `"zstd"`, a value of this class, or None for plain bodies."""
        if given is None or isinstance(given, Compression):
            return given
        try:
            return cls(CompressionType[given.upper()])
        except KeyError:
            raise ValueError(f"compression {given!r}: one of zlib, lz4 and zstd, or None") from None


class Outgoing(msgspec.Struct):
    """What every attempt of a send has in common."""

    topic: str
    body: bytes
    properties: str
    unique_key: str
    flag: int = 0
    sys_flag: int = 0
    is_batch: bool = False
    #: Of a message that is tried again.
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


class Packer:
    """Makes `Outgoing`s for one producer."""

    def __init__(
        self,
        new_unique_key: Callable[[], str],
        *,
        compression: Compression | None,
        max_message_size: int,
        instance_id: str = "",
    ) -> None:
        self._new_unique_key = new_unique_key
        self._compression = compression
        self._max_message_size = max_message_size
        self._instance_id = instance_id

    def pack(self, topic: str, message: Message, extra: dict[str, str] | None = None) -> Outgoing:
        """The message ready to go. `extra` holds the properties that the send adds: delays, hooks, requests."""
        body = message.body
        self.check_size(body)
        pairs = message.property_map()
        key = pairs[props.UNIQ_KEY] = self._new_unique_key()
        if self._instance_id:
            pairs[props.INSTANCE_ID] = self._instance_id
        if extra:
            pairs.update(extra)
        flags = 0
        how = self._compression
        if how is not None and len(body) >= how.threshold:
            body = compression.compress(body, how.kind, how.level)
            flags = sysflag.with_compression(0, how.kind)
        return Outgoing(topic, body, props.format_properties(pairs), key, message.flag, flags)

    def check_size(self, body: bytes) -> None:
        if not body:
            raise InvalidMessage("the body is empty")
        if len(body) > self._max_message_size:
            raise InvalidMessage(
                f"the body takes {len(body)} bytes, at most {self._max_message_size} are allowed (max_message_size)"
            )


def check_topic(topic: str) -> None:
    """Refuse a topic that nobody may send to."""
    names.validate_topic(topic)
    if topic in names.SEND_FORBIDDEN_TOPICS:
        raise InvalidMessage(f"{topic} belongs to the system: nobody may send to it")


def delay_of(message: Message) -> timedelta | None:
    """How long a message with a duration or an instant shall wait from now; None without one."""
    if message.delay is not None:
        return message.delay
    if message.deliver_at is not None:
        return message.deliver_at - datetime.now(UTC)
    return None
