"""The remoting protocol by hand: one JSON request on one connection, for looking at servers from outside.

Nothing of cometmq is used here on purpose: what judges our servers must not share their mistakes.
"""

import json
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

GET_KV_CONFIG = 101
GET_ROUTEINFO_BY_TOPIC = 105
GET_BROKER_CLUSTER_INFO = 106
GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
UPDATE_AND_CREATE_TOPIC = 17
UPDATE_BROKER_CONFIG = 25
UPDATE_NAMESRV_CONFIG = 318

SUCCESS = 0
TOPIC_NOT_EXIST = 17
QUERY_NOT_FOUND = 22

#: What RocketMQ 5.3.3 announces; from 401 on, route answers are strict JSON.
VERSION = 479


@dataclass(frozen=True, slots=True)
class Answer:
    """A response: its code, remark, header fields and body."""

    code: int
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """The body as a value. RocketMQ writes integer keys without quotes in some answers; both forms are read."""
        return json.loads(re.sub(r"([{,]\s*)(-?\d+)(\s*:)", r'\1"\2"\3', self.body.decode()))


def call(
    address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"", seconds: float = 5
) -> Answer:
    """Sends one request to `host:port` and gives its response. OSError when nobody answers."""
    host, port = address.rsplit(":", 1)
    request = {"code": code, "flag": 0, "language": "OTHER", "opaque": 1, "version": VERSION, "extFields": fields or {}}
    header = json.dumps(request).encode()
    with socket.create_connection((host, int(port)), seconds) as connection:
        connection.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
        with connection.makefile("rb") as stream:
            length, header_length = struct.unpack(">II", _exactly(stream.read(8), 8))
            if header_length >> 24 != 0:
                raise ValueError(f"the answer's header is of type {header_length >> 24}, not JSON")
            rest = _exactly(stream.read(length - 4), length - 4)
    answer = json.loads(rest[:header_length])
    if answer["opaque"] != 1 or answer["flag"] & 1 == 0:
        raise ValueError(f"not the response of this request: {answer}")
    return Answer(answer["code"], answer.get("remark"), answer.get("extFields") or {}, rest[header_length:])


def _exactly(data: bytes, length: int) -> bytes:
    if len(data) != length:
        raise ConnectionError(f"the peer closed after {len(data)} of {length} bytes")
    return data


def answers(address: str) -> bool:
    """Does a nameserver answer there?"""
    try:
        return call(address, GET_BROKER_CLUSTER_INFO).code == SUCCESS
    except OSError:
        return False


def cluster_info(nameserver: str) -> dict[str, Any]:
    """`{brokerAddrTable, clusterAddrTable}` of a nameserver."""
    return dict(_good(call(nameserver, GET_BROKER_CLUSTER_INFO)).json())


def broker_addresses(nameserver: str) -> dict[str, str]:
    """The masters that a nameserver knows: broker name to address. Empty when it does not answer (yet)."""
    try:
        table = cluster_info(nameserver)["brokerAddrTable"]
    except OSError:
        return {}
    return {name: data["brokerAddrs"]["0"] for name, data in table.items() if "0" in data["brokerAddrs"]}


def topic_list(nameserver: str) -> list[str]:
    return list(_good(call(nameserver, GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).json()["topicList"])


def topic_route(nameserver: str, topic: str) -> dict[str, Any] | None:
    """TopicRouteData, or None when the nameserver has no route for the topic."""
    answer = call(nameserver, GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
    if answer.code == TOPIC_NOT_EXIST:
        return None
    return dict(_good(answer).json())


def topic_perms(nameserver: str, topic: str) -> dict[str, int]:
    """Broker name to permission bits of a topic; empty without a route."""
    route = topic_route(nameserver, topic)
    return {queue["brokerName"]: queue["perm"] for queue in route["queueDatas"]} if route else {}


def kv_config(nameserver: str, namespace: str, key: str) -> str | None:
    answer = call(nameserver, GET_KV_CONFIG, {"namespace": namespace, "key": key})
    if answer.code == QUERY_NOT_FOUND:
        return None
    return _good(answer).fields["value"]


def create_topic(broker: str, topic: str, queues: int) -> None:
    """Makes a topic on a broker, which then tells its nameservers."""
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    _good(call(broker, UPDATE_AND_CREATE_TOPIC, fields))


def register_now(broker: str) -> None:
    """Makes a broker register with its nameservers at once: what a change of its permission does."""
    _good(call(broker, UPDATE_BROKER_CONFIG, body=b"brokerPermission=6\n"))


def set_nameserver_config(nameserver: str, key: str, value: str) -> None:
    _good(call(nameserver, UPDATE_NAMESRV_CONFIG, body=f"{key}={value}\n".encode()))


def _good(answer: Answer) -> Answer:
    if answer.code != SUCCESS:
        raise ValueError(f"answered {answer.code}: {answer.remark}")
    return answer
