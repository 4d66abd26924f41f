"""The declarations of all request and response headers, against the captures and against themselves."""

import json
import subprocess
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from cometmq.protocol.codes import RequestCode, ResponseCode, request_name
from cometmq.protocol.errors import HeaderError
from cometmq.protocol.header import (
    I32_MAX,
    I32_MIN,
    I64_MAX,
    I64_MIN,
    FieldSpec,
    Header,
    NoHeader,
    Operation,
    fields_of,
    from_ext,
    to_ext,
)
from cometmq.protocol.requests import OPERATIONS, operations
from cometmq.protocol.requests.namesrv import GetRouteInfo, PutKvConfig, RegisterBroker
from cometmq.protocol.requests.offsets import QueryConsumerOffset, UpdateConsumerOffset
from cometmq.protocol.requests.pull import PullMessage, PullMessageRefusal
from cometmq.protocol.requests.send import SendMessage, SendMessageAnswer, SendMessageRefusal, SendMessageV2
from support import golden

#: Keys that any request may carry besides its own.
COMMON = {
    *("bname", "lo", "ns", "nsd", "oway", "ReqT", "__ZONE_NAME", "__ZONE_MODE"),
    *("AccessKey", "Signature", "SecurityToken"),
    *("Owner", "AUTH_TYPE", "OWNER_PARENT", "OWNER_SELF"),
}

DIRECTIONS = {
    "client → broker",
    "client → nameserver",
    "broker → nameserver",
    "broker → client",
    "slave → master",
    "admin → broker",
    "admin → nameserver",
    "nameserver → broker",
    "broker → broker",
    "admin → container",
    "controller",
}

#: Refusals that lack what is mandatory in a good answer, and the header that they have instead.
REFUSALS: dict[tuple[int, int], type[Header]] = {
    (RequestCode.SEND_MESSAGE_V2, ResponseCode.NO_PERMISSION): SendMessageRefusal,
    (RequestCode.SEND_MESSAGE_V2, ResponseCode.MESSAGE_ILLEGAL): SendMessageRefusal,
    (RequestCode.PULL_MESSAGE, ResponseCode.SUBSCRIPTION_NOT_LATEST): PullMessageRefusal,
    (RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.QUERY_NOT_FOUND): NoHeader,
}

MODULES = [
    value
    for value in vars(operations).values()
    if isinstance(value, ModuleType) and value.__name__.startswith("cometmq.protocol.requests.")
]

#: Every declared type once, under a name that says where it is declared.
TYPES = {
    f"{module.__name__.rpartition('.')[2]}.{kind.__name__}": kind
    for module in MODULES
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Header) and kind.__module__ == module.__name__
}

every_type = pytest.mark.parametrize("header_type", TYPES.values(), ids=TYPES.keys())
every_operation = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda o: o.code.name)


def own(ext: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in ext.items() if key not in COMMON}


# --- the table


def test_every_code_has_one_operation() -> None:
    declared = [operation.code for module in MODULES for operation in module.OPERATIONS]
    assert len(MODULES) == 15
    assert sorted(declared) == sorted(RequestCode), "a code is missing, or declared twice"
    assert list(OPERATIONS) == [int(operation.code) for operation in OPERATIONS.values()]
    assert set(OPERATIONS) == set(map(int, RequestCode))


@every_operation
def test_operation_is_sound(operation: Operation) -> None:
    assert operation.direction in DIRECTIONS
    for header_type in (operation.request, operation.response):
        assert header_type is NoHeader or header_type in TYPES.values()


def test_oneway_requests() -> None:
    assert {operation.code for operation in OPERATIONS.values() if operation.oneway} == {
        RequestCode.END_TRANSACTION,
        RequestCode.CHECK_TRANSACTION_STATE,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
    }


def test_importing_the_table_is_light() -> None:
    script = "import sys, cometmq.protocol.requests.operations; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "cometmq.protocol.requests.send" in loaded
    assert not {"asyncio", "socket", "ssl", "logging", "msgpack", "mmh3"} & set(loaded)


# --- each declaration


@every_type
def test_declaration_is_sound(header_type: type[Header]) -> None:
    fields = fields_of(header_type)
    keys = [spec.key for spec in fields]
    assert len(set(keys)) == len(keys)
    required = [spec.required for spec in fields]
    assert required == sorted(required, reverse=True)
    assert header_type.__doc__
    assert header_type.__doc__ != Header.__doc__
    for spec in fields:
        if spec.key in COMMON:
            assert (header_type, spec.key) == (SendMessage, "bname")


EXTREMES: dict[str, tuple[Any, Any]] = {
    "i32": (I32_MIN, I32_MAX),
    "i64": (I64_MIN, I64_MAX),
    "bool": (False, True),
}


def value_of(spec: FieldSpec, index: int, which: int) -> Any:
    """A value that is unlike that of every other field, at one end of the range or the other."""
    if spec.kind == "str":
        return f"{spec.name}\x01ü漢 {index}" if which else ""
    if spec.kind == "bool":
        return EXTREMES["bool"][which]
    return EXTREMES[spec.kind][which] + (-index if which else index)


@every_type
@pytest.mark.parametrize("which", [0, 1], ids=["low", "high"])
def test_all_fields_survive(header_type: type[Header], which: int) -> None:
    values = {spec.name: value_of(spec, i, which) for i, spec in enumerate(fields_of(header_type))}
    header = header_type(**values)
    ext = to_ext(header)
    assert list(ext) == [spec.key for spec in fields_of(header_type)]
    assert all(type(text) is str for text in ext.values())
    assert from_ext(header_type, ext, "X") == header
    assert {name: getattr(header, name) for name in values} == values


@every_type
def test_optional_fields_may_be_absent(header_type: type[Header]) -> None:
    fields = fields_of(header_type)
    values = {spec.name: value_of(spec, i, 1) for i, spec in enumerate(fields) if spec.required}
    sparse = header_type(**values)
    required = {spec.key for spec in fields if spec.required}
    ext = {key: text for key, text in to_ext(sparse).items() if key in required}
    assert ext.keys() == required
    assert from_ext(header_type, ext, "X") == sparse
    assert from_ext(header_type, ext | {"noSuchKey": "?"}, "X") == sparse
    for spec in fields:
        if not spec.required:
            assert getattr(sparse, spec.name) == spec.default
            assert spec.default in (None, False, 0, -1)


@every_type
def test_missing_required_key_is_named(header_type: type[Header]) -> None:
    fields = fields_of(header_type)
    ext = to_ext(header_type(**{spec.name: value_of(spec, i, 1) for i, spec in enumerate(fields)}))
    for spec in fields:
        cut = {key: text for key, text in ext.items() if key != spec.key}
        if not spec.required:
            assert getattr(from_ext(header_type, cut, "ASK (1)"), spec.name) == spec.default
            continue
        with pytest.raises(HeaderError) as caught:
            from_ext(header_type, cut, "ASK (1)")
        assert (caught.value.request, caught.value.field) == ("ASK (1)", spec.key)
        assert str(caught.value) == f"ASK (1): field {spec.key!r} is missing"


MALFORMED = {
    "i32": ["", "one", "1.5", " 1", "0x10", "1_0", "٣", str(I32_MAX + 1), str(I32_MIN - 1), "9" * 30],
    "i64": ["", "one", "1.5", " 1", "0x10", "1_0", "٣", str(I64_MAX + 1), str(I64_MIN - 1), "9" * 30],
    "bool": ["", "yes", "2", "truefalse"],
    "str": [],
}


@every_type
def test_malformed_value_is_named(header_type: type[Header]) -> None:
    fields = fields_of(header_type)
    ext = to_ext(header_type(**{spec.name: value_of(spec, i, 1) for i, spec in enumerate(fields)}))
    for spec in fields:
        for text in MALFORMED[spec.kind]:
            with pytest.raises(HeaderError) as caught:
                from_ext(header_type, ext | {spec.key: text}, "ASK (1)")
            assert (caught.value.request, caught.value.field) == ("ASK (1)", spec.key)
            assert str(caught.value).startswith(f"ASK (1): field {spec.key!r} is ")


def test_both_forms_of_a_send_mean_the_same() -> None:
    long = [(spec.name, spec.kind, spec.required, spec.default) for spec in fields_of(SendMessage)]
    short = [(spec.name, spec.kind, spec.required, spec.default) for spec in fields_of(SendMessageV2)]
    assert long == short
    assert "".join(spec.key for spec in fields_of(SendMessageV2)) == "abcdefghijklmn"


IRREGULAR = {
    "clients.UnregisterClient": {"clientID"},
    "clients.HeartBeatAnswer": {"IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE"},
    "queries.QueryMessage": {"_UNIQUE_KEY_QUERY"},
    "queries.QueryMessageAnswer": {"indexLastUpdatePhyoffset"},
    "pull.PullMessage": {"proxyFrowardClientId", "suspendTimeoutMillis", "maxMsgNums"},
    "pull.PullMessageRefusal": {"forbiddenType"},
    "namesrv.RegisterBroker": {"bodyCrc32", "heartbeatTimeoutMillis", "enableActingMaster"},
    "namesrv.BrokerHeartbeat": {"heartbeatTimeoutMills"},
    "send.SendMessage": {"bname"},
    "send.SendMessageAnswer": {"MSG_REGION", "TRACE_ON", "batchUniqId", "recallHandle"},
    "recall.RecallMessageAnswer": {"MSG_REGION"},
    "admin.SetCommitLogReadMode": {"READ_AHEAD_MODE"},
    "pop.PopMessageAnswer": {"reviveQid"},
}


@pytest.mark.parametrize("name", IRREGULAR)
def test_irregular_keys(name: str) -> None:
    assert {spec.key for spec in fields_of(TYPES[name])} >= IRREGULAR[name]


# --- what a handler has to see although the key is missing


def test_requests_that_lack_a_key_but_have_an_answer() -> None:
    assert from_ext(GetRouteInfo, {}, "X").topic is None
    assert from_ext(PutKvConfig, {}, "X") == PutKvConfig(None, None, None)
    update = from_ext(UpdateConsumerOffset, {"consumerGroup": "g", "topic": "t"}, "X")
    assert (update.queue_id, update.commit_offset) == (None, None)


def test_values_by_hand() -> None:
    register = from_ext(
        RegisterBroker,
        {"brokerName": "a", "brokerAddr": "h:1", "clusterName": "c", "haServerAddr": "h:2", "brokerId": "+0"},
        "X",
    )
    assert register == RegisterBroker("a", "h:1", "c", "h:2", 0, None, None, False, 0)
    query = from_ext(
        QueryConsumerOffset, {"consumerGroup": "g", "topic": "t", "queueId": "3", "setZeroIfNotFound": "FALSE"}, "X"
    )
    assert query == QueryConsumerOffset("g", "t", 3, False)
    assert to_ext(query) == {"consumerGroup": "g", "topic": "t", "queueId": "3", "setZeroIfNotFound": "false"}


# --- captures


@pytest.mark.parametrize("name", golden.names())
def test_captured_headers_are_declared(name: str) -> None:
    exchanges = golden.exchanges(name)
    assert exchanges
    for exchange in exchanges:
        operation = OPERATIONS[exchange.request.code]
        header = from_ext(operation.request, exchange.request.ext, operation.code.name)
        assert to_ext(header) == own(exchange.request.ext), str(exchange.request)
        if (response := exchange.response) is None:
            continue
        header_type = REFUSALS.get((operation.code, response.code), operation.response)
        assert to_ext(from_ext(header_type, response.ext, operation.code.name)) == own(response.ext), str(response)


def test_captures_need_each_refusal() -> None:
    """So that an entry of REFUSALS cannot hide a declaration that is wrong."""
    seen = set()
    for name in golden.names():
        for exchange in golden.exchanges(name):
            if exchange.response and (key := (exchange.request.code, exchange.response.code)) in REFUSALS:
                seen.add(key)
                with pytest.raises(HeaderError):
                    from_ext(OPERATIONS[key[0]].response, exchange.response.ext, "X")
    assert seen == set(REFUSALS)


@pytest.mark.parametrize(
    ("header_type", "late"),
    [(SendMessageV2, set()), (SendMessageAnswer, set()), (PullMessage, {"subscription"})],
)
def test_fields_are_in_the_order_of_binary_headers(header_type: type[Header], late: set[str]) -> None:
    """`late`: optional keys that Java writes before a required one."""
    declared = [spec.key for spec in fields_of(header_type)]
    seen = 0
    for name in golden.names():
        for exchange in golden.exchanges(name):
            operation = OPERATIONS[exchange.request.code]
            for frame, kind in ((exchange.request, operation.request), (exchange.response, operation.response)):
                if frame is None or kind is not header_type or not frame.is_binary:
                    continue
                keys = [key for key in frame.ext if key in declared and key not in late]
                assert keys == [key for key in declared if key in keys], str(frame)
                seen += 1
    assert seen > 5


def sent_headers(case: golden.RawCase) -> Iterator[dict[str, Any]]:
    """The JSON headers of known requests among the bytes of a case."""
    data = case.sent
    while len(data) > 8:
        length, word = int.from_bytes(data[:4], "big"), int.from_bytes(data[4:8], "big")
        try:
            header = json.loads(data[8 : 8 + word])
        except ValueError:
            return
        if isinstance(header, dict) and header.get("code") in OPERATIONS and not header["flag"] & 1:
            yield header
        data = data[4 + length :]


#: Cases whose header is wrong, and the key; real brokers answer them with SYSTEM_ERROR.
WRONG = {
    "no-extfields": "a",
    "send-v2-empty-ext": "a",
    "send-v2-missing-topic": "b",
    "send-v2-not-a-number": "e",
}


@pytest.mark.parametrize("name", ["raw-cases", "raw-cases-49"])
def test_odd_requests(name: str) -> None:
    wrong = set()
    decoded = 0
    for case in golden.raw_cases(name):
        for header in sent_headers(case):
            operation = OPERATIONS[header["code"]]
            ext = header.get("extFields") or {}
            if case.case not in WRONG:
                decoded += isinstance(from_ext(operation.request, ext, case.case), operation.request)
                continue
            wrong.add(case.case)
            with pytest.raises(HeaderError) as caught:
                from_ext(operation.request, ext, request_name(operation.code))
            assert (caught.value.request, caught.value.field) == ("SEND_MESSAGE_V2 (310)", WRONG[case.case])
            assert [answer["code"] for answer, _, _ in case.answers] == [ResponseCode.SYSTEM_ERROR]
    assert wrong == set(WRONG)
    assert decoded > 100


@pytest.mark.parametrize("name", ["raw-cases", "raw-cases-49"])
def test_answers_to_odd_requests_are_declared(name: str) -> None:
    checked = 0
    for case in golden.raw_cases(name):
        sent = list(sent_headers(case))
        if len(sent) != 1:
            continue
        operation = OPERATIONS[sent[0]["code"]]
        specs = {spec.key: spec for spec in fields_of(operation.response)}
        for answer, _, _ in case.answers:
            if not answer["flag"] & 1:
                continue
            for key, text in own(answer.get("extFields") or {}).items():
                specs[key].parse(text)
                checked += 1
    assert checked > 50
