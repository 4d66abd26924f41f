"""Which nameserver is asked, and how the list of them is found.

One nameserver is used while it answers; when it does not, the next of the list is asked within the same timeout. The
list is given, or comes from an HTTP address server that is asked again from time to time. RocketMQ's name server part
of NettyRemotingClient, and TopAddressing.
"""

import asyncio
import logging
import random
from collections.abc import Iterable

from cometmq.client.addresses import configured_addresses
from cometmq.client.errors import NoNameserver
from cometmq.protocol.header import Header
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.errors import BadAddress, TransportError
from cometmq.remoting.pending import Answer

log = logging.getLogger(__name__)

#: Seconds that one address server may take.
LOOKUP_TIMEOUT = 3.0
#: A list of addresses is not longer than this, in bytes.
MAX_LIST = 64 * 1024


class Nameservers:
    """The nameservers of one client. Mutable state: the list, and which of it is in use."""

    def __init__(self, remoting: RemotingClient, addresses: Iterable[str], *, url: str | None = None) -> None:
        self._remoting = remoting
        self._url = url
        self.addresses: list[str] = []
        self._chosen = 0
        self.update(addresses)

    def update(self, addresses: Iterable[str]) -> bool:
        """Take over a new list; whether it is another one. The order is random, so that clients spread."""
        new = list(addresses)
        if sorted(new) == sorted(self.addresses):
            return False
        random.shuffle(new)
        self.addresses = new
        self._chosen = 0
        return True

    @property
    def is_looked_up(self) -> bool:
        """Whether the list comes from an address server."""
        return self._url is not None

    async def look_up(self) -> None:
        """Ask the address server. What cannot be had leaves the list as it is."""
        if self._url is None:
            return
        try:
            text = await asyncio.to_thread(_fetch, self._url)
            addresses = configured_addresses(text, {})
        except (OSError, BadAddress, ValueError) as error:
            log.warning("the address server %s gave no list: %s", self._url, error)
            return
        if addresses and self.update(addresses):
            log.info("nameservers are now %s", ", ".join(addresses))

    async def request(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout: float,  # noqa: ASYNC109 - one budget for all servers that are tried
    ) -> Answer:
        """The answer of the first nameserver that gives one. NoNameserver names why each of them did not."""
        if not self.addresses:
            await self.look_up()
        if not self.addresses:
            raise NoNameserver(self._why_none())
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        failures: list[str] = []
        addresses = self.addresses
        for number in range(len(addresses)):
            index = (self._chosen + number) % len(addresses)
            address = addresses[index]
            # Each gets its share of what is left: a dead one must not use up the time of the others.
            left = deadline - loop.time()
            share = left / (len(addresses) - number)
            if left <= 0:
                failures.append(f"{address}: no time was left")
                break
            try:
                answer = await self._remoting.request(address, code, header, body, timeout=share)
            except TransportError as error:
                failures.append(f"{address}: {error}")
                continue
            if addresses is self.addresses:
                self._chosen = index
            return answer
        raise NoNameserver(f"no nameserver answered ({'; '.join(failures)})", are_silent=True)

    def _why_none(self) -> str:
        if self._url is not None:
            return f"the address server {self._url} gave no nameserver"
        return "no nameserver was given"


def _fetch(url: str) -> str:
    # Imported here: it takes a quarter of the SDK's import, and few clients look anything up.
    import urllib.error
    import urllib.request

    with urllib.request.urlopen(url, timeout=LOOKUP_TIMEOUT) as answer:  # the URL is the user's own configuration
        if answer.status != 200:
            raise urllib.error.URLError(f"status {answer.status}")
        text: str = answer.read(MAX_LIST).decode("utf-8", "replace").strip()
    return text.splitlines()[0] if text else ""
