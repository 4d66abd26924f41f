"""A part of a table, for those who copy it page by page: slaves of RocketMQ after 5.3.3."""

from collections.abc import Mapping
from typing import Final, TypeVar

from cometmq.protocol.bodies.registration import DataVersion

#: Entries of a page when nobody says how many: RocketMQ's `splitMetadataSize`.
PAGE_SIZE: Final = 2000

_V = TypeVar("_V")


def page_of(
    table: Mapping[str, _V], version: DataVersion, start: int | None, count: int | None, seen: str | None
) -> dict[str, _V]:
    """The entries from a place on, sorted by name. Who has seen another version begins anew."""
    first = max(start or 0, 0)
    if seen and DataVersion.decode(seen.encode()) != version:
        first = 0
    size = count if count is not None and count > 0 else PAGE_SIZE
    return {name: table[name] for name in sorted(table)[first : first + size]}
