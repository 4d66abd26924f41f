"""Nameserver and broker in one process: for laptops, tests and small machines.

The broker registers with the nameserver over a real connection, as if it ran elsewhere. Everything is kept in one
directory, which is never RocketMQ's own `~/store`. This is the only module of the broker that knows the nameserver.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Self

from cometmq.broker.broker import Broker
from cometmq.broker.config import BrokerConfig, from_sources
from cometmq.broker.hooks import Hooks
from cometmq.broker.store.clock import Clock
from cometmq.namesrv.config import NamesrvConfig
from cometmq.namesrv.server import NameServer
from cometmq.protocol.frame import MAX_FRAME
from cometmq.remoting.address import format_address, parse_address
from cometmq.remoting.tls import ClientTlsOptions, TlsOptions

#: Where everything is kept unless told otherwise.
STORE = "~/.cometmq/standalone"
#: Where the nameserver listens unless told otherwise.
NAMESERVER = "127.0.0.1:9876"

#: Hosts that mean every address of the machine.
EVERYWHERE = ("", "0.0.0.0", "::")


def standalone_config(
    file: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    nameserver: str = NAMESERVER,
    store: str | None = None,
    advertise: str | None = None,
    path: str | None = None,
    rocketmq_home: str = "",
) -> BrokerConfig:
    """The settings of the broker; its nameserver is the one of this process, whatever they say.

    Who listens to this machine only also tells only it about itself; `advertise` is the name by which clients reach it.
    """
    host, _ = parse_address(nameserver)
    defaults = {"bindAddress": host, "brokerName": "broker-a", "storePathRootDir": STORE}
    if host not in EVERYWHERE:
        defaults["brokerIP1"] = host
    told = {key: value for key, value in overrides.items() if key != "namesrvAddr"}
    if store is not None:
        told["storePathRootDir"] = store
    if advertise is not None:
        told["brokerIP1"] = advertise
    settings = {**defaults, **{key: value for key, value in file.items() if key != "namesrvAddr"}}
    return from_sources(settings, told, path=path, rocketmq_home=rocketmq_home)


class Standalone:
    """A nameserver and a broker. `async with`, or `start` and `close`."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        nameserver: str = NAMESERVER,
        clock: Clock | None = None,
        tls: TlsOptions | None = None,
        client_tls: ClientTlsOptions | None = None,
        frame_limit: int = MAX_FRAME,
        hooks: Hooks | None = None,
        fast_port: bool = True,
    ) -> None:
        self._config = config
        self._has_fast_port = fast_port
        self._host, port = parse_address(nameserver)
        folder = os.path.join(config.store.root, "namesrv")
        self.nameserver = NameServer(
            NamesrvConfig(
                listen_port=port,
                bind_address=self._host,
                kv_config_path=os.path.join(folder, "kvConfig.json"),
                config_store_path=os.path.join(folder, "namesrv.properties"),
            ),
            tls=tls,
            client_tls=client_tls,
            frame_limit=frame_limit,
        )
        self._clock, self._tls, self._client_tls = clock, tls, client_tls
        self._frame_limit, self._hooks = frame_limit, hooks
        self.broker: Broker

    @property
    def nameserver_address(self) -> str:
        """What clients give as the address of their nameserver."""
        host = self._config.broker_ip1 if self._host in EVERYWHERE else self._host
        return format_address(host, self.nameserver.port)

    async def start(self) -> None:
        await self.nameserver.start()
        # From inside, everywhere is here.
        inside = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        try:
            self.broker = Broker(
                dataclasses.replace(self._config, namesrv_addr=format_address(inside, self.nameserver.port)),
                clock=self._clock,
                tls=self._tls,
                client_tls=self._client_tls,
                frame_limit=self._frame_limit,
                hooks=self._hooks,
                fast_port=self._has_fast_port,
            )
            await self.broker.start()
        except BaseException:
            await self.nameserver.close()
            raise

    async def close(self) -> None:
        try:
            await self.broker.close()
        finally:
            await self.nameserver.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
