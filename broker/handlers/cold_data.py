"""Limits for groups that read cold data: kept and shown, as RocketMQ does while `coldDataFlowControlEnable` is off.

Nothing is held back by them: cold reads go through threads of their own here and never stand in the way of others.
RocketMQ's ColdDataCgCtrService.
"""

from typing import TYPE_CHECKING, Final

from cometmq.broker.handlers.row import Row
from cometmq.protocol import fastjson, properties_text
from cometmq.protocol.codes import RequestCode, ResponseCode
from cometmq.protocol.errors import BodyError
from cometmq.protocol.header import NoHeader
from cometmq.protocol.names import InvalidName, validate_group
from cometmq.protocol.requests.admin import SetCommitLogReadMode
from cometmq.remoting.dispatch import Permission, Request, Response

if TYPE_CHECKING:
    from cometmq.broker.state import BrokerState

#: Groups with a limit of their own.
MAX_GROUPS: Final = 10_000
#: Bytes of a request: as many groups, with long names.
MAX_BODY: Final = 1 << 20
_LONG_MAX: Final = 2**63 - 1
#: The mode in which the log is read: ahead, as the system does by itself.
_READ_AHEAD: Final = 0


def rows(state: "BrokerState") -> list[Row]:
    """The requests of this module."""
    requests = ColdDataRequests(state)
    update = Permission("Update", "Cluster")
    return [
        (RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, requests.update_limits, update),
        (RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, requests.remove_limit, update),
        (RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, requests.get_limits, Permission("Get", "Cluster")),
        (RequestCode.SET_COMMITLOG_READ_MODE, requests.set_read_mode, update),
    ]


class ColdDataRequests:
    """The handlers, one method a request code. Mutable state: bytes that a group may read cold, by group."""

    def __init__(self, state: "BrokerState") -> None:
        self._state = state
        self._limits: dict[str, int] = {}

    def update_limits(self, request: Request[NoHeader]) -> Response:
        """The body has lines `group=bytes`; all are taken or none."""
        if len(request.body) > MAX_BODY:
            return _failed(f"the body has {len(request.body)} bytes, over the limit of {MAX_BODY}")
        try:
            properties = properties_text.loads(request.body)
        except BodyError:
            return _failed("string2Properties error")
        limits = dict(self._limits)
        for group, text in properties.items():
            try:
                validate_group(group)
            except InvalidName as error:
                return Response(int(ResponseCode.INVALID_PARAMETER), remark=str(error))
            number = text.strip()
            if not (number.isascii() and number.isdigit() and len(number) <= 19 and int(number) <= _LONG_MAX):
                return _failed(f"{group}={text[:100]}: expected a number of bytes")
            limits[group] = int(number)
        if len(limits) > MAX_GROUPS:
            return _failed(f"{len(limits)} groups have a limit, no more than {MAX_GROUPS} can")
        self._limits = limits
        return Response()

    def remove_limit(self, request: Request[NoHeader]) -> Response:
        """The body is the name of a group."""
        self._limits.pop(request.body.decode(errors="replace").strip(), None)
        return Response()

    def get_limits(self, request: Request[NoHeader]) -> Response:
        settings = self._state.config.to_properties()
        table = {
            "runtimeTable": {},
            "configTable": self._limits,
            "cgColdReadThreshold": int(settings["cgColdReadThreshold"]),
            "globalColdReadThreshold": int(settings["globalColdReadThreshold"]),
            "globalAcc": 0,
        }
        return Response(body=fastjson.dumps(table))

    def set_read_mode(self, request: Request[SetCommitLogReadMode]) -> Response:
        """Reading ahead is what is done; another way of reading would change nothing but the time that it takes."""
        mode = request.header.read_ahead_mode
        if mode is None:
            return _failed("set commitlog readahead mode param value error")
        if mode != _READ_AHEAD:
            return _failed(f"set commitlog readahead mode failed, mode: {mode}: the log is always read ahead here")
        # The tool prints the remark: it is what this request is answered with.
        return Response(remark=f"set commitlog readahead mode success, mode: {mode}")


def _failed(remark: str) -> Response:
    return Response(int(ResponseCode.SYSTEM_ERROR), remark=remark)
