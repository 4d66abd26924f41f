"""A consumer gives messages back: retry topics, growing delays, dead letters, and everything that may be wrong.

On a store whose time is stepped; what real clients make of it is tested with them.
"""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.broker.groups import GroupTable
from cometmq.broker.handlers.send_back import SendBackRequests
from cometmq.broker.queue_locks import QueueLocks
from cometmq.broker.retry import DeadLetter, redirect_retry
from cometmq.broker.schedule import DelayDelivery
from cometmq.broker.state import BrokerState
from cometmq.broker.stats import BrokerStats
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.topics import PERM_READ, TopicTable
from cometmq.protocol.bodies.message_queue import MessageQueue
from cometmq.protocol.codes import CURRENT_VERSION
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.names import SCHEDULE_TOPIC
from cometmq.protocol.requests.send import SendMessageBack
from cometmq.remoting.dispatch import LATER, Response
from support.store_kit import StoreKit, message, read_queue, record_at

GROUP, RETRY, DLQ = "billing", "%RETRY%billing", "%DLQ%billing"


class Setup:
    """The state of a broker on a stepped store, with the handler under test."""

    def __init__(self, **properties: str) -> None:
        self.kit = StoreKit()
        config = BrokerConfig().with_properties({"brokerName": "broker-a", "brokerIP1": "127.0.0.1", **properties})
        self.state = state = BrokerState(config, self.kit.clock, self.kit.runner)
        state.files = files = ConfigFiles(self.kit.disk, self.kit.folder)
        state.store = self.kit.opened()
        state.topics = TopicTable(config, files.topics, self.kit.clock)
        state.groups = GroupTable(config, files.subscription_groups, self.kit.clock)
        state.topics.load()
        state.groups.load()
        state.locks = QueueLocks(self.kit.clock)
        state.stats = BrokerStats("DefaultCluster", self.kit.clock)
        levels = DelayLevels.parse(config.store.message_delay_level)
        state.delay = DelayDelivery(
            state.store, files.delay_offsets, levels, clock=self.kit.clock, runner=self.kit.runner
        )
        state.delay.load()
        state.delay.start()
        self.handler = SendBackRequests(state, choose=lambda count: count - 1)

    def stored(self, body: bytes = b"x", **properties: str) -> int:
        """Put a message; its physical offset."""
        return self.kit.put(self.state.store, message("Orders", 2, body, **properties)).physical_offset

    def give_back(self, offset: int, **fields: Any) -> Response:
        header = SendMessageBack(offset=offset, **{"group": GROUP, "delay_level": 0, **fields})
        answers: list[Response] = []
        request: Any = SimpleNamespace(header=header, version=fields.pop("version", CURRENT_VERSION))
        request.reply = answers.append
        result = self.handler.send_back(request)
        if result is not LATER:
            assert isinstance(result, Response)
            return result
        self.kit.runner.run()
        (answer,) = answers
        return answer


def test_the_copy_waits_in_the_schedule_topic_with_its_history() -> None:
    setup = Setup()
    offset = setup.stored(b"body", TAGS="a", UNIQ_KEY="U" * 32)
    assert setup.give_back(offset) == Response()
    (waiting,) = read_queue(setup.state.store, SCHEDULE_TOPIC, 2)
    origin = record_at(setup.state.store, offset)
    assert waiting.property_map() == {
        "TAGS": "a",
        "UNIQ_KEY": "U" * 32,
        "RETRY_TOPIC": "Orders",
        "WAIT": "false",
        "DELAY": "3",
        "ORIGIN_MESSAGE_ID": origin.message_id,
        "REAL_TOPIC": RETRY,
        "REAL_QID": "0",
    }
    assert (waiting.body, waiting.reconsume_times) == (b"body", 1)
    assert (waiting.born_host, waiting.born_timestamp) == (origin.born_host, origin.born_timestamp)
    retry = setup.state.topics.get(RETRY)
    assert retry is not None
    assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)


def test_each_try_waits_a_level_longer_and_the_last_one_ends_with_the_dead_letters() -> None:
    setup = Setup()
    first = offset = setup.stored(b"again and again")
    for times in range(16):
        assert setup.give_back(offset) == Response()
        setup.kit.clock.set_wall(setup.kit.clock.wall() + 7_201_000)
        setup.state.delay.poke()
        setup.kit.runner.advance(0.01)
        record = read_queue(setup.state.store, RETRY, 0)[-1]
        assert record.reconsume_times == times + 1
        assert record.property_map()["DELAY"] == str(min(3 + times, 18))
        offset = record.physical_offset
    assert setup.state.topics.get(DLQ) is None
    assert setup.give_back(offset) == Response()
    (dead,) = read_queue(setup.state.store, DLQ, 0)
    pairs = dead.property_map()
    assert (dead.body, dead.reconsume_times, pairs["DELAY"]) == (b"again and again", 17, "0")
    assert pairs["RETRY_TOPIC"] == "Orders"
    assert pairs["ORIGIN_MESSAGE_ID"] == record_at(setup.state.store, first).message_id
    assert len(read_queue(setup.state.store, RETRY, 0)) == 16


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"delay_level": 5}, (SCHEDULE_TOPIC, 4)),
        ({"delay_level": 99}, (SCHEDULE_TOPIC, 17)),
        ({"delay_level": -1}, (DLQ, 0)),
        ({"max_reconsume_times": 0}, (DLQ, 0)),
        ({"max_reconsume_times": 1}, (SCHEDULE_TOPIC, 2)),
    ],
)
def test_the_consumer_may_choose(fields: dict[str, int], where: tuple[str, int]) -> None:
    setup = Setup()
    assert setup.give_back(setup.stored(), **fields) == Response()
    assert len(read_queue(setup.state.store, *where)) == 1


def test_a_group_with_more_retry_queues_spreads_over_them() -> None:
    setup = Setup()
    group = setup.state.groups.find(GROUP)
    assert group is not None
    setup.state.groups.update(msgspec.structs.replace(group, retry_queue_nums=3))
    assert setup.give_back(setup.stored()) == Response()
    (waiting,) = read_queue(setup.state.store, SCHEDULE_TOPIC, 2)
    assert waiting.property_map()["REAL_QID"] == "2"


def test_a_group_without_retry_queues_lets_messages_go() -> None:
    setup = Setup()
    group = setup.state.groups.find(GROUP)
    assert group is not None
    setup.state.groups.update(msgspec.structs.replace(group, retry_queue_nums=0))
    end = setup.state.store.commit_log.max_offset
    assert setup.give_back(0) == Response()
    assert setup.state.store.commit_log.max_offset == end


@pytest.mark.parametrize("offset", [-1, 1, 999_999_999])
def test_an_offset_where_no_message_begins(offset: int) -> None:
    setup = Setup()
    setup.stored()
    answer = setup.give_back(offset)
    assert (answer.code, answer.remark) == (1, f"look message by offset failed, {offset}")


def test_a_group_that_is_not_there_and_not_made() -> None:
    setup = Setup(autoCreateSubscriptionGroup="false")
    answer = setup.give_back(setup.stored())
    assert answer.code == 26
    assert answer.remark is not None
    assert answer.remark.startswith(f"subscription group not exist, {GROUP}")


def test_a_broker_or_a_topic_that_takes_nothing() -> None:
    setup = Setup(brokerPermission="4")
    answer = setup.give_back(setup.stored())
    assert (answer.code, answer.remark) == (16, "the broker[127.0.0.1] sending message is forbidden")
    setup = Setup()
    setup.state.topics.create_internal(RETRY, 1, PERM_READ)
    answer = setup.give_back(setup.stored())
    assert (answer.code, answer.remark) == (16, f"the topic[{RETRY}] sending message is forbidden")


def test_a_store_that_takes_nothing_says_why() -> None:
    setup = Setup()
    offset = setup.stored()
    setup.state.store.puts.shut = "it is full"
    answer = setup.give_back(offset)
    assert (answer.code, answer.remark) == (1, "SERVICE_NOT_AVAILABLE it is full")


def test_cold_messages_are_read_in_a_thread() -> None:
    setup = Setup()
    setup.kit.memory = 0
    setup.state.store.close()
    setup.state.store = setup.kit.opened()
    offset = setup.stored(b"cold")
    setup.kit.runner.hold("read")
    answers: list[Response] = []
    request: Any = SimpleNamespace(
        header=SendMessageBack(offset=offset, group=GROUP, delay_level=1), version=CURRENT_VERSION, reply=answers.append
    )
    assert setup.handler.send_back(request) is LATER
    setup.kit.runner.run()
    assert answers == []
    setup.kit.runner.let_go("read")
    setup.kit.runner.run()
    assert answers == [Response()]


def test_a_body_that_was_damaged_on_the_disk_does_not_damage_the_end_of_the_log() -> None:
    """The copy has a checksum of its own: a start after it must not take it for a torn record."""
    setup = Setup()
    offset = setup.stored(b"a body that will be damaged", TAGS="a")
    found = setup.state.store.message_at(offset)
    assert found is not None
    with found:
        at = bytes(found.buffers()[0]).index(b"damaged")
        found.file.write(offset - found.file.start + at, [b"DAMAGED"])
    assert setup.give_back(offset) == Response()
    (waiting,) = read_queue(setup.state.store, SCHEDULE_TOPIC, 2)  # compares the checksum
    assert waiting.body == b"a body that will be DAMAGED"


def retried(reconsume_times: int, most: int | None, *, locked: bool = False) -> object:
    setup = Setup()
    if locked:
        setup.state.locks.lock(GROUP, "c", [MessageQueue(topic="Orders", broker_name="broker-a", queue_id=0)])
    header = SimpleNamespace(max_reconsume_times=most)
    return redirect_retry(setup.state, RETRY, reconsume_times, header, CURRENT_VERSION)


def test_sends_to_a_retry_topic_have_one_try_more() -> None:
    assert retried(16, None) is None
    assert retried(17, None) == DeadLetter(DLQ)
    assert retried(2, 2) is None
    assert retried(3, 2) == DeadLetter(DLQ)


def test_a_group_that_holds_locks_sends_what_has_come_to_its_end() -> None:
    assert retried(0, 16, locked=True) == DeadLetter(DLQ)


def test_other_topics_are_not_redirected() -> None:
    setup = Setup()
    header = SimpleNamespace(max_reconsume_times=None)
    assert redirect_retry(setup.state, "Orders", 99, header, CURRENT_VERSION) is None
