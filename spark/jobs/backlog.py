"""How far groups are behind, as the brokers say it: one sample of all queues.

All brokers are asked: groups that only commit offsets, as Spark's, have no retry topic to be found by. They are asked
side by side, and one that is silent takes nothing away from what the others say: a cluster in trouble is when somebody
wants to see a backlog. What `mqadmin consumerProgress` does.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from cometmq.client.admin.admin import Admin
from cometmq.client.errors import GroupNotFound, NoNameserver
from cometmq.protocol import names, namespaces
from cometmq.protocol.bodies.message_queue import MessageQueue as WireQueue
from cometmq.protocol.bodies.stats import OffsetWrapper
from cometmq.protocol.errors import CometMQError
from cometmq.remoting.errors import Timeout, TransportError
from cometmq.spark.access import Access
from cometmq.spark.errors import Unreachable
from cometmq.spark.jobs.errors import JobError
from cometmq.spark.link import Link, link_to

_T = TypeVar("_T")

#: Seconds that one sample may take.
_ASK: Final = 60.0
#: Questions to one broker at once.
_AT_ONCE: Final = 16

#: The offsets of each group.
_Tables = dict[str, dict[WireQueue, OffsetWrapper]]


class Sample(NamedTuple):
    """How far a group was in a queue at a time."""

    time: datetime
    group: str
    topic: str
    broker_name: str
    queue_id: int
    broker_offset: int
    consumer_offset: int
    backlog: int
    last_consumed: datetime | None


class Sampled(NamedTuple):
    """What the brokers said at a time, and those that did not, by address."""

    samples: Sequence[Sample]
    missing: Mapping[str, CometMQError]


class Sampler:
    """Asks the brokers. Groups that were named have to exist; of all groups those count that have offsets."""

    def __init__(self, access: Access, groups: Iterable[str]) -> None:
        self._link: Link = link_to(access)
        self._admin: Admin = self._link.client.admin(request_timeout=access.request_timeout)
        self._patience = access.request_timeout
        self._namespace = access.namespace
        self._groups = [namespaces.wrap(access.namespace, group) for group in groups]
        self._servers = ";".join(access.name_servers)

    def sample(self, now: datetime) -> Sampled:
        """One sample; an error when no broker answers, or none has a group that was named."""
        try:
            return self._link.run(self._sample(now), _ASK)
        except (NoNameserver, TransportError) as error:
            raise Unreachable(
                f"the cluster at {self._servers} does not answer ({error})", "check the addresses, and that it runs"
            ) from error

    async def _sample(self, now: datetime) -> Sampled:
        brokers = [_Broker(address, self._admin, self._patience) for address in await self._admin.masters()]
        groups = self._groups or await self._all_groups(brokers)
        await asyncio.gather(*(broker.ask_for(groups) for broker in brokers))
        missing = {broker.address: broker.error for broker in brokers if broker.error is not None}
        if missing and not any(broker.tables for broker in brokers):
            raise next(iter(missing.values()))
        tables: _Tables = {group: {} for group in groups}
        for broker in brokers:
            for group, table in broker.tables.items():
                tables[group] |= table
        for group, table in tables.items():
            if self._groups and not table and not missing:
                raise JobError(
                    f"the group {namespaces.unwrap(self._namespace, group)} has no offsets at {self._servers}",
                    "check its name (mqadmin consumerProgress lists the groups); it has some once it has consumed",
                )
        return Sampled([each for group, table in tables.items() for each in self._of(now, group, table)], missing)

    async def _all_groups(self, brokers: Iterable["_Broker"]) -> list[str]:
        """The groups that any broker has, of the namespace if there is one; without those of the system."""
        found = set().union(*await asyncio.gather(*(broker.groups() for broker in brokers)))
        if self._namespace:
            found = {group for group in found if namespaces.namespace_of(group) == self._namespace}
        return sorted(group for group in found if not names.is_system_group(group))

    def _of(self, now: datetime, group: str, table: Mapping[WireQueue, OffsetWrapper]) -> Iterable[Sample]:
        for queue, offset in table.items():
            yield Sample(
                now,
                namespaces.unwrap(self._namespace, group),
                namespaces.unwrap(self._namespace, queue.topic),
                queue.broker_name,
                queue.queue_id,
                offset.broker_offset,
                offset.consumer_offset,
                max(0, offset.broker_offset - offset.consumer_offset),
                _moment(offset.last_timestamp),
            )


class _Broker:
    """What one broker says in one sample. Mutable state: the tables, and what went wrong first."""

    def __init__(self, address: str, admin: Admin, patience: float) -> None:
        self.address = address
        self.tables: _Tables = {}
        self.error: CometMQError | None = None
        self._admin = admin
        self._patience = patience
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def groups(self) -> set[str]:
        found = await self._asked(self._admin.group_configs(self.address))
        return set(found or ())

    async def ask_for(self, groups: Iterable[str]) -> None:
        await asyncio.gather(*(self._ask_for(group) for group in groups))

    async def _ask_for(self, group: str) -> None:
        async with self._slots:
            if isinstance(self.error, TransportError):  # it would not answer this one either
                return
            found = await self._asked(self._admin.consume_stats_on(self.address, group))
            if found is not None:
                self.tables[group] = found.offset_table

    async def _asked(self, question: Awaitable[_T]) -> _T | None:
        """The answer; None when there is none."""
        try:
            async with asyncio.timeout(self._patience):
                return await question
        except GroupNotFound:
            return None
        except CometMQError as error:
            self.error = self.error or error
        except TimeoutError:
            self.error = self.error or Timeout(f"{self.address} did not answer within {self._patience:g} s")
        return None


def _moment(millis: int) -> datetime | None:
    return datetime.fromtimestamp(millis / 1000, UTC) if millis > 0 else None
