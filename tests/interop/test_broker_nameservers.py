"""Our broker behind the real nameservers: registered at the start and on a new topic, forgotten at a clean stop."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.cluster import OURS, Cluster, own_broker_missing
from support.mq_client import JAVA, OLD_JAVA, MqClient
from support.plain_frames import broker_addresses, topic_route
from support.real_rocketmq import V4, V5
from support.server_process import wait_for


@pytest.mark.slow
@pytest.mark.parametrize(("version", "name"), [(V5, OLD_JAVA), (V4, JAVA)])
def test_our_broker_works_behind_a_real_nameserver(
    rocketmq: None, clients: Callable[[str], MqClient], tmp_path: Path, version: str, name: str
) -> None:
    if reason := own_broker_missing():
        pytest.skip(reason)
    with Cluster(OURS, tmp_path, nameserver_version=version) as cluster:
        client, ns = clients(name), cluster.nameserver
        (told,) = client.send(ns, "MadeBySending", prefix="first")
        assert cluster.queues("MadeBySending") == 4
        topic = cluster.make_topic("MadeByHand", queues=2)
        client.send(ns, topic, 4, prefix="m")
        for group, wanted, bodies in (
            ("CG_ns_sent", "MadeBySending", {told.body}),
            ("CG_ns_hand", topic, {f"m-{i}" for i in range(4)}),
        ):
            consumer = client.push(ns, group, wanted)
            assert {one.body for one in consumer.consumed(len(bodies))} == bodies
            consumer.stop()
        cluster.stop_broker()
        wait_for("the nameserver forgot the broker", 10, lambda: not broker_addresses(ns))
        assert topic_route(ns, topic) is None
        cluster.restart_broker()
        assert cluster.queues(topic) == 2
