"""Nameservers of ours with real RocketMQ brokers around them, as one thing that tests may hurt and that heals.

Two nameservers and three brokers, all of them processes:

- `five` and `four`: brokers of 5.3 and 4.9, each in a cluster of its own, registered with both nameservers;
- `frail`: a 5.3 broker that asks to be forgotten after 3 s of silence, registered with the first nameserver directly
  and with the second through a proxy that can be frozen.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from support.plain_frames import answers, broker_addresses, create_topic, register_now, topic_perms
from support.real_rocketmq import START_SECONDS, V4, V5, RealBroker, RealNameserver, write_properties
from support.server_process import ServerProcess, free_port, wait_for
from support.tcp_proxy import TcpProxy

#: How long `frail` may be silent. A broker tells its nameserver only when it may have an acting master.
EXPIRY_SECONDS = 3.0
FRAIL = {
    "enableSlaveActingMaster": "true",
    "brokerNotActiveTimeoutMillis": str(int(EXPIRY_SECONDS * 1000)),
    "brokerHeartbeatInterval": "500",
    "autoCreateTopicEnable": "false",  # else clients that make a topic by sending would choose it too
}
#: A broker registers every 10 s; that is the longest way back after a pause.
RETURN_SECONDS = 25


class OwnNameserver(ServerProcess):
    """Our nameserver, as `python -m cometmq.namesrv`."""

    def __init__(self, folder: Path, config: Mapping[str, str] | None = None) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.config_file = write_properties(
            folder / "namesrv.properties",
            {
                "listenPort": str(self.port),
                "bindAddress": "127.0.0.1",
                "kvConfigPath": str(folder / "kvConfig.json"),
                **(config or {}),
            },
        )
        argv = [sys.executable, "-m", "cometmq.namesrv", "-c", str(self.config_file)]
        super().__init__("our nameserver", argv, folder)


class Fleet:
    """All the processes. The constructor starts them; `heal` waits until they are up and know each other."""

    def __init__(self, folder: Path, nameserver: type[OwnNameserver] | type[RealNameserver]) -> None:
        # The scan period decides how long after its expiry a silent broker is still there.
        config = {"scanNotActiveBrokerInterval": "200"}
        self.nameservers = [nameserver(folder / f"namesrv-{i}", config) for i in (1, 2)]
        self.first, self.second = (server.address for server in self.nameservers)
        self.both = f"{self.first};{self.second}"
        self.proxy = TcpProxy(self.second)
        self.five = RealBroker(folder / "five", V5, "broker-five", "FiveCluster", self.both)
        self.four = RealBroker(folder / "four", V4, "broker-four", "FourCluster", self.both)
        self.frail = RealBroker(
            folder / "frail", V5, "broker-frail", "FrailCluster", f"{self.first};{self.proxy.address}", FRAIL
        )
        self.brokers = [self.five, self.four, self.frail]
        try:
            self._start_nameservers()  # before the brokers: who finds nobody tries again after 10 s
            for broker in self.brokers:
                broker.start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for process in (*self.brokers, *self.nameservers):
            process.kill()
        self.proxy.close()

    def heal(self) -> None:
        """Everything runs, nothing is frozen, and both nameservers know all three brokers."""
        if self.proxy.frozen:
            self.proxy.thaw()
        self._start_nameservers()
        for broker in self.brokers:
            if broker.alive:
                broker.cont()
            else:
                broker.start()
        wait_for("every broker is registered", START_SECONDS, self._all_registered, pause=0.3)

    def _all_registered(self) -> bool:
        """A broker that is up and unknown is asked to register: by itself it would do so every 10 s only.

        One of 5.x loses its first registration when it is busy: it has not yet found out which nameservers answer.
        """
        unknown = [b for b in self.brokers if not (b.registered(self.first) and b.registered(self.second))]
        for broker in unknown:
            if not broker.alive:
                raise RuntimeError(f"{broker.name} ended\n{broker.tail()}")
            with contextlib.suppress(OSError):  # not up yet
                register_now(broker.address)
        return not unknown

    def _start_nameservers(self) -> None:
        for server in self.nameservers:
            if not server.alive:
                server.start()
        for server in self.nameservers:
            server.wait_ready("answers", START_SECONDS, functools.partial(answers, server.address))

    def known(self, nameserver: str) -> set[str]:
        """The names of the brokers that a nameserver knows now."""
        return set(broker_addresses(nameserver))

    def make_topic(self, topic: str, *brokers: RealBroker, queues: int = 2) -> None:
        """A topic on some brokers, known to both nameservers."""
        names = {broker.broker_name for broker in brokers}
        for broker in brokers:
            create_topic(broker.address, topic, queues)
        self.everywhere(f"{topic} on {names}", 10, lambda at: names <= topic_perms(at, topic).keys())

    def everywhere(self, what: str, seconds: float, look: Callable[[str], bool]) -> None:
        """Waits until something is so at both nameservers; `look` gets the address of one."""
        wait_for(what, seconds, lambda: look(self.first) and look(self.second))
