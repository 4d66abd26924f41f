"""A broker that runs: the state behind its ports, and everything that works by itself.

Starts and stops in any running loop; port 0 takes a free port, and then there is no fast port. Everything it starts it
also ends: `close` leaves no task, socket, thread or timer. Mirrors RocketMQ's BrokerController.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Any, Self

from cometmq.broker import remote_changes
from cometmq.broker.config import BrokerConfig
from cometmq.broker.consumers import Consumers
from cometmq.broker.groups import GroupTable
from cometmq.broker.handlers import fill_table, handler_rows, with_all_of
from cometmq.broker.handlers.row import Row
from cometmq.broker.held_pulls import HeldPulls
from cometmq.broker.hooks import Hooks
from cometmq.broker.housekeeping import SCAN_INTERVAL, ClientHousekeeping
from cometmq.broker.jobs import Jobs
from cometmq.broker.notices import ConsumerNotices
from cometmq.broker.offsets import ConsumerOffsets
from cometmq.broker.producers import Producers
from cometmq.broker.queue_locks import QueueLocks
from cometmq.broker.registration import Registration
from cometmq.broker.schedule import DelayDelivery
from cometmq.broker.state import BrokerState, is_ip
from cometmq.broker.stats import BrokerStats
from cometmq.broker.store.clock import Clock, SystemClock
from cometmq.broker.store.config_files import ConfigFiles
from cometmq.broker.store.disk import Disk, RealDisk
from cometmq.broker.store.dispatch import TellArrivals
from cometmq.broker.store.options import BrokerRole
from cometmq.broker.store.runner import AsyncioRunner
from cometmq.broker.store.store import Store
from cometmq.broker.tables import SavedTable
from cometmq.broker.topics import TopicTable
from cometmq.daemon import StartError, reason_of
from cometmq.protocol.delay import DelayLevels
from cometmq.protocol.errors import CometMQError
from cometmq.protocol.frame import MAX_FRAME
from cometmq.remoting.address import format_address
from cometmq.remoting.client import ClientOptions, RemotingClient
from cometmq.remoting.dispatch import HandlerTable
from cometmq.remoting.errors import ListenFailed
from cometmq.remoting.limits import Limits
from cometmq.remoting.server import Server, ServerOptions
from cometmq.remoting.tls import ClientTlsOptions, TlsOptions

#: Seconds that requests in flight get at shutdown when `enableShutdownGracefully` is off: they take milliseconds.
CLOSE_GRACE = 3.0
#: Seconds between looks for offsets that nobody needs any more.
OFFSET_SCAN = 600.0
#: Requests that may wait for their answers besides the held pulls.
OPEN_SENDS = 100_000
#: How far below `listenPort` the fast port is.
FAST_PORT = 2
#: Keys by which RocketMQ asks clients who they are, of both generations.
ACCESS_KEYS = ("aclEnable", "authenticationEnabled", "authorizationEnabled")

#: What to do about a store that cannot be used.
_REMEDIES = {
    errno.ENOSPC: "make room on the disk, or give another storePathRootDir",
    errno.EACCES: "let the user of the broker write there, or give another storePathRootDir",
    errno.ENOTDIR: "give a directory as storePathRootDir",
    errno.EROFS: "mount it writable, or give another storePathRootDir",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}

log = logging.getLogger(__name__)


class Broker:
    """One broker. `async with`, or `start` and `close`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        tls: TlsOptions | None = None,
        client_tls: ClientTlsOptions | None = None,
        frame_limit: int = MAX_FRAME,
        hooks: Hooks | None = None,
        fast_port: bool = True,
    ) -> None:
        """`hooks` replace those of installed packages. Without `fast_port` it listens on its port alone."""
        self._config = config
        self._clock = clock or SystemClock()
        self._disk = disk or RealDisk()
        self._tls = tls or TlsOptions()
        self._limits = _limits(config, frame_limit)
        self._client = RemotingClient(ClientOptions(tls=client_tls, limits=self._limits))
        self._hooks = hooks
        self._has_fast_port = fast_port
        self._runner: AsyncioRunner | None = None
        self._servers: list[Server] = []
        self._registration: Registration | None = None
        self._saved: list[SavedTable[Any]] = []
        self._jobs: Jobs | None = None
        self._housekeeping: ClientHousekeeping
        self._notices: ConsumerNotices | None = None
        self._store_is_open = False
        self.state: BrokerState

    # What others want to know

    @property
    def port(self) -> int:
        """The port that it listens on, also when 0 was asked for."""
        return self._servers[0].address[1]

    @property
    def address(self) -> str:
        """`brokerIP1:listenPort`, as clients are told."""
        return self.state.address

    @property
    def connection_count(self) -> int:
        return sum(server.connection_count for server in self._servers)

    # Its life

    async def start(self) -> None:
        """Recover the store, listen, register. What goes wrong is raised, and nothing of a broker is left then."""
        try:
            await self._start()
        except OSError as error:
            await self.close()
            if isinstance(error, CometMQError):
                raise
            place = error.filename or self._config.store.root
            remedy = _REMEDIES.get(error.errno or 0, "")
            raise StartError(f"cannot use the store: {place}: {reason_of(error)}", remedy) from error
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        root = self._config.store.root
        if self._disk.exists(root) and not self._disk.is_dir(root):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", root)
        config = self._config = remote_changes.restore(self._config)
        _check_role(config)
        idle = config.without_effect()
        if idle:
            log.warning("these keys have no effect here: %s", ", ".join(idle))
        if config.unknown:
            # One that was misspelt would be missed for years; what came from remote has a limit.
            log.warning("nobody knows these keys here: %s", ", ".join(sorted(config.unknown))[:2000])
        _warn_of_open_door(config)
        self._runner = AsyncioRunner()
        self.state = state = BrokerState(config, self._clock, self._runner, hooks=self._hooks or Hooks.installed())
        # First the ports: one that is taken shall not cost a recovery, and the address is written into every message.
        await self._take_ports(state)
        self._load_tables(state)
        self._make_store(state)
        self._fill_handler_tables(state)
        state.store.open(_Progress(state.clock))
        self._store_is_open = True
        state.delay.load()
        state.store.start()
        await self._go(state)

    def _load_tables(self, state: BrokerState) -> None:
        config, clock, root = state.config, state.clock, state.config.store.root
        state.files = files = ConfigFiles(self._disk, root)
        state.topics = TopicTable(config, files.topics, clock)
        state.offsets = ConsumerOffsets(
            files, clock, lmq=config.store.enable_lmq, version_step=config.consumer_offset_update_version_step
        )
        state.groups = GroupTable(config, files.subscription_groups, clock)
        state.consumers = Consumers()
        state.producers = Producers()
        state.locks = QueueLocks(clock)
        state.stats = BrokerStats(
            config.broker_cluster_name,
            clock,
            is_system=state.topics.is_system,
            detail=config.enable_detail_stat,
            auto_delete=config.auto_delete_unused_stats,
        )
        state.topics.load()
        state.offsets.load()
        state.groups.load()
        state.on_config.append(self._reconfigure)

    def _make_store(self, state: BrokerState) -> None:
        config, runner = state.config, state.runner
        state.store = store = Store(
            config.store.root,
            config.store,
            runner=runner,
            disk=self._disk,
            clock=self._clock,
            topics=state.topics,
            store_host=state.store_host,
        )
        state.held_pulls = HeldPulls(
            self._clock,
            runner,
            store.max_offset,
            limit=config.pull_thread_pool_queue_capacity,
            multi_dispatch=config.store.enable_multi_dispatch,
        )
        store.dispatch.append(TellArrivals(state.held_pulls.arrived))
        store.puts.timed = state.stats.turn_written
        state.delay = DelayDelivery(
            store,
            state.files.delay_offsets,
            DelayLevels.parse(config.store.message_delay_level),
            clock=self._clock,
            runner=runner,
            version_step=config.delay_offset_update_version_step,
            delivered=lambda topic, queue_id, size: state.stats.put(topic, queue_id, 1, size),
        )

    async def _take_ports(self, state: BrokerState) -> None:
        config = state.config
        ports = [config.listen_port]
        if self._has_fast_port and config.listen_port > FAST_PORT:
            ports.append(config.listen_port - FAST_PORT)
        for port in ports:
            options = ServerOptions(
                host=config.bind_address,
                port=port,
                backlog=config.server_socket_backlog,
                open_reply_limit=OPEN_SENDS + config.pull_thread_pool_queue_capacity,
                tls=self._tls,
                limits=self._limits,
            )
            self._servers.append(Server(HandlerTable(), options))
            try:
                await self._servers[-1].bind()
            except ListenFailed as error:
                which = "listenPort" if port == config.listen_port else f"the fast port, listenPort - {FAST_PORT}"
                raise ListenFailed(f"{error} ({which})") from error
        state.listens_on(self.port, await _resolved(config.broker_ip1))

    def _fill_handler_tables(self, state: BrokerState) -> None:
        hooks = state.hooks
        self._housekeeping = ClientHousekeeping(state)
        self._notices = ConsumerNotices(state)
        rows: list[Row] = [
            (code, hooks.wrap(code, with_all_of(state.store, code, handler)), permission)
            for code, handler, permission in handler_rows(state)
        ]
        state.store.dispatch.comes_last = True
        for server in self._servers:
            table = server.table
            fill_table(table, rows, fast=server is not self._servers[0])
            table.lane = state.send_lane
            if (before := hooks.before()) is not None:
                table.before.append(before)
            table.on_connection_lost.append(self._housekeeping.connection_lost)
            table.on_connection_lost.append(state.held_pulls.drop_connection)

    async def _go(self, state: BrokerState) -> None:
        config = state.config
        self._saved = [
            SavedTable(
                state.files.lmq_consumer_offsets if config.store.enable_lmq else state.files.consumer_offsets,
                state.offsets.snapshot,
                state.runner,
                lambda: state.config.flush_consumer_offset_interval / 1000,
                lambda: state.offsets.changes,
            ),
            SavedTable(
                state.files.delay_offsets,
                state.delay.snapshot,
                state.runner,
                lambda: state.config.store.flush_delay_offset_interval / 1000,
                lambda: sum(state.delay.snapshot().offset_table.values()),
            ),
        ]
        for table in self._saved:
            table.start()
        self._jobs = Jobs(state.runner)
        self._jobs.every("the look for silent clients", lambda: SCAN_INTERVAL, self._housekeeping.scan)
        self._jobs.every("the look for expired offsets", lambda: OFFSET_SCAN, self._expire_offsets)
        state.stats.start(state.runner)
        for server in self._servers:
            await server.start()
            log.info("listening on %s", format_address(*server.address))
        state.delay.start()
        self._registration = Registration(state, self._client)
        await self._registration.start()

    async def close(self) -> None:
        """Take leave of the nameservers, answer what is in flight, save everything. Nothing happens the second time."""
        if self._runner is None:
            return
        runner, self._runner = self._runner, None
        try:
            if self._registration is not None:
                await self._registration.close()
            if self._notices is not None:
                # Every client loses its connection now: nobody shall divide the queues anew for that.
                self._notices.close()
            await self._close_servers()
            if self._jobs is not None:
                self._jobs.stop()
            self._save_all()
        finally:
            await self._client.close()
            runner.close()

    async def _close_servers(self) -> None:
        config = self.state.config
        grace = config.shutdown_wait_time_seconds if config.enable_shutdown_gracefully else CLOSE_GRACE
        closing = [asyncio.create_task(server.close(grace=grace)) for server in self._servers]
        # They refuse requests from now on; then held pulls are answered, and do not come again.
        await asyncio.sleep(0)
        if self._store_is_open:
            self.state.held_pulls.close()
        await asyncio.gather(*closing)

    def _save_all(self) -> None:
        """The tables, then the store; what fails does not keep the others from being saved."""
        state = self.state
        if not self._store_is_open:
            return
        self._store_is_open = False
        state.stats.stop()
        state.overload.close()
        saves: list[Callable[[], None]] = [state.delay.stop, *(table.close for table in self._saved)]
        for save in [*saves, state.topics.save, state.groups.save, state.store.close]:
            try:
                save()
            except (OSError, CometMQError) as error:
                log.error("at the end something could not be saved: %s", error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # What it does by itself

    def _expire_offsets(self) -> None:
        state = self.state
        if state.config.enable_clean_expired_offset:
            state.offsets.clean_expired(
                lambda group, topic: state.consumers.subscription(group, topic, with_pullers=True) is not None,
                state.store.min_offset,
            )

    def _reconfigure(self, config: BrokerConfig) -> None:
        state = self.state
        state.topics.configure(config)
        state.groups.configure(config)
        state.offsets.version_step = config.consumer_offset_update_version_step
        state.held_pulls.limit = config.pull_thread_pool_queue_capacity
        for server in self._servers:
            server.dispatcher.open_reply_limit = OPEN_SENDS + config.pull_thread_pool_queue_capacity
        state.stats.configure(detail=config.enable_detail_stat, auto_delete=config.auto_delete_unused_stats)


def _warn_of_open_door(config: BrokerConfig) -> None:
    """Whoever asks for access control is told that there is none, in a line of its own."""
    shown = config.to_properties()
    asked = [key for key in ACCESS_KEYS if shown.get(key, "").strip().lower() == "true"]
    if asked:
        log.warning("%s: this version checks no accounts, every client may do everything", ", ".join(asked))


def _check_role(config: BrokerConfig) -> None:
    """Nothing is promised here that only replication can keep."""
    if not config.is_master:
        raise StartError("brokerRole=SLAVE: this version does not replicate yet", "start it as ASYNC_MASTER")
    if config.store.broker_role is BrokerRole.SYNC_MASTER:
        replicas = config.store.in_sync_replicas
        if replicas > 1:
            raise StartError(
                f"brokerRole=SYNC_MASTER with inSyncReplicas={replicas}: this version does not replicate yet",
                "start it as ASYNC_MASTER",
            )
        log.warning("brokerRole=SYNC_MASTER with inSyncReplicas=1: messages are acknowledged without any slave")


class _Progress:
    """Says in the log how far a recovery is, now and then."""

    PERIOD = 3.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = clock.monotonic() + self.PERIOD

    def __call__(self, done: int, total: int) -> None:
        if self._clock.monotonic() >= self._next:
            self._next = self._clock.monotonic() + self.PERIOD
            log.info("recovering the store: %d of %d MiB (%d %%)", done >> 20, total >> 20, 100 * done // max(total, 1))


async def _resolved(host: str) -> str | None:
    """The address of a `brokerIP1` that is a name; None when it is an address, or nobody knows the name."""
    if is_ip(host):
        return None
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        log.warning("brokerIP1=%s is not known here (%s); messages are stamped with 127.0.0.1", host, error)
        return None
    return str(infos[0][4][0])


def _limits(config: BrokerConfig, frame_limit: int) -> Limits:
    default = Limits()
    high = config.write_buffer_high_water_mark or default.high_water
    return Limits(
        frame=frame_limit,
        idle_timeout=float(config.server_channel_max_idle_time_seconds),
        high_water=high,
        low_water=min(config.write_buffer_low_water_mark or default.low_water, high),
    )
