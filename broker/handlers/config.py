"""The configuration of a running broker: to look at, and to change within limits.

Only keys that are declared dynamic can be changed from remote; paths, classes and commands, which were ways to run code
in RocketMQ (CVE-2023-33246, CVE-2023-37582), never can. A change is on the disk before it is answered, and a restart
has it: see `remote_changes`. RocketMQ's Configuration.
"""

from typing import TYPE_CHECKING, Final

from cometmq.broker.config import ConfigRefused
from cometmq.broker.handlers.row import Row
from cometmq.protocol import properties_text
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import BodyError
from cometmq.protocol.header import NoHeader
from cometmq.protocol.requests.admin import GetBrokerConfigAnswer
from cometmq.remoting.dispatch import Permission, Request, Response

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

#: Bytes of an update: a whole configuration has 16 KiB.
MAX_CONFIG: Final = 256 * 1024


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = ConfigRequests(state)
    return [
        (RequestCode.UPDATE_BROKER_CONFIG, requests.update_config, Permission("Update", "Cluster")),
        (RequestCode.GET_BROKER_CONFIG, requests.get_config, Permission("Get", "Cluster")),
    ]


class ConfigRequests:
    """The handlers, one method a request code."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state

    async def update_config(self, request: Request[NoHeader]) -> Response:
        """All keys or none; a value that cannot be used is left out and logged, as RocketMQ does."""
        if len(request.body) > MAX_CONFIG:
            return _failed(f"the configuration has {len(request.body)} bytes, over the limit of {MAX_CONFIG}")
        try:
            properties = properties_text.loads(request.body)
        except BodyError:
            return _failed("string2Properties error")
        if properties:
            try:
                await self._state.update_config(properties)
            except ConfigRefused as refusal:
                return Response(int(ResponseCode.NO_PERMISSION), remark=str(refusal))
        return Response()

    def get_config(self, request: Request[NoHeader]) -> Response:
        version = self._state.data_version_of_config.encode().decode()
        return Response(header=GetBrokerConfigAnswer(version), body=self._state.config.to_text().encode())


def _failed(remark: str) -> Response:
    return Response(int(ResponseCode.SYSTEM_ERROR), remark=remark)
