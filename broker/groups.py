"""The consumer groups of a broker: their configuration, its version and file, and which group may not read what.

A change is on the disk before it counts, as with topics. Which members a group has now is known by `consumers`.
RocketMQ's SubscriptionGroupManager.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cometmq.broker import attributes
from cometmq.broker.config import BrokerConfig
from cometmq.broker.store.clock import Clock
from cometmq.broker.store.config_files import ConfigFile
from cometmq.broker.topics import next_version
from cometmq.protocol import names
from cometmq.protocol.bodies.groups import SubscriptionGroupConfig, SubscriptionGroupWrapper
from cometmq.protocol.bodies.registration import DataVersion

#: Bit of the forbidden table: the group may not read the topic. RocketMQ counts it by the bit of PERM_READ.
FORBIDDEN_READ: Final = 1 << 2
#: What RocketMQ's clients are called when nobody gives them a name: all of them would be one group.
DEFAULT_GROUPS: Final = frozenset({"DEFAULT_CONSUMER", "DEFAULT_PRODUCER"})

log = logging.getLogger(__name__)


class GroupTable:
    """All consumer groups of a broker."""

    def __init__(self, config: BrokerConfig, file: ConfigFile[SubscriptionGroupWrapper], clock: Clock) -> None:
        self._config = config
        self._file = file
        self._clock = clock
        self._table: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}
        self.data_version = DataVersion(timestamp=clock.wall())

    def load(self) -> None:
        """Reads the file and adds the groups that every broker has."""
        saved = self._file.load()
        if saved is not None:
            self._table = dict(saved.subscription_group_table)
            self._forbidden = {group: dict(topics) for group, topics in saved.forbidden_table.items()}
            self.data_version = saved.data_version
        for name in sorted(names.BUILT_IN_GROUPS):
            self._table.setdefault(name, SubscriptionGroupConfig(group_name=name))

    def configure(self, config: BrokerConfig) -> None:
        """Takes over changed settings."""
        self._config = config

    def save(self) -> None:
        """Writes the table as it is: at the end of a broker, for the built-in groups of a first start."""
        self._file.save(self.snapshot())

    def snapshot(self) -> SubscriptionGroupWrapper:
        return self._wrap(self._table, self._forbidden, self.data_version)

    # Looking up

    @property
    def table(self) -> Mapping[str, SubscriptionGroupConfig]:
        return self._table

    @property
    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Group -> topic -> bits of what is forbidden."""
        return self._forbidden

    def get(self, name: str) -> SubscriptionGroupConfig | None:
        return self._table.get(name)

    def find(self, name: str) -> SubscriptionGroupConfig | None:
        """The group, made with defaults when it is new and that is allowed; else None. Hot when it exists."""
        return self._table.get(name) or self.find_all([name])[0]

    def find_all(self, wanted: Iterable[str]) -> list[SubscriptionGroupConfig | None]:
        """Many groups, with one write for all that are new."""
        wanted = list(wanted)
        new = [name for name in dict.fromkeys(wanted) if name not in self._table and self._may_create(name)]
        if new:
            made = {name: SubscriptionGroupConfig(group_name=name) for name in new}
            self._replace(self._table | made, self._forbidden)
            log.info("created %d group(s) on first use: %s", len(new), ", ".join(new[:10]))
        return [self._table.get(name) for name in wanted]

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Whether the group may not read the topic. On the way of every pull."""
        forbidden = self._forbidden
        return bool(forbidden) and bool(forbidden.get(group, _NOTHING).get(topic, 0) & FORBIDDEN_READ)

    # Changing

    def update(self, config: SubscriptionGroupConfig) -> bool:
        """Creates a group or changes it; False when it is like that already.

        Its attributes are changes, as with topics. Raises `InvalidName` and `AttributeRefused`.
        """
        return bool(self.update_all([config]))

    def update_all(self, configs: Iterable[SubscriptionGroupConfig]) -> list[SubscriptionGroupConfig]:
        """Creates or changes many, with one write, all or none. Gives those that were changed."""
        changed: dict[str, SubscriptionGroupConfig] = {}
        for config in configs:
            check_group_name(config.group_name)
            existing = changed.get(config.group_name) or self._table.get(config.group_name)
            current = None if existing is None else existing.attributes
            altered = attributes.alter(current, config.attributes, attributes.GROUP_ATTRIBUTES)
            group = msgspec.structs.replace(config, attributes=altered)
            if group != existing:
                changed[config.group_name] = group
        if changed:
            self._replace(self._table | changed, self._forbidden)
        return list(changed.values())

    def delete(self, name: str) -> bool:
        """Forgets a group and what it is forbidden; its offsets are not known here. False when there is none."""
        if name not in self._table and name not in self._forbidden:
            return False
        table = {group: config for group, config in self._table.items() if group != name}
        self._replace(table, {group: topics for group, topics in self._forbidden.items() if group != name})
        log.info("deleted the group %s", name)
        return True

    def set_readable(self, group: str, topic: str, readable: bool) -> bool:
        """Allows or forbids the group to read the topic; False when nothing changes.

        RocketMQ allows *all* topics of a group when one is allowed again, and does not save that: a defect.
        """
        if self.is_forbidden(group, topic) != readable:
            return False
        topics = dict(self._forbidden.get(group, _NOTHING))
        bits = topics.get(topic, 0)
        topics[topic] = bits & ~FORBIDDEN_READ if readable else bits | FORBIDDEN_READ
        topics = {name: bits for name, bits in topics.items() if bits}
        forbidden = self._forbidden | {group: topics}
        self._replace(self._table, {name: table for name, table in forbidden.items() if table})
        return True

    def _may_create(self, name: str) -> bool:
        config = self._config
        by_system = config.enable_create_sys_group and names.is_system_group(name)
        if not config.auto_create_subscription_group and not by_system:
            return False
        try:
            check_group_name(name)
        except names.InvalidName as error:
            log.info("no group %r: %s", name[:200], error)
            return False
        return True

    def _replace(self, table: dict[str, SubscriptionGroupConfig], forbidden: dict[str, dict[str, int]]) -> None:
        version = next_version(self.data_version, self._clock)
        self._file.save(self._wrap(table, forbidden, version))
        self._table, self._forbidden, self.data_version = table, forbidden, version

    @staticmethod
    def _wrap(
        table: Mapping[str, SubscriptionGroupConfig], forbidden: Mapping[str, dict[str, int]], version: DataVersion
    ) -> SubscriptionGroupWrapper:
        return SubscriptionGroupWrapper(
            data_version=version,
            forbidden_table={group: dict(topics) for group, topics in forbidden.items()},
            subscription_group_table=dict(table),
        )


_NOTHING: Mapping[str, int] = {}


def check_group_name(name: str) -> None:
    """Refuse a name that RocketMQ does not allow, and the names that clients have when nobody gave them one."""
    names.validate_group(name)
    if name in DEFAULT_GROUPS:
        raise names.InvalidName(f"The specified group can not equal {name}, please specify another one.")
