"""Header codecs: microseconds to decode a send request and to encode its answer, beside json.loads in the same run."""

import json
import timeit

import msgspec

from cometmq.protocol import binary_header, codec, json_header, msgpack_header
from cometmq.protocol.command import Command, SerializeType
from cometmq.protocol.frame import PREFIX_SIZE
from cometmq.protocol.requests.pull import PullMessageAnswer
from cometmq.protocol.requests.send import SendMessageAnswer, SendMessageV2

SEND = SendMessageV2(
    producer_group="PG_basic",
    topic="TopicBasic",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=3,
    sys_flag=0,
    born_timestamp=1794847241702,
    flag=0,
    properties="KEYS\x01k1 k2\x02UNIQ_KEY\x01C00002023FA44E0E2F2A50D38DE60002\x02WAIT\x01true\x02TAGS\x01TagA\x02",
    broker_name="broker-a",
)
ANSWER = SendMessageAnswer(
    msg_id="7F00000100002A9F000000000000391B",
    queue_id=3,
    queue_offset=12345,
    transaction_id="C00002023FA44E0E2F2A50D38DE60002",
)
PULL_ANSWER = PullMessageAnswer(suggest_which_broker_id=0, next_begin_offset=32, min_offset=0, max_offset=1000)


ROUNDS = 400
CALLS = 500


def microseconds(statements: list[str], names: dict[str, object]) -> list[float]:
    """The cheapest of many short rounds of each, taken in turns: a neighbour's load then hits all alike."""
    timers = [timeit.Timer(statement, globals=names) for statement in statements]
    best = [float("inf")] * len(timers)
    for _ in range(ROUNDS):
        for i, timer in enumerate(timers):
            best[i] = min(best[i], timer.timeit(CALLS))
    return [seconds / CALLS * 1e6 for seconds in best]


def main() -> None:
    command = Command(310, 0, 123456, 479, "JAVA", None, SEND)
    frames = {kind: codec.encode_command(kind, command) for kind in SerializeType}
    raw = {kind: frame[PREFIX_SIZE:] for kind, frame in frames.items()}
    text = raw[SerializeType.JSON].ljust(381)  # the length that the budget names
    raw[SerializeType.JSON] = text
    names = {
        "json": json,
        "msgspec": msgspec,
        "codec": codec,
        "json_header": json_header,
        "binary_header": binary_header,
        "msgpack_header": msgpack_header,
        "text": text,
        "binary": raw[SerializeType.ROCKETMQ],
        "packed": raw[SerializeType.MSGPACK],
        "frame": frames[SerializeType.JSON][4:],
        "TEMPLATE": json_header.response_template(SendMessageAnswer, trace_on=True, msg_region="DefaultRegion"),
        "MSG_ID": ANSWER.msg_id,
        "UNIQ_KEY": ANSWER.transaction_id,
        "ANSWER": ANSWER,
        "PULL_ANSWER": PULL_ANSWER,
    }
    rows = [
        ("json.loads of the JSON send header", "json.loads(text)", None),
        ("msgspec.json.decode, untyped", "msgspec.json.decode(text)", None),
        ("JSON: typed decode", "json_header.decode_request(text)", 1.5),
        ("binary: typed decode", "binary_header.decode_request(binary)", 5.0),
        ("msgpack: typed decode", "msgpack_header.decode_request(packed)", None),
        ("JSON: whole frame taken apart", "codec.decode(frame)", None),
        ("JSON: send answer by its template", "TEMPLATE(7, MSG_ID, 3, 12345, UNIQ_KEY, None, None)", 1.0),
        ("JSON: send answer encode", "codec.encode_response(0, 7, 0, ANSWER)", 1.0),
        ("binary: send answer encode", "codec.encode_response(1, 7, 0, ANSWER)", None),
        ("msgpack: send answer encode", "codec.encode_response(2, 7, 0, ANSWER)", None),
        ("JSON: pull answer encode", "codec.encode_response(0, 7, 0, PULL_ANSWER, None, 1000)", 1.0),
        ("JSON: answer without keys", "codec.encode_response(0, 7, 0, None, None, 300)", 1.0),
    ]
    print(f"{'':42}{'us':>8}{'budget':>9}  (headers: {', '.join(f'{k.name} {len(v)} bytes' for k, v in raw.items())})")
    for (name, _, budget), cost in zip(rows, microseconds([row[1] for row in rows], names), strict=True):
        print(f"{name:42}{cost:8.2f}{'' if budget is None else budget:>9}")


if __name__ == "__main__":
    main()
