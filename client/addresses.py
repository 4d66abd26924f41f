"""Where the nameservers are, as a user says it: by argument or by environment. RocketMQ's NameServerAddressUtils.

Nothing here asks anybody; `nameservers` does.
"""

import os
from collections.abc import Iterable, Mapping

from cometmq.remoting.address import parse_addresses


def configured_addresses(given: str | Iterable[str] | None, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The nameservers by argument, else by `rocketmq.namesrv.addr` or `NAMESRV_ADDR` of the environment."""
    if given is None:
        given = environ.get("ROCKETMQ_NAMESRV_ADDR") or environ.get("NAMESRV_ADDR") or ""
    texts = [given] if isinstance(given, str) else list(given)
    addresses: list[str] = []
    for text in texts:
        for entry in text.replace(",", ";").split(";"):
            # RocketMQ's instances in the cloud write http://host:port.
            if address := entry.strip().rpartition("/")[2]:
                parse_addresses(address)
                addresses.append(address)
    return list(dict.fromkeys(addresses))


def lookup_url(environ: Mapping[str, str] = os.environ, unit: str = "") -> str | None:
    """The address server's URL, when one is named by `rocketmq.namesrv.domain` of the environment."""
    domain = environ.get("ROCKETMQ_NAMESRV_DOMAIN")
    if not domain:
        return None
    host = domain if ":" in domain else f"{domain}:8080"
    path = environ.get("ROCKETMQ_NAMESRV_DOMAIN_SUBGROUP") or "nsaddr"
    return f"http://{host}/rocketmq/{path}" + (f"-{unit}?nofix=1" if unit else "")
