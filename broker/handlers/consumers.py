"""Who is connected, who consumes what: the questions of operators about clients and groups.

Asking the clients themselves is in `client_calls`. RocketMQ's AdminBrokerProcessor.
"""

from typing import TYPE_CHECKING

from cometmq.broker.handlers.row import Row
from cometmq.protocol.bodies.connections import Connection, ConsumerConnection, ProducerConnection
from cometmq.protocol.bodies.lists import GroupList, ProducerInfo, ProducerTableInfo, TopicList
from cometmq.protocol.bodies.stats import QuerySubscriptionResponseBody
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.header import NoHeader
from cometmq.protocol.requests import admin as headers
from cometmq.remoting.dispatch import Permission, Request, Response

if TYPE_CHECKING:
    from cometmq.broker.channels import ClientChannel
    from cometmq.broker.state import BrokerState


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = ConsumerRequests(state)
    group = Permission("Get", "Group", "group")
    return [
        (
            RequestCode.GET_CONSUMER_CONNECTION_LIST,
            requests.get_consumer_connections,
            Permission("Get", "Group", "consumer_group"),
        ),
        (RequestCode.GET_PRODUCER_CONNECTION_LIST, requests.get_producer_connections, Permission("Get", "Cluster")),
        (RequestCode.GET_ALL_PRODUCER_INFO, requests.get_all_producers, Permission("Get", "Cluster")),
        (RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, requests.query_groups_of, Permission("Get", "Topic", "topic")),
        (RequestCode.QUERY_TOPICS_BY_CONSUMER, requests.query_topics_of, group),
        (RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, requests.query_subscription, group),
    ]


class ConsumerRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state

    def get_consumer_connections(self, request: Request[headers.GetConsumerConnectionList]) -> Response:
        """The members of a consumer group and what they subscribe to."""
        name = request.header.consumer_group
        group = self._state.consumers.get(name)
        if group is None:
            remark = f"the consumer group[{name}] not online"
            return Response(int(ResponseCode.CONSUMER_NOT_ONLINE), remark=remark)
        return Response(
            body=ConsumerConnection(
                connection_set=[_connection(channel) for channel in group.channels.values()],
                consume_from_where=group.consume_from_where,
                consume_type=group.consume_type,
                message_model=group.message_model,
                subscription_table=dict(group.subscriptions),
            ).encode()
        )

    def get_producer_connections(self, request: Request[headers.GetProducerConnectionList]) -> Response:
        """The members of a producer group."""
        name = request.header.producer_group
        channels = self._state.producers.channels_of(name)
        if not channels:
            return Response(int(ResponseCode.SYSTEM_ERROR), remark=f"the producer group[{name}] not exist")
        return Response(body=ProducerConnection(connection_set=[_connection(each) for each in channels]).encode())

    def get_all_producers(self, request: Request[NoHeader]) -> Response:
        """All producers by group."""
        wall, now = self._state.clock.wall(), self._state.clock.monotonic()
        data = {
            group: [
                ProducerInfo(
                    client_id=channel.client_id,
                    language=channel.language,
                    last_update_timestamp=wall - round((now - channel.last_update) * 1000),
                    remote_ip=f"/{channel.connection}",  # as Java writes an address without a name
                    version=channel.version,
                )
                for channel in channels.values()
            ]
            for group, channels in self._state.producers.table.items()
        }
        return Response(body=ProducerTableInfo(data=data).encode())

    def query_groups_of(self, request: Request[headers.QueryTopicConsumeByWho]) -> Response:
        """The groups that subscribe to a topic now or have offsets in it."""
        topic = request.header.topic
        groups = [*self._state.consumers.groups_of_topic(topic), *self._state.offsets.groups_of(topic)]
        return Response(body=GroupList(group_list=list(dict.fromkeys(groups))).encode())

    def query_topics_of(self, request: Request[headers.QueryTopicsByConsumer]) -> Response:
        """The topics that a group has offsets in."""
        topics = self._state.offsets.topics_of(request.header.group)
        return Response(body=TopicList(broker_addr=self._state.address, topic_list=topics).encode())

    def query_subscription(self, request: Request[headers.QuerySubscription]) -> Response:
        """What the members of a group want of a topic now; nothing when there are none."""
        group, topic = request.header.group, request.header.topic
        data = self._state.consumers.subscription(group, topic)
        return Response(body=QuerySubscriptionResponseBody(group=group, subscription_data=data, topic=topic).encode())


def _connection(channel: "ClientChannel") -> Connection:
    return Connection(
        client_addr=str(channel.connection),
        client_id=channel.client_id,
        language=channel.language,
        version=channel.version,
    )
