"""Our broker and RocketMQ's own nameservers, of 5.3 and of 4.9: they know it as they know a broker of theirs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import SECONDS, BrokerProcess
from support.plain_frames import (
    answers,
    broker_addresses,
    call,
    cluster_info,
    create_topic,
    topic_list,
    topic_perms,
    topic_route,
)
from support.real_rocketmq import START_SECONDS, V4, V5, RealNameserver
from support.server_process import wait_for


@pytest.fixture(scope="module")
def nameservers(rocketmq: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RealNameserver]]:
    folder = tmp_path_factory.mktemp("real-nameservers")
    servers = [RealNameserver(folder / version, version=version) for version in (V5, V4)]
    try:
        for server in servers:
            server.start()
        for server in servers:
            server.wait_ready("an answer", START_SECONDS, lambda: answers(server.address))  # noqa: B023
        yield servers
    finally:
        for server in servers:
            server.kill()


@pytest.fixture
def both(nameservers: list[RealNameserver]) -> list[str]:
    return [server.address for server in nameservers]


def test_both_know_the_broker_and_its_topics(both: list[str], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "-n", ";".join(both), brokerName="mine", brokerClusterName="Ours") as process:
        address = process.ready()
        for nameserver in both:
            assert broker_addresses(nameserver)["mine"] == address
            assert cluster_info(nameserver)["clusterAddrTable"]["Ours"] == ["mine"]
            assert {"TBW102", "SELF_TEST_TOPIC", "mine", "Ours"} <= set(topic_list(nameserver))
        assert process.end() == 0
        assert process.stdout.count("unregistered from the nameserver") == 2
    for nameserver in both:
        assert "mine" not in broker_addresses(nameserver)
        assert topic_route(nameserver, "TBW102") is None


def test_a_new_topic_and_its_change_are_known_at_once(both: list[str], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "-n", ";".join(both), brokerName="mine") as process:
        address = process.ready()
        create_topic(address, "Fresh", 3)
        for nameserver in both:
            wait_for("the route", SECONDS, lambda: topic_route(nameserver, "Fresh"))  # noqa: B023
        create_topic(address, "Fresh", 5)

        def queues(nameserver: str) -> int:
            route = topic_route(nameserver, "Fresh")
            return 0 if route is None else int(route["queueDatas"][0]["readQueueNums"])

        for nameserver in both:
            wait_for("the change", SECONDS, lambda: queues(nameserver) == 5)  # noqa: B023


def test_permission_of_the_broker_reaches_the_routes(both: list[str], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "-n", ";".join(both), brokerName="mine") as process:
        address = process.ready()
        create_topic(address, "Fresh", 3)
        for nameserver in both:
            wait_for("the route", SECONDS, lambda: topic_perms(nameserver, "Fresh") == {"mine": 6})  # noqa: B023
        assert call(address, 25, body=b"brokerPermission=4\n").code == 0
        for nameserver in both:
            wait_for("no writing", SECONDS, lambda: topic_perms(nameserver, "Fresh") == {"mine": 4})  # noqa: B023


def test_a_killed_broker_is_gone_and_comes_back_with_its_topics(both: list[str], tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "-n", ";".join(both), brokerName="mine") as process:
        create_topic(process.ready(), "Kept", 2)
        process.kill()
        for nameserver in both:
            wait_for("its absence", SECONDS, lambda: "mine" not in broker_addresses(nameserver))  # noqa: B023
        process.start()
        process.ready(times=2)
        for nameserver in both:
            assert topic_perms(nameserver, "Kept") == {"mine": 6}


def test_a_restarted_nameserver_knows_the_broker_again_soon(
    nameservers: list[RealNameserver], both: list[str], tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path, "-n", ";".join(both), brokerName="mine") as process:
        address = process.ready()
        first = nameservers[0]
        first.kill()
        first.start()
        wait_for("the broker", START_SECONDS, lambda: _known(both[0], address))


def _known(nameserver: str, address: str) -> bool:
    try:
        return broker_addresses(nameserver).get("mine") == address
    except OSError:
        return False  # it starts yet


def test_acting_masters_are_accepted_by_the_new_generation(both: list[str], tmp_path: Path) -> None:
    settings = {"enableSlaveActingMaster": "true", "brokerHeartbeatInterval": "200"}
    with BrokerProcess(tmp_path, "-n", both[0], brokerName="mine", **settings) as process:
        process.ready()
        assert cluster_info(both[0])["brokerAddrTable"]["mine"]["enableActingMaster"] is True
