"""Whether rows have where to go, asked in the driver: before tasks do all the work that rows are made by.

Spark makes a writer for each micro-batch, in a process that it keeps for that, so what was found there is not asked for
again. Mutable state: the targets that this process has found.
"""

import logging
import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from cometmq.client.client import Client
from cometmq.client.errors import NoNameserver, NoRoute
from cometmq.client.routes import why_unwritable
from cometmq.protocol import names
from cometmq.remoting.errors import TransportError
from cometmq.spark.access import Access
from cometmq.spark.errors import OptionError, Unreachable
from cometmq.spark.link import link_to
from cometmq.spark.sink_options import SinkOptions
from cometmq.spark.sink_sender import NotSent, retried, route_to

log = logging.getLogger(__name__)

_found: Final[set[tuple[Access, str]]] = set()


def check_target(options: SinkOptions, *, may_be_away: bool = False) -> None:
    """Refuse a nameserver that does not answer, and a topic that neither is there nor would be made.

    It is tried again as often as a send is. `may_be_away`: a cluster without an answer is the tasks' to wait for, as
    they may need none: their routes are known.
    """
    target = (options.access, options.topic)
    if target in _found:
        return
    link = link_to(options.access)
    what = f"rows for topic {options.topic}" if options.topic else "rows"
    try:
        link.run(retried(what, lambda: _ask(link.client, options), options.retries), timeout=None)
    except NotSent as error:
        cause = error.__cause__
        if may_be_away and (isinstance(cause, NoNameserver) or getattr(cause, "retriable", False)):
            log.warning("%s; the tasks will try it again", error)
            return
        if isinstance(cause, NoNameserver | TransportError):
            raise Unreachable(
                f"nameServer={';'.join(options.access.name_servers)}: no nameserver answers ({cause})",
                "check the addresses, that they can be reached from Spark's driver, and tls; or raise requestTimeoutMs "
                "or sendRetries",
            ) from None
        if isinstance(cause, NoRoute):
            raise OptionError("topic", options.topic, f"{cause}; {cause.remedy}, or correct the option") from None
        raise
    _found.add(target)


async def _ask(client: Client, options: SinkOptions) -> None:
    if not options.topic:
        try:
            await route_to(client, names.DEFAULT_TOPIC)
        except NoRoute as error:
            log.debug("a nameserver has answered: %s", error)
        return
    route = await route_to(client, options.access.wire_topic(options.topic))
    if not route.publish:
        raise why_unwritable(route, options.topic)


def has_run(options: Mapping[str, str]) -> bool:
    """Whether a stream has done a batch before, by its checkpoint; also when that is not on this machine's disk."""
    location = next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None)
    parts = urlsplit(location or "elsewhere:")
    if parts.scheme not in ("", "file"):
        return True
    commits = os.path.join(unquote(parts.path) if parts.scheme else str(location), "commits")
    return os.path.isdir(commits) and any(name.isdigit() for name in os.listdir(commits))
