"""The requests of real clients, as they were captured, get from our broker the answers of the real one.

Every capture is played against a broker of its own that knows what the recorded one knew. Times, addresses and places
in the log do not count (`support.comparable`), nor remarks on success, nor the order of header fields. Whatever else
differs must be in `REASONS`. The same captures against the real broker (slow) show that the comparison itself is right.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cometmq.protocol.properties import parse_properties
from support import real_rocketmq
from support.cluster import OURS, REAL, own_broker_missing
from support.golden_broker import golden_cluster
from support.replay import Difference, Player
from support.replay_setup import before, prepare

#: With how many answers and server's requests there are to compare: a capture that is not played must not pass.
CAPTURES = {
    "producer-basic-json": 24,
    "producer-basic-bin": 23,
    "producer-basic-49": 18,
    "producer-basic-49-bin": 18,
    "producer-basic-ipv6-msgid": 23,
    "producer-compress-lz4": 6,
    "producer-compress-zstd": 6,
    "producer-errors": 10,
    "push-concurrent-json": 52,
    "push-concurrent-bin": 51,
    "push-concurrent-49": 55,
    "push-orderly-json": 44,
    "push-orderly-bin": 43,
    "push-orderly-49": 46,
    "lite-pull-json": 67,
    "lite-pull-bin": 66,
    "lite-pull-49": 67,
    "broadcast": 14,
    "request-reply": 36,
    "heartbeat-v2": 30,
    "namespaces": 33,
    "trace": 32,
}
#: A player mostly waits: retries come after 3 and 4 s. The real brokers are heavy.
AT_ONCE = {OURS: 6, REAL: 2}

NOT_SUPPORTED, NO_PERMISSION, MESSAGE_ILLEGAL = 3, 16, 13


def is_timer(found: Difference) -> bool:
    given = parse_properties(found.request.ext.get("i", "")) if found.request else {}
    return bool(given.keys() & {"TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"})


def refused(found: Difference, code: int) -> bool:
    """Refused with that code and a remark that says why."""
    return found.got is not None and found.got.code == code and bool(found.got.remark)


def timer_refused(found: Difference) -> bool:
    return is_timer(found) and refused(found, MESSAGE_ILLEGAL)


def recall_refused(found: Difference) -> bool:
    return found.request is not None and found.request.code == 370 and refused(found, NOT_SUPPORTED)


def of_four_nine(found: Difference) -> bool:
    """Answers of a 4.9 broker: every field of them is in ours, and the messages are the same but for what 5.x adds."""
    if found.recorded is None or not found.recorded.file.startswith(FOUR_NINE):
        return False
    if found.expected_view is None or found.got_view is None or found.request is None:
        return False
    expected, got = found.expected_view, found.got_view
    if found.request.code == 14 and (expected["ext"], got["code"]) == ({"offset": "0"}, 22):
        return True  # an unknown offset of a retry topic: 0 of 4.9, not found of 5.x
    return (
        got["code"] == expected["code"]
        and expected["ext"].items() <= got["ext"].items()
        and same_remark(expected["remark"], got["remark"])
        and without_additions(got["body"]) == without_additions(expected["body"])
    )


FOUR_NINE = (
    "producer-basic-49",
    "push-concurrent-49",
    "push-orderly-49",
    "lite-pull-49",
)
ADDED_PROPERTIES = {"WAIT", "MSG_REGION", "TRACE_ON"}


def same_remark(expected: str | None, got: str | None) -> bool:
    """5.x names another page of the FAQ."""
    return (expected or "").partition("\nSee ")[0] == (got or "").partition("\nSee ")[0]


def without_additions(body: Any) -> Any:
    """A body without what 5.x has and 4.9 has not, and properties whatever their order."""
    if isinstance(body, dict):
        if "properties" in body and "queue_offset" in body:
            kept = parse_properties(body["properties"])
            return {**body, "properties": {key: kept[key] for key in kept.keys() - ADDED_PROPERTIES}}
        return {key: without_additions(item) for key, item in body.items() if key != "enableActingMaster"}
    if isinstance(body, list):
        return [without_additions(item) for item in body]
    return body


def route_on_its_way(found: Difference) -> bool:
    """The heartbeat before it made the retry topic; whether the nameserver has heard of it by now is a race."""
    if found.request is None or found.expected_view is None or found.got_view is None:
        return False
    codes = {found.expected_view["code"], found.got_view["code"]}
    return found.request.code == 105 and found.request.ext["topic"].startswith("%RETRY%") and codes == {0, 17}


#: Why an answer may be another one than the recorded one, and how it must look then.
REASONS: dict[str, Callable[[Difference], bool]] = {
    "timers of any length are not in this version: refused with 13": timer_refused,
    "with them the recall of a message: 3": recall_refused,
    "the recorded broker is a 4.9; ours answers as 5.x does": of_four_nine,
    "a new retry topic is on its way to the nameserver": route_on_its_way,
}
#: The real broker: timers and recall name moments of the recording, and its late timers are delivered at once.
REASONS_OF_REAL: dict[str, Callable[[Difference], bool]] = {
    "a moment of the recording is in the past": lambda found: is_timer(found) or recall(found) or after_timer(found),
    "the recorded broker is a 4.9": of_four_nine,
    "a new retry topic is on its way to the nameserver": route_on_its_way,
}


def recall(found: Difference) -> bool:
    return found.request is not None and found.request.code == 370


def after_timer(found: Difference) -> bool:
    """Sends to the queue that a late timer message went to."""
    request = found.request
    return request is not None and request.file.startswith("producer-basic") and request.ext.get("e") == "1"


@dataclass(frozen=True, slots=True)
class Played:
    compared: int
    differences: list[Difference]
    #: Requests whose answer had a header of another type.
    other_headers: int


def play(kind: str, capture: str, folder: Path) -> Played:
    with golden_cluster(kind, folder) as cluster:
        state = before(capture)
        prepare(state, cluster.address)
        links = {"client-broker": cluster.address, "client-namesrv": cluster.nameserver}
        player = Player(capture, links, dict(state.ends))
        differences = asyncio.run(player.play())
        return Played(player.compared, differences, len(player.other_headers))


class Stage:
    """Plays captures side by side; each is asked for by its own test."""

    def __init__(self, kind: str, folder: Path, captures: list[str]) -> None:
        self.kind = kind
        self._threads = ThreadPoolExecutor(AT_ONCE[kind])
        self._playing: dict[str, Future[Played]] = {
            capture: self._threads.submit(play, kind, capture, folder / capture) for capture in captures
        }

    def played(self, capture: str) -> Played:
        return self._playing[capture].result()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


@pytest.fixture(scope="module", params=[OURS, pytest.param(REAL, marks=[pytest.mark.slow, pytest.mark.interop])])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    reason = own_broker_missing() if request.param == OURS else real_rocketmq.available()
    if reason:
        pytest.skip(reason)
    wanted = {item.callspec.params.get("capture") for item in request.session.items if hasattr(item, "callspec")}
    running = Stage(
        request.param, tmp_path_factory.mktemp(f"replay-{request.param}"), [name for name in CAPTURES if name in wanted]
    )
    yield running
    running.close()


@pytest.mark.timeout(600)  # the first one waits for a place on the stage
@pytest.mark.parametrize("capture", CAPTURES)
def test_captured_requests_get_the_captured_answers(stage: Stage, capture: str) -> None:
    played = stage.played(capture)
    reasons = REASONS if stage.kind == OURS else REASONS_OF_REAL
    unexplained = [str(one) for one in played.differences if not any(fits(one) for fits in reasons.values())]
    assert not unexplained, f"{len(unexplained)} differences:\n" + "\n\n".join(unexplained)
    assert played.compared == CAPTURES[capture]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("capture", CAPTURES)
def test_answers_have_the_header_type_of_their_requests(stage: Stage, capture: str) -> None:
    if stage.kind == REAL:
        pytest.skip("the real broker answers in its own default type")
    assert stage.played(capture).other_headers == 0
