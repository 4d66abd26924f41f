"""A message on its way out: its bytes and its property text, made once and sent as often as it takes.

Bytes and values only. The unique key stays the same over all attempts, so that a repeat can be recognised. RocketMQ's
DefaultMQProducerImpl.sendKernelImpl, the part before the request.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Final, cast

import msgspec

from cometmq.client.errors import InvalidMessage
from cometmq.client.message import Message, check_body, check_property
from cometmq.protocol import compression, names, sysflag
from cometmq.protocol import properties as props
from cometmq.protocol.batch import item_size
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.message_id import UniqueKeyGenerator, wall_millis
from cometmq.protocol.sysflag import CompressionType

#: RocketMQ's limits and thresholds, in bytes.
MAX_MESSAGE_SIZE: Final = 4 * 1024 * 1024
COMPRESS_FROM: Final = 4096

SEND: Final = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH: Final = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_REPLY: Final = int(RequestCode.SEND_REPLY_MESSAGE_V2)

_ITEM_HEAD: Final = Struct(">iiiii")
_ITEM_PROPERTIES: Final = Struct(">h")
_ITEM_OVERHEAD: Final = item_size(0, 0)
#: The property text of a message without any options, around its unique key.
_PLAIN_START: Final = "UNIQ_KEY\x01"
_PLAIN_END: Final = "\x02WAIT\x01true\x02"


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

    #: As it goes on the wire.
    topic: str
    body: bytes
    properties: str
    unique_key: str
    flag: int = 0
    sys_flag: int = 0
    code: int = SEND
    #: When it was packed (epoch milliseconds), if that counts as its birth.
    born: int = 0
    #: Of a message that is tried again.
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    #: What the user gave, for hooks and selectors.
    message: Message | None = None

    @property
    def is_ordinary(self) -> bool:
        """Whether its header has nothing that a template could not say."""
        return self.code != SEND_REPLY and self.max_reconsume_times is None and not self.reconsume_times

    @property
    def is_batch(self) -> bool:
        return self.code == SEND_BATCH


class Packer:
    """Makes `Outgoing`s for one producer."""

    def __init__(
        self,
        new_unique_key: UniqueKeyGenerator,
        *,
        compression: Compression | None,
        max_message_size: int,
        instance_id: str = "",
    ) -> None:
        self._new_unique_key = new_unique_key.at
        self._new_unique_keys = new_unique_key.many
        #: What comes after the body of a plain item: always as long, because unique keys are.
        key_length = len(new_unique_key())
        after = len(f"{_PLAIN_START}{_PLAIN_END}") + key_length
        self._plain_start = _ITEM_PROPERTIES.pack(after).decode("ascii") + _PLAIN_START
        self._plain_length = _ITEM_PROPERTIES.size + after
        #: What a plain item takes beside its body.
        self.plain_overhead = _ITEM_OVERHEAD + after
        self._compression = compression
        #: Bodies from this size on need a look: they are compressed, or too large.
        self._plain_below = min(compression.threshold if compression else max_message_size + 1, max_message_size + 1)
        self.max_message_size = max_message_size
        self._instance = f"{props.INSTANCE_ID}\x01{instance_id}\x02" if instance_id else ""

    def text(
        self,
        tag: str | None,
        keys: str | Sequence[str] | None,
        properties: Mapping[str, str] | None,
        extra: Mapping[str, str] | None = None,
        *,
        wait_store_ok: bool = True,
        now: int | None = None,
    ) -> tuple[str, str]:
        """The unique key of a new message, and its property text. Hot: no dict is made, and one count finds a
        separator that has no place there.

        `extra` holds the properties that the send adds: sharding key, delays, requests.
        """
        key = self._new_unique_key(wall_millis() if now is None else now)
        text = f"UNIQ_KEY\x01{key}\x02WAIT\x01{'true' if wait_store_ok else 'false'}\x02{self._instance}"
        pairs = 3 if self._instance else 2
        if tag:
            text = f"{text}TAGS\x01{tag}\x02"
            pairs += 1
        if keys:
            text = f"{text}KEYS\x01{keys if isinstance(keys, str) else props.KEY_SEPARATOR.join(keys)}\x02"
            pairs += 1
        if extra:
            text += "".join([f"{name}\x01{value}\x02" for name, value in extra.items()])
            pairs += len(extra)
        if properties:
            for name, value in properties.items():
                check_property(name, value)
                text = f"{text}{name}\x01{value}\x02"
            pairs += len(properties)
        if text.count("\x02") != pairs:
            raise InvalidMessage("tag, keys or a property hold the character 0x02, which separates properties")
        return key, text

    def pack(
        self,
        topic: str,
        body: bytes,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
    ) -> Outgoing:
        """A message without any of the rarer options, ready to go. Hot."""
        now = wall_millis()
        key, text = self.text(tag, keys, properties, now=now)
        if 0 < len(body) < self._plain_below:
            return Outgoing(topic, body, text, key, flag, 0, SEND, now)
        data, flags = self.packed_body(body)
        return Outgoing(topic, data, text, key, flag, flags, SEND, now)

    def pack_message(self, topic: str, message: Message, extra: dict[str, str] | None = None) -> Outgoing:
        """Any message, ready to go. `extra` holds the properties that the send adds: delays, requests."""
        body, flags = self.packed_body(message.body)
        more = {**message.own_properties(), **(extra or {})}
        key, text = self.text(message.tag, message.keys, message.properties, more, wait_store_ok=message.wait_store_ok)
        return Outgoing(topic, body, text, key, message.flag, flags, message=message)

    def packed_body(self, body: bytes) -> tuple[bytes, int]:
        """The body as it is sent, and what the system flag says of it."""
        self.check_size(body)
        how = self._compression
        if how is None or len(body) < how.threshold:
            return body, 0
        return compression.compress(body, how.kind, how.level), sysflag.with_compression(0, how.kind)

    def check_sizes(self, bodies: Iterable[bytes]) -> None:
        for body in bodies:
            if not 0 < len(body) <= self.max_message_size:
                self.check_size(body)

    def check_size(self, body: bytes) -> None:
        if not body:
            raise InvalidMessage("the body is empty")
        if len(body) > self.max_message_size:
            raise InvalidMessage(
                f"the body takes {len(body)} bytes, at most {self.max_message_size} are allowed (max_message_size)"
            )

    def item(
        self,
        body: bytes,
        tag: str | None = None,
        keys: str | Sequence[str] | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        extra: Mapping[str, str] | None = None,
        *,
        wait_store_ok: bool = True,
    ) -> tuple[str, int, bytes, bytes]:
        """A message as an item of a batch: its unique key, its size, and what comes before and after its body.

        Never compressed. Hot.
        """
        length = len(body)
        if not 0 < length <= self.max_message_size:
            self.check_size(body)
        key, text = self.text(tag, keys, properties, extra, wait_store_ok=wait_store_ok)
        raw = props.encode_text(text)
        size = _ITEM_OVERHEAD + length + len(raw)
        return key, size, _ITEM_HEAD.pack(size, 0, 0, flag, length), _ITEM_PROPERTIES.pack(len(raw)) + raw

    @property
    def has_plain_items(self) -> bool:
        """Whether messages without any options are all alike but for body and unique key."""
        return not self._instance

    def plain_items(self, bodies: Sequence[bytes]) -> tuple[list[bytes], list[str]]:
        """Messages without any options as items of a batch: their pieces and unique keys. Their sizes were checked.

        Budget: 0.4 us a message. The texts are made as one and cut, and the pieces are laid out by slices.
        """
        keys = self._new_unique_keys(wall_millis(), len(bodies))
        start, width = self._plain_start, self._plain_length
        texts = f"{start}{f'{_PLAIN_END}{start}'.join(keys)}{_PLAIN_END}".encode()
        pieces = [b""] * (3 * len(bodies))
        lengths = list(map(len, bodies))
        heads = {each: _ITEM_HEAD.pack(self.plain_overhead + each, 0, 0, 0, each) for each in set(lengths)}
        pieces[0::3] = [heads[length] for length in lengths]
        pieces[1::3] = bodies
        pieces[2::3] = [texts[at : at + width] for at in range(0, len(texts), width)]
        return pieces, keys

    def message_item(self, message: Message) -> tuple[str, int, bytes, bytes]:
        """`item` for a `Message`."""
        return self.item(
            message.body,
            message.tag,
            message.keys,
            message.properties,
            message.flag,
            message.own_properties(),
            wait_store_ok=message.wait_store_ok,
        )

    def batch(
        self, topic: str, pieces: Sequence[bytes], keys: Sequence[str], *, wait_store_ok: bool = True
    ) -> Outgoing:
        """The pieces of items as one request. Its message id is that of all its messages.

        The wrapper has no unique key: RocketMQ 5 would give it to every item in place of the item's own.
        """
        text = f"WAIT\x01{'true' if wait_store_ok else 'false'}\x02{self._instance}"
        return Outgoing(topic, b"".join(pieces), text, ",".join(keys), code=SEND_BATCH)


def check_topic(topic: str) -> None:
    """Refuse a topic that nobody may send to."""
    names.validate_topic(topic)
    if topic in names.SEND_FORBIDDEN_TOPICS:
        raise InvalidMessage(f"{topic} belongs to the system: nobody may send to it")


def check_batch(members: Sequence[bytes | Message]) -> bool:
    """Refuse what cannot go together; whether the broker shall wait until it is safe."""
    if set(map(type, members)) == {bytes}:
        return True
    waits: set[bool] = set()
    for member in members:
        if not isinstance(member, Message):
            check_body(member)
            waits.add(True)
            continue
        if member.delay_level or member.delay is not None or member.deliver_at is not None:
            raise InvalidMessage("a batch cannot be delayed: send its messages one by one")
        waits.add(member.wait_store_ok)
    if len(waits) > 1:
        raise InvalidMessage("the messages of a batch need one and the same wait_store_ok")
    return waits.pop()


def chunks(packer: Packer, members: Sequence[bytes | Message], limit: int) -> Iterable[tuple[list[bytes], list[str]]]:
    """The batches to send: pieces of their items, and the unique keys of their messages. Hot."""
    if packer.has_plain_items and set(map(type, members)) == {bytes}:
        bodies = cast(Sequence[bytes], members)
        if sum(map(len, bodies)) + len(bodies) * packer.plain_overhead <= limit:
            packer.check_sizes(bodies)
            yield packer.plain_items(bodies)
            return
    pieces: list[bytes] = []
    keys: list[str] = []
    total = 0
    for member in members:
        if isinstance(member, Message):
            body = member.body
            key, size, head, tail = packer.message_item(member)
        else:
            body = member
            key, size, head, tail = packer.item(body)
        if keys and total + size > limit:
            yield pieces, keys
            pieces, keys, total = [], [], 0
        pieces += (head, body, tail)
        keys.append(key)
        total += size
    yield pieces, keys
