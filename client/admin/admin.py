"""`Admin`: every admin request as a typed coroutine. The subjects are its bases, one module each."""

from cometmq.client.admin.queries import QueryAdmin


class Admin(QueryAdmin):
    """What an administrator may ask of a cluster. Made by `client.admin()`; it needs no start and no close.

    Brokers are named by their addresses (`host:port`), topics and groups as the servers have them. What a server
    refuses is raised as `BrokerError`.
    """
