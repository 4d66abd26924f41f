"""A broker of ours for the tests of `mqadmin`, and a way to run a command in this process."""

import os
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from cometmq.admin.__main__ import main
from cometmq.testing import EmbeddedBroker

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(config={"brokerName": "broker-a"}) as running:
        yield running


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No nameserver by environment, and bodies of messages go to a folder of the test."""
    for name in ("NAMESRV_ADDR", "ROCKETMQ_NAMESRV_ADDR", "ROCKETMQ_HOME", "ROCKETMQ_NAMESRV_DOMAIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", os.fspath(tmp_path_factory.getbasetemp()))


@pytest.fixture(scope="module")
def mqadmin(broker: EmbeddedBroker) -> Run:
    """Run a command in this process, against the broker of the module."""

    def run(*arguments: str, nameserver: str | None = broker.nameserver) -> Result:
        given = [*arguments, *(["-n", nameserver] if nameserver is not None else [])]
        result = CliRunner().invoke(main, given)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run
