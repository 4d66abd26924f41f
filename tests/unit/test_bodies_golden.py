"""Every body that was captured from RocketMQ decodes with its type, and encodes to the captured bytes again."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cometmq.protocol import fastjson
from cometmq.protocol.bodies import REQUEST_BODIES, RESPONSE_BODIES, Body, RegisterBrokerBody
from support import golden

#: Requests and responses whose body is messages, as they are sent or stored.
MESSAGES_IN_REQUEST = {10, 39, 309, 310, 320, 324, 325, 326}
MESSAGES_IN_RESPONSE = {11, 12, 33, 361, 200050}
#: The name of a group as bare text, and a table of a feature that RocketMQ writes with another library.
NOT_OURS_IN_REQUEST = {2002}
NOT_OURS_IN_RESPONSE = {2003}

#: Fields that 4.9 does not have yet. We read its bodies, and write those of 5.x.
SINCE_5 = {
    "attributes",
    "enableActingMaster",
    "heartbeatFingerprint",
    "mappingDataVersion",
    "onlyThisBroker",
    "stateVersion",
    "topicQueueMappingDetailMap",
    "topicQueueMappingInfoMap",
    "withoutSub",
}


def bodies(name: str) -> Iterator[tuple[golden.Frame, int, type[Body], bool]]:
    """The frames of a capture that carry a typed body: frame, request code, type, and whether the standard dialect."""
    for exchange in golden.exchanges(name):
        request, response = exchange.request, exchange.response
        code = request.code
        if request.whole and request.body and code not in MESSAGES_IN_REQUEST | NOT_OURS_IN_REQUEST:
            assert code in REQUEST_BODIES, f"{request}: no type for {request.body[:80]!r}"
            yield request, code, REQUEST_BODIES[code], False
        if response and response.whole and response.body and code not in MESSAGES_IN_RESPONSE | NOT_OURS_IN_RESPONSE:
            assert code in RESPONSE_BODIES, f"{response}: no type for {response.body[:80]!r}"
            yield response, code, RESPONSE_BODIES[code], code == 105 and request.version >= 401


def pruned(ours: Any, captured: Any) -> Any:
    """Ours without the fields that 4.9 does not have."""
    if isinstance(ours, dict):
        assert set(captured) <= set(ours)
        assert set(ours) - set(captured) <= SINCE_5
        return {key: pruned(value, captured[key]) for key, value in ours.items() if key in captured}
    if isinstance(ours, list):
        return [pruned(*pair) for pair in zip(ours, captured, strict=True)]
    return ours


def encoded_again(kind: type[Body], captured: bytes, *, standard: bool, is_49: bool) -> bytes:
    encoded = kind.decode(captured).encode(standard=standard)
    if is_49 and encoded[:1] == b"{":
        return fastjson.dumps(pruned(fastjson.loads(encoded), fastjson.loads(captured)), standard=standard)
    return encoded


@pytest.mark.parametrize("name", golden.names())
def test_captured_bodies_survive_a_round_trip(name: str) -> None:
    for frame, _, kind, standard in bodies(name):
        encoded = encoded_again(kind, frame.body, standard=standard, is_49="-49" in name)
        assert encoded == frame.body, str(frame)


#: Answers in `raw-cases` with a typed body: the case -> request code, and whether in the standard dialect.
RAW_ANSWERS = {
    "cluster-info": (106, False),
    "consume-stats-unknown": (208, False),
    "group-config-unknown": (352, False),
    "kv-list": (219, False),
    "namesrv-config": (319, False),
    "query-assignment": (400, False),
    "route-tbw102": (105, True),
    "route-tbw102-go": (105, False),
    "route-tbw102-old-client": (105, False),
    "route-tbw102-standard-json": (105, True),
    "system-topics": (304, False),
    "topic-list": (206, False),
    "topics-by-cluster": (224, False),
    "topics-by-cluster-unknown": (224, False),
    "unit-topics": (311, False),
}


@pytest.mark.parametrize("name", ["raw-cases", "raw-cases-49"])
def test_answers_to_raw_requests_survive_a_round_trip(name: str) -> None:
    seen = set()
    for case in golden.raw_cases(name):
        for _, body, _ in case.answers:
            if body and case.case in RAW_ANSWERS:
                code, standard = RAW_ANSWERS[case.case]
                kind = RESPONSE_BODIES[code]
                assert encoded_again(kind, body, standard=standard, is_49="-49" in name) == body, case.case
                seen.add(case.case)
    assert len(RAW_ANSWERS) - len(seen) <= 2  # two of the requests are new in 5.x


@pytest.mark.parametrize("name", golden.names())
def test_both_dialects_and_both_ways_to_decode_agree(name: str) -> None:
    for frame, _, kind, _ in bodies(name):
        body = kind.decode(frame.body)
        assert kind.decode(body.encode(standard=True)) == body, str(frame)
        assert kind.decode(body.encode(standard=False)) == body, str(frame)
        assert kind.decode(memoryview(frame.body)) == body, str(frame)
        if frame.body[:1] == b"{":
            # A field that nobody knows, in a form that only the tolerant way reads.
            assert kind.decode(b"{'odd':{0:[]}," + frame.body[1:].lstrip()) == body, str(frame)


def test_the_captures_cover_the_bodies_that_they_should() -> None:
    seen = Counter(code for name in golden.names() for _, code, _, _ in bodies(name))
    for code in (18, 21, 28, 34, 38, 41, 42, 43, 45, 46, 60, 61, 103, 105, 106, 200, 201, 202, 203, 204, 206, 208, 222):
        assert seen[code], code
    for code in (225, 300, 305, 307, 309, 315, 317, 318, 319, 321, 322, 328, 351, 400, 401, 402, 513, 907, 3001, 3010):
        assert seen[code], code
    assert sum(seen.values()) >= 800


def test_registrations_are_read_by_the_header_of_the_request() -> None:
    count = 0
    for name in golden.names():
        for exchange in golden.exchanges(name):
            request = exchange.request
            if request.code == 103 and request.body:
                compressed = request.ext.get("compressed") == "true"
                body = RegisterBrokerBody.from_request(request.body, compressed=compressed, version=request.version)
                assert body.topic_config_serialize_wrapper.topic_config_table
                assert body == RegisterBrokerBody.decode(request.body)
                count += 1
    assert count >= 16


def test_a_register_answer_without_body_is_usual() -> None:
    answers = [
        exchange.response
        for name in golden.names()
        for exchange in golden.exchanges(name)
        if exchange.request.code == 103 and exchange.response
    ]
    assert answers
    assert all(answer.body == b"" for answer in answers)
