"""The broker's counters: what they say over a minute, an hour and a day, and what counting costs."""

import time

import pytest

from cometmq.broker.put_times import PutTimes
from cometmq.broker.stats import PHASES, BrokerStats
from cometmq.broker.stats_window import Rate
from cometmq.broker.store.clock import FakeClock
from cometmq.broker.store.runner import ManualRunner

CLUSTER = "DefaultCluster"
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


class Kit:
    """Stats on a clock that is moved."""

    def __init__(self, **settings: bool) -> None:
        self.clock = FakeClock()
        self.runner = ManualRunner(self.clock)
        self.stats = BrokerStats(CLUSTER, self.clock, **settings)
        self.stats.start(self.runner)

    def minute(self, name: str, key: str) -> Rate:
        rates = self.stats.rates(name, key)
        assert rates is not None, f"no {name} {key}"
        return rates.minute


@pytest.fixture
def kit() -> Kit:
    return Kit()


def test_a_minute_of_puts_is_summed_up_by_topic_and_by_queue(kit: Kit) -> None:
    for _ in range(60):
        kit.stats.put("T", 0, 2, 300)
        kit.stats.put("T", 1, 1, 100)
        kit.runner.advance(1)
    # The window is from the first to the last of seven looks, ten seconds apart.
    topic = kit.minute("TOPIC_PUT_NUMS", "T")
    assert 150 <= topic.sum <= 180
    assert topic.tps == pytest.approx(3.0, rel=0.1)
    assert topic.average == pytest.approx(1.5)
    assert kit.minute("QUEUE_PUT_NUMS", "T@0").average == 2
    assert kit.minute("QUEUE_PUT_SIZE", "T@1").average == 100
    assert kit.minute("TOPIC_PUT_SIZE", "T").tps == pytest.approx(400, rel=0.1)
    assert kit.stats.topic_put_tps("T") == topic.tps
    assert kit.stats.topic_put_tps("other") == 0.0


def test_the_first_look_counts_from_zero_ten_seconds_before(kit: Kit) -> None:
    kit.stats.put("T", 0, 50, 1)
    kit.runner.advance(10)
    assert kit.minute("TOPIC_PUT_NUMS", "T") == Rate(50, 5.0, 50.0)


def test_the_window_of_a_minute_forgets_what_is_older(kit: Kit) -> None:
    kit.stats.put("T", 0, 50, 1)
    kit.runner.advance(120)
    assert kit.minute("TOPIC_PUT_NUMS", "T") == Rate(0, 0.0, 0.0)


def test_hours_and_days_are_looked_at_in_longer_steps(kit: Kit) -> None:
    for _ in range(13):
        kit.stats.put("T", 0, 10, 1)
        kit.runner.advance(600)
    rates = kit.stats.rates("TOPIC_PUT_NUMS", "T")
    assert rates is not None
    assert rates.hour.sum == 60
    assert rates.hour.tps == pytest.approx(1 / 60)
    # The last look was at the beginning of the third hour, after the thirteenth put.
    assert rates.day.sum == 130


def test_a_day_has_25_looks(kit: Kit) -> None:
    kit.stats.put("T", 0, 7, 1)
    for _ in range(30):
        kit.stats.put("T", 0, 1, 1)
        kit.runner.advance(3600)
    rates = kit.stats.rates("TOPIC_PUT_NUMS", "T")
    assert rates is not None
    assert rates.day.sum == 24


def test_reads_are_counted_by_group(kit: Kit) -> None:
    kit.stats.got("G", "T", 3, 32, 3200)
    kit.stats.got_miss()
    kit.stats.get_latency("G", "T", 3, 40)
    kit.runner.advance(10)
    assert kit.minute("GROUP_GET_NUMS", "T@G").sum == 32
    assert kit.minute("GROUP_GET_SIZE", "T@G").sum == 3200
    assert kit.minute("QUEUE_GET_NUMS", "T@3@G").sum == 32
    assert kit.minute("QUEUE_GET_SIZE", "T@3@G").sum == 3200
    assert kit.minute("GROUP_GET_LATENCY", "3@T@G").average == 40
    assert kit.stats.group_get_tps("G", "T") == pytest.approx(3.2)
    assert kit.stats.longest_get == 40
    assert kit.stats.totals() == (0, 1, 1, 32)


def test_system_topics_count_for_the_broker_and_not_for_its_users(kit: Kit) -> None:
    # A delayed message: first where it waits, then where it goes.
    kit.stats.put(SCHEDULE, 2, 1, 100)
    kit.stats.put("T", 0, 1, 100)
    kit.stats.got("CID_RMQ_SYS_x", SCHEDULE, 2, 1, 100)
    kit.stats.got("G", "T", 0, 1, 100)
    kit.runner.advance(10)
    assert kit.minute("BROKER_PUT_NUMS", CLUSTER).sum == 2
    assert kit.minute("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", CLUSTER).sum == 1
    assert kit.minute("BROKER_GET_NUMS", CLUSTER).sum == 2
    assert kit.minute("BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC", CLUSTER).sum == 1
    assert kit.stats.put_day.now == 1
    assert kit.stats.get_day.now == 1
    assert kit.stats.put_size == 200


def test_what_is_rare_has_its_own_keys(kit: Kit) -> None:
    kit.stats.send_back("G", "T")
    kit.stats.dlq("G", "T")
    kit.stats.channel("CONNECT")
    kit.stats.add("CONSUMER_REGISTER_TIME", value=5)
    kit.runner.advance(10)
    assert kit.minute("SNDBCK_PUT_NUMS", "T@G").sum == 1
    assert kit.minute("SNDBCK2DLQ_TIMES", "null@T@G@SEND_BACK_TO_DLQ").sum == 1
    assert kit.minute("DLQ_PUT_NUMS", "T@G").sum == 1
    assert kit.minute("CHANNEL_ACTIVITY", "CONNECT").sum == 1
    assert kit.minute("CONSUMER_REGISTER_TIME", CLUSTER).average == 5


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("TOPIC_PUT_NUMS", "unknown"),
        ("TOPIC_PUT_NUMS", ""),
        ("NO_SUCH_STATS", "T"),
        ("BROKER_PUT_NUMS", "OtherCluster"),
        ("QUEUE_PUT_NUMS", "T"),
        ("QUEUE_PUT_NUMS", "T@x"),
        ("QUEUE_PUT_NUMS", "T@-1"),
        ("QUEUE_PUT_NUMS", "T@" + "9" * 5000),
        ("GROUP_GET_LATENCY", "G"),
        ("GROUP_GET_FALL_SIZE", "0@T@G"),
    ],
)
def test_an_item_that_was_never_counted_is_not_there(kit: Kit, name: str, key: str) -> None:
    kit.stats.put("T", 0, 1, 1)
    kit.stats.got("G", "T", 0, 1, 1)
    kit.runner.advance(20)
    assert kit.stats.rates(name, key) is None


def test_an_item_is_there_before_it_was_looked_at(kit: Kit) -> None:
    kit.stats.put("T", 0, 1, 1)
    rates = kit.stats.rates("TOPIC_PUT_NUMS", "T")
    assert rates is not None
    assert rates.minute == Rate(0, 0.0, 0.0)


def test_without_detail_queues_are_counted_together() -> None:
    kit = Kit(detail=False)
    for queue_id in range(4):
        kit.stats.put("T", queue_id, 1, 10)
        kit.stats.got("G", "T", queue_id, 1, 10)
        kit.stats.get_latency("G", "T", queue_id, 8)
    kit.runner.advance(10)
    assert kit.minute("TOPIC_PUT_NUMS", "T").sum == 4
    assert kit.minute("GROUP_GET_LATENCY", "T@G").average == 8
    assert kit.stats.rates("QUEUE_PUT_NUMS", "T@0") is None
    assert kit.stats.rates("TOPIC_PUT_LATENCY", "0@T") is None


def test_a_deleted_topic_takes_its_counters_along(kit: Kit) -> None:
    for topic in ("T", "kept"):
        kit.stats.put(topic, 0, 1, 1)
        kit.stats.got("G", topic, 0, 1, 1)
        kit.stats.send_back("G", topic)
        kit.stats.dlq("G", topic)
    kit.stats.topic_deleted("T")
    for name, key in (
        ("TOPIC_PUT_NUMS", "{}"),
        ("QUEUE_PUT_NUMS", "{}@0"),
        ("GROUP_GET_NUMS", "{}@G"),
        ("SNDBCK_PUT_NUMS", "{}@G"),
        ("SNDBCK2DLQ_TIMES", "null@{}@G@SEND_BACK_TO_DLQ"),
    ):
        assert kit.stats.rates(name, key.format("T")) is None, name
        assert kit.stats.rates(name, key.format("kept")) is not None, name
    # The totals keep what was.
    assert kit.stats.totals().put == 2


def test_a_deleted_group_takes_its_counters_along(kit: Kit) -> None:
    kit.stats.put("T", 0, 1, 1)
    for group in ("G", "kept"):
        kit.stats.got(group, "T", 0, 1, 1)
        kit.stats.send_back(group, "T")
    kit.stats.group_deleted("G")
    assert kit.stats.rates("GROUP_GET_NUMS", "T@G") is None
    assert kit.stats.rates("SNDBCK_PUT_NUMS", "T@G") is None
    assert kit.stats.rates("GROUP_GET_NUMS", "T@kept") is not None
    assert kit.stats.rates("TOPIC_PUT_NUMS", "T") is not None


def test_counters_stay_when_the_broker_is_told_so() -> None:
    kit = Kit(auto_delete=False)
    kit.stats.put("T", 0, 1, 1)
    kit.stats.topic_deleted("T")
    assert kit.stats.rates("TOPIC_PUT_NUMS", "T") is not None


def test_totals_are_rates_over_ten_seconds_a_minute_and_ten_minutes(kit: Kit) -> None:
    for _ in range(600):
        kit.stats.put("T", 0, 4, 1)
        kit.stats.got("G", "T", 0, 8, 1)
        kit.stats.got_miss()
        kit.runner.advance(1)
    for _ in range(30):
        kit.runner.advance(1)
    assert kit.stats.totals_per_second(10) == (0.0, 0.0, 0.0, 0.0)
    assert kit.stats.totals_per_second(60) == pytest.approx((2.0, 0.5, 0.5, 4.0))
    assert kit.stats.totals_per_second(600) == pytest.approx((3.8, 0.95, 0.95, 7.6))


def test_rates_of_a_young_broker_are_over_its_life(kit: Kit) -> None:
    assert kit.stats.totals_per_second(10) == (0.0, 0.0, 0.0, 0.0)
    kit.stats.put("T", 0, 4, 1)
    kit.runner.advance(2)
    assert kit.stats.totals_per_second(600)[0] == pytest.approx(2.0)


def test_midnight_moves_the_totals_of_the_day(kit: Kit) -> None:
    kit.stats.put("T", 0, 10, 1)
    kit.stats.got("G", "T", 0, 3, 1)
    kit.runner.advance(24 * 3600)
    kit.stats.put("T", 0, 5, 1)
    assert kit.stats.put_day == (0, 10, 15)
    kit.runner.advance(24 * 3600)
    assert kit.stats.put_day == (10, 15, 15)
    assert kit.stats.get_day == (3, 3, 3)


def test_only_one_timer_is_set_and_none_is_left(kit: Kit) -> None:
    for number in range(50):
        kit.stats.put(f"T{number}", 0, 1, 1)
    kit.runner.advance(5)
    assert kit.runner.timers() == 1
    kit.stats.stop()
    assert kit.runner.timers() == 0


def test_each_second_looks_at_a_tenth_of_the_counters(kit: Kit) -> None:
    for number in range(100):
        kit.stats.put(f"T{number}", 0, 1, 1)
    kit.runner.advance(1)
    seen = sum(kit.minute("TOPIC_PUT_NUMS", f"T{number}").sum for number in range(100))
    assert seen <= 2 * 100 / PHASES
    kit.runner.advance(9)
    assert sum(kit.minute("TOPIC_PUT_NUMS", f"T{number}").sum for number in range(100)) == 100


# Times of puts


def test_times_of_puts_fall_into_the_buckets_that_tools_print() -> None:
    times = PutTimes()
    for milliseconds in (0, 0, 1, 10, 11, 50, 51, 150, 300, 700, 1500, 10_000, 10_001):
        times.add(milliseconds)
    assert times.distribution() == (
        "[<=0ms]:2 [0~10ms]:2 [10~50ms]:2 [50~100ms]:1 [100~200ms]:1 [200~500ms]:1 [500ms~1s]:1 [1~2s]:1 [2~3s]:0 "
        "[3~4s]:0 [4~5s]:0 [5~10s]:1 [10s~]:1 "
    )
    assert times.longest == 10_001


def test_percentiles_are_those_of_the_last_whole_minute(kit: Kit) -> None:
    for _ in range(990):
        kit.stats.put_latency(0)
    for _ in range(10):
        kit.stats.put_latency(100, "T", 3)
    assert kit.stats.put_times.percentile(0.99) == 0
    assert 95 < kit.stats.put_times.percentile(0.999) <= 100
    kit.runner.advance(60)
    kit.stats.put_latency(5000)
    assert 95 < kit.stats.put_times.percentile(0.999) <= 100
    kit.runner.advance(60)
    assert 4000 < kit.stats.put_times.percentile(0.999) <= 5000
    assert kit.stats.rates("TOPIC_PUT_LATENCY", "3@T") is not None


def test_percentiles_without_a_put_are_zero() -> None:
    assert PutTimes().percentile(0.99) == 0.0


def test_counting_costs_well_below_a_microsecond(kit: Kit) -> None:
    stats = kit.stats

    def once() -> float:
        begin = time.perf_counter()
        for _ in range(2000):
            stats.put("TopicTest", 3, 1, 200)
        return (time.perf_counter() - begin) / 2000

    # The best of many short runs: what the code costs, not what else the machine does.
    assert min(once() for _ in range(50)) < 1e-6
