"""Registrations in all their forms: by version, compressed, broken, and as bombs."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigAndMappingSerializeWrapper,
    TopicConfigSerializeWrapper,
    TopicQueueMappingInfo,
)
from cometmq.protocol.bodies import registration as registration_module
from cometmq.protocol.errors import BodyError

MAPPING = (
    b'{"bname":"broker-a","currIdMap":{0:0},"dirty":false,"epoch":7,"scope":"__global__","topic":"S","totalQueues":1}'
)


def part(text: bytes) -> bytes:
    return struct.pack(">i", len(text)) + text


def number(value: int) -> bytes:
    return struct.pack(">i", value)


def java_form(*, attributes: bytes = b' {"+a":"b c"}', mappings: bytes = b"") -> bytes:
    """What a Java broker would deflate."""
    return b"".join(
        [
            part(b'{"counter":3,"stateVersion":0,"timestamp":1794847265143}'),
            number(2),
            part(b"TBW102 8 8 7 SINGLE_TAG" + attributes),
            part("tópico 4 2 6 MULTI_TAG".encode() + attributes),
            part(b'["f:1"]'),
            mappings,
        ]
    )


BODY = RegisterBrokerBody(
    filter_server_list=["f:1"],
    topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
        data_version=DataVersion(counter=3, timestamp=1794847265143),
        topic_config_table={
            "TBW102": TopicConfig(
                topic_name="TBW102", read_queue_nums=8, write_queue_nums=8, perm=7, attributes={"+a": "b c"}
            ),
            "tópico": TopicConfig(
                topic_name="tópico",
                read_queue_nums=4,
                write_queue_nums=2,
                perm=6,
                topic_filter_type="MULTI_TAG",
                attributes={"+a": "b c"},
            ),
        },
        topic_queue_mapping_info_map={
            "S": TopicQueueMappingInfo(bname="broker-a", curr_id_map={0: 0}, epoch=7, topic="S", total_queues=1)
        },
    ),
)


def without_mapping(body: RegisterBrokerBody) -> RegisterBrokerBody:
    wrapper = body.topic_config_serialize_wrapper
    return RegisterBrokerBody(
        filter_server_list=body.filter_server_list,
        topic_config_serialize_wrapper=TopicConfigAndMappingSerializeWrapper(
            data_version=wrapper.data_version, topic_config_table=wrapper.topic_config_table
        ),
    )


def test_compressed_form_of_5() -> None:
    unpacked = java_form(mappings=number(1) + part(MAPPING))
    assert RegisterBrokerBody.decode_compressed(zlib.compress(unpacked, 9), version=413) == BODY
    assert zlib.decompress(BODY.encode_compressed(version=479)) == unpacked


def test_compressed_form_of_4() -> None:
    unpacked = java_form()
    assert RegisterBrokerBody.decode_compressed(zlib.compress(unpacked), version=412) == without_mapping(BODY)
    assert zlib.decompress(BODY.encode_compressed(version=407)) == unpacked
    # 4.9 writes no attributes at all.
    body = RegisterBrokerBody.decode_compressed(zlib.compress(java_form(attributes=b"")), version=407)
    assert [config.attributes for config in body.topic_config_serialize_wrapper.topic_config_table.values()] == [{}, {}]


def test_form_follows_the_request() -> None:
    text = BODY.encode()
    packed = BODY.encode_compressed(version=479)
    assert RegisterBrokerBody.from_request(text, compressed=False, version=479) == BODY
    assert RegisterBrokerBody.from_request(packed, compressed=True, version=479) == BODY
    wrapper = TopicConfigSerializeWrapper(topic_config_table={"T": TopicConfig(topic_name="T")})
    old = RegisterBrokerBody.from_request(wrapper.encode(), compressed=False, version=36)
    assert old.topic_config_serialize_wrapper.topic_config_table == wrapper.topic_config_table
    assert old.filter_server_list == []
    for compressed in (False, True):
        empty = RegisterBrokerBody.from_request(b"", compressed=compressed, version=479)
        assert empty.topic_config_serialize_wrapper.data_version == DataVersion()
        assert empty.topic_config_serialize_wrapper.topic_config_table == {}


def test_a_plain_wrapper_is_the_file_of_topics() -> None:
    wrapper = TopicConfigSerializeWrapper(topic_config_table={"T": TopicConfig(topic_name="T")})
    assert wrapper.encode() == (
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":0},"topicConfigTable":{"T":{"attributes":{},'
        b'"order":false,"perm":6,"readQueueNums":16,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
        b'"writeQueueNums":16}}}'
    )


@pytest.mark.parametrize(
    "data",
    [
        b"not deflated",
        zlib.compress(java_form(mappings=number(1) + part(MAPPING)))[:-5],
        zlib.compress(java_form()),
        zlib.compress(java_form(mappings=number(2) + part(MAPPING))),
        zlib.compress(java_form(mappings=number(-1))),
        zlib.compress(java_form(mappings=number(2**31 - 1))),
        zlib.compress(java_form(mappings=number(1) + part(b"{"))),
        zlib.compress(java_form(attributes=b" {")),
        zlib.compress(java_form().replace(b"TBW102 8 8 7", b"TBW102 x 8 7")),
        zlib.compress(java_form().replace(b"TBW102 8 8 7", b"TBW102_8_8_7")),
        zlib.compress(java_form().replace(b"TBW102", b"\xff\xff\xff\xff\xff\xff")),
        zlib.compress(java_form().replace(b'["f:1"]', b"[[]]   ")),
        zlib.compress(b""),
        b"",
    ],
)
def test_broken_compressed_forms(data: bytes) -> None:
    with pytest.raises(BodyError):
        RegisterBrokerBody.decode_compressed(data, version=479)


def test_bombs_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_module, "MAX_UNPACKED", 1_000_000)
    with pytest.raises(BodyError, match="unpacks to more than 1000000 bytes"):
        RegisterBrokerBody.decode_compressed(zlib.compress(b"\0" * 100_000_000), version=479)


@given(st.binary(max_size=100))
def test_arbitrary_bytes(data: bytes) -> None:
    for packed in (data, zlib.compress(data), zlib.compress(java_form() + data)):
        try:
            body = RegisterBrokerBody.decode_compressed(packed, version=479)
        except BodyError:
            continue
        assert RegisterBrokerBody.decode_compressed(body.encode_compressed(version=479), version=479) == body


TEXT = st.text(st.characters(exclude_characters=" ", exclude_categories=["Cs"]), min_size=1, max_size=10)
CONFIGS = st.builds(
    TopicConfig,
    attributes=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    perm=st.integers(0, 7),
    read_queue_nums=st.integers(0, 1024),
    topic_filter_type=st.sampled_from(["SINGLE_TAG", "MULTI_TAG"]),
    topic_name=TEXT,
    write_queue_nums=st.integers(0, 1024),
)


@given(CONFIGS)
def test_text_of_a_topic_is_read_back(config: TopicConfig) -> None:
    assert TopicConfig.from_text(config.to_text()) == config
