"""What a broker knew before a capture began, read off the capture, and made known to a running broker.

Topics that had a route at their first mention, queues whose first told offset is not 0, groups with an offset already:
the captures were taken one after the other on the same real broker.
"""

import json
from dataclasses import dataclass, field

from cometmq.protocol import properties
from support import comparable, golden
from support.golden import Frame
from support.plain_frames import Answer, call

GET_ROUTE, QUERY_OFFSET, UPDATE_OFFSET = 105, 14, 15
SEND_V2, SEND_BATCH, SEND_REPLY_V2 = 310, 320, 325
CREATE_TOPIC, CREATE_GROUP = 17, 200
PULLS = (11, 361)
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
#: Every broker has these.
BUILT_IN = {"TBW102", "DefaultCluster_REPLY_TOPIC", "SELF_TEST_TOPIC", "DefaultCluster", "broker-a", "BenchmarkTest"}
FILLER_TOPIC = "FillerOfDelays"


@dataclass
class Before:
    """The state before a capture."""

    #: Topic to (read queues, write queues, permission).
    topics: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    #: (topic, queue) to its end.
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    #: (group, topic, queue) to the committed offset.
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    #: Tag and keys of records from before, by (topic, queue, offset), as far as somebody read them.
    given: dict[tuple[str, int, int], dict[str, str]] = field(default_factory=dict)


def before(name: str) -> Before:
    """Reads the state off the capture."""
    state = Before()
    routed: set[str] = set()
    known: set[tuple[str, int]] = set()
    asked: set[tuple[str, str, int]] = set()
    for exchange in golden.exchanges(name):
        request, response = exchange.request, exchange.response
        if response is None or request.dir != "c2s":
            continue
        if request.code == GET_ROUTE and request.ext["topic"] not in routed:
            routed.add(request.ext["topic"])
            _route(state, request, response)
        elif request.code in (SEND_V2, SEND_BATCH, SEND_REPLY_V2) and "queueOffset" in response.ext:
            _sent(state, known, request, response)
        elif request.code == QUERY_OFFSET:
            key = (request.ext["consumerGroup"], request.ext["topic"], int(request.ext["queueId"]))
            if key not in asked and response.code == 0 and int(response.ext["offset"]) > 0:
                state.committed[key] = int(response.ext["offset"])
            asked.add(key)
        elif request.code == UPDATE_OFFSET:
            asked.add((request.ext["consumerGroup"], request.ext["topic"], int(request.ext["queueId"])))
        if request.code in PULLS:
            _pulled(state, known, request, response)
        if request.code in comparable.WITH_RECORDS and response.code == 0:
            for one in comparable.records(response.body):
                text = properties.decode_properties(one.properties)
                kept = {key: text[key] for key in ("TAGS", "KEYS") if key in text}
                state.given[one.topic, one.queue_id, one.queue_offset] = kept
    return state


def _route(state: Before, request: Frame, response: Frame) -> None:
    topic = request.ext["topic"]
    if response.code != 0 or topic in BUILT_IN:
        return
    route = Answer(0, body=response.body).json()
    (data,) = route["queueDatas"]
    state.topics[topic] = (data["readQueueNums"], data["writeQueueNums"], data["perm"])


def _sent(state: Before, known: set[tuple[str, int]], request: Frame, response: Frame) -> None:
    given = properties.parse_properties(request.ext.get("i", ""))
    if any(key.startswith("TIMER_") for key in given):
        return  # told the offset in the timer's queue
    queue = (request.ext["b"], int(request.ext["e"]))
    if "DELAY" in given:
        queue = (SCHEDULE_TOPIC, int(given["DELAY"]) - 1)
    if queue not in known and int(response.ext["queueOffset"]) > 0:
        state.ends[queue] = int(response.ext["queueOffset"])
    known.add(queue)


def _pulled(state: Before, known: set[tuple[str, int]], request: Frame, response: Frame) -> None:
    """The end of a retry queue: nobody sends to it, so its first pull tells."""
    queue = (request.ext["topic"], int(request.ext["queueId"]))
    if queue in known or not queue[0].startswith("%RETRY%") or "maxOffset" not in response.ext:
        return
    known.add(queue)
    end = int(request.ext["queueOffset"] if response.code == 0 else response.ext["maxOffset"])
    if end > 0:
        state.ends[queue] = end


def prepare(state: Before, broker: str) -> None:
    """Makes a running broker know it."""
    for topic, (read, write, perm) in state.topics.items():
        create(broker, topic, read, write, perm)
    for (topic, queue), end in state.ends.items():
        for offset in range(end):
            if topic == SCHEDULE_TOPIC:
                fill(broker, FILLER_TOPIC, 0, {"DELAY": str(queue + 1)})
            else:
                fill(broker, topic, queue, state.given.get((topic, queue, offset), {}))
    for group in {group for group, _, _ in state.committed}:
        good(call(broker, CREATE_GROUP, body=json.dumps({"groupName": group}).encode()))
    for (group, topic, queue), offset in state.committed.items():
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue), "commitOffset": str(offset)}
        good(call(broker, UPDATE_OFFSET, fields))


def create(broker: str, topic: str, read: int, write: int, perm: int) -> None:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(read),
        "writeQueueNums": str(write),
        "perm": str(perm),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    good(call(broker, CREATE_TOPIC, fields))


def fill(broker: str, topic: str, queue: int, given: dict[str, str]) -> None:
    """A message nobody looks at."""
    fields = {"a": "PG_filler", "b": topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0", "g": "1700000000000"}
    text = "".join(f"{key}\x01{value}\x02" for key, value in given.items())
    good(call(broker, SEND_V2, fields | {"h": "0", "i": text, "j": "0", "k": "false", "m": "false"}, b"filler"))


def good(answer: Answer) -> None:
    assert answer.code == 0, answer
