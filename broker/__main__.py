"""The `mqbroker` command: options and files in, a running broker out.

Thin on purpose: what it starts is `Broker`, or `Standalone`. The modules behind it are loaded after the command line
was read, so that a mistake there is answered at once. Options and words are those of RocketMQ's BrokerStartup.
"""

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

import click

from cometmq.daemon import StartError, SystemProperties, UsageError, announce, exit_with, read_properties
from cometmq.protocol.errors import CometMQError

if TYPE_CHECKING:
    import asyncio

    from cometmq.broker.config import BrokerConfig

PROGRAM = "mqbroker"

#: Any key of the configuration file is also the system property with this in front of it, and so an environment
#: variable: `ROCKETMQ_BROKER_LISTENPORT`.
PREFIX = "rocketmq.broker."

#: What `-m` prints.
IMPORTANT = """
    autoCreateSubscriptionGroup autoCreateTopicEnable bindAddress brokerClusterName brokerId brokerIP1 brokerIP2
    brokerName brokerPermission brokerRole defaultTopicQueueNums deleteWhen diskMaxUsedSpaceRatio
    enablePropertyFilter fileReservedTime flushDiskType flushIntervalCommitLog haListenPort listenPort
    maxMessageSize messageDelayLevel namesrvAddr rejectTransactionMessage storePathCommitLog storePathRootDir
"""


class Options(NamedTuple):
    """The command line."""

    config_file: str | None
    nameservers: str | None
    standalone: bool
    store: str | None
    advertise: str | None
    log_dir: str | None


@click.command(name=PROGRAM, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("-c", "--configFile", "config_file", metavar="FILE", help="Configuration file, in .properties form.")
@click.option(
    "-n",
    "--namesrvAddr",
    "nameservers",
    metavar="LIST",
    help="Nameservers, `ip:port;ip:port`. With --standalone: where its own listens [default: 127.0.0.1:9876].",
)
@click.option("-p", "--printConfigItem", "print_all", is_flag=True, help="Print all config items and exit.")
@click.option("-m", "--printImportantConfig", "print_some", is_flag=True, help="Print the important ones and exit.")
@click.option("--standalone", is_flag=True, help="Run a nameserver in the same process.")
@click.option("--store", metavar="DIR", help="Where everything is kept [standalone: ~/.cometmq/standalone].")
@click.option("--advertise", metavar="HOST", help="The address that clients are told (brokerIP1).")
@click.option("-d", "--logDir", "log_dir", metavar="DIR", help="Log to rotated files here instead of stdout.")
@click.option("-D", "definitions", metavar="KEY=VALUE", multiple=True, help="A system property or config item.")
@click.option("--print-conf-dir", is_flag=True, help="Print where the shipped configurations are and exit.")
def main(
    config_file: str | None,
    nameservers: str | None,
    print_all: bool,
    print_some: bool,
    standalone: bool,
    store: str | None,
    advertise: str | None,
    log_dir: str | None,
    definitions: tuple[str, ...],
    print_conf_dir: bool,
) -> None:
    """Start a broker, compatible with Apache RocketMQ's."""
    options = Options(config_file, nameservers, standalone, store, advertise, log_dir)
    try:
        if print_conf_dir:
            from cometmq import conf

            print(os.path.dirname(conf.__file__))
            return
        properties = SystemProperties(definitions)
        config = load_config(options, properties)
        if print_all or print_some:
            shown = config.to_properties()
            announce("\n".join(f"{key}={shown[key]}" for key in (shown if print_all else IMPORTANT.split())))
            return
        _serve(config, options, properties)
    except (CometMQError, OSError) as error:
        exit_with(PROGRAM, error)


def load_config(options: Options, properties: SystemProperties) -> "BrokerConfig":
    """The settings of environment, file and command line; each stands above the ones before it."""
    from cometmq.broker.config import BrokerConfig, ConfigError, from_sources
    from cometmq.remoting.address import parse_addresses
    from cometmq.remoting.errors import BadAddress

    try:
        parse_addresses(options.nameservers or "")
    except BadAddress as error:
        raise UsageError(f"-n: {error}; {error.remedy}") from error
    file = read_properties(options.config_file) if options.config_file else {}
    overrides = properties.overrides(PREFIX, BrokerConfig().to_properties().keys() | {"logDir"})
    path = os.path.abspath(options.config_file) if options.config_file else None
    home = properties.get("rocketmq.home.dir") or os.environ.get("ROCKETMQ_HOME", "")
    try:
        if options.standalone:
            return _standalone_config(options, file, overrides, path, home)
        told = {"namesrvAddr": options.nameservers, "storePathRootDir": options.store, "brokerIP1": options.advertise}
        overrides |= {key: value for key, value in told.items() if value is not None}
        environment = properties.get("rocketmq.namesrv.addr") or os.environ.get("NAMESRV_ADDR", "")
        config = from_sources({"namesrvAddr": environment, **file}, overrides, path=path, rocketmq_home=home)
        parse_addresses(config.namesrv_addr)
    except BadAddress as error:
        raise StartError(f"bad configuration: namesrvAddr: {error}", error.remedy) from error
    except ConfigError as error:
        raise StartError(f"bad configuration: {error}", error.remedy) from error
    return config


def _standalone_config(
    options: Options, file: dict[str, str], overrides: dict[str, str], path: str | None, home: str
) -> "BrokerConfig":
    from cometmq.broker.standalone import NAMESERVER, standalone_config

    if ";" in (options.nameservers or ""):
        raise UsageError("-n: with --standalone it is the one address where its own nameserver listens")
    return standalone_config(
        file,
        overrides,
        nameserver=options.nameservers or NAMESERVER,
        store=options.store,
        advertise=options.advertise,
        path=path,
        rocketmq_home=home,
    )


def _serve(config: "BrokerConfig", options: Options, properties: SystemProperties) -> None:
    from cometmq import daemon
    from cometmq.remoting.tls import ClientTlsOptions, TlsOptions

    if sys.platform == "win32":
        raise StartError("the broker runs on Linux and macOS only", "run it there, or in a container; clients run here")
    log_dir = options.log_dir or properties.get("rocketmq.log.dir") or config.log_dir or None
    own_files = {"cometmq.broker.store": "store.log"}
    if options.standalone:
        own_files["cometmq.namesrv"] = "namesrv.log"
    daemon.log_to(log_dir, "broker.log", own_files)
    tls, frame_limit = daemon.tls_settings(properties), daemon.frame_limit(properties)
    server_tls, client_tls = TlsOptions.from_properties(tls), ClientTlsOptions.from_properties(tls)

    async def serve_broker(stop: "asyncio.Event") -> None:
        from cometmq.broker.broker import Broker

        broker = Broker(config, tls=server_tls, client_tls=client_tls, frame_limit=frame_limit)
        async with broker:
            nameservers = f" and name server is {config.namesrv_addr}" if config.namesrv_addr else ""
            daemon.announce(_boot_line(config, broker.address) + nameservers)
            daemon.calm_collector()
            await stop.wait()

    async def serve_standalone(stop: "asyncio.Event") -> None:
        from cometmq.broker.standalone import NAMESERVER, Standalone

        if os.environ.get("NAMESRV_ADDR"):
            daemon.log.info("NAMESRV_ADDR is ignored: --standalone has a nameserver of its own")
        address = options.nameservers or NAMESERVER
        both = Standalone(config, nameserver=address, tls=server_tls, client_tls=client_tls, frame_limit=frame_limit)
        async with both:
            where = both.nameserver_address
            daemon.announce(f"{_boot_line(config, both.broker.address)} and name server is {where}")
            daemon.calm_collector()
            await stop.wait()

    daemon.run(serve_standalone if options.standalone else serve_broker)


def _boot_line(config: "BrokerConfig", address: str) -> str:
    return f"The broker[{config.broker_name}, {address}] boot success. serializeType=JSON"


if __name__ == "__main__":
    main(prog_name=PROGRAM)
