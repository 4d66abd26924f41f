"""The link of a Spark process to the cluster: one client on a loop and a thread of its own.

Spark's Python processes are synchronous and live through many tasks and micro-batches; connections and routes should
too. So there is one `Link` for each `Access` and process. It ends with the process: the thread is a daemon, and Spark
kills its workers without telling them. A forked child makes links of its own.

Where each query has another `Access` (a securityToken that lasts an hour) a worker gathers links that nobody will ask
for again: beyond the latest few, a link ends when its last user lets go of it. So whoever uses one keeps it, not only
its client.

Mutable state: the tables of links of this process.
"""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet, WeakValueDictionary, finalize

from cometmq.client.client import Client
from cometmq.client.requests import Credentials
from cometmq.loops import loop_factory
from cometmq.remoting.errors import Timeout, TlsSetupFailed
from cometmq.spark.access import Access
from cometmq.spark.errors import OptionError

if TYPE_CHECKING:
    from cometmq.remoting.tls import ClientTlsOptions

_T = TypeVar("_T")

#: Links that are kept though nobody uses them: those of the streams of a driver, which come back with each micro-batch.
KEPT: Final = 8

#: All that there are.
_links: "WeakValueDictionary[Access, Link]" = WeakValueDictionary()
#: Those that were asked for last, the latest at the end.
_latest: dict[Access, "Link"] = {}
_threads: WeakSet[threading.Thread] = WeakSet()
_lock = threading.Lock()


def _after_fork() -> None:
    """The child has neither the threads nor the sockets of these links, and the lock may be held by nobody there."""
    global _links, _threads, _lock
    _links, _threads, _lock = WeakValueDictionary(), WeakSet(), threading.Lock()
    _latest.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Link:
    """A running client, used from threads without a loop. Made by `link_to`."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self._tls = _tls(access)
        self.loop = (loop_factory() or asyncio.new_event_loop)()
        # Neither thread nor loop refer to the link: it ends when nobody does.
        clients: list[Client] = []
        self._thread = threading.Thread(target=_serve, args=(self.loop, clients), name="cometmq link", daemon=True)
        self._thread.start()
        _threads.add(self._thread)
        self.client: Client = self.run(self._connect(), timeout=None)
        clients.append(self.client)
        self._end = finalize(self, _stop, self.loop, os.getpid())
        self._end.atexit = False

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
        self._end()
        self._thread.join()

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


def _serve(loop: asyncio.AbstractEventLoop, clients: list[Client]) -> None:
    """The thread of a link."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        for client in clients:
            loop.run_until_complete(client.close())
    finally:
        loop.close()


def _stop(loop: asyncio.AbstractEventLoop, process: int) -> None:
    """End the thread of a link; from any thread, also from this one. In a forked child there is none."""
    if os.getpid() == process:
        loop.call_soon_threadsafe(loop.stop)


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
        _latest.pop(access, None)
        _latest[access] = link
        if len(_latest) > KEPT:
            del _latest[next(iter(_latest))]
        return link


def close_links() -> None:
    """Close all links of this process. For tests, which count threads and sockets afterwards."""
    with _lock:
        for link in list(_links.values()):
            link.close()
        _links.clear()
        _latest.clear()
        for thread in list(_threads):
            thread.join()
