"""The table of all requests by their codes.

It says what travels; who handles it and who may ask is decided where it is handled.
"""

from cometmq.protocol.header import Operation
from cometmq.protocol.requests import (
    admin,
    auth,
    callbacks,
    clients,
    controller,
    namesrv,
    offsets,
    pop,
    pull,
    queries,
    recall,
    replication,
    send,
    topics,
    transactions,
)

#: What is known about each request code.
OPERATIONS: dict[int, Operation] = {
    int(operation.code): operation
    for module in (
        send,
        pull,
        offsets,
        clients,
        transactions,
        queries,
        namesrv,
        topics,
        admin,
        replication,
        controller,
        callbacks,
        recall,
        auth,
        pop,
    )
    for operation in module.OPERATIONS
}
