"""One Spark session and one broker for all tests of the data source. Every test has topics of its own.

Starting Spark takes seconds, so it is started once a run, by the first test that needs it; tests that need settings of
their own, or that kill Spark, start processes (see `support.spark_driver`).
"""

import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark import session
from cometmq.spark.link import close_links
from cometmq.testing import EmbeddedBroker
from support.spark_driver import SETTINGS
from support.spark_topics import TopicKit


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session: two cores of this process's machine."""
    home = tmp_path_factory.mktemp("spark")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    settings = {
        **SETTINGS,
        "spark.sql.streaming.checkpointLocation": str(home / "checkpoints"),
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.local.dir": str(home / "local"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # pyspark's own sockets to its JVM
        running = session("cometmq tests", "local[2]", settings)
        running.sparkContext.setLogLevel("ERROR")
        yield running
        running.stop()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """The broker of all tests; who hurts it starts its own."""
    with EmbeddedBroker(config={"brokerName": "broker-a", "autoCreateTopicEnable": False}) as running:
        yield running
    close_links()


@pytest.fixture
def topics(broker: EmbeddedBroker) -> TopicKit:
    """Makes and fills topics on the broker of all tests."""
    return TopicKit(broker.nameserver)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Topics and groups that no other test uses: `name("T")`."""
    own = "".join(c if c.isalnum() else "_" for c in request.node.name)[-80:]
    return lambda prefix: f"{prefix}_{own}"


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """A checkpoint directory of the test's own."""
    return str(tmp_path / "checkpoint")
