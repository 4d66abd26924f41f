"""The route tables: registration, liveness, unregistration and what clients are told. Pure state, no sockets."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from cometmq.namesrv import answers as lists
from cometmq.namesrv import liveness
from cometmq.namesrv.answers import RouteAnswers, in_zone
from cometmq.namesrv.liveness import Departure, departures, expired, heartbeat, unregister
from cometmq.namesrv.registration import Registered, Registration, register
from cometmq.namesrv.routes import BrokerAddress, MinIdChange, Routes
from cometmq.protocol.bodies.registration import DataVersion, TopicConfig
from cometmq.protocol.bodies.route import BrokerData, QueueData, TopicRouteData
from cometmq.protocol.bodies.static_topic import TopicQueueMappingInfo

V1 = DataVersion(counter=1, state_version=0, timestamp=1000)
V2 = DataVersion(counter=2, state_version=0, timestamp=2000)


def topic_table(*names: str, perm: int = 6, queues: int = 4, flag: int = 0) -> dict[str, TopicConfig]:
    return {
        name: TopicConfig(
            topic_name=name, perm=perm, read_queue_nums=queues, write_queue_nums=queues, topic_sys_flag=flag
        )
        for name in names
    }


TWO = topic_table("T1", "T2")


def broker(name: str = "a", id_: int = 0, address: str = "", **more: Any) -> Registration:
    """A registration of version V1 with the topics T1 and T2, by default."""
    fields: dict[str, Any] = {
        "cluster": "C",
        "broker_name": name,
        "broker_id": id_,
        "address": address or f"{name}{id_}:1",
        "ha_server_addr": f"{name}{id_}:2",
        "data_version": V1,
        "topics": TWO,
        "enable_acting_master": False,
    }
    return Registration(**{**fields, **more})


def enter(routes: Routes, *brokers: Registration, now: float = 0, prune: bool = False) -> list[Registered | None]:
    return [register(routes, one, now=now, prune=prune) for one in brokers]


def key(address: str, cluster: str = "C") -> BrokerAddress:
    return BrokerAddress(cluster, address)


def queues(routes: Routes, topic: str) -> dict[str, tuple[int, int, int]]:
    """Broker name -> (perm, read, write)."""
    return {
        name: (data.perm, data.read_queue_nums, data.write_queue_nums)
        for name, data in routes.topics.get(topic, {}).items()
    }


def check(routes: Routes) -> None:
    """The indexes say the same as the tables."""
    of: dict[str, set[str]] = {}
    for topic, table in routes.topics.items():
        assert table, f"{topic} has no queues and is still there"
        for name, data in table.items():
            assert data.broker_name == name
            of.setdefault(name, set()).add(topic)
    names = set(of) | set(routes.brokers)
    assert {name: set(routes.topics_of(name)) for name in names} == {name: of.get(name, set()) for name in names}
    for address, live in routes.live.items():
        if live.channel is not None:
            assert address in routes.live_on(live.channel)
    for cluster, members in routes.clusters.items():
        assert members, f"cluster {cluster} is empty and still there"
        assert set(members) <= set(routes.brokers)
    assert all(data.broker_addrs for data in routes.brokers.values())


@pytest.fixture
def routes() -> Iterable[Routes]:
    tables = Routes()
    yield tables
    check(tables)


# Registration


def test_first_registration_fills_all_tables(routes: Routes) -> None:
    channel = object()
    (done,) = enter(routes, broker(channel=channel, zone_name="z", heartbeat_timeout_millis=10_000), now=7)
    assert done == Registered(None, None, None)
    assert routes.brokers == {
        "a": BrokerData(
            broker_addrs={0: "a0:1"}, broker_name="a", cluster="C", enable_acting_master=False, zone_name="z"
        )
    }
    assert lists.cluster_info(routes).cluster_addr_table == {"C": ["a"]}
    live = routes.live[key("a0:1")]
    assert (live.last_update, live.timeout, live.data_version) == (7, 10, V1)
    assert live.channel is channel
    assert live.ha_server_addr == "a0:2"
    assert queues(routes, "T1") == queues(routes, "T2") == {"a": (6, 4, 4)}


def test_heartbeat_timeout_is_two_minutes_unless_told(routes: Routes) -> None:
    enter(routes, broker())
    assert routes.live[key("a0:1")].timeout == 120


def test_registration_without_topics_is_accepted(routes: Routes) -> None:
    assert enter(routes, broker(topics={}, data_version=DataVersion())) == [Registered()]
    assert routes.topics == {}
    assert "a" in routes.brokers


def test_single_topic_of_a_new_broker_is_refused_and_leaves_no_trace(routes: Routes) -> None:
    assert enter(routes, broker(topics=topic_table("T1"))) == [None]
    assert not routes.brokers
    assert not routes.clusters
    assert not routes.live
    assert not routes.topics


def test_single_topic_of_a_new_id_in_a_known_group_is_refused(routes: Routes) -> None:
    enter(routes, broker())
    assert enter(routes, broker(id_=1, topics=topic_table("T1"))) == [None]
    assert routes.brokers["a"].broker_addrs == {0: "a0:1"}


def test_incremental_registration_merges_and_removes_nothing(routes: Routes) -> None:
    enter(routes, broker(), broker(topics=topic_table("T3"), data_version=V2))
    assert set(routes.topics) == {"T1", "T2", "T3"}
    assert routes.live[key("a0:1")].data_version == V2


def test_topic_changes_only_with_the_data_version(routes: Routes) -> None:
    bigger = topic_table("T1", "T2", queues=8)
    enter(routes, broker(), broker(topics=bigger))
    assert queues(routes, "T1") == {"a": (6, 4, 4)}
    enter(routes, broker(topics=bigger, data_version=V2))
    assert queues(routes, "T1") == {"a": (6, 8, 8)}


@pytest.mark.parametrize("field", ["counter", "state_version", "timestamp"])
def test_data_versions_differ_in_any_field(routes: Routes, field: str) -> None:
    enter(routes, broker())
    version = msgspec.structs.replace(V1, **{field: 77})
    enter(routes, broker(topics=topic_table("T1", "T2", queues=8), data_version=version))
    assert queues(routes, "T1") == {"a": (6, 8, 8)}


def test_unknown_topic_is_entered_with_an_unchanged_version(routes: Routes) -> None:
    enter(routes, broker(), broker(topics=topic_table("T1", "T2", "T3", queues=9)))
    assert queues(routes, "T3") == {"a": (6, 9, 9)}
    assert queues(routes, "T1") == {"a": (6, 4, 4)}


def test_topic_known_from_another_broker_only_is_entered_with_an_unchanged_version(routes: Routes) -> None:
    enter(routes, broker("b", topics=topic_table("T3", "T4")), broker("a"))
    enter(routes, broker("a", topics=topic_table("T1", "T2", "T3")))
    assert set(queues(routes, "T3")) == {"a", "b"}


def test_topic_deleted_here_comes_back_with_the_next_registration(routes: Routes) -> None:
    enter(routes, broker())
    routes.delete_topic("T1")
    assert "T1" not in routes.topics
    enter(routes, broker())
    assert queues(routes, "T1") == {"a": (6, 4, 4)}


def test_slave_of_an_old_broker_never_brings_topics(routes: Routes) -> None:
    enter(routes, broker(id_=1, enable_acting_master=None))
    assert routes.topics == {}
    assert routes.brokers["a"].enable_acting_master is False
    assert routes.brokers["a"].broker_addrs == {1: "a1:1"}


def test_only_the_lowest_slave_brings_topics(routes: Routes) -> None:
    enter(routes, broker(id_=2), broker(id_=3, topics=topic_table("T8", "T9")))
    assert set(routes.topics) == {"T1", "T2"}
    enter(routes, broker(id_=1, topics=topic_table("T4", "T5")))
    assert set(routes.topics) == {"T1", "T2", "T4", "T5"}


def test_slave_beside_a_master_brings_no_topics(routes: Routes) -> None:
    enter(routes, broker(), broker(id_=1, topics=topic_table("T8", "T9")))
    assert set(routes.topics) == {"T1", "T2"}


def test_prime_slave_that_acts_as_master_is_read_only(routes: Routes) -> None:
    enter(routes, broker(id_=1, enable_acting_master=True, topics=topic_table("T1", "T2", perm=7)))
    assert queues(routes, "T1") == {"a": (5, 4, 4)}
    assert routes.brokers["a"].enable_acting_master is True


def test_prime_slave_that_does_not_act_keeps_the_permission(routes: Routes) -> None:
    enter(routes, broker(id_=1, enable_acting_master=False))
    assert queues(routes, "T1") == {"a": (6, 4, 4)}


def test_slave_is_told_where_its_master_is(routes: Routes) -> None:
    assert enter(routes, broker(id_=1)) == [Registered()]
    enter(routes, broker())
    assert enter(routes, broker(id_=1)) == [Registered("a0:1", "a0:2")]


def test_slave_is_not_told_of_a_master_that_is_not_live(routes: Routes) -> None:
    enter(routes, broker())
    routes.drop_live(key("a0:1"))
    assert enter(routes, broker(id_=1)) == [Registered()]


def test_role_switch_removes_the_address_under_its_old_id(routes: Routes) -> None:
    enter(routes, broker(id_=1, address="x:1"), broker(id_=0, address="x:1"))
    assert routes.brokers["a"].broker_addrs == {0: "x:1"}


def test_older_state_loses_the_id_but_is_answered_well(routes: Routes) -> None:
    newer = DataVersion(counter=1, state_version=5, timestamp=1)
    older = DataVersion(counter=9, state_version=4, timestamp=9)
    enter(routes, broker(address="x:1", data_version=newer))
    assert enter(routes, broker(address="y:1", data_version=older, topics=topic_table("T8", "T9"))) == [Registered()]
    assert routes.brokers["a"].broker_addrs == {0: "x:1"}
    assert set(routes.live) == {key("x:1")}
    assert set(routes.topics) == {"T1", "T2"}


def test_rejected_state_loses_its_live_entry_and_its_old_id(routes: Routes) -> None:
    newer = DataVersion(state_version=5)
    enter(routes, broker(address="x:1", data_version=newer), broker(id_=1, address="y:1", data_version=newer))
    enter(routes, broker(id_=0, address="y:1", data_version=V1))
    assert routes.brokers["a"].broker_addrs == {0: "x:1"}
    assert set(routes.live) == {key("x:1")}


@pytest.mark.parametrize("state_version", [5, 6])
def test_same_or_newer_state_takes_the_id(routes: Routes, state_version: int) -> None:
    enter(routes, broker(address="x:1", data_version=DataVersion(state_version=5)))
    enter(routes, broker(address="y:1", data_version=DataVersion(state_version=state_version)))
    assert routes.brokers["a"].broker_addrs == {0: "y:1"}


def test_newer_state_of_a_process_that_is_gone_does_not_count(routes: Routes) -> None:
    enter(routes, broker(address="x:1", data_version=DataVersion(state_version=5)))
    routes.drop_live(key("x:1"))
    enter(routes, broker(address="y:1", data_version=V1))
    assert routes.brokers["a"].broker_addrs == {0: "y:1"}


def test_master_that_takes_over_an_id_at_another_address_renews_its_topics(routes: Routes) -> None:
    """Its DataVersion may be the same; the stored one belongs to the other address."""
    enter(routes, broker(address="x:1"), broker(address="y:1", topics=topic_table("T1", "T2", queues=8)))
    assert queues(routes, "T1") == {"a": (6, 8, 8)}


def test_flags_follow_the_last_registration(routes: Routes) -> None:
    enter(routes, broker(enable_acting_master=True, zone_name="z1"))
    assert (routes.brokers["a"].enable_acting_master, routes.brokers["a"].zone_name) == (True, "z1")
    enter(routes, broker(enable_acting_master=None))
    assert (routes.brokers["a"].enable_acting_master, routes.brokers["a"].zone_name) == (False, None)


def test_prune_drops_what_a_full_registration_does_not_bring(routes: Routes) -> None:
    enter(routes, broker("a"), broker("b"))
    enter(routes, broker("a", topics=topic_table("T2", "T3"), data_version=V2), prune=True)
    assert set(queues(routes, "T1")) == {"b"}
    assert set(queues(routes, "T2")) == {"a", "b"}
    assert set(queues(routes, "T3")) == {"a"}
    enter(routes, broker("b", topics=topic_table("T2", "T3"), data_version=V2), prune=True)
    assert set(routes.topics) == {"T2", "T3"}


def test_prune_leaves_brokers_with_static_topics_alone(routes: Routes) -> None:
    enter(routes, broker())
    mappings = {"T9": TopicQueueMappingInfo(bname="a", topic="T9")}
    enter(routes, broker(topics=topic_table("T2", "T3"), data_version=V2, mappings=mappings), prune=True)
    assert set(routes.topics) == {"T1", "T2", "T3"}


def test_without_prune_nothing_is_dropped(routes: Routes) -> None:
    enter(routes, broker(), broker(topics=topic_table("T2", "T3"), data_version=V2))
    assert set(routes.topics) == {"T1", "T2", "T3"}


def test_mappings_are_merged_under_the_name_they_give_when_the_version_changed(routes: Routes) -> None:
    first = TopicQueueMappingInfo(bname="a", topic="T1", epoch=1)
    second = TopicQueueMappingInfo(bname="other", topic="T1", epoch=2)
    enter(routes, broker(mappings={"T1": first}))
    enter(routes, broker(mappings={"T1": second}))
    assert routes.mappings == {"T1": {"a": first}}, "the version was the same"
    enter(routes, broker(mappings={"T1": second}, data_version=V2))
    assert routes.mappings == {"T1": {"a": first, "other": second}}
    route = RouteAnswers(routes).route("T1")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"a": first, "other": second}


def test_filter_servers_are_kept_and_shown_until_the_list_is_empty(routes: Routes) -> None:
    answers = RouteAnswers(routes)
    enter(routes, broker("a", filter_servers=["f:1"]), broker("b", filter_servers=[]))
    body = answers.encoded("T1", standard=True)
    assert TopicRouteData.decode(body or b"").filter_server_table == {"a0:1": ["f:1"]}
    enter(routes, broker("a", filter_servers=None))
    assert routes.filter_servers == {key("a0:1"): ["f:1"]}
    enter(routes, broker("a", filter_servers=[]))
    assert routes.filter_servers == {}
    assert TopicRouteData.decode(answers.encoded("T1", standard=True) or b"").filter_server_table == {}


def test_topic_name_inside_the_config_wins_over_its_key(routes: Routes) -> None:
    enter(routes, broker(topics={"key": TopicConfig(topic_name="real"), "T1": TopicConfig()}))
    assert set(routes.topics) == {"real", "T1"}


def test_two_clusters_and_names_are_kept_apart(routes: Routes) -> None:
    enter(routes, broker("a"), broker("b", cluster="D"))
    assert lists.cluster_info(routes).cluster_addr_table == {"C": ["a"], "D": ["b"]}
    assert routes.brokers["b"].cluster == "D"


# The lowest id


def test_first_slave_is_no_change_of_the_lowest_id(routes: Routes) -> None:
    assert enter(routes, broker(id_=3)) == [Registered()]


def test_lower_id_tells_all_the_others(routes: Routes) -> None:
    enter(routes, broker(id_=3), broker(id_=2))
    done = enter(routes, broker(id_=1))[0]
    assert done is not None
    assert done.min_id_change == MinIdChange("a", 1, "a1:1", None, "a1:2", ("a3:1", "a2:1"))


def test_lower_id_that_is_alone_after_a_role_switch_is_told_itself(routes: Routes) -> None:
    enter(routes, broker(id_=1, address="x:1"))
    done = enter(routes, broker(id_=0, address="x:1"))[0]
    assert done is not None
    assert done.min_id_change == MinIdChange("a", 0, "x:1", None, "a0:2", ("x:1",))


def test_higher_or_same_id_is_no_change(routes: Routes) -> None:
    enter(routes, broker(id_=1))
    for id_ in (1, 2):
        done = enter(routes, broker(id_=id_))[0]
        assert done is not None
        assert done.min_id_change is None


def test_departure_of_the_lowest_id_tells_the_rest_of_an_acting_group(routes: Routes) -> None:
    enter(routes, *(broker(id_=i, enable_acting_master=True) for i in (0, 1, 2)))
    changes = unregister(routes, [Departure("C", "a", 0, "a0:1")])
    assert changes == [MinIdChange("a", 1, "a1:1", "a0:1", None, ("a1:1", "a2:1"))]


def test_departure_of_a_higher_id_or_in_a_group_that_does_not_act_tells_nobody(routes: Routes) -> None:
    enter(routes, *(broker("a", i, enable_acting_master=True) for i in (0, 1)))
    assert unregister(routes, [Departure("C", "a", 1, "a1:1")]) == []
    enter(routes, *(broker("b", i) for i in (0, 1)))
    assert unregister(routes, [Departure("C", "b", 0, "b0:1")]) == []


def test_whole_group_in_one_batch_tells_nobody(routes: Routes) -> None:
    enter(routes, *(broker(id_=i, enable_acting_master=True) for i in (0, 1)))
    assert unregister(routes, [Departure("C", "a", 0, "a0:1"), Departure("C", "a", 1, "a1:1")]) == []
    assert not routes.brokers


# Liveness and unregistration


def test_expiry_is_by_silence_longer_than_promised(routes: Routes) -> None:
    enter(routes, broker("a"), broker("b", heartbeat_timeout_millis=10_000), now=100)
    assert expired(routes, now=110) == []
    assert expired(routes, now=110.001) == [key("b0:1")]
    heartbeat(routes, key("b0:1"), now=110)
    assert expired(routes, now=120) == []
    assert expired(routes, now=220.5) == [key("a0:1"), key("b0:1")]


def test_heartbeat_of_an_unknown_broker_means_nothing(routes: Routes) -> None:
    heartbeat(routes, key("x:1"), now=1)
    assert not routes.live


def test_changed_means_no_live_entry_or_another_version(routes: Routes) -> None:
    assert liveness.is_changed(routes, key("a0:1"), V1)
    enter(routes, broker())
    assert not liveness.is_changed(routes, key("a0:1"), V1)
    assert liveness.is_changed(routes, key("a0:1"), V2)
    assert liveness.is_changed(routes, key("a0:1"), None)
    assert liveness.is_changed(routes, key("a0:1", "D"), V1)


def test_lost_connection_is_matched_by_identity_not_by_address(routes: Routes) -> None:
    old, new = object(), object()
    enter(routes, broker(channel=old), broker(channel=new))
    assert routes.live_on(old) == ()
    assert routes.live_on(new) == (key("a0:1"),)
    assert routes.live_on(object()) == ()


def test_all_brokers_of_one_connection_are_found(routes: Routes) -> None:
    channel = object()
    enter(routes, broker("a", channel=channel), broker("b", channel=channel))
    assert set(routes.live_on(channel)) == {key("a0:1"), key("b0:1")}


def test_departures_look_up_name_and_id_in_the_same_cluster(routes: Routes) -> None:
    enter(routes, broker("a", 0, "x:1"), broker("a", 1, "y:1"), broker("b", 0, "x:1", cluster="D"))
    assert departures(routes, [key("y:1")]) == [Departure("C", "a", 1, "y:1")]
    assert departures(routes, [key("x:1", "D")]) == [Departure("D", "b", 0, "x:1")]
    assert departures(routes, [key("nobody:1")]) == []


def test_address_that_lost_its_id_leaves_only_its_live_entry(routes: Routes) -> None:
    enter(routes, broker(address="x:1"), broker(address="y:1"))
    assert key("x:1") in routes.live
    assert departures(routes, [key("x:1")]) == []
    assert key("x:1") not in routes.live
    assert routes.brokers["a"].broker_addrs == {0: "y:1"}


def test_address_with_two_names_takes_both_with_it(routes: Routes) -> None:
    enter(routes, broker("a", 0, "x:1"), broker("b", 0, "x:1"))
    unregister(routes, departures(routes, [key("x:1")]))
    assert not routes.brokers
    assert not routes.topics


def test_last_broker_of_a_name_takes_topics_and_cluster_with_it(routes: Routes) -> None:
    enter(routes, broker("a", filter_servers=["f:1"]), broker("b", topics=topic_table("T2", "T3")))
    assert unregister(routes, [Departure("C", "a", 0, "a0:1")]) == []
    assert set(routes.topics) == {"T2", "T3"}
    assert queues(routes, "T2") == {"b": (6, 4, 4)}
    assert routes.filter_servers == {}
    unregister(routes, [Departure("C", "b", 0, "b0:1")])
    assert not routes.topics
    assert not routes.clusters
    assert not routes.live


def test_master_leaves_an_acting_group_read_only(routes: Routes) -> None:
    enter(routes, broker(enable_acting_master=True), broker(id_=1, enable_acting_master=True))
    unregister(routes, [Departure("C", "a", 0, "a0:1")])
    assert routes.brokers["a"].broker_addrs == {1: "a1:1"}
    assert queues(routes, "T1") == {"a": (4, 4, 4)}


def test_master_leaves_another_group_as_it_was(routes: Routes) -> None:
    enter(routes, broker(), broker(id_=1))
    unregister(routes, [Departure("C", "a", 0, "a0:1")])
    assert queues(routes, "T1") == {"a": (6, 4, 4)}


def test_slave_leaves_an_acting_group_writable(routes: Routes) -> None:
    enter(routes, broker(enable_acting_master=True), broker(id_=1, enable_acting_master=True))
    unregister(routes, [Departure("C", "a", 1, "a1:1")])
    assert queues(routes, "T1") == {"a": (6, 4, 4)}


@pytest.mark.parametrize(
    "gone",
    [Departure("C", "nobody", 0, "a0:1"), Departure("C", "a", 0, "other:1"), Departure("D", "a", 0, "other:1")],
)
def test_departure_that_fits_nobody_removes_no_name(routes: Routes, gone: Departure) -> None:
    enter(routes, broker())
    assert unregister(routes, [gone]) == []
    assert routes.brokers["a"].broker_addrs == {0: "a0:1"}
    assert set(routes.topics) == {"T1", "T2"}


def test_broker_that_comes_back_is_entered_anew(routes: Routes) -> None:
    enter(routes, broker())
    unregister(routes, [Departure("C", "a", 0, "a0:1")])
    enter(routes, broker())
    assert queues(routes, "T1") == {"a": (6, 4, 4)}


# Permissions, topics of their own


def test_wiped_permission_survives_until_the_version_changes(routes: Routes) -> None:
    enter(routes, broker(topics=topic_table("T1", "T2", perm=7)), broker("b"))
    assert routes.set_perm("a", keep=~2, add=0) == 2
    assert queues(routes, "T1") == {"a": (5, 4, 4), "b": (6, 4, 4)}
    enter(routes, broker(topics=topic_table("T1", "T2", perm=7)))
    assert queues(routes, "T1")["a"] == (5, 4, 4)
    enter(routes, broker(topics=topic_table("T1", "T2", perm=7), data_version=V2))
    assert queues(routes, "T1")["a"] == (7, 4, 4)


def test_added_permission_is_read_and_write_and_nothing_else(routes: Routes) -> None:
    enter(routes, broker(topics=topic_table("T1", "T2", perm=1)))
    assert routes.set_perm("a", keep=0, add=6) == 2
    assert queues(routes, "T1") == {"a": (6, 4, 4)}


def test_permission_of_an_unknown_broker_changes_nothing(routes: Routes) -> None:
    assert routes.set_perm("nobody", keep=0, add=6) == 0


def test_topic_is_deleted_everywhere_or_in_one_cluster(routes: Routes) -> None:
    enter(routes, broker("a"), broker("b", cluster="D"))
    routes.delete_topic("T1", "D")
    assert set(queues(routes, "T1")) == {"a"}
    routes.delete_topic("T1", "C")
    assert "T1" not in routes.topics
    routes.delete_topic("T2")
    assert routes.topics == {}
    routes.delete_topic("never")
    routes.delete_topic("never", "nowhere")


def test_register_topic_enters_queues_of_known_brokers(routes: Routes) -> None:
    enter(routes, broker("a"), broker("b"))
    assert routes.register_topic("N", [QueueData(broker_name="a", perm=6), QueueData(broker_name="b", perm=4)])
    assert {name: perm for name, (perm, _, _) in queues(routes, "N").items()} == {"a": 6, "b": 4}
    assert not routes.register_topic("M", [])


def test_register_topic_stops_at_an_unknown_broker(routes: Routes) -> None:
    enter(routes, broker("a"))
    mixed = [QueueData(broker_name="a", perm=2), QueueData(broker_name="x"), QueueData(broker_name="a", perm=4)]
    assert not routes.register_topic("N", mixed)
    assert "N" not in routes.topics, "a new topic is not made"
    assert routes.register_topic("T1", mixed)
    assert routes.topics["T1"]["a"].perm == 2, "what came before the unknown broker stays"


# Answers


def test_route_has_all_queues_and_the_known_brokers(routes: Routes) -> None:
    enter(routes, broker("a"), broker("a", 1), broker("b"))
    route = RouteAnswers(routes).route("T1")
    assert route == TopicRouteData(
        broker_datas=[routes.brokers["a"], routes.brokers["b"]],
        queue_datas=[routes.topics["T1"]["a"], routes.topics["T1"]["b"]],
    )
    assert route.broker_datas[0].broker_addrs == {0: "a0:1", 1: "a1:1"}


def test_no_route_without_topic(routes: Routes) -> None:
    answers = RouteAnswers(routes)
    assert answers.route("nothing") is None
    assert answers.encoded("nothing", standard=True) is None


def test_both_dialects(routes: Routes) -> None:
    answers = RouteAnswers(routes)
    enter(routes, broker(zone_name="ü"))
    assert (answers.encoded("T1", standard=True) or b"").decode() == (
        '{"brokerDatas":[{"brokerAddrs":{"0":"a0:1"},"brokerName":"a","cluster":"C","enableActingMaster":false,'
        '"zoneName":"\\u00fc"}],"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,'
        '"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    assert (answers.encoded("T1", standard=False) or b"").decode() == (
        '{"brokerDatas":[{"brokerAddrs":{0:"a0:1"},"brokerName":"a","cluster":"C","enableActingMaster":false,'
        '"zoneName":"ü"}],"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,'
        '"topicSysFlag":0,"writeQueueNums":4}]}'
    )


def test_encoded_route_is_kept_until_it_changes(routes: Routes) -> None:
    answers = RouteAnswers(routes)
    enter(routes, broker("a"), broker("b", topics=topic_table("T2", "T3")))
    before = {topic: answers.encoded(topic, standard=True) for topic in ("T1", "T2", "T3")}
    enter(routes, broker("a", channel=object()), now=30)
    assert all(answers.encoded(topic, standard=True) is body for topic, body in before.items()), "nothing changed"
    enter(routes, broker("a", 1))
    assert answers.encoded("T1", standard=True) != before["T1"], "a has a slave now"
    assert answers.encoded("T3", standard=True) is before["T3"], "T3 is not on a"


CHANGES: Mapping[str, Any] = {
    "queues": lambda r: enter(r, broker(topics=topic_table("T1", "T2", queues=9), data_version=V2)),
    "zone": lambda r: enter(r, broker(zone_name="z")),
    "acting": lambda r: enter(r, broker(enable_acting_master=True)),
    "slave": lambda r: enter(r, broker(id_=1)),
    "wipe": lambda r: r.set_perm("a", keep=~2, add=0),
    "delete": lambda r: r.delete_topic("T1"),
    "unregister": lambda r: unregister(r, [Departure("C", "a", 0, "a0:1")]),
    "register topic": lambda r: r.register_topic("T1", [QueueData(broker_name="a")]),
    "filter servers": lambda r: enter(r, broker(filter_servers=["f:1"])),
    "mapping": lambda r: enter(
        r, broker(data_version=V2, mappings={"T1": TopicQueueMappingInfo(bname="a", topic="T1")})
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_reaches_the_encoded_route(routes: Routes, change: str) -> None:
    answers = RouteAnswers(routes)
    enter(routes, broker())
    old = [answers.encoded("T1", standard=standard) for standard in (True, False)]
    CHANGES[change](routes)
    new = [answers.encoded("T1", standard=standard) for standard in (True, False)]
    assert new[0] != old[0]
    assert new[1] != old[1]
    fresh = RouteAnswers(routes)
    assert new == [fresh.encoded("T1", standard=standard) for standard in (True, False)]


def test_encoded_routes_do_not_grow_without_limit(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(routes, broker())
    answers = RouteAnswers(routes)
    one = len(answers.encoded("T1", standard=True) or b"")
    monkeypatch.setattr(lists, "MAX_ENCODED_BYTES", one + 1)
    first = answers.encoded("T1", standard=True)
    assert answers.encoded("T1", standard=True) is first
    answers.encoded("T2", standard=True)
    assert answers.encoded("T1", standard=True) is not first, "the oldest one made room"
    assert answers.encoded("T1", standard=True) == first


def test_order_conf_is_shown_where_it_is_asked_for(routes: Routes) -> None:
    enter(routes, broker())
    answers = RouteAnswers(routes)
    order = {"T1": "a:4"}
    answers.configure(acting_master=False, order_conf=order.get)
    assert b'"orderTopicConf":"a:4"' in (answers.encoded("T1", standard=True) or b"")
    assert b"orderTopicConf" not in (answers.encoded("T2", standard=True) or b"")
    order["T1"] = "a:8"
    answers.forget(["T1"])
    assert b'"orderTopicConf":"a:8"' in (answers.encoded("T1", standard=True) or b"")
    answers.configure(acting_master=False, order_conf=None)
    assert b"orderTopicConf" not in (answers.encoded("T1", standard=True) or b"")


# Acting master


def acting(routes: Routes) -> RouteAnswers:
    answers = RouteAnswers(routes)
    answers.configure(acting_master=True, order_conf=None)
    return answers


def addresses(answers: RouteAnswers, topic: str = "T1") -> dict[str, dict[int, str]]:
    route = answers.route(topic)
    assert route is not None
    return {data.broker_name: data.broker_addrs for data in route.broker_datas}


def test_lowest_slave_appears_as_master(routes: Routes) -> None:
    enter(routes, broker(id_=1, enable_acting_master=True), broker(id_=2, enable_acting_master=True))
    assert addresses(acting(routes)) == {"a": {0: "a1:1", 2: "a2:1"}}
    assert addresses(RouteAnswers(routes)) == {"a": {1: "a1:1", 2: "a2:1"}}, "only with supportActingMaster"
    assert lists.cluster_info(routes).broker_addr_table["a"].broker_addrs == {1: "a1:1", 2: "a2:1"}


def test_acting_master_needs_the_consent_of_the_group(routes: Routes) -> None:
    enter(routes, broker(id_=1, topics=topic_table("T1", "T2", perm=4)))
    assert addresses(acting(routes)) == {"a": {1: "a1:1"}}


def test_no_acting_master_for_writable_queues(routes: Routes) -> None:
    enter(routes, broker(id_=1, enable_acting_master=True))
    routes.set_perm("a", keep=0, add=6)
    assert addresses(acting(routes)) == {"a": {1: "a1:1"}}


def test_no_acting_master_beside_a_master(routes: Routes) -> None:
    enter(routes, broker(enable_acting_master=True), broker(id_=1, enable_acting_master=True))
    routes.set_perm("a", keep=~2, add=0)
    assert addresses(acting(routes)) == {"a": {0: "a0:1", 1: "a1:1"}}


def test_members_of_a_group_see_it_as_it_is(routes: Routes) -> None:
    topic = "rmq_sys_SYNC_BROKER_MEMBER_a"
    enter(routes, broker(id_=1, enable_acting_master=True, topics=topic_table(topic, "T1")))
    assert addresses(acting(routes), topic) == {"a": {1: "a1:1"}}


def test_acting_master_changes_only_the_groups_without_master(routes: Routes) -> None:
    enter(routes, broker("a", 1, enable_acting_master=True), broker("b", 0), broker("b", 1))
    assert addresses(acting(routes)) == {"a": {0: "a1:1"}, "b": {0: "b0:1", 1: "b1:1"}}


# Zones


def test_zone_keeps_its_own_brokers_whatever_their_case(routes: Routes) -> None:
    enter(routes, broker("a", zone_name="Z1"), broker("b", zone_name="z2", filter_servers=["f:1"]), broker("c"))
    route = RouteAnswers(routes).route("T1")
    assert route is not None
    near = in_zone(route, "z1")
    assert [data.broker_name for data in near.broker_datas] == ["a"]
    assert [data.broker_name for data in near.queue_datas] == ["a"]
    assert near.filter_server_table == {}
    assert route.filter_server_table == {"b0:1": ["f:1"]}, "the route itself is not touched"


def test_zone_keeps_groups_without_master(routes: Routes) -> None:
    enter(routes, broker("a", zone_name="z1"), broker("b", 1, zone_name="z2"))
    route = RouteAnswers(routes).route("T1")
    assert route is not None
    assert [data.broker_name for data in in_zone(route, "z1").broker_datas] == ["a", "b"]
    assert in_zone(route, "z3").broker_datas == [routes.brokers["b"]]


# Lists


def test_member_group(routes: Routes) -> None:
    enter(routes, broker("a"), broker("a", 2))
    assert lists.member_group(routes, "C", "a").broker_addrs == {0: "a0:1", 2: "a2:1"}
    unknown = lists.member_group(routes, "C", "x")
    assert (unknown.cluster, unknown.broker_name, unknown.broker_addrs) == ("C", "x", {})


def test_topic_lists(routes: Routes) -> None:
    enter(routes, broker("a"), broker("b", cluster="D", topics=topic_table("T2", "T3")))
    assert sorted(lists.all_topics(routes).topic_list) == ["T1", "T2", "T3"]
    assert sorted(lists.topics_of_cluster(routes, "D").topic_list) == ["T2", "T3"]
    assert lists.topics_of_cluster(routes, "nowhere").topic_list == []


def test_topic_on_two_brokers_of_a_cluster_is_listed_once(routes: Routes) -> None:
    enter(routes, broker("a"), broker("b"))
    assert sorted(lists.topics_of_cluster(routes, "C").topic_list) == ["T1", "T2"]


def test_system_topics_are_clusters_and_brokers(routes: Routes) -> None:
    assert lists.system_topics(routes) == lists.TopicList(topic_list=[])
    enter(routes, broker("a"), broker("b", cluster="D"))
    listed = lists.system_topics(routes)
    assert sorted(listed.topic_list) == ["C", "D", "a", "b"]
    assert listed.broker_addr in {"a0:1", "b0:1"}


def test_unit_lists_by_flag(routes: Routes) -> None:
    tables = {name: topic_table(name, flag=flag) for name, flag in {"none": 0, "unit": 1, "sub": 2, "both": 3}.items()}
    enter(routes, broker(topics={name: config for table in tables.values() for name, config in table.items()}))
    assert sorted(lists.unit_topics(routes).topic_list) == ["both", "unit"]
    assert sorted(lists.unit_sub_topics(routes).topic_list) == ["both", "sub"]
    assert lists.unit_sub_un_unit_topics(routes).topic_list == ["sub"]


# Size


def test_repeated_registration_of_many_topics_touches_none_of_them(
    routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = topic_table(*(f"topic-{i}" for i in range(10_000)))
    enter(routes, broker("a", topics=many), broker("b", topics=many))
    routes.changed.clear()
    shared = {id(data) for table in routes.topics.values() for data in table.values()}
    assert len(shared) == 2, "topics with the same queues share one value a broker"

    touched: list[str] = []
    put = Routes.put_queue_data
    monkeypatch.setattr(Routes, "put_queue_data", lambda self, t, d: touched.append(t) or put(self, t, d))
    enter(routes, broker("a", topics=many), now=30)
    assert touched == []
    assert routes.changed == set()
    one_more = {**many, **topic_table("new")}
    enter(routes, broker("a", topics=one_more), now=60)
    assert touched == ["new"]
    changed = {**one_more, **topic_table("topic-7", queues=8)}
    enter(routes, broker("a", topics=changed, data_version=V2), now=90)
    assert routes.changed == {"new", "topic-7"}, "only what is different drops its answers"
