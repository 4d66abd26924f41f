"""A nameserver that runs: the state behind a socket, the scan for silent brokers, the calls to other brokers.

Starts and stops in any running loop; port 0 takes a free port. Everything it starts it also ends: `close` leaves no
task, socket or timer. Mirrors RocketMQ's NamesrvController.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from typing import Self

from cometmq.namesrv import liveness
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.handlers import handler_table
from cometmq.namesrv.routes import MinIdChange
from cometmq.namesrv.state import NamesrvState
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.frame import MAX_FRAME
from cometmq.protocol.requests.namesrv import NotifyMinBrokerIdChange
from cometmq.remoting.address import format_address
from cometmq.remoting.client import ClientOptions, RemotingClient
from cometmq.remoting.connection import Connection
from cometmq.remoting.errors import TransportError
from cometmq.remoting.limits import Limits
from cometmq.remoting.server import Server, ServerOptions
from cometmq.remoting.tls import ClientTlsOptions, TlsOptions

#: Seconds for a call to a broker, the connect included; it is oneway, and the next heartbeat tells it the same.
NOTIFY_TIMEOUT = 0.3
#: Seconds that requests in flight get at shutdown when `enableShutdownGracefully` is off: they take milliseconds.
CLOSE_GRACE = 3.0

#: Without a configuration a nameserver takes a free port of this machine and keeps nothing on disk.
EMBEDDED = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", kv_config_path="", config_store_path="")

log = logging.getLogger(__name__)


class NameServer:
    """One nameserver. `async with`, or `start` and `close`. `clock` is monotonic, in seconds."""

    def __init__(
        self,
        config: NamesrvConfig | None = None,
        *,
        tls: TlsOptions | None = None,
        client_tls: ClientTlsOptions | None = None,
        frame_limit: int = MAX_FRAME,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = config or EMBEDDED
        self.state = NamesrvState(config, clock=clock)
        self._clock = clock
        limits = _limits(config, frame_limit)
        self._client = RemotingClient(ClientOptions(tls=client_tls, limits=limits))
        self._server = Server(
            handler_table(self.state, self._notify),
            ServerOptions(
                host=config.bind_address,
                port=config.listen_port,
                backlog=config.server_socket_backlog,
                tls=tls or TlsOptions(),
                limits=limits,
            ),
        )
        self._scan: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()
        self._is_closing = False

    @property
    def config(self) -> NamesrvConfig:
        """The settings, as they are after updates from remote."""
        return self.state.config

    @property
    def host(self) -> str:
        return self._server.address[0]

    @property
    def port(self) -> int:
        """The port that it listens on, also when 0 was asked for."""
        return self._server.address[1]

    @property
    def address(self) -> str:
        """`host:port` that it listens on."""
        return format_address(self.host, self.port)

    @property
    def connection_count(self) -> int:
        return self._server.connection_count

    async def start(self) -> None:
        """Read the KV file and listen. Errors say what to do: `FileDamaged`, `ListenFailed`, `TlsSetupFailed`."""
        idle = self.config.without_effect()
        if idle:
            log.warning("these keys have no effect here: %s", ", ".join(idle))
        self.state.kv.load()
        await self._server.start()
        self.state.started = self._clock()
        self._scan = asyncio.create_task(self._scan_forever(), name="scan for silent brokers")
        log.info("listening on %s", self.address)

    async def close(self) -> None:
        """Answer what is in flight, then end everything."""
        # The brokers lose their connections now, but none of them is gone: nobody is told otherwise.
        self._is_closing = True
        if self._scan is not None:
            self._scan.cancel()
            await asyncio.gather(self._scan, return_exceptions=True)
            self._scan = None
        config = self.config
        grace = config.shutdown_wait_time_seconds if config.enable_shutdown_gracefully else CLOSE_GRACE
        await self._server.close(grace=grace)
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._client.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def scan(self) -> None:
        """Forget the brokers that were silent for too long, and close their connections. A timer does it."""
        routes = self.state.routes
        keys = liveness.expired(routes, now=self._clock())
        channels = [routes.live[key].channel for key in keys]
        for key in keys:
            log.warning("no heartbeat of %s for %g s", key, routes.live[key].timeout)
        # First the tables, then the connections: their loss finds nobody left on them.
        self._notify(liveness.unregister(routes, liveness.departures(routes, keys)))
        for channel in channels:
            if isinstance(channel, Connection):
                channel.close("no heartbeat")

    async def _scan_forever(self) -> None:
        while True:
            try:
                # A new interval counts from now on, not after the old one.
                async with asyncio.timeout(self.config.scan_not_active_broker_interval / 1000):
                    await self.state.config_changed.wait()
                self.state.config_changed.clear()
            except TimeoutError:
                self.scan()

    def _notify(self, changes: Iterable[MinIdChange]) -> None:
        if not self.config.notify_min_broker_id_changed or self._is_closing:
            return
        for change in changes:
            header = NotifyMinBrokerIdChange(
                min_broker_id=change.min_broker_id,
                min_broker_addr=change.min_broker_addr,
                offline_broker_addr=change.offline_broker_addr,
                ha_broker_addr=change.ha_broker_addr,
            )
            log.info("%s: lowest id is %d now, telling %s", change.broker_name, change.min_broker_id, change.recipients)
            for address in change.recipients:
                call = asyncio.get_running_loop().create_task(self._tell(address, header))
                self._calls.add(call)
                call.add_done_callback(self._calls.discard)

    async def _tell(self, address: str, header: NotifyMinBrokerIdChange) -> None:
        code = RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE
        try:
            await self._client.send_oneway(address, code, header, timeout=NOTIFY_TIMEOUT)
        except TransportError as error:
            log.warning("could not tell %s of the lowest id: %s", address, error)


def _limits(config: NamesrvConfig, frame_limit: int) -> Limits:
    default = Limits()
    high = config.write_buffer_high_water_mark or default.high_water
    return Limits(
        frame=frame_limit,
        idle_timeout=float(config.server_channel_max_idle_time_seconds),
        high_water=high,
        low_water=min(config.write_buffer_low_water_mark or default.low_water, high),
    )
