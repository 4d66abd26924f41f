"""The requests that a nameserver answers: from a typed header to the state and back to a response.

Decoding of bodies, version gates, response codes and remarks are here; what a request does to the routes is in
`registration`, `liveness` and `answers`. Mirrors RocketMQ's ClientRequestProcessor and DefaultRequestProcessor.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any

from cometmq.namesrv import answers, liveness
from cometmq.namesrv.config import ConfigRefused
from cometmq.namesrv.kv_config import ORDER_TOPIC_CONFIG
from cometmq.namesrv.registration import Registration, register
from cometmq.namesrv.routes import PERM_READ, PERM_WRITE, BrokerAddress, MinIdChange
from cometmq.namesrv.state import NamesrvState
from cometmq.protocol import properties_text
from cometmq.protocol.bodies.lists import TopicList
from cometmq.protocol.bodies.registration import DataVersion, KVTable, RegisterBrokerBody
from cometmq.protocol.bodies.route import GetBrokerMemberGroupResponseBody, TopicRouteData
from cometmq.protocol.checksum import crc32
from cometmq.protocol.codes import RequestCode, ResponseCode, Version, request_name
from cometmq.protocol.errors import BodyError
from cometmq.protocol.header import NoHeader
from cometmq.protocol.requests import namesrv as headers
from cometmq.remoting.dispatch import Handler, HandlerTable, Permission, Request, Response

#: Keys that any request may carry.
ZONE_NAME = "__ZONE_NAME"
ZONE_MODE = "__ZONE_MODE"
_ZONE_MODE_BYTES = ZONE_MODE.encode()

_STANDARD_JSON_SINCE = int(Version.V4_9_4)
_FAQ = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

#: Longest bodies, in bytes. Reading one keeps everybody waiting, so it may not be much longer than a real one: the
#: version of a table, the queues of one topic on a thousand brokers, a configuration file.
MAX_DATA_VERSION = 4 * 1024
MAX_TOPIC_ROUTE = 256 * 1024
MAX_CONFIG = 256 * 1024

_SUCCESS = Response()
_NOT_READY = Response(int(ResponseCode.SYSTEM_ERROR), remark="name server not ready")
_DISABLED = Response(int(ResponseCode.SYSTEM_ERROR), remark="disable")

log = logging.getLogger(__name__)


def handler_table(state: NamesrvState, notify: Callable[[Iterable[MinIdChange]], None]) -> HandlerTable:
    """The requests of a nameserver. `notify` gets the changes that other brokers should hear of."""
    requests = _Requests(state, notify)
    table = HandlerTable()
    read, update = Permission("Get", "Cluster"), Permission("Update", "Cluster")
    listing = Permission("List", "Topic")
    rows: list[tuple[RequestCode, Handler, Permission]] = [
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, requests.get_route, Permission("Get", "Topic", "topic")),
        (RequestCode.REGISTER_BROKER, requests.register_broker, update),
        (RequestCode.UNREGISTER_BROKER, requests.unregister_broker, update),
        (RequestCode.QUERY_DATA_VERSION, requests.query_data_version, update),
        (RequestCode.BROKER_HEARTBEAT, requests.broker_heartbeat, update),
        (RequestCode.GET_BROKER_CLUSTER_INFO, requests.get_cluster_info, read),
        (RequestCode.GET_BROKER_MEMBER_GROUP, requests.get_member_group, read),
        (RequestCode.WIPE_WRITE_PERM_OF_BROKER, requests.wipe_write_perm, update),
        (RequestCode.ADD_WRITE_PERM_OF_BROKER, requests.add_write_perm, update),
        (RequestCode.REGISTER_TOPIC_IN_NAMESRV, requests.register_topic, Permission("Create", "Topic", "topic")),
        (RequestCode.DELETE_TOPIC_IN_NAMESRV, requests.delete_topic, Permission("Delete", "Topic", "topic")),
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, requests.get_all_topics, listing),
        (RequestCode.GET_TOPICS_BY_CLUSTER, requests.get_topics_by_cluster, listing),
        (RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, requests.get_system_topics, listing),
        (RequestCode.GET_UNIT_TOPIC_LIST, requests.get_unit_topics, listing),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, requests.get_unit_sub_topics, listing),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, requests.get_unit_sub_un_unit_topics, listing),
        (RequestCode.PUT_KV_CONFIG, requests.put_kv, update),
        (RequestCode.GET_KV_CONFIG, requests.get_kv, read),
        (RequestCode.DELETE_KV_CONFIG, requests.delete_kv, update),
        (RequestCode.GET_KVLIST_BY_NAMESPACE, requests.get_kv_list, read),
        (RequestCode.UPDATE_NAMESRV_CONFIG, requests.update_config, update),
        (RequestCode.GET_NAMESRV_CONFIG, requests.get_config, read),
    ]
    for code, handler, permission in rows:
        table.add(code, handler, permission=permission)
    table.on_connection_lost.append(requests.connection_lost)
    return table


class _Requests:
    """The handlers, one method a request code."""

    def __init__(self, state: NamesrvState, notify: Callable[[Iterable[MinIdChange]], None]) -> None:
        self._state = state
        self._routes = state.routes
        self._answers = state.answers
        self._notify = notify

    # Routes

    def get_route(self, request: Request[headers.GetRouteInfo]) -> Response:
        """Hot: a client asks this for every topic every 30 s. One lookup of bytes that are ready to send."""
        header = request.header
        topic = header.topic
        if self._state.config.need_wait_for_service and self._state.is_warming_up:
            return _NOT_READY
        if topic is not None:
            standard = request.command.version >= _STANDARD_JSON_SINCE or header.accept_standard_json_only is True
            # Few clients ask by zone, so the whole header is not read for it.
            if _ZONE_MODE_BYTES in request.raw_header and (zone := _zone_of(request)):
                if (route := self._answers.route(topic)) is not None:
                    return Response(body=answers.in_zone(route, zone).encode(standard=standard))
            elif (body := self._answers.encoded(topic, standard=standard)) is not None:
                return Response(body=body)
        # Java prints a missing topic as null.
        remark = f"No topic route info in name server for the topic: {'null' if topic is None else topic}{_FAQ}"
        return Response(int(ResponseCode.TOPIC_NOT_EXIST), remark=remark)

    def get_cluster_info(self, request: Request[NoHeader]) -> Response:
        return Response(body=answers.cluster_info(self._routes).encode())

    def get_member_group(self, request: Request[headers.GetBrokerMemberGroup]) -> Response:
        group = answers.member_group(self._routes, request.header.cluster_name, request.header.broker_name)
        return Response(body=GetBrokerMemberGroupResponseBody(broker_member_group=group).encode())

    # Brokers

    def register_broker(self, request: Request[headers.RegisterBroker]) -> Response:
        header = request.header
        if header.body_crc32 and header.body_crc32 != crc32(request.body):
            return _failed("crc32 not match", header=headers.RegisterBrokerAnswer())
        body = RegisterBrokerBody.from_request(
            request.body, compressed=header.compressed, version=request.command.version
        )
        topics = body.topic_config_serialize_wrapper
        registration = Registration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_addr,
            ha_server_addr=header.ha_server_addr,
            zone_name=request.ext.get(ZONE_NAME),
            heartbeat_timeout_millis=header.heartbeat_timeout_millis,
            enable_acting_master=header.enable_acting_master,
            data_version=topics.data_version,
            topics=topics.topic_config_table,
            mappings=topics.topic_queue_mapping_info_map,
            filter_servers=body.filter_server_list,
            channel=request.connection,
        )
        config = self._state.config
        done = register(
            self._routes, registration, now=self._state.clock(), prune=config.delete_topic_with_broker_registration
        )
        if done is None:
            return _failed("register broker failed", header=headers.RegisterBrokerAnswer())
        if done.min_id_change is not None:
            self._notify((done.min_id_change,))
        order = self._state.kv.namespace(ORDER_TOPIC_CONFIG) if config.return_order_topic_config_to_broker else None
        return Response(
            header=headers.RegisterBrokerAnswer(done.ha_server_addr, done.master_addr),
            body=b"" if order is None else KVTable(table=dict(order)).encode(),
        )

    def unregister_broker(self, request: Request[headers.UnregisterBroker]) -> Response:
        header = request.header
        gone = liveness.Departure(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
        self._notify(liveness.unregister(self._routes, (gone,)))
        return _SUCCESS

    def query_data_version(self, request: Request[headers.QueryDataVersion]) -> Response:
        key = BrokerAddress(request.header.cluster_name, request.header.broker_addr)
        version = DataVersion.decode(_bounded(request, MAX_DATA_VERSION)) if request.body else None
        changed = liveness.is_changed(self._routes, key, version)
        liveness.heartbeat(self._routes, key, now=self._state.clock())
        live = self._routes.live.get(key)
        return Response(
            header=headers.QueryDataVersionAnswer(changed), body=live.data_version.encode() if live is not None else b""
        )

    def broker_heartbeat(self, request: Request[headers.BrokerHeartbeat]) -> Response:
        key = BrokerAddress(request.header.cluster_name, request.header.broker_addr)
        liveness.heartbeat(self._routes, key, now=self._state.clock())
        return _SUCCESS

    def wipe_write_perm(self, request: Request[headers.WipeWritePerm]) -> Response:
        count = self._routes.set_perm(request.header.broker_name, keep=~PERM_WRITE, add=0)
        log.info("%s: write permission of %d topics wiped", request.header.broker_name, count)
        return Response(header=headers.WipeWritePermAnswer(count))

    def add_write_perm(self, request: Request[headers.AddWritePerm]) -> Response:
        count = self._routes.set_perm(request.header.broker_name, keep=0, add=PERM_READ | PERM_WRITE)
        log.info("%s: write permission of %d topics added", request.header.broker_name, count)
        return Response(header=headers.AddWritePermAnswer(count))

    def connection_lost(self, connection: object) -> None:
        """A broker is gone with the connection it registered on; one that registered on another since is not."""
        keys = self._routes.live_on(connection)
        if keys:
            self._notify(liveness.unregister(self._routes, liveness.departures(self._routes, keys)))

    # Topics

    def register_topic(self, request: Request[headers.RegisterTopic]) -> Response:
        if request.body:
            route = TopicRouteData.decode(_bounded(request, MAX_TOPIC_ROUTE))
            if not self._routes.register_topic(request.header.topic, route.queue_datas):
                log.warning("topic %s not registered: its brokers are unknown", request.header.topic)
        return _SUCCESS

    def delete_topic(self, request: Request[headers.DeleteTopicInNamesrv]) -> Response:
        # Java takes an empty cluster for none.
        self._routes.delete_topic(request.header.topic, request.header.cluster_name or None)
        return _SUCCESS

    def get_all_topics(self, request: Request[NoHeader]) -> Response:
        return _list(answers.all_topics(self._routes)) if self._state.config.enable_all_topic_list else _DISABLED

    def get_topics_by_cluster(self, request: Request[headers.GetTopicsByCluster]) -> Response:
        return self._gated(lambda: answers.topics_of_cluster(self._routes, request.header.cluster))

    def get_system_topics(self, request: Request[NoHeader]) -> Response:
        return _list(answers.system_topics(self._routes))

    def get_unit_topics(self, request: Request[NoHeader]) -> Response:
        return self._gated(lambda: answers.unit_topics(self._routes))

    def get_unit_sub_topics(self, request: Request[NoHeader]) -> Response:
        return self._gated(lambda: answers.unit_sub_topics(self._routes))

    def get_unit_sub_un_unit_topics(self, request: Request[NoHeader]) -> Response:
        return self._gated(lambda: answers.unit_sub_un_unit_topics(self._routes))

    def _gated(self, topics: Callable[[], TopicList]) -> Response:
        return _list(topics()) if self._state.config.enable_topic_list else _DISABLED

    # KV config

    async def put_kv(self, request: Request[headers.PutKvConfig]) -> Response:
        header = request.header
        if header.namespace is None or header.key is None:
            return _failed("namespace or key is null")
        await self._state.put_kv(header.namespace, header.key, header.value)
        return _SUCCESS

    def get_kv(self, request: Request[headers.GetKvConfig]) -> Response:
        header = request.header
        value = self._state.kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return Response(int(ResponseCode.QUERY_NOT_FOUND), header=headers.GetKvConfigAnswer(), remark=remark)
        return Response(header=headers.GetKvConfigAnswer(value))

    async def delete_kv(self, request: Request[headers.DeleteKvConfig]) -> Response:
        await self._state.delete_kv(request.header.namespace, request.header.key)
        return _SUCCESS

    def get_kv_list(self, request: Request[headers.GetKvList]) -> Response:
        table = self._state.kv.namespace(request.header.namespace)
        if table is None:
            remark = f"No config item, Namespace: {request.header.namespace}"
            return Response(int(ResponseCode.QUERY_NOT_FOUND), remark=remark)
        return Response(body=KVTable(table=dict(table)).encode())

    # Configuration

    async def update_config(self, request: Request[NoHeader]) -> Response:
        body = _bounded(request, MAX_CONFIG)
        try:
            properties = properties_text.loads(body)
        except BodyError:
            return _failed("string2Properties error")
        if properties:
            try:
                await self._state.update_config(properties)
            except ConfigRefused as refusal:
                return Response(int(ResponseCode.NO_PERMISSION), remark=str(refusal))
        return _SUCCESS

    def get_config(self, request: Request[NoHeader]) -> Response:
        return Response(body=self._state.config.to_text().encode())


def _failed(remark: str, *, header: Any = None) -> Response:
    return Response(int(ResponseCode.SYSTEM_ERROR), header=header, remark=remark)


def _list(topics: TopicList) -> Response:
    return Response(body=topics.encode())


def _zone_of(request: Request[Any]) -> str | None:
    """The zone that a client wants to stay in; None when it did not ask for that."""
    ext = request.ext
    zone = ext.get(ZONE_NAME, "").strip()
    return zone if zone and ext.get(ZONE_MODE, "").lower() == "true" else None


def _bounded(request: Request[Any], limit: int) -> bytes:
    """The body of a request, refused when it is too long to be honest."""
    if len(request.body) > limit:
        name = request_name(request.command.code)
        raise BodyError(f"{name}: body of {len(request.body)} bytes is over the limit of {limit}")
    return request.body
