"""What an administrator can meet besides the errors of all clients."""

from cometmq.client.errors import ClientError
from cometmq.protocol.codes import ResponseCode


class UnknownCluster(ClientError):
    """Raised when no broker of a cluster is registered with the nameserver."""

    remedy = "make sure the specified clusterName exists or the name server connected to is correct"


class UnknownBroker(ClientError):
    """Raised when a broker is named that no cluster has."""

    remedy = "see clusterList for the brokers that there are"


class NoMessage(ClientError):
    """Raised when a query found no message."""

    code = int(ResponseCode.NO_MESSAGE)
    remedy = "check topic, key and time: brokers find what their index files still hold"


class NoProgress(ClientError):
    """Raised when a group has no progress to show: nobody has consumed in it, or each member keeps its own."""

    code = int(ResponseCode.CONSUMER_NOT_ONLINE)
    remedy = "check the name of the group, and that one of its consumers has run"
