"""clusterList: all brokers with their load."""

import time
from collections.abc import Mapping

import click

from cometmq.admin.command import Session, command, option, repeat, tell_failure
from cometmq.admin.output import Table
from cometmq.client.errors import BrokerError
from cometmq.protocol.bodies import BrokerData
from cometmq.remoting.errors import TransportError

_TITLES = (
    "#Cluster Name",
    "#Broker Name",
    "#BID",
    "#Addr",
    "#Version",
    "#InTPS(LOAD)",
    "#OutTPS(LOAD)",
    "#Timer(Progress)",
    "#PCWait(ms)",
    "#Hour",
    "#SPACE",
    "#ACTIVATED",
)
_HEAD = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %-11s  %-12s  %-8s  %-10s"
_ROW = "%-22s  %-22s  %-4s  %-22s %-16s  %16s  %30s  %-22s  %11s  %-12s  %-8s  %10s"
_TOTALS = ("#Cluster Name", "#Broker Name", "#InTotalYest", "#OutTotalYest", "#InTotalToday", "#OutTotalToday")
_TOTALS_ROW = "%-16s  %-32s %14s %14s %14s %14s"


@command(
    "clusterList",
    option("-m", "--moreStats", "more", is_flag=True, help="Print more stats"),
    option("-i", "--interval", "interval", type=click.FloatRange(0, min_open=True), help="Again every so many seconds"),
    option("-c", "--clusterName", "cluster", help="which cluster"),
    help="List cluster infos.",
)
async def cluster_list(session: Session, *, more: bool, interval: float | None, cluster: str | None) -> None:
    async def show() -> None:
        brokers = await session.admin.brokers_of_cluster(cluster)
        rows: list[tuple[object, ...]] = []
        found: list[dict[str, object]] = []
        for broker in sorted(brokers, key=lambda each: (each.cluster, each.broker_name)):
            for number, address in sorted(broker.broker_addrs.items()):
                figures = await _figures(session, address)
                rows.append(_totals(broker, figures) if more else _load(broker, number, address, figures))
                place = {"clusterName": broker.cluster, "brokerName": broker.broker_name, "brokerId": number}
                found.append({**place, "brokerAddr": address, "runtime": dict(figures)})
        session.out.result(found)
        if more:
            session.out.table(Table(_TOTALS, _TOTALS_ROW, rows, head=_TOTALS_ROW))
        else:
            session.out.table(Table(_TITLES, _ROW, rows, head=_HEAD))

    await repeat(session, interval, show)


async def _figures(session: Session, address: str) -> Mapping[str, str]:
    """What a broker tells about itself; nothing, and a line on stderr, when it does not answer."""
    try:
        return await session.admin.broker_status(address)
    except (BrokerError, TransportError) as error:
        tell_failure("clusterList", error)
        return {}


def _totals(broker: BrokerData, figures: Mapping[str, str]) -> tuple[object, ...]:
    def between(what: str, since: str, until: str) -> int:
        return _number(figures, f"msg{what}Total{until}") - _number(figures, f"msg{what}Total{since}")

    days = (("YesterdayMorning", "TodayMorning"), ("TodayMorning", "TodayNow"))
    return (broker.cluster, broker.broker_name, *(between(what, *day) for day in days for what in ("Put", "Get")))


def _load(broker: BrokerData, number: int, address: str, figures: Mapping[str, str]) -> tuple[object, ...]:
    def load(pool: str) -> str:
        size = figures.get(f"{pool}ThreadPoolQueueSize", "N")
        return f"{size},{figures.get(f'{pool}ThreadPoolQueueHeadWaitTimeMills', 'N')}ms"

    out_tps = _first(figures, "getTransferredTps", "getTransferedTps")
    return (
        broker.cluster,
        broker.broker_name,
        number,
        address,
        figures.get("brokerVersionDesc", ""),
        f"{_first(figures, 'putTps'):9.2f}({load('send')})",
        f"{out_tps:9.2f}({load('pull')}|{load('ack')})",
        f"{_number(figures, 'timerReadBehind')}-{_number(figures, 'timerOffsetBehind')}("
        f"{_number(figures, 'timerCongestNum') / 10000:.1f}w, {_first(figures, 'timerEnqueueTps'):.1f}, "
        f"{_first(figures, 'timerDequeueTps'):.1f})",
        figures.get("pageCacheLockTimeMills", ""),
        f"{_hours(_number(figures, 'earliestMessageTimeStamp')):2.2f}",
        f"{_first(figures, 'commitLogDiskRatio'):.4f}",
        figures.get("brokerActive", ""),
    )


def _number(figures: Mapping[str, str], key: str) -> int:
    text = figures.get(key, "0").strip()
    return int(text) if text.removeprefix("-").isdigit() else 0


def _first(figures: Mapping[str, str], *keys: str) -> float:
    """The first number of a figure that holds several; the key may have had another spelling."""
    for key in keys:
        parts = figures.get(key, "").split()
        if parts:
            try:
                return float(parts[0])
            except ValueError:
                return 0.0
    return 0.0


def _hours(since: int) -> float:
    return (time.time() * 1000 - since) / 3_600_000 if since > 0 else 0.0
