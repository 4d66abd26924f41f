"""Topics of a broker and how it announces them to the nameserver. Requests 17, 18, 21, 103, 322 and 351.

The compressed form of a registration is here too, for it is bytes as well. Which registration wins is not decided here.
"""

import enum
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Self

from cometmq.protocol import fastjson
from cometmq.protocol.bodies import lenient
from cometmq.protocol.bodies.base import Body, Int32, Int64, always, always_new
from cometmq.protocol.bodies.static_topic import TopicQueueMappingDetail, TopicQueueMappingInfo
from cometmq.protocol.errors import BodyError

#: Brokers before 3.0.11 send a TopicConfigSerializeWrapper in place of a RegisterBrokerBody.
WRAPPED_SINCE = 37
#: Brokers since 5.0.0 put the mapping of static topics into the compressed form.
MAPPING_SINCE = 413
#: Most bytes that a compressed registration may unpack to: what a plain one may have, the longest frame.
MAX_UNPACKED = 16 * 1024 * 1024
#: Most topics of one broker. Real ones have thousands; this many keep a nameserver busy for less than a second.
MAX_TOPICS = 100_000
# A topic has two braces of its own in the plain form, the second for its attributes; the rest of the body has few.
_MAX_BRACES = 2 * MAX_TOPICS + 1000

_LENGTH = struct.Struct(">i")


class TopicFilterType(enum.StrEnum):
    """Whether messages of a topic carry one tag or many."""

    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


class DataVersion(Body, frozen=True, kw_only=True):
    """The version of a table. Two are the same when all three fields are."""

    counter: Int64 = always(0)
    state_version: Int64 = always(0)
    timestamp: Int64 = always(0)


class TopicConfig(Body, frozen=True, kw_only=True):
    """What a broker keeps about a topic."""

    attributes: dict[str, str] = always_new(dict)
    #: Static topics only, in the answer of GET_TOPIC_CONFIG.
    mapping_detail: TopicQueueMappingDetail | None = None
    order: bool = always(False)
    perm: Int32 = always(6)
    read_queue_nums: Int32 = always(16)
    topic_filter_type: str = always(TopicFilterType.SINGLE_TAG.value)
    topic_name: str = always("")
    topic_sys_flag: Int32 = always(0)
    write_queue_nums: Int32 = always(16)

    def to_text(self) -> str:
        """The form inside a compressed registration. It has no room for `order` and `topic_sys_flag`."""
        numbers = f"{self.read_queue_nums} {self.write_queue_nums} {self.perm}"
        attributes = fastjson.dumps(self.attributes).decode()
        return f"{self.topic_name} {numbers} {self.topic_filter_type} {attributes}"

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Reads `to_text`; brokers before 5.0 leave the attributes out."""
        parts = text.split(" ", 5)
        if len(parts) < 5:
            raise BodyError(f"TopicConfig: text has {len(parts)} of 5 parts: {text[:80]!r}")
        if len(parts) > 5 and parts[5].strip() not in ("", "{}"):
            tree = {"attributes": fastjson.loads(parts[5].encode("utf-8", "replace"))}
            attributes = lenient.convert(tree, cls).attributes
        else:
            attributes = {}
        return cls(
            topic_name=parts[0],
            read_queue_nums=_queue_number(parts[1], text),
            write_queue_nums=_queue_number(parts[2], text),
            perm=_queue_number(parts[3], text),
            topic_filter_type=parts[4],
            attributes=attributes,
        )


def _queue_number(part: str, text: str) -> int:
    digits = part.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10 and -(2**31) <= int(part) < 2**31):
        raise BodyError(f"TopicConfig: {part[:20]!r} is not a number of 32 bits: {text[:80]!r}")
    return int(part)


class TopicConfigList(Body, frozen=True, kw_only=True):
    """Topics to create or update together."""

    topic_config_list: list[TopicConfig] = always_new(list)


class TopicConfigSerializeWrapper(Body, frozen=True, kw_only=True):
    """All topics of a broker: its file of topics, and what brokers of 4.x send."""

    data_version: DataVersion = always_new(DataVersion)
    topic_config_table: dict[str, TopicConfig] = always_new(dict)


class TopicConfigAndMappingSerializeWrapper(Body, frozen=True, kw_only=True):
    """All topics of a broker with the mapping of static topics, as brokers of 5.x send it. Reads the 4.x form too."""

    data_version: DataVersion = always_new(DataVersion)
    mapping_data_version: DataVersion = always_new(DataVersion)
    topic_config_table: dict[str, TopicConfig] = always_new(dict)
    topic_queue_mapping_detail_map: dict[str, TopicQueueMappingDetail] = always_new(dict)
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingInfo] = always_new(dict)


class RegisterBrokerBody(Body, frozen=True, kw_only=True):
    """What a broker tells the nameserver about itself."""

    filter_server_list: list[str] = always_new(list)
    topic_config_serialize_wrapper: TopicConfigAndMappingSerializeWrapper = always_new(
        TopicConfigAndMappingSerializeWrapper
    )

    @classmethod
    def from_request(cls, data: bytes | bytearray | memoryview, *, compressed: bool, version: int) -> Self:
        """The body of REGISTER_BROKER, by the request's header. No body is an empty registration."""
        if not data:
            return cls()
        if not compressed and bytes(data).count(b"{") > _MAX_BRACES:
            raise BodyError(f"RegisterBrokerBody: more than {MAX_TOPICS} topics")
        if version < WRAPPED_SINCE:
            return cls(topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper.decode(data))
        return cls.decode_compressed(data, version=version) if compressed else cls.decode(data)

    @classmethod
    def decode_compressed(cls, data: bytes | bytearray | memoryview, *, version: int) -> Self:
        """Reads the compressed form of a broker of this protocol version."""
        parts = _Parts(_inflate(data))
        data_version = DataVersion.decode(parts.next())
        configs = [TopicConfig.from_text(parts.next_text()) for _ in parts.count()]
        filter_servers = lenient.convert({"filterServerList": fastjson.loads(parts.next())}, cls).filter_server_list
        mappings: list[TopicQueueMappingInfo] = []
        if version >= MAPPING_SINCE:
            mappings = [TopicQueueMappingInfo.decode(parts.next()) for _ in parts.count()]
        wrapper = TopicConfigAndMappingSerializeWrapper(
            data_version=data_version,
            topic_config_table={config.topic_name: config for config in configs},
            topic_queue_mapping_info_map={mapping.topic: mapping for mapping in mappings},
        )
        return cls(filter_server_list=filter_servers, topic_config_serialize_wrapper=wrapper)

    def encode_compressed(self, *, version: int) -> bytes:
        """Writes the compressed form that a nameserver expects of a broker of this protocol version."""
        wrapper = self.topic_config_serialize_wrapper
        parts = [_part(wrapper.data_version.encode())]
        parts += _counted(config.to_text().encode() for config in wrapper.topic_config_table.values())
        parts.append(_part(fastjson.dumps(self.filter_server_list)))
        if version >= MAPPING_SINCE:
            parts += _counted(mapping.encode() for mapping in wrapper.topic_queue_mapping_info_map.values())
        return zlib.compress(b"".join(parts), 9)


def _part(data: bytes) -> bytes:
    return _LENGTH.pack(len(data)) + data


def _counted(items: Iterable[bytes]) -> list[bytes]:
    parts = [_part(item) for item in items]
    return [_LENGTH.pack(len(parts)), *parts]


def _inflate(data: bytes | bytearray | memoryview) -> bytes:
    stream = zlib.decompressobj()
    try:
        unpacked = stream.decompress(data, MAX_UNPACKED)
    except zlib.error as error:
        raise BodyError(f"RegisterBrokerBody: {error}") from None
    if stream.unconsumed_tail:
        raise BodyError(f"RegisterBrokerBody: unpacks to more than {MAX_UNPACKED} bytes")
    if not stream.eof:
        raise BodyError("RegisterBrokerBody: the compressed body is cut short")
    return unpacked


class _Parts:
    """Reads the parts of the unpacked form, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.pos = 0

    def number(self) -> int:
        if self.pos + 4 > len(self.data):
            raise BodyError("RegisterBrokerBody: the unpacked body is cut short")
        (number,) = _LENGTH.unpack_from(self.data, self.pos)
        self.pos += 4
        if not 0 <= number <= len(self.data) - self.pos:
            raise BodyError(f"RegisterBrokerBody: {number} is longer than the unpacked body")
        return int(number)

    def count(self) -> Iterator[int]:
        number = self.number()
        if number > MAX_TOPICS:
            raise BodyError(f"RegisterBrokerBody: {number} items, more than the limit of {MAX_TOPICS} topics")
        return iter(range(number))

    def next(self) -> bytes:
        size = self.number()
        self.pos += size
        return self.data[self.pos - size : self.pos]

    def next_text(self) -> str:
        try:
            return self.next().decode()
        except UnicodeDecodeError:
            raise BodyError("RegisterBrokerBody: a topic is not UTF-8") from None


class KVTable(Body, frozen=True, kw_only=True):
    """Names and values: the nameserver's configuration of a namespace, a broker's runtime figures."""

    table: dict[str, str] = always_new(dict)
