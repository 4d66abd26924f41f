"""The link of a Spark process to the cluster: one client on a loop and a thread of its own.

Spark's Python processes are synchronous and live through many tasks and micro-batches; connections and routes should
too. So there is one `Link` for each `Access` and process. It ends with the process: the thread is a daemon, and Spark
kills its workers without telling them. A forked child makes links of its own.

Mutable state: the table of links of this process.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from cometmq.client.client import Client
from cometmq.client.requests import Credentials
from cometmq.loops import loop_factory
from cometmq.remoting.errors import Timeout, TlsSetupFailed
from cometmq.spark.access import Access
from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    from cometmq.remoting.tls import ClientTlsOptions

_T = TypeVar("_T")

_links: dict[Access, "Link"] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    """The child has neither the threads nor the sockets of these links, and the lock may be held by nobody there."""
    global _lock
    _lock = threading.Lock()
    _links.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Link:
    """A running client, used from threads without a loop. Made by `link_to`."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._tls = _tls(access)
        self.loop = (loop_factory() or asyncio.new_event_loop)()
        self._thread = threading.Thread(target=self._serve, name="cometmq link", daemon=True)
        self._thread.start()
        self.client: Client = self.run(self._connect(), timeout=None)

    def submit(self, work: Coroutine[Any, Any, _T]) -> "Future[_T]":
        """Run it on the link's loop; the future is for this thread to wait on."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, _T], timeout: float | None) -> _T:
        """Run it on the link's loop and wait at most so many seconds."""
        future = self.submit(work)
        try:
            return future.result(timeout)
        except TimeoutError as error:
            if future.done():  # the work's own
                raise
            raise Timeout(f"{self.name} did not answer within {timeout:g} s") from error
        finally:
            future.cancel()

    @property
    def name(self) -> str:
        return f"the cluster at {';'.join(self.access.name_servers)}"

    def close(self) -> None:
        """Close the client and end the thread. For tests: otherwise the process ends with its links open."""
        self.run(self.client.close(), timeout=None)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    async def _connect(self) -> Client:
        access = self.access
        client = Client(
            access.name_servers,
            credentials=_credentials(access),
            tls=self._tls,
            namespace=access.namespace,
            request_timeout=access.request_timeout,
        )
        await client.start()  # asks nobody yet
        return client


def _credentials(access: Access) -> Credentials | None:
    if not access.access_key:
        return None
    return Credentials(access.access_key, access.secret_key, access.security_token)


def _tls(access: Access) -> "ClientTlsOptions | None":
    if not access.tls:
        return None
    from cometmq.remoting.tls import ClientTlsOptions, client_context

    options = ClientTlsOptions(
        ca=access.tls_ca,
        cert=access.tls_cert,
        key=access.tls_key,
        key_password=access.tls_key_password,
        verify=access.tls_verify,
    )
    try:
        client_context(options).get()  # now: later it would look like a nameserver that does not answer
    except TlsSetupFailed as error:
        raise OptionError(
            "tls", "", f"{error}; tlsCa, tlsCert and tlsKey name PEM files, which driver and executors need there"
        ) from None
    return options


def link_to(access: Access) -> Link:
    """The link of this process to a cluster; the first call makes it."""
    with _lock:
        link = _links.get(access)
        if link is None:
            link = _links[access] = Link(access)
        return link


def close_links() -> None:
    """Close all links of this process. For tests, which count threads and sockets afterwards."""
    with _lock:
        while _links:
            _links.popitem()[1].close()
