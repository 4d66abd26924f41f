"""One Spark session and one broker for all tests of the data source. Every test has topics of its own.

Starting Spark takes seconds, so it is started once a run, by the first test that needs it; tests that need settings of
their own, or that kill Spark, start processes (see `support.spark_driver`). Those that take half a minute and more
begin with the first test and go on beside all others; who looks at what they did comes last.
"""

import logging
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cometmq.spark import session
from cometmq.spark.link import close_links
from cometmq.testing import EmbeddedBroker
from support import real_rocketmq
from support.background import Background
from support.cluster import BROKER_NAME, REAL, Cluster
from support.spark_driver import SETTINGS, SINKS, Home
from support.spark_installed import (
    DRIVER,
    ROOT,
    Drivers,
    bare_environment,
    build_wheel,
    clean_environ,
    install,
    path_without_java,
    run_driver,
    submit,
)
from support.spark_kills import Killed, filled_topic, kill_drivers, options_of
from support.spark_topics import TopicKit

#: The fixtures that keep processes busy, in the order in which they begin.
BUSY = ("drivers", "killed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks at the work of processes comes last."""
    items.sort(key=lambda item: max((1 + BUSY.index(each) for each in BUSY if each in _fixtures(item)), default=0))


@pytest.fixture(scope="session", autouse=True)
def _begun(request: pytest.FixtureRequest) -> None:
    """Processes begin with the first test, if any test of this run will look at their work."""
    wanted = {fixture for item in request.session.items for fixture in _fixtures(item)}
    for each in BUSY:
        if each in wanted:
            request.getfixturevalue(each)


def _fixtures(item: pytest.Item) -> list[str]:
    return getattr(item, "fixturenames", [])


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


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicKit]:
    """Topics on a running RocketMQ 5.3, which filters by SQL92 too."""
    if reason := real_rocketmq.available():
        pytest.skip(reason)
    settings = {"enablePropertyFilter": "true", "autoCreateTopicEnable": "false"}
    version = real_rocketmq.V5
    folder = tmp_path_factory.mktemp("real")
    with Cluster(REAL, folder, settings, nameserver_version=version, version=version) as running:
        yield TopicKit(running.nameserver, BROKER_NAME)


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


@pytest.fixture(scope="session")
def background() -> Iterator[Background]:
    """Where processes are kept busy."""
    with Background() as running:
        yield running


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel."""
    home = tmp_path_factory.mktemp("installed")
    python = bare_environment(home / "env")
    install(python, build_wheel(home))
    return python


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment without CometMQ."""
    return bare_environment(tmp_path_factory.mktemp("bare") / "env")


@pytest.fixture(scope="session")
def pyfiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The zip for `--py-files`."""
    target = tmp_path_factory.mktemp("zip") / "cometmq.zip"
    subprocess.run([sys.executable, ROOT / "scripts" / "pyfiles.py", target], check=True, timeout=60)
    return target


@pytest.fixture(scope="session")
def drivers(
    installed: Path,
    bare: Path,
    pyfiles: Path,
    background: Background,
    open_broker: EmbeddedBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Drivers:
    """Drivers that use CometMQ as it is installed."""
    home = tmp_path_factory.mktemp("drivers")
    files = f"{pyfiles},{pyfiles.with_name('pyspark_cometmq.py')}"
    no_java = clean_environ(PATH=path_without_java(home / "bin"), XDG_CACHE_HOME=str(home / "cache"))
    wheel = [installed, DRIVER, open_broker.nameserver, "OF_WHEEL", "local[2]"]
    return Drivers(
        of_wheel=background.start(partial(run_driver, wheel, no_java, _folder(home, "wheel"), background.is_over)),
        of_zip=background.start(
            partial(submit, files, bare, open_broker.nameserver, _folder(home, "zip"), background.is_over)
        ),
    )


def _folder(home: Path, name: str) -> Path:
    (home / name).mkdir()
    return home / name


@pytest.fixture(scope="session")
def open_broker() -> Iterator[EmbeddedBroker]:
    """A broker that makes topics when they are written to, as those that people start first."""
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as running:
        yield running


@pytest.fixture(scope="session")
def killed(broker: EmbeddedBroker, background: Background, tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Drivers that are killed in the middle of batches, three of each sink.

    One sink a life: half of what a life costs is the start of its first query.
    """
    topics, topic, home = TopicKit(broker.nameserver), "KILLED", Home(tmp_path_factory.mktemp("killed"))
    lines = [[(sink,)] * 3 for sink in SINKS]
    each = filled_topic(topics, topic, lines)
    options = options_of(topics, topic)
    killing = [
        background.start(partial(kill_drivers, home, options, line, seed, background.is_over))
        for seed, line in enumerate(lines)
    ]
    return Killed(home, topic, each, killing)
