"""statsAll: rates and sums of all topics and the groups that consume them."""

from collections.abc import Iterable

from cometmq.admin.command import Session, command, option, tell_failure
from cometmq.admin.output import Table
from cometmq.client.errors import BrokerError, ClientError
from cometmq.protocol import names
from cometmq.protocol.bodies import BrokerStatsData
from cometmq.remoting.errors import TransportError

_TITLES = (
    "#Topic",
    "#Consumer Group",
    "#Accumulation",
    "#InTPS",
    "#OutTPS",
    "#InMsg24Hour",
    "#OutMsg24Hour",
)
_FORM = "%-64.64s  %-64.64s %12s %11s %11s %14s %14s"


@command(
    "statsAll",
    option("-a", "--activeTopic", "active", is_flag=True, help="print active topic only"),
    option("-t", "--topic", "topic", help="print select topic only"),
    help="Topic and Consumer tps stats.",
)
async def stats_all(session: Session, *, active: bool, topic: str | None) -> None:
    rows: list[tuple[object, ...]] = []
    for each in await session.admin.topics():
        is_wanted = topic is None or each == topic
        if is_wanted and not each.startswith((names.RETRY_PREFIX, names.DLQ_PREFIX)):
            rows += await _rows(session, each, active)
    session.out.table(Table(_TITLES, _FORM, rows, head=_FORM))


async def _rows(session: Session, topic: str, active: bool) -> list[tuple[object, ...]]:
    try:
        masters = await session.admin.masters_of_topic(topic)
        groups = await session.admin.groups_of_topic(topic)
    except (BrokerError, ClientError, TransportError) as error:
        tell_failure("statsAll", error)  # gone since it was listed, or its brokers are
        return []
    in_tps, in_sum = await _figure(session, masters, "TOPIC_PUT_NUMS", topic)
    if not groups:
        row = (topic, "", 0, f"{in_tps:.2f}", "", in_sum, "NO_CONSUMER")
        return [row] if in_sum > 0 or not active else []
    rows: list[tuple[object, ...]] = []
    for group in groups:
        out_tps, out_sum = await _figure(session, masters, "GROUP_GET_NUMS", f"{topic}@{group}")
        behind = await _accumulation(session, masters, group, topic)
        if in_sum > 0 or out_sum > 0 or not active:
            rows.append((topic, group, behind, f"{in_tps:.2f}", f"{out_tps:.2f}", in_sum, out_sum))
    return rows


async def _figure(session: Session, masters: Iterable[str], name: str, key: str) -> tuple[float, int]:
    """Rate of the last minute and sum of the day, over all masters. A broker that has no such figure counts nothing."""
    tps, total = 0.0, 0
    for address in masters:
        try:
            data = await session.admin.broker_stats(address, name, key)
        except BrokerError:
            continue  # nothing was sent or consumed there yet
        except TransportError as error:
            tell_failure("statsAll", error)
            continue
        tps += data.stats_minute.tps if data.stats_minute is not None else 0.0
        total += _sum_of_day(data)
    return tps, total


def _sum_of_day(data: BrokerStatsData) -> int:
    """The longest span that has a sum: a broker that has just started has none for the day."""
    spans = (data.stats_day, data.stats_hour, data.stats_minute)
    return next((span.sum for span in spans if span is not None and span.sum != 0), 0)


async def _accumulation(session: Session, masters: Iterable[str], group: str, topic: str) -> int:
    behind = 0
    for address in masters:
        try:
            stats = await session.admin.consume_stats_on(address, group, topic)
        except (BrokerError, TransportError) as error:
            tell_failure("statsAll", error)
            continue
        behind += sum(each.broker_offset - each.consumer_offset for each in stats.offset_table.values())
    return max(behind, 0)
