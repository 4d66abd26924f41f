"""Our nameserver among real ones: RocketMQ's brokers register with it, its clients and its mqadmin ask it.

What is asserted was first seen with RocketMQ's own nameserver in the same place; see conftest.
"""

import json
import re
import time
from collections.abc import Callable

import psutil
import pytest

from support.fleet import EXPIRY_SECONDS, RETURN_SECONDS, Fleet
from support.line_driver import LineDriver
from support.plain_frames import (
    cluster_info,
    create_topic,
    kv_config,
    register_now,
    set_nameserver_config,
    topic_list,
    topic_perms,
    topic_route,
)
from support.real_rocketmq import V4, V5, MqAdmin, RealBroker
from support.server_process import wait_for

Admin = Callable[..., MqAdmin]
ALL = {"broker-five", "broker-four", "broker-frail"}
CLIENTS = [f"java-{V5}", f"java-{V4}", "go"]

#: A closed socket is told by the kernel at once. The rest of this is for busy cores.
AT_ONCE_SECONDS = 2.0


def test_the_ready_line_is_rocketmqs(fleet: Fleet) -> None:
    """Scripts of operators wait for it."""
    for server in fleet.nameservers:
        ready = re.findall(r"^The Name Server boot success\. serializeType=JSON, address (.+)$", server.stdout, re.M)
        assert {address.rsplit(":", 1)[1] for address in ready} == {str(server.port)}


def test_brokers_of_two_versions_register_side_by_side(fleet: Fleet) -> None:
    for nameserver in (fleet.first, fleet.second):
        info = cluster_info(nameserver)
        assert {cluster: set(names) for cluster, names in info["clusterAddrTable"].items()} == {
            "FiveCluster": {"broker-five"},
            "FourCluster": {"broker-four"},
            "FrailCluster": {"broker-frail"},
        }
        for broker in fleet.brokers:
            data = info["brokerAddrTable"][broker.broker_name]
            assert data["brokerName"] == broker.broker_name
            assert data["cluster"] == broker.cluster
            assert data["brokerAddrs"] == {"0": broker.address}
            assert data["enableActingMaster"] is (broker is fleet.frail)
        # Each broker's own topics came with it: the names of its cluster and of itself are topics.
        topics = set(topic_list(nameserver))
        assert {name for broker in fleet.brokers for name in (broker.cluster, broker.broker_name)} <= topics
        # Both versions offer the topic for making topics; the frail one was told not to.
        assert topic_perms(nameserver, "TBW102") == {"broker-five": 7, "broker-four": 7}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_sends_and_consumes(fleet: Fleet, client: Callable[[str], LineDriver], name: str) -> None:
    """One topic over brokers of both versions: the client finds all queues and every message comes back once."""
    driver = client(name)
    topic = f"Interop_{name.replace('.', '_')}"
    fleet.make_topic(topic, fleet.five, fleet.four)
    queues = {(broker, queue) for broker in ("broker-five", "broker-four") for queue in range(2)}
    assert driver.route(fleet.first, topic) == queues
    sent = driver.produce(fleet.first, topic, 16, "blue")
    assert len({one.id for one in sent}) == 16
    assert {one.broker for one in sent} == {"broker-five", "broker-four"}
    received = driver.consume(fleet.first, f"group_{topic}", topic, 16)
    assert {(m.id, m.broker, m.queue, m.offset) for m in received} == {
        (m.id, m.broker, m.queue, m.offset) for m in sent
    }
    assert sorted(m.body for m in received) == sorted(f"blue-{i}" for i in range(16))
    assert {m.tag for m in received} == {"blue"}


@pytest.mark.parametrize("name", [f"java-{V5}", "go"])
def test_a_client_reads_what_another_sent(
    fleet: Fleet, client: Callable[[str], LineDriver], old_java: LineDriver, name: str
) -> None:
    """A topic nobody made: the old client's first sends make it, and its route reaches the reader."""
    reader = client(name)
    topic = f"Interop_Made_By_Sending_{name.replace('.', '_')}"
    sent = old_java.produce(fleet.both, topic, 4, "first")
    made_at = {one.broker for one in sent}
    fleet.everywhere(f"{topic} is known", 10, lambda at: topic_perms(at, topic).keys() == made_at)
    received = reader.consume(fleet.both, f"group_{topic}", topic, 4)
    assert {(m.id, m.body) for m in received} == {(m.id, f"first-{i}") for i, m in enumerate(sent)}


def test_mqadmin_reads_routes_and_clusters(fleet: Fleet, mqadmin: Admin) -> None:
    fleet.make_topic("Interop_Read", fleet.five, fleet.four, queues=3)
    at = ("-n", fleet.first)
    clusters, route, unknown, topics, config = (
        mqadmin("clusterList", *at),
        mqadmin("topicRoute", "-t", "Interop_Read", *at),
        mqadmin("topicRoute", "-t", "Interop_Nobody_Made_This", *at),
        mqadmin("topicList", *at),
        mqadmin("getNamesrvConfig", "-n", fleet.both),
    )

    rows = [line.split()[:5] for line in clusters.printed("\n", times=4).splitlines() if "127.0.0.1" in line]
    assert sorted(rows) == [
        ["FiveCluster", "broker-five", "0", fleet.five.address, "V5_3_3"],
        ["FourCluster", "broker-four", "0", fleet.four.address, "V4_9_7"],
        ["FrailCluster", "broker-frail", "0", fleet.frail.address, "V5_3_3"],
    ]

    told = json.loads(re.sub(r"\{(\d+):", r'{"\1":', route.printed("\n}\n")))
    assert sorted((b["cluster"], b["brokerName"], b["brokerAddrs"]["0"]) for b in told["brokerDatas"]) == [
        ("FiveCluster", "broker-five", fleet.five.address),
        ("FourCluster", "broker-four", fleet.four.address),
    ]
    queues = {"perm": 6, "readQueueNums": 3, "writeQueueNums": 3, "topicSysFlag": 0}
    assert sorted(told["queueDatas"], key=lambda q: q["brokerName"]) == [
        {"brokerName": "broker-five", **queues},
        {"brokerName": "broker-four", **queues},
    ]
    assert told["filterServerTable"] == {}

    unknown.complained("CODE: 17  DESC: No topic route info in name server for the topic: Interop_Nobody_Made_This\n")

    names = topic_list(fleet.first)
    assert sorted(topics.printed("\n", times=len(names)).split()) == sorted(names)

    for server in fleet.nameservers:
        config.printed(
            f"============{server.address}============\n",
            config_line("listenPort", str(server.port)),
            config_line("kvConfigPath", str(server.folder / "kvConfig.json")),
        )
    config.printed(
        config_line("scanNotActiveBrokerInterval", "200"), config_line("orderMessageEnable", "false"), times=2
    )


def config_line(key: str, value: str) -> str:
    return f"{key:<50}=  {value}\n"


def test_mqadmin_keeps_kv_config(fleet: Fleet, mqadmin: Admin) -> None:
    assert kv_config(fleet.first, "INTEROP", "colour") is None
    put = mqadmin("updateKvConfig", "-s", "INTEROP", "-k", "colour", "-v", "dark blue = 1", "-n", fleet.both)
    put.printed("create or update kv config to namespace success.")
    for server in fleet.nameservers:
        assert kv_config(server.address, "INTEROP", "colour") == "dark blue = 1"
        # On disk in RocketMQ's form, so that either nameserver can open the other's file.
        kept = json.loads((server.folder / "kvConfig.json").read_text())
        assert kept["configTable"]["INTEROP"] == {"colour": "dark blue = 1"}
    delete = mqadmin("deleteKvConfig", "-s", "INTEROP", "-k", "colour", "-n", fleet.both)
    delete.printed("delete kv config from namespace success.")
    for server in fleet.nameservers:
        assert kv_config(server.address, "INTEROP", "colour") is None
        assert "colour" not in (server.folder / "kvConfig.json").read_text()


def test_mqadmin_orders_a_topic(fleet: Fleet, mqadmin: Admin) -> None:
    """updateOrderConf writes the KV table, and updateNamesrvConfig makes routes show it."""
    topic, at = "Interop_Order", ("-n", fleet.both)
    fleet.make_topic(topic, fleet.five)
    allow = mqadmin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true", *at)
    forbidden = mqadmin("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "/elsewhere", *at)
    put = mqadmin("updateOrderConf", "-t", topic, "-m", "put", "-v", "broker-five:2", *at)
    try:
        put.printed(f"update orderConf success. topic=[{topic}], orderConf=[broker-five:2]")
        allow.printed("update name server config success![", fleet.first, fleet.second, "orderMessageEnable : true")
        for nameserver in (fleet.first, fleet.second):
            assert kv_config(nameserver, "ORDER_TOPIC_CONFIG", topic) == "broker-five:2"
            route = topic_route(nameserver, topic)
            assert route is not None
            assert route["orderTopicConf"] == "broker-five:2"
        get = mqadmin("updateOrderConf", "-t", topic, "-m", "get", *at)
        changed = mqadmin("getNamesrvConfig", *at)
        get.printed(f"get orderConf success. topic=[{topic}], orderConf=[broker-five:2]")
        changed.printed(config_line("orderMessageEnable", "true"), times=2)
    finally:
        for nameserver in (fleet.first, fleet.second):
            set_nameserver_config(nameserver, "orderMessageEnable", "false")
    delete = mqadmin("updateOrderConf", "-t", topic, "-m", "delete", *at)
    delete.printed(f"delete orderConf success. topic=[{topic}]")
    for nameserver in (fleet.first, fleet.second):
        assert kv_config(nameserver, "ORDER_TOPIC_CONFIG", topic) is None
        route = topic_route(nameserver, topic)
        assert route is not None
        assert not route.get("orderTopicConf")
    forbidden.complained("CODE: 16 ")


def test_mqadmin_takes_and_gives_back_write_permission(fleet: Fleet, mqadmin: Admin, java: LineDriver) -> None:
    topic = "Interop_Perm"
    fleet.make_topic(topic, fleet.five, fleet.four)
    hosted = sum("broker-five" in topic_perms(fleet.first, name) for name in topic_list(fleet.first))
    wipe = mqadmin("wipeWritePerm", "-b", "broker-five", "-n", fleet.both)
    wipe.printed(
        *(
            f"wipe write perm of broker[broker-five] in name server[{at}] OK, {hosted}"
            for at in (fleet.first, fleet.second)
        )
    )
    for nameserver in (fleet.first, fleet.second):
        assert topic_perms(nameserver, topic) == {"broker-five": 4, "broker-four": 6}
        # A wiped TBW102 keeps what else it may: read and inherit.
        assert topic_perms(nameserver, "TBW102") == {"broker-five": 5, "broker-four": 7}
    assert java.route(fleet.both, topic) == {("broker-four", 0), ("broker-four", 1)}
    add = mqadmin("addWritePerm", "-b", "broker-five", "-n", fleet.both)
    add.printed(
        *(
            f"add write perm of broker[broker-five] in name server[{at}] OK, {hosted}"
            for at in (fleet.first, fleet.second)
        )
    )
    for nameserver in (fleet.first, fleet.second):
        assert topic_perms(nameserver, topic) == {"broker-five": 6, "broker-four": 6}
        assert topic_perms(nameserver, "TBW102") == {"broker-five": 6, "broker-four": 7}
    assert len(java.route(fleet.both, topic)) == 4
    # The broker's next change of its topics puts its own permissions back.
    register_now(fleet.five.address)
    fleet.everywhere("TBW102 as before", 10, lambda at: topic_perms(at, "TBW102")["broker-five"] == 7)


def test_a_frozen_broker_is_removed_after_its_expiry(fleet: Fleet) -> None:
    """SIGSTOP: its sockets stay open, so silence alone tells. SIGCONT brings it back by itself."""
    fleet.frail.stop()
    stopped = time.monotonic()
    fleet.everywhere("frozen and forgotten", EXPIRY_SECONDS + 5, lambda at: fleet.known(at) == ALL - {"broker-frail"})
    assert time.monotonic() - stopped > EXPIRY_SECONDS / 2, "it went by its connection, not by its silence"
    assert topic_route(fleet.first, "broker-frail") is None
    fleet.frail.cont()
    fleet.frail.wait_registered(fleet.first, fleet.second, seconds=RETURN_SECONDS)
    assert topic_perms(fleet.second, "broker-frail") == {"broker-frail": 7}


def test_a_cut_link_is_as_a_frozen_broker(fleet: Fleet) -> None:
    """Only the nameserver behind the cut link forgets the broker; the other one keeps it."""
    fleet.proxy.freeze()
    cut = time.monotonic()
    wait_for("cut off and forgotten", EXPIRY_SECONDS + 5, lambda: fleet.known(fleet.second) == ALL - {"broker-frail"})
    assert time.monotonic() - cut > EXPIRY_SECONDS / 2, "it went by its connection, not by its silence"
    assert fleet.known(fleet.first) == ALL
    fleet.proxy.thaw()
    fleet.frail.wait_registered(fleet.second, seconds=RETURN_SECONDS)
    assert fleet.known(fleet.first) == ALL


def test_one_of_two_nameservers_may_die(fleet: Fleet, java: LineDriver, old_java: LineDriver) -> None:
    """Running clients go on through the other one, and a nameserver that comes back learns everything again."""
    before, after = "Interop_Before_Death", "Interop_After_Death"
    fleet.make_topic(before, fleet.five, fleet.four)
    # A list in an order that no other test uses: these producers are new. The one of 4.9 keeps a single connection to
    # a nameserver, and that nameserver is the one to lose.
    either = f"{fleet.second};{fleet.first}"
    others = nameserver_links(fleet, old_java)
    for driver in (java, old_java):
        assert len(driver.produce(either, before, 4, "before")) == 4
    (link,) = nameserver_links(fleet, old_java) - others
    lost, left = sorted(fleet.nameservers, key=lambda server: server.port != link[1])
    lost.kill()
    for broker in (fleet.five, fleet.four):
        # A topic that nobody knew before: the brokers must still tell it, the clients must still ask for it.
        create_topic(broker.address, after, queues=2)
    wait_for(f"{after} is known", 10, lambda: len(topic_perms(left.address, after)) == 2)
    for driver in (java, old_java):
        sent = driver.produce(either, after, 4, "after")
        assert {one.broker for one in sent} == {"broker-five", "broker-four"}
    # A client of 5.x that starts now may try the dead one first, and gives up; one of 4.9 tries them all.
    received = old_java.consume(either, "group_after_death", after, 8)
    assert sorted(m.body for m in received) == sorted(f"after-{i}" for i in range(4) for _ in range(2))
    assert fleet.known(left.address) == ALL
    lost.start()
    for broker in fleet.brokers:
        broker.wait_registered(lost.address, seconds=RETURN_SECONDS)
    assert topic_perms(lost.address, after) == {"broker-five": 6, "broker-four": 6}


def nameserver_links(fleet: Fleet, driver: LineDriver) -> set[tuple[int, int]]:
    """The connections of a client to nameservers, as (own port, nameserver's port)."""
    ports = {server.port for server in fleet.nameservers}
    links = psutil.Process(driver.pid).net_connections("tcp")
    return {(link.laddr.port, link.raddr.port) for link in links if link.raddr and link.raddr.port in ports}


@pytest.mark.parametrize("which", ["four", "frail"])
def test_a_killed_broker_is_removed_at_once(fleet: Fleet, which: str) -> None:
    """kill -9 closes its sockets; nobody waits for an expiry (120 s for `four`)."""
    broker: RealBroker = getattr(fleet, which)
    own_topic = broker.broker_name
    assert topic_route(fleet.first, own_topic) is not None
    broker.kill()
    fleet.everywhere("removed", AT_ONCE_SECONDS, lambda at: fleet.known(at) == ALL - {broker.broker_name})
    for nameserver in (fleet.first, fleet.second):
        assert topic_route(nameserver, own_topic) is None
        assert broker.cluster not in cluster_info(nameserver)["clusterAddrTable"]
