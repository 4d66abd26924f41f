"""How a broker is doing: the table that `mqadmin clusterList` and `brokerStatus` print, and single figures.

Names and formats of the table are RocketMQ's: its tools parse them. What has no meaning here (queues of thread pools
that do not exist, timers) has the value of a broker at rest. RocketMQ's AdminBrokerProcessor and StoreStatsService.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from cometmq.broker.handlers.row import Row
from cometmq.protocol import names
from cometmq.protocol.bodies.registration import KVTable
from cometmq.protocol.bodies.stats import BrokerStatsData, BrokerStatsItem, CheckRocksdbCqWriteResult, HARuntimeInfo
from cometmq.protocol.codes import CURRENT_VERSION, RequestCode, ResponseCode, Version
from cometmq.protocol.fastjson import java_double
from cometmq.protocol.header import NoHeader
from cometmq.protocol.requests.admin import CheckRocksdbCqWriteProgress, ViewBrokerStats
from cometmq.remoting.dispatch import Permission, Request, Response

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState
    from cometmq.broker.stats_window import Rate

#: Seconds of the three rates of each kind.
SPANS: Final = (10, 60, 600)
#: RocketMQ's status "the check failed"; the text beside it says why.
_CHECK_ERROR: Final = 3

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = RuntimeRequests(state)
    read = Permission("Get", "Cluster")
    return [
        (RequestCode.GET_BROKER_RUNTIME_INFO, requests.get_runtime_info, read),
        (RequestCode.VIEW_BROKER_STATS_DATA, requests.view_stats, read),
        (RequestCode.GET_BROKER_HA_STATUS, requests.get_ha_status, read),
        (RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, requests.check_rocksdb_queues, read),
    ]


class RuntimeRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state

    def get_runtime_info(self, request: Request[NoHeader]) -> Response:
        return Response(body=KVTable(table=runtime_info(self._state)).encode())

    def view_stats(self, request: Request[ViewBrokerStats]) -> Response:
        """One item of the statistics over a minute, an hour and a day."""
        name, key = request.header.stats_name, request.header.stats_key
        rates = self._state.stats.rates(name, key)
        if rates is None:
            return Response(int(ResponseCode.SYSTEM_ERROR), remark=f"The stats <{name}> <{key}> not exist")
        minute, hour, day = map(_item, rates)
        return Response(body=BrokerStatsData(stats_day=day, stats_hour=hour, stats_minute=minute).encode())

    def get_ha_status(self, request: Request[NoHeader]) -> Response:
        """A master without slaves: this version does not replicate."""
        end = self._state.store.commit_log.max_offset
        return Response(body=HARuntimeInfo(master=True, master_commit_log_max_offset=end).encode())

    def check_rocksdb_queues(self, request: Request[CheckRocksdbCqWriteProgress]) -> Response:
        """Compares two kinds of consume queues where RocketMQ has both."""
        result = "there is one kind of consume queues here, and nothing to compare it with"
        return Response(body=CheckRocksdbCqWriteResult(check_result=result, check_status=_CHECK_ERROR).encode())


def _item(rate: "Rate") -> BrokerStatsItem:
    return BrokerStatsItem(avgpt=rate.average, sum=rate.sum, tps=rate.tps)


def runtime_info(state: "BrokerState") -> dict[str, str]:
    """All keys of the table. Reads disk usage, nothing else that could take time."""
    table = dict(_puts_and_gets(state))
    table.update(_store(state))
    table.update(_queues(state))
    for level, offset in state.delay.offsets.items():
        end = state.store.max_offset(names.SCHEDULE_TOPIC, level - 1)
        if not end:
            continue  # as in RocketMQ: a level that was never used is not shown
        table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
    table.update(
        bootTimestamp=str(state.boot_time),
        runtime=_duration(state.clock.wall() - state.boot_time),
        brokerActive="true" if state.config.is_master else "false",
        brokerVersion=str(CURRENT_VERSION),
        brokerVersionDesc=Version(CURRENT_VERSION).name,
        startAcceptSendRequestTimeStamp=str(state.config.start_accept_send_request_time_stamp),
        # Timers by the millisecond are not here yet: none waits.
        timerReadBehind="0",
        timerOffsetBehind="0",
        timerCongestNum="0",
        timerEnqueueTps="0.0",
        timerDequeueTps="0.0",
    )
    return table


def _puts_and_gets(state: "BrokerState") -> Iterator[tuple[str, str]]:
    stats = state.stats
    total = stats.totals().put
    yield "putMessageTimesTotal", str(total)
    yield "putMessageSizeTotal", str(stats.put_size)
    yield "putMessageAverageSize", java_double(stats.put_size / max(total, 1))
    yield "putMessageFailedTimes", str(stats.failed_puts)
    yield "putMessageEntireTimeMax", str(stats.put_times.longest)
    yield "putMessageDistributeTime", stats.put_times.distribution()
    yield "putLatency99", f"{stats.put_times.percentile(0.99):.2f}"
    yield "putLatency999", f"{stats.put_times.percentile(0.999):.2f}"
    yield "getMessageEntireTimeMax", str(stats.longest_get)
    rates = [stats.totals_per_second(span) for span in SPANS]
    yield "putTps", _three(put for put, _, _, _ in rates)
    yield "getFoundTps", _three(found for _, found, _, _ in rates)
    yield "getMissTps", _three(missed for _, _, missed, _ in rates)
    yield "getTotalTps", _three(found + missed for _, found, missed, _ in rates)
    yield "getTransferredTps", _three(transferred for _, _, _, transferred in rates)
    for name, day in (("Put", stats.put_day), ("Get", stats.get_day)):
        yield f"msg{name}TotalYesterdayMorning", str(day.yesterday_morning)
        yield f"msg{name}TotalTodayMorning", str(day.today_morning)
        yield f"msg{name}TotalTodayNow", str(day.now)


def _store(state: "BrokerState") -> Iterator[tuple[str, str]]:
    store = state.store
    log = store.commit_log
    log_ratio, queue_ratio, _ = store.cleaning.ratios()
    usage = store.cleaning.log_usage()
    yield "commitLogDiskRatio", java_double(log_ratio)
    yield f"commitLogDiskRatio_{log.folder}", java_double(log_ratio)
    yield "consumeQueueDiskRatio", java_double(queue_ratio)
    yield "commitLogDirCapacity", f"Total : {readable(usage.total)}, Free : {readable(usage.available)}."
    yield "commitLogMinOffset", str(log.min_offset)
    yield "commitLogMaxOffset", str(log.max_offset)
    yield "dispatchMaxBuffer", "0"
    yield "dispatchBehindBytes", str(store.dispatch.behind)
    yield "remainHowManyDataToFlush", readable(log.max_offset - store.watermarks.flushed)
    # RocketMQ shows the largest integer where there is no pool.
    yield "remainTransientStoreBufferNumbs", str(2**31 - 1)
    yield "pageCacheLockTimeMills", str(int(store.puts.write_age * 1000))
    yield "earliestMessageTimeStamp", str(store.reading.earliest_time_of_log())


def _queues(state: "BrokerState") -> Iterator[tuple[str, str]]:
    """Requests that wait for a thread in RocketMQ. Here sends wait for the log, and nothing else does."""
    keys = state.config.to_properties()
    sends = state.overload.open_sends
    waiting = {"send": sends}
    ages = {"send": state.store.puts.write_age if sends else 0.0}
    for name in ("send", "pull", "litePull", "query", "ack"):
        yield f"{name}ThreadPoolQueueSize", str(waiting.get(name, 0))
        yield f"{name}ThreadPoolQueueCapacity", keys[f"{name}ThreadPoolQueueCapacity"]
        yield f"{name}ThreadPoolQueueHeadWaitTimeMills", str(int(ages.get(name, 0.0) * 1000))
    yield "EndTransactionQueueSize", "0"
    yield "EndTransactionThreadPoolQueueCapacity", keys["endTransactionPoolQueueCapacity"]


def _three(rates: Iterator[float]) -> str:
    return " ".join(map(java_double, rates))


def _duration(milliseconds: int) -> str:
    """As RocketMQ puts it; a clock that was set back gives zero."""
    minutes, seconds = divmod(max(milliseconds, 0) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def readable(size: int) -> str:
    """Bytes for people, as RocketMQ writes them: `512 B`, `1.2 KiB`."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}"
