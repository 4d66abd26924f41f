"""A cluster with the settings under which the captures of tests/data/wire were taken."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster import Cluster

SETTINGS = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "messageDelayLevel": " ".join(f"{seconds}s" for seconds in range(1, 19)),
    "transactionTimeOut": "3000",
    "transactionCheckInterval": "3000",
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
}


@contextmanager
def golden_cluster(kind: str, folder: Path) -> Iterator[Cluster]:
    with Cluster(kind, folder, SETTINGS) as running:
        yield running
