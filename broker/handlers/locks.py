"""Locks on queues, for consumers in order: requests 41 and 42. Mirrors a part of RocketMQ's AdminBrokerProcessor."""

from typing import TYPE_CHECKING, Final

from cometmq.broker.handlers.clients import bounded
from cometmq.broker.handlers.row import Row
from cometmq.protocol.bodies.locks import LockBatchRequestBody, LockBatchResponseBody, UnlockBatchRequestBody
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.errors import BodyError
from cometmq.protocol.header import NoHeader
from cometmq.remoting.dispatch import Request, Response

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

#: Longest body, in bytes: all queues of the largest topics.
MAX_BODY: Final = 1024 * 1024

_SUCCESS = Response()


def rows(state: "BrokerState") -> list[Row]:
    requests = LockRequests(state)
    return [
        (RequestCode.LOCK_BATCH_MQ, requests.lock, None),
        (RequestCode.UNLOCK_BATCH_MQ, requests.unlock, None),
    ]


class LockRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state

    def lock(self, request: Request[NoHeader]) -> Response:
        """Names the queues that the client holds now, in its own words; those of others are left out."""
        asked = LockBatchRequestBody.decode(bounded(request, MAX_BODY))
        _check_names(asked)
        held = self._state.locks.lock(asked.consumer_group, asked.client_id, asked.mq_set)
        return Response(body=LockBatchResponseBody(lock_ok_mq_set=held).encode())

    def unlock(self, request: Request[NoHeader]) -> Response:
        asked = UnlockBatchRequestBody.decode(bounded(request, MAX_BODY))
        _check_names(asked)
        self._state.locks.unlock(asked.consumer_group, asked.client_id, asked.mq_set)
        return _SUCCESS


def _check_names(asked: LockBatchRequestBody | UnlockBatchRequestBody) -> None:
    """A lock of nobody would be everybody's."""
    for name, value in (("consumerGroup", asked.consumer_group), ("clientId", asked.client_id)):
        if not value:
            raise BodyError(f"{type(asked).__name__}: {name} is missing")
