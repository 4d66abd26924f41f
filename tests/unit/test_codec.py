"""Headers in their three forms: captured frames, round trips, leniency, and bad bytes."""

import json
import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.protocol import binary_header, codec, json_header, msgpack_header
from cometmq.protocol.codes import LanguageCode, RequestCode
from cometmq.protocol.command import FLAG_ONEWAY, FLAG_RESPONSE, BadHeader, Command, SerializeType
from cometmq.protocol.errors import FrameError, HeaderError, ProtocolError
from cometmq.protocol.frame import MAX_FRAME, frame_head, frame_length
from cometmq.protocol.header import NoHeader, fields_of, to_ext
from cometmq.protocol.requests import OPERATIONS
from cometmq.protocol.requests.clients import HeartBeatAnswer
from cometmq.protocol.requests.namesrv import GetRouteInfo, RegisterBroker
from cometmq.protocol.requests.send import SendMessageAnswer, SendMessageV2
from support import golden

JSON, BINARY, MSGPACK = SerializeType
SEND = SendMessageV2(
    producer_group="PG_basic",
    topic="TopicBasic",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=3,
    sys_flag=0,
    born_timestamp=1794847241702,
    flag=0,
    properties="KEYS\x01k1 k2\x02TAGS\x01标签\x02",
    broker_name="broker-a",
)


def frame_of(kind, command, ext=None, body=b""):
    """A frame without its length word, as the decoder gets it."""
    return codec.encode_command(kind, command, len(body), ext=ext)[4:] + body


# ---- captured frames ----


@pytest.mark.parametrize("name", golden.names())
def test_captured_frames_decode_and_encode_to_the_same_bytes(name):
    count = 0
    for frame in golden.frames(name):
        if not frame.whole:
            continue
        count += 1
        command, kind, raw, body = codec.decode(frame.raw[4:], expect_response=frame.is_response)
        assert kind == (BINARY if frame.is_binary else JSON), frame
        assert body == frame.body
        assert (command.code, command.flag, command.opaque) == (frame.code, frame.header["flag"], frame.opaque), frame
        assert command.remark == frame.header.get("remark")
        assert codec.read_ext(kind, raw) == {k: v for k, v in frame.ext.items() if not (frame.is_binary and v == "")}
        if frame.is_binary:
            assert command.language == LanguageCode(frame.header["language"]).name
        if not command.is_response:
            assert type(command.header) is OPERATIONS[command.code].request, frame
        declared = to_ext(command.header) if command.header is not None else {}
        undeclared = {key: value for key, value in frame.ext.items() if key not in declared}
        has_ext = "extFields" in frame.header
        if not has_ext:
            command.header = None
        ours = codec.encode_command(kind, command, len(body), ext=undeclared if has_ext else None) + body
        assert_same_bytes(ours, frame.raw, frame)
    assert count


def assert_same_bytes(ours: bytes, captured: bytes, frame: golden.Frame) -> None:
    """Equal but for the order of the ext keys, which is a hash map's in Java."""
    assert len(ours) == len(captured), frame
    assert ours[:8] == captured[:8], frame
    if not frame.is_binary:
        size = int.from_bytes(captured[4:8], "big")
        left, right = (json.loads(f[8 : 8 + size], object_pairs_hook=list) for f in (ours, captured))
        assert [key for key, _ in left] == [key for key, _ in right], frame
        assert ours[8 + size :] == captured[8 + size :], frame
        assert {k: sorted(v) if isinstance(v, list) else v for k, v in left} == {
            k: sorted(v) if isinstance(v, list) else v for k, v in right
        }, frame
    else:
        assert ours[8:29] == captured[8:29], frame
        assert sorted(ours) == sorted(captured), frame


@pytest.mark.parametrize("name", ["producer-basic-json", "producer-basic-bin", "pop", "lite-pull-json"])
def test_captured_answers_have_their_typed_headers(name):
    for exchange in golden.exchanges(name):
        answer = exchange.response
        if answer is None or not answer.whole or answer.code != 0:
            continue
        _, kind, raw, _ = codec.decode(answer.raw[4:], expect_response=True)
        header = codec.read_header(kind, raw, OPERATIONS[exchange.request.code].response, "the request")
        common = {"MSG_REGION", "TRACE_ON"} & set(answer.ext)
        assert {**answer.ext, **to_ext(header)} == answer.ext
        assert set(answer.ext) - set(to_ext(header)) <= common, answer


# ---- the spec's vectors ----

ROUTE_HEADER = (
    b'{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":7,'
    b'"serializeTypeCurrentRPC":"JSON","version":407}'
)
ROUTE = Command(105, 0, 7, 407, "PYTHON", None, GetRouteInfo(topic="T"))


def test_vector_json_request():
    assert codec.encode_command(JSON, ROUTE) == bytes.fromhex("000000810000007d") + ROUTE_HEADER


def test_vector_binary_request():
    expected = "00000025 01000021 0069 03 0197 00000007 00000000 00000000 0000000c 0005 746f706963 00000001 54"
    assert codec.encode_command(BINARY, ROUTE) == bytes.fromhex(expected)
    assert codec.decode(bytes.fromhex(expected)[4:]).command == ROUTE


def test_msgpack_header_is_plain_msgpack():
    head = codec.encode_command(MSGPACK, ROUTE, ext={"AccessKey": "k"})
    assert head[4] == 2
    assert msgpack.unpackb(head[8:]) == [105, 3, 407, 7, 0, None, {"topic": "T", "AccessKey": "k"}]


# ---- round trips ----


def values_of(spec):
    kinds = {
        "str": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30),
        "i32": st.integers(-(2**31), 2**31 - 1),
        "i64": st.integers(-(2**63), 2**63 - 1),
        "bool": st.booleans(),
    }
    strategy = kinds[spec.kind]
    return strategy if spec.required or spec.default is not None else strategy | st.none()


@st.composite
def requests(draw):
    operation = draw(st.sampled_from(sorted(OPERATIONS.values())))
    header = operation.request(**{spec.name: draw(values_of(spec)) for spec in fields_of(operation.request)})
    return Command(
        code=int(operation.code),
        flag=draw(st.sampled_from([0, FLAG_ONEWAY])),
        opaque=draw(st.integers(-(2**31), 2**31 - 1)),
        version=draw(st.integers(0, 2**15 - 1)),
        language=draw(st.sampled_from(LanguageCode)).name,
        remark=draw(st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1)),
        header=header,
    )


@pytest.mark.parametrize("kind", SerializeType)
@given(command=requests(), body=st.binary(max_size=20))
def test_requests_survive_the_wire(kind, command, body):
    decoded = codec.decode(frame_of(kind, command, body=body))
    assert decoded.body == body
    assert decoded.kind is kind
    for name in Command.__struct_fields__:
        assert getattr(decoded.command, name) == getattr(command, name)
    assert (
        codec.read_ext(kind, decoded.raw_header).items()
        >= {
            key: value
            for key, value in to_ext(command.header).items()
            # msgpack leaves out what equals its default
            if kind is not MSGPACK
        }.items()
    )


@pytest.mark.parametrize("kind", SerializeType)
@given(data=st.data())
def test_responses_survive_the_wire(kind, data):
    operation = data.draw(st.sampled_from(sorted(OPERATIONS.values())))
    specs = fields_of(operation.response)
    header = operation.response(**{spec.name: data.draw(values_of(spec)) for spec in specs})
    opaque = data.draw(st.integers(-(2**31), 2**31 - 1))
    remark = data.draw(st.none() | st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
    head = codec.encode_response(kind, opaque, 17, header, remark, 3)
    assert frame_length(head) == len(head) + 3
    command, _, raw, body = codec.decode(head[4:] + b"abc", expect_response=True)
    assert (command.code, command.flag, command.opaque, command.remark) == (17, FLAG_RESPONSE, opaque, remark)
    assert (command.version, command.language, command.header, body) == (479, "PYTHON", None, b"abc")
    assert codec.read_header(kind, raw, operation.response, "x") == header


@pytest.mark.parametrize("kind", SerializeType)
def test_extra_keys_travel_beside_the_typed_ones(kind):
    ext = {"AccessKey": "ak", "Signature": "s=", "bname": "broker-a"}
    decoded = codec.decode(frame_of(kind, Command(310, 0, 1, 479, "PYTHON", None, SEND), ext))
    assert decoded.command.header == SEND
    assert codec.read_ext(kind, decoded.raw_header).items() >= ext.items()


@pytest.mark.parametrize("kind", SerializeType)
def test_response_without_keys_and_with_none_set(kind):
    bare = codec.decode(codec.encode_response(kind, 1, 0)[4:], expect_response=True)
    assert codec.read_ext(kind, bare.raw_header) == {}
    empty = codec.decode(codec.encode_response(kind, 1, 0, NoHeader())[4:], expect_response=True)
    assert codec.read_ext(kind, empty.raw_header) == {}
    if kind is JSON:
        assert b"extFields" not in bare.raw_header
        assert b'"extFields":{}' in empty.raw_header


def test_pop_codes_come_back_from_sixteen_bits():
    for code in (c for c in RequestCode if c > 0xFFFF):
        frame = frame_of(BINARY, Command(int(code), 0, 1, 479, "JAVA"))
        try:
            command = codec.decode(frame).command
        except BadHeader as error:
            command = error.command
        assert command.code == code


def test_a_response_code_that_is_also_a_truncated_code_stays():
    frame = codec.encode_response(BINARY, 1, 3442)[4:]
    assert codec.decode(frame).command.code == 3442


def test_template_writes_what_the_general_way_writes():
    template = json_header.response_template(SendMessageAnswer, trace_on=True, msg_region='a "quoted" {region}')
    for transaction_id in ("C00002023FA44E0E2F2A50D38DE60002", None, 'odd "\\\x01'):
        head = template(-7, "7F000001", 3, 2**40, transaction_id, None, None)
        assert frame_length(head) == len(head)
        answer = codec.decode(head[4:], expect_response=True)
        general = SendMessageAnswer("7F000001", 3, 2**40, transaction_id, None, None, True, 'a "quoted" {region}')
        usual = codec.decode(codec.encode_response(JSON, -7, 0, general)[4:], expect_response=True)
        assert answer.command == usual.command
        assert codec.read_ext(JSON, answer.raw_header) == codec.read_ext(JSON, usual.raw_header)
    all_constant = json_header.response_template(HeartBeatAnswer, is_support_heart_beat_v2=True, is_sub_change=True)
    assert b'"IS_SUPPORT_HEART_BEAT_V2":"true"' in all_constant(1)
    all_optional = json_header.response_template(HeartBeatAnswer)
    assert codec.read_ext(JSON, all_optional(1, None, True)[8:]) == {"IS_SUB_CHANGE": "true"}
    with pytest.raises(TypeError, match="no field nonsense"):
        json_header.response_template(SendMessageAnswer, nonsense=1)


def test_binary_template_writes_what_the_general_way_writes():
    template = binary_header.response_template(SendMessageAnswer, recall_handle=None, trace_on=False, msg_region="杭州")
    for transaction_id in ("C00002023FA44E0E2F2A50D38DE60002", None, "x" * 300):
        frame = template(-7, "7F000001", -3, 2**40, transaction_id, None)
        assert frame_length(frame) == len(frame)
        answer = codec.decode(frame[4:], expect_response=True)
        general = SendMessageAnswer("7F000001", -3, 2**40, transaction_id, None, None, False, "杭州")
        usual = codec.decode(codec.encode_response(BINARY, -7, 0, general)[4:], expect_response=True)
        assert answer.kind is BINARY
        assert answer.command == usual.command
        assert codec.read_ext(BINARY, answer.raw_header) == codec.read_ext(BINARY, usual.raw_header)
    assert codec.read_ext(BINARY, binary_header.response_template(HeartBeatAnswer)(1, True, None)[8:]) == {
        "IS_SUPPORT_HEART_BEAT_V2": "true"
    }
    with pytest.raises(TypeError, match="no field nonsense"):
        binary_header.response_template(SendMessageAnswer, nonsense=1)


def test_template_leaves_out_what_is_never_there_and_escapes_what_is_not_plain():
    template = json_header.response_template(
        SendMessageAnswer, plain=("msg_id",), batch_uniq_id=None, recall_handle=None, trace_on=True, msg_region="r"
    )
    answer = codec.decode(template(1, "7F000001", 3, 4, 'a "quoted" key')[4:], expect_response=True)
    assert codec.read_ext(JSON, answer.raw_header) == {
        "msgId": "7F000001",
        "queueId": "3",
        "queueOffset": "4",
        "transactionId": 'a "quoted" key',
        "TRACE_ON": "true",
        "MSG_REGION": "r",
    }


# ---- leniency of the JSON header ----


def lenient(**keys):
    header = {"code": 105, "flag": 0, "opaque": 5, "version": 315, "language": "GO", **keys}
    return codec.decode(struct.pack(">I", len(json.dumps(header))) + json.dumps(header).encode()).command


def test_keys_may_be_absent_or_null_or_unknown_and_in_any_order():
    command = codec.decode(struct.pack(">I", 2) + b"{}" + b"body").command
    assert command == Command(0, 0, 0, 0, "JAVA", None, None)
    assert lenient(remark=None, extFields=None).header == GetRouteInfo()
    assert lenient(extFields={}).header == GetRouteInfo()
    assert lenient(strange=[1, {"a": 2}], extFields={"topic": "T", "unknown": "x"}).header == GetRouteInfo(topic="T")
    assert lenient(language="KLINGON").language == "KLINGON"
    reordered = b'{"version":1,"extFields":{"topic":"T"},"opaque":9,"code":105}'
    assert codec.decode(struct.pack(">I", len(reordered)) + reordered).command.header == GetRouteInfo(topic="T")


def test_numbers_and_booleans_as_ext_values_are_taken():
    assert lenient(extFields={"topic": 7, "acceptStandardJsonOnly": True}).header == GetRouteInfo(
        topic="7", accept_standard_json_only=True
    )


def test_a_repeated_code_counts_as_its_last():
    raw = b'{"code":105,"extFields":{"topic":"T"},"code":106}'
    command = codec.decode(struct.pack(">I", len(raw)) + raw).command
    assert command.code == 106
    assert isinstance(command.header, NoHeader)


def test_a_response_that_looks_like_a_request_code():
    raw = b'{"code":17,"flag":1,"language":"JAVA","opaque":3,"remark":"no route","version":479}'
    for expect in (True, False):
        command = codec.decode(struct.pack(">I", len(raw)) + raw, expect_response=expect).command
        assert (command.code, command.is_response, command.remark, command.header) == (17, True, "no route", None)


def test_a_request_where_a_response_was_expected():
    decoded = codec.decode(frame_of(JSON, ROUTE), expect_response=True)
    assert decoded.command.header == GetRouteInfo(topic="T")


# ---- errors that can be answered ----


@pytest.mark.parametrize("kind", SerializeType)
def test_missing_field_is_named(kind):
    frame = frame_of(kind, Command(103, 0, 77, 479, "JAVA"), {"brokerName": "a", "brokerAddr": "b"})
    with pytest.raises(BadHeader, match=r"REGISTER_BROKER \(103\): field 'clusterName' is missing") as caught:
        codec.decode(frame)
    assert caught.value.command.opaque == 77
    assert caught.value.kind is kind
    assert caught.value.field == "clusterName"


GOOD = to_ext(RegisterBroker("b", "127.0.0.1:1", "c", "127.0.0.1:2", 0))


@pytest.mark.parametrize("kind", SerializeType)
@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("brokerId", "zero", "expected an integer"),
        ("brokerId", "1_0", "expected an integer"),
        ("brokerId", "1.5", "expected an integer"),
        ("brokerId", "", "expected an integer|is missing"),
        ("brokerId", "9" * 19, "outside the range of i64"),
        ("bodyCrc32", "2147483648", "outside the range of i32"),
        ("compressed", "perhaps", "expected true or false"),
    ],
)
def test_malformed_field_is_named(kind, key, text, reason):
    with pytest.raises(BadHeader, match=reason) as caught:
        codec.decode(frame_of(kind, Command(103, 0, 1, 479, "JAVA"), {**GOOD, key: text}))
    assert caught.value.field == key
    assert isinstance(caught.value, HeaderError)


@pytest.mark.parametrize("kind", SerializeType)
def test_spellings_that_java_accepts(kind):
    ext = {**GOOD, "brokerId": "+007", "compressed": "TRUE"}
    header = codec.decode(frame_of(kind, Command(103, 0, 1, 479, "JAVA"), ext)).command.header
    assert (header.broker_id, header.compressed) == (7, True)


@pytest.mark.parametrize("kind", SerializeType)
def test_whole_numbers_in_other_spellings_are_the_same_in_all_forms(kind):
    """msgspec reads these in the JSON form, so the others read them too."""
    ext = {**GOOD, "brokerId": "1e2", "bodyCrc32": "7.0", "compressed": "1", "heartbeatTimeoutMillis": "null"}
    header = codec.decode(frame_of(kind, Command(103, 0, 1, 479, "JAVA"), ext)).command.header
    assert (header.broker_id, header.body_crc32, header.compressed, header.heartbeat_timeout_millis) == (
        100,
        7,
        True,
        None,
    )


def test_empty_binary_value_is_null():
    ext = {**GOOD, "clusterName": ""}
    with pytest.raises(BadHeader, match="'clusterName' is missing"):
        codec.decode(frame_of(BINARY, Command(103, 0, 1, 479, "JAVA"), ext))
    assert codec.decode(frame_of(BINARY, Command(105, 0, 1, 479, "JAVA"), {"topic": ""})).command.header.topic is None


def test_binary_key_given_twice_counts_as_its_last():
    assert codec.decode(frame_of(BINARY, ROUTE, {"topic": "Other"})).command.header.topic == "Other"


# ---- bad bytes ----


def json_frame(raw: bytes) -> bytes:
    return struct.pack(">I", len(raw)) + raw


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0",
        struct.pack(">I", 100) + b"{}",
        struct.pack(">I", 5 << 24 | 2) + b"{}",
        json_frame(b""),
        json_frame(b"null"),
        json_frame(b"[]"),
        json_frame(b"hello"),
        json_frame(b'{"code":105,"extFields":[]}'),
        json_frame(b'{"code":"x"}'),
        json_frame(b'{"code":99999999999}'),
        json_frame(b'{"code":105,"opaque":99999999999,"extFields":{}}'),
        json_frame(b'{"code":105,"language":"\xff\xfe"}'),
        json_frame(b'{"code":105,"extFields":{"topic":"\xff"}}'),
        json_frame(b'{"a":' * 100_000),
        json_frame(b'{"code":105,"x":' + b"[" * 100_000),
        struct.pack(">I", 1 << 24 | 4) + b"\0\0\0\1",
        struct.pack(">I", 1 << 24 | 21) + bytes(13) + b"\0\0\0\x10" + bytes(4),
        struct.pack(">I", 1 << 24 | 21) + bytes(17) + b"\0\0\0\x10",
        struct.pack(">I", 1 << 24 | 24) + b"\0\x69" + bytes(15) + b"\0\0\0\3" + b"\xff\xff\0",
        struct.pack(">I", 2 << 24 | 4) + b"\xc0\0\0\0",
        struct.pack(">I", 2 << 24 | 8) + b"\x97\x69\xff\xff\xff\xff\xff\xff",
    ],
)
def test_what_cannot_be_answered_is_a_frame_error(frame):
    for expect in (True, False):
        with pytest.raises(FrameError):
            codec.decode(frame, expect_response=expect)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_raise_only_protocol_errors(data):
    for kind in range(4):
        for expect in (True, False):
            frame = struct.pack(">I", kind << 24 | len(data)) + data
            try:
                decoded = codec.decode(frame, expect_response=expect)
                codec.read_ext(decoded.kind, decoded.raw_header)
                codec.read_header(decoded.kind, decoded.raw_header, SendMessageAnswer, "x")
            except ProtocolError:
                pass


@pytest.mark.parametrize("kind", SerializeType)
@given(data=st.data())
def test_damaged_frames_raise_only_protocol_errors(kind, data):
    frame = bytearray(frame_of(kind, Command(310, 0, 9, 479, "PYTHON", "note", SEND), {"AccessKey": "k"}))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    try:
        decoded = codec.decode(frame)
        codec.read_ext(decoded.kind, decoded.raw_header)
    except ProtocolError:
        pass


def test_frame_lengths():
    assert frame_length(struct.pack(">i", 4)) == 8
    assert frame_length(struct.pack(">i", MAX_FRAME - 4)) == MAX_FRAME
    for length in (-1, 0, 3, MAX_FRAME - 3, 2**31 - 1, -(2**31)):
        with pytest.raises(FrameError, match="frame"):
            frame_length(struct.pack(">i", length))
    with pytest.raises(FrameError, match="over the limit"):
        frame_head(JSON, b"{}", MAX_FRAME)


def test_the_forms_share_one_interface():
    for form in (json_header, binary_header, msgpack_header):
        for name in ("decode_request", "read_ext", "read_header", "encode_response", "encode_command"):
            assert callable(getattr(form, name))
