"""A row of the broker's handler table, as the modules of this package give it."""

from cometmq.protocol.codes import RequestCode
from cometmq.remoting.dispatch import Handler, Permission

Row = tuple[RequestCode, Handler, Permission | None]
